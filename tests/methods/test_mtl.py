"""MTL: mixed batches, one head per sample, one result."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from softmask.experiments.metrics import average_accuracy, backward_transfer, forward_transfer
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from softmask.learning.evaluation import validate
from softmask.learning.fit import Fit
from softmask.learning.method import Step
from softmask.learning.seeds import Seeds
from softmask.learning.training import PRESETS, Training
from softmask.methods.mtl import MTL, joined
from tests.learning.toys import random_scenario, random_task
from tests.methods.comparing import SMALL

TRAINING = Training(joint_batch=5, joint_epochs=7, epochs=3)


def method_and_task() -> tuple[MTL, object]:
    method = MTL(random_scenario(tasks=2))
    (task,) = method.stages([random_task(0), random_task(1, count=8)], TRAINING)
    return method, task


def batch(method: MTL, counts: tuple[int, int]) -> Step:
    """So many samples of each task."""
    torch.manual_seed(5)
    tasks = torch.tensor([0] * counts[0] + [1] * counts[1])
    x, labels = torch.randn(4, 3)[: len(tasks)], torch.tensor([0, 1, 1, 0])[: len(tasks)]
    return Step(method_and_task()[1], x, torch.stack([tasks, labels], 1))


def test_loss_weighs_samples_not_tasks() -> None:
    """Three samples of one task, one of the other: the mean of the two tasks' means would be another number."""
    method = MTL(random_scenario(tasks=2))
    step = batch(method, (3, 1))
    labels = step.y[:, 1]
    first = F.cross_entropy(method(step.x[:3], 0), labels[:3])
    second = F.cross_entropy(method(step.x[3:], 1), labels[3:])
    torch.testing.assert_close(method.loss(step), (3 * first + second) / 4)
    assert not torch.isclose(method.loss(step), (first + second) / 2)


def test_a_head_learns_from_its_own_samples_alone() -> None:
    method = MTL(random_scenario(tasks=2))
    step = batch(method, (3, 1))
    method.loss(step).backward()
    mixed = method.heads[1].weight.grad.clone()
    method.zero_grad()
    F.cross_entropy(method(step.x[3:], 1), step.y[3:, 1]).backward()
    torch.testing.assert_close(mixed, method.heads[1].weight.grad / 4)


def test_one_stage_with_all_samples_in_batches_of_its_own_size() -> None:
    _, task = method_and_task()
    assert task.ids == (0, 1)
    assert task.id == 1
    assert task.classes == 4
    assert task.train.count == 20
    assert task.train.size == 5
    counts = task.train.y[:, 0].bincount().tolist()
    assert counts == [12, 8]
    x, y = random_task(1, count=8).train.x, random_task(1, count=8).train.y
    labels = task.train.labels[:, 1].tolist()
    found = dict(zip([tuple(image.tolist()) for image in task.train.images], labels, strict=True))
    assert [found[tuple(image.tolist())] for image in x] == y.tolist()


def test_the_union_is_mixed_once_and_reshuffled_only_if_the_training_is() -> None:
    """One setting for every method: the paper's code goes through the same batches in every epoch."""
    method, task = method_and_task()
    assert not TRAINING.shuffle
    first, second = (list(task.train) for _ in range(2))
    both = [0 < y[:, 0].sum() < len(y) for _, y in first]
    assert sum(both) > 1  # one after the other, they would meet in a single batch
    assert torch.equal(torch.cat([y for _, y in first]), torch.cat([y for _, y in second]))
    (shuffling,) = method.stages([random_task(0), random_task(1, count=8)], replace(TRAINING, shuffle=True))
    first, second = (torch.cat([y for _, y in shuffling.train]) for _ in range(2))
    assert not torch.equal(first, second)


def test_a_batch_of_both_presets_has_640_images() -> None:
    method = MTL(random_scenario(tasks=2))
    for preset in ("paper", "short"):
        (task,) = method.stages([random_task(0), random_task(1)], PRESETS[preset])
        assert task.train.size == 640


def test_epochs_over_the_union_are_its_own() -> None:
    method, task = method_and_task()
    assert Fit(method, task, TRAINING).training.epochs == 7
    assert Fit(method, task, replace(TRAINING, joint_epochs=None)).training.epochs == 3
    assert Fit(method, task, PRESETS["paper"]).training.lr == 0.25
    own = MTL(method.scenario, MTL.Settings(lr=0.1))
    assert Fit(own, task, TRAINING).training.lr == 0.1


def test_validation_is_a_mean_over_the_union() -> None:
    method, task = method_and_task()
    loss, accuracy = validate(method, task)
    parts = [random_task(0).val, random_task(1, count=8).val]
    logits = [method.eval()(part.x, index) for index, part in enumerate(parts)]
    expected = sum(F.cross_entropy(lg, part.y, reduction="sum") for lg, part in zip(logits, parts, strict=True)) / 20
    right = sum((lg.argmax(1) == part.y).sum().item() for lg, part in zip(logits, parts, strict=True)) / 20
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert accuracy == pytest.approx(right)


def test_all_heads_learn() -> None:
    method, task = method_and_task()
    method.begin_task(task)
    before = [head.weight.detach().clone() for head in method.heads]
    Fit(method, task, TRAINING).run(1)
    assert all(not torch.equal(head.weight, then) for head, then in zip(method.heads, before, strict=True))


def test_the_name_follows_from_the_tasks() -> None:
    tasks = [random_task(0), random_task(1)]
    assert joined(tasks).name == joined(tasks).name
    assert joined(tasks).name != joined(tasks[::-1]).name


def test_one_result_without_transfer(tmp_path: Path) -> None:
    done = run(make_config("mtl", "D-5", preset="short", tasks=3, changes=SMALL), Store(tmp_path))
    matrix = done.accuracies()
    assert list(matrix) == [2]
    assert sorted(matrix[2]) == [0, 1, 2]
    assert 0 < average_accuracy(matrix) <= 100
    assert backward_transfer(matrix) is None
    assert forward_transfer(matrix, dict.fromkeys(range(3), 50.0)) is None


def test_validates_on_validation_data() -> None:
    tasks = [replace(random_task(index), val=random_task(5 + index, count=8).val) for index in range(2)]
    (joint,) = MTL(random_scenario(tasks=2)).stages(tasks, Training())
    assert torch.equal(joint.val.x, torch.cat([task.val.x for task in tasks]))
    assert joint.train.count == 24


def test_the_union_is_mixed_by_the_seed_of_the_run() -> None:
    """Not reshuffled, this one order is that of the whole run: other seeds must have others."""
    orders = []
    for seed in (1, 1, 2):
        method = MTL(replace(random_scenario(tasks=2), seeds=Seeds(batches=seed)))
        (task,) = method.stages([random_task(0), random_task(1, count=8)], TRAINING)
        orders.append(task.train.x)
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
