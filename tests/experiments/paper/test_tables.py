"""The tables shown: from hand-made runs to verdicts, orders and trends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from softmask.experiments.analyses.table import Table, Value
from softmask.experiments.paper.reproduction import network_sizes, paper_table, statistics_of_sequences, trends
from tests.experiments.paper.examples import finished_run


def rows_of(table: Table) -> dict[str, dict[str, Any]]:
    return {str(row[1]): dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_three_seeds_of_the_papers_training_are_judged(tmp_path: Path) -> None:
    runs = [
        finished_run(tmp_path, method, seed=seed, at_once=value + seed / 1000, at_end=value + seed / 1000)
        for method, value in (("spg", 0.675), ("ncl", 0.9))
        for seed in (1, 2, 3)
    ]
    shown, judged = paper_table("accuracy").tables(runs)
    assert shown.rows
    rows = rows_of(judged)
    assert rows["SPG"]["verdict"] == "held"
    assert rows["SPG"]["ours"].mean == pytest.approx(67.7)
    assert rows["SPG"]["ours"].std == pytest.approx(0.1)  # the sample's, with n - 1
    assert (rows["SPG"]["paper"].mean, rows["SPG"]["paper"].std) == (67.7, 0.3)
    assert rows["NCL"]["verdict"] == "not held"
    assert rows["NCL"]["allowed"].mean == pytest.approx(2 * 1.7)
    assert judged.notes[-1] == "1 of 2 judged cells held."


def test_one_seed_has_no_spread_and_no_verdict_but_an_order(tmp_path: Path) -> None:
    values = {"spg": 0.6, "ncl": 0.4, "ewc": 0.5}
    runs = [finished_run(tmp_path, method, at_once=value, at_end=value) for method, value in values.items()]
    _, judged, order = paper_table("accuracy").tables(runs)
    assert all(row["ours"].std is None for row in rows_of(judged).values())
    assert {row["verdict"] for row in rows_of(judged).values()} == {"none: 1 of at least 3 seeds"}
    assert [(row[0], row[1]) for row in order.rows] == [("C-10", 3)]


def test_another_preset_is_never_judged(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path, "spg", seed=seed, preset="short", at_end=0.677) for seed in (1, 2, 3)]
    _, judged, _ = paper_table("accuracy").tables(runs)
    assert rows_of(judged)["SPG"]["verdict"] is None
    assert judged.notes[-1] == "No verdict: the training is not the paper's (short)."


def test_forward_transfer_counts_the_seeds_of_the_reference(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path, "spg", seed=seed, at_once=0.6) for seed in (1, 2, 3)]
    runs += [finished_run(tmp_path, "one", seed=seed, at_once=0.6) for seed in (1, 2)]
    _, judged, _ = paper_table("forward-transfer").tables(runs)
    assert rows_of(judged)["SPG"]["seeds"] == 2
    assert "none" in rows_of(judged)["SPG"]["verdict"]


def test_seeds_of_spg_and_of_its_reference_that_do_not_meet(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path, "spg", seed=seed, at_once=0.6) for seed in (1, 2, 3)]
    runs += [finished_run(tmp_path, "one", seed=seed, at_once=0.6) for seed in (3, 4, 5)]
    _, judged, _ = paper_table("forward-transfer").tables(runs)
    assert rows_of(judged)["SPG"]["verdict"] == "none: 1 of at least 3 seeds"


def test_the_whole_network_and_its_layers_are_two_tables(tmp_path: Path) -> None:
    facts = {"blocked": {"whole network": 0.02, "conv1": 0.0, "fc2": 0.5}}
    runs = [finished_run(tmp_path, "spg", seed=seed, facts=facts) for seed in (1, 2, 3)]
    shown, judged = paper_table("blocked").tables(runs)
    assert {row[0] for row in shown.rows} == {"whole network"}
    assert rows_of(judged)["SPG, whole network after task T"]["verdict"] == "held"
    shown, judged = paper_table("blocked-by-layer").tables(runs)
    assert {row[0] for row in shown.rows} == {"conv1", "fc2"}
    assert rows_of(judged)["SPG, conv1 after task 1"]["verdict"] == "held"
    assert rows_of(judged)["SPG, fc2 after task 1"]["verdict"] == "not held"


def test_cross_head_fractions_are_judged_in_hundredths(tmp_path: Path) -> None:
    facts = {"F-each": 0.67, "G-each": 0.30, "F-total": 0.42, "G-total": 0.13}
    runs = [finished_run(tmp_path, "spg", seed=seed, facts=facts) for seed in (1, 2, 3)]
    _, judged = paper_table("cross-head").tables(runs)
    rows = rows_of(judged)
    assert rows["F-each at task 2"]["verdict"] == "held"  # 0.64 with a spread of 0.02
    assert rows["G-each at task 2"]["verdict"] == "not held"  # 0.67 * 0.30, the paper has 0.15 with a spread of 0.02


def test_a_sequence_that_the_paper_does_not_have_says_so(tmp_path: Path) -> None:
    (shown,) = paper_table("accuracy").tables([finished_run(tmp_path, "spg", "D-5", preset="short")])
    assert shown.notes[-1] == "No verdict: the paper has no numbers for these runs."


def test_trends_are_told_only_where_seeds_allow_it() -> None:
    def row(name: str, slope: Value | None) -> tuple[Any, ...]:
        return ("C-10", name, slope, Value(1.0), Value(2.0))

    table = Table(
        "t",
        ("sequence", "method", "slope", "1", "2"),
        [
            row("up", Value(0.5, interval=(0.1, 0.9))),
            row("down", Value(-0.5, interval=(-0.9, -0.1))),
            row("flat", Value(0.1, interval=(-0.2, 0.4))),
            row("alone", Value(0.5)),
        ],
        labels=2,
    )
    told = {str(row[1]): row[-1] for row in trends(table).rows}
    assert told["up"] == "rises"
    assert told["down"] == "falls"
    assert told["flat"] == "none found"
    assert told["alone"] == "not known: too few seeds"


def test_a_curve_without_a_slope_gets_one() -> None:
    cells = (Value(9.0), Value(1.0), Value(3.0), Value(5.0))
    (row,) = trends(Table("t", ("learned", "method", "0", "1", "2", "3"), [("C-10", "SPG", *cells)], labels=2)).rows
    assert isinstance(row[2], Value)
    assert row[2].mean == pytest.approx(2.0)  # the initial weights are no task


def test_counts_of_built_in_and_missing_data(tmp_path: Path) -> None:
    table = statistics_of_sequences(["D-5", "C-10"], tmp_path)
    by_place = {(row[0], row[1]): row[2:] for row in table.rows}
    assert by_place["D-5", "tasks"] == (5, None, None)
    assert by_place["C-10", "tasks"] == (10, 10, "held")
    assert by_place["C-10", "train"] == (None, 45000, "none: no data")
    assert any("C-10" in note for note in table.notes)


@pytest.mark.slow
def test_network_sizes_are_judged_as_printed() -> None:
    _, judged = network_sizes()
    found = {(row[0], row[1]): row[2:] for row in judged.rows}
    ours, paper, verdict = found["C-10", "SPG"]
    assert isinstance(ours, Value)
    assert isinstance(paper, Value)
    assert f"{ours.mean:.1f}" == f"{paper.mean:.1f}"
    assert verdict == "held"
    for ours, paper, verdict in found.values():
        assert (f"{ours.mean:.1f}" == f"{paper.mean:.1f}") == (verdict == "held")  # type: ignore[union-attr]
