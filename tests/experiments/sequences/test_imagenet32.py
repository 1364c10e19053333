"""ImageNet at 32x32 from files written like the official ones, only smaller."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from softmask.errors import DataError
from softmask.experiments.sequences import sequence_facts
from softmask.experiments.sequences.checking import sizes_in_paper, sizes_of
from softmask.experiments.sequences.imagenet32 import CLASSES, PER_TASK, imagenet32_by_class
from softmask.images.labelled import COLOUR, Counts, LabelledImages
from softmask.images.splitting import draw_by_class
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from tests.experiments.sequences.generated import imagenet32_rows, write_imagenet32
from tests.experiments.sequences.pickling import python2_pickle

SIZES = [30, 20, 25, 30, 28, 30]
COUNTS = Counts(train=30, validation=10, test=8)


def load(root: Path, sizes: list[int] | None = None) -> TaskSequence:
    return imagenet32_by_class(root, Seeds(), 3, len(sizes or SIZES), COUNTS)


@pytest.mark.parametrize("npz", [False, True])
def test_images_are_right_side_up_in_colour(tmp_path: Path, npz: bool) -> None:
    write_imagenet32(tmp_path, SIZES, npz=npz)
    sequence = load(tmp_path)
    for part in (sequence.tasks[0].train, sequence.tasks[0].val, sequence.tests[0]):
        red, green, blue = part.images.unbind(1)
        assert (red == 250).all(), "read as pixels, red would be a third of every colour"
        assert (green[:, 0] == 0).all()
        assert (green[:, 31] == 248).all(), "green grows from top to bottom"
        assert (blue[:, 1:] == 0).all()


def test_reading_planes_as_pixels_would_be_seen() -> None:
    row = imagenet32_rows([1])
    assert (row.reshape(3, 32, 32)[0] == 250).all()
    assert not (row.reshape(32, 32, 3).transpose(2, 0, 1)[0] == 250).all()


def test_labels_are_those_of_the_files(tmp_path: Path) -> None:
    write_imagenet32(tmp_path, SIZES)
    for task in load(tmp_path).tasks:
        group = [int(name.removeprefix("class ")) for name in task.name.split(" #")[0].split(",")]
        assert task.train.images[:, 2, 0, 1].tolist() == [group[label] for label in task.train.labels.tolist()]


def test_counts_are_drawn_per_task_in_proportion_to_uneven_classes(tmp_path: Path) -> None:
    write_imagenet32(tmp_path, SIZES)
    sequence = load(tmp_path)
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        assert (task.train.count, task.val.count, test.count) == COUNTS
        group = [int(name.removeprefix("class ")) for name in task.name.split(" #")[0].split(",")]
        sizes = [SIZES[number - 1] for number in group]
        for label, size in enumerate(sizes):
            share = size / sum(sizes)
            assert abs(Counter(task.train.labels.tolist())[label] - 30 * share) <= 1
            assert abs(Counter(task.val.labels.tolist())[label] - 10 * share) <= 1


def test_pickles_and_npz_give_the_same_tasks(tmp_path: Path) -> None:
    one = load(write_imagenet32(tmp_path / "a", SIZES))
    two = load(write_imagenet32(tmp_path / "b" / "imagenet32", SIZES, npz=True).parent)
    assert [task.name for task in one.tasks] == [task.name for task in two.tasks]
    assert torch.equal(one.tasks[1].train.images, two.tasks[1].train.images)


def test_the_folders_that_the_official_archives_unpack_to(tmp_path: Path) -> None:
    made = write_imagenet32(tmp_path / "made", SIZES)
    for part in ("train", "val"):
        (tmp_path / "data" / f"Imagenet32_{part}").mkdir(parents=True)
        for path in made.glob(f"{part}*"):
            path.rename(tmp_path / "data" / f"Imagenet32_{part}" / path.name)
    assert len(load(tmp_path / "data").tasks) == 3


def test_counts_of_the_whole_set_are_the_papers() -> None:
    sizes = np.random.default_rng(0).integers(1150, 1301, CLASSES)
    sizes[:20] = 732  # the smallest real classes
    parts = []
    for labels in (np.repeat(np.arange(CLASSES), sizes), np.repeat(np.arange(CLASSES), 50)):
        nothing = np.broadcast_to(np.zeros((1, 1, 1), np.uint8), (len(labels), 1, 1, 1))
        parts.append(LabelledImages(nothing, labels, np.arange(len(labels))))
    names = list(map(str, range(CLASSES)))
    sequence = draw_by_class(
        *parts,
        name="I-100",
        tasks=100,
        counts=PER_TASK,
        seeds=Seeds(),
        normalise=COLOUR,
        class_names=names,
        where="DIR",
    )
    assert sizes_of(sequence) == sizes_in_paper("I-100")
    assert {task.train.count for task in sequence.tasks} == {10_000}
    assert {test.count for test in sequence.tests} == {500}


def test_all_missing_files_are_named_at_once(tmp_path: Path) -> None:
    write_imagenet32(tmp_path, SIZES)
    (tmp_path / "train_data_batch_3").unlink()
    (tmp_path / "val_data").unlink()
    with pytest.raises(DataError) as error:
        load(tmp_path)
    assert [line.split()[1] for line in error.value.problems] == ["train_data_batch_3", "val_data"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"data": np.zeros((4, 3071), np.uint8), "labels": [1] * 4}, "with 3072 columns"),
        ({"data": np.zeros((4, 3072), np.int16), "labels": [1] * 4}, "array of bytes"),
        ({"data": np.zeros((4, 3072), np.uint8), "labels": [1] * 3}, "list of 4 integers"),
        ({"data": np.zeros((4, 3072), np.uint8), "labels": [0] * 4}, r"must be in 1\.\.6"),
        ({"data": np.zeros((4, 3072), np.uint8), "labels": [7] * 4}, r"must be in 1\.\.6"),
        ({"data": np.zeros((4, 3072), np.uint8)}, "integers"),
        ({"labels": [1]}, "'data' is not"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: dict[str, object], reason: str) -> None:
    write_imagenet32(tmp_path, SIZES)
    (tmp_path / "train_data_batch_2").write_bytes(python2_pickle(content))
    with pytest.raises(DataError, match=reason) as error:
        load(tmp_path)
    assert str(tmp_path / "train_data_batch_2") in str(error.value)


def test_a_class_without_images(tmp_path: Path) -> None:
    write_imagenet32(tmp_path, [*SIZES[:-1], 0])
    with pytest.raises(DataError, match="1 of 6 classes have no image for train"):
        load(tmp_path)


def npy(header: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"x" * 8), "only plain numbers"),
        (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999, 3072)}"), "need 307199999996928"),
        (npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 3072)}"), "not made of counts"),
        (npy("__import__('os').abort()"), "damaged header"),
        (npy("{" * 300), "damaged header"),
        (npy(" " * 60_000), "a header of 60000 bytes"),
        (b"\x93NUMPY\x09\x00", "not an array of numpy's format 1"),
        (b"", "not an array"),
    ],
)
def test_hostile_npz(tmp_path: Path, array: bytes, reason: str) -> None:
    write_imagenet32(tmp_path, SIZES, npz=True)
    path = tmp_path / "train_data_batch_4.npz"
    labels = io.BytesIO()
    np.save(labels, np.ones(1, np.int64))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", array)
        archive.writestr("labels.npy", labels.getvalue())
    with pytest.raises(DataError, match=reason) as error:
        load(tmp_path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"x" * 1000])
def test_what_is_no_npz(tmp_path: Path, content: bytes) -> None:
    write_imagenet32(tmp_path, SIZES, npz=True)
    (tmp_path / "val_data.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"val_data\.npz: damaged"):
        load(tmp_path)


def test_an_npz_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_imagenet32(tmp_path, SIZES, npz=True)
    monkeypatch.setattr("softmask.experiments.sequences.imagenet32.LARGEST_FILE", 1000)
    with pytest.raises(DataError, match="at most 1000 are expected"):
        load(tmp_path)


def test_facts() -> None:
    facts = sequence_facts("I-100")
    assert (facts.drop1, facts.drop2, facts.tasks, facts.classes) == (0.208511, 0.360162, 100, 10)


def test_the_layout_of_the_papers_authors_is_found(tmp_path: Path) -> None:
    write_imagenet32(tmp_path / "plain", SIZES)
    for part, pattern in (("train", "train_data*"), ("test", "val_data*")):
        (tmp_path / "imagenet" / part).mkdir(parents=True)
        for file in (tmp_path / "plain").glob(pattern):
            file.rename(tmp_path / "imagenet" / part / file.name)
    assert len(load(tmp_path).tasks) == 3


def test_too_small_a_set_is_named(tmp_path: Path) -> None:
    write_imagenet32(tmp_path, [5] * 6)
    with pytest.raises(DataError) as caught:
        load(tmp_path, [5] * 6)
    assert str(tmp_path) in str(caught.value)
    assert "I-3" in str(caught.value)
