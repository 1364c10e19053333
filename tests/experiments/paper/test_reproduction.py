"""Every table and figure of the paper has its runs and its place in the paper's numbers."""

from __future__ import annotations

import pytest

from softmask.errors import UnknownName
from softmask.experiments.paper import paper_tables
from softmask.experiments.paper.reproduction import NAMES, paper_table, paper_table_list
from softmask.experiments.paper.verdicts import published_value
from softmask.learning.registry import METHODS

SEQUENCES = tuple(paper_tables()["sequences"])


def test_all_names_of_the_paper_are_there() -> None:
    assert tuple(paper_table_list()) == NAMES
    assert len(NAMES) == 12
    with pytest.raises(UnknownName, match="did you mean 'accuracy'"):
        paper_table("acuracy")


@pytest.mark.parametrize(
    ("name", "methods", "cells"),
    [
        ("accuracy", 17, 5 * (17 * 9 - 1)),  # CAT on I-100 is N/A
        ("forward-transfer", 15, 5 * (16 * 9 - 1)),  # with ONE beside them
        ("backward-transfer", 15, 5 * (15 * 9 - 1)),
        ("blocked", 2, 5 * 18),
        ("blocked-by-layer", 2, 5 * 18),
        ("forward-transfer-curves", 15, 5 * (16 * 9 - 1)),
        ("pruning", 1, 5 * 9),
        ("representation", 4, 5 * 12),
        ("ablation", 4, 5 * 36),
        ("cross-head", 1, 5 * 9),
    ],
)
def test_the_runs_behind_each(name: str, methods: int, cells: int) -> None:
    wanted = paper_table(name)
    assert len(wanted.methods) == methods
    assert len(wanted.grid().configs) == cells


def test_ablations_and_main_cells_together_are_the_papers_895() -> None:
    ids = {config.id() for name in ("accuracy", "ablation") for config in paper_table(name).grid().configs}
    assert len(ids) == 760 + 135


def test_a_preset_that_is_only_tried_has_one_seed() -> None:
    assert len(paper_table("cross-head").grid(preset="short").configs) == 9
    assert len(paper_table("cross-head").grid(preset="short", seeds=[1, 2], sequences=["D-5"]).configs) == 2


def test_the_reference_has_the_network_of_each_run() -> None:
    drop = {"ncl": 0.1, "spg": 0.2}
    grid = paper_table("forward-transfer").grid(
        methods=["ncl", "spg"],
        sequences=["D-5"],
        preset="short",
        changes=lambda method, sequence: {"drop1": drop[method]},
    )
    found = sorted((config.method, config.network.drop1) for config in grid.configs)
    assert found == [("ncl", 0.1), ("one", 0.1), ("one", 0.2), ("spg", 0.2)]


def test_checkpoints_are_kept_where_something_is_measured_on_them() -> None:
    for wanted in paper_table_list().values():
        assert (wanted.keep == "all") == (wanted.measure is not None)


@pytest.mark.parametrize("name", ["accuracy", "forward-transfer", "backward-transfer", "ablation"])
def test_the_paper_has_a_number_for_every_cell(name: str) -> None:
    wanted = paper_table(name)
    assert wanted.layout is not None
    for method in wanted.methods:
        for sequence in SEQUENCES:
            title = METHODS.load(method).title
            place = wanted.layout((f"({title})" if title in ("MTL", "ONE") else title, "paper", None), sequence)
            assert (place.title, place.sequence) == (title, sequence)
            found = published_value(place.path)
            assert (found is None) == ((title, sequence) == ("CAT", "I-100"))


@pytest.mark.parametrize(
    ("name", "row", "columns"),
    [
        ("blocked", ("whole network", "T/2", "HAT"), SEQUENCES),
        ("blocked-by-layer", ("fc2", "1", "SPG"), SEQUENCES),
        ("pruning", ("Highest 20%", "backbone", "SPG"), SEQUENCES),
        ("cross-head", ("T-20", "2", "SPG"), ("F-each", "G-each", "F-total", "G-total")),
    ],
)
def test_the_other_layouts_find_their_numbers(name: str, row: tuple[str, ...], columns: tuple[str, ...]) -> None:
    layout = paper_table(name).layout
    assert layout is not None
    for column in columns:
        place = layout(row, column)
        assert published_value(place.path) is not None
        assert place.sequence in SEQUENCES
