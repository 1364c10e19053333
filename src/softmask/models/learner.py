"""The methods of the benchmark, for a model whose number of tasks nobody knows beforehand."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from softmask.core import SoftMask
from softmask.errors import ConfigError, UnknownName, choices
from softmask.learning.device import random_apart
from softmask.learning.method import Method
from softmask.learning.method_registry import METHODS
from softmask.learning.networks import Backbone
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import Seeds, derive
from softmask.learning.training import Training
from softmask.learning.validation import validated
from softmask.models.description import ModelConfig
from softmask.models.folder import ModelFolder, ModelFolderError
from softmask.models.networks import BUILT_IN, Network, check_trusted, make_backbone

# Those whose memory does not depend on the number of tasks, and that take the backbone as it is.
OPEN_ENDED = ("spg", "spg-no-chi", "spg-no-smh", "spg-hard", "spg-fi", "ewc", "ewc-gi", "si", "ncl")
# Stops by itself when the validation loss no longer falls; reshuffled, since a task of one's own may be small.
FIRST_TRAINING = Training(lr=0.05, lr_min=1e-3, patience=4, epochs=100, batch=32, shuffle=True)
# From weights that know something: on three tasks of photographs, at the rate of the first task, the second cost the
# first 30 points; at a fifth of it 12, and the new task lost less than that.
LATER_TRAINING = replace(FIRST_TRAINING, lr=0.01)


def usual_training(known_tasks: int) -> Training:
    return LATER_TRAINING if known_tasks else FIRST_TRAINING


class LearnerError(ConfigError):
    """Settings that a method cannot have."""


@dataclass(frozen=True)
class OpenScenario(Scenario):
    """A scenario with a network of one's own; as many heads as there are tasks so far."""

    make: Callable[[], Backbone] = lambda: Backbone({})

    def backbone(self, scale: float = 1.0) -> Backbone:
        return self.make()


def check_method(name: str) -> None:
    if name not in OPEN_ENDED:
        METHODS.entry(name)  # a name that nothing answers to is told as such
        raise LearnerError(
            f"{name} is not among the methods that a model folder can learn with, whatever tasks come: "
            f"{', '.join(OPEN_ENDED)}"
        )


def make_method(config: ModelConfig, network: Network, classes: tuple[int, ...]) -> Method:
    """A learner for these tasks with its initial numbers, which follow from the model's seed."""

    def make() -> Backbone:
        return make_backbone(network, config.input_shape, config.width, frozen_statistics=bool(config.tasks))

    scenario = OpenScenario(
        config.input_shape,  # type: ignore[arg-type]  # not only images here
        classes,
        seeds=Seeds.all_from(config.seed),
        make=make,
    )
    with random_apart(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that statistics are unprotected: they are frozen after the first task
        torch.manual_seed(derive(config.seed, "weights"))
        method = METHODS.load(config.method)(scenario, method_settings(config.method, config.settings))
        # A head is drawn from its own place, not from how many there are.
        for index, head in enumerate(method.heads):
            torch.manual_seed(derive(config.seed, "head", index))
            head.reset_parameters()  # type: ignore[operator]
    return method


def expected_numbers(config: ModelConfig, network: Network) -> dict[str, Any]:
    """What the numbers of a folder must look like to be opened."""
    if config.network in BUILT_IN:
        with torch.device("meta"):  # shapes without memory, whatever a hostile description asks for
            return make_method(config, network, config.classes).state_dict()
    return make_method(config, network, config.classes).state_dict()


def load_method(folder: ModelFolder, config: ModelConfig, given: Network | None) -> Method:
    """The learner with the numbers of its folder, which are compared with the network before they are read."""
    check_trusted(config.network, given)
    network = config.network if given is None else given
    try:
        check_method(config.method)
        state = folder.read_numbers(config.generation, expected_numbers(config, network))
        method = make_method(config, network, config.classes)
        method.load_state_dict(state)
    except (UnknownName, LearnerError, ValueError, RuntimeError) as error:
        raise ModelFolderError(f"{folder.path}: {error}") from None
    return method.eval()


def method_settings(method: str, settings: Mapping[str, Any]) -> Any:
    """The method's `Settings`, or a line that names what it does not have."""
    kind = METHODS.load(method).Settings
    known = [field.name for field in dataclasses.fields(kind)]
    for name in settings:
        if name not in known:
            raise LearnerError(f"{method} has no setting {name!r}{choices(name, known)}")
    return validated(kind, dict(settings), f"settings of {method}")


def mask_of(method: Method) -> SoftMask | None:
    mask = getattr(method, "mask", None)
    return mask if isinstance(mask, SoftMask) else None


def room_of(method: Method) -> float | None:
    """The share of an update that the average parameter of the backbone still keeps."""
    mask = mask_of(method)
    return None if mask is None else 1 - mask.mean()


def importance_by_layer(method: Method) -> dict[str, float]:
    """Mean importance of each layer (its weight and bias together); empty if the method has no mask."""
    mask = mask_of(method)
    sums: dict[str, list[float]] = {}
    for name, importance in mask.importance.items() if mask else ():
        layer = name.rpartition(".")[0].removesuffix(".layer") or name
        total, count = sums.get(layer, [0.0, 0.0])
        sums[layer] = [total + float(importance.double().sum()), count + importance.numel()]
    return {layer: total / count for layer, (total, count) in sums.items()}


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
