"""What stands in a model's folder beside the model: who may read it, and what is in the way."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from softmask import ContinualModel
from softmask.errors import SoftmaskError
from tests.models.examples import QUICK, blobs, small_model


def test_files_may_be_read_by_whom_the_user_lets(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        small_model(tmp_path / "model")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").glob("*.*") if "lease" not in path.name}
    assert modes == {0o640}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    (model.path / "history.jsonl").unlink()
    os.mkfifo(model.path / "history.jsonl")
    with pytest.warns(UserWarning, match="not a plain file"):
        model.learn("another", blobs(1), training=QUICK)
    assert ContinualModel.open(model.path).tasks == ("task 0", "another")


@pytest.mark.parametrize("name", ["generation-000002.safetensors", "generation-000002.safetensors.tmp"])
def test_a_folder_in_the_way_is_told_in_words(tmp_path: Path, name: str) -> None:
    model = small_model(tmp_path / "model")
    (model.path / name).mkdir()
    with pytest.raises(SoftmaskError, match="is in the way"):
        model.learn("another", blobs(1), training=QUICK)
    assert ContinualModel.open(model.path).tasks == ("task 0",)


class Counting(nn.Linear):
    """Counts in its extra state how often it was used."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def counting() -> nn.Module:
    return nn.Sequential(Counting(6, 8), nn.ReLU())


def test_extra_state_of_a_network_of_ones_own_is_kept(tmp_path: Path) -> None:
    model = ContinualModel.create(tmp_path / "model", counting, (6,))
    model.learn("first", blobs(0), training=QUICK)
    again = ContinualModel.open(tmp_path / "model", counting)
    assert again._method.backbone[0].calls > 0
    assert again.predict(torch.zeros(1, 6), task="first")
