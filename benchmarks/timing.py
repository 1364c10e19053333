"""Interleaved timing: variants take turns, so that whatever disturbs the machine disturbs all alike."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median and the middle half of the measurements."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{1e3 * self.median:.1f} ms ({1e3 * self.low:.1f} to {1e3 * self.high:.1f})"


def interleaved(
    variants: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    warmups: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Calls each variant in turn, `rounds` times."""
    for _ in range(warmups):
        for call in variants.values():
            call()
    seconds = paired(variants, rounds=rounds, clock=clock)
    return {name: summary(values) for name, values in seconds.items()}


def paired(
    variants: Mapping[str, Callable[[], Any]], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """The seconds of each call, round by round: what disturbs a round disturbs all variants in it."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            start = clock()
            call()
            seconds[name].append(clock() - start)
    return seconds


def summary(values: list[float]) -> Timing:
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return Timing(statistics.median(values), low, high)


def machine() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


@dataclass
class Report:
    """A table of what was measured, as JSON beside the others and as Markdown to be read."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    notes: list[str]

    def publish(self, details: Mapping[str, Any]) -> None:
        RESULTS.mkdir(exist_ok=True)
        plain = {key: _plain(value) for key, value in details.items()}
        content = {"machine": machine(), "columns": self.columns, "rows": self.rows, "notes": self.notes, **plain}
        (RESULTS / f"{self.name}.json").write_text(json.dumps(content, indent=1, default=str) + "\n")
        print(f"\n## {self.name}\n")
        print("| " + " | ".join(self.columns) + " |")
        print("|" + "|".join("---" for _ in self.columns) + "|")
        for row in self.rows:
            print("| " + " | ".join(str(cell) for cell in row) + " |")
        for note in self.notes:
            print(f"\n{note}")


def _plain(value: Any) -> Any:
    if isinstance(value, Timing):
        return asdict(value)
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value
