"""Frozen features for other data: what is trained, on what, and through which parts of the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from softmask.errors import SoftmaskError
from softmask.experiments.analyses.representation import (
    features_after,
    linear_accuracy,
    measure_representation,
    representation,
    target,
    undivided,
    usual_target,
)
from softmask.experiments.paper.reproduction import trends
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.run import load, load_from_checkpoint, run
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.sequences import load_sequence
from softmask.learning.evaluation import accuracy
from softmask.learning.fit import Fit
from softmask.learning.method import Method
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import Seeds, derive
from softmask.learning.task import Batches, Task
from tests.experiments.analyses.made import row, rows, stored, triangle
from tests.experiments.runs.examples import tiny_config


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredRun]:
    store = Store(tmp_path_factory.mktemp("kept"))
    return {name: run(tiny_config(name, changes={"epochs": 2}), store, keep="all") for name in ("spg", "hat", "wsn")}


def test_undivided_numbers_dissimilar_classes_on_and_shares_similar_ones() -> None:
    five = load_sequence("D-5", None, Seeds())
    task, test = undivided(five)
    assert task.classes == 10
    assert sorted(set(task.train.labels.tolist())) == list(range(10))
    assert task.train.count == sum(each.train.count for each in five.tasks)
    third = five.tasks[2].train
    start = sum(each.train.count for each in five.tasks[:2])
    assert torch.equal(task.train.labels[start : start + third.count], third.labels + 4)
    assert torch.equal(task.train.images[start], third.images[0])
    assert test.count == sum(each.count for each in five.tests)
    turned, _ = undivided(load_sequence("R-10", None, Seeds()))
    assert turned.classes == 10


def test_targets() -> None:
    assert usual_target(make_config("spg", "C-10")) == "T-10"
    assert usual_target(make_config("spg", "D-5")) == "R-10"
    assert usual_target(make_config("spg", "C-10", tasks=5)) == "rest"
    rest, _ = target(make_config("spg", "D-5", tasks=2), "rest", None)
    whole = load(make_config("spg", "D-5"), None)
    assert rest.classes == 6
    assert rest.train.count == sum(task.train.count for task in whole.tasks[2:])
    with pytest.raises(SoftmaskError, match="--tasks"):
        target(make_config("spg", "D-5"), "rest", None)
    with pytest.raises(SoftmaskError, match="--onto"):
        usual_target(make_config("spg", "FE-10"))


def test_features_are_those_of_the_last_task_or_of_the_union(kept: dict[str, StoredRun]) -> None:
    for name in ("hat", "wsn"):
        method, sequence = load_from_checkpoint(kept[name], 2, None)
        x = sequence.tests[0].x[:5]
        with torch.no_grad():
            assert torch.equal(features_after(method, x, 2, union=False), method.features(x, 1))
            assert torch.equal(features_after(method, x, 1, union=False), method.features(x, 0))
            united = features_after(method, x, 2, union=True)
    masks = [method.masks.load(task) for task in range(2)]  # of WSN, the last
    with torch.no_grad():
        by_hand = method.backbone.prepare(x)
        for name, block in method.backbone.named_blocks.items():
            either = ((masks[0][name] + masks[1][name]) > 0).float()
            layer = block.layer
            flat = by_hand if layer.weight.dim() == 4 else by_hand.flatten(1)
            apply = F.conv2d if layer.weight.dim() == 4 else F.linear
            by_hand = block.activate(apply(flat, layer.weight * either))
    torch.testing.assert_close(united, by_hand)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_linear_head_on_features_that_stay(kept: dict[str, StoredRun], shuffle: bool) -> None:
    """The same head trained in the slow way: through the frozen network, batch by batch. The paper does not shuffle."""
    given = kept["spg"].config
    config = replace(given, training=replace(given.training, shuffle=shuffle))
    method, _ = load_from_checkpoint(kept["spg"], 1, None)
    task, test = target(config, "rest", None)
    before = [parameter.clone() for parameter in method.parameters()]
    told = linear_accuracy(method, 1, task, test, config)
    assert all(torch.equal(a, b) for a, b in zip(before, method.parameters(), strict=True))
    assert told == linear_accuracy(method, 1, task, test, config), "repeatable"
    assert told == pytest.approx(slowly(method, task, test, config), abs=0.02), "features of other batches may differ"


def slowly(frozen: Method, task: Task, test: Batches, config: RunConfig) -> float:
    class Through(Method):
        def build(self) -> None:
            self.heads = self.scenario.heads(frozen.backbone.widths[-1])

        def forward(self, x: torch.Tensor, task: int) -> torch.Tensor:
            with torch.no_grad():
                features = frozen.features(x, 0)
            return self.heads[0](features)

    torch.manual_seed(derive(config.seeds.batches, "representation", task.name))
    learner = Through(Scenario(task.train.images.shape[1:], (task.classes,), config.network, config.seeds))
    order = derive(config.seeds.batches, task.name)
    task = replace(task, train=task.train.mixed(order))
    Fit(
        learner, task.batched(config.training.batch, shuffle=config.training.shuffle, seed=order), config.training
    ).run().restore_best()
    return accuracy(learner, test, 0)


def test_measured_for_every_number_of_tasks_and_kept(kept: dict[str, StoredRun]) -> None:
    store = Store(kept["spg"].path.parent)
    assert measure_representation(kept["spg"], store, None) == 3
    assert measure_representation(kept["spg"], store, None) == 0
    told = row(representation(store.runs()), method="SPG")
    assert (told["learned"], told["then"], told["features"]) == ("D-5[:2]", "rest", "last task")
    assert all(0 < told[str(learned)].mean <= 100 for learned in range(3))
    method, _ = load_from_checkpoint(kept["spg"], 2, None)
    again = linear_accuracy(method, 2, *target(kept["spg"].config, "rest", None), kept["spg"].config)
    assert told["2"].mean == pytest.approx(100 * again)


def test_curves_are_averaged_over_seeds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, values in ((1, (0.1, 0.3)), (2, (0.2, 0.5))):
        config = make_config("ncl", "D-5", seed=seed)
        stored(store, config, triangle([[50], [50, 50]]))
        with store.open(config) as writer:
            for learned, value in enumerate(values):
                writer.event("representation", onto="R-10", union=False, learned=learned, classes=10, test=value)
    (told,) = rows(representation(store.runs()))
    assert [told[str(n)].mean for n in (0, 1)] == [pytest.approx(15), pytest.approx(40)]


def test_the_slope_has_an_interval_over_seeds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, values in ((1, (0.9, 0.1, 0.2)), (2, (0.9, 0.1, 0.22)), (3, (0.9, 0.1, 0.24))):
        config = make_config("ncl", "D-5", seed=seed)
        stored(store, config, triangle([[50], [50, 50]]))
        with store.open(config) as writer:
            for learned, value in enumerate(values):
                writer.event("representation", onto="R-10", union=False, learned=learned, classes=10, test=value)
    table = representation(store.runs())
    (told,) = rows(table)
    assert told["slope"].mean == pytest.approx(12), "from the first task on"
    (trend,) = rows(trends(table))
    assert (trend["features"], trend["trend"]) == ("last task", "rises")


def test_without_checkpoints_it_says_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path)
    done = stored(store, tiny_config("spg"), triangle([[50], [50, 50]]))
    with pytest.raises(SoftmaskError, match=r"no checkpoint of task 1: .*--keep all"):
        measure_representation(done, store, None)
