"""GPM and SGP: golden projections, thresholds, which tasks' directions are protected, and NCL at threshold 0."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from softmask.learning.method import Step
from softmask.learning.task import Task
from softmask.methods.gpm import GPM
from softmask.methods.sgp import SGP
from tests.learning.toys import toy_scenario, toy_task
from tests.methods.comparing import learned, same_network


def made(kind: type[GPM], inputs: int = 2, bias: bool = False, **settings: Any) -> GPM:
    torch.manual_seed(0)
    scenario = toy_scenario([nn.Linear(inputs, 2, bias=bias)], [nn.Linear(2, 2) for _ in range(3)])
    return kind(scenario, kind.Settings(**settings))


def task_of(*rows: list[float], index: int = 0) -> Task:
    return toy_task(torch.tensor(rows), torch.arange(len(rows)) % 2, index=index)


def projected(method: GPM, gradient: list[list[float]], bias: list[float] | None = None) -> tuple[Tensor, ...]:
    """What is left of the gradient of the one layer."""
    layer = method.backbone[0]
    layer.weight.grad = torch.tensor(gradient)
    if bias is not None:
        layer.bias.grad = torch.tensor(bias)
    task = task_of([1.0] * layer.in_features)
    method.after_backward(Step(task, task.train.x, task.train.y))
    return (layer.weight.grad,) if bias is None else (layer.weight.grad, layer.bias.grad)


@pytest.mark.parametrize("kind", [GPM, SGP])
def test_golden_projection(kind: type[GPM]) -> None:
    """All inputs along v = (0.6, 0.8): the identity becomes I - v v^T. One direction has importance 1 in SGP, too."""
    method = made(kind)
    assert projected(method, [[1.0, 0.0], [0.0, 1.0]])[0].tolist() == [[1.0, 0.0], [0.0, 1.0]], "nothing is known yet"
    method.end_task(task_of([3.0, 4.0], [-6.0, -8.0]))
    (left,) = projected(method, [[1.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(left, torch.tensor([[0.64, -0.48], [-0.48, 0.36]]))


@pytest.mark.parametrize("kind", [GPM, SGP])
def test_a_bias_is_the_weight_of_an_input_that_is_always_1(kind: type[GPM]) -> None:
    """Inputs (2, 1): of the gradient (1, 1) the part 3/5 (2, 1) goes."""
    method = made(kind, inputs=1, bias=True)
    method.end_task(task_of([2.0], [2.0]))
    weight, bias = projected(method, [[1.0], [10.0]], [1.0, 10.0])
    torch.testing.assert_close(weight, torch.tensor([[-0.2], [-2.0]]))
    torch.testing.assert_close(bias, torch.tensor([0.4, 4.0]))


@pytest.mark.parametrize(("threshold", "left"), [(0.85, [0.0, 1.0]), (0.95, [0.0, 0.0])])
def test_directions_join_until_the_share_of_energy_is_covered(threshold: float, left: list[float]) -> None:
    """Energies 9 and 1: the first direction covers 90 percent."""
    method = made(GPM, threshold=threshold, rise=0.0)
    method.end_task(task_of([3.0, 0.0], [0.0, 1.0]))
    torch.testing.assert_close(projected(method, [[1.0, 1.0], [1.0, 1.0]])[0], torch.tensor([left, left]))


def test_the_threshold_rises_with_the_tasks_and_never_reaches_1() -> None:
    method = made(GPM)
    assert [method.threshold(task) for task in (0, 1, 9)] == pytest.approx([0.97, 0.973, 0.997])
    assert method.threshold(20) == 0.999
    assert made(GPM, threshold=0.0).threshold(5) == 0, "off for all tasks"


def test_a_later_task_is_measured_at_its_own_threshold() -> None:
    method = made(GPM, threshold=0.85, rise=0.1)
    tasks = [task_of([3.0, 0.0], [0.0, 1.0], index=index) for index in (0, 1)]
    method.end_task(tasks[0])
    assert projected(method, [[1.0, 1.0], [1.0, 1.0]])[0][0].tolist() == [0.0, 1.0]
    method.end_task(tasks[1])  # 0.95 asks for the second direction
    assert projected(method, [[1.0, 1.0], [1.0, 1.0]])[0][0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", [GPM, SGP])
def test_the_directions_of_all_old_tasks_are_protected(kind: type[GPM]) -> None:
    """Neither those of the first task alone nor those of the last."""
    method = made(kind, inputs=3)
    method.end_task(task_of([1.0, 0.0, 0.0], [2.0, 0.0, 0.0]))
    torch.testing.assert_close(projected(method, [[1.0] * 3] * 2)[0], torch.tensor([[0.0, 1.0, 1.0]] * 2))
    method.end_task(task_of([0.0, 1.0, 0.0], [0.0, 5.0, 0.0], index=1))
    torch.testing.assert_close(projected(method, [[1.0] * 3] * 2)[0], torch.tensor([[0.0, 0.0, 1.0]] * 2))


def test_golden_importance() -> None:
    """Singular values 3 and 1, alpha 1: importance 2 * 3 / (3 + 3) = 1 and 2 * 1 / (1 + 3) = 0.5, which add up."""
    method = made(SGP, alpha=1.0, threshold=0.95)
    method.end_task(task_of([3.0, 0.0], [0.0, 1.0]))
    torch.testing.assert_close(projected(method, [[1.0, 1.0]] * 2)[0], torch.tensor([[0.0, 0.5]] * 2))
    method.end_task(task_of([3.0, 0.0], [0.0, 1.0], index=1))
    torch.testing.assert_close(projected(method, [[1.0, 1.0]] * 2)[0], torch.zeros(2, 2))


def test_importance_of_an_old_direction_that_a_new_task_uses_differently() -> None:
    """First (3, 1), then (1, 7) along the same two directions: importance ends at 1; without use nothing is added."""
    method = made(SGP, alpha=1.0, threshold=0.95)
    method.end_task(task_of([3.0, 0.0], [0.0, 1.0]))
    method.end_task(task_of([3.0, 0.0], [-6.0, 0.0], index=1))
    torch.testing.assert_close(projected(method, [[1.0, 1.0]] * 2)[0], torch.tensor([[0.0, 0.5]] * 2))
    method.end_task(task_of([1.0, 0.0], [0.0, 7.0], index=2))
    torch.testing.assert_close(projected(method, [[1.0, 1.0]] * 2)[0], torch.zeros(2, 2))


def test_with_a_large_alpha_sgp_is_gpm() -> None:
    generator = torch.Generator().manual_seed(3)
    gpm, sgp = made(GPM, inputs=6, threshold=0.8), made(SGP, inputs=6, threshold=0.8, alpha=1e9)
    for index in range(3):
        scale = torch.rand(6, generator=generator).pow(3)
        x = torch.randn(9, 6, generator=generator) * scale
        for method in (gpm, sgp):
            method.end_task(toy_task(x, torch.arange(9) % 2, index=index))
        gradient = torch.randn(2, 6, generator=generator).tolist()
        torch.testing.assert_close(projected(sgp, gradient)[0], projected(gpm, gradient)[0], rtol=1e-4, atol=1e-5)


def test_a_task_in_the_free_directions_leaves_the_old_answers_alone() -> None:
    torch.manual_seed(4)
    method = made(GPM, inputs=6, bias=True, threshold=0.999)
    old = toy_task(torch.randn(20, 2) @ torch.randn(2, 6), torch.arange(20) % 2)
    new = toy_task(torch.randn(20, 6), torch.arange(20) % 2, index=1)
    method.end_task(old)
    method.begin_task(new)
    before, weight = method(old.train.x, 0).detach(), method.backbone[0].weight.detach().clone()
    optimizer = method.make_optimizer(0.1)
    for _ in range(20):
        optimizer.zero_grad()
        step = Step(new, new.train.x, new.train.y)
        method.loss(step).backward()
        method.after_backward(step)
        optimizer.step()
    assert (method.backbone[0].weight - weight).abs().max() > 1e-2
    torch.testing.assert_close(method(old.train.x, 0), before, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [GPM, SGP])
def test_inputs_are_measured_with_dropout_off(kind: type[GPM]) -> None:
    torch.manual_seed(0)
    scenario = toy_scenario([nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 4)], [nn.Linear(4, 2), nn.Linear(4, 2)])
    x = torch.randn(8, 3)
    method = kind(scenario, kind.Settings(threshold=0.99)).train()
    method.end_task(toy_task(x, torch.arange(8) % 2))
    plain = kind(scenario, kind.Settings(threshold=0.99)).eval()
    plain.end_task(toy_task(x, torch.arange(8) % 2))
    assert all(torch.equal(used, plain.mask.used[name]) for name, used in method.mask.used.items())


def test_no_more_images_are_measured_than_asked() -> None:
    method = made(GPM, images=5)
    task = toy_task(torch.randn(12, 2), torch.arange(12) % 2, size=4)
    measured = method.measured_on(task)
    assert sum(len(y) for _, y in measured) == 5
    assert len(torch.cat([x for x, _ in measured]).unique(dim=0)) == 5


@pytest.mark.parametrize("name", ["gpm", "sgp"])
def test_threshold_0_and_the_first_task_are_ncl_to_the_bit(name: str) -> None:
    plain = learned("ncl", tasks=3)
    assert same_network(learned(name, tasks=3, threshold=0.0), plain)
    assert not same_network(learned(name, tasks=3), plain)
    assert same_network(learned(name, tasks=1), learned("ncl", tasks=1))


def test_the_state_does_not_grow_with_the_tasks() -> None:
    sizes = []
    for tasks in (1, 3):
        used = learned("sgp", tasks=tasks).mask.state_dict()["used"]
        sizes.append({name: tensor.shape for name, tensor in used.items()})
    assert sizes[0] == sizes[1]
    assert sizes[0].keys() == {f"{name}.layer" for name in ("conv1", "conv2", "conv3", "fc1", "fc2")}
