"""The settings of a method: defaults, ranges, and the docstrings below the fields."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import Any

import pytest

from softmask.learning.registry import METHODS
from softmask.learning.settings import as_text, new_field, omit_new_defaults, search, settings_card, shown


@dataclass(frozen=True)
class Parent:
    """Is not the docstring of a field."""

    rate: float = search(2.5e-4, low=1e-5, high=5e-3, log=True)
    """How fast: in two
    lines."""
    bare: int = 3
    changed: str = "old"
    """Docstring of the parent."""


@dataclass(frozen=True)
class Child(Parent):
    kind: str = search("a", choices=("a", "b"))
    """One [or] the other."""
    changed: str = "new"
    names: list[str] = field(default_factory=lambda: ["x"])


def test_fields_with_those_of_the_parent() -> None:
    cards = {each.name: each for each in settings_card(Child)}
    assert {name: (each.default, each.about) for name, each in cards.items()} == {
        "rate": (2.5e-4, "How fast: in two lines."),
        "bare": (3, ""),
        "changed": ("new", ""),  # not what the parent says of its own
        "kind": ("a", "One [or] the other."),
        "names": (["x"], ""),
    }
    assert cards["rate"].search == {"low": 1e-5, "high": 5e-3, "log": True, "choices": None}
    assert cards["bare"].search is None


def test_in_words() -> None:
    assert as_text(settings_card(Child)).splitlines() == [
        "rate = 0.00025  (float; searched: 1e-05 to 0.005, log scale)",
        "    How fast: in two lines.",
        "bare = 3  (int)",
        "changed = new  (str)",
        "kind = a  (str; searched: a or b)",
        "    One [or] the other.",
        'names = ["x"]  (list[str])',
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (True, "true"), (0.123456789, "0.123456789"), (1e5, "100000"), ("a b", "a b")]
)
def test_values_as_they_may_be_typed(value: Any, text: str) -> None:
    assert shown(value) == text


def test_without_a_source_nothing_is_said() -> None:
    """As for a class that was typed in, or that a program made."""
    (made,) = settings_card(make_dataclass("Made", [("size", int, 4)]))
    assert (made.name, made.kind, made.default, made.about) == ("size", "int", 4, "")


@pytest.mark.parametrize("name", METHODS.names())
def test_every_setting_of_ours_gives_its_reason(name: str) -> None:
    assert all(each.about for each in settings_card(METHODS.load(name).Settings))


def test_new_fields_are_left_out_at_their_defaults_alone() -> None:
    @dataclass(frozen=True)
    class Grown:
        old: int = 1
        later: int | None = new_field(None)

    assert omit_new_defaults(Grown, {"old": 1, "later": None}) == {"old": 1}
    assert omit_new_defaults(Grown, {"old": 1, "later": 3}) == {"old": 1, "later": 3}
