"""The paper's layout: averages over kinds of sequences, brackets, best and second, footnotes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from softmask.experiments.analyses.by_sequence import (
    ablation,
    accuracy_by_sequence,
    backward_transfer,
    forward_transfer,
)
from softmask.experiments.paper import paper_value
from softmask.experiments.report.tables import as_latex
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.store import Store
from tests.experiments.analyses.made import row, rows, stored, triangle


def config(method: str, sequence: str = "C-10", **more: Any) -> RunConfig:
    return make_config(method, sequence, **more)


def test_best_is_first_second_is_second_and_references_have_no_rank(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, last in (("one", 99.0), ("mtl", 98.0), ("ncl", 50.0), ("hat", 60.0), ("spg", 70.0)):
        stored(store, config(method), triangle([[90], [last, last]]))
    table = accuracy_by_sequence(store.runs())
    ranks = {line[0]: line[3].rank for line in table.rows}  # type: ignore[union-attr]
    assert ranks == {"(MTL)": None, "(ONE)": None, "NCL": None, "HAT": 2, "SPG": 1}


def test_what_is_printed_alike_is_ranked_alike(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, last in (("ncl", 50.0), ("hat", 69.96), ("wsn", 70.04), ("spg", 70.0)):
        stored(store, config(method), triangle([[90], [last, last]]))
    ranks = {line[0]: line[3].rank for line in accuracy_by_sequence(store.runs()).rows}  # type: ignore[union-attr]
    assert ranks == {"NCL": 2, "HAT": 1, "WSN": 1, "SPG": 1}


def test_ranks_compare_what_was_trained_alike(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, config("ncl"), triangle([[90], [50, 50]]))
    stored(store, config("spg", preset="short"), triangle([[90], [70, 70]]))
    assert all(line[3].rank is None for line in accuracy_by_sequence(store.runs()).rows)  # type: ignore[union-attr]


def test_averages_are_over_the_sequences_of_a_kind(tmp_path: Path) -> None:
    store = Store(tmp_path)
    accuracies = {"C-10": 60.0, "C-20": 70.0, "FE-10": 80.0, "FE-20": 90.0}
    for sequence, last in accuracies.items():
        stored(store, config("spg", sequence), triangle([[90], [last, last]]))
    stored(store, config("ncl", "C-10"), triangle([[90], [50, 50]]))
    table = accuracy_by_sequence(store.runs())
    assert table.columns[3:] == ("C-10", "C-20", "dissimilar avg.", "FE-10", "FE-20", "similar avg.")
    spg = row(table, method="SPG")
    assert spg["dissimilar avg."].mean == pytest.approx(65)
    assert spg["similar avg."].mean == pytest.approx(85)
    papers = [paper_value("accuracy", "SPG", sequence) for sequence in ("C-10", "C-20")]
    assert spg["dissimilar avg."].paper == pytest.approx(sum(filter(None, papers)) / 2)
    assert row(table, method="NCL")["dissimilar avg."] is None, "it lacks C-20"


def test_transfer_has_signs_and_no_references(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, config("spg"), triangle([[90], [70, 80]]))
    stored(store, config("one"), triangle([[85], [85, 60]]))
    forward, backward = forward_transfer(store.runs()), backward_transfer(store.runs())
    assert [line[0] for line in forward.rows] == ["SPG"]
    value = row(forward, method="SPG")["C-10"]
    assert value.number(value.mean) == "+12.5"  # ((90 - 85) + (80 - 60)) / 2
    assert row(backward, method="SPG")["C-10"].mean == pytest.approx(-20)
    assert row(forward, method="SPG")["C-10"].paper == paper_value("forward_transfer", "SPG", "C-10")


def test_ablations_have_a_table_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method in ("spg", "spg-no-chi", "ncl"):
        stored(store, config(method), triangle([[90], [70, 80]]))
    assert [line[0] for line in ablation(store.runs()).rows] == ["SPG", "SPG (w/o CHI)"]
    assert [line[0] for line in accuracy_by_sequence(store.runs()).rows] == ["NCL", "SPG"]
    chi = row(ablation(store.runs()), method="SPG (w/o CHI)")["C-10"]
    assert chi.paper == paper_value("ablation_accuracy", "SPG (w/o CHI)", "C-10")


def test_settings_found_for_each_sequence_are_one_row(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for sequence, strength in (("C-10", 5.0), ("C-20", 7.0)):
        stored(store, config("ewc", sequence, changes={"strength": strength}), triangle([[90], [70, 80]]))
    table = accuracy_by_sequence(store.runs())
    assert [line[:3] for line in table.rows] == [("EWC", "paper", "by sequence")]
    stored(store, config("ewc", "C-10"), triangle([[90], [70, 80]]))
    labels = {line[2] for line in accuracy_by_sequence(store.runs()).rows}
    assert labels == {None, "strength=5.0", "strength=7.0"}, "two ways to set it on one sequence are told apart"


def test_a_training_for_each_sequence_is_one_row_and_still_ranked(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, last in (("ncl", 50.0), ("hat", 60.0)):
        for sequence, epochs in (("C-10", 5), ("C-20", 7)):
            changes = {"training.epochs": epochs}
            stored(store, config(method, sequence, changes=changes), triangle([[90], [last, last]]))
    table = accuracy_by_sequence(store.runs())
    assert [line[:3] for line in table.rows] == [("NCL", None, None), ("HAT", None, None)]
    assert any("C-10 paper epochs=5; C-20 paper epochs=7" in note for note in table.notes)
    assert row(table, method="HAT")["C-20"].rank == row(table, method="HAT")["C-10"].rank == 1
    stored(store, config("spg", "C-20"), triangle([[90], [70, 70]]))
    trainings = [line[1] for line in accuracy_by_sequence(store.runs()).rows]
    assert len(set(trainings)) == 3, "two trainings of one sequence are told apart"


def test_the_papers_number_that_breaks_the_identity_has_a_footnote(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, config("si", "C-20"), triangle([[90], [70, 80]]))
    stored(store, config("spg", "C-20"), triangle([[90], [70, 80]]))
    table = accuracy_by_sequence(store.runs())
    (note,) = row(table, method="SI")["C-20"].footnotes
    # 70.3 - (76.5 + 3.5 - 5.7 * 19 / 20) is what the paper's tables give.
    assert "the paper's ACC" in note
    assert row(table, method="SPG")["C-20"].footnotes == ()
    assert table.footnotes() == [note]


def test_what_failed_is_shown_as_failed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, config("spg"), triangle([[90], [70, 80]]))
    stored(store, config("spg", "C-20"), triangle([[90]]), ended="failed")
    stored(store, config("hat"), triangle([[90]]), ended="failed")
    stored(store, config("hat", seed=2), triangle([[90]]), ended=None)
    stored(store, config("wsn", "C-20"), triangle([[90]]), ended=None)
    stored(store, config("ncl"), triangle([[90], [60, 60]]))
    stored(store, config("ncl", seed=2), triangle([[90]]), ended="failed")
    table = accuracy_by_sequence(store.runs())
    assert [line[0] for line in table.rows] == ["NCL", "HAT", "WSN", "SPG"]
    assert row(table, method="HAT")["C-10"] == "failed"
    assert row(table, method="WSN")["C-20"] == "unfinished"
    assert row(table, method="SPG")["C-20"] == "failed"
    assert row(table, method="NCL")["C-10"].mean == pytest.approx(60), "another seed came to an end"
    (note,) = row(table, method="NCL")["C-10"].footnotes
    assert note == "1 of 2 seeds: the others failed."
    assert row(table, method="NCL")["C-10"].rank is None, "what is left may be the lucky seed"


def test_an_average_over_failures_is_not_ranked_either(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for sequence in ("C-10", "C-20"):
        stored(store, config("spg", sequence), triangle([[90], [90, 90]]))
        stored(store, config("ncl", sequence), triangle([[90], [60, 60]]))
        stored(store, config("ewc", sequence), triangle([[90], [50, 50]]))
    stored(store, config("spg", seed=2), triangle([[90]]), ended="failed")
    table = accuracy_by_sequence(store.runs())
    spg, ncl = (row(table, method=method)["dissimilar avg."] for method in ("SPG", "NCL"))
    assert (spg.rank, spg.footnotes) == (None, ("1 of 2 seeds: the others failed.",))
    assert ncl.rank == 1


def test_each_way_to_set_a_method_has_its_own_failures(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for strength in (1.0, 2.0):
        stored(store, config("ewc", changes={"strength": strength}), triangle([[90], [70, 80]]))
    stored(store, config("ewc", "C-20", changes={"strength": 1.0}), triangle([[90]]), ended="failed")
    stored(store, config("ewc", "C-20"), triangle([[90]]), ended="failed")
    table = accuracy_by_sequence(store.runs())
    found = {line["changed"]: line["C-20"] for line in rows(table)}
    assert found == {"strength=1.0": "failed", "strength=2.0": None, None: "failed"}


def test_part_of_a_sequence_counts_in_no_average(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for sequence, last in (("C-10", 60), ("C-20", 80)):
        stored(store, config("spg", sequence), triangle([[90], [last, last]]))
    stored(store, make_config("spg", "C-10", tasks=2), triangle([[90], [10, 10]]))
    table = accuracy_by_sequence(store.runs())
    assert table.columns[3:] == ("C-10", "C-20", "C-10[:2]", "dissimilar avg.")
    assert row(table, method="SPG")["dissimilar avg."].mean == pytest.approx(70)


def test_transfer_of_some_seeds_is_not_ranked(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, first in (("spg", 95), ("hat", 85), ("ncl", 80), ("one", 70)):
        for seed in (1,) if method in ("hat", "one", "ncl") else (1, 2):
            stored(store, make_config(method, "C-10", seed=seed), triangle([[first], [first, 80]]))
    ranks = {found["method"]: found["C-10"].rank for found in rows(forward_transfer(store.runs()))}
    assert ranks == {"SPG": None, "HAT": 1, "NCL": 2}


def test_the_table_says_by_sequence_at_most_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for sequence, epochs, strength in (("C-10", 5, 1.0), ("C-20", 7, 2.0)):
        changes = {"training.epochs": epochs, "strength": strength}
        stored(store, config("ewc", sequence, changes=changes), triangle([[90], [70, 80]]))
    text = as_latex(accuracy_by_sequence(store.runs()))
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    assert body.count("by sequence") == 1
    assert "Settings of EWC: C-10 strength=1.0; C-20 strength=2.0." in text
