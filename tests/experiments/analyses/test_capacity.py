"""Blocked shares and cross-head facts: from the events of task ends, and the facts themselves from the definition."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.experiments.analyses.capacity import capacity, cross_head
from softmask.experiments.analyses.grouping import milestones
from softmask.experiments.paper import paper_tables
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import build, load, run
from softmask.experiments.runs.store import Store
from softmask.learning.registry import METHODS
from tests.experiments.analyses.made import row, rows, stored, triangle
from tests.experiments.runs.examples import tiny_config

FOUR = triangle([[50], [50, 50], [50, 50, 50], [50, 50, 50, 50]])


def facts(*shares: float) -> list[dict[str, object]]:
    return [{"blocked": {"conv1": share / 2, "whole network": share, "fc2": 2 * share}} for share in shares]


def test_after_task_1_half_and_all_of_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10", seed=1), FOUR, facts=facts(0.01, 0.02, 0.03, 0.04))
    stored(store, make_config("spg", "C-10", seed=2), FOUR, facts=facts(0.01, 0.04, 0.03, 0.06))
    stored(store, make_config("ncl", "C-10"), FOUR)
    table = capacity(store.runs())
    assert [(line[0], line[1]) for line in table.rows[:4]] == [
        ("whole network", "1"),
        ("whole network", "T/2"),
        ("whole network", "T"),
        ("conv1", "1"),
    ]
    half = row(table, part="whole network", **{"after task": "T/2"})["C-10"]
    assert (half.mean, half.std) == (pytest.approx(3), pytest.approx(2**0.5))
    assert half.paper == paper_tables()["blocked_share"]["whole network"]["T/2"]["SPG"]["C-10"]["mean"]
    assert row(table, part="fc2", **{"after task": "T"})["C-10"].mean == pytest.approx(10)
    assert {line[2] for line in table.rows} == {"SPG"}, "NCL blocks nothing"


def test_milestones() -> None:
    assert milestones(10) == {"1": 1, "T/2": 5, "T": 10}
    assert milestones(5) == {"1": 1, "T/2": 2, "T": 5}
    assert milestones(2) == {"1": 1, "T": 2}, "each number once"
    assert milestones(1) == {"1": 1}
    assert milestones(10, first=2) == {"2": 2, "T/2": 5, "T": 10}
    assert milestones(1, first=2) == {}


def test_cross_head(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept = [{}, *({"F-each": n / 10, "G-each": 0.2, "F-total": 0.3, "G-total": 0.1 * n} for n in (2, 4, 6))]
    stored(store, make_config("spg", "C-10"), FOUR, facts=kept)
    told = rows(cross_head(store.runs()))
    assert [line["task"] for line in told] == ["2", "T"]  # of four tasks, T/2 is the second again
    assert told[1]["F-each"].mean == pytest.approx(0.6)
    assert told[1]["G-each"].mean == pytest.approx(0.6 * 0.2)  # over all parameters
    assert told[1]["G-total"].mean == pytest.approx(0.3 * 0.6)
    assert told[0]["F-each"].paper == paper_tables()["cross_head_importance_fraction"]["C-10"]["2"]["F-each"]["mean"]


@pytest.mark.parametrize("name", ["spg", "hat", "wsn"])
def test_facts_of_a_real_run_are_what_the_checkpoint_says(tmp_path: Path, name: str) -> None:
    """A parameter is blocked if, whatever comes, no task to come may change it: counted here one by one."""
    config = tiny_config(name, changes={"epochs": 1})
    done = run(config, Store(tmp_path), keep="all")
    method = build(config, load(config, None))
    method.load_state_dict(done.checkpoint(1))
    blocked = total = 0
    if name == "spg":
        for tensor in method.mask.importance.values():
            blocked, total = blocked + sum(v == 1.0 for v in tensor.flatten().tolist()), total + tensor.numel()
    elif name == "wsn":
        for masks in zip(*(method.masks.load(task).values() for task in range(2)), strict=True):
            blocked, total = blocked + int((sum(masks) > 0).sum()), total + masks[0].numel()
    else:
        before = [True]
        used = [units.tolist() for units in method.by_layer(method.used)]
        for block, after in zip(method.backbone.blocks, used, strict=True):
            weight = block.layer.weight
            each = weight.numel() // (len(after) * len(before))
            blocked += sum(after) * sum(before) * each + sum(after)
            total, before = total + weight.numel() + len(after), after
    assert METHODS.load(name).title in {line[2] for line in capacity([done]).rows}
    told = row(capacity([done]), part="whole network", **{"after task": "T"})
    assert told["D-5[:2]"].mean == pytest.approx(100 * blocked / total)


@pytest.mark.parametrize("told", [0.1, None, {"conv1": None}, ["conv1"]])
def test_other_facts_of_the_same_name_are_left_alone(tmp_path: Path, told: object) -> None:
    """A method from elsewhere may have any: one of them must not cost the tables of all others."""
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10"), FOUR, facts=facts(0.01, 0.02, 0.03, 0.04))
    stored(store, make_config("ncl", "C-10"), FOUR, facts=[{"blocked": told, "F-each": "often", "G-each": 1.0}] * 4)
    assert {line[2] for line in capacity(store.runs()).rows} == {"SPG"}
    assert all(line["G-each"] is None for line in rows(cross_head(store.runs())))
