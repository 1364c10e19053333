"""What every registered method must do."""

from pathlib import Path

import pytest

from softmask.learning.catalogue import METHODS
from softmask.learning.method import Method
from softmask.testing import METHOD_CHECKS


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", METHODS.names())
def test_contract(name: str, check, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.parametrize("name", METHODS.names())
def test_has_a_card_and_is_named_like_its_file(name: str) -> None:
    entry = METHODS.entry(name)
    assert issubclass(entry.thing, Method)
    assert entry.thing.title
    assert entry.thing.__module__.rsplit(".", 1)[1].replace("_", "-") == name
    assert len(entry.card.splitlines()) >= 4
    assert entry.card.partition("\n")[0].endswith(".")
