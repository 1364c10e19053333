"""CAT: forgetting avoidance for dissimilar tasks, knowledge transfer between similar ones.

HAT, but before a task is learned each earlier task is tried on it: one whose logits, read out by a linear layer, beat a
new network trained from scratch is similar. Units of similar tasks are not protected, so that they may improve, and the
new task attends to the features that these tasks compute. Source: Ke, Liu and Huang, NeurIPS 2020.
Remembers between tasks: what HAT does, a query and a second head for each task, one attention block, which tasks are
similar to which, and whether a task answers with attention (decided by its validation accuracy at its end).
Promise: while no task is similar to a later one, exactly HAT's. Otherwise none: shared weights change by design, and
so does the attention block, through which earlier tasks may answer.
Departures from the authors' code, which turns the paper's rule around and attends to dissimilar tasks: attention goes
to similar tasks, in training and test alike; a unit is protected if any dissimilar task uses it, not only if one was
the first to; gates are hard wherever they are not being learned; similarity is kept for each task; without a similar
task there is no attention. Earlier networks are read out with dropout off, so that their logits are computed once.
The new network has no gates; in the authors' code it has one that is always open. `lr` is the rate of all of them.
Attention learns at a tenth of the common rate, which is the rate of the authors.
Cost: a new network and a read-out of every earlier task for each task: grows with the square of the number of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask.learning.device import random_states, set_random_states
from softmask.learning.evaluation import accuracy, evaluating
from softmask.learning.fit import Fitter
from softmask.learning.method import Cost, Facts, Step, require_above_zero, search
from softmask.learning.method_registry import register
from softmask.learning.parts.attention import KnowledgeAttention
from softmask.learning.parts.own_rate import sgd_with_own_rate
from softmask.learning.parts.similarity import Rate, readout_accuracy, reference_accuracy
from softmask.learning.parts.unit_gates import gated
from softmask.learning.scenario import Scenario
from softmask.learning.task import Task
from softmask.methods.hat import HAT


@register("cat")
class CAT(HAT):
    title = "CAT"
    never_forgets = False

    @dataclass(frozen=True)
    class Settings(HAT.Settings):
        attention_weight: float = search(1.0, low=0.1, high=10.0, log=True)
        """Weight of the attending head's loss beside that of the plain head."""
        attention_rate: float = search(0.1, low=0.01, high=1.0, log=True)
        """Learning rate of all that belongs to attention, in units of the training's, at which it diverges."""
        attention_heads: int = search(4, choices=(1, 2, 4, 8))
        """Heads of the attention block; must divide the number of features."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.gates != "hard":
                raise ValueError("CAT looks at earlier tasks through hard gates: gates cannot be 'soft'")
            require_above_zero(self, "attention_weight", "attention_rate", "attention_heads")

    similar: Tensor
    attends: Tensor

    def build(self) -> None:
        super().build()
        width, tasks = self.backbone.widths[-1], self.scenario.num_tasks
        self.attending_heads = self.scenario.heads(width)
        self.queries = nn.ParameterList(torch.randn(width) for _ in range(tasks))
        self.attention = KnowledgeAttention(width, self.settings.attention_heads)
        self.register_buffer("similar", torch.zeros(tasks, tasks, dtype=torch.bool))
        self.register_buffer("attends", torch.zeros(tasks, dtype=torch.bool))

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.attended(x, task) if self.attends[task] else super().forward(x, task)

    def attended(self, x: Tensor, task: int) -> Tensor:
        """The answer from the features under the gates of similar tasks."""
        sources = self.similar[task].nonzero().flatten().tolist()
        seen = [gated(self.backbone, x, self.by_layer(self.hard_gates(source))) for source in sources]
        return self.attending_heads[task](self.attention(self.queries[task].relu(), torch.stack(seen, 1)))

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        for index, (query, head) in enumerate(zip(self.queries, self.attending_heads, strict=True)):
            query.requires_grad_(index == task.id)
            head.requires_grad_(index == task.id)
        self.attention.requires_grad_(task.id > 0)  # the first task has nothing to attend to

    def make_optimizer(self, lr: float) -> Optimizer:
        parts = (self.attention, self.queries, self.attending_heads)
        attention = (parameter for part in parts for parameter in part.parameters())
        return sgd_with_own_rate(self, attention, lr, self.settings.attention_rate)

    def learn(self, task: Task, fit: Fitter) -> None:
        if "tried" not in fit.notes:
            # The task itself is learned with the draws and batches with which HAT would learn it.
            order = task.train.generator
            before = fit.notes.setdefault("before", [random_states(task.train.device), order.get_state()])
            fit.notes["tried"] = self.try_earlier_tasks(task, fit) if task.id > 0 else {}
            set_random_states(before[0], task.train.device)
            order.set_state(before[1])
        self.tried: Facts = fit.notes["tried"]
        self.release_similar(task)
        super().learn(task, fit)

    def try_earlier_tasks(self, task: Task, fit: Fitter) -> Facts:
        """Validation accuracies of a new network and of every earlier task's read-out."""
        rate, plain = Rate(self.settings.lr), super().forward
        reference = reference_accuracy(self.scenario, task, fit, rate)
        with evaluating(self):
            readouts = [
                readout_accuracy(self.scenario, task, fit.training, source, partial(plain, task=source), rate)
                for source in range(task.id)
            ]
        return {"reference": reference, "readouts": readouts}

    def release_similar(self, task: Task) -> None:
        """Similar is what does strictly better than a new network; from here on only the others are protected."""
        protected = torch.zeros_like(self.used)
        for source, reached in enumerate(self.tried.get("readouts", [])):
            self.similar[task.id, source] = reached > self.tried["reference"]
            if not self.similar[task.id, source]:
                protected |= self.hard_gates(source)
        self.protect(protected)

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) + self.attention_loss(step)

    def validate(self, step: Step) -> tuple[Tensor, Tensor]:
        loss, right = super().validate(step)
        return loss + self.attention_loss(step), right

    def attention_loss(self, step: Step) -> Tensor | float:
        if not self.similar[step.task.id].any():
            return 0.0
        return self.settings.attention_weight * F.cross_entropy(self.attended(step.x, step.task.id), step.y)

    def end_task(self, task: Task) -> Facts:
        facts = super().end_task(task)
        if self.similar[task.id].any():
            plain = accuracy(self, task.val, task.id)
            self.attends[task.id] = True
            self.attends[task.id] = accuracy(self, task.val, task.id) > plain
        similar = self.similar[task.id].nonzero().flatten().tolist()
        return facts | self.tried | {"similar": similar, "attends": bool(self.attends[task.id])}

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        earlier = (scenario.num_tasks - 1) / 2  # on average
        return Cost(
            # A new network, the task itself, the attention block, and a pass for each similar task: half of them, say.
            step=1 + 1.1 + 1.5 + earlier / 2,
            task_end_passes=scenario.num_tasks * earlier / 3,
            kept_copies=5,
            note="every earlier task is tried on each new one: the cost grows with the square of the number of tasks",
        )

    @classmethod
    def learnable(cls, scenario: Scenario) -> int:
        """All modules of the authors' code, of which some are never used; for those that are see `used_parameters`."""
        with torch.device("meta"):
            heads = scenario.heads(scenario.backbone().widths[-1])
            fusion_heads = scenario.heads(2 * scenario.backbone().widths[-1])
            units = sum(scenario.backbone().widths) * scenario.num_tasks
        unused = sum(p.numel() for part in (heads, fusion_heads) for p in part.parameters()) + units
        return cls.used_parameters(scenario) + unused

    @classmethod
    def used_parameters(cls, scenario: Scenario) -> int:
        """The method, a network to compare with and its heads, and a read-out from every task to every task."""
        with torch.device("meta"):
            method = cls(scenario)
        again = [method.backbone, method.heads]
        readouts = sum(n * (source + 1) for source in scenario.classes for n in scenario.classes)
        return sum(p.numel() for part in (method, *again) for p in part.parameters()) + readouts
