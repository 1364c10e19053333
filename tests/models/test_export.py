"""What is exported answers as the model does, without softmask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from softmask.errors import ConfigError, SoftmaskError, UnknownName
from softmask.models import ContinualModel
from tests.models.examples import QUICK, blobs, small_model


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU())


def of_images(path: Path, network: str = "alexnet", method: str = "spg") -> tuple[ContinualModel, torch.Tensor]:
    """A model that knows two tasks of images, and images."""
    model = ContinualModel.create(
        path, network, (3, 16, 16), width=1 / 16, method=method, mean=(0.1, 0.2, 0.3), std=(0.5, 1.5, 2.5)
    )
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (20, 3, 16, 16), dtype=torch.uint8, generator=generator)
    for name, classes in (("first", 2), ("second", 3)):
        model.learn(name, (pixels, torch.arange(20) % classes), training={"epochs": 1})
    return model, pixels


@pytest.mark.parametrize("network", ["alexnet", "mlp", "resnet18"])
def test_a_program_of_torch_takes_batches_of_any_size(tmp_path: Path, network: str) -> None:
    model, pixels = of_images(tmp_path / "m", network)
    model.export(tmp_path / "out", "second", ["torch"])
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    for part in (pixels, pixels[:1]):
        torch.testing.assert_close(program(part / 255), model.probabilities(part, "second"), atol=1e-5, rtol=0)


def test_onnx_gives_the_same_probabilities(tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    model, pixels = of_images(tmp_path / "m")
    model.export(tmp_path / "out", "second", ["onnx"])
    session = runtime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    for part in (pixels, pixels[:1]):
        (found,) = session.run(None, {"x": (part / 255).numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model.probabilities(part, "second"), atol=1e-4, rtol=0)


def test_weights_load_by_the_names_of_the_modules(tmp_path: Path) -> None:
    x = blobs(0)[0]
    model = ContinualModel.create(tmp_path / "m", layers, (6,))
    model.learn("task", blobs(0), training=QUICK, classes=["a", "b"])
    model.export(tmp_path / "out", "task")
    state = load_file(tmp_path / "out" / "weights.safetensors")
    plain, head = layers(), nn.Linear(8, 2)
    plain.load_state_dict({k.removeprefix("backbone."): v for k, v in state.items() if k.startswith("backbone.")})
    head.load_state_dict({k.removeprefix("head."): v for k, v in state.items() if k.startswith("head.")})
    torch.testing.assert_close(head(plain(x)).softmax(1), model.probabilities(x, "task"))
    about = json.loads((tmp_path / "out" / "labels.json").read_text())
    assert (about["classes"], about["input_shape"], about["mean"]) == (["a", "b"], [6], None)


def test_labels_tell_how_images_are_normalised(tmp_path: Path) -> None:
    model, _ = of_images(tmp_path / "m", "mlp")
    model.export(tmp_path / "out", "second")
    about = json.loads((tmp_path / "out" / "labels.json").read_text())
    assert (about["task"], about["mean"], about["std"]) == ("second", [0.1, 0.2, 0.3], [0.5, 1.5, 2.5])


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model, pixels = of_images(tmp_path / "m")
    before = model.probabilities(pixels, "first")
    model.export(tmp_path / "out", "first", ["safetensors", "torch"])
    assert torch.equal(model.probabilities(pixels, "first"), before)
    assert model.learn("third", (pixels, torch.arange(20) % 2), training={"epochs": 1}).name == "third"


def test_an_export_is_complete_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(tmp_path / "m")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("softmask.models.export.save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        model.export(tmp_path / "out", "task 0")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m")
    with pytest.raises(SoftmaskError, match="exists"):
        model.export(tmp_path / "m", "task 0")
    with pytest.raises(UnknownName):
        model.export(tmp_path / "out", "tusk 0")
    for formats in (["pickle"], []):
        with pytest.raises(ConfigError, match="format"):
            model.export(tmp_path / "out", "task 0", formats)
    assert not (tmp_path / "out").exists()
