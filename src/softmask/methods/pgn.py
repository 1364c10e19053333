"""PGN: progressive networks, where each task adds a narrow column that reads the earlier ones.

Earlier columns are frozen; at every layer, adapters feed their features into the new column. Source: Rusu et al., arXiv
1606.04671.
Remembers between tasks: all columns. They are made before the first task, so narrow that all of them together have
about as many parameters as one plain network: `expansion` / T of its units, rounded down.
Layer l of column t: activation(own layer + U ReLU(V [scale_j x output of column j < t] + bias) + bias); the same in
front of the head, without the ReLU.
Departures from the code of HAT's authors: earlier columns keep their own adapters when a later column reads them, and
the head's adapter is used, both as the paper says. In that code the head's adapter is created and counted, but never
used (`adapters="released"` reproduces it). Scales start from N(0, 0.1^2), the paper's "small random values". The rule
that finds `expansion` is a guess that fits all nine sizes that the paper gives.
Cost: task t computes t narrow columns forward and one backward; adapters grow with the square of the number of tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning import Backbone, Cost, Facts, Method, Scenario, Task, register, require_above_zero, search
from softmask.learning.capacity import blocked_modules, column_and_heads, parameter_count, widest

EXPANSIONS = tuple(step / 20 for step in range(1, 101))


@register("pgn")
class PGN(Method):
    title = "PGN"
    family = "parameter isolation"
    grows_with_tasks = "columns"
    needs_blocks = True
    never_forgets = True
    not_in_snapshot = ("columns", "adapters")

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        expansion: float | None = None
        """Width of all columns together relative to the plain network; None finds the largest that gives about its
        size. Default: a rule of ours that fits the paper's network sizes."""
        adapter_scale: float = search(0.1, choices=(0.01, 0.1, 1.0))
        """Standard deviation of the initial scales of earlier columns: "small random values" in the paper. Default:
        ours."""
        adapters: Literal["everywhere", "released"] = "everywhere"
        """Where adapters act: in all columns and before the head, as the paper says; or only in the column that is
        being used and not before the head, as in the code of HAT's authors, whose network sizes the comparison uses.
        Default: as the paper of its authors says."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every
        method."""

        def __post_init__(self) -> None:
            require_above_zero(self, "expansion", "adapter_scale", "lr")

    def build(self) -> None:
        with torch.device("meta"):
            self.make_backbone()  # refuses one without blocks before blocks are counted
        tasks = self.scenario.num_tasks
        given, offered = self.settings.expansion, [expansion / tasks for expansion in EXPANSIONS]
        scale = given / tasks if given else widest(self.scenario, offered, progressive_parameters)
        self.columns = nn.ModuleList(self.make_backbone(scale) for _ in range(tasks))
        self.heads = self.scenario.heads(self.column(0).widths[-1])
        self.adapters = nn.ModuleList(self.make_adapters(column) for column in range(tasks))

    def column(self, index: int) -> Backbone:
        return cast(Backbone, self.columns[index])

    def make_adapters(self, column: int) -> nn.ModuleDict:
        """One for every layer but the first, which reads the image itself; none for the first column."""
        if column == 0:
            return nn.ModuleDict()
        _, *blocks = self.column(column).named_blocks.items()
        layers = {name: block.layer for name, block in blocks} | {"head": cast(nn.Linear, self.heads[column])}
        scale = self.settings.adapter_scale
        return nn.ModuleDict(
            {name: Adapter(layer, column, scale=scale, rectified=name != "head") for name, layer in layers.items()}
        )

    def forward(self, x: Tensor, task: int) -> Tensor:
        columns = range(task + 1)
        outputs = [self.column(0).prepare(x)] * len(columns)  # every column begins with the image
        for name in self.column(0).named_blocks:
            outputs = [self.layer_output(name, column, outputs, task) for column in columns]
        logits = self.heads[task](outputs[task])
        return logits + self.taken_over("head", task, outputs) if self.settings.adapters == "everywhere" else logits

    def layer_output(self, name: str, column: int, outputs: Sequence[Tensor], task: int) -> Tensor:
        block = self.column(column).named_blocks[name]
        if isinstance(block.layer, nn.Linear):
            outputs = [output.flatten(1) for output in outputs]
        own = block.layer(outputs[column])
        if self.settings.adapters == "released" and column < task:
            return block.activate(own)
        return block.activate(own + self.taken_over(name, column, outputs))

    def taken_over(self, name: str, column: int, outputs: Sequence[Tensor]) -> Tensor | float:
        """The lateral input of a layer of this column from the columns before it."""
        adapters = cast(nn.ModuleDict, self.adapters[column])
        return adapters[name](outputs[:column]) if name in adapters else 0.0

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        for parts in (self.columns, self.adapters):
            for index, part in enumerate(parts):
                part.requires_grad_(index == task.id)

    def starts_anew(self, task: Task) -> bool:
        return True

    def end_task(self, task: Task) -> Facts:
        """Used capacity: the columns so far, without heads."""
        parts = (
            (name, part, column <= task.id)
            for wholes in (self.columns, self.adapters)
            for column, whole in enumerate(wholes)
            for name, part in whole.named_children()
            if name != "head"
        )
        return {"blocked": blocked_modules(parts)}

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        step = 0.1 + 0.035 * scenario.num_tasks  # as measured; the mean over the tasks
        return Cost(step=step, note="task t computes t columns; adapters grow with the square of the number of tasks")


class Adapter(nn.Module):
    """Adds to the input of an activation what earlier columns computed one layer below.

    Each earlier column has a scale of its own; all are joined, reduced to the size of one, and projected as the
    column's own layer projects its own input (Rusu et al., 2016, equation 2).
    """

    def __init__(self, own: nn.Conv2d | nn.Linear, columns: int, *, scale: float, rectified: bool) -> None:
        super().__init__()
        self.scales = nn.Parameter(scale * torch.randn(columns))
        self.rectified = rectified
        self.reduce: nn.Module
        self.project: nn.Module
        if isinstance(own, nn.Conv2d):
            self.reduce = nn.Conv2d(columns * own.in_channels, own.in_channels, 1)
            self.project = nn.Conv2d(own.in_channels, own.out_channels, own.kernel_size)  # type: ignore[arg-type]
        else:
            self.reduce = nn.Linear(columns * own.in_features, own.in_features)
            self.project = nn.Linear(own.in_features, own.out_features)

    def forward(self, earlier: Sequence[Tensor]) -> Tensor:
        joined = torch.cat([scale * output for scale, output in zip(self.scales, earlier, strict=True)], 1)
        reduced = self.reduce(joined)
        return self.project(F.relu(reduced) if self.rectified else reduced)


def progressive_parameters(scenario: Scenario, scale: float) -> int:
    """Parameters of a column for each task, `scale` times as wide as the plain network, with heads and adapters."""
    total = 0
    column, heads = column_and_heads(scenario, scale)
    for earlier, head in enumerate(heads):
        layers: list[nn.Conv2d | nn.Linear] = [*(block.layer for block in column.blocks), head]
        total += sum(map(parameter_count, layers))
        if earlier:
            for layer in layers[1:]:
                inputs = layer.weight.size(1)
                total += earlier + earlier * inputs**2 + inputs + parameter_count(layer)
    return total
