"""CIFAR-100 from archives written like the official one, only smaller; and from the real one where it is there."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from softmask.errors import DataError
from softmask.experiments.sequences import load_sequence, sequence_facts
from softmask.experiments.sequences.checking import sizes_in_paper, sizes_of
from softmask.experiments.sequences.cifar100 import cifar100_by_class, cifar100_in_order, read_cifar100
from softmask.images.labelled import Counts
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from tests.experiments.sequences.pickling import python2_pickle, write_archive
from tests.experiments.sequences.real_data import data_for

SMALL = Counts(train=2, validation=1, test=1)
Content = dict[str, dict[str, Any]]


def contents(shuffle: int = 0) -> Content:
    """The content of the three files. The class of an image is its first red value, its copy the first green one."""
    files: Content = {"meta": {"fine_label_names": [f"class{label:02}" for label in range(100)]}}
    for name, per_class in (("train", 3), ("test", 1)):
        order = np.random.default_rng(shuffle).permutation(100 * per_class)
        data = np.zeros((len(order), 3, 32, 32), np.uint8)
        data[:, 0, 0, 0] = order % 100
        data[:, 1, 0, 0] = 200 + order // 100
        data[:, 2, 31, 31] = 7
        files[name] = {
            "filenames": [f"{name}_{number:05}.png" for number in order],
            "fine_labels": (order % 100).tolist(),
            "coarse_labels": [0] * len(order),
            "data": data.reshape(len(order), -1),
        }
    # The official file has one name twice, which must not make the order of rows matter.
    train = files["train"]["filenames"]
    train[train.index("train_00005.png")] = "train_00105.png"
    return files


def write_folder(folder: Path, files: Content) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(python2_pickle(content))
    return folder


def archive_of(root: Path, files: Content) -> Path:
    members = {f"cifar-100-python/{name}": python2_pickle(content) for name, content in files.items()}
    return write_archive(root / "cifar-100-python.tar.gz", members)


def load(root: Path, tasks: int = 10) -> TaskSequence:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cifar100_by_class(root, Seeds(), tasks, SMALL)


def test_images_are_planar_and_labelled(tmp_path: Path) -> None:
    sequence = load(archive_of(tmp_path, contents()))
    assert sequence.input_shape == (3, 32, 32)
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        group = [int(name.removeprefix("class")) for name in task.name.split(" #")[0].split(",")]
        for part, per_class in ((task.train, 2), (task.val, 1), (test, 1)):
            assert part.images[:, 0, 0, 0].tolist() == [group[label] for label in part.labels.tolist()]
            assert set(part.images[:, 1, 0, 0].tolist()) <= {200, 201, 202}
            assert set(part.images[:, 2, 31, 31].tolist()) == {7}
            assert Counter(part.labels.tolist()) == dict.fromkeys(range(10), per_class)


def test_the_protocol_of_gpm_has_the_classes_in_their_order(tmp_path: Path) -> None:
    """Of 30 images a task, 5 percent are held out: one. Every part is mixed; the seed changes the split alone."""
    archive_of(tmp_path, contents())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sequence, other = (cifar100_in_order(tmp_path, Seeds.all_from(seed), 10, SMALL) for seed in (1, 2))
    assert sequence.name == "C-10-GPM"
    for place, (task, test) in enumerate(zip(sequence.tasks, sequence.tests, strict=True)):
        assert (task.train.count, task.val.count, test.count) == (29, 1, 10)
        for part in (task.train, task.val, test):
            assert part.images[:, 0, 0, 0].tolist() == [10 * place + label for label in part.labels.tolist()]
        assert test.labels.tolist() != sorted(test.labels.tolist())
    assert other.tasks[3].name.split(" #")[0] == sequence.tasks[3].name.split(" #")[0]
    assert other.tasks[3].name != sequence.tasks[3].name
    x = sequence.tasks[0].train.normalise
    assert x is not None
    assert (round(255 * x.mean[0], 6), round(255 * x.std[2], 6)) == (125.3, 66.7)
    assert sequence_facts("C-10-GPM").norm == "batch"


def test_every_way_to_name_the_place_gives_the_same(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "unpacked" / "cifar-100-python", contents())
    renamed = write_folder(tmp_path / "renamed", contents())
    packed = tmp_path / "packed"
    packed.mkdir()
    archive = archive_of(packed, contents())
    names = {
        tuple(task.name for task in load(root).tasks) for root in (folder.parent, folder, renamed, packed, archive)
    }
    assert len(names) == 1


def test_a_folder_of_another_data_set_beside_the_archive_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    archive_of(tmp_path, contents())
    assert len(load(tmp_path).tasks) == 10


def test_another_order_of_rows_gives_the_same_tasks(tmp_path: Path) -> None:
    one = load(write_folder(tmp_path / "one", contents(shuffle=0)))
    two = load(write_folder(tmp_path / "two", contents(shuffle=1)))
    for a, b in zip(one.tasks, two.tasks, strict=True):
        assert a.name == b.name
        assert torch.equal(a.train.images, b.train.images)
        assert torch.equal(a.train.labels, b.train.labels)


def test_what_is_not_the_official_file_is_used_with_a_warning_that_names_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "cifar-100-python", contents())
    with pytest.warns(UserWarning, match="not the official file") as caught:
        read_cifar100(folder, SMALL)
    for name in ("train", "test", "meta"):
        assert any(str(folder / name) in str(warning.message) for warning in caught)


def too_few(files: Content) -> None:
    files["train"]["data"] = files["train"]["data"][:-1]


def wrong_shape(files: Content) -> None:
    files["train"]["data"] = files["train"]["data"].reshape(-1, 3, 1024)


def wrong_type(files: Content) -> None:
    files["train"]["data"] = files["train"]["data"].astype(np.int16)


def not_an_array(files: Content) -> None:
    files["train"]["data"] = [1, 2, 3]


def label_too_large(files: Content) -> None:
    files["train"]["fine_labels"][7] = 100


def negative_label(files: Content) -> None:
    files["train"]["fine_labels"][7] = -1


def label_that_is_text(files: Content) -> None:
    files["train"]["fine_labels"][7] = "7"


def uneven_labels(files: Content) -> None:
    labels = files["train"]["fine_labels"]
    labels[labels.index(3)] = 4


def no_labels(files: Content) -> None:
    del files["train"]["fine_labels"]


def no_file_names(files: Content) -> None:
    del files["train"]["filenames"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (too_few, r"shape \(299, 3072\).*expected an array of shape \(300, 3072\)"),
        (wrong_shape, r"shape \(300, 3, 1024\)"),
        (wrong_type, "int16.*uint8"),
        (not_an_array, "'data' is a list of 3"),
        (label_too_large, "'fine_labels'.*labels below 100"),
        (negative_label, "'fine_labels'.*labels below 100"),
        (label_that_is_text, "'fine_labels'.*labels below 100"),
        (uneven_labels, "each of the 100 classes 3 times"),
        (no_labels, "'fine_labels' is missing"),
        (no_file_names, "'filenames' is missing"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, spoil: Callable[[Content], None], reason: str) -> None:
    files = contents()
    spoil(files)
    folder = write_folder(tmp_path / "cifar-100-python", files)
    with pytest.raises(DataError, match=reason) as error:
        load(folder)
    assert str(error.value).startswith(f"{folder / 'train'}: ")


def test_too_few_class_names(tmp_path: Path) -> None:
    files = contents()
    files["meta"]["fine_label_names"].pop()
    with pytest.raises(DataError, match=r"meta: 'fine_label_names' is a list of 99, expected a list of 100 names"):
        load(archive_of(tmp_path, files))


@pytest.mark.parametrize("missing", ["train", "test", "meta"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    files = contents()
    del files[missing]
    with pytest.raises(DataError, match=f"lacks cifar-100-python/{missing}"):
        load(archive_of(tmp_path, files))
    folder = write_folder(tmp_path / "cifar-100-python", files)
    with pytest.raises(DataError, match=f"{folder / missing}: No such file"):
        load(folder)


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("packed", [True, False])
def test_files_cut_short(tmp_path: Path, share: float, packed: bool) -> None:
    path = archive_of(tmp_path, contents()) if packed else write_folder(tmp_path / "f", contents()) / "train"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DataError, match=str(path)) as error:
        load(path if packed else path.parent)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", "nothing-here", "empty"])
def test_where_nothing_is_found_it_is_said_what_was_looked_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"expected cifar-100-python.tar.gz or the folder cifar-100-python"):
        load(tmp_path / name)


def test_without_a_folder_it_is_said_how_to_give_one() -> None:
    with pytest.raises(DataError, match=r"C-20 needs cifar-100-python.tar.gz.*--data.*SOFTMASK_DATA"):
        load_sequence("C-20", None, Seeds())


def test_dropout_is_the_pair_tuned_by_the_authors() -> None:
    facts = {name: sequence_facts(name) for name in ("C-10", "C-20")}
    assert (facts["C-10"].drop1, facts["C-10"].drop2) == (0.313456, 0.409306)
    assert (facts["C-20"].drop1, facts["C-20"].drop2) == (0.495630, 0.485032)
    assert {fact.width for fact in facts.values()} == {1.0}


@pytest.mark.data
def test_the_real_archive() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a repacked archive is as good
        sequence = load_sequence("C-10", data_for("C-10"), Seeds())
    assert sizes_of(sequence) == sizes_in_paper("C-10")
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        for part, per_class in ((task.train, 450), (task.val, 50), (test, 100)):
            assert Counter(part.labels.tolist()) == dict.fromkeys(range(10), per_class)
    assert sequence.tasks[0].name.startswith("mouse,possum,wardrobe,")
    means = torch.stack([(task.train.images / 255).mean(dim=(0, 2, 3)) for task in sequence.tasks])
    assert torch.allclose(means.mean(dim=0), torch.tensor([0.507, 0.487, 0.441]), atol=0.002)
