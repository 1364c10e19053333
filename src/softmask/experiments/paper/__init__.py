"""The paper's published numbers (Konishi et al., ICML 2023), or those of a CSV file, to be shown beside ours."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Collection, Mapping
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


@functools.cache
def protocols() -> list[dict[str, Any]]:
    """Other papers that share a protocol: its sequence and preset, and what they published by system."""
    return [json.loads((files("softmask.experiments.paper") / "gpm_protocol.json").read_text())]


def protocol_measure(measure: str, title: str, sequence: str, training: str) -> float | None:
    """ACC or BWT of a system on a sequence under another paper's protocol, of which the training is a part."""
    for protocol in protocols():
        if (protocol["sequence"], protocol["preset"]) == (sequence, training):
            value: float | None = protocol["systems"].get(title, {}).get(measure)
            return value
    return None


def protocol_sources(trained: Collection[tuple[str, str]]) -> list[str]:
    """Where the numbers of these sequences and trainings are from."""
    return [
        f"{each['sequence']}, preset {each['preset']}: {each['source']}"
        for each in protocols()
        if (each["sequence"], each["preset"]) in trained
    ]


@dataclass(frozen=True)
class Published:
    """Published ACC, FWT and BWT."""

    name: str = "paper"
    numbers: Mapping[tuple[str, str, str], float] | None = None
    """By measure, title and sequence; None for the paper's own tables and those of other papers' protocols."""

    def get(self, measure: str, title: str, sequence: str, training: str) -> float | None:
        """Under a training, by its name: other papers' numbers belong to their own."""
        if self.numbers is None:
            found = paper_measure(measure, title, sequence)
            return protocol_measure(measure, title, sequence, training) if found is None else found
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
