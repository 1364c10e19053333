"""Finding things by name."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

from softmask.errors import SoftmaskError, UnknownName
from softmask.learning.registry import Registry


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
