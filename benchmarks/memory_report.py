"""The results of `memory` as tables in docs/core.md, and what they mean for a model of seven billion parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .timing import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "core.md"
MARKS = "<!-- {}: written by make bench NAME=memory -->", "<!-- end of {} -->"

# A language model of the usual make (Touvron et al., 2023): 32 blocks, 4096 units, 11008 in between, 32000 words.
BLOCKS, WIDTH, INNER, WORDS = 32, 4096, 11008, 32000
LAYERS = [(WIDTH, WIDTH)] * 4 + [(WIDTH, INNER)] * 2 + [(INNER, WIDTH)]
"""Inputs and outputs of the layers of a block."""
COUNT = BLOCKS * sum(i * o for i, o in LAYERS) + 2 * WORDS * WIDTH + (2 * BLOCKS + 1) * WIDTH
LARGEST = WORDS * WIDTH
LORA = BLOCKS * sum(16 * (i + o) for i, o in LAYERS)
"""Adapters of rank 16 on every layer of every block."""
QUANTISED = 0.5
"""Bytes per parameter in four bits; the scales of the blocks come on top."""


def load() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / "memory.json").read_text())
    return content


def cost_table(content: Mapping[str, Any]) -> str:
    """One row a way: bytes per parameter beyond the bare loop, and the time of a step against it."""
    cells = {(c["network"], c["optimizer"], c["dtype"], c["way"]): c for c in content["cells"]}
    columns = [(n, o, d) for n, o, d, way in cells if way == "bare loop"]
    lines = [
        "| beyond the bare loop | " + " | ".join(_title(column) for column in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for way in dict.fromkeys(c["way"] for c in content["cells"]):
        shown = [_shown(cells[(*column, way)], content["times"]) for column in columns]
        lines.append(f"| {way} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _title(column: tuple[str, str, str]) -> str:
    network, optimizer, dtype = column
    return f"{network}, {optimizer}" + ("" if dtype == "float32" else f", {dtype}")


def bare_loop(way: str) -> str:
    return "LoRA: bare loop" if way.startswith("LoRA") else "bare loop"


def time_ratio(cell: Mapping[str, Any], times: Mapping[str, Any]) -> float | None:
    """Of a step to that of the bare loop; None where it was not timed."""
    found = times[f"{cell['network']} {cell['optimizer']}"] if cell["dtype"] == "float32" else {}
    if cell["way"] not in found:
        return None
    ratio: float | None = found[cell["way"]].get("ratio")  # results of before 0.2 have medians alone
    return ratio or found[cell["way"]]["median"] / found[bare_loop(cell["way"])]["median"]


def _shown(cell: Mapping[str, Any], times: Mapping[str, Any]) -> str:
    ratio = time_ratio(cell, times)
    if cell["way"].endswith("bare loop"):
        found = times[f"{cell['network']} {cell['optimizer']}"]
        time = "" if ratio is None else f", {1e3 * found[cell['way']]['median']:.0f} ms"
        return f"{cell['bytes']:.1f} B in all{time}"
    return f"{_signed(cell['beyond']['step'])} B" + ("" if ratio is None else f", {ratio:.2f} x")


def _signed(number: float) -> str:
    return f"{round(number, 2) + 0.0:+.2f}"


def consolidate_table(content: Mapping[str, Any]) -> str:
    lines = ["| beyond the peak of a bare step | `consolidate` | with three old heads |", "|---|---|---|"]
    for cell in content["cells"]:
        if "consolidate" in cell["beyond"]:
            dtype = "" if cell["dtype"] == "float32" else f", {cell['dtype']}"
            name = f"{cell['network']}{dtype}: {cell['way']}"
            both = (_signed(cell["beyond"][key]) for key in ("consolidate", "consolidate, old heads"))
            lines.append(f"| {name} | " + " | ".join(f"{each} B" for each in both) + " |")
    return "\n".join(lines)


def seven_billion(content: Mapping[str, Any]) -> str:
    """Measured bytes per parameter times the number of parameters; the largest layer is that of the large model."""
    cells = {c["way"]: c for c in content["cells"] if c["dtype"] == "bfloat16"}
    wide = {c["way"]: c for c in content["cells"] if (c["network"], c["optimizer"], c["dtype"]) == WIDE}

    def full(way: str) -> float:
        cell = cells[way]
        copied = cell["largest"] if way.startswith("SoftMask") else 0.0
        return COUNT * (cell["beyond"]["step"] - copied) + (2 * LARGEST if copied else 0)

    def bare(cell: Mapping[str, Any]) -> float:
        return round(cell["bytes"])  # whole bytes: the rest is work on a layer, and a small batch

    adapters = LORA * bare(wide["bare loop"])
    of_adapters = LORA * (wide["SoftMask, uint8"]["beyond"]["step"] - wide["SoftMask, uint8"]["largest"])
    rank = 32
    moments = 16 * rank * BLOCKS * sum(i for i, _ in LAYERS)
    squares = 12 * BLOCKS * sum(i * i for i, _ in LAYERS)
    rows = [
        ("full, AdamW, all in bfloat16", COUNT * bare(cells["bare loop"]), "the bare loop"),
        ("", full("SoftMask, uint8"), "`SoftMask`, uint8"),
        ("", full("SoftMask, bfloat16"), "`SoftMask`, bfloat16"),
        ("", full("protect, bfloat16"), "`protect`, or `KeepAnswers` with a copy"),
        ("", moments, f"`SubspaceMask`, rank {rank} (by its shapes: 16 bytes an entry)"),
        ("", squares, "`SubspaceMask` without a rank (12 bytes an entry)"),
        (f"LoRA of rank 16 ({LORA / 1e6:.0f} million, float32) on bfloat16", 2 * COUNT + adapters, "the bare loop"),
        ("", 0, '`KeepAnswers`, `teacher="adapter-off"`: no copy'),
        ("", of_adapters, "`SoftMask` of the adapters, uint8"),
        ("the same on four bits (QLoRA)", QUANTISED * COUNT + adapters, "the bare loop"),
        ("", 0, '`KeepAnswers`, `teacher="adapter-off"`: no copy'),
    ]
    lines = ["| training | | GB |", "|---|---|---|"]
    lines += [f"| {title} | {what} | {'' if title else '+ '}{size / 1e9:.2f} |" for title, size, what in rows]
    return "\n".join(lines)


WIDE = ("transformer", "AdamW", "float32")
TABLES = {"cost of a step": cost_table, "cost of consolidate": consolidate_table, "seven billion": seven_billion}


def tables_in(text: str, content: Mapping[str, Any]) -> str:
    """The page with each table anew, between its marks."""
    for name, table in TABLES.items():
        begin, end = (mark.format(name) for mark in MARKS)
        before, found, rest = text.partition(begin)
        if not found:
            raise ValueError(f"the page has no place for the table {name!r}")
        text = f"{before}{begin}\n\n{table(content)}\n\n{end}{rest.partition(end)[2]}"
    return text


def publish_tables() -> None:
    PAGE.write_text(tables_in(PAGE.read_text(), load()))
