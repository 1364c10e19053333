"""TRGP: which tasks are related, how their part of the weights is scaled, and which directions are a task's own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from softmask.core.directions import new_directions, task_directions
from softmask.learning.method import Step
from softmask.learning.task import Task
from softmask.methods.trgp import TRGP, Region
from tests.learning.toys import toy_scenario, toy_task
from tests.methods.comparing import built, learned, same_network


def made(inputs: int = 2, bias: bool = False, **settings: Any) -> TRGP:
    torch.manual_seed(0)
    scenario = toy_scenario([nn.Linear(inputs, 2, bias=bias)], [nn.Linear(2, 2) for _ in range(4)])
    return TRGP(scenario, TRGP.Settings(**settings))


def task_of(*rows: list[float], index: int = 0) -> Task:
    return toy_task(torch.tensor(rows), torch.arange(len(rows)) % 2, index=index)


def scaled_by(method: TRGP, *regions: tuple[list[list[float]], list[list[float]]]) -> None:
    """Old tasks with these directions, and the present one with these matrices."""
    method.bases = [{"0": torch.tensor(basis)} for basis, _ in regions]
    method.regions = [Region("0", old) for old in range(len(regions))]
    method.scales = nn.ParameterList(torch.tensor(scale) for _, scale in regions)
    method.learned = [[] for _ in regions]


def set_weight(method: TRGP, weight: list[list[float]], bias: list[float] | None = None) -> None:
    with torch.no_grad():
        method.backbone[0].weight.copy_(torch.tensor(weight))
        if bias is not None:
            method.backbone[0].bias.copy_(torch.tensor(bias))


def test_golden_scaling() -> None:
    """Along the first input by 3: W + W e1 (3 - 1) e1^T; a second task along the second input adds to it."""
    method = made()
    set_weight(method, [[1.0, 2.0], [4.0, 5.0]])
    scaled_by(method, ([[1.0], [0.0]], [[3.0]]))
    assert method.scaled_parameters(1)["0.weight"].tolist() == [[3.0, 2.0], [12.0, 5.0]]
    scaled_by(method, ([[1.0], [0.0]], [[3.0]]), ([[0.0], [1.0]], [[0.0]]))
    assert method.scaled_parameters(2)["0.weight"].tolist() == [[3.0, 0.0], [12.0, 0.0]]


def test_golden_mixing_of_two_directions() -> None:
    """B = I: the weights become W Q."""
    method = made()
    set_weight(method, [[1.0, 2.0], [4.0, 5.0]])
    scaled_by(method, ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]))
    assert method.scaled_parameters(1)["0.weight"].tolist() == [[2.0, 1.0], [5.0, 4.0]]


def test_a_bias_is_scaled_as_the_weight_of_an_input_that_is_always_1() -> None:
    method = made(inputs=1, bias=True)
    set_weight(method, [[1.0], [2.0]], [3.0, 4.0])
    scaled_by(method, ([[0.0], [1.0]], [[2.0]]))
    found = method.scaled_parameters(1)
    assert found["0.weight"].tolist() == [[1.0], [2.0]]
    assert found["0.bias"].tolist() == [6.0, 8.0]


@pytest.mark.parametrize(("relation", "related"), [(0.5, [0]), (0.7, [])])
def test_a_task_is_related_where_enough_of_the_gradient_lies_along_its_inputs(
    relation: float, related: list[int]
) -> None:
    """All inputs along (0.6, 0.8): 0.6 of the gradient's length is along the first input."""
    method = made(relation=relation)
    method.end_task(task_of([1.0, 0.0], [2.0, 0.0]))
    method.begin_task(task_of([0.6, 0.8], [3.0, 4.0], index=1))
    assert [old for _, old in method.regions] == related
    assert [scale.tolist() for scale in method.scales] == [[[1.0]] for _ in related]


@pytest.mark.parametrize(("regions", "related"), [(1, [2]), (2, [2, 0]), (3, [2, 0])])
def test_the_most_related_tasks_count(regions: int, related: list[int]) -> None:
    method = made(regions=regions)
    bases = ([[0.6], [0.8]], [[0.0], [1.0]], [[1.0], [0.0]])
    method.bases, method.learned = [{"0": torch.tensor(basis)} for basis in bases], [[], [], []]
    method.begin_task(task_of([1.0, 0.0], [3.0, 0.0], index=3))
    assert [old for _, old in method.regions] == related


def moments(energies: list[float]) -> Tensor:
    """Along the axes, with mean 1."""
    values = torch.tensor(energies, dtype=torch.float64)
    return torch.diag(values / values.mean())[None]


@pytest.mark.parametrize(
    ("threshold", "own", "joins"), [(0.7, [1], [1]), (0.85, [1, 2], [1, 2]), (0.95, [0, 1, 2], [1, 2])]
)
def test_old_and_new_directions_are_ranked_together(threshold: float, own: list[int], joins: list[int]) -> None:
    """Energies 1 (known), 8 and 1.5 (new): shares 0.10, 0.76 and 0.14. GPM counts all that is known first."""
    known = torch.diag(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))[None]
    old, new = (found[0][:, found[0].any(0)] for found in task_directions(known, moments([1.0, 8.0, 1.5]), threshold))
    assert sorted(torch.cat([old, new], 1).abs().argmax(0).tolist()) == own
    assert sorted(new.abs().argmax(0).tolist()) == joins
    both = torch.cat([old, new], 1)
    torch.testing.assert_close(both.T @ both, torch.eye(len(own), dtype=torch.float64))
    by_gpm = new_directions(known, moments([1.0, 8.0, 1.5]), threshold)[0][0].abs().sum(0).count_nonzero()
    assert int(by_gpm) == {0.7: 1, 0.85: 1, 0.95: 2}[threshold]


def test_new_directions_of_a_task_join_those_of_the_mask() -> None:
    """The largest of them, too."""
    method = made(inputs=3, threshold=0.9, rise=0.0)
    method.end_task(task_of([1.0, 0.0, 0.0], [2.0, 0.0, 0.0]))
    method.end_task(task_of([0.0, 3.0, 0.0], [0.0, 0.0, 2.0], index=1))
    torch.testing.assert_close(method.mask.used["0"], torch.eye(3, dtype=torch.float64)[None])
    assert [bases["0"].shape[1] for bases in method.bases] == [1, 2]


def trained(method: TRGP, task: Task, steps: int = 20) -> Tensor:
    """The change of the layer's weight."""
    method.begin_task(task)
    before = method.backbone[0].weight.detach().clone()
    optimizer = method.make_optimizer(0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        step = Step(task, task.train.x, task.train.y)
        method.loss(step).backward()
        method.after_backward(step)
        optimizer.step()
    return method.backbone[0].weight.detach() - before


def test_weights_move_in_the_free_directions_alone_and_scales_move() -> None:
    method = made(inputs=3)
    method.end_task(task_of([1.0, 0.0, 0.0], [2.0, 0.0, 0.0]))
    change = trained(method, task_of([2.0, 1.0, 0.0], [-2.0, 0.0, 1.0], index=1))
    assert change[:, 0].abs().max() <= 1e-6
    assert change[:, 1:].abs().max() > 1e-2
    assert [scale.item() != 1.0 for scale in method.scales] == [True]


def test_an_old_task_keeps_its_own_scaling() -> None:
    """While a third task is learned; in directions that no task uses, nothing shows."""
    method = made(inputs=3)
    tasks = [
        task_of([1.0, 0.0, 0.0], [2.0, 0.0, 0.0]),
        task_of([2.0, 1.0, 0.0], [-2.0, 1.0, 0.0], index=1),
        task_of([1.0, 2.0, 1.0], [-2.0, 0.0, 2.0], index=2),
    ]
    answers = {}
    for task in tasks:
        trained(method, task)
        method.end_task(task)
        answers[task.id] = method(task.train.x, task.id).detach()
    assert method.learned[1], "the second task scales the first one's part"
    for task in tasks:
        torch.testing.assert_close(method(task.train.x, task.id), answers[task.id], rtol=1e-4, atol=1e-5)


def test_inputs_are_measured_with_the_tasks_own_scaling() -> None:
    """The second layer meets what the scaled first one gives; afterwards the weights are as before."""
    torch.manual_seed(0)
    scenario = toy_scenario([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)], [nn.Linear(2, 2)] * 2)
    method = TRGP(scenario, TRGP.Settings())
    with torch.no_grad():
        method.backbone[0].weight.copy_(torch.eye(2))
    method.end_task(task_of([1.0, 0.0], [2.0, 0.0]))
    method.regions, method.scales = [Region("0", 0)], nn.ParameterList([torch.zeros(1, 1)])
    method.end_task(task_of([1.0, 1.0], [2.0, 2.0], index=1))  # the first input is scaled to 0
    torch.testing.assert_close(method.bases[1]["1"].abs(), torch.tensor([[0.0], [1.0]]))
    assert torch.equal(method.backbone[0].weight, torch.eye(2))


def test_scales_that_do_not_move_give_gpm_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_task = TRGP.begin_task

    def without_moving(self: TRGP, task: Task) -> None:
        begin_task(self, task)
        self.scales.requires_grad_(False)
        met.append(len(self.regions))

    met: list[int] = []
    assert not same_network(learned("trgp", tasks=2), learned("gpm", tasks=2))
    monkeypatch.setattr(TRGP, "begin_task", without_moving)
    assert same_network(learned("trgp", tasks=2), learned("gpm", tasks=2))
    assert met[1] > 0, "some layer of the second task is related to the first"


def test_threshold_0_and_the_first_task_are_ncl_to_the_bit() -> None:
    assert same_network(learned("trgp", tasks=3, threshold=0.0), learned("ncl", tasks=3))
    assert same_network(learned("trgp", tasks=1), learned("ncl", tasks=1))


def test_what_a_task_scaled_is_in_the_state() -> None:
    method, fresh = learned("trgp", tasks=2), built("trgp", tasks=2)[0]
    fresh.load_state_dict(method.state_dict())
    x = torch.randn(3, *method.scenario.input_shape)
    for task in range(2):
        assert torch.equal(fresh.eval()(x, task), method.eval()(x, task))
    assert fresh.learned[1]
