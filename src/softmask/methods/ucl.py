"""UCL: Gaussian weights; where a unit is certain, the means of its weights stay near their old values.

Uncertainty-regularised continual learning: all incoming weights of a unit share one standard deviation; the smaller it
is, the stronger the penalty on the distance of their means from those after the last task. Source: Ahn, Cha, Lee and
Moon, NeurIPS 2019; details from its authors' code.
Remembers between tasks: the last means of the backbone and one number per unit.
Equations, for a batch of B, o for old: strength of a unit s = sigma_init / sigma_o; strength L of a weight = the larger
strength of the two units that it connects. Loss = cross-entropy with weights sampled once a batch + a/2B sum of (L
(mean - mean_o))^2 + z/B sum of sigma_init^2 (mean_o / sigma_o)^2 |mean - mean_o| + beta/2B sum over units of (q - log q
+ sigma^2 - log sigma^2), q = (sigma / sigma_o)^2; a = alpha and z = 0 in the first task, whose old model is the initial
one; then a = z = 1. Biases have no noise and are penalised like weights; heads are ordinary linear layers. Evaluation
uses the means.
Departures: plain SGD clipped at a joint norm of 100, as the paper trains all methods, but at a learning rate of 0.05
instead of 0.25, and with another rate for the deviations, which falls with the common schedule. The authors' tuned
settings are for Adam, which can be selected.
Cost: a step costs about three quarters more, a third of that for Gaussian samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from softmask.kernels.masked_sgd import MaskedSGD
from softmask.learning import (
    BackboneMismatch,
    Cost,
    Draws,
    Facts,
    Method,
    PerParameter,
    Scenario,
    Step,
    Task,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.learning.penalty import (
    Stability,
    absolute_penalty,
    add_absolute_gradient,
    add_quadratic_gradient,
    quadratic_penalty,
)
from softmask.learning.per_parameter import Tensors

WeightedLayer = nn.Conv2d | nn.Linear


@register("ucl")
class UCL(Method):
    title = "UCL"
    family = "regularisation"
    default_dropout = (0.25, 0.5)
    dropout_source = "the authors' code for CIFAR-100: convolutions and linear layers"
    clip = 100.0
    not_in_snapshot = ("old_means", "old_rhos")

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        alpha: float = search(5.0, low=0.01, high=10.0, log=True)
        """Strength of the penalty on the distance from the initial weights in the first task. Default: the authors' for
        CIFAR-100, at a batch of 256."""
        beta: float = search(0.002, low=1e-5, high=0.1, log=True)
        """Weight of the term that keeps deviations from growing. Default: the authors' for CIFAR-100, at a batch of
        256."""
        noise_share: float = search(0.125, choices=(0.125, 0.25, 0.5))
        """Share of noise in the initial variance of a weight. Default: the authors'."""
        rho_rate: float = search(1.0, low=0.1, high=10.0, log=True)
        """Learning rate of the standard deviations, as a factor of that of the means. Default: one rate for both, as in
        the authors' SGD."""
        optimizer: Literal["sgd", "adam"] = "sgd"
        """The authors tuned for Adam, with `lr` 0.001 and `rho_rate` 10, unclipped. Default: SGD, with which Konishi et
        al. train all methods."""
        lr: float | None = search(0.05, low=0.01, high=0.25, log=True)
        """Learning rate; None means the training's. Default: that of the AlexNet's authors (HAT): with UCL's larger
        initial weights, 0.25 makes the first losses explode."""

        def __post_init__(self) -> None:
            if not 0 < self.noise_share < 1:
                raise ValueError(f"noise_share must be above 0 and below 1, not {self.noise_share}")
            require_not_negative(self, "alpha", "beta")
            require_above_zero(self, "rho_rate", "lr")

    def build(self) -> None:
        super().build()
        require_plain_layers(self.backbone)
        layers = weighted_layers(self.backbone).values()
        self.rhos = nn.ParameterList(start_gaussian(layer, self.settings.noise_share) for layer in layers)
        self.old_means, self.old_rhos = PerParameter(self.backbone), PerParameter(self.rhos)
        self.draws = Draws(self.scenario.seeds.batches, type(self).__name__)
        self.stability = Stability()
        self.remember()

    def remember(self) -> None:
        self.old_means.copy_(self.backbone.parameters())
        self.old_rhos.copy_(self.rhos)

    def features(self, x: Tensor, task: int) -> Tensor:
        if not self.training:
            return self.backbone(x)
        generator, drawn = self.draws.generator(task, x.device), {}
        for (name, layer), rho in zip(weighted_layers(self.backbone).items(), self.rhos, strict=True):
            noise = torch.empty_like(layer.weight).normal_(generator=generator)
            drawn[f"{name}.weight"] = torch.addcmul(layer.weight, F.softplus(rho), noise)
        features: Tensor = torch.func.functional_call(self.backbone, drawn, (x,))
        return features

    @torch.no_grad()
    def begin_task(self, task: Task) -> None:
        """The coefficients of the penalty depend only on the old model and are fixed while a task is learned."""
        super().begin_task(task)
        self.batch = task.train.size
        layers, old = weighted_layers(self.backbone), self.old_means.by_name()
        curvatures, slopes = penalty_coefficients(layers, old, self.old_rhos.tensors(), self.settings.noise_share)
        first = task.id == 0
        self.curvatures = torch._foreach_mul(curvatures, self.settings.alpha if first else 1.0)
        self.slopes = () if first else slopes

    def penalty(self, step: Step) -> Tensor | None:
        """No penalty in validation. For the means only its value is returned: their gradient is added after the
        backward pass."""
        if not self.training:
            return None
        value = quadratic_penalty(*self.means(), self.curvatures)
        if self.slopes:
            value = value + absolute_penalty(*self.means(), self.slopes)
        changes = change_of_deviation(self.rhos, self.old_rhos.tensors())
        return (value + self.settings.beta / 2 * changes) / len(step.y)

    def after_backward(self, step: Step) -> None:
        add_quadratic_gradient(*self.means(), self.curvatures, scale=1 / len(step.y))
        if self.slopes:
            add_absolute_gradient(*self.means(), self.slopes, scale=1 / len(step.y))

    def means(self) -> tuple[Tensors, Tensors]:
        """Present and old."""
        return tuple(self.backbone.parameters()), self.old_means.tensors()

    def make_optimizer(self, lr: float) -> Optimizer:
        rhos = list(self.rhos)
        others = [p for p in self.parameters() if p.requires_grad and all(p is not rho for rho in rhos)]
        groups = [{"params": others}, {"params": rhos, "lr": self.settings.rho_rate * lr}]
        if self.settings.optimizer == "adam":  # whose step does not grow with the curvature
            return Adam(groups, lr)
        strength = f"alpha {self.settings.alpha:g} and beta {self.settings.beta:g}"
        self.stability = Stability.at(lr, 1 / self.batch, self.curvatures).warn(self.title, strength, lr)
        return MaskedSGD(groups, lr)

    def clip_gradients(self) -> None:
        if self.settings.optimizer == "sgd":
            super().clip_gradients()

    def end_task(self, task: Task) -> Facts:
        self.remember()
        return self.stability.facts()

    @classmethod
    def require_fitting(cls, network: str) -> None:
        """The strengths of a layer's units apply to the inputs of the next layer, so there must be exactly one next
        layer."""
        raise BackboneMismatch(f"UCL needs a chain of convolutions and linear layers (alexnet, mlp), not {network}")

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=1.75, kept_copies=4)


def weighted_layers(module: nn.Module) -> dict[str, WeightedLayer]:
    """By name, in the order in which they are passed."""
    return {name: part for name, part in module.named_modules() if isinstance(part, (nn.Conv2d, nn.Linear))}


def require_plain_layers(backbone: nn.Module) -> None:
    """Every parameter must be a weight or bias of a convolution or linear layer: UCL has no noise for others."""
    known = {f"{name}.{kind}" for name in weighted_layers(backbone) for kind in ("weight", "bias")}
    found = {name for name, _ in backbone.named_parameters()}
    if known != found:
        raise BackboneMismatch(
            "UCL needs a backbone of convolutions and linear layers with biases and nothing else; "
            f"{type(backbone).__name__} differs in {', '.join(sorted(known ^ found)[:3])}"
        )


def total_deviation(layer: WeightedLayer) -> float:
    """The variance of the initial weights, noise included: over the inputs of a linear layer, over the outputs of a
    convolution."""
    if isinstance(layer, nn.Linear):
        return math.sqrt(2 / layer.in_features)
    return math.sqrt(2 / (layer.out_channels * math.prod(layer.kernel_size)))


def initial_deviation(layer: WeightedLayer, noise_share: float) -> float:
    """The variance of the noise alone."""
    return total_deviation(layer) * math.sqrt(noise_share)


@torch.no_grad()
def start_gaussian(layer: WeightedLayer, noise_share: float) -> nn.Parameter:
    """Draws the means, zeroes the bias, and returns the rho of each unit: softplus(rho) is its deviation."""
    bound = total_deviation(layer) * math.sqrt(3 * (1 - noise_share))
    layer.weight.uniform_(-bound, bound)
    if layer.bias is not None:
        layer.bias.zero_()
    rho = math.log(math.expm1(initial_deviation(layer, noise_share)))
    return nn.Parameter(torch.full((layer.weight.size(0),) + (1,) * (layer.weight.dim() - 1), rho))


def joined_strengths(layer: WeightedLayer, own: Tensor, below: Tensor | None) -> Tensor:
    """For each weight the larger of the strengths of the two units that it connects; the first layer has no input
    units.

    Where a convolution is flattened into a linear layer, a channel's strength holds for all its positions, which lie
    side by side.
    """
    inputs = layer.weight.size(1)
    below = own.new_zeros(inputs) if below is None else below.repeat_interleave(inputs // len(below))
    joined = torch.maximum(own.unsqueeze(1), below)
    return joined.view(*joined.shape, *(1,) * (layer.weight.dim() - 2)).expand_as(layer.weight).contiguous()


@torch.no_grad()
def penalty_coefficients(
    layers: Mapping[str, WeightedLayer], old_means: Mapping[str, Tensor], old_rhos: Iterable[Tensor], noise_share: float
) -> tuple[Tensors, Tensors]:
    """Of each weight and bias, in the order of the layers: squares of strengths for the squared distance to the old
    mean, and sigma_init^2 (old mean / old sigma)^2 for the absolute distance."""
    curvatures: list[Tensor] = []
    slopes: list[Tensor] = []
    below: Tensor | None = None
    for (name, layer), rho in zip(layers.items(), old_rhos, strict=True):
        wide = initial_deviation(layer, noise_share) / F.softplus(rho)
        strength = wide.flatten()
        curvatures += [joined_strengths(layer, strength, below).square(), strength.square()]
        slopes += [(wide * old_means[f"{name}.weight"]).square(), (strength * old_means[f"{name}.bias"]).square()]
        below = strength
    return tuple(curvatures), tuple(slopes)


def change_of_deviation(rhos: Iterable[Tensor], old_rhos: Iterable[Tensor]) -> Tensor:
    """How far deviations are from the old ones and from 1, over all units: q - log q + sigma^2 - log sigma^2."""
    terms = []
    for rho, old_rho in zip(rhos, old_rhos, strict=True):
        variance = F.softplus(rho).square()
        ratio = variance / F.softplus(old_rho).square()
        terms.append((ratio - ratio.log() + variance - variance.log()).sum())
    return torch.stack(terms).sum()
