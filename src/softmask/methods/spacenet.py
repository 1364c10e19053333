"""SpaceNet: every task trains a sparse set of new connections, which move to its most important units.

A task gets a small number of connections between some of the units; while it learns, the least important ones are
dropped and as many grow between its most important units. Its connections are then frozen, and its most important units
are reserved: later tasks may not use them. Source: Sokar, Mocanu and Pechenizkiy, Neurocomputing 2021.
Remembers between tasks: the number of the task that owns each connection, and which units are reserved, whatever the
number of tasks.
Equations: the importance of a connection is the sum of |change of the weight * gradient| over the steps of an epoch,
that of a unit the sum over its incoming connections (of an image channel: outgoing). After each epoch the share `drop`
of a layer's connections with the least importance is dropped; as many grow, from 0, where the product of the
importances of the two units is largest. A connection of a convolution is a whole kernel.
Guarantee: the outputs for old tasks stay the same, to the bit.
Departures: task-incremental, where the authors are class-incremental: a task sees the connections of its own and of
earlier tasks, not those of later ones, and biases are trained in the first task only, so that nothing is forgotten.
Heads are dense. Importance is reset in every epoch, and connections no longer move once the learning rate is below a
tenth of its initial value. New connections are initialised as in a layer with so few inputs.
Cost: a step costs a fifth more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from softmask.learning import (
    Cost,
    Facts,
    Method,
    PerParameter,
    Scenario,
    Step,
    Task,
    blocked_shares,
    register,
    require_above_zero,
    require_share,
    search,
)
from softmask.learning.masked_weights import weights_of
from softmask.learning.owned_weights import FREE, WeightOwners, freeze_biases, seen_features

LAST_MOVES = 0.1
"""Share of the initial learning rate below which connections no longer move, since new ones need time to learn."""


class Ends(NamedTuple):
    """A layer, and something about the units on both of its sides: a value for each input and output."""

    name: str
    inputs: Tensor
    outputs: Tensor


@register("spacenet")
class SpaceNet(Method):
    title = "SpaceNet"
    family = "parameter isolation"
    needs_blocks = True
    never_forgets = True
    needs_sgd = True

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        drop: float = search(0.2, low=0.05, high=0.5)
        """Share of a layer's connections that move after each epoch. Default: the authors'."""
        budget: float = search(1.0, low=0.2, high=1.0)
        """Connections of a task, relative to an equal share of all connections of each layer; at most half of the
        possible connections between its units. Default: ours; the authors give numbers for a network of 400 units."""
        selected: float = search(0.5, low=0.2, high=1.0)
        """Share of the units of a layer that a task's connections join. Default: ours; the authors have 0.2 in a
        network of 400 units."""
        reserved: float = search(0.5, low=0.0, high=1.0)
        """Units that a task reserves, relative to an equal share of each layer. Default: ours; the authors' 40 of 400
        for each of five tasks are 0.5."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every
        method."""

        def __post_init__(self) -> None:
            for name in ("drop", "budget", "selected"):
                require_share(self, name)
            require_above_zero(self, "lr")
            if not 0 <= self.reserved <= 1:
                raise ValueError(f"reserved must be from 0 to 1, not {self.reserved}")

    owners: WeightOwners
    reserved: Tensor
    """Units of all layers, in one vector, that no later task may use."""
    unit_importance: Tensor
    """Of the last epoch."""

    def build(self) -> None:
        super().build()
        weights, units = weights_of(self.backbone), sum(self.backbone.widths)
        self.owners = WeightOwners({name: weight.shape for name, weight in weights.items()})
        self.importance = PerParameter(self.backbone)
        self.register_buffer("reserved", torch.zeros(units, dtype=torch.bool))
        self.register_buffer("unit_importance", torch.zeros(units))
        self.selected = torch.zeros_like(self.reserved)
        self.first_rate = 0.0

    def features(self, x: Tensor, task: int) -> Tensor:
        return seen_features(self.backbone, x, self.owners.seen_by(task))

    def ends(self, units: Tensor, of_image: Tensor) -> Iterator[Ends]:
        """For every layer, what `units` (of all layers in one vector) says of both its sides."""
        below = of_image
        for (name, weight), outputs in zip(
            weights_of(self.backbone).items(), units.split(self.backbone.widths), strict=True
        ):
            # After a flatten every unit stands for several inputs, one after the other.
            yield Ends(name, below.repeat_interleave(weight.size(1) // len(below)), outputs)
            below = outputs

    # Before a task

    @torch.no_grad()
    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        freeze_biases(self.backbone, task.id > 0)
        self.importance.zero_()
        self.unit_importance.zero_()
        with self.own_randomness(task):
            self.selected = self.select()
            for layer in self.ends(self.selected, self.selected.new_ones(self.scenario.input_shape[0])):
                self.allocate(task.id, layer)

    def select(self) -> Tensor:
        """Random units among those that are not reserved."""
        found = torch.zeros_like(self.reserved)
        for chosen, reserved in zip(
            found.split(self.backbone.widths), self.reserved.split(self.backbone.widths), strict=True
        ):
            free = (~reserved).nonzero().squeeze(1)
            count = max(1, round(self.settings.selected * len(reserved)))
            chosen[free[torch.randperm(len(free))[:count]]] = True
        return found

    def allocate(self, task: int, layer: Ends) -> None:
        """The task's connections of a layer, at random between its units, with weights as of a new layer.

        At most half of the possible connections are used, so that others remain to move to.
        """
        places = self.places(layer).nonzero()
        weight, owner = weights_of(self.backbone)[layer.name], self.owners.of(layer.name)
        wanted = max(1, int(self.settings.budget * weight.size(0) * weight.size(1) / self.scenario.num_tasks))
        wanted = min(wanted, max(1, len(places) // 2))
        rows, columns = places[torch.randperm(len(places))[:wanted]].unbind(1)
        owner[rows, columns] = task + 1
        inputs = max(1, len(rows) // max(1, int(layer.outputs.sum()))) * weight[0, 0].numel()
        weight[rows, columns] = torch.empty_like(weight[rows, columns]).uniform_(-(inputs**-0.5), inputs**-0.5)

    def places(self, layer: Ends) -> Tensor:
        """[outputs, inputs]: possible connections between selected units that do not exist yet."""
        free = by_connection(self.owners.of(layer.name)) == FREE
        return free & layer.outputs[:, None] & layer.inputs[None]

    def connections_of(self, task: int, name: str) -> Tensor:
        """[outputs, inputs]"""
        return by_connection((self.owners.of(name) == task + 1).int()) > 0

    # While a task is learned

    def make_optimizer(self, lr: float) -> Optimizer:
        self.first_rate = lr
        return super().make_optimizer(lr)

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        weights, importance = weights_of(self.backbone), self.importance.by_name()
        for name, own in self.owners.owned_by(step.task.id).items():
            gradient = weights[name].grad
            assert gradient is not None
            gradient.masked_fill_(~own, 0.0)
            # Under plain SGD this is |change of the weight * gradient|.
            importance[f"{name}.layer.weight"].addcmul_(gradient, gradient, value=step.lr)

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        if step.progress < 1:
            return
        importance = self.importance.by_name()
        connections = {name: by_connection(importance[f"{name}.layer.weight"]) for name in self.owners.names}
        self.unit_importance.copy_(torch.cat([found.sum(1) for found in connections.values()]))
        if step.lr >= LAST_MOVES * self.first_rate:
            of_image = next(iter(connections.values())).sum(0)
            selected = self.ends(self.selected, torch.ones_like(of_image, dtype=torch.bool))
            for layer, units in zip(selected, self.ends(self.unit_importance, of_image), strict=True):
                self.move(step.task.id, layer, units.outputs[:, None] * units.inputs[None], connections[layer.name])
        self.importance.zero_()

    def move(self, task: int, layer: Ends, promise: Tensor, importance: Tensor) -> None:
        """The least important connections of a layer are dropped, and as many grow where the product of importances is
        largest."""
        owner, weight = self.owners.of(layer.name), weights_of(self.backbone)[layer.name]
        own, places = self.connections_of(task, layer.name).nonzero(), self.places(layer).nonzero()
        count = min(int(self.settings.drop * len(own)), len(places))
        rows, columns = own[importance[own[:, 0], own[:, 1]].argsort(stable=True)[:count]].unbind(1)
        owner[rows, columns] = FREE
        best = promise[places[:, 0], places[:, 1]].argsort(descending=True, stable=True)[:count]
        rows, columns = places[best].unbind(1)
        owner[rows, columns] = task + 1
        weight[rows, columns] = 0.0

    # After a task

    @torch.no_grad()
    def end_task(self, task: Task) -> Facts:
        widths = self.backbone.widths
        vectors = (self.reserved, self.selected, self.unit_importance)
        for reserved, selected, importance in zip(*(vector.split(widths) for vector in vectors), strict=True):
            count = int(self.settings.reserved * len(reserved) / self.scenario.num_tasks)
            units = selected.nonzero().squeeze(1)
            reserved[units[importance[units].argsort(descending=True, stable=True)[:count]]] = True
        return {"blocked": blocked_shares(self.owners.used()), "reserved": self.reserved.float().mean().item()}

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=1.2, kept_copies=1.5)


def by_connection(weights: Tensor) -> Tensor:
    """[outputs, inputs]: of a convolution the sum over each kernel."""
    return weights if weights.dim() == 2 else weights.flatten(2).sum(2)
