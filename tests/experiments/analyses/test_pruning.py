"""Pruning by importance: what goes is what the definition says, and the run learns nothing from being measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from softmask.errors import SoftmaskError
from softmask.experiments.analyses.pruning import STRATEGIES, accuracy_when_pruned, measure_pruning, pruning, to_prune
from softmask.experiments.paper import paper_value
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import load_from_checkpoint, run
from softmask.experiments.runs.store import Store, StoredRun
from softmask.learning import evaluating
from softmask.methods.spg import SPG
from tests.experiments.analyses.made import row, rows, stored, triangle
from tests.experiments.runs.examples import tiny_config

IMPORTANCE = {"a.weight": torch.tensor([[0.1, 0.9], [0.5, 0.3]]), "a.bias": torch.tensor([0.8, 0.2])}
IMPORTANCE["b.weight"] = torch.tensor([0.95, 0.85, 0.05, 0.4])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return run(tiny_config("spg", changes={"epochs": 4}), Store(tmp_path_factory.mktemp("kept")), keep="all")


@pytest.mark.parametrize(
    ("which", "share", "gone"),
    [
        ("lowest", 0.2, {("b.weight", 2), ("a.weight", 0)}),
        ("highest", 0.3, {("b.weight", 0), ("a.weight", 1), ("b.weight", 1)}),
        ("nothing", 0.0, set()),
    ],
)
def test_over_the_whole_backbone(which: str, share: float, gone: set[tuple[str, int]]) -> None:
    chosen = to_prune(IMPORTANCE, which, share, "backbone", seed=1)
    assert {(name, i) for name, mask in chosen.items() for i, out in enumerate(mask.flatten().tolist()) if out} == gone
    assert all(mask.shape == IMPORTANCE[name].shape for name, mask in chosen.items())


def test_within_each_layer() -> None:
    chosen = to_prune(IMPORTANCE, "highest", 0.5, "layer", seed=1)
    assert chosen["a.weight"].tolist() == [[False, True], [True, False]]  # of six: 0.9, 0.8, 0.5
    assert chosen["a.bias"].tolist() == [True, False]
    assert chosen["b.weight"].tolist() == [True, True, False, False]


def test_random_is_random_but_repeatable() -> None:
    large = {"a": torch.arange(1000.0) / 1000}
    first, again, other = (to_prune(large, "random", 0.1, "backbone", seed)["a"] for seed in (1, 1, 2))
    assert first.sum() == 100
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_against_pruning_by_hand(kept: StoredRun) -> None:
    method, sequence = load_from_checkpoint(kept, 1, None)
    assert isinstance(method, SPG)
    test = sequence.tests[0]
    before = {name: value.clone() for name, value in method.state_dict().items() if isinstance(value, torch.Tensor)}
    told = accuracy_when_pruned(method, test, "highest", 0.2)
    assert all(torch.equal(method.state_dict()[name], value) for name, value in before.items()), "left as it was"
    ranked = sorted(
        ((v, name, i) for name, t in method.mask.importance.items() for i, v in enumerate(t.flatten().tolist())),
        key=lambda entry: -entry[0],
    )
    with torch.no_grad(), evaluating(method):
        for _, name, index in ranked[: round(0.2 * len(ranked))]:
            method.backbone.get_parameter(name).view(-1)[index] = 0.0
        right = (method(test.x, 0).argmax(1) == test.y).float().mean().item()
    assert told == pytest.approx(right)


def test_measured_once_and_kept_as_events(kept: StoredRun) -> None:
    store = Store(kept.path.parent)
    assert measure_pruning(kept, store, None)
    assert not measure_pruning(kept, store, None), "nothing is missing any more"
    assert measure_pruning(kept, store, None, "layer"), "another ranking is another table"
    table = pruning(store.runs())
    nothing = row(table, pruned="Nothing", **{"ranked over": "backbone"})["D-5[:2]"].mean
    assert nothing == pytest.approx(kept.accuracies()[0][0]), "the first task, just after it was learned"
    assert row(table, pruned="Chance")["D-5[:2]"].mean == 50
    assert len(rows(table)) == 2 * len(STRATEGIES) + 1
    (still,) = store.runs()
    assert still.finished


@pytest.mark.parametrize(("tasks", "column"), [(None, "C-10"), (2, "C-10[:2]")])
def test_the_papers_numbers_stand_beside_whatever_came_after_the_first_task(
    tmp_path: Path, tasks: int | None, column: str
) -> None:
    store, config = Store(tmp_path), make_config("spg", "C-10", tasks=tasks)
    stored(store, config, triangle([[50], [50, 50]]))
    with store.open(config) as writer:
        writer.event("pruning", strategy="Lowest 10%", ranked_over="backbone", test=0.7, classes=10)
        writer.event("pruning", strategy="Lowest 10%", ranked_over="layer", test=0.6, classes=10)
    table = pruning(store.runs())
    whole = row(table, pruned="Lowest 10%", **{"ranked over": "backbone"})[column]
    assert (whole.mean, whole.paper) == (70, paper_value("pruning_accuracy_first_task", "Lowest 10%", "C-10"))
    assert row(table, pruned="Lowest 10%", **{"ranked over": "layer"})[column].paper is None


def test_without_the_checkpoint_it_says_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path)
    done = stored(store, tiny_config("spg"), triangle([[50], [50, 50]]))
    with pytest.raises(SoftmaskError, match=r"no checkpoint of task 1: .*--keep all"):
        measure_pruning(done, store, None)


def test_a_method_without_importance_is_refused(tmp_path: Path) -> None:
    done = run(tiny_config("ncl", tasks=1, changes={"epochs": 1}), Store(tmp_path), keep="all")
    with pytest.raises(SoftmaskError, match="gradient importance"):
        measure_pruning(done, Store(tmp_path), None)
