"""A report of 1,000 generated runs: seconds, memory of the process, size of the page."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.stored_run import FORMAT
from softmask.experiments.sequences import sequence_facts
from softmask.learning.registry import METHODS

from .timing import Report

RUNS = 1000
SEQUENCES = ("C-10", "C-20", "T-10", "T-20", "I-100", "FC-10", "FC-20", "FE-10", "FE-20", "D-5")
EPOCHS = 10
LAYERS = ("whole network", "conv1", "conv2", "conv3", "fc1", "fc2")


def generate(store: Path, runs: int = RUNS) -> None:
    """Finished runs of every method on every sequence, seed after seed, with numbers drawn at random."""
    made, seed = 0, 1
    while made < runs:
        for sequence in SEQUENCES:
            for method in METHODS.names():
                if made < runs:
                    write_run(store, make_config(method, sequence, preset="short", seed=seed))
                    made += 1
        seed += 1


def write_run(store: Path, config: RunConfig) -> None:
    """The folder as a run would leave it, without its checkpoints."""
    draw = random.Random(config.id())
    folder = store / config.id()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"format": FORMAT, "config": config.to_dict()}))
    tasks = sequence_facts(config.sequence).tasks
    events: list[dict[str, Any]] = [{"kind": "started", "stages_done": 0, "softmask": "0", "torch": "0"}]
    for task in range(tasks):
        reached = draw.uniform(0.4, 0.9)
        for epoch in range(EPOCHS):
            curve = {"lr": 0.1, "train_loss": 2 / (epoch + 1), "val_loss": 2.2 / (epoch + 1)}
            events.append(
                {"kind": "epoch", "task": task, "epoch": epoch, "seconds": 1.0, **curve, "val_accuracy": reached}
            )
        facts = {"blocked": {layer: draw.random() * (task + 1) / tasks for layer in LAYERS}}
        facts |= {name: draw.random() for name in ("F-each", "G-each", "F-total", "G-total")} if task else {}
        known = {"ids": [task], "name": f"task {task} of {config.sequence}", "classes": 10, "images": 4500}
        times = {"learn_seconds": draw.uniform(50, 60), "end_seconds": draw.uniform(0, 2) * task, "peak_memory": 7e8}
        events.append({"kind": "task", "task": task, **known, **times, "facts": facts})
        for earlier in range(task + 1):
            share = max(0.0, reached - 0.01 * (task - earlier) - draw.uniform(0, 0.05))
            events.append({"kind": "accuracy", "after": task, "task": earlier, "validation": share, "test": share})
    events.append({"kind": "finished", "weights": ""})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def measured(store: Path, page: Path) -> tuple[float, float]:
    """Seconds and megabytes of `softmask report` in a process of its own."""
    code = (
        "import resource, sys; from softmask.cli.report import write_report; from pathlib import Path;"
        "write_report(Path(sys.argv[1]), Path(sys.argv[2]));"
        "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    start = time.perf_counter()
    told = subprocess.run(
        [sys.executable, "-c", code, str(store), str(page)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    seconds = time.perf_counter() - start
    found = re.search(r"peak (\d+)", told.stdout)
    assert found is not None
    return seconds, int(found[1]) / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, page = Path(folder, "store"), Path(folder, "report.html")
        generate(store)
        seconds, memory = measured(store, page)
        size = page.stat().st_size / 1e6
    rows = [(RUNS, f"{seconds:.1f}", f"{memory:,.0f}", f"{size:.1f}")]
    columns = ("runs", "seconds (wanted: below 60)", "memory, MB (below 1,000)", "page, MB (below 8)")
    Report("report", columns, rows, []).publish({"seconds": seconds, "memory": memory, "size": size})


if __name__ == "__main__":
    main()
