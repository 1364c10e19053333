"""A-GEM: the golden projection, what the memory holds, and NCL with an empty one."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softmask.learning.method import Step
from softmask.learning.replay import ReplayBuffer
from softmask.learning.seeds import Seeds
from softmask.learning.task import Batches, Normalisation
from softmask.methods.a_gem import AGEM, project
from tests.learning.toys import random_scenario, random_task, toy_scenario
from tests.methods.comparing import learned, same_network


def given(gradients: list[list[float] | None]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(len(g) if g else 1)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else torch.tensor(gradient)
    return parameters


def test_golden_projection_moves_the_old_head() -> None:
    """Trunk of two, present head, old head: projected tensor by tensor, the trunk alone would change."""
    parameters = given([[1.0, -2.0], [3.0], None])
    project(parameters, [torch.tensor([1.0, 1.0]), None, torch.tensor([2.0])])
    trunk, present, old = (parameter.grad for parameter in parameters)
    torch.testing.assert_close(trunk, torch.tensor([1.166667, -1.833333]))
    assert present.tolist() == [3.0]
    torch.testing.assert_close(old, torch.tensor([0.333333]))


def test_a_gradient_that_does_no_harm_stays_to_the_bit() -> None:
    parameters = given([[1.0, 2.0], None])
    project(parameters, [torch.tensor([0.3, -0.1]), torch.tensor([2.0])])
    assert parameters[0].grad.tolist() == [1.0, 2.0]
    assert parameters[1].grad is None


def test_afterwards_the_memory_is_not_harmed() -> None:
    torch.manual_seed(0)
    for _ in range(20):
        parameters = given([torch.randn(5).tolist(), torch.randn(3).tolist()])
        reference = [torch.randn(5), torch.randn(3)]
        project(parameters, reference)
        new, old = torch.cat([p.grad for p in parameters]), torch.cat(reference)
        assert new @ old >= -1e-6 * new.norm() * old.norm()


def with_memory(tasks: int = 3, done: int = 1, **settings: int) -> AGEM:
    method = AGEM(random_scenario(tasks), AGEM.Settings(**settings))
    for index in range(done):
        method.end_task(shaped(index))
    return method


def shaped(index: int, count: int = 12):
    """A task whose images have the shape that the scenario promises."""
    task = random_task(index, count=count)
    task.train.images = task.train.images.view(-1, 1, 1, 3)
    return task


def flat(method: AGEM) -> AGEM:
    """With a backbone that takes images."""
    method.backbone.insert(0, nn.Flatten())
    return method


def test_memory_holds_training_samples_of_each_class() -> None:
    method = with_memory(per_class=4)
    task = shaped(0)
    assert len(method.memory) == 8
    assert method.memory.labels[:8].bincount().tolist() == [4, 4]
    for image, label in zip(method.memory.images[:8], method.memory.labels[:8], strict=True):
        found = (task.train.images == image).flatten(1).all(1).nonzero().item()
        assert task.train.labels[found] == label
    assert len({tuple(image.flatten().tolist()) for image in method.memory.images[:8]}) == 8


def test_samples_are_normalised_and_drawn_from_the_whole_class_without_a_trace() -> None:
    pixels = torch.arange(36, dtype=torch.uint8).view(12, 1, 1, 3)
    train = Batches(pixels, torch.arange(12) % 2, normalise=Normalisation((0.5,), (0.25,)))
    method = AGEM(random_scenario(tasks=1), AGEM.Settings(per_class=3))
    state = torch.get_rng_state()
    method.end_task(replace(random_task(0), train=train))
    assert torch.equal(torch.get_rng_state(), state)
    found = [(train.x == image).flatten(1).all(1).nonzero().item() for image in method.memory.images]
    assert sorted(found) != list(range(6)), "not the first of each class"


def test_a_small_class_gives_all_it_has_and_leaves_no_gap() -> None:
    method = with_memory(done=2, per_class=13)
    assert len(method.memory) == 24  # 2 tasks x 2 classes x 6
    assert method.memory.tasks[:24].tolist() == [0] * 12 + [1] * 12
    assert len(method.memory.images) == 13 * 6
    drawn = method.memory.draw(256, torch.Generator().manual_seed(0))
    assert len(drawn[0]) == 24
    assert drawn[0].flatten(1).abs().sum(1).min() > 0


def test_draws_are_without_replacement_and_from_past_tasks_only() -> None:
    method = with_memory(done=2)
    images, _, tasks = method.memory.draw(10, torch.Generator().manual_seed(1))
    assert len({tuple(image.flatten().tolist()) for image in images}) == 10
    assert set(tasks.tolist()) <= {0, 1}
    other = method.memory.draw(10, torch.Generator().manual_seed(2))[0]
    assert not torch.equal(images, other)


def test_a_draw_is_uniform_over_samples_not_over_tasks() -> None:
    """Ten samples of the first task, two of the second: a draw by task would take as many of each."""
    method = with_memory(done=0, per_class=5)
    method.memory.add(shaped(0))
    method.memory.add(shaped(1, count=2))
    assert method.memory.tasks[: len(method.memory)].bincount().tolist() == [10, 2]
    drawn = [method.memory.draw(4, torch.Generator().manual_seed(seed))[2] for seed in range(500)]
    assert torch.cat(drawn).double().mean().item() == pytest.approx(2 / 12, abs=0.03)


def test_memory_and_reference_batch_are_the_authors() -> None:
    """13 of each class; 256 of all are drawn for a step."""
    assert AGEM.Settings() == AGEM.Settings(per_class=13, reference_batch=256)
    method = AGEM(random_scenario(tasks=12))
    for index in range(11):
        method.end_task(shaped(index, count=40))
    assert len(method.memory) == 11 * 2 * 13
    assert method.memory.tasks[: 11 * 26].bincount().tolist() == [26] * 11
    seen = []
    method.memory.draw = lambda size, generator: seen.append(size) or ReplayBuffer.draw(method.memory, size, generator)
    flat(method).reference_gradients(list(method.parameters()), task=11)
    assert seen == [256]


def test_reference_is_the_mean_over_samples_on_their_own_heads() -> None:
    method = flat(with_memory(done=2))
    reference = method.reference_gradients(list(method.parameters()), task=2)
    x, y, tasks = (part[:24] for part in (method.memory.images, method.memory.labels, method.memory.tasks))
    losses = [F.cross_entropy(method(x[i : i + 1], int(tasks[i])), y[i : i + 1]) for i in range(24)]
    expected = torch.autograd.grad(torch.stack(losses).mean(), list(method.parameters()), allow_unused=True)
    for ours, wanted in zip(reference, expected, strict=True):
        assert (ours is None) == (wanted is None)  # None for the present head
        if wanted is not None:
            torch.testing.assert_close(ours, wanted)


def test_dropout_is_off_in_the_reference_pass_and_its_draws_disturb_nothing() -> None:
    scenario = toy_scenario(
        [nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.9)], [nn.Linear(4, 2), nn.Linear(4, 2)]
    )
    method = AGEM(scenario)
    method.end_task(shaped(0))
    method.train()
    state = torch.get_rng_state()
    trunk = method.backbone[1].weight
    first, second = (method.reference_gradients([trunk], task=1)[0] for _ in range(2))
    torch.testing.assert_close(first, second)  # the memory is smaller than a reference batch: all of it, twice
    assert torch.equal(torch.get_rng_state(), state)
    assert all(part.training for part in method.modules())


def test_old_heads_move_with_the_optimizer() -> None:
    method = flat(with_memory())
    task = shaped(1)
    method.begin_task(task)
    before = method.heads[0].weight.detach().clone()
    optimizer = method.make_optimizer(0.1)
    images, labels = method.memory.images[:12], method.memory.labels[:12]
    # The labels of the past, turned round: on its own samples the gradient must be opposed.
    F.cross_entropy(method(images, 0), 1 - labels).backward()
    method.heads[0].zero_grad(set_to_none=True)
    method.after_backward(Step(task, images, labels))
    optimizer.step()
    assert not torch.equal(method.heads[0].weight, before)
    assert torch.equal(method.heads[2].weight, with_memory().heads[2].weight)


def test_an_empty_memory_is_ncl_to_the_bit_over_two_tasks() -> None:
    plain = learned("ncl")
    assert same_network(learned("a-gem", per_class=0), plain)
    assert not same_network(learned("a-gem"), plain)


def test_first_task_is_ncl_to_the_bit() -> None:
    assert same_network(learned("a-gem", tasks=1), learned("ncl", tasks=1))


@pytest.mark.parametrize("size", [3, 256])
def test_a_reference_batch_is_no_larger_than_asked(size: int) -> None:
    method = with_memory(done=2)
    assert len(method.memory.draw(size, torch.Generator())[0]) == min(size, 24)


def test_every_step_draws_anew() -> None:
    method = flat(with_memory(done=2, reference_batch=5))
    seen = []
    draw = method.memory.draw
    method.memory.draw = lambda size, generator: seen.append(draw(size, generator)) or seen[-1]
    for _ in range(3):
        method.reference_gradients(list(method.parameters()), task=2)
    assert not torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(seen[1][0], seen[2][0])


def test_a_gradient_at_a_right_angle_stays() -> None:
    parameters = given([[1.0, 0.0], None])
    project(parameters, [torch.tensor([0.0, 1.0]), torch.tensor([2.0])])
    assert parameters[0].grad.tolist() == [1.0, 0.0]
    assert parameters[1].grad is None
    project(parameters, [torch.zeros(2), None])
    assert parameters[0].grad.tolist() == [1.0, 0.0]


def test_draws_from_the_memory_follow_from_the_seed_of_the_run() -> None:
    """Else runs with several seeds would all go by the same reference batches."""
    drawn = []
    for seed in (1, 1, 2):
        method = AGEM(replace(random_scenario(tasks=2), seeds=Seeds(batches=seed)))
        drawn.append(torch.rand(3, generator=method.draws.generator(task=1)))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_every_step_is_projected_wherever_it_stands_in_an_epoch() -> None:
    method, task = flat(with_memory()), shaped(1)
    method.begin_task(task)
    images, labels = method.memory.images[:12], method.memory.labels[:12]
    for progress in (0.0, 0.5, 1.0):
        method.zero_grad(set_to_none=True)
        F.cross_entropy(method(images, 0), 1 - labels).backward()  # opposed to what the memory asks for
        method.heads[0].zero_grad(set_to_none=True)
        method.after_backward(Step(task, images, labels, progress=progress))
        assert method.heads[0].weight.grad is not None


def test_the_reference_has_dropout_off_whatever_the_generator_does() -> None:
    """Against the loss in eval mode, on a network in which dropout changes nearly every gradient."""
    scenario = random_scenario(tasks=2)
    dropping = replace(scenario, layers=(*scenario.layers, nn.Dropout(0.5)))
    method = AGEM(dropping)
    method.end_task(shaped(0))
    method = flat(method).train()
    parameters = list(method.backbone.parameters())
    reference = method.reference_gradients(parameters, task=1)
    x, y = method.memory.images[: len(method.memory)], method.memory.labels[: len(method.memory)]
    method.eval()
    expected = torch.autograd.grad(F.cross_entropy(method.heads[0](method.backbone(x)), y), parameters)
    for ours, theirs in zip(reference, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_total_budget_holds_over_all_tasks() -> None:
    method = with_memory(done=3, budget=5)
    assert len(method.memory) == 5
    assert method.memory.images.shape[0] == 5
    assert "memory.seen" in method.state_dict()
    assert "memory.seen" not in with_memory(done=1).state_dict(), "the state of earlier runs stays as it was"
