"""Handwriting by user, from files written as LEAF writes them; and from the real ones where they are there."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softmask.errors import DataError
from softmask.experiments.sequences import load_sequence, sequence_facts
from softmask.experiments.sequences.checking import sizes_in_paper, sizes_of
from softmask.experiments.sequences.femnist import femnist_by_user
from softmask.images.labelled import Counts
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from tests.experiments.sequences.generated import write_femnist
from tests.experiments.sequences.real_data import data_folder, data_for

SMALL = Counts(train=40, validation=8, test=12)
ENOUGH = (60, 15)


def load(root: Path, tasks: int = 3, wanted: Counts = SMALL) -> TaskSequence:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return femnist_by_user(root, Seeds(), tasks, wanted)


def one_user_a_file(folder: Path, files: int = 3, sizes: tuple[int, int] = ENOUGH, **how: Any) -> Path:
    return write_femnist(folder, [{"0": sizes}] * files, **how)


def origins(sequence: TaskSequence, pixel: int) -> list[set[int]]:
    """Which file (0), user (1) or part (2) the images of each task come from."""
    return [
        {value for part in (task.train, task.val, test) for value in part.images[:, 0, 0, pixel].tolist()}
        for task, test in zip(sequence.tasks, sequence.tests, strict=True)
    ]


def test_each_task_comes_from_a_file_of_its_own(tmp_path: Path) -> None:
    sequence = load(one_user_a_file(tmp_path))
    assert sorted(map(sorted, origins(sequence, pixel=0))) == [[0], [1], [2]], "one file must not serve all tasks"
    assert len({task.name for task in sequence.tasks}) == 3


def test_each_task_comes_from_another_user_of_one_file(tmp_path: Path) -> None:
    write_femnist(tmp_path, [dict.fromkeys(("ann", "bob", "cay", "dan"), ENOUGH)])
    sequence = load(tmp_path)
    assert sorted(map(sorted, origins(sequence, pixel=1))) == [[0], [1], [2]]
    assert {task.name.split(" #")[0] for task in sequence.tasks} == {"writer ann", "writer bob", "writer cay"}


def test_train_and_test_are_those_of_the_files(tmp_path: Path) -> None:
    sequence = load(one_user_a_file(tmp_path))
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        assert (task.train.count, task.val.count, test.count) == SMALL
        assert set(task.train.images[:, 0, 0, 2].tolist()) == set(task.val.images[:, 0, 0, 2].tolist()) == {0}
        assert set(test.images[:, 0, 0, 2].tolist()) == {1}
        numbers = [*task.train.images[:, 0, 0, 3].tolist(), *task.val.images[:, 0, 0, 3].tolist()]
        assert len(set(numbers)) == 48
        for part in (task.train, task.val, test):
            assert part.labels.tolist() == [number % 62 for number in part.images[:, 0, 0, 3].tolist()]


def test_paper_is_white_as_in_the_files(tmp_path: Path) -> None:
    sequence = load(one_user_a_file(tmp_path))
    assert int(sequence.tasks[0].train.images[0, 0, 20, 20]) == 255
    assert float(sequence.tasks[0].train.x[0, 0, 20, 20]) == pytest.approx((1 - 0.1307) / 0.3081)


def test_plain_and_packed_files_and_all_folders_give_the_same(tmp_path: Path) -> None:
    places = {
        "plain": one_user_a_file(tmp_path / "plain", packed=False),
        "packed": one_user_a_file(tmp_path / "packed"),
        "leaf": one_user_a_file(tmp_path / "leaf" / "femnist" / "data").parents[1],
        "short": one_user_a_file(tmp_path / "short" / "femnist").parent,
        "named": one_user_a_file(tmp_path / "named" / "femnist" / "fe3").parents[1],
    }
    names = {tuple(task.name for task in load(root).tasks) for root in places.values()}
    assert len(names) == 1


def test_the_folder_of_the_sequence_goes_before_others(tmp_path: Path) -> None:
    one_user_a_file(tmp_path / "femnist" / "fe3")
    write_femnist(tmp_path / "femnist" / "data", [dict.fromkeys("abc", ENOUGH)])
    write_femnist(tmp_path / "femnist" / "writers20", [dict.fromkeys("abcd", ENOUGH)])
    assert load(tmp_path).tasks[0].name.startswith("writers of all_data")
    assert load(tmp_path, tasks=2).tasks[0].name.startswith("writer ")


def test_number_ten_comes_after_number_two(tmp_path: Path) -> None:
    one_user_a_file(tmp_path, files=12)
    assert set.union(*origins(load(tmp_path, tasks=11), pixel=0)) == set(range(11))


def test_users_with_enough_go_first_else_those_with_the_most(tmp_path: Path) -> None:
    write_femnist(tmp_path / "a", [{"small": (10, 5), "b": ENOUGH, "c": ENOUGH, "d": ENOUGH}])
    assert sorted(map(min, origins(load(tmp_path / "a"), pixel=1))) == [1, 2, 3]
    write_femnist(tmp_path / "b", [{"a": (20, 9), "b": (30, 9), "c": ENOUGH, "d": (25, 9)}])
    with pytest.warns(UserWarning, match="fewer images than the paper: 20 to 40/4 to 8/9 to 12 a task"):
        sequence = femnist_by_user(tmp_path / "b", Seeds(), 3, SMALL)
    assert sorted(map(min, origins(sequence, pixel=1))) == [1, 2, 3]


def test_scaled_down_in_proportion_with_a_notice(tmp_path: Path) -> None:
    one_user_a_file(tmp_path, sizes=(24, 6))
    with pytest.warns(UserWarning, match="20/4/6 a task for training, validation and test instead of 40/8/12"):
        sequence = femnist_by_user(tmp_path, Seeds(), 3, SMALL)
    assert {(task.train.count, task.val.count) for task in sequence.tasks} == {(20, 4)}


def test_below_a_fortieth_is_refused(tmp_path: Path) -> None:
    write_femnist(tmp_path, [{"a": ENOUGH, "b": (60, 0), "c": (0, 15)}])
    with pytest.raises(DataError) as error:
        load(tmp_path)
    problems = error.value.problems  # type: ignore[attr-defined]
    assert ["user writer b: 0 images for test; the paper has 12, at least 1" in problems[0], len(problems)] == [
        True,
        2,
    ]


def test_too_few_users(tmp_path: Path) -> None:
    one_user_a_file(tmp_path, files=2)
    with pytest.raises(DataError, match="2 users, but 3 tasks need as many"):
        load(tmp_path)


def test_the_same_name_for_other_images_is_another_task(tmp_path: Path) -> None:
    one, two = one_user_a_file(tmp_path / "a"), one_user_a_file(tmp_path / "b")
    path = two / "train" / "all_data_0_iid_01_0_keep_0_train_9.json.gz"
    content = json.loads(gzip.decompress(path.read_bytes()))
    for image in content["user_data"]["0"]["x"]:
        image[100] = 0.0
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    same = {task.name for task in load(one).tasks} & {task.name for task in load(two).tasks}
    assert len(same) == 2


def test_the_order_seed_moves_tasks_and_nothing_else(tmp_path: Path) -> None:
    one_user_a_file(tmp_path)
    orders = {
        tuple(task.name for task in femnist_by_user(tmp_path, Seeds(order=seed), 3, SMALL).tasks) for seed in range(8)
    }
    assert len(orders) > 1
    assert len({frozenset(order) for order in orders}) == 1


PIXELS = [0.5] * 784


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "damaged or not readable"),
        (b"no json", "damaged or not readable"),
        (b"[" * 100_000, "far more lists than images"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [[NaN]], "y": [0]}}}', "NaN is not a number"),
        (b"[1, 2]", "not a file of LEAF"),
        (b'{"users": "a", "user_data": {}}', "not a file of LEAF"),
        (b'{"users": [1], "user_data": {}}', "not a file of LEAF"),
        (b'{"users": ["a", "a"], "user_data": {}}', "'users'"),
        (b'{"users": ["a"], "user_data": {}}', "user 'a' has no lists"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [], "y": [1]}}}', "of one length"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [PIXELS], "y": [62]}}}).encode(), r"one of 0\.\.61"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [PIXELS], "y": ["1"]}}}).encode(), r"one of 0\.\.61"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [1e999]}}}', r"one of 0\.\.61"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [[1, 2], [3]], "y": [1, 1]}}}', "list of 784 numbers"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [PIXELS[1:]], "y": [1]}}}).encode(), "of 784 numbers"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[2.0] * 784], "y": [1]}}}).encode(), r"in 0\.\.1"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [["0.5"] * 784], "y": [1]}}}).encode(), r"in 0\.\.1"),
    ],
)
def test_json_of_a_wrong_shape(tmp_path: Path, content: bytes, reason: str) -> None:
    one_user_a_file(tmp_path, packed=False)
    path = tmp_path / "train" / "all_data_1_iid_01_0_keep_0_train_9.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_packed_file_that_unpacks_to_too_much_or_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_user_a_file(tmp_path)
    path = tmp_path / "test" / "all_data_2_iid_01_0_keep_0_test_9.json.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match=f"{path}: damaged"):
        load(tmp_path)
    path.write_bytes(gzip.compress(b" " * 3_000_000))
    monkeypatch.setattr("softmask.experiments.sequences.leaf.LARGEST_FILE", 2_000_000)
    with pytest.raises(DataError, match="unpacks to more than the 2000000 bytes"):
        load(tmp_path)


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    one_user_a_file(tmp_path)
    path = tmp_path / "test" / "all_data_1_iid_01_0_keep_0_test_9.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"users": [], "user_data": {}}).encode()))
    with pytest.raises(DataError, match=f"{path}: its users are not those of"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"keep_0_test_9.json: no such file \(nor packed"):
        load(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no FEMNIST in .*expected LEAF's JSON files"):
        load_sequence("FE-10", tmp_path, Seeds())


def test_facts() -> None:
    assert (sequence_facts("FE-10").drop1, sequence_facts("FE-10").drop2) == (0.492179, 0.484742)
    assert (sequence_facts("FE-20").drop1, sequence_facts("FE-20").drop2) == (0.297455, 0.388678)
    assert sequence_facts("FE-20").similar


@pytest.mark.data
def test_real_files_of_ten_tasks_have_the_papers_counts_and_share_no_image() -> None:
    sequence = load_sequence("FE-10", data_for("FE-10"), Seeds())
    assert sizes_of(sequence) == sizes_in_paper("FE-10")
    seen: set[bytes] = set()
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        own = {image.tobytes() for part in (task.train, task.val, test) for image in part.images.numpy()}
        assert not own & seen, "tasks share images: one file serves several"
        assert len(own) == 4030
        seen |= own


@pytest.mark.data
def test_real_files_of_twenty_tasks_are_two_thirds_and_say_so() -> None:
    root = data_for("FE-20")
    with pytest.warns(UserWarning, match="2100/210/420 a task"):
        sequence = load_sequence("FE-20", root, Seeds())
    assert sizes_of(sequence) == (20, 62, 42_000, 4_200, 8_400)


@pytest.mark.data
def test_real_writers_are_small_tasks_of_their_own() -> None:
    folder = data_folder() / "femnist" / "writers20"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    with pytest.warns(UserWarning, match="149 to 298/14 to 29/18 to 36 a task"):
        sequence = load_sequence("FE-20", folder, Seeds())
    assert len({task.name.split(" #")[0] for task in sequence.tasks}) == 20
    assert all(np.unique(task.train.labels.numpy()).size > 40 for task in sequence.tasks)
