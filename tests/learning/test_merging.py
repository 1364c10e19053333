"""The merging of BECAME: the share of the free solution, and what rests while it is looked for."""

import pytest
import torch
from torch import Tensor, nn

from softmask.learning.fit import Fitter
from softmask.learning.merging import MergingMethod, merged_share
from softmask.learning.method import Method, Step
from softmask.learning.training import Training
from softmask.methods.lwf import LwF
from tests.learning.toys import random_scenario, random_task

TRAINING = Training(lr=0.1, lr_min=0.1, epochs=3)


def test_golden_share() -> None:
    """Distances 1 and 2, Fisher of the new task 3 and 1, of the old ones 5 and 2: (3 + 4) / (8 + 12)."""
    new, old, away = torch.tensor([3.0, 1.0]), torch.tensor([5.0, 2.0]), torch.tensor([1.0, 2.0])
    assert merged_share((new,), (old,), (away,)) == pytest.approx(7 / 20)
    assert merged_share((new[:1], new[1:]), (old[:1], old[1:]), (away[:1], away[1:])) == pytest.approx(7 / 20)


def test_without_old_curvature_the_free_solution_counts_and_without_new_the_protected_one() -> None:
    one, none = torch.ones(2), torch.zeros(2)
    assert merged_share((one,), (none,), (one,)) == 1
    assert merged_share((none,), (one,), (one,)) == 0
    assert merged_share((none,), (none,), (one,)) == 1


class Frozen(Method):
    """Protects everything: the backbone has no update."""

    title = "frozen"

    def update_scale(self) -> dict[nn.Parameter, Tensor | float]:
        return dict.fromkeys(self.backbone.parameters(), 0.0)

    def after_backward(self, step: Step) -> None:
        seen.append("after_backward")


class Merging(MergingMethod, Frozen):
    title = "frozen, merged"
    fisher_batch = 4


seen: list[str] = []


def test_the_solution_lies_on_the_line_at_the_share_of_the_curvatures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protected solution is where the task began; the share follows from the Fisher information of the tasks."""
    method, task = Merging(random_scenario(tasks=2)), random_task(1)
    for precision in method.precision.tensors():
        precision.fill_(0.01)
    start = [p.detach().clone() for p in method.backbone.parameters()]
    free, merge = [], MergingMethod.merge

    def watched(self: MergingMethod, task: object, moving: list[nn.Parameter], protected: list[Tensor]) -> None:
        free.extend(p.detach().clone() for p in moving[: len(start)])
        fisher.extend(self.fisher(task).values())
        assert all(torch.equal(a, b) for a, b in zip(protected, start, strict=False)), "the wrapped method froze it"
        merge(self, task, moving, protected)

    fisher: list[Tensor] = []
    monkeypatch.setattr(MergingMethod, "merge", watched)
    method.begin_task(task)
    seen.clear()
    method.learn(task, Fitter(method, task, TRAINING))
    assert len(seen) == 3 * 3, "the wrapped method's hooks rest in the second fit"
    gain = sum((f * (b - a) ** 2).sum() for f, b, a in zip(fisher, free, start, strict=True))
    loss = sum(0.01 * ((b - a) ** 2).sum() for b, a in zip(free, start, strict=True))
    assert 0 < method.share < 1
    assert method.share == pytest.approx(float(gain / (gain + loss)), rel=1e-5)
    for now, a, b in zip(method.backbone.parameters(), start, free, strict=True):
        torch.testing.assert_close(now, a + method.share * (b - a))
    assert method.end_task(task) == {"share_of_free_solution": method.share}


def test_the_first_task_is_learned_once_and_its_curvature_kept() -> None:
    method, task = Merging(random_scenario(tasks=2)), random_task(0)
    method.begin_task(task)
    fitter = Fitter(method, task, TRAINING)
    method.learn(task, fitter)
    assert fitter.epochs == 3
    assert method.end_task(task) == {}
    expected = method.fisher(task)
    assert all(torch.equal(kept, expected[name]) for name, kept in method.precision.by_name().items())
    method.end_task(task)
    assert all(torch.equal(kept, 2 * expected[name]) for name, kept in method.precision.by_name().items())


def test_the_free_training_has_a_lower_rate() -> None:
    method = Merging(random_scenario(tasks=2))
    assert method.adapted(TRAINING).lr == 0.1
    method.is_free = True
    assert method.adapted(TRAINING).lr == pytest.approx(0.01)


def test_any_method_can_be_wrapped() -> None:
    """One with a loss and a teacher of its own, too."""

    class LwFMerged(MergingMethod, LwF):
        title = "LwF, merged"

    method = LwFMerged(random_scenario(tasks=2))
    for task in (random_task(0), random_task(1)):
        method.begin_task(task)
        method.learn(task, Fitter(method, task, TRAINING))
        facts = method.end_task(task)
    assert 0 < facts["share_of_free_solution"] < 1
