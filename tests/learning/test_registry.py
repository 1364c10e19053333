"""Finding things by name."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from softmask.errors import SoftmaskError, UnknownName
from softmask.learning.method import Method
from softmask.learning.registry import METHODS, Registry, register
from softmask.methods.spg import SPG


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "found_things"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from softmask.learning.registry import Registry\nTHINGS = Registry('thing', 'found_things')\n"
    )
    (folder / "first_file.py").write_text(
        '"""A card.\n\nMore."""\nfrom found_things import THINGS\n\n'
        "@THINGS.register('first-file', colour='red')\ndef first(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "found_things"
    for name in [name for name in sys.modules if name.startswith("found_things")]:
        del sys.modules[name]


def things() -> Registry:
    import found_things

    return found_things.THINGS


def test_files_are_found_with_their_facts_and_card(package: str) -> None:
    assert things().names() == ["first-file"]
    entry = things().entry("first-file")
    assert entry.facts == {"colour": "red"}
    assert entry.card.startswith("A card.")


def test_a_wrong_name_says_the_nearest(package: str) -> None:
    with pytest.raises(UnknownName, match="unknown thing 'First-fil': did you mean 'first-file'"):
        things().load("First-fil")


def test_two_of_one_name_are_refused(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "second.py").write_text(
        "from found_things import THINGS\n\n@THINGS.register('first-file')\ndef other(): ...\n"
    )
    with pytest.raises(SoftmaskError, match=r"two things are called 'first-file'.*first_file\.first.*second\.other"):
        things().names()


def test_a_broken_file_is_an_error_not_a_gap(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "broken.py").write_text("import there_is_no_such_module\n")
    with pytest.raises(ModuleNotFoundError):
        things().names()


def test_other_packages_join_by_entry_points(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere() -> None: ...

    class Point:
        name, value = "elsewhere", "other_package:elsewhere"

        def load(self):
            things().register("elsewhere")(elsewhere)

    monkeypatch.setattr("softmask.learning.registry.entry_points", lambda group: [Point()] if group == package else [])
    assert things().names() == ["elsewhere", "first-file"]


def test_a_broken_entry_point_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("theirs", "no_such_package:thing", package)
    monkeypatch.setattr("softmask.learning.registry.entry_points", lambda group: [point])
    with pytest.warns(UserWarning, match=r"'theirs' .no_such_package:thing. does not load"):
        assert things().names() == ["first-file"], "one broken package does not take the others with it"
    with pytest.raises(SoftmaskError, match=r"'theirs' .no_such_package:thing. does not load"):
        things().load("theirs")


class Load:
    """An entry point whose loading does something."""

    value = "their_package.module"

    def __init__(self, name: str, load: Callable[[], None]) -> None:
        self.name, self.load = name, load


def elsewhere() -> None: ...


def somewhere() -> None: ...


def half_loaded() -> None:
    things().register("half")(elsewhere)
    raise ValueError("the rest is missing")


@pytest.mark.parametrize("broken", [half_loaded, sys.exit], ids=["half a module", "exit"])
def test_of_a_package_that_fails_halfway_nothing_is_left(
    package: str, monkeypatch: pytest.MonkeyPatch, broken: Callable[[], None]
) -> None:
    monkeypatch.setattr("softmask.learning.registry.entry_points", lambda group: [Load("half", broken)])
    with pytest.warns(UserWarning, match="'half' .* does not load"):
        assert things().names() == ["first-file"]
    with pytest.raises(SoftmaskError, match=r"'half' .* does not load"):
        things().entry("half")


@pytest.mark.filterwarnings("ignore:.*does not load")
def test_a_name_that_two_packages_give_means_neither(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever came first would be run in the other's place, into the same folders."""
    points = [Load(each.__name__, partial(things().register("theirs"), each)) for each in (elsewhere, somewhere)]
    monkeypatch.setattr("softmask.learning.registry.entry_points", lambda group: points)
    assert things().names() == ["first-file"]
    with pytest.raises(SoftmaskError, match=r"two things are called 'theirs': .*elsewhere and .*somewhere.*rename one"):
        things().load("theirs")


def test_who_registers_a_taken_name_by_hand_leaves_it_to_the_first(package: str) -> None:
    """As in a notebook, where the second is given another name and all goes on."""
    things().register("mine")(elsewhere)
    with pytest.raises(SoftmaskError, match="two things are called 'mine'"):
        things().register("mine")(somewhere)
    assert things().load("mine") is elsewhere


def test_a_package_cannot_take_the_place_of_ours(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = Load("first-file", lambda: things().register("first-file")(elsewhere))
    monkeypatch.setattr("softmask.learning.registry.entry_points", lambda group: [point])
    with pytest.warns(UserWarning, match="two things are called 'first-file'"):
        assert things().load("first-file").__name__ == "first"


@pytest.mark.parametrize("name", ["a/b", "a,b", "", "-a", "a b", "../a"])
def test_a_name_can_be_that_of_a_folder(package: str, name: str) -> None:
    with pytest.raises(SoftmaskError, match="a name has letters, digits"):
        things().register(name)


def test_a_card_without_its_module(package: str) -> None:
    """As of what was typed in by hand, or of a module that is gone."""
    gone = type("Gone", (), {"__module__": "gone_away", "__doc__": "A card of its own."})
    things().register("gone")(gone)
    assert things().entry("gone").card == "A card of its own."


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


def test_a_family_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SoftmaskError, match=r"'strange'.*its family is one of reference, regularisation, .*'magic'"):

        @register("strange")
        class Strange(Method):
            family = "magic"

    assert "strange" not in METHODS.names()


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
