"""Sequences from tables, from datasets that are cut by classes, and from Avalanche's benchmarks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor

from softmask.errors import DataError
from softmask.experiments.sequences import sequence_from_avalanche, sequence_from_datasets, sequence_from_table


def pixels(value: int) -> np.ndarray:
    return np.full((4, 6, 3), value, np.uint8)


def table(each: int = 10) -> pd.DataFrame:
    """Two tasks; the value of an image's pixels tells its class and its number."""
    rows = [
        {"image": pixels(50 * place + number), "label": label, "task": task}
        for place, (task, label) in enumerate([("pets", "dog"), ("pets", "cat"), ("birds", "owl"), ("birds", "duck")])
        for number in range(each)
    ]
    return pd.DataFrame(rows)


def values(batches: Any) -> list[int]:
    return sorted(batches.images[:, 0, 0, 0].tolist())


def test_a_table() -> None:
    found = sequence_from_table("own", table())
    assert [task.name.split(" #")[0] for task in found.tasks] == ["pets", "birds"]
    assert (found.classes, found.input_shape, found.similar) == ((2, 2), (3, 4, 6), False)
    pets, tested = found.tasks[0], found.tests[0]
    assert (pets.train.count, pets.val.count, tested.count) == (14, 2, 4), "a fifth of ten, and a tenth of eight"
    assert sorted(values(pets.train) + values(pets.val) + values(tested)) == [*range(10), *range(50, 60)]
    assert torch.equal(pets.train.images[:, 0, 0, 0] >= 50, pets.train.labels == 0), "cats come first"
    assert not torch.equal(pets.train.labels, pets.train.labels.sort().values), "not in the order of the classes"


def test_rows_are_the_same_as_a_table() -> None:
    frame = table()
    rows = list(frame.itertuples(index=False, name=None))
    names = [[task.name for task in sequence_from_table("own", each).tasks] for each in (frame, rows)]
    assert names[0] == names[1]
    other = frame.assign(image=[image + 1 for image in frame["image"]])
    assert names[0] != [task.name for task in sequence_from_table("own", other).tasks]
    assert names[0] != [task.name for task in sequence_from_table("own", frame, seed=2).tasks]


def test_parts_that_are_given() -> None:
    frame = table().assign(part=["test", "val", *[None] * 8] * 4)
    found = sequence_from_table("own", frame)
    assert (values(found.tests[0]), values(found.tasks[0].val)) == ([0, 50], [1, 51])
    assert found.tasks[0].train.count == 16
    with pytest.raises(DataError):
        sequence_from_table("own", frame.assign(part="training"))


def test_files_with_other_names_of_the_columns(tmp_path: Path) -> None:
    for number in range(16):
        Image.fromarray(pixels(16 * number)).save(tmp_path / f"{number}.png")
    frame = pd.DataFrame(
        {
            "file": [f"{number}.png" for number in range(16)],
            "kind": [number % 2 for number in range(16)],
            "user": ["ann"] * 8 + ["bob"] * 8,
        }
    )
    columns = {"image": "file", "label": "kind", "task": "user"}
    found = sequence_from_table("users", frame, **columns, folder=tmp_path, side=8)
    assert (found.input_shape, found.similar) == ((3, 8, 8), True)
    with pytest.raises(DataError):
        sequence_from_table("users", frame)
    with pytest.raises(DataError):
        sequence_from_table("users", frame, **columns, folder=tmp_path / "elsewhere")


def test_too_few_images() -> None:
    with pytest.raises(DataError):
        sequence_from_table("own", table(each=1))
    with pytest.raises(DataError):
        sequence_from_table("own", [])
    with pytest.raises(DataError):
        sequence_from_table("own", [(pixels(0), 1)])


class Vision:
    """As torchvision's datasets: pairs of a Pillow image and a number, and `targets`."""

    def __init__(self, count: int) -> None:
        self.targets = [index % 4 for index in range(count)]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(pixels(index)), self.targets[index]


class Columns:
    """As Hugging Face's datasets: dictionaries, and whole columns by their names."""

    column_names = ("img", "fine")

    def __init__(self, count: int) -> None:
        self.inner = Vision(count)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return {"fine": self.inner.targets}[key]
        return dict(zip(self.column_names, self.inner[key], strict=True))


@pytest.mark.parametrize("kind", [Vision, Columns])
def test_datasets(kind: Any) -> None:
    columns = {"image": "img", "label": "fine"} if kind is Columns else {}
    found = sequence_from_datasets("cut", kind(80), kind(8), tasks=2, side=5, **columns)
    assert [task.name.split(" #")[0] for task in found.tasks] == ["0,1", "2,3"]
    assert found.input_shape == (3, 5, 5)
    assert [task.train.count for task in found.tasks] == [36, 36]
    assert [test.count for test in found.tests] == [4, 4]
    turned = sequence_from_datasets("cut", kind(80), kind(8), tasks=[[3, 0]], **columns)
    assert (turned.classes, turned.input_shape) == ((2,), (3, 4, 6))
    for tasks in (3, [[0, 1], [1, 2]], [[0, 9]]):
        with pytest.raises(DataError):
            sequence_from_datasets("cut", kind(80), kind(8), tasks=tasks, **columns)


class Experienced:
    """As Avalanche's datasets: triples, and `eval()` gives the one without augmentation."""

    def __init__(self, labels: list[int], augmented: bool = True) -> None:
        self.labels, self.augmented = labels, augmented

    def eval(self) -> Experienced:
        return Experienced(self.labels, augmented=False)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        assert not self.augmented
        return torch.full((1, 4, 4), index / 100), self.labels[index], 0


def test_avalanche() -> None:
    def stream(each: int) -> list[Any]:
        return [SimpleNamespace(dataset=Experienced(labels * each)) for labels in ([7, 3], [5, 0, 1])]

    found = sequence_from_avalanche("split", SimpleNamespace(train_stream=stream(20), test_stream=stream(3)))
    assert (found.classes, found.input_shape) == ((2, 3), (1, 4, 4))
    assert [task.train.count for task in found.tasks] == [36, 54]
    assert [test.count for test in found.tests] == [6, 9]
    assert set(found.tests[1].labels.tolist()) == {0, 1, 2}
