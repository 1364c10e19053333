"""ER: the golden loss, each sample on its own head, the reservoir, and NCL with an empty one."""

import pytest
import torch

from softmask.methods.er import ER
from tests.learning.toys import random_scenario, random_task
from tests.methods.comparing import learned, same_network
from tests.methods.replaying import one_weight, remember, trainable_heads


def test_golden_loss() -> None:
    """The new image costs ln 2, the old one on its own head ln(1 + exp(-1)) = 0.313262, not ln 2 as on the new one."""
    method, step = one_weight(ER, budget=4)
    remember(method, (1.0, 0))
    method.begin_task(step.task)
    torch.testing.assert_close(method.loss(step), torch.tensor((0.693147 + 0.313262) / 2), rtol=0, atol=1e-6)


def test_old_heads_learn_with_their_samples_and_later_ones_wait() -> None:
    method, step = one_weight(ER, budget=4)
    remember(method, (1.0, 0))
    method.begin_task(step.task)
    method.loss(step).backward()
    assert method.heads[0].weight.grad.abs().sum() > 0
    assert trainable_heads(method) == [True, True, False]


def test_without_samples_old_heads_stay() -> None:
    method, step = one_weight(ER, budget=4)
    method.begin_task(step.task)
    assert trainable_heads(method) == [False, True, False]
    torch.testing.assert_close(method.loss(step), torch.tensor(0.693147))


def test_the_buffer_is_a_reservoir_of_training_images_over_all_tasks() -> None:
    method = ER(random_scenario(tasks=3), ER.Settings(budget=5))
    tasks = [random_task(index) for index in range(3)]
    for task in tasks:
        task.train.images = task.train.images.view(-1, 1, 1, 3)
        method.end_task(task)
    assert len(method.memory) == 5
    assert int(method.memory.seen) == 36
    for image, index in zip(method.memory.images, method.memory.tasks.tolist(), strict=True):
        assert (tasks[index].train.images == image).flatten(1).all(1).any()


def test_every_step_draws_anew() -> None:
    method, step = one_weight(ER, budget=100, replay_batch=5)
    remember(method, *((float(pixel), 0) for pixel in range(100)))
    drawn = [method.drawn(step).images.flatten().tolist() for _ in range(3)]
    assert all(len(set(each)) == 5 for each in drawn)
    assert drawn[0] != drawn[1] != drawn[2]


def test_an_empty_buffer_and_the_first_task_are_ncl_to_the_bit() -> None:
    plain = learned("ncl", tasks=3)
    assert same_network(learned("er", tasks=3, budget=0), plain)
    assert not same_network(learned("er", tasks=3, budget=20), plain)
    assert same_network(learned("er", tasks=1), learned("ncl", tasks=1))


@pytest.mark.parametrize(("budget", "kept"), [(0, ""), (200, "200 images")])
def test_tables_tell_its_buffer(budget: int, kept: str) -> None:
    assert ER.uses(ER.Settings(budget=budget)).old_data == kept
