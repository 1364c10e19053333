"""A store with a bit of everything: methods, seeds, a failed and an unfinished run, foreign and damaged folders."""

from __future__ import annotations

from pathlib import Path

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store
from tests.experiments.analyses.made import stored, triangle

SPG = [[90], [80, 85], [75, 80, 70]]
NCL = [[90], [50, 86], [30, 40, 71]]
ONE = [[88], [88, 80], [88, 80, 60]]
HAT = [[85], [85, 80], [85, 80, 60]]


def facts(scale: float) -> list[dict[str, object]]:
    return [
        {"blocked": {"conv1": scale * n / 200, "fc2": scale * n / 100, "whole network": scale * n / 120}}
        | ({"F-each": 0.6, "G-each": 0.2, "F-total": 0.3, "G-total": 0.1} if n > 1 else {})
        for n in (1, 2, 3)
    ]


def mixed_store(folder: Path) -> Store:
    store = Store(folder)
    for sequence in ("C-10", "FE-10"):
        for seed in (1, 2):
            for method, rows in (("spg", SPG), ("ncl", NCL), ("one", ONE), ("hat", HAT)):
                shifted = [[value + seed for value in row] for row in rows]
                own = facts(1.0 if method == "spg" else 20.0) if method in ("spg", "hat") else ()
                ends = [(20.0, n * (method == "spg")) for n in (1.0, 2.0, 3.0)]
                config = make_config(method, sequence, preset="short", seed=seed)
                stored(store, config, triangle(shifted), facts=own, seconds=ends)
    config = make_config("spg", "C-10", preset="short", seed=1)
    with store.open(config) as writer:
        for learned in range(4):
            writer.event("representation", onto="T-10", union=False, learned=learned, classes=200, test=0.1 * learned)
        writer.event("pruning", strategy="Nothing", ranked_over="backbone", test=0.9, classes=10)
    stored(store, make_config("wsn", "C-10", preset="short"), triangle([[90]]), ended="failed")
    stored(store, make_config("ewc", "C-10", preset="short"), triangle([[90]]), ended=None)
    (folder / "holiday <b>pictures").mkdir()
    damaged = stored(store, make_config("si", "C-10", preset="short"), triangle(SPG))
    (damaged.path / "config.json").write_text("{")
    return store
