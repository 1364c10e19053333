"""Finished runs made by hand: events as a run would have written them, with numbers of our choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.sequences import sequence_facts


def finished_run(
    root: Path,
    method: str,
    sequence: str = "C-10",
    *,
    seed: int = 1,
    preset: str = "paper",
    at_once: float = 0.5,
    at_end: float = 0.5,
    facts: dict[str, Any] | None = None,
    **options: Any,
) -> StoredRun:
    """Every task reaches `at_once` when it is learned, and has `at_end` after the last one."""
    config = make_config(method, sequence, preset=preset, seed=seed, **options)
    store = Store(root)
    with store.open(config):
        pass
    tasks = config.tasks or sequence_facts(sequence).tasks
    events: list[dict[str, Any]] = [{"kind": "started"}]
    for after in range(tasks):
        told = {"kind": "task", "task": after, "ids": [after], "name": f"task {after} of seed {seed}", "classes": 10}
        events.append({**told, "facts": facts or {}})
        for task in range(after + 1):
            value = at_end if after == tasks - 1 and task < after else at_once
            events.append({"kind": "accuracy", "after": after, "task": task, "validation": value, "test": value})
    events.append({"kind": "finished", "weights": "none"})
    (root / config.id() / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found = store.find(config)
    assert found is not None
    return found
