"""Colours that colour-blind readers can tell apart (after Okabe and Ito), the same for a system in every figure."""

from __future__ import annotations

# Light and dark ground: same hue, enough contrast on either.
COLOURS = (
    ("#0067a5", "#62b4f0"),
    ("#c8480a", "#f08a55"),
    ("#00795a", "#3fc79a"),
    ("#a4407e", "#dd8abb"),
    ("#8a6a00", "#dcb53c"),
    ("#5b4fb0", "#a79df0"),
    ("#4a4a4a", "#c4c4c4"),
)
FIRST = ("SPG", "NCL", "HAT", "WSN", "EWC", "ONE", "MTL")
OTHERS = (
    *("A-GEM", "PGN", "PathNet", "CAT", "SupSup", "UCL", "SI", "TAG", "EWC-GI", "SPG-FI"),
    *("SPG (w/o CHI)", "SPG (w/o SMH)", "SPG (w/ hard-masking)"),
)
DASHES = ("", "6 3", "2 3", "9 3 2 3")


def style(label: str, place: int) -> tuple[int, int]:
    """Index of the colour and of the dash; a system has its own, whatever else is in the figure."""
    known = FIRST + OTHERS
    index = known.index(label) if label in known else len(known) + place
    return index % len(COLOURS), index // len(COLOURS) % len(DASHES)
