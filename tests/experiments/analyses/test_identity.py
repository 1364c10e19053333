"""ACC = mean(ONE) + FWT + BWT (T-1)/T, in the paper's numbers and in ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.experiments.analyses.accuracy import measures, references
from softmask.experiments.analyses.grouping import finished_groups
from softmask.experiments.analyses.identity import gap, identity, our_gap, paper_gap
from softmask.experiments.paper.published import paper_tables
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store
from tests.experiments.analyses.made import rows, stored, triangle


def test_it_holds_by_the_definitions(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, shift in ((1, 0.0), (2, 3.0)):
        stored(store, make_config("spg", "C-10", seed=seed), triangle([[90], [70, 80 + shift], [60, 75, 50]]))
        stored(store, make_config("one", "C-10", seed=seed), triangle([[85], [85, 60], [85, 60, 40 - shift]]))
    alone = references(store.runs())
    (group,) = [group for group in finished_groups(store.runs()) if group.title == "SPG"]
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
