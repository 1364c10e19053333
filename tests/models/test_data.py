"""Labels are positions in the names that were given, in a validation set as in the training set."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from softmask.errors import DataError
from softmask.images import decoding
from softmask.models import ContinualModel
from softmask.models.data import load_image, read_inputs, read_task
from tests.models.examples import QUICK, blobs


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
    with pytest.raises(DataError, match="'b'"):
        read(labelled(0, 2, 3), labelled(1), ["a", "b", "c", "d"])


@pytest.mark.parametrize("given", [["1", "0"], ["20", "30"], ["-1", "7"]])
def test_names_that_are_numbers_are_names(given: list[str]) -> None:
    assert read(labelled(0, 1), labelled(1, 0, 1), given) == [given[1], given[0], given[1]]


def test_without_names_a_label_is_its_own_name() -> None:
    assert read(labelled(20, 30, 30), labelled(30, 20)) == ["30", "20"]


def test_the_names_of_a_dataset_count_for_a_validation_set_without_any() -> None:
    assert read(Named(0, 2, 3), Named(2, 0)) == ["c", "a"]
    assert read(Named(0, 2, 3), labelled(2, 0)) == ["c", "a"]


def test_a_validation_set_with_names_of_its_own_keeps_them(tmp_path: Path) -> None:
    fewer = Named(0, 1, 0)
    fewer.classes = ("a", "c")
    assert read(Named(0, 1, 2), fewer) == ["a", "c", "a"]
    assert read(labelled(0, 1, 2), labelled(1, 0), ["x", "y", "z"]) == ["y", "x"]
    with pytest.raises(DataError, match="'c'"):
        read(Named(0, 1), fewer)


def test_a_label_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(DataError, match=r"not 1\.9"):
        read([(torch.zeros(6), 0), (torch.zeros(6), 1.9)], None)


def test_images_for_a_model_of_other_inputs_are_refused_in_words() -> None:
    with pytest.raises(DataError, match="input shape"):
        read([(Image.new("RGB", (8, 8)), label) for label in (0, 1, 0, 1)], None)


def test_a_path_that_is_given_twice_is_answered_twice(tmp_path: Path) -> None:
    model = ContinualModel.create(tmp_path / "m", network="mlp", input_shape=(3, 8, 8), width=0.1)
    model.learn("t", (torch.randint(0, 255, (20, 3, 8, 8), dtype=torch.uint8), torch.arange(20) % 2), training=QUICK)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    paths = [tmp_path / name for name in ("a.png", "a.png", "b.png")]
    assert [found.item for found in model.predict(paths, task="t")] == [str(path) for path in paths]


def test_an_array_whose_rows_go_backwards(tmp_path: Path) -> None:
    model = ContinualModel.create(tmp_path / "m", network="mlp", input_shape=(6,), width=0.1)
    model.learn("t", blobs(0), training=QUICK)
    plain = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    turned = np.ascontiguousarray(plain[::-1])[::-1]
    assert model.predict(turned, task="t") == model.predict(plain, task="t")
    with pytest.raises(DataError, match="numbers or images"):
        model.predict(np.array(["a", "b"]), task="t")


@pytest.mark.parametrize("stranger", ["valid", "bus"])
def test_a_folder_beside_train_is_not_passed_over(tmp_path: Path, stranger: str) -> None:
    for place in ("train/a", "train/b", stranger):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / place / "1.png")
    with pytest.raises(DataError, match=f"beside 'train' there may be 'val' and 'test', but not '{stranger}'"):
        read_task(tmp_path, None, (3, 8, 8), None, (1, "t"))


def test_a_model_is_judged_by_the_right_labels(tmp_path: Path) -> None:
    """With the names of two classes exchanged, a validation set that is read by value would be all wrong."""
    model = ContinualModel.create(tmp_path / "m", network="mlp", input_shape=(6,), width=1 / 16)
    x, y = blobs(0)
    assert model.learn("t", (x, y), (x, y), classes=["1", "0"], training=QUICK).accuracy > 0.9


def test_a_pipe_or_a_device_is_not_an_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (str(tmp_path / "pipe.png"), "/dev/zero", str(tmp_path)):
        with pytest.raises(DataError):
            load_image(path, (3, 8, 8))


def test_a_folder_of_a_format_that_is_not_read_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "known_endings", lambda: frozenset({".png"}))
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "photo.HEIC").write_bytes(b"")
    with pytest.raises(DataError, match=r"1 \.heic.*pillow-heif"):
        read_task(tmp_path, None, (3, 8, 8), None, (1, "task"))


def encoded(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "png")
    return content.getvalue()


def one_input(source: object, shape: tuple[int, ...]) -> Tensor:
    ((names, inputs),) = read_inputs(source, shape)
    assert names == ["0"]
    return inputs[0]


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8)])
@pytest.mark.parametrize("size", [(8, 8), (20, 12)])
def test_an_image_is_the_same_from_a_file_and_from_memory(
    tmp_path: Path, shape: tuple[int, ...], size: tuple[int, int]
) -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "0.png")
    from_file = load_image(str(tmp_path / "0.png"), shape)
    for source in (
        image,
        encoded(image),
        bytearray(encoded(image)),
        pixels,
        pixels[None],
        [image],
        pixels[:, ::-1][:, ::-1],
    ):
        assert torch.equal(one_input(source, shape), from_file)


def test_what_the_model_takes_as_it_is_is_no_picture() -> None:
    channels_first = np.random.RandomState(0).randint(0, 256, (3, 5, 3)).astype(np.uint8)
    assert torch.equal(one_input(channels_first, (3, 5, 3)), torch.from_numpy(channels_first))
    assert one_input(np.zeros(6, np.float32), (6,)).shape == (6,)


def test_grey_and_transparent_arrays() -> None:
    grey = np.full((4, 4), 100, np.uint8)
    assert torch.equal(one_input(grey, (1, 4, 4)), one_input(grey[..., None], (1, 4, 4)))
    clear = np.zeros((4, 4, 4), np.uint8)
    assert torch.equal(one_input(clear, (3, 4, 4)), torch.full((3, 4, 4), 255, dtype=torch.uint8))


def test_images_from_everywhere_in_one_list_are_named_by_path_or_position(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 4), "red")
    image.save(tmp_path / "a.png")
    told: list[str] = []
    given = [tmp_path / "a.png", image, b"no image", encoded(image), np.zeros((4, 4), np.float32)]
    ((names, inputs),) = read_inputs(given, (3, 4, 4), told.append)
    assert names == [str(tmp_path / "a.png"), "1", "3"]
    assert len(inputs) == 3
    assert [message.split(":")[0] for message in told] == ["image 2", "image 4"]
    with pytest.raises(DataError, match="image 2"):
        list(read_inputs(given, (3, 4, 4)))


@pytest.mark.parametrize("wrong", [3, [3], None, [None], {"a": 1}])
def test_what_is_no_input_is_refused(wrong: object) -> None:
    with pytest.raises(DataError):
        list(read_inputs(wrong, (3, 4, 4)))
