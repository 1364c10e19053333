"""One tensor for each parameter: saved, restored, and in the parameters' order."""

import torch
from torch import nn

from softmask.learning.per_parameter import PerParameter
from softmask.learning.seeds import Draws


def test_zeros_of_the_parameters_shapes_in_their_order() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    kept = PerParameter(module)
    assert list(kept.by_name()) == [name for name, _ in module.named_parameters()]
    assert [tensor.shape for tensor in kept.tensors()] == [p.shape for p in module.parameters()]
    assert not any(tensor.any() for tensor in kept.tensors())
    kept.copy_(module.parameters())
    assert torch.equal(kept.by_name()["2.weight"], module[2].weight)
    kept.zero_()
    assert not any(tensor.any() for tensor in kept.tensors())


def test_stacked_has_a_row_for_each() -> None:
    kept = PerParameter(nn.Linear(2, 3), stacked=4)
    assert [tuple(tensor.shape) for tensor in kept.tensors()] == [(4, 3, 2), (4, 3)]


def test_it_is_state() -> None:
    module = nn.Linear(2, 3)
    one, other = PerParameter(module), PerParameter(module)
    one.copy_(module.parameters())
    other.load_state_dict(one.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(one.tensors(), other.tensors(), strict=True))
    assert not any(p.requires_grad for p in one.parameters())


def test_draws_follow_from_seed_task_and_count_and_go_on_after_a_restart() -> None:
    draws = Draws(1, "name")
    numbers = [torch.rand(1, generator=draws.generator(task)).item() for task in (0, 0, 1)]
    again = Draws(1, "name")
    assert torch.rand(1, generator=again.generator(0)).item() == numbers[0]
    again.load_state_dict(draws.state_dict())
    later = [torch.rand(1, generator=each.generator(1)).item() for each in (draws, again)]
    assert later[0] == later[1]
    assert len({*numbers, later[0]}) == 4
    assert torch.rand(1, generator=Draws(2, "name").generator(0)).item() != numbers[0]
