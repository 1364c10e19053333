"""Verdicts only where they may be given, and by the rule; else the order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from softmask.experiments.analyses.table import Table, Value, rank_correlation
from softmask.experiments.paper.verdicts import (
    Comparison,
    Place,
    compare,
    orders,
    published_value,
    verdicts,
    why_no_verdict,
)
from softmask.experiments.runs.config import make_config

PLACE = Place("SPG", "SPG", "C-10", ("accuracy", "SPG", "C-10"))


def comparison(ours: float, paper: float, std: float | None, *, seeds: int = 3, unit: float = 1.0) -> Comparison:
    return Comparison(PLACE, Value(ours, count=seeds), Value(paper, std), unit)


@pytest.mark.parametrize(
    ("ours", "paper", "std", "held"),
    [
        (68.7, 67.7, 0.3, True),  # a point, although twice the spread is less
        (68.8, 67.7, 0.3, False),
        (66.6, 67.7, 0.3, False),  # below counts as above
        (69.7, 67.7, 1.0, True),  # twice the spread
        (69.8, 67.7, 1.0, False),
        (68.6, 67.7, None, True),
    ],
)
def test_held_is_within_twice_the_spread_or_a_point(ours: float, paper: float, std: float | None, held: bool) -> None:
    assert comparison(ours, paper, std).held is held
    assert comparison(ours, paper, std).verdict() == ("held" if held else "not held")


def test_of_fractions_a_point_is_a_hundredth() -> None:
    assert comparison(0.65, 0.64, 0.0, unit=0.01).held
    assert not comparison(0.66, 0.64, 0.0, unit=0.01).held


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_are_not_judged(seeds: int) -> None:
    told = comparison(99.0, 67.7, 0.3, seeds=seeds).verdict()
    assert told == f"none: {seeds} of at least 3 seeds"
    (row,) = verdicts([comparison(99.0, 67.7, 0.3, seeds=seeds)]).rows
    assert not {"held", "not held", "better", "worse"} & {str(cell) for cell in row}


def test_another_training_network_or_length_is_not_judged() -> None:
    assert why_no_verdict([make_config("spg", "C-10")]) == {}
    assert why_no_verdict([make_config("spg", "C-10", changes={"drop1": 0.1})]) == {}
    for config, told in (
        (make_config("spg", "C-10", preset="short"), "the training is not the paper's (short)"),
        (make_config("spg", "C-10", changes={"epochs": 400}), "the training is not the paper's (paper epochs=400)"),
        (make_config("spg", "C-10", tasks=3), "only the first 3 tasks were learned"),
        (make_config("spg", "C-10", changes={"width": 0.5}), "the network has 0.5 of the paper's width"),
    ):
        assert why_no_verdict([make_config("spg", "C-20"), config]) == {("SPG", "C-10"): told}


def test_one_reason_for_all_is_told_once() -> None:
    table = verdicts([replace(comparison(67.7, 67.7, 0.3), reason="the training is short")])
    assert table.rows[0][-1] is None
    assert "No verdict: the training is short." in table.notes


def test_one_method_run_otherwise_takes_no_verdict_from_the_others() -> None:
    rows = [("SPG", Value(67.7, paper=67.7, count=5)), ("NCL", Value(50.9, paper=50.9, count=5))]
    table = Table("t", ("method", "C-10"), rows)
    configs = [
        make_config("spg", "C-10", seed=1),
        make_config("ncl", "C-10", seed=1),
        make_config("ncl", "C-10", seed=2, preset="short"),
    ]
    layout = lambda row, column: Place(row[0], row[0], column, ("accuracy", row[0], column))  # noqa: E731
    found = list(compare(table, layout, configs))
    judged = verdicts(found)
    assert [row[-1] for row in judged.rows] == ["held", "none: the training is not the paper's (short)"]
    assert [row[5] is None for row in judged.rows] == [False, True]
    assert "1 of 1 judged cells held." in judged.notes


def test_the_papers_spread_comes_with_its_mean() -> None:
    assert published_value(("accuracy", "SPG", "C-10")) == Value(67.7, 0.3)
    assert published_value(("accuracy", "CAT", "I-100")) is None
    assert published_value(("accuracy", "nobody", "C-10")) is None


def test_cells_that_the_paper_does_not_have_are_not_compared() -> None:
    rows = [
        ("SPG", Value(60.0, paper=67.7, count=5), Value(50.0), Value(61.0, paper=61.8)),
        ("mine", Value(1.0), None, None),
    ]
    table = Table("t", ("method", "C-10", "D-5", "dissimilar avg."), rows)
    (found,) = compare(table, lambda row, column: Place("SPG", "SPG", column, ("accuracy", str(row[0]), column)), [])
    assert (found.place.sequence, found.ours.mean, found.paper, found.seeds) == ("C-10", 60.0, Value(67.7, 0.3), 5)


def test_rank_correlation_by_hand() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([3, 2, 1], [10, 20, 30]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3], [10, 30, 20]) == pytest.approx(0.5)
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_the_order_is_compared_on_each_sequence() -> None:
    given = [
        Comparison(Place(title, title, sequence, ()), Value(ours), Value(paper))
        for sequence, numbers in {"C-10": (1, 2, 3), "C-20": (3, 2, 1)}.items()
        for title, ours, paper in zip("abc", numbers, (1, 2, 3), strict=True)
    ]
    assert [(row[0], row[1], row[2].mean) for row in orders(given).rows] == [  # type: ignore[union-attr]
        ("C-10", 3, pytest.approx(1)),
        ("C-20", 3, pytest.approx(-1)),
    ]


def test_references_have_no_place_in_the_order() -> None:
    given = [
        Comparison(Place(title, title, "C-10", ()), Value(ours), Value(paper))
        for title, ours, paper in (("MTL", 9, 9), ("ONE", 8, 8), ("a", 1, 3), ("b", 2, 2), ("c", 3, 1))
    ]
    assert [(row[1], row[2].mean) for row in orders(given).rows] == [(3, pytest.approx(-1))]  # type: ignore[union-attr]


def test_what_decides_is_seen() -> None:
    (row,) = verdicts([comparison(68.74, 67.7, 0.3)]).rows
    assert [cell.number(cell.mean) for cell in row[4:6]] == ["+1.04", "1.00"]  # type: ignore[union-attr]
    assert row[-1] == "not held"
