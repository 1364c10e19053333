"""The contract of every sequence, those of other packages included. Those that need data run where the data are."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator

import pytest
import torch

from softmask.errors import UnknownName
from softmask.experiments.paper import paper_tables
from softmask.experiments.sequences import SEQUENCES, load_sequence, sequence_facts
from softmask.learning.seeds import Seeds
from softmask.learning.task import Batches, TaskSequence
from tests.experiments.sequences.real_data import data_for


@pytest.fixture(autouse=True, scope="module")
def _lasting_cache(request: pytest.FixtureRequest) -> Iterator[None]:
    """Decoding real data takes half a minute: once for all test sessions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTMASK_CACHE", str(request.config.cache.mkdir("softmask")))
        yield


@functools.cache
def load(name: str, seed: int = 3) -> TaskSequence:
    root = data_for(name) if sequence_facts(name).needs_data else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a repacked archive is as good, and so are fewer images
        return load_sequence(name, root, Seeds.all_from(seed))


LONG = ("FE-20",)  # as FE-10, with twice the writers


def every_sequence() -> list[object]:
    def marks(name: str) -> list[pytest.MarkDecorator]:
        return [pytest.mark.data] * sequence_facts(name).needs_data + [pytest.mark.slow] * (name in LONG)

    return [pytest.param(name, marks=marks(name)) for name in SEQUENCES.names()]


each = pytest.mark.parametrize("name", every_sequence())


def parts(sequence: TaskSequence) -> list[Batches]:
    together = zip(sequence.tasks, sequence.tests, strict=True)
    return [part for task, test in together for part in (task.train, task.val, test)]


@each
def test_it_is_what_its_facts_say(name: str) -> None:
    facts, sequence = sequence_facts(name), load(name)
    assert sequence.name == name
    assert sequence.similar == facts.similar
    assert [task.classes for task in sequence.tasks] == [facts.classes] * facts.tasks
    assert [task.ids for task in sequence.tasks] == [(place,) for place in range(facts.tasks)]
    assert facts.description
    assert 0 < facts.width <= 1
    assert 0 <= facts.drop1 < 1
    assert 0 <= facts.drop2 < 1


@each
def test_images_are_bytes_of_one_shape(name: str) -> None:
    sequence = load(name)
    for part in parts(sequence):
        assert part.images.dtype == torch.uint8
        assert tuple(part.images.shape[1:]) == sequence.input_shape
        assert part.count > 0


@each
def test_labels_are_those_of_the_classes(name: str) -> None:
    for task, test in zip(load(name).tasks, load(name).tests, strict=True):
        trained = set(task.train.labels.tolist())
        assert trained == set(range(task.classes))
        for part in (task.val, test):
            assert part.labels.dtype == torch.int64
            assert set(part.labels.tolist()) <= trained, "nothing is tested that was never taught"


@each
def test_batches_are_normalised(name: str) -> None:
    x, y = next(iter(load(name).tasks[0].train))
    assert x.dtype == torch.float32
    assert len(x) == len(y)
    # Handwriting on white paper is normalised by constants for black, as the paper's authors do: its mean is 2.7.
    assert abs(float(x.mean())) < 3
    assert 0.3 < float(x.std()) < 3


@each
def test_no_tested_image_is_trained_on(name: str) -> None:
    sequence = load(name)
    repeated = used = 0
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        tested = {image.tobytes() for image in test.images.numpy()}
        trained = (image.tobytes() for part in (task.train, task.val) for image in part.images.numpy())
        repeated += sum(image in tested for image in trained)
        used += task.train.count + task.val.count
    # CIFAR-100 itself has ten images in both of its files; a split that leaks gives many more.
    assert repeated <= used // 2000


@each
def test_equal_seeds_give_equal_tasks_and_others_do_not(name: str) -> None:
    names = [task.name for task in load(name).tasks]
    assert len(set(names)) == len(names)
    assert [task.name for task in load.__wrapped__(name).tasks] == names
    assert not {task.name for task in load(name, seed=4).tasks} & set(names)


def test_an_unknown_name_is_answered_with_the_nearest_known() -> None:
    with pytest.raises(UnknownName, match="unknown sequence 'c10': did you mean 'C-10'"):
        load_sequence("c10", None, Seeds())
    with pytest.raises(UnknownName, match="did you mean 'D-5'"):
        sequence_facts("d-5")


def test_all_nine_of_the_paper_are_there_and_the_built_in_ones() -> None:
    assert set(paper_tables()["sequences"]) | {"D-5", "R-10"} <= set(SEQUENCES.names())
    for name, row in paper_tables()["sequences"].items():
        facts = sequence_facts(name)
        assert (facts.tasks, facts.classes, facts.width) == (row["tasks"], row["classes_per_task"], 1)
        assert facts.needs_data
        assert facts.similar == name.startswith("F")
        assert facts.source is not None
        assert facts.source.home
        assert facts.source.terms
        assert facts.source.download or facts.source.obtain
    assert not sequence_facts("D-5").needs_data
    assert sequence_facts("R-10").similar
