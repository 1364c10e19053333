"""Everything that decides a result, as one frozen value. Equal configs have equal ids and equal numbers."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from softmask.errors import ConfigError, UnknownName, nearest
from softmask.experiments.sequences import SequenceFacts, sequence_facts
from softmask.experiments.sequences.catalogue import SEQUENCES
from softmask.learning.method_registry import METHODS
from softmask.learning.scenario import NetworkConfig
from softmask.learning.seeds import Seeds
from softmask.learning.settings import omit_new_defaults
from softmask.learning.training import PRESETS, Training
from softmask.learning.validation import refuse_unknown, validated

SECTION_TYPES: dict[str, type] = {"training": Training, "network": NetworkConfig, "seeds": Seeds}
SECTIONS = ("training", "network", "settings", "seeds")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run. Where it runs, on what and how often it saves are not in it: they do not change the numbers."""

    method: str
    sequence: str
    tasks: int | None = None
    """Only so many tasks of the sequence; None means all."""
    seeds: Seeds = field(default_factory=Seeds)
    settings: dict[str, Any] = field(default_factory=dict)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        METHODS.entry(self.method)
        if ":" not in self.sequence:  # a folder of pictures may be gone by the time its results are read
            facts = _check_tasks(self.sequence, self.tasks)
            if self.tasks == facts.tasks:  # one run, not two
                object.__setattr__(self, "tasks", None)
        for name, kind in SECTION_TYPES.items():
            # Through the same check as a config from a file, so that 1 and 1.0 do not make two runs of one.
            object.__setattr__(self, name, validated(kind, dataclasses.asdict(getattr(self, name)), name))
        _checked_seeds(self.seeds)
        object.__setattr__(self, "settings", dataclasses.asdict(self.method_settings()))

    def method_settings(self) -> Any:
        """The method's own settings, checked, as its `Settings`."""
        return validated(METHODS.load(self.method).Settings, dict(self.settings), f"settings of {self.method}")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def with_seeds(self, seeds: Seeds) -> RunConfig:
        """The same run with other seeds. Nothing else is checked again: many runs differ in their seeds alone."""
        other = object.__new__(type(self))
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        vars(other).update(fields | {"settings": dict(self.settings), "seeds": _checked_seeds(seeds)})
        return other

    def digest(self) -> str:
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        # As `to_dict`, but without copying, and once: a grid asks for it again and again.
        # Fields that came later are left out at their defaults: earlier runs keep their ids.
        sections = {name: omit_new_defaults(kind, vars(getattr(self, name))) for name, kind in SECTION_TYPES.items()}
        sections["settings"] = omit_new_defaults(METHODS.load(self.method).Settings, self.settings)
        canonical = json.dumps(vars(self) | sections, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def id(self) -> str:
        """Names the run's folder: readable in front, decided by the digest. A sequence may be called by a path."""
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", self.sequence)[-40:].strip(".-")
        return f"{self.method}_{readable}_{self.digest()}"

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RunConfig:
        for name, kind in SECTION_TYPES.items():
            if isinstance(raw.get(name), Mapping):
                refuse_unknown(kind, raw[name], name)
        return validated(cls, dict(raw), "config")


def read_config(raw: Mapping[str, Any]) -> RunConfig:
    """As `RunConfig.from_dict`, but quick where a store holds one way of running with many seeds."""
    seeds = raw.get("seeds")
    if not isinstance(seeds, Mapping) or not isinstance(raw.get("method"), str):
        return RunConfig.from_dict(raw)
    if ":" not in (sequence := str(raw.get("sequence"))):
        _check_tasks(sequence, raw.get("tasks"))
    rest = json.dumps({name: value for name, value in raw.items() if name != "seeds"})
    return _seedless(rest, cast(Hashable, METHODS.load(raw["method"]))).with_seeds(_read_seeds(json.dumps(seeds)))


@functools.lru_cache(maxsize=4096)
def _seedless(text: str, method: Hashable) -> RunConfig:
    """Known by the method itself as well, not only by its name, which may come to mean another."""
    return RunConfig.from_dict(json.loads(text))


@functools.lru_cache(maxsize=4096)
def _read_seeds(text: str) -> Seeds:
    seeds: Seeds = validated(Seeds, json.loads(text), "seeds")
    return seeds


def _checked_seeds(seeds: Seeds) -> Seeds:
    for name, seed in vars(seeds).items():
        if seed < 0:
            raise ConfigError(f"seeds.{name}: a seed is 0 or more, not {seed}")
    return seeds


def make_config(
    method: str,
    sequence: str,
    *,
    preset: str = "paper",
    seed: int = 1,
    tasks: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> RunConfig:
    """A config from names: the preset's training, the sequence's network, one seed for all; then `changes`.

    A change is named `training.lr`, `network.width`, `settings.strength`, `seeds.order`, or by its last part alone
    where that is clear.
    """
    if preset not in PRESETS:
        raise UnknownName("preset", preset, PRESETS)
    METHODS.entry(method)
    sequence = SEQUENCES.spelt(sequence)
    facts = _check_tasks(sequence, tasks)
    raw: dict[str, dict[str, Any]] = {
        "training": dataclasses.asdict(PRESETS[preset]),
        "network": {"width": facts.width, "drop1": facts.drop1, "drop2": facts.drop2},
        "settings": dataclasses.asdict(METHODS.load(method).Settings()),
        "seeds": dataclasses.asdict(Seeds.all_from(seed)),
    }
    for name, value in (changes or {}).items():
        section, key = _find_field(name, raw, method)
        raw[section][key] = value
    return RunConfig.from_dict({"method": method, "sequence": sequence, "tasks": tasks, **raw})


def _check_tasks(sequence: str, tasks: int | None) -> SequenceFacts:
    facts = sequence_facts(sequence)
    if tasks is not None and not 1 <= tasks <= facts.tasks:
        raise ConfigError(f"{sequence} has {facts.tasks} tasks: tasks must lie in 1..{facts.tasks}, not {tasks}")
    return facts


def _find_field(name: str, raw: Mapping[str, Mapping[str, Any]], method: str) -> tuple[str, str]:
    """Errors name the method: a grid has many, and each has fields of its own."""
    known = [f"{section}.{key}" for section in SECTIONS for key in raw[section]]
    matches = [full for full in known if full == name or full.split(".", 1)[1] == name]
    if len(matches) > 1:
        raise ConfigError(f"{method}: {name!r} could mean {' or '.join(matches)}: give the full name")
    if not matches:
        tails = {full.split(".", 1)[1]: full for full in known}
        hint = nearest(name, known) or nearest(name, tails)
        told = f"{method}: there is no field {name!r}"
        raise ConfigError(f"{told}{hint + ' Known' if hint else '; known'}: {', '.join(known)}")
    section, key = matches[0].split(".", 1)
    return section, key
