"""Exports a task of a model for other programs: plain weights with labels, a torch.export program, ONNX."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from softmask.errors import ConfigError, SoftmaskError
from softmask.learning.networks import Backbone
from softmask.learning.task import Normalisation

FORMATS = ("safetensors", "torch", "onnx")
ONNX_OPSET = 18


class OneTask(nn.Module):
    """A module of standard layers from inputs to the probabilities of one task.

    For a task that was learned from images, inputs are pixels from 0 to 1; the normalisation is part of the module.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, normalise: Normalisation | None) -> None:
        super().__init__()
        layers = nn.Sequential(*backbone.plain_layers()) if isinstance(backbone, Backbone) else backbone
        self.backbone, self.head = copy.deepcopy(layers).cpu(), copy.deepcopy(head).cpu()
        if normalise is not None:
            for name, values in (("mean", normalise.mean), ("std", normalise.std)):
                self.register_buffer(name, torch.tensor(values).view(-1, 1, 1))
        self.normalises = normalise is not None
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.normalises:
            x = (x - self.mean) / self.std  # type: ignore[operator]
        answers: Tensor = self.head(self.backbone(x)).softmax(1)
        return answers


def _require_known(formats: Sequence[str]) -> None:
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"there is no export format {name!r}; known: {', '.join(FORMATS)}")
    if not formats:
        raise ConfigError(f"name at least one format to export: {', '.join(FORMATS)}")


def write_export(
    folder: Path,
    backbone: nn.Module,
    head: nn.Module,
    normalise: Normalisation | None,
    about: dict[str, Any],
    formats: Sequence[str],
) -> None:
    """Writes a new folder with `labels.json` and a file for each format, atomically."""
    _require_known(formats)
    if folder.exists():
        raise SoftmaskError(f"{folder} exists already: export to a folder that is new")
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        (aside / "labels.json").write_text(json.dumps(about, indent=1) + "\n")
        whole, example = OneTask(backbone, head, normalise), torch.zeros(2, *about["input_shape"])
        if "safetensors" in formats:
            save_file(_weights(backbone, head), aside / "weights.safetensors")
        if "torch" in formats:
            torch.export.save(_program(whole, example), aside / "model.pt2")
        if "onnx" in formats:
            _write_onnx(whole, example, aside / "model.onnx")
        aside.chmod(0o755 & ~_umask())
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _weights(backbone: nn.Module, head: nn.Module) -> dict[str, Tensor]:
    """By the names of the modules, as `backbone.0.weight` and `head.weight`; tied ones are written twice."""
    parts = {"backbone": backbone.state_dict(), "head": head.state_dict()}
    return {
        f"{part}.{name}": value.detach().cpu().clone().contiguous()
        for part, state in parts.items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def _program(whole: OneTask, example: Tensor) -> torch.export.ExportedProgram:
    """For batches of any size."""
    return torch.export.export(whole, (example,), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1)}})


def _write_onnx(whole: OneTask, example: Tensor, file: Path) -> None:
    if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
        raise SoftmaskError(f"ONNX needs {' and '.join(missing)}, which this Python lacks: install the extra `onnx`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks of torch on its own exporter
        torch.onnx.export(
            whole,
            (example,),
            str(file),
            input_names=["x"],
            output_names=["probabilities"],
            dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1)}},
            opset_version=ONNX_OPSET,
            external_data=False,
            dynamo=True,
            verbose=False,
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
