"""Masked weights: gradients straight through, selection without products, masks as bits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softmask.learning.masked_weights import (
    SMALL,
    STRIDE,
    SavedMasks,
    largest,
    masked,
    pack,
    seen_through,
    uniform_scores,
    unpack,
    weights_of,
    without_biases,
)
from softmask.learning.networks import alexnet


def test_gradients_of_a_layer_of_two_by_two() -> None:
    """Golden: weight where chosen; score as gradient x weight x sign(score), chosen or not."""
    weight = torch.tensor([[1.0, -2.0], [3.0, 4.0]], requires_grad=True)
    scores = torch.tensor([[0.5, -0.6], [0.1, -0.2]], requires_grad=True)
    mask = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    x = torch.tensor([[1.0, 10.0]])
    out = x @ seen_through(weight, scores, mask).T
    assert out.tolist() == [[-19.0, 0.0]]
    (out * torch.tensor([[1.0, 7.0]])).sum().backward()
    effective = torch.tensor([[1.0, 10.0], [7.0, 70.0]])  # gradient of the effective weight
    assert torch.equal(weight.grad, effective * mask)
    assert torch.equal(scores.grad, effective * weight.detach() * scores.detach().sign())


def test_a_weight_that_is_not_trained_gets_no_gradient() -> None:
    weight, scores = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
    seen_through(weight, scores, torch.ones(2, 2)).sum().backward()
    assert weight.grad is None
    assert scores.grad is not None


def test_what_is_masked_may_be_infinite_or_no_number() -> None:
    values = torch.tensor([1.0, math.inf, math.nan])
    assert masked(values, torch.tensor([1.0, 0.0, 0.0])).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("shape", [(1,), (8,), (3, 3), (5, 7, 3, 3), (64, 100)])
def test_bits_give_the_mask_back(shape: tuple[int, ...]) -> None:
    mask = (torch.rand(shape) > 0.5).float()
    packed = pack(mask)
    assert packed.dtype == torch.uint8
    assert len(packed) == math.ceil(mask.numel() / 8)
    assert torch.equal(unpack(packed, mask.shape), mask)


def test_saved_masks_and_their_union() -> None:
    saved = SavedMasks({"a": torch.Size((3, 3)), "b": torch.Size((5,))}, tasks=3)
    assert not saved.holds(1)
    first, second = ({"a": (torch.rand(3, 3) > 0.5).float(), "b": (torch.rand(5) > 0.5).float()} for _ in range(2))
    saved.save(0, first)
    saved.save(1, second)
    assert saved.holds(1)
    assert not saved.holds(2)
    for name in ("a", "b"):
        assert torch.equal(saved.load(0)[name], first[name])
        assert torch.equal(saved.union()[name], torch.maximum(first[name], second[name]))
    rebuilt = SavedMasks(saved.shapes, tasks=3)
    rebuilt.load_state_dict(saved.state_dict())
    assert torch.equal(rebuilt.load(1)["a"], second["a"])


def test_without_biases_only_weights_are_left() -> None:
    backbone = without_biases(alexnet((3, 32, 32), width=1 / 16))
    assert len(list(backbone.parameters())) == len(weights_of(backbone)) == 5
    assert backbone(torch.rand(2, 3, 32, 32)).shape == (2, 128)


def test_scores_are_drawn_within_the_bound_of_their_layer() -> None:
    weight = torch.empty(64, 16, 3, 3)
    scores = uniform_scores(weight)
    assert scores.requires_grad
    assert scores.abs().max() <= 1 / 12
    assert scores.abs().max() > 0.9 / 12


def by_sorting(values: torch.Tensor, count: int) -> torch.Tensor:
    """A stable sort puts the earlier of equal entries first: they are dropped first."""
    mask = torch.zeros(values.numel())
    mask[values.flatten().sort(stable=True).indices[values.numel() - count :]] = 1
    return mask.view_as(values)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.95, 0.999, 1.0])
@pytest.mark.parametrize("entries", [7, 3072, 200_000])
def test_equals_a_full_sort(entries: int, share: float) -> None:
    values = torch.rand(entries, generator=torch.Generator().manual_seed(entries))
    count = max(1, round(share * entries))
    mask = largest(values, count)
    assert torch.equal(mask, by_sorting(values, count))
    assert mask.sum() == count


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.data())
def test_of_equal_entries_the_later_stay(numbers: list[int], data: st.DataObject) -> None:
    values = torch.tensor(numbers, dtype=torch.float32)
    count = data.draw(st.integers(1, len(numbers)))
    assert torch.equal(largest(values, count), by_sorting(values, count))


def test_many_equal_entries_in_a_large_tensor() -> None:
    values = torch.randint(0, 3, (100_000,), generator=torch.Generator().manual_seed(1)).float()
    for count in (10, 33_000, 99_990):
        assert torch.equal(largest(values, count), by_sorting(values, count))


def test_a_sample_that_misleads_costs_nothing_but_time() -> None:
    values = torch.rand(SMALL * 2, generator=torch.Generator().manual_seed(2))
    values[::STRIDE] += 10  # all that the sample sees is larger than all the rest
    for count in (50, SMALL):
        assert torch.equal(largest(values, count), by_sorting(values, count))


def test_keeps_the_shape() -> None:
    assert largest(torch.rand(4, 3, 2, 2), 5).shape == (4, 3, 2, 2)


@pytest.mark.parametrize("count", [0, 9])
def test_refuses_what_cannot_be_kept(count: int) -> None:
    with pytest.raises(ValueError, match="of 8 entries"):
        largest(torch.rand(8), count)
