"""A test that tries: can a method reach a test image from what it is given?"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from softmask.experiments.sequences import load_sequence
from softmask.experiments.sequences.fceleba import fceleba_by_user
from softmask.experiments.sequences.femnist import femnist_by_user
from softmask.experiments.sequences.imagenet32 import imagenet32_by_class
from softmask.experiments.sequences.tinyimagenet import tinyimagenet_by_class
from softmask.images.labelled import Counts
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from tests.experiments.sequences.generated import (
    imagenet32_rows,
    write_fceleba,
    write_femnist,
    write_folder,
    write_imagenet32,
    write_tinyimagenet,
)
from tests.experiments.sequences.pickling import python2_pickle


def tinyimagenet(folder: Path) -> TaskSequence:
    write_tinyimagenet(folder)
    return tinyimagenet_by_class(folder, Seeds(), 5, 10, Counts(4, 2, 2))


def imagenet32(folder: Path) -> TaskSequence:
    write_imagenet32(folder, [8] * 4)
    labels = [1, 2, 3, 4] * 2
    tested = 255 - imagenet32_rows(labels)  # unlike any image for training
    (folder / "val_data").write_bytes(python2_pickle({"data": tested, "labels": labels}))
    return imagenet32_by_class(folder, Seeds(), 2, 4, Counts(8, 4, 4))


def femnist(folder: Path) -> TaskSequence:
    write_femnist(folder, [{"0": (60, 15)}] * 2)
    return femnist_by_user(folder, Seeds(), 2, Counts(40, 8, 12))


def fceleba(folder: Path) -> TaskSequence:
    write_fceleba(folder, {"a": (30, 10), "b": (30, 10)})
    for path in (folder / "celeba/data/raw/img_align_celeba").iterdir():
        if int(path.stem) > 60:  # the test images come last: let them look like no other
            Image.new("RGB", (8, 8), (int(path.stem), 250, 9)).save(path)
    return fceleba_by_user(folder, Seeds(), 2, Counts(20, 4, 8))


def folder(folder: Path) -> TaskSequence:
    return load_sequence(f"folder:{write_folder(folder, {'t': {'a': 9, 'b': 9}})}", None, Seeds())


def digits(folder: Path) -> TaskSequence:
    return load_sequence("D-5", None, Seeds())


def rotated(folder: Path) -> TaskSequence:
    return load_sequence("R-10", None, Seeds())


def everything_within_reach(start: Iterable[object]) -> list[np.ndarray]:
    """All arrays that can be got at by following references, private ones too."""
    seen: set[int] = set()
    arrays: list[np.ndarray] = []
    waiting: list[object] = list(start)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type | types.ModuleType | types.FunctionType | types.FrameType):
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            arrays.append(thing)
            waiting.append(thing.base)
        elif isinstance(thing, Tensor) and type(thing) is Tensor:
            arrays.append(thing.numpy())
        waiting += gc.get_referents(thing)
    return arrays


@pytest.mark.parametrize("make", [tinyimagenet, imagenet32, femnist, fceleba, folder, digits, rotated])
def test_no_test_image_is_within_reach(tmp_path: Path, make: Callable[[Path], TaskSequence]) -> None:
    sequence = make(tmp_path)
    scenario = Scenario(sequence.input_shape, sequence.classes)
    size = int(np.prod(sequence.input_shape))
    reached: set[bytes] = set()
    for array in everything_within_reach([*sequence.tasks, scenario]):
        if array.dtype == np.uint8 and array.ndim == 4 and array.size % size == 0:
            reached |= {image.tobytes() for image in np.ascontiguousarray(array)}
    trained = {image.tobytes() for task in sequence.tasks for image in task.train.images.numpy()}
    assert trained <= reached, "the search finds what there is to be found"
    tested = {image.tobytes() for test in sequence.tests for image in test.images.numpy()}
    assert not tested & reached
