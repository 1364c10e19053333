"""Handwritten digits that are installed with scikit-learn: 1797 images of 8x8 pixels, enlarged to 28x28.

D-5 has five tasks of two digits each, which share no class. R-10 has ten tasks with all ten digits, rotated by 0, 9,
..., 81 degrees: similar tasks, each with 40 training images per digit. No test image of one task of R-10 is a training
image of another.
Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from softmask.experiments.sequences import sequence
from softmask.images.labelled import LabelledImages
from softmask.images.splitting import divide, split_by_class, split_by_view
from softmask.learning.seeds import Seeds
from softmask.learning.task import Normalisation, TaskSequence

SIDE = 28
BRIGHTEST = 16
# A digit has 174 to 183 images: these are 20 % and 16 % of them, the same for all digits so that none weighs more.
TEST_PER_CLASS, VALIDATION_PER_CLASS = 36, 29
# Of about 114 that are left, so that ten tasks are learned sooner. Similar tasks then help each other more.
TRAIN_PER_CLASS_AND_ROTATION = 40
# Mean and standard deviation of all upright enlarged pixels, rounded: too coarse to tell anything of the test images.
NORMALISE = Normalisation(mean=(0.31,), std=(0.35,))
DEGREES_BETWEEN_TASKS = 9


@functools.cache
def upright_digits() -> LabelledImages:
    """All digits, enlarged. Made once in a process, and read-only therefore."""
    small, labels = _installed_digits()
    pixels = np.rint(small * (255 / BRIGHTEST)).astype(np.uint8)
    large = [Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for image in pixels]
    return _stacked(large, labels)


def _installed_digits() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Images of values 0..16, and what they show. Importing scikit-learn takes a second, reading its file none."""
    package = importlib.util.find_spec("sklearn")
    for place in (package.submodule_search_locations if package else None) or ():
        file = Path(place, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # wherever a later version keeps them

    source = load_digits()
    return source.images, source.target.astype(np.int64)


@functools.cache
def rotated_digits(degrees: int) -> LabelledImages:
    """The enlarged digits, turned counter-clockwise on a black ground."""
    upright = upright_digits()
    turned = [Image.fromarray(image[0]).rotate(degrees, Image.Resampling.BICUBIC) for image in upright.images]
    return _stacked(turned, upright.labels)


def _stacked(samples: Sequence[Image.Image], labels: npt.NDArray[np.int64]) -> LabelledImages:
    images = np.stack([np.asarray(image) for image in samples])[:, np.newaxis]
    images.setflags(write=False)
    return LabelledImages(images, labels, np.arange(len(images)))


@sequence(
    "D-5",
    tasks=5,
    classes=2,
    description="small built-in digits: five tasks of two digits each",
    width=0.25,
)
def digits_by_class(root: Path | None, seeds: Seeds, tasks: int) -> TaskSequence:
    train, test = divide(upright_digits(), TEST_PER_CLASS, seeds)
    return split_by_class(
        train,
        test,
        name=f"D-{tasks}",
        tasks=tasks,
        validation=VALIDATION_PER_CLASS,
        seeds=seeds,
        normalise=NORMALISE,
        class_names=[f"digit {digit}" for digit in range(10)],
    )


@sequence(
    "R-10",
    tasks=10,
    classes=10,
    similar=True,
    description="small built-in digits, turned by another angle in each of ten tasks",
    width=0.25,
)
def digits_by_rotation(root: Path | None, seeds: Seeds, tasks: int) -> TaskSequence:
    angles = [DEGREES_BETWEEN_TASKS * step for step in range(tasks)]
    return split_by_view(
        {f"digits turned by {angle} degrees": rotated_digits(angle) for angle in angles},
        name=f"R-{tasks}",
        train=TRAIN_PER_CLASS_AND_ROTATION,
        validation=VALIDATION_PER_CLASS,
        test=TEST_PER_CLASS,
        seeds=seeds,
        normalise=NORMALISE,
    )
