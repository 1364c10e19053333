"""Sequences from your own data: a table of images, labels and tasks; datasets split by classes; Avalanche benchmarks.
All are read into memory once. A digest of the content is part of the tasks' names, so that different images make
different tasks. Without test images, a fifth of each class is held out for the test, and a tenth of the rest for
validation; the choice depends on `seed` and the order of the samples.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from softmask.errors import DataError
from softmask.experiments.sequences.own import as_tensor, sequence_from
from softmask.images.decoding import SIDE, any_kind, decode, read_image
from softmask.images.splitting import TEST_SHARE, VALIDATION_SHARE, hold_out, shuffled
from softmask.learning.task import Normalisation, TaskSequence

PARTS = ("train", "val", "test")


class Sample(NamedTuple):
    """One row of a table."""

    image: Any
    """A file, a Pillow image, an array or a tensor."""
    label: Hashable
    task: str
    part: str | None = None
    """`train`, `val` or `test`; None where it is to be drawn."""


def sequence_from_table(
    name: str,
    table: Any,
    *,
    image: str = "image",
    label: str = "label",
    task: str = "task",
    part: str = "part",
    folder: str | PathLike[str] = ".",
    side: int = SIDE,
    seed: int = 1,
    normalise: Normalisation | None = None,
) -> TaskSequence:
    """A sequence from a pandas DataFrame with these columns, or a list of (image, label, task) or (image, label, task,
    part).

    An image is a file, relative to `folder`, which becomes a colour image of `side` x `side`; or a Pillow image, an
    array or a tensor, all of one shape. Labels may be of any hashable type; tasks are in the order of their first
    appearance. `part` is `train`, `val` or `test`; without that column, or where it is empty, it is drawn.
    """
    samples = list(_rows(table, (image, label, task, part)))
    return _sequence(name, samples, Path(folder), side, seed, normalise)


def sequence_from_datasets(
    name: str,
    train: Any,
    test: Any,
    *,
    tasks: int | Sequence[Sequence[Hashable]],
    image: str = "image",
    label: str = "label",
    side: int | None = None,
    seed: int = 1,
    normalise: Normalisation | None = None,
) -> TaskSequence:
    """A sequence of tasks that share no class, from a dataset of torchvision or Hugging Face, or any of such a form.

    Items are pairs (image, label), or dictionaries with the columns `image` and `label`. `tasks` is a number, for as
    many groups of classes in the order of their labels, or the groups themselves. With `side`, Pillow images are
    resized.
    """
    labels = {part: _labels(each, label) for part, each in (("train", train), ("test", test))}
    groups = _groups(labels["train"], tasks)
    owner = {each: place for place, group in enumerate(groups) for each in group}
    samples = []
    for part, dataset in (("train", train), ("test", test)):
        for index, known in enumerate(labels[part]):
            if known in owner:
                title = ",".join(map(str, groups[owner[known]]))
                samples.append(Sample(_image(dataset[index], image, side), known, title, part))
    return _sequence(name, _by_task(samples, owner), Path(), SIDE, seed, normalise)


def sequence_from_avalanche(
    name: str, benchmark: Any, *, seed: int = 1, normalise: Normalisation | None = None
) -> TaskSequence:
    """A sequence from a benchmark of Avalanche: one task for each experience, with the labels that it has.

    Images are as the benchmark's transforms for evaluation give them: augmentation is a setting of the run
    (`augment=crop-flip`).
    """
    samples = []
    streams = {"train": benchmark.train_stream, "test": benchmark.test_stream}
    for part, stream in streams.items():
        for place, experience in enumerate(stream):
            dataset = experience.dataset.eval() if hasattr(experience.dataset, "eval") else experience.dataset
            for index in range(len(dataset)):
                image, label, *_ = dataset[index]
                samples.append(Sample(image, int(label), f"experience {place}", part))
    return _sequence(name, samples, Path(), SIDE, seed, normalise)


def _rows(table: Any, columns: tuple[str, str, str, str]) -> Iterable[Sample]:
    if not hasattr(table, "columns"):
        for row in table:
            if len(row) not in (3, 4):
                raise DataError(
                    f"a row needs an image, a label and a task, and perhaps a part; found {len(row)} fields"
                )
            yield Sample(row[0], row[1], str(row[2]), row[3] if len(row) == 4 else None)
        return
    for column in columns[:3]:
        if column not in table.columns:
            raise DataError(f"the table has no column {column!r}; it has {', '.join(map(str, table.columns))}")
    given = [table[column] for column in columns[:3]]
    parts = table[columns[3]] if columns[3] in table.columns else [None] * len(table)
    for image, label, task, part in zip(*given, parts, strict=True):
        yield Sample(image, label, str(task), part if isinstance(part, str) and part else None)


def _labels(dataset: Any, column: str) -> list[Hashable]:
    """Without decoding images where the dataset knows its labels."""
    if hasattr(dataset, "targets"):
        return [int(each) for each in dataset.targets]
    if column in getattr(dataset, "column_names", ()):
        return list(dataset[column])
    items = (dataset[index] for index in range(len(dataset)))
    return [item[column] if isinstance(item, Mapping) else int(item[1]) for item in items]


def _groups(labels: Iterable[Hashable], tasks: int | Sequence[Sequence[Hashable]]) -> list[list[Hashable]]:
    known = _sorted(set(labels))
    if not isinstance(tasks, int):
        groups = [list(group) for group in tasks]
        if missing := [each for group in groups for each in group if each not in known]:
            raise DataError(f"no training image has the label {missing[0]!r}")
        if len({each for group in groups for each in group}) < sum(map(len, groups)):
            raise DataError("a class is in two tasks: datasets are cut into tasks that share no class")
        return groups
    if not 1 <= tasks <= len(known) // 2 or len(known) % tasks:
        raise DataError(f"{len(known)} classes cannot be cut into {tasks} tasks of equal size, of two classes at least")
    size = len(known) // tasks
    return [known[start : start + size] for start in range(0, len(known), size)]


def _sorted(labels: Iterable[Hashable]) -> list[Hashable]:
    """Numbers by size, all else by its text."""
    found = list(labels)
    numbers = all(isinstance(each, (int, np.integer)) for each in found)
    return sorted(found, key=(lambda each: each) if numbers else str)


def _image(item: Any, column: str, side: int | None) -> Any:
    image = item[column] if isinstance(item, Mapping) else item[0]
    if side is not None and isinstance(image, Image.Image):
        return image.resize((side, side), Image.Resampling.BICUBIC)
    return image


def _by_task(samples: Sequence[Sample], owner: Mapping[Hashable, int]) -> list[Sample]:
    return sorted(samples, key=lambda sample: owner[sample.label])


def _sequence(
    name: str, samples: Sequence[Sample], folder: Path, side: int, seed: int, normalise: Normalisation | None
) -> TaskSequence:
    titles = list(dict.fromkeys(sample.task for sample in samples))
    if not titles:
        raise DataError(f"{name}: there are no samples")
    by_task = {title: [sample for sample in samples if sample.task == title] for title in titles}
    classes = {title: _sorted({sample.label for sample in rows}) for title, rows in by_task.items()}
    triples = []
    for title, rows in by_task.items():
        numbers = {label: number for number, label in enumerate(classes[title])}
        parts = _parts(f"{name}, {title}", rows, seed)
        images = torch.stack([_pixels(sample.image, folder, side) for sample in rows])
        labels = torch.tensor([numbers[sample.label] for sample in rows])
        triples.append(tuple((images[parts[part]], labels[parts[part]]) for part in PARTS))
    similar = len(titles) > 1 and all(each == classes[titles[0]] for each in classes.values())
    return sequence_from(name, triples, names=titles, similar=similar, normalise=normalise)  # type: ignore[arg-type]


def _parts(where: str, rows: Sequence[Sample], seed: int) -> dict[str, list[int]]:
    """Positions of the training samples, in random order, and of those for validation and test."""
    found: dict[str, list[int]] = {part: [] for part in PARTS}
    free: dict[Hashable, list[int]] = {}
    for place, sample in enumerate(rows):
        if sample.part is not None and sample.part not in PARTS:
            raise DataError(f"{where}: the part of a sample is {', '.join(PARTS)} or empty, not {sample.part!r}")
        if sample.part in ("val", "test"):
            found[sample.part].append(place)
        else:
            free.setdefault(sample.label, []).append(place)
    drawn = [part for part, share in (("test", TEST_SHARE), ("val", VALIDATION_SHARE)) if not found[part]]
    for label in _sorted(free):
        left = free[label]
        for part in drawn:
            share = TEST_SHARE if part == "test" else VALIDATION_SHARE
            if len(left) < 2:
                raise DataError(f"{where}: too few images of {label!r} to hold some out; give parts, or more images")
            left, held = hold_out(left, max(1, round(share * len(left))), part, seed, where, str(label))
            found[part] += held
        found["train"] += left
    if missing := [part for part in PARTS if not found[part]]:
        raise DataError(f"{where}: there is no sample for {missing[0]}")
    return found | {"train": shuffled(found["train"], "order", seed, where)}


def _pixels(image: Any, folder: Path, side: int) -> Tensor:
    if isinstance(image, (str, PathLike)):
        place, content = read_image(str(folder / image))
        return torch.from_numpy(decode(content, place, any_kind(), (side, side)))
    return as_tensor(image)
