"""The paper's published numbers (Konishi et al., ICML 2023), or those of a CSV file, to be shown beside ours."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from softmask.errors import DataError
from softmask.storage.reading import read_plain

MEASURES = {"ACC": "accuracy", "FWT": "forward_transfer", "BWT": "backward_transfer"}


@functools.cache
def paper_tables() -> dict[str, Any]:
    return dict(json.loads((files("softmask.experiments.paper") / "tables.json").read_text()))


def paper_value(table: str, title: str, sequence: str) -> float | None:
    """The paper's mean for a system on a sequence; None where it has none."""
    cell = paper_tables()[table].get(title, {}).get(sequence)
    return cell["mean"] if isinstance(cell, dict) else cell


def paper_measure(measure: str, title: str, sequence: str) -> float | None:
    """ACC, FWT or BWT; accuracies of the ablations are in a table of their own."""
    found = paper_value(MEASURES[measure], title, sequence)
    return paper_value("ablation_accuracy", title, sequence) if found is None and measure == "ACC" else found


@dataclass(frozen=True)
class Published:
    """ACC, FWT and BWT as somebody published them."""

    name: str = "paper"
    numbers: Mapping[tuple[str, str, str], float] | None = None
    """By measure, title and sequence; None for the paper's own tables."""

    def get(self, measure: str, title: str, sequence: str) -> float | None:
        if self.numbers is None:
            return paper_measure(measure, title, sequence)
        return self.numbers.get((measure, title, sequence))

    def systems(self) -> list[tuple[str, str]]:
        """Sequence and title of everything in the file."""
        return list(dict.fromkeys((sequence, title) for _, title, sequence in self.numbers or ()))


PAPER = Published()


def read_published(file: Path) -> Published:
    """A CSV with the columns method, sequence and at least one of ACC, FWT, BWT. Its name is shown beside them."""
    import pandas as pd

    try:
        frame = pd.read_csv(io.BytesIO(read_plain(file)), dtype={"method": str, "sequence": str})
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not a readable CSV file: {str(error).splitlines()[0]}") from None
    measures = [name for name in MEASURES if name in frame.columns]
    if not measures or not {"method", "sequence"} <= set(frame.columns):
        raise DataError(f"{file} needs the columns method, sequence and at least one of {', '.join(MEASURES)}")
    numbers: dict[tuple[str, str, str], float] = {}
    for measure in measures:
        values = pd.to_numeric(frame[measure], errors="coerce")
        if (wrong := frame[values.isna() & frame[measure].notna()]).size:
            raise DataError(f"{file}: {measure} of {wrong.iloc[0]['method']} is not a number")
        rows = zip(frame["method"], frame["sequence"], values, strict=True)
        numbers |= {(measure, title, sequence): float(v) for title, sequence, v in rows if v == v}
    return Published(file.stem, numbers)
