"""TRGP: as GPM, but the weights of related old tasks are rescaled for the new task.

Trust region gradient projection: GPM freezes the part of the weights along the inputs of old tasks. Where an old task
is related to the new one, the new task learns a matrix that rescales this part for the new task only. Source: Lin,
Yang, Fan and Zhang, ICLR 2022; details from their code.
Remembers between tasks: GPM's projectors; for every task and layer the directions B of its own inputs, and the matrices
Q that it learned.
Equations: W_eff = W + sum over the related tasks j of W B_j (Q_j - I) B_j^T; Q_j begins as I. The gradient of W,
computed through W_eff, is projected away from all old inputs, as in GPM; Q is not constrained. Before a task, with G
the gradient of each layer on 125 training images, task j is related where |G B_j| > `relation` * |G|; of these, the two
(`regions`) with the longest |G B_j| count. After a task, directions of old tasks and new ones are ranked by the energy
of the inputs that the task's W_eff meets along them; the first that reach GPM's threshold are its B, and the new ones
among them are added to GPM's directions.
Guarantee: none. As in GPM, the outputs of old tasks change through the directions that the threshold leaves out.
Departures: those of GPM. Within the space of old inputs, directions are those along which the task's inputs have the
largest norm, not the directions that earlier tasks stored. Each layer has trust regions of its own, the largest new
direction is included, and inputs are measured with the task's own scaling; in the authors' code the first layer decides
for all layers, the largest new direction is left out, and the scaling is off.
Cost: a few more matrix products per step for each related task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from softmask.core import SubspaceMask
from softmask.core.directions import task_directions
from softmask.core.layer_inputs import Layer, layers_of
from softmask.learning import Cost, Facts, Scenario, Task, evaluating, register, require_above_zero, search
from softmask.methods.gpm import GPM

Bases = dict[str, Tensor]
"""By layer: orthonormal directions [width, r] of a task's inputs."""


class Region(NamedTuple):
    """An old task that is related to the current one in a layer."""

    layer: str
    task: int


@register("trgp")
class TRGP(GPM):
    title = "TRGP"
    grows_with_tasks = "directions, scaling matrices"

    @dataclass(frozen=True)
    class Settings(GPM.Settings):
        relation: float = search(0.5, low=0.1, high=0.9)
        """An old task is related where more than this share of the gradient's norm lies along its inputs; 1 is GPM
        except for the choice of directions. Default: the authors'."""
        regions: int = 2
        """Maximum number of related tasks per layer. Default: the authors'."""

        def __post_init__(self) -> None:
            super().__post_init__()
            require_above_zero(self, "relation", "regions")
            if self.relation > 1:
                raise ValueError(f"relation must be above 0 and at most 1, not {self.relation}")

    mask: OwnDirectionsMask
    scales: nn.ParameterList
    """Q of the task that is being learned, one for each of its `regions`."""

    def build(self) -> None:
        super().build()
        self.bases: list[Bases] = []
        """The directions of each learned task."""
        self.learned: list[list[tuple[Region, Tensor]]] = []
        """The trust regions of each learned task, and their Q."""
        self.regions: list[Region] = []
        self.scales = nn.ParameterList()

    def make_mask(self) -> SubspaceMask:
        return OwnDirectionsMask(self.backbone, strength=0.0, rule="gpm")

    # Weights under the scaling of a task

    def scaling(self, task: int) -> Sequence[tuple[Region, Tensor]]:
        """The trust regions of a learned task, or of the current one."""
        if task < len(self.learned):
            return self.learned[task]
        return list(zip(self.regions, self.scales, strict=True))

    def scaled_parameters(self, task: int) -> dict[str, Tensor]:
        """The weights and biases of the layers that have a trust region, by name."""
        changes: dict[str, Tensor] = {}
        for region, scale in self.scaling(task):
            whole = self.matrix(region.layer)
            basis = self.bases[region.task][region.layer].to(whole)
            change = whole @ basis @ (scale.to(whole) - torch.eye(len(scale)).to(whole)) @ basis.T
            changes[region.layer] = changes[region.layer] + change if region.layer in changes else change
        found, layers = {}, self.layers if changes else {}
        for name, change in changes.items():
            layer = layers[name]
            found[f"{name}.weight"] = layer.weight + change[:, : layer.inputs].reshape(layer.weight.shape)
            if layer.bias is not None:
                found[f"{name}.bias"] = layer.bias + change[:, layer.inputs]
        return found

    @property
    def layers(self) -> dict[str, Layer]:
        """Looked up each time: moving a module to another device may give it other parameters."""
        return layers_of(self.backbone)[0]

    def matrix(self, name: str, of_gradients: bool = False) -> Tensor:
        """[outputs, inputs] of a layer; the bias, as the weight of an input that is always 1, is the last column."""
        layer = self.layers[name]
        parts = [part for part in (layer.weight, layer.bias) if part is not None]
        if of_gradients:
            parts = [part.grad for part in parts]  # type: ignore[misc]
        return layer.matrix(parts)[0]

    def features(self, x: Tensor, task: int) -> Tensor:
        scaled = self.scaled_parameters(task)
        return functional_call(self.backbone, scaled, (x,)) if scaled else self.backbone(x)

    # Before a task

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.regions, self.scales = [], nn.ParameterList()
        self.regions = self.related(task) if self.bases else []
        sizes = [self.bases[old][layer].shape[1] for layer, old in self.regions]
        self.scales = nn.ParameterList(torch.eye(size) for size in sizes).to(task.train.device)

    def related(self, task: Task) -> list[Region]:
        """For each layer, the old tasks whose inputs contain the largest share of the gradient."""
        self.gradients_of(task)
        found: list[Region] = []
        for name in self.layers:
            gradient = self.matrix(name, of_gradients=True)
            along = [(gradient @ bases[name].to(gradient)).norm() for bases in self.bases]
            enough = [old for old, length in enumerate(along) if length > self.settings.relation * gradient.norm()]
            longest = sorted(enough, key=lambda old: -float(along[old]))
            found += [Region(name, old) for old in longest[: self.settings.regions]]
        self.zero_grad(set_to_none=True)
        return found

    def gradients_of(self, task: Task) -> None:
        """The gradient of the mean loss on the measured images."""
        self.zero_grad(set_to_none=True)
        measured = list(self.measured_on(task))
        count = sum(len(y) for _, y in measured)
        with evaluating(self), torch.enable_grad():
            for x, y in measured:
                (F.cross_entropy(self(x, task.id), y, reduction="sum") / count).backward()

    # After a task

    def end_task(self, task: Task) -> Facts:
        with self.scaled_in_place(task.id):
            facts = super().end_task(task)
        if self.mask.strength > 0:
            self.learned.append([(region, scale.detach().cpu()) for region, scale in self.scaling(task.id)])
            self.bases.append(dict(self.mask.own))
        facts |= {"regions": [f"{layer} of task {old}" for layer, old in self.regions]}
        self.regions, self.scales = [], nn.ParameterList()
        return facts

    @contextmanager
    def scaled_in_place(self, task: int) -> Iterator[None]:
        """Replaces the backbone's weights by those of the task, and restores the original weights afterwards, to the
        bit."""
        with torch.no_grad():
            scaled = {self.backbone.get_parameter(name): value for name, value in self.scaled_parameters(task).items()}
            before = {parameter: parameter.clone() for parameter in scaled}
            for parameter, value in scaled.items():
                parameter.copy_(value)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in before.items():
                    parameter.copy_(value)

    def name_of_draws(self) -> str:
        """The same images are measured as in GPM."""
        return GPM.__name__

    def get_extra_state(self) -> dict[str, Any]:
        learned = [[(layer, old, scale) for (layer, old), scale in regions] for regions in self.learned]
        return {"mask": super().get_extra_state(), "bases": self.bases, "learned": learned}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        super().set_extra_state(state["mask"])
        self.bases = [dict(bases) for bases in state["bases"]]
        self.learned = [[(Region(layer, old), scale) for layer, old, scale in each] for each in state["learned"]]

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        gpm = GPM.cost(scenario)
        note = "up to a matrix as wide as its input for each layer and task, and related tasks"
        return Cost(step=2.0, kept_copies=gpm.kept_copies * 1.5, note=note)


class OwnDirectionsMask(SubspaceMask):
    """GPM's mask, where a task's directions are chosen from old ones and new ones together."""

    def __init__(self, backbone: nn.Module, strength: float, rule: Any) -> None:
        super().__init__(backbone, strength, rule=rule)
        self.own: Bases = {}
        """The directions of the last task, in float32."""

    def _with_task(self, name: str, used: Tensor | None, moment: Tensor) -> Tensor:
        if moment.dim() < 3:
            return super()._with_task(name, used, moment)
        used = torch.zeros_like(moment) if used is None else used
        old, new = task_directions(used, moment, self.strength)
        both = torch.cat([old, new], 2)[0]
        self.own[name] = both[:, both.any(0)].float()
        return used + new @ new.transpose(1, 2)
