"""Small tasks, as tensors and as folders of images, and a model that learns them in a moment."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from softmask.experiments.sequences.digits import upright_digits
from softmask.learning.training import Training
from softmask.models import ContinualModel

QUICK = Training(lr=0.1, epochs=4, schedule="cosine", shuffle=True, batch=32)
DIGITS = {"first": (0, 1, 2), "second": (3, 4, 5), "third": (6, 7, 8)}


def blobs(seed: int, classes: int = 2, count: int = 60, width: int = 6) -> tuple[Tensor, Tensor]:
    """Points around one centre for each class."""
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(classes, width, generator=generator)
    labels = torch.arange(count) % classes
    return centres[labels] + torch.randn(count, width, generator=generator), labels


def small_model(path: Path, tasks: int = 1, **wanted: object) -> ContinualModel:
    """By SPG unless another method is wanted: its state holds more than weights."""
    fields: dict[str, Any] = {"network": "mlp", "input_shape": (6,), "width": 1 / 16, "method": "spg"} | wanted
    model = ContinualModel.create(path, **fields)
    for index in range(tasks):
        model.learn(f"task {index}", blobs(index), training=QUICK)
    return model


def longer(training: Training = QUICK, **changes: object) -> Training:
    return dataclasses.replace(training, **changes)  # type: ignore[arg-type]


def write_digits(root: Path, each: int = 1000) -> Path:
    """Folders `train/TASK/CLASS` and `test/TASK/CLASS` of images; every fifth is for the test."""
    digits = upright_digits()
    for task, classes in DIGITS.items():
        for digit in classes:
            rows = (digits.labels == digit).nonzero()[0][:each]
            for place, row in enumerate(rows):
                folder = root / ("test" if place % 5 == 4 else "train") / task / str(digit)
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(digits.images[row][0]).save(folder / f"{place}.png")
    return root
