"""Runs in groups: those that differ only in their seeds, and those that may be compared."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from softmask.errors import SoftmaskError, UnknownName
from softmask.experiments.analyses.table import Value
from softmask.experiments.metrics import average_accuracy
from softmask.experiments.paper import paper_tables
from softmask.experiments.runs.config import RunConfig, default_network
from softmask.experiments.runs.store import StoredRun
from softmask.experiments.sequences import sequence_facts
from softmask.learning.method import Uses
from softmask.learning.registry import METHODS
from softmask.learning.scenario import NetworkConfig
from softmask.learning.training import PRESETS, Training

REFERENCE = "one"
IDENTITY = ("name", "norm", "weights")
"""Fields that say which network it is."""
LABELS = ("sequence", "method", "training", "changed")
UNRANKED = ("MTL", "ONE")
"""Not continual learning: shown in brackets and never ranked."""
RANKED_APART = "Methods that keep old data, or use other data, are ranked apart from those that do not."


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds."""

    runs: tuple[StoredRun, ...]
    grown: bool = False
    """Whether the same config was also run on another number of tasks: a folder of images may grow."""

    @property
    def config(self) -> RunConfig:
        return self.runs[0].config

    @cached_property
    def title(self) -> str:
        return method_title(self.config.method)

    @cached_property
    def sequence(self) -> str:
        return sequence_label(self.config)

    @cached_property
    def training(self) -> str:
        """The training and, unless it is the paper's, the network: runs on different networks are never compared."""
        return " on ".join(filter(None, [training_name(self.config.training), network_label(self.config)]))

    @cached_property
    def changed(self) -> str | None:
        parts = [changes(self.config, network=False), f"tasks={self.tasks}" if self.grown else None]
        return " ".join(filter(None, parts)) or None

    @property
    def label(self) -> tuple[str, str, str, str | None]:
        """The cells of `LABELS`."""
        return self.sequence, self.title, self.training, self.changed

    def over_seeds(
        self, measure: Callable[[StoredRun], float | None], digits: int = 1, signed: bool = False
    ) -> Value | None:
        """Mean and standard deviation of a value over the runs that have it."""
        return Value.of(map(measure, self.runs), digits, signed)

    @property
    def kind(self) -> tuple[str, str, float]:
        """Groups of one kind may be compared; another width is another network."""
        return self.sequence, self.training, self.config.network.width

    @cached_property
    def uses(self) -> Uses:
        """What the method uses; empty for a method that is not installed."""
        with suppress(UnknownName):
            return METHODS.load(self.config.method).uses(self.config.method_settings())
        return Uses()

    @property
    def extra_data(self) -> tuple[bool, bool]:
        """Whether it keeps old data, and whether it uses other data: only those alike in both are ranked together."""
        return bool(self.uses.old_data), bool(self.uses.other_data)

    @property
    def usual_width(self) -> bool:
        """Whether the network is that of the paper."""
        return network_label(self.config) is None and self.config.network.width == _usual(
            self.config.method, self.config.sequence
        )["network"].get("width")

    @property
    def whole(self) -> bool:
        """Whether all tasks of the sequence were learned, as in the paper."""
        return self.config.tasks is None

    @property
    def as_published(self) -> bool:
        """Whether published numbers are comparable: whole sequence, the paper's kind of network."""
        return self.whole and network_label(self.config) is None

    @cached_property
    def tasks(self) -> int:
        return max(len(run.accuracies()[max(run.accuracies())]) for run in self.runs)

    @cached_property
    def order(self) -> tuple[int, str, int, str, str, str]:
        """The paper's order of sequences and systems; others come last."""
        return (*sequence_order(self.sequence), *method_order(self.title), self.training, self.changed or "")


class Runs(list[StoredRun]):
    """Runs with their groups, which are computed once for all analyses."""

    @cached_property
    def groups(self) -> list[Group]:
        """Finished runs with results, in the paper's order."""
        found: dict[str, dict[int, list[StoredRun]]] = {}
        for run in self:
            if run.finished and (matrix := run.accuracies()):
                by_tasks = found.setdefault(without_seeds(run.config), {})
                by_tasks.setdefault(len(matrix[max(matrix)]), []).append(run)
        groups = [
            Group(tuple(sorted(members, key=lambda run: str(run.config.seeds))), grown=len(by_tasks) > 1)
            for by_tasks in found.values()
            for members in by_tasks.values()
        ]
        return sorted(groups, key=lambda group: group.order)

    @cached_property
    def failed(self) -> Counter[str]:
        """Number of failed seeds by config."""
        return Counter(without_seeds(run.config) for run in self if run.status == "failed")

    def lost(self, group: Group) -> int:
        """Number of failed seeds of a group."""
        return self.failed[without_seeds(group.config)]


def gathered(runs: Iterable[StoredRun]) -> Runs:
    return runs if isinstance(runs, Runs) else Runs(runs)


def best_settings(groups: Iterable[Group]) -> list[Group]:
    """One group for each method and kind: the settings with the most seeds and, among these, the best validation
    accuracy. Test data are never used to choose."""
    best: dict[tuple[object, ...], Group] = {}
    for group in groups:
        kind = (*group.kind, group.title)
        if kind not in best or _standing(group) > _standing(best[kind]):
            best[kind] = group
    return list(best.values())


CHOSEN = "Of several settings of a method, those with the most seeds, then with the best validation accuracy, count."


def _standing(group: Group) -> tuple[int, float]:
    validated = [average_accuracy(run.accuracies("validation")) for run in group.runs]
    return len(validated), sum(validated) / len(validated)


def sequence_label(config: RunConfig) -> str:
    return config.sequence if config.tasks is None else f"{config.sequence}[:{config.tasks}]"


def is_whole(label: str) -> bool:
    """Whether the label is that of a whole sequence."""
    return "[:" not in label


def sequence_order(label: str) -> tuple[int, str]:
    known = list(paper_tables()["sequences"])
    return (known.index(label) if label in known else len(known), label)


def method_order(title: str) -> tuple[int, str]:
    known = [*paper_tables()["accuracy"], *paper_tables()["ablation_accuracy"]]
    return (known.index(title) if title in known else len(known), title)


@functools.cache
def is_similar(sequence: str) -> bool | None:
    """Whether the tasks of a sequence, by its label, are similar. None if its folder of images is gone."""
    try:
        return sequence_facts(sequence.split("[:")[0]).similar
    except SoftmaskError:
        return None


def seeds_of(run: StoredRun) -> str:
    return json.dumps(dataclasses.asdict(run.config.seeds), sort_keys=True)


def setting(config: RunConfig) -> str:
    """A run and its reference (ONE) share this, unless each has its own dropout rates."""
    raw = {key: value for key, value in config.to_dict().items() if key not in ("method", "settings")}
    return json.dumps(raw, sort_keys=True)


def reference_settings(config: RunConfig) -> list[str]:
    """The settings of a run's reference, the preferred one first: the same dropout rates, or each method's defaults."""
    try:
        return [setting(config), setting(config.of_method(REFERENCE))]
    except SoftmaskError:  # a method that is not installed, whose defaults nobody knows
        return [setting(config)]


def without_seeds(config: RunConfig) -> str:
    return json.dumps({key: value for key, value in config.to_dict().items() if key != "seeds"}, sort_keys=True)


@functools.cache
def training_name(training: Training) -> str:
    """The nearest preset and the fields that differ from it."""
    described = []
    for name, preset in PRESETS.items():
        given, usual = dataclasses.asdict(training), dataclasses.asdict(preset)
        described.append((name, [f"{key}={given[key]}" for key in given if given[key] != usual[key]]))
    name, differences = min(described, key=lambda item: len(item[1]))
    return " ".join([name, *differences])


def network_label(config: RunConfig) -> str | None:
    """The network, if it is not the paper's."""
    network = config.network
    if network.name == NetworkConfig.name and network.weights is None:
        return None
    parts = [network.name, "batch norm" if network.norm == "batch" else None]
    return " ".join(filter(None, [*parts, f"from {network.weights}" if network.weights else None]))


def changes(config: RunConfig, network: bool = True) -> str | None:
    """Network and method settings that are not the defaults; the network itself only if it is asked for."""
    left_out = () if network else IDENTITY
    of_network = {key: value for key, value in vars(config.network).items() if key not in left_out}
    given = {"network": of_network, "settings": config.settings}
    different = {
        key: f"{'network' if key == 'name' else key}={_shown(value)}"
        for section, usual in _usual(config.method, config.sequence, config.network.name).items()
        for key, value in given[section].items()
        if key not in usual or value != usual[key]
    }
    if (
        different.keys() & {"drop1", "drop2"} and network_label(config) is None and _has_published_dropout(config)
    ):  # they differ between sequences
        different = {"drop1": "dropout=paper"} | {key: text for key, text in different.items() if key[:4] != "drop"}
    return " ".join(different.values()) or None


def _has_published_dropout(config: RunConfig) -> bool:
    """Whether the rates are those that `--settings paper` gives: searched for SPG on this sequence."""
    if config.sequence not in paper_tables()["sequences"]:
        return False
    facts = sequence_facts(config.sequence)
    return (config.network.drop1, config.network.drop2) == (facts.drop1, facts.drop2)


def _shown(value: object) -> str:
    """Six digits are enough to distinguish searched values."""
    return str(float(f"{value:.6g}") if isinstance(value, float) else value)


@functools.cache
def method_title(name: str) -> str:
    """As in the paper. A run of a method that is not installed here is shown by its name."""
    try:
        return METHODS.load(name).title
    except UnknownName:
        return name


@functools.cache
def _usual(method: str, sequence: str, network_name: str = NetworkConfig.name) -> dict[str, dict[str, object]]:
    """The defaults; empty where the method or the folder of images is gone, so that everything stored is shown."""
    try:
        settings = dataclasses.asdict(METHODS.load(method).Settings())
    except UnknownName:
        settings = {}
    try:
        facts = sequence_facts(sequence)
    except SoftmaskError:
        plain = {name: getattr(NetworkConfig, name) for name in IDENTITY}
        return {"network": plain, "settings": settings}
    try:
        network = default_network(method, sequence, network_name, facts)
    except UnknownName:
        network = {"width": facts.width, **{name: getattr(NetworkConfig, name) for name in IDENTITY}}
    return {"network": network, "settings": settings}


def milestones(tasks: int, first: int = 1) -> dict[str, int]:
    """Task 1 (or 2), T/2 and T, as in the paper: label -> number of tasks learned, each number once."""
    found: dict[str, int] = {}
    for label, count in ((str(first), first), ("T/2", tasks // 2), ("T", tasks)):
        if first <= count <= tasks and count not in found.values():
            found[label] = count
    return found
