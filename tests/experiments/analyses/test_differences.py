"""Paired differences to SPG: over common seeds, with Student's interval."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy import stats

from softmask.experiments.analyses.differences import differences
from softmask.experiments.analyses.statistics import slope, student, with_interval
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store
from tests.experiments.analyses.made import row, stored, triangle


def test_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, spg, ncl in ((1, 70.0, 50.0), (2, 72.0, 55.0), (3, 90.0, 71.0)):
        stored(store, make_config("spg", "C-10", seed=seed), triangle([[90], [spg, spg]]))
        stored(store, make_config("ncl", "C-10", seed=seed), triangle([[90], [ncl, ncl]]))
    stored(store, make_config("ncl", "C-10", seed=4), triangle([[90], [1, 1]]))
    told = row(differences(store.runs()), method="NCL")
    assert told["seeds"] == 3
    pairs = [-20.0, -17.0, -19.0]
    expected = stats.ttest_1samp(pairs, 0).confidence_interval(0.95)
    assert told["ACC"].mean == pytest.approx(sum(pairs) / 3)
    assert told["ACC"].interval == pytest.approx((expected.low, expected.high))


def test_one_seed_has_no_interval_and_references_have_no_transfer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method in ("spg", "one"):
        stored(store, make_config(method, "C-10"), triangle([[90], [70, 80]]))
    told = row(differences(store.runs()), method="ONE")
    assert told["ACC"].interval is None
    assert (told["FWT"], told["BWT"]) == (None, None)


def test_only_what_was_trained_alike_is_compared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10"), triangle([[90], [70, 80]]))
    stored(store, make_config("ncl", "C-10", preset="short"), triangle([[90], [70, 80]]))
    stored(store, make_config("ncl", "C-20"), triangle([[90], [70, 80]]))
    assert differences(store.runs()).rows == []


def test_spg_with_settings_of_its_own_is_a_base_where_there_is_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for drop1, last, validation in ((0.1, 60, 0.5), (0.3, 70, 0.6)):
        changes = {"drop1": drop1}
        stored(
            store, make_config("spg", "C-10", changes=changes), triangle([[90], [last, last]]), validation=validation
        )
    stored(store, make_config("ncl", "C-10"), triangle([[90], [50, 50]]))
    assert row(differences(store.runs()), method="NCL")["ACC"].mean == pytest.approx(-20)
    stored(store, make_config("spg", "C-10"), triangle([[90], [55, 55]]))
    assert row(differences(store.runs()), method="NCL")["ACC"].mean == pytest.approx(-5)


def test_statistics() -> None:
    assert student(4) == pytest.approx(stats.t.ppf(0.975, 4))
    assert with_interval([]) is None
    assert slope([5.0]) is None
    assert slope([1.0, 3.0, 5.0, 7.0]) == pytest.approx(2)
    assert slope([4.0, 1.0, 7.0, 2.0, 9.0]) == pytest.approx(stats.linregress(range(5), [4, 1, 7, 2, 9]).slope)
