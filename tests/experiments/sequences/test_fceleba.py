"""CelebA by person, from lists and images laid out as LEAF does."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from softmask.errors import DataError
from softmask.experiments.sequences import load_sequence, sequence_facts
from softmask.experiments.sequences.checking import sizes_in_paper, sizes_of
from softmask.experiments.sequences.fceleba import fceleba_by_user
from softmask.images.labelled import Counts
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from tests.experiments.sequences.generated import jpeg, write_fceleba

SMALL = Counts(train=20, validation=4, test=8)
ENOUGH = (30, 10)
PEOPLE = {"11": ENOUGH, "22": ENOUGH, "33": ENOUGH}


def load(root: Path, tasks: int = 3) -> TaskSequence:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return fceleba_by_user(root, Seeds(), tasks, SMALL)


def lists(root: Path, part: str = "train") -> Path:
    return root / "celeba" / "data" / part / f"all_data_niid_05_keep_5_{part}_9.json"


def change(root: Path, **changes: Any) -> Path:
    content = json.loads(lists(root).read_text())
    content["user_data"]["22"].update(changes)
    lists(root).write_text(json.dumps(content))
    return lists(root)


def test_smiles_are_labelled_and_images_are_small_and_in_colour(tmp_path: Path) -> None:
    sequence = load(write_fceleba(tmp_path, PEOPLE, side=50))
    assert sequence.input_shape == (3, 32, 32)
    assert sequence.classes == (2, 2, 2)
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        assert (task.train.count, task.val.count, test.count) == SMALL
        for part in (task.train, task.val, test):
            assert ((part.images[:, 0, 9, 9] > 200).long() == part.labels).all()
            assert ((part.images[:, 2, 9, 9] > 200).long() == 1 - part.labels).all()


def test_tasks_are_different_people(tmp_path: Path) -> None:
    names = {task.name.split(" #")[0] for task in load(write_fceleba(tmp_path, PEOPLE)).tasks}
    assert names == {"person 11", "person 22", "person 33"}


def test_the_folder_named_directly(tmp_path: Path) -> None:
    write_fceleba(tmp_path, PEOPLE)
    assert [task.name for task in load(tmp_path / "celeba" / "data").tasks] == [
        task.name for task in load(tmp_path).tasks
    ]


def test_fewer_images_are_used_with_a_notice_and_too_few_are_refused(tmp_path: Path) -> None:
    write_fceleba(tmp_path, {**PEOPLE, "22": (12, 4)})
    with pytest.warns(UserWarning, match="10 to 20/2 to 4/4 to 8 a task"):
        fceleba_by_user(tmp_path, Seeds(), 3, SMALL)
    write_fceleba(tmp_path / "few", {**PEOPLE, "22": (1, 0)})
    with pytest.raises(DataError, match="user person 22: 0 images"):
        load(tmp_path / "few")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x": ["../../secret.jpg"] * 30}, "not the name of a .jpg file: '../../secret.jpg'"),
        ({"x": ["/etc/passwd"] * 30}, "not the name of a .jpg file"),
        ({"x": ["000001.png"] * 30}, "not the name of a .jpg file"),
        ({"x": [7] * 30}, "not the name of a .jpg file"),
        ({"y": [0.5] * 30}, "neither 0 nor 1"),
        ({"y": [0.0] * 29}, "no lists 'x' and 'y' of one length"),
        ({"x": ["999999.jpg"] * 30}, r"999999.jpg: No such file"),
    ],
)
def test_lists_that_are_wrong(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    write_fceleba(tmp_path, PEOPLE)
    change(tmp_path, **changes)
    with pytest.raises(DataError, match=reason) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_every_broken_image_is_named(tmp_path: Path) -> None:
    write_fceleba(tmp_path, PEOPLE)
    folder = tmp_path / "celeba" / "data" / "raw" / "img_align_celeba"
    (folder / "000003.jpg").write_bytes(jpeg(9, 64)[:150])
    Image.new("RGB", (9, 9)).save(folder / "000005.jpg", "PNG")
    with pytest.raises(DataError) as error:
        load(tmp_path)
    assert [line.split(":")[0][-10:] for line in error.value.problems] == ["000003.jpg", "000005.jpg"]  # type: ignore[attr-defined]


def test_no_images_at_all(tmp_path: Path) -> None:
    write_fceleba(tmp_path, PEOPLE)
    (tmp_path / "celeba" / "data" / "raw").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="img_align_celeba: no such folder"):
        load(tmp_path)


def test_lists_in_another_order_are_not_served_from_old_images(tmp_path: Path) -> None:
    load(write_fceleba(tmp_path, PEOPLE))
    content = json.loads(lists(tmp_path).read_text())
    for user in content["user_data"].values():
        user["x"].reverse()
        user["y"].reverse()
    lists(tmp_path).write_text(json.dumps(content))
    for task in load(tmp_path).tasks:
        assert ((task.train.images[:, 0, 9, 9] > 200).long() == task.train.labels).all()


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no CelebA by person in"):
        load_sequence("FC-20", tmp_path, Seeds())


def test_facts() -> None:
    assert (sequence_facts("FC-10").drop1, sequence_facts("FC-10").drop2) == (0.325667, 0.414662)
    assert (sequence_facts("FC-20").drop1, sequence_facts("FC-20").drop2) == (0.198384, 0.269408)


def test_counts_of_the_whole_set_are_the_papers(tmp_path: Path) -> None:
    write_fceleba(tmp_path, {str(person): (440, 80) for person in range(20)})
    for name in ("FC-10", "FC-20"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sizes_of(load_sequence(name, tmp_path, Seeds())) == sizes_in_paper(name)
