"""Paired differences, importance by mechanism, and ACC = mean(ONE) + FWT + BWT (T-1)/T."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy import stats

from softmask.experiments.analyses.accuracy import measures, references
from softmask.experiments.analyses.comparisons import differences, gap, identity, mechanism, our_gap, paper_gap
from softmask.experiments.analyses.grouping import gathered
from softmask.experiments.analyses.table import Value, slope
from softmask.experiments.paper import paper_tables, paper_value
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store
from tests.experiments.analyses.made import row, rows, stored, triangle

ACCURACIES = {"spg": 70.0, "spg-fi": 60.0, "ewc-gi": 64.0, "ewc": 61.0}


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
    assert Value.with_interval([]) is None
    assert slope([5.0]) is None
    assert slope([1.0, 3.0, 5.0, 7.0]) == pytest.approx(2)
    assert slope([4.0, 1.0, 7.0, 2.0, 9.0]) == pytest.approx(stats.linregress(range(5), [4, 1, 7, 2, 9]).slope)


def test_effects(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, reached in ACCURACIES.items():
        stored(store, make_config(method, "C-10"), triangle([[90], [reached, reached]]))
    (told,) = rows(mechanism(store.runs()))
    assert told["SPG (gradient, soft mask)"].mean == pytest.approx(70)
    assert told["gradient - Fisher"].mean == pytest.approx((70 + 64) / 2 - (60 + 61) / 2)
    assert told["soft mask - penalty"].mean == pytest.approx((70 + 60) / 2 - (64 + 61) / 2)
    assert told["interaction"].mean == pytest.approx((70 - 60) - (64 - 61))
    paper = {title: paper_value("accuracy", title, "C-10") or 0 for title in ("SPG", "SPG-FI", "EWC-GI", "EWC")}
    expected = (paper["SPG"] + paper["EWC-GI"] - paper["SPG-FI"] - paper["EWC"]) / 2
    assert told["gradient - Fisher"].paper == pytest.approx(expected)


def test_without_all_four_there_is_no_effect(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10"), triangle([[90], [70, 70]]))
    assert mechanism(store.runs()).rows == []
    stored(store, make_config("ewc-gi", "C-10"), triangle([[90], [70, 70]]))
    (told,) = rows(mechanism(store.runs()))
    assert told["gradient - Fisher"] is None
    assert told["EWC (Fisher, penalty)"] is None


def test_settings_are_chosen_by_validation(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for strength, reached, validation in ((1.0, 90.0, 0.5), (2.0, 40.0, 0.6)):
        config = make_config("ewc", "C-10", changes={"strength": strength})
        stored(store, config, triangle([[90], [reached, reached]]), validation=validation)
    stored(store, make_config("spg", "C-10"), triangle([[90], [70, 70]]))
    (told,) = rows(mechanism(store.runs()))
    assert told["EWC (Fisher, penalty)"].mean == pytest.approx(40)


def test_effects_are_over_the_seeds_that_all_have(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, reached in ACCURACIES.items():
        for seed in (1, 2) if method == "ewc" else (1, 2, 3):
            offset = {1: 0.0, 2: 1.0, 3: 20.0}[seed] if method == "spg" else 0.0
            config = make_config(method, "C-10", seed=seed)
            stored(store, config, triangle([[90], [reached + offset, reached + offset]]))
    (told,) = rows(mechanism(store.runs()))
    assert told["seeds"] == 2
    assert told["interaction"].mean == pytest.approx((70.5 - 60) - (64 - 61)), "the third seed of SPG has no partner"
    assert told["interaction"].interval is None, "two seeds are too few"


def test_networks_of_two_widths_are_not_mixed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, reached in ACCURACIES.items():
        changes = {"width": 0.1} if method.startswith("ewc") else {}
        stored(store, make_config(method, "C-10", changes=changes), triangle([[90], [reached, reached]]))
    wide, narrow = sorted(rows(mechanism(store.runs())), key=lambda row: row["width"] or 0)
    assert (wide["width"], narrow["width"]) == (None, 0.1)
    assert wide["interaction"] is narrow["interaction"] is None
    assert narrow["EWC (Fisher, penalty)"].paper is None


def test_it_holds_by_the_definitions(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, shift in ((1, 0.0), (2, 3.0)):
        stored(store, make_config("spg", "C-10", seed=seed), triangle([[90], [70, 80 + shift], [60, 75, 50]]))
        stored(store, make_config("one", "C-10", seed=seed), triangle([[85], [85, 60], [85, 60, 40 - shift]]))
    alone = references(store.runs())
    (group,) = [group for group in gathered(store.runs()).groups if group.title == "SPG"]
    found = our_gap(group, [measures(run, alone) for run in group.runs], alone)
    assert found == pytest.approx(0, abs=1e-9)
    assert not [row for row in rows(identity(store.runs())) if row["whose"] == "ours"]


def test_a_seed_without_its_reference_breaks_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10", seed=1), triangle([[90], [70, 80]]))
    stored(store, make_config("spg", "C-10", seed=2), triangle([[50], [40, 40]]))
    stored(store, make_config("one", "C-10", seed=1), triangle([[85], [85, 60]]))
    (ours,) = [row for row in rows(identity(store.runs())) if row["whose"] == "ours"]
    # ACC (75 + 40) / 2; ONE 72.5; FWT 12.5 of the first seed alone; BWT (-20 - 10) / 2.
    assert ours["difference"].mean == pytest.approx(57.5 - (72.5 + 12.5 - 15 / 2))


def test_the_papers_cells(tmp_path: Path) -> None:
    found = {(row["sequence"], row["method"]) for row in rows(identity([]))}
    tables, expected = paper_tables(), set()
    for sequence, facts in tables["sequences"].items():
        for title, forward in tables["forward_transfer"].items():
            accuracy, alone = tables["accuracy"][title][sequence], tables["accuracy"]["ONE"][sequence]
            if accuracy is not None:
                share = (facts["tasks"] - 1) / facts["tasks"]
                told = alone["mean"] + forward[sequence] + share * tables["backward_transfer"][title][sequence]
                if abs(accuracy["mean"] - told) > 0.5:
                    expected.add((sequence, title))
    assert found == expected
    assert paper_gap("CAT", "I-100") is None, "the paper has no number"
    assert gap(70, 60, 12, -4, 2) == pytest.approx(0)


def test_two_seeds_have_no_interval() -> None:
    assert Value.with_interval([-1.9, -1.9]) == Value(-1.9, signed=True, count=2)
    three = Value.with_interval([-1.0, -2.0, -3.0])
    assert three is not None
    assert three.interval == pytest.approx(stats.t.interval(0.95, 2, loc=-2.0, scale=stats.sem([-1, -2, -3])))


def test_any_method_can_be_the_base(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, last in (("spg", 70.0), ("ncl", 50.0), ("hat", 60.0)):
        stored(store, make_config(method, "C-10"), triangle([[90], [last, last]]))
    table = differences(store.runs(), against="ncl")
    assert {line["method"]: line["ACC"].mean for line in rows(table)} == {"HAT": 10.0, "SPG": 20.0}
    assert "NCL" in table.caption
