"""The dual of GEM: corners by hand, and against a search over all sets of active bounds."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from softmask.methods.gem import smallest_quadratic


def solved(gradients: Tensor, gradient: Tensor, floor: float = 0.0) -> Tensor:
    return smallest_quadratic(gradients @ gradients.T, gradients @ gradient, floor)


@pytest.mark.parametrize(
    ("gradient", "floor", "wanted"),
    [
        ((1.0, -2.0), 0.0, (2.0, 0.0)),  # one bound holds
        ((-3.0, 1.0), 0.0, (0.0, 1.0)),  # the other
        ((-1.0, -3.0), 0.0, (2.0, 1.0)),  # none
        ((1.0, 2.0), 0.0, (0.0, 0.0)),  # both
        ((1.0, -2.0), 0.5, (1.5, 0.5)),
    ],
)
def test_golden(gradient: tuple[float, float], floor: float, wanted: tuple[float, float]) -> None:
    rows = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    torch.testing.assert_close(solved(rows, torch.tensor(gradient), floor), torch.tensor(wanted))


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_no_other_set_of_active_bounds_is_better(floor: float) -> None:
    torch.manual_seed(0)
    for _ in range(20):
        rows, gradient = torch.randn(4, 6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)

        def value(v: Tensor, rows: Tensor = rows, gradient: Tensor = gradient) -> float:
            return float((gradient + v @ rows).square().sum())

        best = value(torch.full((4,), floor, dtype=torch.float64))
        for size in range(1, 5):
            for free in map(list, itertools.combinations(range(4), size)):
                v = torch.full((4,), floor, dtype=torch.float64)
                v[free] = 0.0
                v[free] = torch.linalg.lstsq(rows[free].T, -(gradient + v @ rows)).solution
                if (v >= floor).all():
                    best = min(best, value(v))
        found = solved(rows, gradient, floor)
        assert (found >= floor).all()
        assert value(found) == pytest.approx(best, rel=1e-9)


def test_rows_may_repeat_vanish_and_have_any_size() -> None:
    rows = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]) * 1e-4
    gradient = torch.tensor([1.0, -2.0])
    torch.testing.assert_close(gradient + solved(rows, gradient) @ rows, torch.tensor([1.0, 0.0]))
    assert solved(torch.zeros(2, 3), torch.ones(3), 0.5).tolist() == [0.5, 0.5]
