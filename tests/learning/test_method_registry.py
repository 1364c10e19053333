"""Methods by name: each has a title of its own, by which tables tell it from others."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from softmask.errors import SoftmaskError
from softmask.learning.method import Method
from softmask.learning.registry import METHODS, register
from softmask.methods.spg import SPG


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    METHODS.names()
    before = dict(METHODS._entries)
    yield
    METHODS._entries.clear()
    METHODS._entries.update(before)


def test_a_title_is_not_inherited() -> None:
    @register("spg-more")
    class Plus(SPG):
        """More than that."""

    assert Plus.title == "spg-more"
    assert SPG.title == "SPG"


def test_without_a_title_the_name_is_one() -> None:
    @register("untitled")
    class Untitled(Method): ...

    assert METHODS.load("untitled").title == "untitled"


def test_the_title_of_another_is_refused() -> None:
    with pytest.raises(SoftmaskError, match="'spg' and 'better' have the same title, 'SPG'"):

        @register("better")
        class Better(SPG):
            title = "SPG"

    assert "better" not in METHODS.names()


class Undecorated:
    strength = 1.0


class HalfDecorated(SPG.Settings):
    strength: float = 1.0


@dataclass(frozen=True)
class WithoutDefault:
    strength: float


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Undecorated, "Undecorated must be a dataclass"),
        (HalfDecorated, "HalfDecorated must be a dataclass"),
        (WithoutDefault, "WithoutDefault: strength needs a default"),
    ],
)
def test_settings_are_a_dataclass_of_defaults(settings: type, said: str) -> None:
    """Told where the method is made known, not by a traceback when it is run."""
    with pytest.raises(SoftmaskError, match=said):
        register("unset")(type("Unset", (Method,), {"Settings": settings}))
    assert "unset" not in METHODS.names()
