"""Dropping entries by 16 random bits each, in every type."""

from __future__ import annotations

import pytest
import torch

from softmask.kernels.random_drop import LEVELS, drop, kept_above, words_like

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dropped", [1, 20_000, 32_768, LEVELS - 1])
def test_the_draws_alone_decide_whatever_the_type(dtype: torch.dtype, dropped: int) -> None:
    x = torch.randn(20, 6, 10, 10).contiguous(memory_format=torch.channels_last).to(dtype)
    torch.manual_seed(7)
    kept = words_like(x) > kept_above(dropped)
    torch.manual_seed(7)
    y = drop(x, dropped)
    assert y.dtype == dtype
    assert torch.equal(y, torch.where(kept, x, torch.zeros_like(x)))


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_dropped_is_the_lowest_draws_to_the_last_bit(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_draw = torch.arange(LEVELS).sub(2**15).to(torch.int16)
    monkeypatch.setattr("softmask.kernels.random_drop.words_like", lambda x: every_draw.clone())
    for dropped in (1, 2, 255, 32_767, 32_768, 32_769, LEVELS - 1):
        y = drop(torch.ones(LEVELS, dtype=dtype), dropped)
        assert int((y == 0).sum()) == dropped
        assert bool((y[:dropped] == 0).all())


def test_numbers_that_are_flushed_to_zero_change_nothing() -> None:
    x = torch.ones(1000, dtype=torch.bfloat16)
    torch.manual_seed(7)
    y = drop(x, 30_000)
    try:
        torch.set_flush_denormal(True)
        torch.manual_seed(7)
        assert torch.equal(drop(x, 30_000), y)
    finally:
        torch.set_flush_denormal(False)
