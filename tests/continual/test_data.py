"""What labels mean: positions in the names that were given, in a validation set as in the training set."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from softmask.continual import ContinualModel
from softmask.continual.data import read_task
from softmask.errors import DataError
from tests.continual.examples import QUICK, blobs


def labelled(*labels: int) -> tuple[Tensor, Tensor]:
    return torch.randn(len(labels), 6), torch.tensor(labels)


class Named(Dataset[tuple[Tensor, int]]):
    classes = ("a", "b", "c", "d")

    def __init__(self, *labels: int) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index >= len(self):
            raise IndexError
        return torch.zeros(6), self.labels[index]


def names(part: object) -> list[str]:
    return [part.classes[label] for label in part.labels]  # type: ignore[attr-defined]


def read(train: object, val: object, classes: list[str] | None = None) -> list[str]:
    return names(read_task(train, val, (6,), classes, (1, "t"))[1])


def test_a_class_without_training_samples_does_not_shift_the_others() -> None:
    assert read(labelled(0, 2, 3), labelled(0, 2), ["a", "b", "c", "d"]) == ["a", "c"]
    assert read(labelled(0, 2, 3), labelled(0, 2, 3), ["a", "b", "c", "d"]) == ["a", "c", "d"]
    with pytest.raises(DataError, match="class 'b', which the training set has not"):
        read(labelled(0, 2, 3), labelled(1), ["a", "b", "c", "d"])


@pytest.mark.parametrize("given", [["1", "0"], ["20", "30"], ["-1", "7"]])
def test_names_that_are_numbers_are_names(given: list[str]) -> None:
    assert read(labelled(0, 1), labelled(1, 0, 1), given) == [given[1], given[0], given[1]]


def test_without_names_a_label_is_its_own_name() -> None:
    assert read(labelled(20, 30, 30), labelled(30, 20)) == ["30", "20"]


def test_the_names_of_a_dataset_count_for_a_validation_set_without_any() -> None:
    assert read(Named(0, 2, 3), Named(2, 0)) == ["c", "a"]
    assert read(Named(0, 2, 3), labelled(2, 0)) == ["c", "a"]


def test_a_model_is_judged_by_the_right_labels(tmp_path: Path) -> None:
    """With the names of two classes exchanged, a validation set that is read by value would be all wrong."""
    model = ContinualModel.create(tmp_path / "m", network="mlp", input_shape=(6,), width=1 / 16)
    x, y = blobs(0)
    assert model.learn("t", (x, y), (x, y), classes=["1", "0"], training=QUICK).accuracy > 0.9
