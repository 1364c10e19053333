"""TAG: golden updates, heads without a past, and moments going back with the weights."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from softmask.learning.fit import Fit
from softmask.learning.training import Training
from softmask.methods.tag import TAG
from tests.core.examples import linear
from tests.learning.toys import random_scenario, random_task, toy_scenario, toy_task
from tests.methods.comparing import built, learned

ANY = torch.ones(2, 2), torch.zeros(2, dtype=torch.int64)


def update(method: TAG, task: int, gradient: list[float], steps: int = 1) -> list[float]:
    """The first step of a task on the only weight."""
    method.begin_task(toy_task(*ANY, index=task))
    weight = method.backbone[0].weight
    optimizer = method.make_optimizer(1e-3)
    before = weight.detach().clone()
    for _ in range(steps):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
    return (weight.detach() - before).flatten().tolist()


def one_weight(contrast: float = 5.0, tasks: int = 2) -> TAG:
    scenario = toy_scenario([linear([[0.0, 0.0]])], [nn.Linear(1, 1) for _ in range(tasks)])
    return TAG(scenario, TAG.Settings(contrast=contrast))


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [
        ([4.0, -3.0], [-0.01325419, 0.00748583]),
        ([3.0, 4.0], [-0.08614322, -0.08614322]),
        ([-3.0, -4.0], [0.00082083, 0.00082083]),
    ],
    ids=["unrelated", "similar", "opposed"],
)
def test_golden_updates(gradient: list[float], expected: list[float]) -> None:
    """A sign error would swap the last two; the first moment as numerator would make all ten times smaller."""
    method = one_weight()
    assert update(method, 0, [3.0, 4.0]) == pytest.approx([-0.01, -0.01], rel=1e-5)
    method.end_task(toy_task(*ANY, index=0))
    assert update(method, 1, gradient) == pytest.approx(expected, rel=1e-4)


def test_epsilon_is_added_to_the_root() -> None:
    """Where a gradient is tiny it halves the step; under the root it would stop it."""
    assert update(one_weight(), 0, [1e-7, -1e-7]) == pytest.approx([-5e-3, 5e-3], rel=1e-3)


def test_without_contrast_all_tasks_weigh_one() -> None:
    method = one_weight(contrast=0.0)
    update(method, 0, [3.0, 4.0])
    method.end_task(toy_task(*ANY, index=0))
    expected = [-1e-3 * g / math.sqrt(0.01 * g * g + 0.01 * old * old) for g, old in zip([4.0, -3.0], [3.0, 4.0])]  # noqa: B905
    assert update(method, 1, [4.0, -3.0]) == pytest.approx(expected, rel=1e-4)


def by_formula(tasks: Tensor, b: float, lr: float) -> Tensor:
    """The move of one tensor in the last of several tasks; `tasks` holds the gradient of every step of each."""
    past: list[tuple[Tensor, Tensor]] = []
    for gradients in tasks:
        m = v = move = torch.zeros_like(gradients[0])
        for g in gradients:
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
            own = math.exp(-b) if past else 1.0
            mixed = own * v + sum(torch.exp(-b * (m / m.norm() * unit).sum()) * old for unit, old in past)
            move = move - lr * g / (mixed.sqrt() + 1e-8)
        past.append((m / m.norm(), v))
    return move


def test_all_past_tasks_take_part_in_each_tensor_by_its_own_direction() -> None:
    """Gradients that change from step to step: a direction is that of the first moment, not of the last gradient."""
    torch.manual_seed(0)
    method = TAG(toy_scenario([linear([[0.0] * 3] * 2, [0.0] * 2)], [nn.Linear(2, 1)] * 3), TAG.Settings(contrast=2.0))
    layer = method.backbone[0]
    given = {layer.weight: torch.randn(3, 4, 2, 3), layer.bias: torch.randn(3, 4, 2)}
    for task in range(3):
        method.begin_task(toy_task(*ANY, index=task))
        optimizer, before = method.make_optimizer(1e-3), {p: p.detach().clone() for p in given}
        for step in range(4):
            for parameter, gradients in given.items():
                parameter.grad = gradients[task, step]
            optimizer.step()
        method.end_task(toy_task(*ANY, index=task))
    for parameter, gradients in given.items():
        torch.testing.assert_close(parameter.detach() - before[parameter], by_formula(gradients, b=2.0, lr=1e-3))


@pytest.mark.parametrize(("task", "factor"), [(0, 10.0), (1, 121.8249)])
def test_a_head_has_no_past_but_the_own_weight_of_its_task(task: int, factor: float) -> None:
    method = one_weight()
    method.begin_task(toy_task(*ANY, index=task))
    optimizer, head = method.make_optimizer(1e-3), method.heads[task].weight
    before = head.detach().clone()
    head.grad = torch.tensor([[0.7]])
    optimizer.step()
    assert (before - head.detach()).item() == pytest.approx(1e-3 * factor, rel=1e-4)


def test_a_direction_of_norm_zero_is_unrelated_to_all() -> None:
    method = one_weight()
    update(method, 0, [0.0, 0.0])
    method.end_task(toy_task(*ANY, index=0))
    assert (method.past_directions.tensors()[0] == 0).all()
    assert all(math.isfinite(move) for move in update(method, 1, [1.0, 0.0]))
    assert update(method, 1, [0.0, 0.0]) == [0.0, 0.0]


def test_all_is_finite_with_three_heads_over_three_tasks() -> None:
    method = learned("tag", tasks=3)
    assert all(tensor.isfinite().all() for tensor in method.state_dict().values())
    directions = method.past_directions.by_name()["fc2.layer.weight"]
    assert directions.flatten(1).norm(dim=1).tolist() == pytest.approx([1.0, 1.0], rel=1e-4)


def test_moments_begin_anew_with_each_task() -> None:
    method = one_weight()
    update(method, 0, [3.0, 4.0], steps=5)
    method.begin_task(toy_task(*ANY, index=1))
    assert not any(tensor.any() for tensor in (*method.first.tensors(), *method.second.tensors()))


def test_moments_go_back_to_the_best_epoch_but_the_past_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = itertools.chain([1.0], itertools.repeat(2.0))
    monkeypatch.setattr("softmask.learning.fit.validate", lambda learner, task: (next(losses), 0.5))
    method, task = TAG(random_scenario(tasks=3)), random_task(1)
    method.begin_task(task)
    fit = Fit(method, task, Training(epochs=3)).run(1)
    best = [tensor.clone() for tensor in (*method.first.tensors(), *method.second.tensors())]
    fit.run()
    fit.restore_best()
    now = (*method.first.tensors(), *method.second.tensors())
    assert all(torch.equal(tensor, then) for tensor, then in zip(now, best, strict=True))
    assert not any(name.startswith("past_") for name in method.snapshot())


def test_rate_and_floor_are_its_own() -> None:
    method, tasks = built("tag")
    method.begin_task(tasks[0])
    fit = Fit(method, tasks[0], Training())
    assert fit.lr == 2.5e-4
    assert fit.training.lr_min == pytest.approx(1e-6)


def test_the_forecast_says_that_memory_grows() -> None:
    costs = [TAG.cost(random_scenario(tasks)) for tasks in (2, 10)]
    assert costs[1].kept_copies - costs[0].kept_copies == 16
    assert "grows" in costs[0].note
    assert costs[1].step > costs[0].step


@pytest.mark.parametrize("block", [1, 4, 2**16])
def test_by_formula_whatever_the_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softmask.learning.per_parameter.BLOCK", block)
    torch.manual_seed(0)
    method = TAG(toy_scenario([linear([[0.0] * 3] * 5, [0.0] * 5)], [nn.Linear(5, 1)] * 3), TAG.Settings(contrast=2.0))
    layer = method.backbone[0]
    gradients = {layer.weight: torch.randn(3, 4, 5, 3), layer.bias: torch.randn(3, 4, 5)}
    for task in range(3):
        method.begin_task(toy_task(*ANY, index=task))
        optimizer, before = method.make_optimizer(1e-3), {p: p.detach().clone() for p in gradients}
        for step in range(4):
            for parameter, each in gradients.items():
                parameter.grad = each[task, step]
            optimizer.step()
        method.end_task(toy_task(*ANY, index=task))
    for parameter, each in gradients.items():
        torch.testing.assert_close(parameter.detach() - before[parameter], by_formula(each, b=2.0, lr=1e-3))
