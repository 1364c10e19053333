"""A store with one small run and its reference, made once and only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Ended, softmask, tiny


@pytest.fixture(autouse=True)
def _no_settings_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOFTMASK_DATA", "SOFTMASK_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli") / "store"


@pytest.fixture(scope="session")
def alone(store: Path) -> Ended:
    """`softmask run` before its reference was there."""
    return softmask(*tiny("spg", "--store", store))


@pytest.fixture(scope="session")
def with_one(store: Path, alone: Ended) -> Ended:
    """The same command again, now with the reference."""
    return softmask(*tiny("spg", "--store", store, "--with-one"))
