"""The largest entries: exactly so many, the same as a full sort finds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softmask.learning.parts import top_share
from softmask.learning.parts.top_share import largest


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
    values = torch.rand(top_share.SMALL * 2, generator=torch.Generator().manual_seed(2))
    values[:: top_share.STRIDE] += 10  # all that the sample sees is larger than all the rest
    for count in (50, top_share.SMALL):
        assert torch.equal(largest(values, count), by_sorting(values, count))


def test_keeps_the_shape() -> None:
    assert largest(torch.rand(4, 3, 2, 2), 5).shape == (4, 3, 2, 2)


@pytest.mark.parametrize("count", [0, 9])
def test_refuses_what_cannot_be_kept(count: int) -> None:
    with pytest.raises(ValueError, match="of 8 entries"):
        largest(torch.rand(8), count)
