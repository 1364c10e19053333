"""TinyImageNet from sets written like the official one, only smaller; once, slowly, with all its files."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import pytest

from softmask.errors import DataError, DataErrors
from softmask.experiments.sequences import load_sequence, sequence_facts
from softmask.experiments.sequences.checking import sizes_in_paper, sizes_of
from softmask.experiments.sequences.tinyimagenet import tinyimagenet_by_class
from softmask.images.labelled import Counts
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from tests.experiments.sequences.generated import jpeg, write_tinyimagenet

SMALL = Counts(train=4, validation=2, test=2)
CLASSES = 10


def load(root: Path, tasks: int = 5) -> TaskSequence:
    return tinyimagenet_by_class(root, Seeds(), tasks, CLASSES, SMALL)


@pytest.mark.parametrize("packed", [False, True])
def test_images_are_in_colour_and_labelled(tmp_path: Path, packed: bool) -> None:
    write_tinyimagenet(tmp_path, packed=packed)
    sequence = load(tmp_path)
    assert sequence.input_shape == (3, 32, 32)
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        group = [int(name.removeprefix("word ")) for name in task.name.split(" #")[0].split(",")]
        for part, per_class in ((task.train, 4), (task.val, 2), (test, 2)):
            assert Counter(part.labels.tolist()) == dict.fromkeys(range(2), per_class)
            red = part.images[:, 0, 16, 16].tolist()
            for value, label in zip(red, part.labels.tolist(), strict=True):
                assert abs(value - 255 * group[label] // 9) < 8
        assert (test.images[:, 2].float() > 200).all(), "the test is the part called val"
        assert (test.images[:, 1].float() < 50).all()


def test_grey_images_are_brought_to_three_equal_planes(tmp_path: Path) -> None:
    write_tinyimagenet(tmp_path, grey_every=1)
    images = load(tmp_path).tasks[0].train.images
    assert (images[:, 0] == images[:, 1]).all()
    assert (images[:, 1] == images[:, 2]).all()


def test_folder_and_archive_give_the_same_tasks(tmp_path: Path) -> None:
    folder = write_tinyimagenet(tmp_path / "a")
    archive = write_tinyimagenet(tmp_path / "b", packed=True)
    names = {tuple(task.name for task in load(place).tasks) for place in (folder, folder.parent, archive.parent)}
    assert len(names) == 1


def test_resizing_is_bicubic(tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    folder = write_tinyimagenet(tmp_path)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    for path in (folder / "train").rglob("*.JPEG"):
        noise.save(path, quality=95)
    with Image.open(path) as stored:
        expected = np.asarray(stored.convert("RGB").resize((32, 32), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    np.testing.assert_array_equal(load(tmp_path).tasks[0].train.images[0].numpy(), expected)


def test_every_broken_image_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    folder = write_tinyimagenet(tmp_path)
    broken = [folder / "train/n00000003/images/n00000003_1.JPEG", folder / "val/images/val_7.JPEG"]
    broken[0].write_bytes(jpeg((1, 2, 3), 64)[:200])
    broken[1].write_bytes(b"no image")
    for _ in range(2):  # what was half built must not serve the second time
        with pytest.raises(DataErrors) as error:
            load(tmp_path)
        assert [str(path) in line for path, line in zip(broken, error.value.problems, strict=True)] == [True, True]
        assert "\n" not in str(error.value)


def test_what_is_wrong_with_the_lists_is_said(tmp_path: Path) -> None:
    folder = write_tinyimagenet(tmp_path)
    (folder / "train/n00000004/images/n00000004_0.JPEG").unlink()
    with pytest.raises(DataError, match=r"train: each class needs 6 images, but n00000004 has 5"):
        load(tmp_path)
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn99999999\n")
    with pytest.raises(DataError, match=r"val_annotations.txt: a line that names no new image and class"):
        load(tmp_path)
    (folder / "wnids.txt").write_text("n00000001\n")
    with pytest.raises(DataError, match=r"wnids.txt: names 1 classes, expected 10"):
        load(tmp_path)


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_an_archive_cut_short(tmp_path: Path, share: float) -> None:
    archive = write_tinyimagenet(tmp_path, packed=True)
    archive.write_bytes(archive.read_bytes()[: int(archive.stat().st_size * share)])
    with pytest.raises(DataError, match=str(archive)):
        load(tmp_path)


def test_a_member_outside_is_refused(tmp_path: Path) -> None:
    archive = write_tinyimagenet(tmp_path, packed=True)
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr("../../outside", b"x")
    with pytest.raises(DataError, match="leads out of the archive"):
        load(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected tiny-imagenet-200\.zip or the folder tiny-imagenet-200"):
        load_sequence("T-10", tmp_path, Seeds())


def test_facts() -> None:
    assert (sequence_facts("T-10").drop1, sequence_facts("T-10").drop2) == (0.124933, 0.434409)
    assert (sequence_facts("T-20").drop1, sequence_facts("T-20").drop2) == (0.387491, 0.442297)


@pytest.mark.slow
def test_counts_of_the_whole_set_are_the_papers(tmp_path: Path) -> None:
    write_tinyimagenet(tmp_path, classes=200, train=500, test=50, packed=True)
    for name in ("T-10", "T-20"):
        assert sizes_of(load_sequence(name, tmp_path, Seeds())) == sizes_in_paper(name)
