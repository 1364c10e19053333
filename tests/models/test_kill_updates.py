"""Kill -9 within a gate, more data, a removal and an export: the folder opens, and is as before or as after."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from softmask.core import RetentionError
from softmask.models import ContinualModel
from tests.models.examples import blobs, longer, small_model
from tests.models.test_growing import of_classes

pytestmark = pytest.mark.slow
MOMENTS = 20
TRAINING = longer(lr=0.01, epochs=12)
DESTRUCTIVE = longer(lr=1.0, epochs=12)


def refused(model: ContinualModel) -> None:
    x, y = blobs(0)
    with suppress(RetentionError):
        model.learn("third", (-3 * x, y), training=DESTRUCTIVE, retain=1.0, probe=3)
        raise AssertionError("it passed")


UPDATES: dict[str, Callable[[ContinualModel], object]] = {
    "gate that passes": lambda model: model.learn("third", blobs(2), training=TRAINING, retain=0.0, probe=3),
    "gate that refuses": refused,
    "more data": lambda model: model.learn("first", of_classes(0, 0, 1, 2), training=TRAINING, more=True, probe=2),
    "remove": lambda model: model.remove("first"),
    "export": lambda model: model.export(model.path.parent / "out", "first"),
}


def in_a_process(update: Callable[[ContinualModel], object], folder: Path, seconds: float | None) -> float:
    """The seconds that it took; it is killed after so many."""
    process = multiprocessing.get_context("fork").Process(target=lambda: update(ContinualModel.open(folder)))
    start = time.monotonic()
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert seconds is not None or process.exitcode == 0
    return time.monotonic() - start


def answers(folder: Path) -> dict[str, torch.Tensor]:
    model, x = ContinualModel.open(folder), blobs(7)[0]
    if any(task.probe for task in model.config.tasks):
        model.inspect(probe=True)
    return {name: model.probabilities(x, name) for name in model.tasks}


def alike(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].shape == expected[name].shape and torch.equal(found[name], expected[name]) for name in found
    )


@pytest.mark.parametrize("name", UPDATES)
def test_killed_at_twenty_moments(tmp_path: Path, name: str) -> None:
    model = small_model(tmp_path / "original", tasks=0, method="ncl" if "refuses" in name else "lwf")
    model.learn("first", of_classes(0, 0, 1), training=TRAINING, probe=6)
    model.learn("second", blobs(1), training=TRAINING, probe=4)
    before = answers(model.path)
    whole = shutil.copytree(model.path, tmp_path / "whole" / "m")
    took = in_a_process(UPDATES[name], whole, None)
    after, old = answers(whole), 0
    for moment in range(MOMENTS):
        folder = shutil.copytree(model.path, tmp_path / str(moment) / "m")
        in_a_process(UPDATES[name], folder, took * moment / (MOMENTS - 1))
        found = answers(folder)
        assert alike(found, before) or alike(found, after)
        old += alike(found, before)
        if name == "export" and (folder.parent / "out").exists():
            wholly = {file.name: file.read_bytes() for file in (whole.parent / "out").iterdir()}
            assert {file.name: file.read_bytes() for file in (folder.parent / "out").iterdir()} == wholly
        elif name == "export":
            ContinualModel.open(folder).export(folder.parent / "out", "first")
        if name not in ("export", "gate that refuses") and alike(found, before):
            UPDATES[name](ContinualModel.open(folder))  # the same again, after the kill
            assert answers(folder).keys() == after.keys()
    assert old >= 1, "the first kill comes before anything is written"
