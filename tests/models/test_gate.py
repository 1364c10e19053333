"""The gate of a model folder: forgetting is refused, and the folder is as it was to the bit."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from softmask.core import RetentionError
from softmask.errors import DataError, SoftmaskError
from softmask.models import ContinualModel
from tests.models.examples import QUICK, blobs, longer, small_model

DESTRUCTIVE = longer(lr=1.0, epochs=12)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith("lease")}


@pytest.fixture
def known(tmp_path: Path) -> ContinualModel:
    """Plain fine-tuning, which forgets, with kept samples of its one task."""
    model = small_model(tmp_path / "known", tasks=0, method="ncl")
    model.learn("old", blobs(0), training=QUICK, probe=20)
    return model


def flipped(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same points under swapped labels, through a new head: what the backbone knows is turned upside down."""
    x, y = blobs(seed)
    return -3 * x, y


def test_a_task_that_makes_it_forget_leaves_the_folder_as_it_was(known: ContinualModel) -> None:
    before, answers = content(known.path), known.probabilities(blobs(0)[0], "old")
    with pytest.raises(RetentionError) as refused:
        known.learn("new", flipped(0), training=DESTRUCTIVE, retain=1.0, probe=5)
    assert content(known.path) == before
    assert known.tasks == ContinualModel.open(known.path).tasks == ("old",)
    assert torch.equal(known.probabilities(blobs(0)[0], "old"), answers)
    curve = refused.value.curves["old"]
    assert len(curve) == 1 + DESTRUCTIVE.epochs + 1, "as learned, after each epoch, and what would have been kept"
    assert curve[-1] < curve[0]


def test_without_a_gate_the_same_task_is_learned(known: ContinualModel) -> None:
    known.learn("new", flipped(0), training=DESTRUCTIVE)
    (drift,) = known.inspect(probe=True).drift
    assert drift.accuracy_now is not None
    assert drift.accuracy_then is not None
    assert drift.accuracy_now < drift.accuracy_then


def test_a_task_that_passes_is_the_same_as_without_a_gate(known: ContinualModel) -> None:
    other = ContinualModel.open(shutil.copytree(known.path, known.path.parent / "other"))
    epochs: list[int] = []
    known.learn("new", blobs(1), training=QUICK, retain=0.0, watch=lambda _, fit: epochs.append(fit.epoch))
    other.learn("new", blobs(1), training=QUICK)
    assert torch.equal(known.probabilities(blobs(1)[0], "new"), other.probabilities(blobs(1)[0], "new"))
    assert epochs == [1, 2, 3, 4], "whoever watches goes on watching"


def test_a_first_task_has_nothing_to_retain(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m", tasks=0)
    assert model.learn("first", blobs(0), training=QUICK, retain=1.0).name == "first"


def test_a_task_of_which_nothing_was_kept_cannot_be_judged(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m", tasks=1)
    before = content(model.path)
    with pytest.raises(SoftmaskError, match="task 0"):
        model.learn("new", blobs(1), training=QUICK, retain=0.9)
    assert content(model.path) == before


def test_answers_without_labels_are_kept_later(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m", tasks=1, method="ncl")
    model.keep_probe("task 0", blobs(0)[0])
    (drift,) = ContinualModel.open(model.path).inspect(probe=True).drift
    assert (drift.samples, drift.accuracy_then, drift.changed, drift.curve) == (60, None, 0.0, (1.0, 1.0))
    before = content(model.path)
    with pytest.raises(RetentionError):
        model.learn("new", flipped(0), training=DESTRUCTIVE, retain=1.0)
    assert content(model.path) == before
    with pytest.raises(SoftmaskError, match="already"):
        model.keep_probe("task 0", blobs(0)[0])


def test_a_probe_of_which_the_description_says_nothing_does_no_harm(tmp_path: Path) -> None:
    """As a kill leaves it between the two files."""
    model = small_model(tmp_path / "m", tasks=1)
    config = (model.path / "config.json").read_bytes()
    model.keep_probe("task 0", blobs(0)[0])
    (model.path / "config.json").write_bytes(config)
    again = ContinualModel.open(model.path)
    assert again.config.tasks[0].probe == 0
    again.keep_probe("task 0", blobs(0)[0][:7])
    assert again.inspect(probe=True).drift[0].samples == 7


def test_nothing_to_keep_and_senseless_shares_are_refused(known: ContinualModel) -> None:
    with pytest.raises(ValueError, match="share"):
        known.learn("new", blobs(1), retain=98)
    model = small_model(known.path.parent / "m", tasks=1)
    with pytest.raises(DataError):
        model.keep_probe("task 0", torch.zeros(0, 6))
    assert dataclasses.asdict(model.config)["tasks"][0]["probe"] == 0
