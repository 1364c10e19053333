"""What can be set in a method, in words: each field with its default, its range and the reason that stands below it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One field of a method's `Settings`."""

    name: str
    kind: str
    """Its type, as it is written."""
    default: Any
    search: Mapping[str, Any] | None
    """Where `softmask search` looks, if it does: `low`, `high` and `log`, or `choices`."""
    about: str
    """The docstring below the field; nothing where there is none, or no source to read it from."""


def settings_card(settings: type) -> list[Setting]:
    about = _docstrings(settings)
    return [
        Setting(
            name=field.name,
            kind=field.type if isinstance(field.type, str) else inspect.formatannotation(field.type),
            default=_default(field),
            search=field.metadata.get("search"),
            about=about.get(field.name, ""),
        )
        for field in dataclasses.fields(settings)
    ]


def as_text(cards: list[Setting]) -> str:
    """Two lines or more for each, in the width of a card."""
    lines = []
    for each in cards:
        searched = "" if each.search is None else f"; searched: {range_in_words(each.search)}"
        lines.append(f"{each.name} = {shown(each.default)}  ({each.kind}{searched})")
        lines += textwrap.wrap(each.about, width=120, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def shown(value: Any) -> str:
    """As it may be typed after `--set`."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def range_in_words(search: Mapping[str, Any]) -> str:
    if search["choices"] is not None:
        return " or ".join(map(shown, search["choices"]))
    return f"{shown(search['low'])} to {shown(search['high'])}" + (", log scale" if search["log"] else "")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _docstrings(settings: type) -> dict[str, str]:
    """Python keeps no docstring of a field: it is read from the source, that of parent classes too."""
    found: dict[str, str] = {}
    for each in reversed(settings.__mro__):
        try:
            (written,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        except (OSError, TypeError, ValueError, SyntaxError):  # built in, typed in by hand, or made by a program
            continue
        if isinstance(written, ast.ClassDef):
            for field, below in itertools.pairwise(written.body):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found.pop(field.target.id, None)
                    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                        found[field.target.id] = " ".join(str(below.value.value).split())
    return found
