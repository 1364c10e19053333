"""Learning in a model folder: the methods and the protocol of the benchmark, for any number of tasks."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from softmask.core import SoftMask, freeze_running_statistics
from softmask.errors import ConfigError, UnknownName, choices
from softmask.learning.backbones import NetworkError
from softmask.learning.device import exact, isolated_randomness
from softmask.learning.distilling import DistillingMethod
from softmask.learning.evaluation import accuracy
from softmask.learning.fit import Fit, State
from softmask.learning.method import Method
from softmask.learning.networks import Backbone
from softmask.learning.protocol import end_task, learn_sequence
from softmask.learning.registry import METHODS
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import Seeds, derive
from softmask.learning.settings import validated
from softmask.learning.task import Task, avoid_singleton_batch
from softmask.learning.training import Training
from softmask.learning.without_id import ClassStatistics
from softmask.models.data import Labelled, kind_of
from softmask.models.description import KnownTask, ModelConfig
from softmask.models.folder import ModelFolder, ModelFolderError
from softmask.models.growing import begin_growing, grown_facts, replace_old_head, settled
from softmask.models.networks import BUILT_IN, Network, check_trusted, make_backbone

Watch = Callable[[Task, Fit], None]
# Methods whose state does not depend on the number of tasks, and that take the backbone as it is.
OPEN_ENDED = ("lwf", "spg-plus", "spg", "spg-no-chi", "spg-no-smh", "spg-hard", "spg-fi", "ewc", "ewc-gi", "si", "ncl")
# SI measures importance during training, NCL not at all: neither can protect an adopted model.
CAN_ADOPT = tuple(name for name in OPEN_ENDED if name not in ("si", "ncl"))
# By default trained with AdamW and without dropout. The others are trained as in their papers, whose hyperparameters
# are for plain SGD and dropout.
BY_ADAMW = ("lwf", "ncl")
# These distil the features of a pretrained network from the first task on.
KEEP_FEATURES = ("lwf", "spg-plus")
# Default of new folders. On three tasks of photographs, strength 1 kept 0.8 points more of the first task on one of two
# seeds, and cost the new tasks 0.6 and 1.7 points.
OWN_SETTINGS: Mapping[str, Mapping[str, Any]] = {"lwf": {"strength": 0.5}}


def new_settings(method: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a new folder is described with."""
    return {**OWN_SETTINGS.get(method, {}), **wanted}


class LearnerError(ConfigError):
    """The settings are not valid for the method."""


@dataclass(frozen=True)
class OpenScenario(Scenario):
    """A scenario with a network of its own and as many heads as there are tasks so far."""

    make: Callable[[], Backbone] = lambda: Backbone({})

    def backbone(self, scale: float = 1.0) -> Backbone:
        return self.make()


@dataclass(frozen=True)
class Learned:
    """A learner with one more task, the task, and its entry in the description."""

    method: Method
    task: Task
    facts: KnownTask
    place: int
    """Position of the task among all tasks of the method."""
    statistics: ClassStatistics | None
    """None where earlier tasks have none."""


class _InMemory:
    """The journal of one task: the folder is written once, when the task is learned."""

    def __init__(self) -> None:
        self.epochs, self.accuracy = 0, 0.0

    def event(self, kind: str, **facts: Any) -> None:
        if kind == "epoch":
            self.epochs += 1
        elif kind == "accuracy":
            self.accuracy = facts["validation"]

    def stages_done(self) -> int:
        return 0

    def load_stage(self) -> State:
        raise AssertionError("nothing is saved while a task is learned")

    def save_stage(self, stage: int, state: State) -> None:
        pass

    def load_progress(self, stage: int) -> State | None:
        return None

    def save_progress(self, stage: int, state: State) -> None:
        pass


def make_task(config: ModelConfig, name: str, train: Labelled, val: Labelled) -> Task:
    place, normalise = len(config.tasks), config.normalise
    return Task((place,), name, len(train.classes), train.batches(normalise), val.batches(normalise))


def learn_task(
    config: ModelConfig,
    network: Network,
    state: Mapping[str, Any],
    task: Task,
    classes: Sequence[str],
    training: Training,
    statistics: ClassStatistics | None,
    watch: Watch | None = None,
    more: int | None = None,
) -> Learned:
    """Learns one more task with this state and one more head, or `more` data of the task at that position."""
    start, journal = time.monotonic(), _InMemory()
    method = make_method(config, network, (*config.classes, task.classes))
    method.load_state_dict({**method.state_dict(), **state})
    if more is not None:
        begin_growing(method, more, task.train.labels)
    method.to(task.train.device)
    training = replace(training, batch=avoid_singleton_batch(method, training.batch, task.train.count))
    with exact(task.train.device), isolated_randomness():
        learn_sequence(method, [task], training, journal, tests=None, watch=watch)
        whole = method if more is None else _grown(config, network, method, more, task)
        known = with_task(statistics, whole, task, more)
    facts = _facts(method, task, classes, journal, time.monotonic() - start)
    if more is None:
        return Learned(method, task, facts, task.id, known)
    return Learned(whole, task, grown_facts(config.tasks[more], facts), more, known)


def _grown(config: ModelConfig, network: Network, method: Method, place: int, task: Task) -> Method:
    """The learner with the new head in place of the old one."""
    method.heads[task.id] = settled(method.heads[task.id])
    classes = (*config.classes[:place], task.classes, *config.classes[place + 1 :])
    whole = make_method(config, network, classes)
    whole.load_state_dict(replace_old_head(method.state_dict(), place, task.id))
    return whole.to(task.train.device).eval()


def adopt_alone(
    config: ModelConfig, network: Network, backbone: nn.Module, head: nn.Module, name: str, classes: Sequence[str]
) -> tuple[Method, KnownTask]:
    """A learner with these weights and no data of its task, and the task's entry in the description."""
    if config.method != "lwf":
        raise LearnerError(f"{config.method} needs a labelled sample of what the model has learned; lwf does not")
    method = _with_weights(config, network, backbone, head, len(classes))
    freeze_running_statistics(method.backbone)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return method, KnownTask(name, tuple(classes), 0, None, 0, 0.0, when, free_capacity(method))


def with_task(
    statistics: ClassStatistics | None, method: Method, task: Task, more: int | None = None
) -> ClassStatistics | None:
    """The class statistics with those of a task that was learned just now.

    After `more` data of a task, classes without new images keep their means.
    """
    if statistics is None:
        return None
    found = statistics.to(task.train.device).copy()
    if more is None:
        found.learn(method, task)
    else:
        before = found.means[more]
        found.learn(method, replace(task, ids=(more,)))
        unseen = [label for label in range(len(before)) if not (task.train.labels == label).any()]
        found.means[more][unseen] = before[unseen]
        task = replace(task, ids=(more,))
    sound = found.knows(task.id) and found.scatter is not None and bool(found.scatter.isfinite().all())
    return found if sound else None


def new_statistics(config: ModelConfig) -> ClassStatistics | None:
    """Statistics of a model without tasks. A model with tasks but without statistics cannot get them, since the images
    are gone."""
    return None if config.tasks else ClassStatistics()


def load_statistics(folder: ModelFolder, config: ModelConfig, method: Method) -> ClassStatistics | None:
    if not config.tasks:
        return new_statistics(config)
    expected = ClassStatistics.expected_state(config.classes, method.backbone.widths[-1])
    state = folder.read_statistics(config.generation, expected)
    return None if state is None else ClassStatistics.from_state(state, torch.device("cpu"))


def adopt_task(
    config: ModelConfig, network: Network, backbone: nn.Module, head: nn.Module, task: Task, classes: Sequence[str]
) -> Learned:
    """A learner with these weights, with importance measured on the samples of the task."""
    if config.method not in CAN_ADOPT:
        raise LearnerError(
            f"{config.method} cannot measure the importance of a trained model; use one of {', '.join(CAN_ADOPT)}"
        )
    method = _with_weights(config, network, backbone, head, task.classes)
    freeze_running_statistics(method.to(task.train.device).backbone)
    journal = _InMemory()
    with exact(task.train.device), isolated_randomness():
        torch.manual_seed(derive(config.seed, "adopt", task.name))
        end_task(method, task)
        journal.accuracy = accuracy(method, task.val, task.id)
        known = with_task(ClassStatistics(), method, task)
    return Learned(method, task, _facts(method, task, classes, journal, seconds=0.0), task.id, known)


def _with_weights(config: ModelConfig, network: Network, backbone: nn.Module, head: nn.Module, classes: int) -> Method:
    method = make_method(config, network, (classes,))
    try:
        method.backbone.load_state_dict(backbone.state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise NetworkError(f"network {config.network} does not make the backbone that was given: {reason}") from None
    _copy_head(head, method.heads[0])
    return method


@torch.no_grad()
def _copy_head(head: nn.Module, own: nn.Module) -> None:
    assert isinstance(own, nn.Linear)
    if not isinstance(head, nn.Linear) or head.weight.shape != own.weight.shape:
        got = tuple(head.weight.shape) if isinstance(head, nn.Linear) else type(head).__name__
        raise NetworkError(
            f"the head must be an nn.Linear with a weight of {tuple(own.weight.shape)}, not {got}; where the sample "
            "lacks some of the classes, name them all with classes=[...]"
        )
    own.weight.copy_(head.weight)
    own.bias.zero_()
    if head.bias is not None:
        own.bias.copy_(head.bias)


def _facts(method: Method, task: Task, classes: Sequence[str], journal: _InMemory, seconds: float) -> KnownTask:
    return KnownTask(
        name=task.name,
        classes=tuple(classes),
        samples=task.train.count,
        accuracy=journal.accuracy,
        epochs=journal.epochs,
        seconds=round(seconds, 3),
        learned=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        free_capacity=free_capacity(method),
        inputs=kind_of(task.train.images),
    )


def check_method(name: str) -> None:
    if name not in OPEN_ENDED:
        METHODS.entry(name)  # an unknown name has an error of its own
        raise LearnerError(
            f"{name} needs to know the number of tasks beforehand; a model folder can use {', '.join(OPEN_ENDED)}"
        )


def make_method(config: ModelConfig, network: Network, classes: tuple[int, ...]) -> Method:
    """A learner for these tasks with its initial weights, which follow from the seed of the model."""

    def make() -> Backbone:
        known = bool(config.tasks) or config.pretrained
        return make_backbone(network, config.input_shape, config.width, dropout=config.dropout, frozen_statistics=known)

    scenario = OpenScenario(
        config.input_shape,  # type: ignore[arg-type]  # inputs need not be images here
        classes,
        seeds=Seeds.all_from(config.seed),
        make=make,
    )
    with isolated_randomness(), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # running statistics are frozen after the first task, so they need no protection
        torch.manual_seed(derive(config.seed, "weights"))
        method = METHODS.load(config.method)(scenario, method_settings(config.method, config.settings))
        # The weights of a head depend on its position, not on the number of heads.
        for index, head in enumerate(method.heads):
            torch.manual_seed(derive(config.seed, "head", index))
            head.reset_parameters()  # type: ignore[operator]
    if config.pretrained:
        if not isinstance(method, DistillingMethod):
            raise LearnerError(
                f"{config.method} does not protect a pretrained network from the first task on; "
                f"use one of {', '.join(KEEP_FEATURES)}"
            )
        method.keeps_features = True
    return method


def expected_state(config: ModelConfig, network: Network) -> dict[str, Any]:
    """Names, shapes and types that the state in a folder must have."""
    if config.network in BUILT_IN:
        with torch.device("meta"):  # shapes without memory, whatever size a hostile description names
            return make_method(config, network, config.classes).state_dict()
    return make_method(config, network, config.classes).state_dict()


def without_head(config: ModelConfig, network: Network, state: Mapping[str, Any], place: int) -> Method:
    """The learner of the remaining tasks, from the state of one with one more head."""
    kept: dict[str, Any] = {}
    for name, value in state.items():
        section, _, rest = name.partition(".")
        if section == "heads":
            index, _, part = rest.partition(".")
            if int(index) == place:
                continue
            name = f"heads.{int(index) - (int(index) > place)}.{part}"
        kept[name] = value
    method = make_method(config, network, config.classes)
    method.load_state_dict(kept)
    return method


def load_method(folder: ModelFolder, config: ModelConfig, given: Network | None) -> Method:
    """The learner with the state of its folder; the file's header is compared with the network before it is read."""
    check_trusted(config.network, given)
    network = config.network if given is None else given
    try:
        check_method(config.method)
        state = folder.read_generation(config.generation, expected_state(config, network))
        method = make_method(config, network, config.classes)
        method.load_state_dict(state)
    except (UnknownName, LearnerError, ValueError, RuntimeError) as error:
        raise ModelFolderError(f"{folder.path}: {error}") from None
    return method.eval()


def method_settings(method: str, settings: Mapping[str, Any]) -> Any:
    """The method's `Settings`, or an error that names the unknown setting.

    The learning rate is that of the training, unless the settings name another: a method's own default is meant for the
    benchmark's SGD.
    """
    kind = METHODS.load(method).Settings
    known = [field.name for field in dataclasses.fields(kind)]
    for name in settings:
        if name not in known:
            raise LearnerError(f"{method} has no setting {name!r}{choices(name, known)}")
    of_training = {"lr": None} if "lr" in known else {}
    return validated(kind, of_training | dict(settings), f"settings of {method}")


def mask_of(method: Method) -> SoftMask | None:
    mask = getattr(method, "mask", None)
    return mask if isinstance(mask, SoftMask) else None


def free_capacity(method: Method) -> float | None:
    """One minus the mean importance of the backbone's parameters; None for a method without a soft mask."""
    mask = mask_of(method)
    return None if mask is None else 1 - mask.mean()


def importance_by_layer(method: Method) -> dict[str, float]:
    """Mean importance of each layer, weight and bias together; empty for a method without a soft mask."""
    mask = mask_of(method)
    sums: dict[str, list[float]] = {}
    for name, importance in mask.importance.items() if mask else ():
        layer = name.rpartition(".")[0].removesuffix(".layer") or name
        total, count = sums.get(layer, [0.0, 0.0])
        sums[layer] = [total + float(importance.double().sum()), count + importance.numel()]
    return {layer: total / count for layer, (total, count) in sums.items()}


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
