"""The numbers of the paper's tables (Konishi et al., ICML 2023), to be shown beside ours."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any


@functools.cache
def paper_tables() -> dict[str, Any]:
    return dict(json.loads((files("softmask.experiments.paper") / "tables.json").read_text()))


def paper_value(table: str, title: str, sequence: str) -> float | None:
    """The mean that the paper gives for a system on a sequence; None where it gives none."""
    cell = paper_tables()[table].get(title, {}).get(sequence)
    return cell["mean"] if isinstance(cell, dict) else cell
