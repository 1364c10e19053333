"""Accuracy when the task is not told: the rules on numbers worked out by hand, and that nothing else changes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from softmask import testing
from softmask.experiments.metrics import accuracy_without_id
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from softmask.learning.method import Method
from softmask.learning.scenario import Scenario
from softmask.learning.task import Batches, Task
from softmask.learning.without_id import (
    ClassStatistics,
    Whitening,
    WithoutId,
    factor,
    guess_tasks,
    shares_features,
    temperature,
)
from softmask.testing import SMALL


class Plain(Method):
    """The features are the two numbers of the input; each head's logits are the input itself, times a factor."""

    title = "plain"
    factors = (1.0, 1.0)

    def build(self) -> None:
        self.backbone = nn.Flatten()
        self.heads = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in self.scenario.classes)
        for head, by in zip(self.heads, self.factors, strict=True):
            head.weight.data = by * torch.eye(2)


class Apart(Plain):
    title = "apart"

    def features(self, x: Tensor, task: int) -> Tensor:
        return super().features(x, task) * (1 + task)


def points(values: list[list[float]], labels: list[int]) -> Batches:
    return Batches(torch.tensor(values, dtype=torch.float32).view(-1, 1, 1, 2), torch.tensor(labels))


def two_tasks() -> list[Task]:
    """Classes around (0, 1), (1, 0) and, in the second task, (10, 11), (11, 10)."""
    first = points([[0, 0.5], [0, 1.5], [0.5, 0], [1.5, 0]], [1, 1, 0, 0])
    second = points([[10, 10.5], [10, 11.5], [10.5, 10], [11.5, 10]], [1, 1, 0, 0])
    return [Task((index,), f"task {index}", 2, part, part) for index, part in enumerate((first, second))]


def scenario() -> Scenario:
    return Scenario((1, 1, 2), (2, 2))


def learned(method: Method) -> WithoutId:
    measured = WithoutId(same_classes=False, tasks=2)
    measured.learn(method, two_tasks())
    return measured


def test_means_and_shared_covariance() -> None:
    statistics = learned(Plain(scenario())).statistics
    torch.testing.assert_close(statistics.means[0], torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(statistics.means[1], torch.tensor([[11.0, 10.0], [10.0, 11.0]]))
    # Each class has two images, half a unit to both sides of the mean along one axis.
    torch.testing.assert_close(statistics.scatter, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    assert statistics.count == 8
    whiten = Whitening(statistics)  # the covariance is 1/8 of the identity, shrunk towards itself
    torch.testing.assert_close(whiten.nearest(torch.tensor([[1.0, 2.0]]), 0), torch.tensor([8 * 2.0]))


def test_the_largest_logit_is_fooled_where_means_are_not() -> None:
    """The second head answers ten times as loud, and the first task's images go to it."""
    method = Plain(scenario())
    method.heads[1].weight.data *= 10
    measured, parts = learned(method), {task.id: task.val for task in two_tasks()}
    found = measured.accuracies(method, parts)
    assert found[0]["logit"] == 0
    assert found[1]["logit"] == 1
    assert (found[0]["means"], found[1]["means"]) == (1, 1)


def test_right_is_the_right_head_and_the_right_class() -> None:
    method = Plain(scenario())
    wrong = points([[0, 0.5], [0, 1.5]], [0, 1])
    found = learned(method).accuracies(method, {0: wrong, 1: two_tasks()[1].val})
    assert found[0]["means"] == 0.5


def test_same_classes_are_answered_by_all_heads_together() -> None:
    """Probabilities: 0.88 and 0.12 from one head, 0.27 and 0.73 from the other; their mean is for class 0."""
    method = Plain(scenario())
    method.heads[1].weight.data = torch.tensor([[0.0, 0.0], [0.5, 0.0]])
    measured = WithoutId(same_classes=True, tasks=2)
    measured.learn(method, two_tasks())
    one = points([[2, 0]], [0])
    assert measured.accuracies(method, {0: one, 1: one}) == {0: {"heads": 1.0}, 1: {"heads": 1.0}}
    assert measured.statistics.means == {}


def test_temperature() -> None:
    """Three of four right with a gap of 2: the probability is 3/4 where the gap is log 3."""
    logits = torch.tensor([[2.0, 0.0]] * 4)
    assert temperature(logits, torch.tensor([0, 0, 0, 1])) == pytest.approx(2 / math.log(3))
    assert factor(logits, torch.zeros(4, dtype=torch.int64), most=1.0) == 1.0, "no wrong answer: as sure as allowed"
    assert factor(logits, torch.ones(4, dtype=torch.int64), most=1.0) == pytest.approx(1e-4), "no right one"


def test_features_of_their_own_are_measured_at_the_end() -> None:
    plain, apart = Plain(scenario()), Apart(scenario())
    assert (shares_features(plain), shares_features(apart)) == (True, False)
    measured = WithoutId(same_classes=False, tasks=2)
    assert measured.wanted(plain, [0])
    assert not measured.wanted(apart, [0])
    assert measured.wanted(apart, [0, 1])
    torch.testing.assert_close(learned(apart).statistics.means[1], torch.tensor([[22.0, 20.0], [20.0, 22.0]]))


def test_guesses() -> None:
    method = Plain(scenario())
    statistics = learned(method).statistics
    assert statistics.sharpness == {0: 1.0, 1: 1.0}
    near, between = guess_tasks(method, statistics, torch.tensor([[[[0.0, 1.0]]], [[[5.5, 5.5]]]]), [0, 1])
    assert near.task == 0
    assert near.share > 0.999
    assert between.share == pytest.approx(0.5, abs=1e-3)
    assert guess_tasks(method, statistics, torch.zeros(1, 1, 1, 2), [1])[0].share == 1


def test_state_and_forgetting() -> None:
    statistics = learned(Plain(scenario())).statistics
    again = ClassStatistics.from_state(statistics.state_dict(), torch.device("cpu"))
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in statistics.state_dict().items())
    left = statistics.without(0)
    assert list(left.means) == [0]
    assert torch.equal(left.means[0], statistics.means[1])


@pytest.mark.parametrize("method", ["ncl", "hat", "supsup"])
def test_weights_are_the_same_as_without(method: str, tmp_path: Path) -> None:
    config = make_config(method, "D-5", preset="short", tasks=2, changes=SMALL)
    with_it = run(config, Store(tmp_path / "with"))
    without = run(config, Store(tmp_path / "without"), tests=False)  # as a search runs it
    digests = [done.events("finished")[0]["weights"] for done in (with_it, without)]
    assert digests[0] == digests[1]
    assert not without.events("without_id")
    found = with_it.without_id()
    assert found.keys() == {"logit", "confidence", "means"}
    assert accuracy_without_id(found) == pytest.approx(sum(found["means"][1].values()) / 2)
    assert all(share <= with_it.accuracies()[1][task] for task, share in found["logit"][1].items())


def test_survives_an_interruption(tmp_path: Path) -> None:
    config = make_config("ncl", "D-5", preset="short", tasks=3, changes=SMALL)
    whole, store = run(config, Store(tmp_path / "whole")), Store(tmp_path / "cut")
    while not (done := store.find(config)) or not done.finished:
        try:
            run(config, store, listeners=[testing._interrupt_after(2)])
        except testing.Interruption:
            continue
    assert run(config, store).without_id() == whole.without_id()
    assert not list(store.find(config).path.glob("checkpoints/*statistics*")), "nobody needs them any more"


def test_a_run_that_an_earlier_release_began_goes_on_without(tmp_path: Path) -> None:
    config, store = make_config("ncl", "D-5", preset="short", tasks=3, changes=SMALL), Store(tmp_path)

    def stop(event: dict[str, object]) -> None:
        if event["kind"] == "epoch" and event["task"] == 1:
            raise testing.Interruption

    with pytest.raises(testing.Interruption):
        run(config, store, listeners=[stop])
    (statistics,) = tmp_path.glob("*/checkpoints/*statistics*")
    statistics.unlink()
    done = run(config, store)
    assert done.finished
    assert accuracy_without_id({rule: {2: m[2]} for rule, m in done.without_id().items() if 2 in m}) is None


def test_joint_training_and_same_classes(tmp_path: Path) -> None:
    changes = SMALL | {"joint_epochs": 1, "epochs": 1}
    joint = run(make_config("mtl", "D-5", preset="short", tasks=2, changes=changes), Store(tmp_path)).without_id()
    assert joint["means"].keys() == {1}
    same = run(make_config("ncl", "R-10", preset="short", tasks=2, changes=changes), Store(tmp_path)).without_id()
    assert same.keys() == {"heads"}
