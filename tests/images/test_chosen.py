"""Rows of a mapped array behave like a tensor, and batches of them cost only themselves."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from softmask.images.labelled import ChosenImages
from softmask.learning.task import Batches, Normalisation

STORED = np.random.default_rng(0).integers(0, 255, (50, 3, 4, 4), np.uint8)
ROWS = np.array([5, 7, 2, 9])


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t[1:3],
        lambda t: t[-3:],
        lambda t: t[::2],
        lambda t: t[:],
        lambda t: t[torch.tensor([3, 1, 1])],
        lambda t: t[torch.tensor([True, False, True, True])],
        lambda t: t[[1, 0]],
        lambda t: t[2],
        lambda t: t[:, 0, 0, 0],
        lambda t: torch.cat([t, t]),
        lambda t: torch.stack(list(t)),
        lambda t: t / 255,
        lambda t: 255 - t,
        lambda t: t.flatten(1),
        lambda t: t.to("cpu", torch.float32),
        lambda t: torch.from_numpy(t.numpy()),
        lambda t: t.clone(),
        copy.deepcopy,
        lambda t: pickle.loads(pickle.dumps(t)),
    ],
)
def test_like_a_tensor(use: Callable[[Tensor], Tensor]) -> None:
    made = use(ChosenImages(STORED, ROWS))
    assert type(made) is Tensor
    assert torch.equal(made, use(torch.from_numpy(STORED[ROWS])))


def test_its_shape_and_size_are_known_without_reading() -> None:
    class Unreadable(np.ndarray):
        def __getitem__(self, which: object) -> None:
            raise AssertionError("read")

    images = ChosenImages(STORED.view(Unreadable), ROWS)
    assert (len(images), tuple(images.shape), images.dtype) == (4, (4, 3, 4, 4), torch.uint8)
    assert images.nbytes == 4 * 48
    assert images.size(0) == 4


def test_batches_of_it_equal_batches_of_a_tensor() -> None:
    normalise = Normalisation((0.5,) * 3, (0.5,) * 3)
    labels = torch.arange(4)
    for shuffle in (False, True):
        lazily, plainly = (
            Batches(images, labels, 3, normalise=normalise, shuffle=shuffle, seed=5)
            for images in (ChosenImages(STORED, ROWS), torch.from_numpy(STORED[ROWS]))
        )
        for (x, y), (expected, label) in zip(lazily, plainly, strict=True):
            assert torch.equal(x, expected)
            assert torch.equal(y, label)
        assert torch.equal(lazily.x, plainly.x)


def test_a_batch_makes_torch_import_nothing(tmp_path: Path) -> None:
    script = """
import sys, numpy, torch
from softmask.images.labelled import ChosenImages
images = ChosenImages(numpy.zeros((9, 3, 4, 4), numpy.uint8), numpy.arange(5))
before = len(sys.modules)
images[1:3], images[torch.tensor([2, 1])]
print(len(sys.modules) - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 0, done.stderr
