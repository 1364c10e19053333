"""GEM: the golden projection, one constraint for each past task, and NCL with an empty memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softmask.learning.method import Step
from softmask.methods.gem import GEM, project
from tests.learning.toys import random_scenario, random_task
from tests.methods.comparing import learned, same_network
from tests.methods.test_a_gem import given

PAST = torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
"""Gradients of two past tasks: two weights of the backbone, and one of an old head."""


@pytest.mark.parametrize(
    ("margin", "backbone", "old_head"),
    [(0.0, [1.0, 0.0], [0.0]), (0.5, [1.5, 0.0], [0.5])],
)
def test_golden_projection(margin: float, backbone: list[float], old_head: list[float]) -> None:
    """v = (2, 0) helps the second task, too; with v >= 0.5 it is (1.5, 0.5). A-GEM would take the mean of both rows."""
    parameters = given([[1.0, -2.0], None])
    project(parameters, PAST, margin)
    torch.testing.assert_close(parameters[0].grad, torch.tensor(backbone))
    torch.testing.assert_close(parameters[1].grad, torch.tensor(old_head))


def test_a_gradient_that_does_no_harm_stays_to_the_bit() -> None:
    """Whatever the margin."""
    parameters = given([[0.3, 0.1], None])
    project(parameters, PAST, 0.5)
    assert parameters[0].grad.tolist() == given([[0.3, 0.1]])[0].grad.tolist()
    assert parameters[1].grad is None


def test_afterwards_no_task_is_harmed_where_the_mean_of_all_would_hide_it() -> None:
    torch.manual_seed(0)
    for _ in range(20):
        parameters, references = given([torch.randn(5).tolist(), torch.randn(3).tolist()]), torch.randn(4, 8)
        project(parameters, references, 0.0)
        moved = torch.cat([parameter.grad for parameter in parameters])
        assert (references @ moved >= -1e-5).all()


def with_memory(tasks: int = 3, done: int = 2, **settings: float) -> GEM:
    method = GEM(random_scenario(tasks), GEM.Settings(**settings))
    method.backbone.insert(0, nn.Flatten())
    for index in range(done):
        method.end_task(shaped(index))
    return method


def shaped(index: int):
    task = random_task(index)
    task.train.images = task.train.images.view(-1, 1, 1, 3)
    return task


def test_one_reference_for_each_past_task_on_its_own_head_without_dropout() -> None:
    method = with_memory()
    method.backbone.append(nn.Dropout(0.5))
    method.train()
    task = shaped(2)
    method.begin_task(task)
    parameters = list(method.parameters())
    references = method.reference_gradients(parameters)
    assert len(references) == 2
    method.eval()
    for index, found in enumerate(references):
        own = method.memory.tasks == index
        own[len(method.memory) :] = False
        loss = F.cross_entropy(method(method.memory.images[own], index), method.memory.labels[own])
        used = [*method.backbone.parameters(), *method.heads[index].parameters()]
        expected = torch.cat([each.flatten() for each in torch.autograd.grad(loss, used)])
        torch.testing.assert_close(found[found != 0], expected[expected != 0])


def test_old_heads_move_and_later_ones_do_not() -> None:
    method, task = with_memory(), shaped(2)
    method.begin_task(task)
    x, y = method.memory.images[:12], method.memory.labels[:12]
    F.cross_entropy(method(x, 0), 1 - y).backward()  # opposed to what the memory asks for
    method.heads[0].zero_grad(set_to_none=True)
    method.after_backward(Step(task, x, y))
    assert method.heads[0].weight.grad.abs().sum() > 0


def test_an_empty_memory_is_ncl_to_the_bit() -> None:
    plain = learned("ncl", tasks=3)
    assert same_network(learned("gem", tasks=3, per_class=0), plain)
    kept = learned("gem", tasks=3)
    assert not same_network(kept, plain)
    assert not same_network(kept, learned("gem", tasks=3, margin=0.0))
