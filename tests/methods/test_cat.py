"""CAT: exactly HAT while nothing is similar, and what similar tasks change."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from softmask.learning.evaluation import accuracy
from softmask.learning.fit import Fit, Fitter
from softmask.learning.method import Method, Step
from softmask.learning.task import Batches, Task
from softmask.learning.training import Training
from softmask.learning.unit_gates import between_used_units
from softmask.methods import cat
from softmask.methods.cat import CAT
from softmask.methods.hat import HAT
from tests.methods.isolation import (
    TRAINING,
    learn,
    learn_all,
    logits,
    made,
    random_task,
    separable_task,
    small_scenario,
)

tasks = [random_task(index) for index in range(3)]


class Judging(CAT):
    """Trains nothing to find similar tasks: it is told."""

    told: tuple[int, ...] = ()

    def try_earlier_tasks(self, task: Task, fit: Fitter) -> dict:
        return {"reference": 0.5, "readouts": [float(source in self.told) for source in range(task.id)]}


class AllSimilar(Judging):
    told = (0, 1)


class FirstSimilar(Judging):
    told = (0,)


def test_while_nothing_is_similar_it_is_hat_to_the_bit() -> None:
    """Even with the search for similar tasks in between: it has draws of its own."""
    reference = {"reference": 2.0}  # no read-out can be better

    class NoneSimilar(CAT):
        def try_earlier_tasks(self, task: Task, fit: Fitter) -> dict:
            return super().try_earlier_tasks(task, fit) | reference

    cat, hat = made(NoneSimilar), made(HAT)
    learn_all(cat, tasks)
    learn_all(hat, tasks)
    shared = hat.state_dict()
    assert all(torch.equal(cat.state_dict()[name], value) for name, value in shared.items())
    assert all(torch.equal(logits(cat, task), logits(hat, task)) for task in tasks)


def test_the_search_for_similar_tasks_changes_nothing() -> None:
    method = made(CAT)
    learn_all(method, tasks[:2])
    method.begin_task(tasks[2])
    before = {name: value.clone() for name, value in method.state_dict().items()}
    tried = method.try_earlier_tasks(tasks[2], Fitter(method, tasks[2], TRAINING))
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    assert all(p.grad is None for p in method.parameters())
    assert len(tried["readouts"]) == 2
    assert all(0 <= share <= 1 for share in (tried["reference"], *tried["readouts"]))


@pytest.mark.parametrize(("kind", "changes"), [(AllSimilar, True), (Judging, False)])
def test_weights_of_a_similar_task_may_change_and_those_of_others_not(kind: type[CAT], changes: bool) -> None:
    method = made(kind)
    learn_all(method, tasks[:1])
    connected = between_used_units(method.backbone, method.by_layer(method.hard_gates(0)))
    before = {name: p.detach().clone() for name, p in method.backbone.named_parameters()}
    learn_all(method, tasks[1:2])
    moved = [bool((p != before[name])[connected[name]].any()) for name, p in method.backbone.named_parameters()]
    assert any(moved) == changes
    assert bool(method.similar[1, 0]) == changes


def test_a_unit_of_a_similar_and_of_a_dissimilar_task_stays_protected() -> None:
    method = made(FirstSimilar)
    with torch.no_grad():
        for index in (0, 1):  # both earlier tasks use all units
            method.embeddings[index].fill_(1.0)
    method.begin_task(tasks[2])
    method.tried = method.try_earlier_tasks(tasks[2], Fitter(method, tasks[2], TRAINING))
    method.release_similar(tasks[2])
    assert method.similar[2].tolist() == [True, False, False]
    assert all((free == 0).all() for free in method.free_weights.values())
    assert len(method.free_weights) == 10


def test_a_tie_is_not_similar() -> None:
    method = made(CAT)
    method.tried = {"reference": 0.5, "readouts": [0.5, 0.51]}
    method.release_similar(tasks[2])
    assert method.similar[2].tolist() == [False, True, False]


@torch.no_grad()
def open_all(method: CAT) -> None:
    for embedding in method.embeddings:
        embedding.fill_(6.0)


def attending(kind: type[CAT]) -> CAT:
    """About to learn the third task."""
    method: CAT = made(kind)
    method.begin_task(tasks[2])
    method.tried = method.try_earlier_tasks(tasks[2], Fitter(method, tasks[2], TRAINING))
    method.release_similar(tasks[2])
    return method


def test_attention_teaches_the_backbone_too() -> None:
    """So that knowledge flows back to the similar task."""
    method = attending(FirstSimilar)
    open_all(method)
    loss = method.attention_loss(Step(tasks[2], tasks[2].val.x, tasks[2].val.y))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in method.backbone.parameters())
    assert all(embedding.grad is None for embedding in method.embeddings)


def test_validation_has_the_loss_of_attention() -> None:
    method = attending(FirstSimilar).eval()
    step = Step(tasks[2], tasks[2].val.x, tasks[2].val.y)
    plain, _ = HAT.validate(method, step)
    both, _ = method.validate(step)
    answers = F.cross_entropy(method.attended(step.x, 2), step.y)
    torch.testing.assert_close(both, plain + answers)


def test_attention_looks_at_similar_tasks_alone() -> None:
    method = attending(FirstSimilar).eval()
    answers = method.attended(tasks[2].val.x, 2)
    with torch.no_grad():
        method.embeddings[1].neg_()
    assert torch.equal(method.attended(tasks[2].val.x, 2), answers)
    with torch.no_grad():
        method.embeddings[0].neg_()
    assert not torch.equal(method.attended(tasks[2].val.x, 2), answers)


def test_attention_is_used_only_where_it_validates_better() -> None:
    method = made(AllSimilar)
    facts = learn_all(method, tasks)
    assert facts[0]["attends"] is False  # nothing to attend to
    for task, fact in zip(tasks[1:], facts[1:], strict=True):
        assert fact["similar"] == list(range(task.id))
        method.attends[task.id] = True
        attending = accuracy(method, task.val, task.id)
        method.attends[task.id] = False
        plain = accuracy(method, task.val, task.id)
        method.attends[task.id] = fact["attends"]
        if task is tasks[-1]:  # weights of earlier tasks have changed since
            assert fact["attends"] == (attending > plain)


@pytest.fixture(scope="module")
def knowing() -> dict[str, torch.Tensor]:
    """The state of a method that has learned a first task well."""
    method = made(CAT, wide_enough)
    learn(method, first, Training(epochs=30, schedule="cosine"))
    method.end_task(first)
    assert accuracy(method, first.val, 0) > 0.9
    return {name: value.clone() for name, value in method.state_dict().items()}


wide_enough = small_scenario(tasks=2, width=1 / 4)
first = separable_task(0, classes=3, train=192, val=96, size=16)
again = Task((1,), "again", 3, first.train, first.val)


def test_attention_learns_from_a_similar_task(knowing: dict[str, torch.Tensor]) -> None:
    """The same task again: attending to what the first one knows is enough, long before the gates are learned."""
    method = made(AllSimilar, wide_enough)
    method.load_state_dict(knowing)
    learn(method, again, Training(lr=0.1, epochs=3, schedule="cosine"))
    method.attends[1] = True
    assert accuracy(method, again.val, 1) > 0.9


def test_a_task_that_comes_again_is_found_similar(knowing: dict[str, torch.Tensor]) -> None:
    """Read out, the first network knows it; a new network has no time to learn it. A strange task it does not know."""
    method = made(CAT, wide_enough)
    method.load_state_dict(knowing)
    draws = torch.Generator().manual_seed(0)
    mixed = [
        Batches(b.images, b.labels[torch.randperm(b.count, generator=draws)], 16) for b in (first.train, first.val)
    ]
    known = {}
    for task in (again, Task((1,), "strange", 3, *mixed)):
        method.begin_task(task)
        known[task.name] = method.try_earlier_tasks(task, Fitter(method, task, Training(epochs=1, schedule="cosine")))
    assert known["again"]["readouts"][0] > 0.9 > known["again"]["reference"]
    assert known["strange"]["readouts"][0] < 0.7


class TriedAndSimilar(CAT):
    """Tries earlier tasks in earnest, and then takes all for similar."""

    def try_earlier_tasks(self, task: Task, fit: Fitter) -> dict:
        return super().try_earlier_tasks(task, fit) | {"reference": -1.0}


@pytest.mark.parametrize("epoch", range(4))
def test_killed_while_trying_or_attending_it_ends_with_the_same_bits(epoch: int) -> None:
    """Two epochs of the network to compare with, then two of the task itself."""
    saved: list[dict] = []
    whole = made(TriedAndSimilar)
    learn_all(whole, tasks[:1])
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    torch.manual_seed(9)
    whole.begin_task(tasks[1])
    whole.learn(tasks[1], Fitter(whole, tasks[1], TRAINING, save=lambda state: saved.append(deepcopy(state))))
    assert len(saved) == 4
    resumed = made(TriedAndSimilar)
    resumed.load_state_dict(before)
    torch.manual_seed(123)  # whatever the new process draws from
    resumed.begin_task(tasks[1])
    resumed.learn(tasks[1], Fitter(resumed, tasks[1], TRAINING, saved=saved[epoch]))
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())
    assert whole.similar[1, 0]


def test_reference_starts_from_the_same_weights_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Seen(cat.Reference):
        def build(self) -> None:
            super().build()
            started.append(self.backbone.fc2.layer.weight.detach().clone())

    monkeypatch.setattr(cat, "Reference", Seen)
    method = made(CAT)
    learn_all(method, tasks)
    assert torch.equal(*started)


def test_cost_says_that_it_grows_with_the_square() -> None:
    costs = [CAT.cost(small_scenario(tasks=count)) for count in (5, 10, 20)]
    assert "square" in costs[0].note
    ratios = [after.step * 2 / before.step for before, after in pairwise(costs)]  # for all tasks
    assert all(ratio > 2.4 for ratio in ratios)


def test_a_network_that_is_thrown_away_does_not_end_the_run_when_it_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is what it knows."""
    monkeypatch.setattr("softmask.learning.fit.validate", lambda learner, task: (float("nan"), 0.0))
    method = made(CAT)
    method.begin_task(tasks[1])
    tried = method.try_earlier_tasks(tasks[1], Fitter(method, tasks[1], TRAINING))
    assert 0 <= tried["reference"] <= 1
    assert 0 <= tried["readouts"][0] <= 1


def test_its_rate_is_that_of_the_networks_it_throws_away(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []

    class Seen(Fit):
        def __init__(self, learner: Method, task: Task, training: Training, *more: Any, **others: Any) -> None:
            super().__init__(learner, task, training, *more, **others)
            rates.append((type(learner).__name__, self.training.lr))

    monkeypatch.setattr(cat, "Fit", Seen)
    monkeypatch.setattr("softmask.learning.fit.Fit", Seen)
    method = made(CAT, lr=0.01)
    method.begin_task(tasks[1])
    method.try_earlier_tasks(tasks[1], Fitter(method, tasks[1], TRAINING))
    assert rates == [("Reference", 0.01), ("Readout", 0.01)]


def test_soft_gates_are_refused() -> None:
    with pytest.raises(ValueError, match="hard gates"):
        CAT.Settings(gates="soft")
