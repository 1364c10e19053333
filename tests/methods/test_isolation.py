"""Properties of all methods that give every task its own part of the network."""

from pathlib import Path

import pytest
import torch

from softmask.errors import ConfigError
from softmask.experiments.metrics import backward_transfer
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import build, load
from softmask.experiments.runs.search_space import SearchPlan
from softmask.learning.evaluation import accuracy, validate
from softmask.learning.fit import Fit, Fitter
from softmask.learning.method import BackboneMismatch, Method, Step
from softmask.learning.protocol import learn_sequence
from softmask.learning.task import Task
from softmask.learning.training import Training
from softmask.methods.cat import CAT
from softmask.methods.hat import HAT
from softmask.methods.packnet import PackNet
from softmask.methods.pathnet import PathNet
from softmask.methods.pgn import PGN
from softmask.methods.spacenet import SpaceNet
from softmask.methods.supsup import SupSup
from softmask.methods.wsn import WSN
from softmask.testing import InMemoryJournal
from tests.experiments.sequences.real_data import data_folder
from tests.methods.isolation import (
    TRAINING,
    learn,
    learn_all,
    logits,
    made,
    random_task,
    separable_task,
    small_scenario,
)

NEVER_FORGET: list[type[Method]] = [HAT, WSN, SupSup, PGN, PathNet, PackNet, SpaceNet]
ALL: list[type[Method]] = [*NEVER_FORGET, CAT]
tasks = [random_task(index) for index in range(3)]


@pytest.mark.parametrize("kind", NEVER_FORGET)
def test_answers_for_old_tasks_stay_to_the_bit(kind: type[Method]) -> None:
    method = made(kind)
    remembered = []
    for task in tasks:
        learn_all(method, [task])
        remembered.append(logits(method, task))
        for old, before in zip(tasks, remembered, strict=False):
            assert torch.equal(logits(method, old), before)


@pytest.mark.parametrize("kind", NEVER_FORGET)
def test_backward_transfer_is_exactly_zero(kind: type[Method]) -> None:
    method = made(kind)
    matrix: dict[int, dict[int, float]] = {}
    for task in tasks:
        learn_all(method, [task])
        matrix[task.id] = {old.id: accuracy(method, old.val, old.id) for old in tasks[: task.id + 1]}
    assert backward_transfer(matrix) == 0.0


@pytest.mark.parametrize("kind", ALL)
def test_restored_state_has_the_best_loss_to_the_bit(kind: type[Method]) -> None:
    """All that shapes the validated function is in the snapshot: scores, embeddings, paths, attention."""
    method = made(kind)
    for task in tasks[:2]:
        losses = learn(method, task, Training(lr=0.1, epochs=4, batch=16, schedule="cosine"))
        last = losses[-2:] if kind is PackNet else losses  # its second phase, of half the epochs
        assert validate(method, task)[0] == min(last)
        method.end_task(task)


class AllSimilar(CAT):
    """Attends to every earlier task."""

    def try_earlier_tasks(self, task: Task, fit: Fitter) -> dict:
        return {"reference": 0.0, "readouts": [1.0] * task.id}


@pytest.mark.parametrize("kind", [*NEVER_FORGET, AllSimilar])
def test_restoring_undoes_whatever_training_may_have_done(kind: type[Method]) -> None:
    """Though the last epoch may have been the best: then all is disturbed that an optimizer or a tournament moves."""
    method = made(kind)
    learn_all(method, tasks[:1])
    learn(method, tasks[1])
    best, snapshot = validate(method, tasks[1])[0], method.snapshot()
    with torch.no_grad():
        for group in method.make_optimizer(0.1).param_groups:
            for parameter in group["params"]:
                parameter.normal_()
    if isinstance(method, PathNet):
        method.paths[1] = torch.tensor([[13, 14, 15]] * 5)
    assert validate(method, tasks[1])[0] != best
    method.restore(snapshot)
    assert validate(method, tasks[1])[0] == best


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("hat", {"steepness": 0}, r"\bsteepness\b"),
        ("hat", {"settings.lr": 0}, r"\blr\b"),
        ("hat", {"sparsity": -1}, r"\bsparsity\b"),
        ("wsn", {"share": 0}, r"\bshare\b"),
        ("wsn", {"share": 1.5}, r"\bshare\b"),
        ("wsn", {"settings.lr": 0}, r"\blr\b"),
        ("supsup", {"share": -0.5}, r"\bshare\b"),
        ("supsup", {"score_rate": -1}, r"\bscore_rate\b"),
        ("pgn", {"expansion": 0}, r"\bexpansion\b"),
        ("pathnet", {"active": 17}, "a path cannot take 17 of 16 modules"),
        ("pathnet", {"generations": 0}, r"\bgenerations\b"),
        ("packnet", {"pruned": 1.0}, r"\bpruned\b"),
        ("packnet", {"retrain_epochs": 1.5}, r"\bretrain_epochs\b"),
        ("spacenet", {"drop": 0}, r"\bdrop\b"),
        ("spacenet", {"reserved": 2.0}, r"\breserved\b"),
        ("apd", {"sparsity": -1.0}, r"\bsparsity\b"),
        ("cat", {"steepness": 0}, r"\bsteepness\b"),
        ("cat", {"attention_heads": 0}, r"\battention_heads\b"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_a_run(name: str, wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config(name, "D-5", preset="short", changes=wrong)


def test_ranges_of_searches() -> None:
    """They hold what the methods' authors use; `score_rate` of SupSup is in units of a rate of 0.25."""
    expected = {
        "hat": {"sparsity": (0.01, 4.0), "steepness": (25.0, 800.0), "lr": (5e-3, 0.5)},
        "wsn": {"share": (0.05, 0.7), "score_rate": (0.3, 100.0), "lr": (5e-3, 0.5)},
        "supsup": {"share": (0.05, 0.8), "score_rate": (0.4, 20.0)},
        "pgn": {"adapter_scale": (0.01, 0.1, 1.0), "lr": (5e-3, 0.5)},
        "pathnet": {
            "modules": (10, 16, 20),
            "active": (2, 3, 4, 5),
            "generations": (5, 10, 20, 50),
            "lr": (5e-3, 0.08),
        },
    }
    for name, ranges in expected.items():
        space = SearchPlan(method=name, sequence="D-5", trials=1, dropout=False).space()
        assert {
            key.removeprefix("settings."): each.choices or (each.low, each.high) for key, each in space.items()
        } == ranges


@pytest.mark.parametrize("kind", ALL)
def test_a_step_on_a_later_task_moves_the_network_and_not_its_head_alone(kind: type[Method]) -> None:
    method = made(kind)
    learn_all(method, tasks[:1])
    method.begin_task(tasks[1])
    if isinstance(method, PathNet):
        method.paths[1] = torch.tensor([[13, 14, 15]] * 5)
    # The learned part of the network itself: SupSup has scores alone, and WSN's decide first what else may move.
    parts = ("scores.",) if kind in (SupSup, WSN) else ("backbone.", "columns.")
    before = {name: p.detach().clone() for name, p in method.named_parameters() if name.startswith(parts)}
    optimizer = method.make_optimizer(0.1)
    x, y = next(iter(tasks[1].train))
    step = Step(tasks[1], x, y, progress=0.1)
    method.train()
    method.loss(step).backward()
    method.after_backward(step)
    optimizer.step()
    assert any(not torch.equal(p, before[name]) for name, p in method.named_parameters() if name in before)


@pytest.mark.parametrize("kind", [HAT, WSN, PGN, PathNet])
def test_blocked_share_grows_and_never_exceeds_one(kind: type[Method]) -> None:
    facts = learn_all(made(kind), tasks)
    for layer in ("conv1", "conv2", "conv3", "fc1", "fc2", "whole network"):
        shares = [fact["blocked"][layer] for fact in facts]
        assert 0 <= shares[0] <= shares[1] <= shares[2] <= 1
    assert 0 < shares[0] < shares[2]  # of the whole network


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "steps"), [(HAT, 360), (CAT, 360), (WSN, 150), (SupSup, 150), (PGN, 150), (PathNet, 150)]
)
def test_learns_at_its_default_rate(kind: type[Method], steps: int) -> None:
    """Guards the initial scale and the rates of scores: at a quarter of the width, without any tuning."""
    task = separable_task()
    method = made(kind, small_scenario(tasks=2, classes=5, width=1 / 4, drop=0.2))
    training = Training(epochs=steps // len(task.train), schedule="cosine")
    learn(method, task, training)
    assert validate(method, task)[0] - float(method.penalty(Step(task, task.val.x, task.val.y)) or 0.0) < 0.5


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("kind", NEVER_FORGET)
def test_answers_stay_on_real_images(kind: type[Method], tmp_path: Path) -> None:
    name = kind.__module__.rsplit(".", 1)[1]
    changes = {"network.width": 1 / 16, "training.epochs": 1}
    config = make_config(name, "C-10", preset="short", tasks=3, changes=changes)
    sequence = load(config, data_folder())
    method, journal = build(config, sequence), InMemoryJournal()
    learn_sequence(method, sequence.tasks, config.training, journal, tests=None)
    then = build(config, sequence)
    for task, state in enumerate(journal.states):
        then.load_state_dict(state)
        x = sequence.tests[task].x[:64]
        then.eval(), method.eval()
        assert torch.equal(method(x, task), then(x, task))


@pytest.mark.parametrize("kind", ALL)
def test_a_rate_that_is_far_too_high_leaves_finite_weights(kind: type[Method]) -> None:
    """Non-finite epochs are rolled back, and with them all that the method keeps."""
    method = made(kind)
    learn_all(method, tasks[:1])
    before = logits(method, tasks[0])
    method.begin_task(tasks[1])
    if isinstance(method, PathNet):
        method.paths[1] = torch.tensor([[13, 14, 15]] * 5)
    fit = Fit(method, tasks[1], TRAINING)
    for group in fit.optimizer.param_groups:
        group["lr"] = 1e30
    fit.run(1)
    method.restore(fit.best)
    assert all(p.isfinite().all() for p in method.parameters())
    assert torch.equal(logits(method, tasks[0]), before)


@pytest.mark.parametrize("name", ["hat", "wsn", "packnet", "pathnet"])
def test_a_normalisation_over_the_batch_is_refused(name: str) -> None:
    """Its parameters would be every task's."""
    config = make_config(name, "D-5", preset="short", changes={"network.norm": "batch", "network.width": 1 / 16})
    with pytest.raises(BackboneMismatch, match=r"network\.norm"):
        build(config, load(config, None))
