"""ONE: a separate network for each task, without forgetting and without transfer.

The reference for forward transfer: the accuracy of each task when it is learned alone. Source: Konishi et al., ICML
2023.
Remembers between tasks: one network for each task.
Departures: each network's initial weights depend on the seed and the task, not on the position in the sequence, so that
the order of the tasks changes only the order of the results. The paper counts the parameters of one network, not of T.
Cost: as plain training; storage grows with the number of tasks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softmask.learning import Backbone, Cost, Method, Scenario, Task, derive, register
from softmask.learning.device import isolated_randomness


@register("one")
class ONE(Method):
    title = "ONE"
    family = "reference"
    grows_with_tasks = "networks"
    default_dropout = None
    dropout_source = "searched for SPG on each sequence and published by Konishi et al."
    never_forgets = True
    not_in_snapshot = ("backbones",)

    def build(self) -> None:
        self.backbones = nn.ModuleList(self.make_backbone() for _ in self.scenario.classes)
        self.heads = self.scenario.heads(self.make_backbone().widths[-1])

    def features(self, x: Tensor, task: int) -> Tensor:
        return self.backbones[task](x)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        for index, backbone in enumerate(self.backbones):
            backbone.requires_grad_(index == task.id)
        with isolated_randomness():
            torch.manual_seed(derive(self.scenario.seeds.init, task.name))
            if isinstance(own := self.backbones[task.id], Backbone):
                for layer in own.modules():
                    if isinstance(layer, (nn.Conv2d, nn.Linear)):
                        layer.reset_parameters()
            else:
                own.load_state_dict(self.make_backbone().state_dict())
            head = self.heads[task.id]
            assert isinstance(head, nn.Linear)
            head.reset_parameters()

    def settle_statistics(self, task: Task) -> None:
        """Only the network of the task changes."""

    def starts_anew(self, task: Task) -> bool:
        return True

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(kept_copies=scenario.num_tasks - 1, note="one network for each task")

    @classmethod
    def learnable(cls, scenario: Scenario) -> int:
        """One network, as the paper counts."""
        return Method.learnable(scenario)
