"""MAS: a quadratic penalty keeps weights to which the network's outputs are sensitive near their old values.

Memory aware synapses: each parameter is penalised for its squared distance from its value after the last task, weighted
by how much a small change of it would change the outputs of past tasks. Measuring this needs no labels. Source:
Aljundi, Babiloni, Elhoseiny, Rohrbach and Tuytelaars, ECCV 2018, equations 2 to 4; details from its authors' code.
Remembers between tasks: the last weights of the backbone and one importance, the sum over the tasks so far.
Equations: loss = cross-entropy + strength * sum of importance * (weight - anchor)^2, without one half. At the end of a
task importance <- importance + mean over its training images of |gradient of the squared L2 norm of the task's logits|,
dropout off.
Departures: the mean is over single images, as in the paper; the authors' code takes the absolute value of the gradient
of a batch, in which images of opposite signs cancel. Heads carry no penalty, which changes nothing without momentum:
old heads do not move.
Cost: a step costs about a tenth more; each task ends with one pass that computes a gradient for every image and takes
as long as two epochs. A backbone that is not made of blocks is measured one image at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning import (
    Backbone,
    Batches,
    Cost,
    Facts,
    QuadraticPenaltyMethod,
    Scenario,
    Task,
    register,
    require_above_zero,
    require_not_negative,
    search,
)

Answers = Callable[[Tensor], Tensor]


@register("mas")
class MAS(QuadraticPenaltyMethod):
    title = "MAS"
    family = "regularisation"
    stiffness_of_strength = 2.0  # the penalty has no one half

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        strength: float = search(0.1, low=1e-3, high=100.0, log=True)
        """Regularisation strength. Default: ours, a conservative value. The authors have 1, with which a step
        overshoots on D-5 at a learning rate of 0.25; at a rate of 0.1 both strengths protect equally well there."""
        penalty_in_validation: bool = True
        """Whether the best epoch is chosen with the penalty or by cross-entropy alone. Default: as in EWC."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. The lower it is, the stronger a penalty plain SGD can follow.
        Default: the training's, which Konishi et al. use for every method."""

        def __post_init__(self) -> None:
            require_not_negative(self, "strength")
            require_above_zero(self, "lr")

    def end_task(self, task: Task) -> Facts:
        measured = sensitivity(self.backbone, task.train, lambda x: self(x, task.id))
        torch._foreach_add_(self.importance.tensors(), measured)
        self.anchor.copy_(self.backbone.parameters())
        return self.stability.facts()

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=1.15, task_end_passes=2 * scenario.num_tasks, kept_copies=2)


def sensitivity(backbone: nn.Module, batches: Batches, answers: Answers) -> list[Tensor]:
    """The mean over images of |gradient of the squared norm of an image's logits|, in the order of the parameters."""
    images = (x for x, _ in batches)
    if isinstance(backbone, Backbone):
        totals = by_layer(backbone, images, answers)
    else:
        totals = one_by_one(backbone, images, answers)
    return [total / batches.count for total in totals]


def one_by_one(backbone: nn.Module, batches: Iterable[Tensor], answers: Answers) -> list[Tensor]:
    """The sum over images, for any backbone."""
    parameters = list(backbone.parameters())
    totals = [torch.zeros_like(parameter) for parameter in parameters]
    for x in batches:
        for image in x.split(1):
            with torch.enable_grad():
                squared = answers(image).square().sum()
            for total, gradient in zip(totals, torch.autograd.grad(squared, parameters), strict=True):
                total += gradient.abs()
    return totals


def by_layer(backbone: Backbone, batches: Iterable[Tensor], answers: Answers) -> list[Tensor]:
    """The same from one backward pass of a batch: the gradient for an image is a product of the layer's input and the
    gradient of the layer's output."""
    layers = [block.layer for block in backbone.blocks]
    totals = {id(parameter): torch.zeros_like(parameter) for parameter in backbone.parameters()}
    met: list[tuple[Tensor, Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, given, y: met.append((given[0].detach(), y))) for layer in layers
    ]
    try:
        for x in batches:
            met.clear()
            with torch.enable_grad():
                squared = answers(x).square().sum()
            gradients = torch.autograd.grad(squared, [y for _, y in met])
            for layer, (given, _), gradient in zip(layers, met, gradients, strict=True):
                weight, bias = _absolute(layer, given, gradient)
                totals[id(layer.weight)] += weight
                if layer.bias is not None:
                    totals[id(layer.bias)] += bias
    finally:
        for hook in hooks:
            hook.remove()
    return list(totals.values())


def _absolute(layer: nn.Conv2d | nn.Linear, given: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """|gradient| of weight and bias, summed over the images of a batch."""
    if isinstance(layer, nn.Linear):
        gradient = gradient.abs()
        return gradient.T @ given.abs(), gradient.sum(0)  # |a b| = |a| |b|
    patches = F.unfold(given, layer.kernel_size)  # a block's convolution has no padding and no stride
    gradient = gradient.flatten(2)
    weights = torch.bmm(gradient, patches.transpose(1, 2)).abs().sum(0)
    return weights.view_as(layer.weight), gradient.sum(2).abs().sum(0)
