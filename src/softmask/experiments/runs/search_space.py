"""The search space: the ranges that a method's `Settings` declare, and the dropout rates of the network."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from softmask.errors import ConfigError
from softmask.experiments.runs.config import RunConfig, make_config, network_name
from softmask.learning.backbones import DROPOUT as RATES
from softmask.learning.registry import METHODS

# The paper searches both rates but gives no ranges; all values that its authors published lie in this one.
DROPOUT = {"network.drop1": (0.0, 0.5), "network.drop2": (0.0, 0.5)}
VERSION = 2
"""Version of the way trials are drawn and run. Trials of another version are not continued."""
BUDGET = ("epochs", "joint_epochs", "precision")
"""Fields that shorten the trials of a search: they are not part of the settings that it finds."""


@dataclass(frozen=True)
class Range:
    """The values of one field: between two numbers, or one of a few choices."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Any, ...] | None = None

    def __contains__(self, value: Any) -> bool:
        if self.choices is not None:
            return value in self.choices
        assert self.low is not None
        assert self.high is not None
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """Everything that decides which settings are tried and how each is evaluated."""

    method: str
    sequence: str
    trials: int
    preset: str = "paper"
    tasks: int | None = None
    seed: int = 1
    """The seed of the runs and of the search."""
    dropout: bool = True
    """Whether the network's dropout rates are searched too."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fixed for all trials; these fields are not searched."""

    def name(self) -> str:
        """Equal for plans that share their trials: only the number of trials may differ."""
        facts = {key: value for key, value in dataclasses.asdict(self).items() if key != "trials"}
        facts["space"] = {name: dataclasses.asdict(each) for name, each in self.space().items()}
        facts["version"] = VERSION
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
        return self.config({}).id().rpartition("_")[0] + "_" + digest

    def config(self, found: Mapping[str, Any]) -> RunConfig:
        """The run of one trial."""
        return make_config(
            self.method,
            self.sequence,
            preset=self.preset,
            seed=self.seed,
            tasks=self.tasks,
            changes={**self.changes, **found},
        )

    def space(self) -> dict[str, Range]:
        """The fields to be searched, by their full names."""
        rates = RATES.get(network_name(self.changes), ()) if self.dropout else ()
        ranges = {name: Range(*ends) for name, ends in DROPOUT.items() if name.partition(".")[2] in rates}
        for each in dataclasses.fields(METHODS.load(self.method).Settings):
            if (declared := each.metadata.get("search")) is not None:
                choices, low, high = declared["choices"], declared["low"], declared["high"]
                if choices is None and each.type in (int, "int"):  # whatever its ends are written as
                    low, high = math.ceil(low), math.floor(high)
                ranges[f"settings.{each.name}"] = Range(
                    low, high, declared["log"], None if choices is None else tuple(choices)
                )
        # By its full name or, where that is clear, by its last part: `training.lr` does not fix `settings.lr`.
        ranges = {
            name: each
            for name, each in ranges.items()
            if name not in self.changes and name.rpartition(".")[2] not in self.changes
        }
        if not ranges:
            raise ConfigError(f"there is nothing to search for {self.method}: no field with a range is left")
        return ranges

    def fixed(self) -> dict[str, dict[str, Any]]:
        """The fields of a settings file that were fixed for all trials: the settings that are found belong to them."""
        config = self.config({})
        network = {key: getattr(config.network, key) for key in ("drop1", "drop2", "name", "norm")}
        training = {key: value for key, value in vars(config.training).items() if key not in BUDGET}
        return {
            section: {key: value for key, value in values.items() if {key, f"{section}.{key}"} & self.changes.keys()}
            for section, values in (("settings", config.settings), ("network", network), ("training", training))
        }

    def defaults(self) -> dict[str, Any]:
        """The defaults, for every field of the space."""
        config = self.config({})
        found = {}
        for name, allowed in self.space().items():
            section, _, key = name.partition(".")
            value = config.settings[key] if section == "settings" else getattr(config.network, key)
            if value is None and key == "lr":  # the learning rate of the training
                value = config.training.lr
            if value not in allowed:
                raise ConfigError(f"{name} of {self.method} is {value} by default: that is outside its search range")
            found[name] = value
        return found

    def total(self) -> int:
        """The number of trials: at most as many as there are combinations, where every field is a choice."""
        choices = self._choices()
        return self.trials if choices is None else min(self.trials, math.prod(map(len, choices)))

    def first(self) -> list[dict[str, Any]]:
        """The trials before any sampling: the defaults; where every field is a choice, all combinations."""
        defaults, choices = self.defaults(), self._choices()
        if choices is None:
            return [defaults]
        combinations = (dict(zip(self.space(), values, strict=True)) for values in itertools.product(*choices))
        return [defaults, *itertools.islice((each for each in combinations if each != defaults), self.trials - 1)]

    def _choices(self) -> list[tuple[Any, ...]] | None:
        """The choices of every field; None if a field has a continuous range."""
        choices = [each.choices for each in self.space().values() if each.choices is not None]
        return choices if len(choices) == len(self.space()) else None


def settings_text(found: Mapping[str, Any]) -> str:
    """For example `drop1 0.21, strength 812`."""
    shown = {name.rpartition(".")[2]: value for name, value in found.items()}
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items()
    )
