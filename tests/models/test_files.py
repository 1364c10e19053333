"""Files in a model's folder beside the model: who may read them, and which are in the way."""

from __future__ import annotations

import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
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


def test_a_history_with_a_second_name_is_not_written(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    other = tmp_path / "other"
    other.write_text("dear to its owner")
    (model.path / "history.jsonl").unlink()
    os.link(other, model.path / "history.jsonl")
    with pytest.warns(UserWarning, match="hard link"):
        model.learn("another", blobs(1), training=QUICK)
    assert other.read_text() == "dear to its owner"
    assert ContinualModel.open(model.path).tasks == ("task 0", "another")


def test_the_state_has_the_names_of_the_modules(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    names = load_file(model.path / "generation-000001.safetensors")
    assert {"backbone.fc1.layer.weight", "heads.0.weight"} <= set(names)


def test_a_folder_of_version_0_1_is_opened(tmp_path: Path) -> None:
    """Its state has names with a slash and a checksum without the header, its config calls the free capacity room."""
    model = small_model(tmp_path / "model")
    before = model.probabilities(blobs(0)[0], 0)
    config = json.loads((model.path / "config.json").read_text())
    for task in config["tasks"]:
        task["room"] = task.pop("free_capacity")
    (model.path / "config.json").write_text(json.dumps(config))
    file = model.path / "generation-000001.safetensors"
    with safe_open(file, "pt") as opened:
        state = opened.metadata()["state"]
    tensors = {f"/{name}": tensor for name, tensor in load_file(file).items()}
    total = 0
    for _, tensor in sorted(tensors.items()):
        total = zlib.crc32(tensor.numpy().tobytes(), total)
    renamed = state.replace('{"tensor": "', '{"tensor": "/')
    save_file(tensors, file, metadata={"format": "1", "state": renamed, "checksum": f"{total:08x}"})
    again = ContinualModel.open(model.path)
    assert again.config == model.config
    assert torch.equal(again.probabilities(blobs(0)[0], 0), before)
    again.learn("another", blobs(1), training=QUICK)
