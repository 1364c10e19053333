"""One undisturbed run for all tests that compare with one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store, StoredRun
from tests.experiments.runs.examples import tiny_config


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """Never interrupted; its folder is only to be read."""
    return run(tiny_config(), Store(tmp_path_factory.mktemp("whole")))


@pytest.fixture
def copied_run(whole_run: StoredRun, tmp_path: Path) -> StoredRun:
    """The finished run in a store of its own, to be damaged."""
    folder = tmp_path / "store" / whole_run.path.name
    shutil.copytree(whole_run.path, folder)
    return StoredRun(folder)
