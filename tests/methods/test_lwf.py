"""LwF: the golden loss, dropout off on both sides, the teacher of the right task, and NCL at strength 0."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning.method import Step
from softmask.methods.lwf import LwF
from tests.learning.toys import Chain, random_scenario, random_task, toy_scenario, toy_task
from tests.methods.comparing import learned, same_network


def linear(*rows: list[float]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    return layer


def golden(old_heads: int, strength: float) -> tuple[LwF, Step]:
    """One weight of 1 as backbone, old heads that answer (feature, 0), and a new one without an opinion."""
    heads = [linear([1.0], [0.0]) for _ in range(old_heads)]
    scenario = toy_scenario([linear([1.0])], [*heads, linear([0.0], [0.0])])
    task = toy_task(torch.tensor([[2.0]]), torch.tensor([1]), index=old_heads)
    method = LwF(scenario, LwF.Settings(strength=strength))
    method.begin_task(task)
    return method, Step(task, *next(iter(task.train)))


@pytest.mark.parametrize(("old_heads", "strength"), [(1, 1.0), (1, 0.5), (3, 1.0)])
def test_golden_loss(old_heads: int, strength: float) -> None:
    """Feature 2 becomes 6. T = 2: (0.731059, 0.268941) was said, (0.952574, 0.047426) is: KL 0.273208, T^2 KL 1.09283.

    The new head's cross-entropy is ln 2.
    """
    method, step = golden(old_heads, strength)
    torch.testing.assert_close(method.loss(step), torch.tensor(0.693147), rtol=0, atol=1e-6)
    with torch.no_grad():
        method.backbone[0].weight.fill_(3.0)
    wanted = torch.tensor(0.693147 + strength * old_heads * 1.092831)
    torch.testing.assert_close(method.loss(step), wanted, rtol=0, atol=1e-5)


def test_validation_counts_the_distance_as_training_does() -> None:
    method, step = golden(old_heads=1, strength=1.0)
    with torch.no_grad():
        method.backbone[0].weight.fill_(3.0)
    trained = method.loss(step)
    with torch.inference_mode():
        validated, right = method.eval().validate(step)
    assert validated.item() == pytest.approx(trained.item())
    assert validated.item() > 1.5
    assert right == 0  # of two equal logits, the first


def test_the_gradient_pulls_back_and_leaves_old_heads_alone() -> None:
    method, step = golden(old_heads=1, strength=1.0)
    with torch.no_grad():
        method.backbone[0].weight.fill_(3.0)
    method.loss(step).backward()
    assert method.backbone[0].weight.grad > 0
    assert method.heads[0].weight.grad is None


def dropping(rate: float) -> LwF:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(3, 32), nn.ReLU(), nn.Dropout(rate)]
    return LwF(toy_scenario(layers, [nn.Linear(32, 2) for _ in range(3)])).train()


def distance(method: LwF, step: Step) -> Tensor:
    """The loss without its cross-entropy, which has the same draws of dropout."""
    torch.manual_seed(5)
    loss = method.loss(step)
    torch.manual_seed(5)
    return loss - F.cross_entropy(method(step.x, step.task.id), step.y)


@pytest.mark.parametrize("rate", [0.0, 0.9])
def test_dropout_is_off_on_both_sides(rate: float) -> None:
    """As the task begins, student and teacher are the same: with dropout in either, they would seem to differ."""
    method, task = dropping(rate), random_task(1)
    method.begin_task(task)
    assert abs(distance(method, Step(task, task.train.x, task.train.y)).item()) < 1e-6
    assert method.training
    assert all(part.training for part in method.backbone.modules())


def test_the_second_pass_is_made_only_where_there_is_dropout() -> None:
    passes = {}
    for rate in (0.0, 0.5):
        method, task = dropping(rate), random_task(1)
        method.begin_task(task)
        step = Step(task, task.train.x, task.train.y)
        method.loss(step)  # finds out whether modes differ
        seen: list[Tensor] = []
        hook = method.backbone.register_forward_hook(lambda module, x, y, seen=seen: seen.append(y))
        method.loss(step)
        hook.remove()
        passes[rate] = len(seen)
    assert passes == {0.0: 1, 0.5: 2}


def test_the_teacher_is_the_model_as_the_task_began() -> None:
    """It neither follows the weights within a task nor stays behind when the next one begins."""
    method, first, second = dropping(0.0), random_task(1), random_task(2)
    x, y = first.train.x, first.train.y
    method.begin_task(first)
    with torch.no_grad():
        method.backbone[0].weight.add_(0.5)
    assert distance(method, Step(first, x, y)) > 1e-3
    assert len(method.keep.heads) == 1, "heads of later tasks have said nothing yet"
    method.begin_task(second)
    assert abs(distance(method, Step(second, x, y)).item()) < 1e-6
    assert len(method.keep.heads) == 2


def test_the_teacher_is_not_part_of_the_state() -> None:
    """It follows from the state between tasks: memory does not grow."""
    method = LwF(random_scenario(tasks=2))
    before = set(method.state_dict())
    method.begin_task(random_task(1))
    assert set(method.state_dict()) == before
    assert isinstance(method.keep.remembered, Chain)


def test_strength_0_and_the_first_task_are_ncl_to_the_bit() -> None:
    rate: dict[str, Any] = {"settings.lr": None}
    plain = learned("ncl", tasks=3)
    assert same_network(learned("lwf", tasks=3, strength=0.0, **rate), plain)
    assert not same_network(learned("lwf", tasks=3, **rate), plain)
    assert same_network(learned("lwf", tasks=1, **rate), learned("ncl", tasks=1))
