"""CAT: HAT for dissimilar tasks, with attention to similar tasks for knowledge transfer.

HAT, but before a task is learned, CAT decides which earlier tasks are similar to it: an earlier task is similar if a
linear layer on its logits is more accurate on the new task than a new network trained from scratch. Units of similar
tasks are not protected, so that they may improve, and the new task attends to the features that these tasks compute.
Source: Ke, Liu and Huang, NeurIPS 2020.
Remembers between tasks: HAT's state, a query and a second head for each task, one attention block, which tasks are
similar to which, and whether a task predicts with attention (decided by validation accuracy when it has been learned).
Guarantee: exactly HAT's as long as no task is similar to a later one. Otherwise none: shared weights change by design,
and so does the attention block that earlier tasks may use. Departures from the authors' code, which turns the paper's
rule around and attends to dissimilar tasks: attention goes to similar tasks, in training and test alike; a unit is
protected if any dissimilar task uses it, not only if the first task to use it is dissimilar; gates are hard wherever
they are not being learned; similarity is stored for each task; without a similar task there is no attention. The logits
of earlier tasks are computed once, with dropout off. The new network has no gates; in the authors' code it has one that
is always open. `lr` is the learning rate of all of them. Attention learns at a tenth of the common rate, as in the
authors' code.
Cost: each task trains a new network and one linear layer for every earlier task: quadratic in the number of tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask.errors import SoftmaskError
from softmask.learning import (
    Batches,
    Cost,
    Facts,
    Fit,
    Fitter,
    Method,
    Scenario,
    Step,
    Task,
    Training,
    accuracy,
    derive,
    evaluating,
    register,
    require_above_zero,
    search,
    sgd_with_two_rates,
)
from softmask.learning.device import isolated_randomness, random_states, set_random_states
from softmask.learning.evaluation import EVALUATION_BATCH, validate
from softmask.learning.unit_gates import gated
from softmask.methods.hat import HAT

ATTENTION_DROPOUT = 0.1
NORM_EPSILON = 1e-6


@register("cat")
class CAT(HAT):
    title = "CAT"
    grows_with_tasks = "gates, second heads"
    never_forgets = False

    @dataclass(frozen=True)
    class Settings(HAT.Settings):
        attention_weight: float = search(1.0, low=0.1, high=10.0, log=True)
        """Weight of the loss of the head with attention, relative to that of the plain head. Default: equal weights;
        ours."""
        attention_rate: float = search(0.1, low=0.01, high=1.0, log=True)
        """Learning rate of the attention parameters, as a factor of the training's, at which they diverge. Default:
        gives the authors' learning rate at Konishi et al.'s training."""
        attention_heads: int = search(4, choices=(1, 2, 4, 8))
        """Heads of the attention block; must divide the number of features. Default: ours."""

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

    def answer(self, x: Tensor, task: int) -> tuple[Tensor | None, Tensor]:
        if not self.attends[task]:
            return super().answer(x, task)
        features = self.attended_features(x, task)
        return features, self.attending_heads[task](features)

    def attended(self, x: Tensor, task: int) -> Tensor:
        """The answer from the features under the gates of similar tasks."""
        return self.attending_heads[task](self.attended_features(x, task))

    def attended_features(self, x: Tensor, task: int) -> Tensor:
        sources = self.similar[task].nonzero().flatten().tolist()
        seen = [gated(self.backbone, x, self.by_layer(self.hard_gates(source))) for source in sources]
        return self.attention(self.queries[task].relu(), torch.stack(seen, 1))

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        for index, (query, head) in enumerate(zip(self.queries, self.attending_heads, strict=True)):
            query.requires_grad_(index == task.id)
            head.requires_grad_(index == task.id)
        self.attention.requires_grad_(task.id > 0)  # the first task has nothing to attend to

    def make_optimizer(self, lr: float) -> Optimizer:
        parts = (self.attention, self.queries, self.attending_heads)
        attention = (parameter for part in parts for parameter in part.parameters())
        return sgd_with_two_rates(self, attention, lr, self.settings.attention_rate)

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
        settings, plain = ReadoutSettings(self.settings.lr), super().forward
        reference = reference_accuracy(self.scenario, task, fit, settings)
        with evaluating(self):
            readouts = [
                readout_accuracy(self.scenario, task, fit.training, source, partial(plain, task=source), settings)
                for source in range(task.id)
            ]
        return {"reference": reference, "readouts": readouts}

    def release_similar(self, task: Task) -> None:
        """A task is similar if it does strictly better than a new network; from here on only the other tasks are
        protected."""
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


class KnowledgeAttention(nn.Module):
    """A transformer's block with one query, the task's own, and the features under earlier tasks' gates to look at.

    Normalisation comes first: query + attention(norm(query), knowledge), then x + feed_forward(norm(x)), then a norm.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise SoftmaskError(f"{heads} attention heads do not divide {width} features")
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.before_attention, self.before_feeding, self.last = (
            nn.LayerNorm(width, eps=NORM_EPSILON) for _ in range(3)
        )
        self.feed = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.Dropout(ATTENTION_DROPOUT)
        )

    def forward(self, query: Tensor, knowledge: Tensor) -> Tensor:
        """(width) and (batch, sources, width) to (batch, width)."""
        weights = F.dropout(self.weights(query, knowledge), ATTENTION_DROPOUT, self.training)
        values = self._by_head(self.value(knowledge))
        looked_at = torch.einsum("bsh,bshw->bhw", weights, values).flatten(1)
        x = query + F.dropout(self.output(looked_at), ATTENTION_DROPOUT, self.training)
        return self.last(x + self.feed(self.before_feeding(x)))

    def weights(self, query: Tensor, knowledge: Tensor) -> Tensor:
        """Attention weights of each head: (batch, sources, heads), with sum 1 over the sources."""
        asked = self._by_head(self.query(self.before_attention(query)))
        scores = torch.einsum("hw,bshw->bsh", asked, self._by_head(self.key(knowledge)))
        return (scores / asked.size(-1) ** 0.5).softmax(1)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))


@dataclass(frozen=True)
class ReadoutSettings:
    lr: float | None = None
    """Learning rate of the method that asks; None means the training's."""


class Reference(Method):
    """A new network for one task, whose logits go through a linear read-out as those of a probe do."""

    title = "reference"
    Settings = ReadoutSettings

    def build(self) -> None:
        self.backbone = self.make_backbone()
        (classes,) = self.scenario.classes
        head = nn.Linear(self.backbone.widths[-1], classes)
        self.heads = nn.ModuleList([nn.Sequential(head, nn.Linear(classes, classes))])

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[0](self.backbone(x))

    def starts_anew(self, task: Task) -> bool:
        return True


class Readout(Method):
    """A linear map from an earlier task's logits, which are its input, to the classes of a new task."""

    title = "readout"
    Settings = ReadoutSettings

    def build(self) -> None:
        self.heads = self.scenario.heads(self.scenario.input_shape[0])

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[0](x)


def reference_accuracy(scenario: Scenario, task: Task, fit: Fitter, settings: ReadoutSettings) -> float:
    """Validation accuracy of a network that learns the task alone; always from the same first weights."""
    with isolated_randomness():
        torch.manual_seed(derive(scenario.seeds.init, "reference"))
        reference = Reference(replace(scenario, classes=(task.classes,)), settings).to(task.train.device)
    trial = fit(reference, "reference")
    if trial.epoch == 0:  # not resumed
        torch.manual_seed(derive(scenario.seeds.batches, "reference", task.name))
    reached = _best_accuracy(trial.run())
    fit.drop("reference")
    return reached


def readout_accuracy(
    scenario: Scenario,
    task: Task,
    training: Training,
    source: int,
    logits: Callable[[Tensor], Tensor],
    settings: ReadoutSettings,
) -> float:
    """Validation accuracy of the best linear read-out of an earlier task's logits.

    The earlier task's network is fixed and its dropout off, so its logits are computed once. This is quick: after a
    kill it is simply repeated. Its draws follow from the tasks and leave those of others alone.
    """
    with isolated_randomness():
        torch.manual_seed(derive(scenario.seeds.batches, "readout", source, task.name))
        train, val = (_logits_of(logits, batches) for batches in (task.train, task.val))
        on_logits = replace(scenario, input_shape=(train.images.size(1), 1, 1), classes=(task.classes,))
        readout = Readout(on_logits, settings).to(task.train.device)
        probed = replace(task, train=train, val=val)
        return _best_accuracy(Fit(readout, probed, training).run())


def _best_accuracy(trial: Fit) -> float:
    """Accuracy on the validation set. A network whose loss was never finite is measured at its initial weights and does
    not end the run."""
    trial.learner.restore(trial.best)
    return validate(trial.learner, trial.task)[1]


@torch.no_grad()
def _logits_of(logits: Callable[[Tensor], Tensor], batches: Batches) -> Batches:
    seen = torch.cat([logits(x) for x, _ in batches.batched(EVALUATION_BATCH)])
    return Batches(seen, batches.y, batches.size, shuffle=batches.shuffle, seed=batches.seed, device=batches.device)
