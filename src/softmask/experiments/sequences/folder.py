"""Your own images: `folder:PATH` is a folder of tasks, each a folder of classes, each a folder of images.

Tasks are learned in the order of their folders' names. A task may also hold `train` and `test` (and `val`), each a
folder of classes; otherwise a fifth of each class is held out for the test and a tenth of the rest for validation. Any
format that Pillow reads will do; images are resized to 3x32x32. A digest of the files is part of the tasks' names, so
that changed images make different tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softmask.errors import DataError, Problems
from softmask.experiments.sequences import SEQUENCES, Loader, SequenceFacts
from softmask.experiments.sequences.cache import Facts, Stored, cached
from softmask.images.decoding import (
    PARTS,
    SIDE,
    any_kind,
    decode_all,
    folders_in,
    images_below,
    is_divided,
    read_image,
    require_parts_only,
)
from softmask.images.labelled import COLOUR, LabelledImages, content_id
from softmask.images.splitting import Given, split_as_given
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from softmask.storage.arrays import ArrayFolder

LEAST_UNDIVIDED = 3  # one each for training, validation and test
VERSION = 1


class TaskFolder(NamedTuple):
    """One task: the images of each class in each part. An undivided task has `train` alone."""

    name: str
    classes: list[str]
    parts: dict[str, list[list[str]]]


@SEQUENCES.register_kind("folder")
def folder_sequence(path: str) -> tuple[SequenceFacts, Loader]:
    tasks = read_layout(Path(path).expanduser())
    facts = SequenceFacts(
        tasks=len(tasks),
        classes=max(len(task.classes) for task in tasks),
        description=f"images in {path}",
        similar=_similar(tasks),
    )

    def load(root: Path | None, seeds: Seeds) -> TaskSequence:
        return load_folder(Path(path).expanduser(), f"folder:{path}", seeds)

    return facts, load


def load_folder(folder: Path, name: str, seeds: Seeds) -> TaskSequence:
    """The sequence that is laid out in a folder."""
    tasks = read_layout(folder)
    _check_sizes(folder, tasks)
    files = [path for task in tasks for part in task.parts.values() for of_class in part for path in of_class]

    def build(output: ArrayFolder) -> Facts:
        return _build(output, files)

    stored = cached("folder", VERSION, folder, files, build)
    row = {path: position for position, path in enumerate(files)}
    given = []
    for task in tasks:
        parts = {part: _samples(stored, row, classes) for part, classes in task.parts.items()}
        given.append(Given(task.name, len(task.classes), parts["train"], parts.get("val"), parts.get("test")))
    return split_as_given(given, name=name, similar=_similar(tasks), seeds=seeds, normalise=COLOUR)


def read_layout(folder: Path) -> list[TaskFolder]:
    """The tasks, classes and image files; nothing is opened."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; folder:PATH takes a folder of tasks, each a folder of classes")
    problems, tasks = Problems(), []
    for task in folders_in(folder):
        with problems.collected():
            tasks.append(_read_task(task))
    problems.raise_any()
    if not tasks:
        raise DataError(f"{folder}: holds no folders; expected a folder for each task, with one for each class in it")
    return tasks


def _read_task(folder: Path) -> TaskFolder:
    inside = {path.name: path for path in folders_in(folder)}
    if not is_divided(folder):
        parts = {"train": folder}
    elif "test" not in inside:
        raise DataError(f"{folder}: beside 'train' there must be 'test', and there may be 'val'")
    else:
        require_parts_only(folder)
        parts = {part: inside[part] for part in PARTS if part in inside}
    classes = [path.name for path in folders_in(parts["train"])]
    if not classes and images_below(folder):
        raise DataError(f"{folder}: images, not classes; if {folder.parent} is a single task, put it in a folder")
    if len(classes) < 2:
        raise DataError(f"{parts['train']}: {len(classes)} folders of images; a task needs at least two classes")
    for path in parts.values():
        if other := {found.name for found in folders_in(path)} - set(classes):
            raise DataError(f"{path}: has the class {min(other)!r}, which {parts['train']} has not")
    files = {part: [images_below(path / name) for name in classes] for part, path in parts.items()}
    return TaskFolder(folder.name, classes, files)


def _similar(tasks: Sequence[TaskFolder]) -> bool:
    """Whether tasks are similar: whether all have the same classes."""
    return len(tasks) > 1 and all(task.classes == tasks[0].classes for task in tasks)


def _check_sizes(folder: Path, tasks: Sequence[TaskFolder]) -> None:
    problems = Problems()
    for task in tasks:
        least = 1 if "val" in task.parts else 2 if "test" in task.parts else LEAST_UNDIVIDED
        for name, files in zip(task.classes, task.parts["train"], strict=True):
            with problems.collected():
                if len(files) < least:
                    raise DataError(
                        f"{folder / task.name}: class {name!r} has {len(files)} images, at least {least} are needed"
                    )
        for part in task.parts:
            with problems.collected():
                if not any(task.parts[part]):
                    raise DataError(f"{folder / task.name / part}: no images")
    problems.raise_any()


def _build(output: ArrayFolder, files: Sequence[str]) -> Facts:
    problems = Problems()
    ids: list[int] = []

    def read(path: str) -> tuple[str, bytes]:
        where, content = read_image(path)
        ids.append(content_id(content))
        return where, content

    decode_all(files, read, output.array("images", (3, SIDE, SIDE), np.uint8), any_kind(), problems)
    problems.raise_any()
    output.put("ids", np.array(ids, np.int64))
    return {}


def _samples(stored: Stored, row: dict[str, int], classes: Sequence[Sequence[str]]) -> LabelledImages:
    rows = [row[path] for of_class in classes for path in of_class]
    labels = [label for label, of_class in enumerate(classes) for _ in of_class]
    images, ids = (stored.arrays[kind] for kind in ("images", "ids"))
    return LabelledImages(images[rows], np.array(labels, np.int64), np.array(ids[rows]))
