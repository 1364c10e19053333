"""Where real data are, if they are there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from softmask.errors import DataError
from softmask.experiments.sequences.checking import find

REPOSITORY = Path(__file__).parents[3]


def data_folder() -> Path:
    """The folder with real data; skips the test where there is none."""
    root = Path(os.environ.get("SOFTMASK_DATA") or REPOSITORY.parent / "shared" / "data")
    if not root.exists():
        pytest.skip("no real data: set SOFTMASK_DATA")
    return root


def data_for(name: str) -> Path:
    """The same; skips also where the folder has nothing for this sequence."""
    root = data_folder()
    try:
        find(name, root)
    except DataError as error:
        pytest.skip(str(error))
    return root
