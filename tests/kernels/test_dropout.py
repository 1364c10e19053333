"""Dropout by 16 random bits per entry, in every type, alone and fused with ReLU and max-pool."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from softmask.kernels.dropout import (
    LEVELS,
    drop,
    dropped_levels,
    kept_above,
    random_int16_like,
    relu_dropout,
    relu_dropout_pool,
)

LAYOUTS = [torch.contiguous_format, torch.channels_last]
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dropped", [1, 20_000, 32_768, LEVELS - 1])
def test_the_draws_alone_decide_whatever_the_type(dtype: torch.dtype, dropped: int) -> None:
    x = torch.randn(20, 6, 10, 10).contiguous(memory_format=torch.channels_last).to(dtype)
    torch.manual_seed(7)
    kept = random_int16_like(x) > kept_above(dropped)
    torch.manual_seed(7)
    y = drop(x, dropped)
    assert y.dtype == dtype
    assert torch.equal(y, torch.where(kept, x, torch.zeros_like(x)))


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_dropped_is_the_lowest_draws_to_the_last_bit(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_draw = torch.arange(LEVELS).sub(2**15).to(torch.int16)
    monkeypatch.setattr("softmask.kernels.dropout.random_int16_like", lambda x: every_draw.clone())
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


def ones_kept(rate: float, shape: tuple[int, ...] = (64, 16, 10, 10)) -> Tensor:
    return relu_dropout(torch.ones(shape), rate, training=True) > 0


@pytest.mark.parametrize("rate", [0.001, 0.31, 0.41, 0.9])
def test_rate_scale_and_mean(rate: float) -> None:
    torch.manual_seed(0)
    y = relu_dropout(torch.ones(400_000), rate, training=True)
    kept = y > 0
    deviation = (rate * (1 - rate) / y.numel()) ** 0.5
    assert abs(float((~kept).float().mean()) - rate) < 4 * deviation
    assert torch.equal(y[kept].unique(), torch.tensor([65536 / (65536 - round(rate * 65536))]))
    assert abs(float(y.mean()) - 1) < 4 * deviation / (1 - rate) + 1e-4


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8, 100])
def test_neighbours_are_independent(distance: int) -> None:
    torch.manual_seed(1)
    kept = ones_kept(0.4, (400_000,)).float()
    pair = torch.stack([kept[:-distance], kept[distance:]])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 4 / 400_000**0.5


def test_each_place_of_a_random_word_decides_alike() -> None:
    torch.manual_seed(2)
    by_place = ones_kept(0.5, (100_000, 4)).float().mean(0)  # four decisions to a word; all 64 bits must be random
    assert (by_place - 0.5).abs().max() < 4 * 0.5 / 100_000**0.5


def test_the_default_generator_rules() -> None:
    torch.manual_seed(3)
    first = ones_kept(0.3)
    with torch.random.fork_rng():
        ones_kept(0.3)
    after_fork = ones_kept(0.3)
    torch.manual_seed(3)
    assert torch.equal(first, ones_kept(0.3))
    assert torch.equal(after_fork, ones_kept(0.3))
    assert not torch.equal(first, after_fork)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("inf"), float("nan")])
def test_what_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="dropout rate"):
        dropped_levels(rate)


def plain(x: Tensor, mask: Tensor, pool: bool) -> Tensor:
    y = F.relu(x) * mask
    return F.max_pool2d(y, 2) if pool else y


def mask_of(x: Tensor, rate: float, seed: int) -> Tensor:
    """The factors that `relu_dropout` will apply to a tensor like `x`: 0 or 1 / (1 - rate)."""
    torch.manual_seed(seed)
    return relu_dropout(torch.ones_like(x), rate, training=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(6, 8), (7, 5)])
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_value_and_gradient_are_autograds_for_the_same_mask(
    layout: torch.memory_format, size: tuple[int, int], pool: bool, dtype: torch.dtype
) -> None:
    # Small integers, so that equal neighbours are frequent: the gradient must go to the first of them.
    x = torch.randint(-2, 4, (5, 8, *size)).to(dtype).contiguous(memory_format=layout).requires_grad_()
    mask = mask_of(x, 0.25, seed=4)  # 1 / (1 - 0.25) is not exact: tolerance of the type's rounding
    torch.manual_seed(4)
    y = (relu_dropout_pool if pool else relu_dropout)(x, 0.25, training=True)
    expected = plain(x, mask, pool)
    assert y.dtype == dtype
    assert y.is_contiguous(memory_format=layout)
    torch.testing.assert_close(y, expected)
    cotangent = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, x, cotangent)[0], torch.autograd.grad(expected, x, cotangent)[0])


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (0.5, False)])
def test_without_dropout_it_is_plain_relu_and_draws_nothing(rate: float, training: bool) -> None:
    x = torch.randn(3, 2, 7, 6, requires_grad=True)
    state = torch.get_rng_state()
    for ours, theirs in (
        (relu_dropout(x, rate, training), F.relu(x)),
        (relu_dropout_pool(x, rate, training), F.max_pool2d(F.relu(x), 2)),
    ):
        assert torch.equal(ours, theirs)
        assert torch.equal(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, theirs)))
    assert torch.equal(state, torch.get_rng_state())


def test_layouts_that_are_neither_work_too() -> None:
    x = torch.randn(4, 6, 8, 3).permute(0, 2, 1, 3)[:, ::2].requires_grad_()
    y = relu_dropout_pool(x, 0.5, training=True)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert y.shape == (4, 4, 3, 1)
    assert set(gradient.unique().tolist()) == {0.0, 2.0}
