"""Everything that determines a result, as one frozen value. Equal configs have equal ids and equal results."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from softmask.errors import ConfigError, SoftmaskError, UnknownName, nearest
from softmask.experiments.sequences import SEQUENCES, SequenceFacts, sequence_facts
from softmask.learning.backbones import CHAINS, has_width, is_function, with_digest
from softmask.learning.registry import METHODS
from softmask.learning.scenario import NetworkConfig
from softmask.learning.seeds import Seeds
from softmask.learning.settings import omit_new_defaults, refuse_unknown, validated
from softmask.learning.task import TaskSequence
from softmask.learning.training import PRESETS, Training
from softmask.storage.reading import is_shallow

SECTION_TYPES: dict[str, type] = {"training": Training, "network": NetworkConfig, "seeds": Seeds}
SECTIONS = ("training", "network", "settings", "seeds")
LARGEST = 1e38
"""Weights and gradients are float32: a larger number cannot be multiplied with them."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The config of one run. Machine, device and checkpoint frequency are not part of it, since they do not change the
    result."""

    method: str
    sequence: str
    tasks: int | None = None
    """Use only the first N tasks of the sequence; None means all."""
    seeds: Seeds = field(default_factory=Seeds)
    settings: dict[str, Any] = field(default_factory=dict)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        METHODS.entry(self.method)
        facts = _registered(self.sequence)
        if facts is not None:
            _check_tasks(self.sequence, self.tasks, facts)
            if self.tasks == facts.tasks:  # one run, not two
                object.__setattr__(self, "tasks", None)
        for name, kind in SECTION_TYPES.items():
            # Checked like a config from a file, so that 1 and 1.0 give the same id.
            object.__setattr__(self, name, validated(kind, dataclasses.asdict(getattr(self, name)), name))
        _checked_seeds(self.seeds)
        if self.network.name not in CHAINS and not is_function(self.network.name):
            METHODS.load(self.method).require_fitting(self.network.name)
        object.__setattr__(self, "settings", dataclasses.asdict(self.method_settings()))
        for section in ("training", "settings"):
            values = self.settings if section == "settings" else vars(self.training)
            for name, value in values.items():
                if isinstance(value, (int, float)) and abs(value) > LARGEST:
                    raise ConfigError(f"{section}.{name} is too large for a 32-bit number: above {LARGEST:g}")

    def method_settings(self) -> Any:
        """The method's own settings, checked, as its `Settings`."""
        return validated(METHODS.load(self.method).Settings, dict(self.settings), f"settings of {self.method}")

    def of_method(self, method: str) -> RunConfig:
        """The same run with another method and that method's own defaults. Dropout rates that differ from this method's
        defaults were chosen deliberately: the other method gets them, too.
        """
        rates, theirs = (default_dropout(each, self.sequence, self.network.name) for each in (self.method, method))
        chosen = (self.network.drop1, self.network.drop2)
        drop1, drop2 = theirs if chosen == rates else chosen
        return replace(self, method=method, settings={}, network=replace(self.network, drop1=drop1, drop2=drop2))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def with_seeds(self, seeds: Seeds) -> RunConfig:
        """The same run with other seeds. Nothing else is checked again, since many runs differ only in their seeds."""
        other = object.__new__(type(self))
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        vars(other).update(fields | {"settings": dict(self.settings), "seeds": _checked_seeds(seeds)})
        return other

    def digest(self) -> str:
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        # As `to_dict`, but without copying, and once: a grid asks for it again and again.
        # Fields that were added later are left out at their defaults, so that earlier runs keep their ids.
        sections = {name: omit_new_defaults(kind, vars(getattr(self, name))) for name, kind in SECTION_TYPES.items()}
        with suppress(UnknownName):  # the settings of a method that is not installed are those that were stored
            sections["settings"] = omit_new_defaults(METHODS.load(self.method).Settings, self.settings)
        canonical = json.dumps(vars(self) | sections, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def id(self) -> str:
        """The name of the run's folder: a readable prefix and a digest. A sequence may be called by a path."""
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", self.sequence)[-40:].strip(".-")
        return f"{self.method}_{readable}_{self.digest()}"

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RunConfig:
        for name, kind in SECTION_TYPES.items():
            if isinstance(raw.get(name), Mapping):
                refuse_unknown(kind, raw[name], name)
        return validated(cls, dict(raw), "config")


def read_config(raw: Mapping[str, Any]) -> RunConfig:
    """A stored config. As `RunConfig.from_dict`, but fast where a store holds one config with many seeds.

    A method or sequence that is not installed is not an error: the run can be shown, though not continued.
    """
    seeds = raw.get("seeds")
    method: Any = None
    if isinstance(name := raw.get("method"), str):
        with suppress(SoftmaskError):
            method = METHODS.load(name)
    if not isinstance(seeds, Mapping) or not isinstance(name, str):
        return _not_installed(raw) if isinstance(name, str) and method is None else RunConfig.from_dict(raw)
    if isinstance(sequence := raw.get("sequence"), str) and (facts := _registered(sequence)) is not None:
        _check_tasks(sequence, raw.get("tasks"), facts)
    rest = json.dumps({name: value for name, value in raw.items() if name != "seeds"})
    return _seedless(rest, cast(Hashable, method)).with_seeds(_read_seeds(json.dumps(seeds)))


@functools.lru_cache(maxsize=4096)
def _seedless(text: str, method: Hashable | None) -> RunConfig:
    """Cached by the method itself as well as by its name, which may be registered again."""
    return _not_installed(json.loads(text)) if method is None else RunConfig.from_dict(json.loads(text))


def _not_installed(raw: Mapping[str, Any]) -> RunConfig:
    """A config whose method is not installed: its settings are those that were stored."""
    refuse_unknown(RunConfig, raw, "config")
    tasks, settings = raw.get("tasks"), raw.get("settings", {})
    for name in ("method", "sequence"):
        if not isinstance(raw.get(name), str):
            raise ConfigError(f"config: {name} must be a name, not {raw.get(name)!r}")
    if not isinstance(settings, Mapping) or not (tasks is None or (type(tasks) is int and tasks > 0)):
        raise ConfigError("config: settings must be an object, and tasks a positive number or null")
    if not is_shallow(settings):
        raise ConfigError("config: settings are nested too deeply")
    sections = {name: validated(kind, dict(raw.get(name, {})), name) for name, kind in SECTION_TYPES.items()}
    _checked_seeds(sections["seeds"])
    config = object.__new__(RunConfig)
    stored = {"method": raw["method"], "sequence": raw["sequence"], "tasks": tasks, "settings": dict(settings)}
    vars(config).update({each.name: (stored | sections)[each.name] for each in dataclasses.fields(RunConfig)})
    return config


@functools.lru_cache(maxsize=4096)
def _read_seeds(text: str) -> Seeds:
    seeds: Seeds = validated(Seeds, json.loads(text), "seeds")
    return seeds


def _checked_seeds(seeds: Seeds) -> Seeds:
    for name, seed in vars(seeds).items():
        if seed < 0:
            raise ConfigError(f"seeds.{name}: a seed must be 0 or more, not {seed}")
    return seeds


def make_config(
    method: str,
    sequence: str | TaskSequence,
    *,
    preset: str = "paper",
    seed: int = 1,
    tasks: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> RunConfig:
    """A config from names: the preset's training, the sequence's width and normalisation, the method's dropout rates
    and settings, one seed for all; then `changes`.

    A sequence may be an object: the config has its name, and the run must be given the object (`run(sequence=...)`).
    A change is named `training.lr`, `network.width`, `settings.strength`, `seeds.order`, or by its last part alone if
    that is unambiguous. Weights to start from (`network.weights`) are named with a digest of their file.
    """
    if preset not in PRESETS:
        raise UnknownName("preset", preset, PRESETS)
    METHODS.entry(method)
    name, facts = _facts_of(sequence)
    _check_tasks(name, tasks, facts)
    if tasks == facts.tasks:
        tasks = None
    raw: dict[str, dict[str, Any]] = {
        "training": dataclasses.asdict(PRESETS[preset]),
        "network": default_network(method, name, network_name(changes or {}), facts),
        "settings": dataclasses.asdict(METHODS.load(method).Settings()),
        "seeds": dataclasses.asdict(Seeds.all_from(seed)),
    }
    for field_name, value in (changes or {}).items():
        section, key = _find_field(field_name, raw, method)
        raw[section][key] = value
    if isinstance(weights := raw["network"]["weights"], str):
        raw["network"]["weights"] = with_digest(weights)
    return RunConfig.from_dict({"method": method, "sequence": name, "tasks": tasks, **raw})


def network_name(changes: Mapping[str, Any]) -> str:
    """The name of the network that these changes ask for."""
    name = changes.get("network.name", changes.get("name", NetworkConfig.name))
    return name if isinstance(name, str) else NetworkConfig.name


def default_network(method: str, sequence: str, name: str, facts: SequenceFacts) -> dict[str, Any]:
    """The default fields of a network; fields that it does not have get a neutral value."""
    drop1, drop2 = default_dropout(method, sequence, name)
    width = facts.width if has_width(name) else 1.0
    norm = facts.norm if name == NetworkConfig.name else None
    plain = {"name": NetworkConfig.name, "norm": norm, "weights": NetworkConfig.weights}
    return {"width": width, "drop1": drop1, "drop2": drop2, **plain}


def default_dropout(method: str, sequence: str, network: str = NetworkConfig.name) -> tuple[float, float]:
    """The rates of the method's authors, or none; those that Konishi et al. searched for SPG on a sequence are the
    defaults of SPG and of the methods that explicitly use them (`Method.default_dropout`). All were chosen for AlexNet:
    on another network there is no dropout unless it is set."""
    if network != NetworkConfig.name:
        return 0.0, 0.0
    own = METHODS.load(method).default_dropout
    if own is not None:
        return own
    facts = _registered(sequence) or SequenceFacts
    return facts.drop1, facts.drop2


def _facts_of(sequence: str | TaskSequence) -> tuple[str, SequenceFacts]:
    """Its name and facts. An object that has the name of a registered sequence must be that sequence."""
    if isinstance(sequence, str):
        name = SEQUENCES.spelt(sequence)
        return name, sequence_facts(name)
    name, count, classes = sequence.name, len(sequence.tasks), max(sequence.classes)
    registered = _registered(name)
    if registered is None:
        return name, SequenceFacts(tasks=count, classes=classes, description=name, similar=sequence.similar)
    if (count, classes) != (registered.tasks, registered.classes):
        raise ConfigError(
            f"{name} is the name of a registered sequence with {registered.tasks} tasks of up to "
            f"{registered.classes} classes, not {count} of up to {classes}: give the object another name"
        )
    return name, registered


def _registered(sequence: str) -> SequenceFacts | None:
    """The facts of a sequence that is known by its name. None for an object, a removed package or a folder that no
    longer exists."""
    if ":" in sequence or sequence not in SEQUENCES.names():
        return None
    return sequence_facts(sequence)


def _check_tasks(sequence: str, tasks: int | None, facts: SequenceFacts) -> None:
    if tasks is not None and not 1 <= tasks <= facts.tasks:
        raise ConfigError(f"{sequence} has {facts.tasks} tasks: tasks must be in 1..{facts.tasks}, not {tasks}")


def _find_field(name: str, raw: Mapping[str, Mapping[str, Any]], method: str) -> tuple[str, str]:
    """Error messages name the method, since a grid has many, each with its own fields."""
    known = [f"{section}.{key}" for section in SECTIONS for key in raw[section]]
    matches = [full for full in known if full == name or full.split(".", 1)[1] == name]
    if len(matches) > 1:
        raise ConfigError(f"{method}: {name!r} could mean {' or '.join(matches)}: give the full name")
    if not matches:
        tails = {full.split(".", 1)[1]: full for full in known}
        hint = nearest(name, known) or nearest(name, tails)
        message = f"{method}: there is no field {name!r}"
        raise ConfigError(f"{message}{hint + ' Known' if hint else '; known'}: {', '.join(known)}")
    section, key = matches[0].split(".", 1)
    return section, key
