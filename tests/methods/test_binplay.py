"""BinPlay: codes that follow from the index, what the generator repeats, and NCL without samples."""

import pytest
import torch

from softmask.learning.method import Step
from softmask.methods.binplay import BinPlay
from tests.learning.toys import random_scenario, toy_task
from tests.methods.comparing import built, learned, same_network
from tests.methods.isolation import random_task, small_scenario


def made(tasks: int = 3, **settings: float) -> BinPlay:
    return BinPlay(random_scenario(tasks=tasks), BinPlay.Settings(**{"samples": 6, "hidden": 32, **settings}))


def on_images(**settings: float) -> BinPlay:
    return BinPlay(small_scenario(drop=0.0), BinPlay.Settings(**{"samples": 6, **settings}))


def test_codes_are_signs_that_follow_from_task_and_index_alone() -> None:
    method, other = made(), made()
    for each, counts in ((method, [3, 3]), (other, [3, 2])):
        each.counts[0], each.counts[1] = torch.tensor(counts), torch.tensor([1, 1])
    codes = method.codes(0)
    assert codes.shape == (6, 64)
    assert set(codes.flatten().tolist()) == {-1.0, 1.0}
    assert torch.equal(other.codes(0), codes[:5]), "how many there are does not matter"
    assert len(codes.unique(dim=0)) == 6
    assert not torch.equal(method.codes(1), codes[:2])
    assert method.codes(2).shape == (0, 64)


def test_labels_follow_from_the_order_of_the_classes() -> None:
    method = made()
    method.counts[1] = torch.tensor([2, 3])
    assert method.labels(1).tolist() == [0, 0, 1, 1, 1]


def test_samples_are_drawn_in_equal_shares_in_the_order_of_their_classes() -> None:
    """Images say their class; of the second there is only one."""
    labels = torch.tensor([0, 1, 0, 0, 0, 0])
    task = toy_task(labels[:, None].float().repeat(1, 3) + 1, labels)
    method = made()
    images = method.new_samples(task)
    assert images[:, 0].tolist() == [1, 1, 1, 2]
    assert method.counts[0].tolist() == [3, 1]


def test_the_generator_repeats_the_samples_and_keeps_those_of_earlier_tasks() -> None:
    method = on_images(generator_epochs=200)
    wanted = {}
    for index in (0, 1):
        task = random_task(index)
        method.begin_task(task)
        new_samples = method.new_samples

        def noted(task: object, new_samples=new_samples, index: int = index) -> torch.Tensor:
            wanted[index] = new_samples(task)
            return wanted[index]

        method.new_samples = noted  # type: ignore[method-assign]
        facts = method.end_task(task)
        method.new_samples = new_samples  # type: ignore[method-assign]
        assert facts is not None
        assert facts["generator_error"] < 0.1
    for index, images in wanted.items():
        drawn = method.images(method.codes(index)).view_as(images)
        assert (drawn - images).square().mean() < 0.1 * images.var(), f"task {index}"


def test_replay_is_added_to_the_loss_and_moves_old_heads() -> None:
    method, task = on_images(strength=2.0), random_task(1)
    method.begin_task(random_task(0))
    method.end_task(random_task(0))
    method.begin_task(task)
    step = Step(task, *next(iter(task.train)))
    method.eval()
    loss = method.loss(step)
    loss.backward()
    assert method.heads[0].weight.grad is not None
    assert method.heads[2].weight.grad is None
    plain = torch.nn.functional.cross_entropy(method(step.x, 1), step.y)
    assert loss > plain
    assert method.draws.count == 1
    assert all(p.grad is None for p in method.generator.parameters())


@pytest.mark.parametrize("off", [{"samples": 0}, {"strength": 0.0}])
def test_without_samples_it_is_ncl_to_the_bit(off: dict[str, float]) -> None:
    changes = {f"settings.{name}": value for name, value in off.items()}
    assert same_network(learned("binplay", tasks=2, **changes), learned("ncl", tasks=2))
    assert BinPlay.uses(BinPlay.Settings(**off)).old_data == ""
    assert BinPlay.uses(BinPlay.Settings()).old_data


def test_the_first_task_is_ncl_and_the_state_does_not_grow() -> None:
    assert same_network(learned("binplay", tasks=1), learned("ncl", tasks=1))
    one, three = (built("binplay", tasks=tasks)[0].generator for tasks in (1, 3))
    assert sum(p.numel() for p in one.parameters()) == sum(p.numel() for p in three.parameters())
