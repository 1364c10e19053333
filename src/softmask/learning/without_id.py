"""Prediction without a task id: three rules choose among the heads learned so far.

`logit`: the largest logit over all heads. `confidence`: the largest probability, each head's logits divided by its
temperature, which minimises the cross-entropy on the validation images of its task when that was learned. `means`: the
head of the class whose mean is nearest in the Mahalanobis distance, features being those that the task's head sees; the
mean of each class, and one covariance that all classes share, are measured on the training images when a task is
learned, and stay (as in Lee et al., NeurIPS 2018). In each case the class is the best of the chosen head.

Where all tasks have the same classes, the task need not be inferred: `heads` is the class with the largest mean of the
heads' probabilities. Stored between tasks: a vector per class, one matrix, two numbers per task; no images. No random
numbers are drawn and the method is not changed, so that a run has the same weights with and without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from softmask.core.answers import evaluating
from softmask.learning.evaluation import EVALUATION_BATCH
from softmask.learning.method import Method
from softmask.learning.task import Batches, Task

RULES = ("logit", "confidence", "means")
HEADS = "heads"
SHRINKAGE = 0.1
"""Share of the covariance that is replaced by a multiple of the identity: features may be more than images."""
MOST_FEATURES = 4096
"""For more features the matrix would take more memory than most networks: then there are no means."""
STEPS = 60
"""Of a bisection, each of which halves the interval."""
State = dict[str, Tensor]


@dataclass
class ClassStatistics:
    """Class means, their shared covariance, and the calibration of heads and distances."""

    means: dict[int, Tensor] = field(default_factory=dict)
    """By task: one row for each class."""
    scatter: Tensor | None = None
    """Sum over all training images of the outer product of a feature's distance from its class mean."""
    count: int = 0
    temperatures: dict[int, float] = field(default_factory=dict)
    sharpness: dict[int, float] = field(default_factory=dict)
    """By task: the factor of the distances with which the right task was most probable for its validation images."""

    @torch.no_grad()
    def learn(self, method: Method, task: Task) -> None:
        """After a task: its means, its part of the covariance, its temperature."""
        with evaluating(method):
            self._measure(method, task)
            logits, labels = _logits(method, task.val, task.id)
            self.temperatures[task.id] = temperature(logits, labels)
            if self.knows(task.id):
                self.sharpness[task.id] = self._sharpness(method, task)

    def knows(self, task: int) -> bool:
        return task in self.means

    def _measure(self, method: Method, task: Task) -> None:
        sums: Tensor | None = None
        for x, y in task.train.batched(EVALUATION_BATCH):
            features = method.answer(x, task.id)[0]
            if features is None or features.size(1) > MOST_FEATURES:
                return
            features = features.double()
            if sums is None:
                width = features.size(1)
                # Distances from some point near the mean, so that little is lost when squares are subtracted.
                origin = features.mean(0)
                sums, sizes = features.new_zeros(task.classes, width), features.new_zeros(task.classes)
                squares = torch.zeros(width, width, device=features.device)
            away = features - origin
            members = F.one_hot(y, task.classes).double()
            sums += members.T @ away
            sizes += members.sum(0)
            squares += away.T.float() @ away.float()
        assert sums is not None
        centres = sums / sizes.clamp(min=1).unsqueeze(1)
        centres[sizes == 0] = centres[sizes > 0][0]  # a class without images is never the nearest by itself
        squares -= ((centres * sizes.unsqueeze(1)).T @ centres).float()
        self.means[task.id] = (centres + origin).float()
        self.scatter = squares if self.scatter is None else self.scatter + squares
        self.count += task.train.count

    def _sharpness(self, method: Method, task: Task) -> float:
        """At most 1, where distances are taken as those of normal distributions."""
        others = [known for known in self.means if known != task.id]
        if not others:
            return 1.0
        whiten = self.whitening()
        distances = torch.cat(
            [
                torch.stack([whiten.nearest(method.answer(x, known)[0], known) for known in (task.id, *others)], 1)
                for x, _ in task.val.batched(EVALUATION_BATCH)
            ]
        )
        return factor(-distances / 2, torch.zeros(len(distances), dtype=torch.int64), most=1.0)

    def whitening(self) -> Whitening:
        return Whitening(self)

    def to(self, device: torch.device) -> ClassStatistics:
        """On a device; itself if it is there already."""
        if self.scatter is None or self.scatter.device == device:
            return self
        means = {task: each.to(device) for task, each in self.means.items()}
        return replace(self, means=means, scatter=self.scatter.to(device))

    def copy(self) -> ClassStatistics:
        """A copy that can be updated independently."""
        return replace(
            self, means=dict(self.means), temperatures=dict(self.temperatures), sharpness=dict(self.sharpness)
        )

    def without(self, place: int) -> ClassStatistics:
        """Removes a task; later tasks move up. The covariance does not change."""

        def left(values: Mapping[int, Any]) -> dict[int, Any]:
            return {task - (task > place): value for task, value in values.items() if task != place}

        kept = (left(self.means), self.scatter, self.count, left(self.temperatures), left(self.sharpness))
        return ClassStatistics(*kept)

    def state_dict(self) -> State:
        tasks = sorted(self.temperatures)
        known = torch.tensor([self.knows(task) for task in tasks])
        state = {
            "temperatures": torch.tensor([self.temperatures[task] for task in tasks], dtype=torch.float64),
            "sharpness": torch.tensor([self.sharpness.get(task, 0.0) for task in tasks], dtype=torch.float64),
            "tasks": torch.tensor(tasks, dtype=torch.int64),
            "known": known,
            "count": torch.tensor([self.count], dtype=torch.int64),
        }
        if self.scatter is not None:
            state["scatter"] = self.scatter
        return state | {f"means-{task}": means for task, means in self.means.items()}

    @staticmethod
    def expected_state(classes: Sequence[int], width: int) -> State:
        """Names, shapes and types of the state after tasks with these numbers of classes, as tensors without memory."""
        count = len(classes)
        with torch.device("meta"):
            numbers = {name: torch.empty(count, dtype=torch.float64) for name in ("temperatures", "sharpness")}
            facts = {"tasks": torch.empty(count, dtype=torch.int64), "known": torch.empty(count, dtype=torch.bool)}
            means = {f"means-{task}": torch.empty(each, width) for task, each in enumerate(classes)}
            total = {"count": torch.empty(1, dtype=torch.int64), "scatter": torch.empty(width, width)}
        return {**numbers, **facts, **means, **total}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], device: torch.device) -> ClassStatistics:
        tasks, known = state["tasks"].tolist(), state["known"].tolist()
        with_means = [task for task, has in zip(tasks, known, strict=True) if has]
        sharpness = dict(zip(tasks, state["sharpness"].tolist(), strict=True))
        return cls(
            {task: state[f"means-{task}"].to(device) for task in with_means},
            state["scatter"].to(device) if "scatter" in state else None,
            int(state["count"]),
            dict(zip(tasks, state["temperatures"].tolist(), strict=True)),
            {task: sharpness[task] for task in with_means},
        )


class Whitening:
    """Turns the Mahalanobis distance into the Euclidean one."""

    def __init__(self, statistics: ClassStatistics) -> None:
        assert statistics.scatter is not None
        covariance = statistics.scatter.double() / statistics.count
        level = covariance.diagonal().mean()
        shrunk = (1 - SHRINKAGE) * covariance
        shrunk.diagonal().add_(SHRINKAGE * level if level > 0 else 1.0)
        self.root = torch.linalg.cholesky(shrunk).float()
        self.means = {task: self(means) for task, means in statistics.means.items()}

    def __call__(self, features: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.root, features.float().T, upper=False).T

    def nearest(self, features: Tensor | None, task: int) -> Tensor:
        """The squared distance of each row from the nearest class of a task."""
        assert features is not None
        return self.distance(self(features), task)

    def distance(self, whitened: Tensor, task: int) -> Tensor:
        return torch.cdist(whitened, self.means[task], compute_mode="donot_use_mm_for_euclid_dist").square().amin(1)


def temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature that minimises the cross-entropy of the logits."""
    return 1 / factor(logits, labels, most=100.0)


def factor(scores: Tensor, labels: Tensor, *, most: float) -> float:
    """The factor of the scores, up to `most`, with the smallest cross-entropy, which is convex in it: by bisection."""
    scores = scores.double()
    right = scores.gather(1, labels.to(scores.device).unsqueeze(1)).squeeze(1)

    def slope(by: float) -> float:
        return float(((scores * by).softmax(1) * scores).sum(1).sub(right).mean())

    low, high = math.log(1e-4), math.log(most)
    if slope(most) <= 0:
        return most
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(math.exp(middle)) > 0 else (middle, high)
    return math.exp(low)


def shares_features(method: Method) -> bool:
    """Whether all heads see the same features, so that one pass through the backbone serves them all."""
    kind = type(method)
    return kind.features is Method.features and kind.forward is Method.forward and kind.answer is Method.answer


class WithoutId:
    """Measures accuracy without a task id on the tasks learned so far."""

    def __init__(
        self,
        *,
        same_classes: bool,
        tasks: int,
        statistics: ClassStatistics | None = None,
        save: Callable[[int, State], None] = lambda stage, state: None,
    ) -> None:
        self.same_classes, self.tasks, self._save = same_classes, tasks, save
        self.statistics = ClassStatistics() if statistics is None else statistics

    def save(self, stage: int) -> None:
        """Called after a stage, before it counts as done."""
        self._save(stage, self.statistics.state_dict())

    def wanted(self, method: Method, learned: Sequence[int]) -> bool:
        """Where each task has features of its own every image must be seen once for each task: only at the end."""
        return shares_features(method) or len(learned) == self.tasks

    def learn(self, method: Method, tasks: Sequence[Task]) -> None:
        if not self.same_classes:
            for task in tasks:
                self.statistics.learn(method, task)

    @torch.no_grad()
    def accuracies(self, method: Method, parts: Mapping[int, Batches]) -> dict[int, dict[str, float]]:
        """By task and rule, with the heads of all these tasks."""
        tasks = sorted(parts)
        compete = self._same if self.same_classes else self._compete
        whiten = None
        if not self.same_classes and all(map(self.statistics.knows, tasks)):
            whiten = self.statistics.whitening()
        found: dict[int, dict[str, float]] = {}
        with evaluating(method):
            for task, batches in parts.items():
                right: dict[str, Tensor] = {}
                for x, y in batches.batched(EVALUATION_BATCH):
                    for rule, hits in compete(method, x, y, task, tasks, whiten).items():
                        right[rule] = right.get(rule, torch.zeros((), device=y.device)) + hits.sum()
                found[task] = {rule: float(hits) / batches.count for rule, hits in right.items()}
        return found

    def _same(
        self, method: Method, x: Tensor, y: Tensor, task: int, tasks: Sequence[int], whiten: Whitening | None
    ) -> dict[str, Tensor]:
        logits = _all_answers(method, x, tasks)[1]
        return {HEADS: torch.stack([each.softmax(1) for each in logits]).mean(0).argmax(1) == y}

    def _compete(
        self, method: Method, x: Tensor, y: Tensor, task: int, tasks: Sequence[int], whiten: Whitening | None
    ) -> dict[str, Tensor]:
        features, logits = _all_answers(method, x, tasks)
        known = self.statistics.temperatures
        scores = {
            "logit": [each.amax(1) for each in logits],
            "confidence": [
                (each.double() / known[other]).log_softmax(1).amax(1) for other, each in zip(tasks, logits, strict=True)
            ],
        }
        if whiten is not None:
            scores["means"] = [-distance for distance in _distances(whiten, features, tasks)]
        own = tasks.index(task)
        classified = logits[own].argmax(1) == y
        return {rule: (torch.stack(each, 1).argmax(1) == own) & classified for rule, each in scores.items()}


def _distances(whiten: Whitening, features: Sequence[Tensor | None], tasks: Sequence[int]) -> list[Tensor]:
    """To the nearest class of each task. Features that heads share are whitened once."""
    whitened: dict[int, Tensor] = {}
    for each in features:
        assert each is not None
        if id(each) not in whitened:
            whitened[id(each)] = whiten(each)
    return [whiten.distance(whitened[id(each)], task) for each, task in zip(features, tasks, strict=True)]


def _all_answers(method: Method, x: Tensor, tasks: Sequence[int]) -> tuple[list[Tensor | None], list[Tensor]]:
    """Features and logits of each task."""
    if shares_features(method):
        features = method.features(x, tasks[0])
        return [features] * len(tasks), [method.heads[task](features) for task in tasks]
    answers = [method.answer(x, task) for task in tasks]
    return [features for features, _ in answers], [logits for _, logits in answers]


def _logits(method: Method, batches: Batches, task: int) -> tuple[Tensor, Tensor]:
    found = [(method(x, task), y) for x, y in batches.batched(EVALUATION_BATCH)]
    return torch.cat([logits for logits, _ in found]), torch.cat([labels for _, labels in found])


@dataclass(frozen=True)
class Guess:
    """The inferred task of an input."""

    task: int
    share: float
    """Its probability, the distances weighted by the least sharpness of all tasks."""


@torch.no_grad()
def guess_tasks(method: Method, statistics: ClassStatistics, x: Tensor, tasks: Sequence[int]) -> list[Guess]:
    """By the rule `means`, for each input."""
    if len(tasks) == 1:
        return [Guess(tasks[0], 1.0)] * len(x)
    whiten, sharpness = statistics.whitening(), min(statistics.sharpness[task] for task in tasks)
    found: list[Guess] = []
    with evaluating(method):
        for part in x.split(EVALUATION_BATCH):
            distances = torch.stack(_distances(whiten, _all_answers(method, part, tasks)[0], tasks), 1).double()
            shares = F.softmax(-sharpness * distances / 2, 1)
            best = shares.max(1)
            found += [
                Guess(tasks[index], share)
                for index, share in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
    return found
