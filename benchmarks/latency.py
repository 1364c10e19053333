"""From the command to the first trained batch: `softmask run` on D-5 in a fresh process."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from .timing import Report, summary

CODE = """
import time, sys
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import build, load
config = make_config("spg", "D-5", preset="short")
sequence = load(config, None)
method = build(config, sequence)
task = method.stages(sequence.tasks, config.training)[0]
method.begin_task(task)
optimizer = method.make_optimizer(0.1)
from softmask.learning.method import Step
x, y = next(iter(task.train))
method.loss(Step(task, x, y)).backward()
optimizer.step()
"""


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    found = {"import torch": "import torch", "import softmask": "import softmask", "first batch of D-5": CODE}
    timings = {name: summary([seconds(code) for _ in range(5)]) for name, code in found.items()}
    rows: list[tuple[Any, ...]] = [(name, f"{timing.median:.2f} s") for name, timing in timings.items()]
    Report("latency", ("from a fresh process", "time"), rows, []).publish(timings)


if __name__ == "__main__":
    main()
