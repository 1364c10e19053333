"""Two by two: importance by mechanism, with the effects of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.experiments.analyses.mechanism import mechanism
from softmask.experiments.paper.published import paper_value
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store
from tests.experiments.analyses.made import rows, stored, triangle

ACCURACIES = {"spg": 70.0, "spg-fi": 60.0, "ewc-gi": 64.0, "ewc": 61.0}


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
    assert told["interaction"].interval is not None


def test_networks_of_two_widths_are_not_mixed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, reached in ACCURACIES.items():
        changes = {"width": 0.1} if method.startswith("ewc") else {}
        stored(store, make_config(method, "C-10", changes=changes), triangle([[90], [reached, reached]]))
    wide, narrow = sorted(rows(mechanism(store.runs())), key=lambda row: row["width"] or 0)
    assert (wide["width"], narrow["width"]) == (None, 0.1)
    assert wide["interaction"] is narrow["interaction"] is None
    assert narrow["EWC (Fisher, penalty)"].paper is None
