"""What a search goes through: the ranges that a method's `Settings` declare, and the dropout rates of the network."""

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
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.learning.method_registry import METHODS

# The paper searches both rates but gives no ranges; all values that its authors published lie in this one.
DROPOUT = {"network.drop1": (0.0, 0.5), "network.drop2": (0.0, 0.5)}
BUDGET = ("epochs", "joint_epochs", "precision")
"""What a search may save time with: settings that were found go on to be used without it."""


@dataclass(frozen=True)
class Range:
    """Where one field may lie: between two numbers, or among a few values."""

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

    def place(self, value: float) -> float:
        """Where between its ends, 0 and 1, a value lies: on the scale on which it is searched."""
        low, high = self._ends()
        return ((math.log(value) if self.log else value) - low) / (high - low)

    def at(self, place: float) -> float:
        """The value at a place; of whole numbers, the nearest."""
        low, high = self._ends()
        value = low + place * (high - low)
        value = math.exp(value) if self.log else value
        assert self.low is not None
        assert self.high is not None
        return min(max(round(value) if self.whole else value, self.low), self.high)

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def _ends(self) -> tuple[float, float]:
        assert self.low is not None
        assert self.high is not None
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """Everything that decides which settings are tried, and how each is judged."""

    method: str
    sequence: str
    trials: int
    preset: str = "paper"
    tasks: int | None = None
    seed: int = 1
    """Of the runs and of the search."""
    dropout: bool = True
    """Whether the network's dropout rates are searched too."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fixed for all trials; what is named here is not searched."""

    def name(self) -> str:
        """Equal for plans that may share their trials: more trials continue the same search."""
        told = {key: value for key, value in dataclasses.asdict(self).items() if key != "trials"}
        told["space"] = {name: dataclasses.asdict(each) for name, each in self.space().items()}
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
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
        ranges = {name: Range(low, high) for name, (low, high) in DROPOUT.items()} if self.dropout else {}
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
        """What was fixed for all trials of that which a settings file holds: what is found belongs to it."""
        config = self.config({})
        rates = {name.partition(".")[2]: getattr(config.network, name.partition(".")[2]) for name in DROPOUT}
        training = {key: value for key, value in vars(config.training).items() if key not in BUDGET}
        return {
            section: {key: value for key, value in values.items() if {key, f"{section}.{key}"} & self.changes.keys()}
            for section, values in (("settings", config.settings), ("network", rates), ("training", training))
        }

    def defaults(self) -> dict[str, Any]:
        """What a run has without a search, for every field of the space."""
        config = self.config({})
        found = {}
        for name, allowed in self.space().items():
            section, _, key = name.partition(".")
            value = config.settings[key] if section == "settings" else getattr(config.network, key)
            if value is None and key == "lr":  # the same as the rate of the training
                value = config.training.lr
            if value not in allowed:
                raise ConfigError(f"{name} of {self.method} is {value} by default: that is outside its search range")
            found[name] = value
        return found

    def spread(self, number: int) -> dict[str, Any]:
        """Values for a trial that comes before anything is known: wherever one stops, the trials lie evenly.

        From the defaults on, each number goes by a step of its own through its range and begins again at the other end.
        The steps are powers of the golden ratio and its kin, which keep the next point away from all before.
        """
        numbers = {name: each for name, each in self.space().items() if each.choices is None}
        ratio = 2.0
        for _ in range(50):  # the root of ratio^(n + 1) = ratio + 1
            ratio = (1 + ratio) ** (1 / (len(numbers) + 1))
        steps = {name: ratio ** -(which + 1) for which, name in enumerate(numbers)}
        defaults = self.defaults()
        return {
            name: each.at((each.place(defaults[name]) + number * steps[name]) % 1) for name, each in numbers.items()
        }

    def total(self) -> int:
        """How many trials there will be: no more than there are values to try."""
        few = [each.choices for each in self.space().values() if each.choices is not None]
        return min(self.trials, math.prod(map(len, few))) if len(few) == len(self.space()) else self.trials

    def first(self) -> list[dict[str, Any]]:
        """What is tried before anything is drawn: the defaults, and where all is a choice, one after the other."""
        defaults, space = self.defaults(), self.space()
        few = [each.choices for each in space.values() if each.choices is not None]
        if len(few) < len(space):
            return [defaults]
        every = (dict(zip(space, values, strict=True)) for values in itertools.product(*few))
        return [defaults, *itertools.islice((each for each in every if each != defaults), self.trials - 1)]


def in_words(found: Mapping[str, Any]) -> str:
    """`drop1 0.21, strength 812`: for people."""
    shown = {name.rpartition(".")[2]: value for name, value in found.items()}
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items()
    )
