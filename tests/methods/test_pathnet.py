"""PathNet: paths, frozen modules, and a tournament that survives being killed at any time."""

import contextlib
import math
from pathlib import Path

import pytest
import torch

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from softmask.learning.evaluation import validate
from softmask.learning.fit import Fit, Fitter
from softmask.learning.task import Task
from softmask.learning.training import PRESETS, Training
from softmask.methods.ncl import NCL
from softmask.methods.pathnet import PathNet
from softmask.testing import Interruption
from tests.methods.isolation import TRAINING, learn, learn_all, logits, made, random_task, small_scenario

tasks = [random_task(index) for index in range(3)]
SIX = Training(lr=0.1, epochs=6, batch=16, schedule="cosine")


def test_one_module_of_full_width_is_the_plain_network() -> None:
    scenario = small_scenario(tasks=1)
    pathnet, plain = made(PathNet, scenario, modules=1, active=1, width=1.0), made(NCL, scenario)
    pathnet.paths[0] = 0
    assert torch.equal(logits(pathnet, tasks[0]), logits(plain, tasks[0]))
    for method, epochs in ((pathnet, 4), (plain, 2)):  # of four epochs each of two paths gets two
        torch.manual_seed(5)
        method.begin_task(tasks[0])
        Fit(method, tasks[0], Training(lr=0.05, epochs=epochs, schedule="cosine")).run().restore_best()
    ours, theirs = pathnet.columns[0].state_dict(), plain.backbone.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_module_that_is_on_the_path_twice_counts_twice() -> None:
    method = made(PathNet)
    method.paths[0] = torch.tensor([[1, 1, 2]] * 5)
    twice = logits(method, tasks[0])
    method.paths[0] = torch.tensor([[1, 2, 2]] * 5)
    assert not torch.equal(logits(method, tasks[0]), twice)
    block = method.column(1).blocks[0]
    x = method.column(0).prepare(tasks[0].val.x)
    method.eval()
    method.paths[0] = torch.tensor([[1, 1, 1]] + [[2, 2, 2]] * 4)
    first = block(x) + block(x) + block(x)
    for layer in range(1, 5):
        inner = method.column(2).blocks[layer](first)
        first = inner + inner + inner
    assert torch.equal(method.features(tasks[0].val.x, 0), first)


def test_owned_modules_stay_and_free_ones_start_anew() -> None:
    method = made(PathNet)
    learn_all(method, tasks[:1])
    owned = method.owned(1)
    before = {name: p.detach().clone() for name, p in method.columns.named_parameters()}
    method.begin_task(tasks[1])
    names = list(method.column(0).named_blocks)
    for name, p in method.columns.named_parameters():
        module, layer, *_ = name.split(".")
        is_owned = int(module) in owned[names.index(layer)]
        assert torch.equal(p, before[name]) == is_owned  # the others are drawn anew
        assert p.requires_grad != is_owned
    learn_all(method, tasks[1:])
    for name, p in method.columns.named_parameters():
        module, layer, *_ = name.split(".")
        if int(module) in owned[names.index(layer)]:
            assert torch.equal(p, before[name])


def test_only_modules_on_the_path_get_a_gradient() -> None:
    method = made(PathNet)
    method.begin_task(tasks[0])
    method.paths[0] = torch.tensor([[0, 1, 2]] * 5)
    method(tasks[0].val.x, 0).sum().backward()
    for name, p in method.columns.named_parameters():
        assert (p.grad is not None) == (int(name.split(".")[0]) < 3)


def test_generations_fit_the_training() -> None:
    method = made(PathNet)
    assert method.rounds(PRESETS["paper"]) == (20, 25)
    assert method.rounds(PRESETS["short"]) == (5, 1)
    assert method.rounds(Training(epochs=1)) == (1, 1)
    assert method.adapted(PRESETS["short"]).epochs == 5  # the cosine of each path ends with its last epoch
    assert method.adapted(PRESETS["short"]).lr == 0.05
    assert method.adapted(PRESETS["paper"]).lr_min == 1e-3  # the common floor, not one in proportion


def test_the_path_is_that_of_the_best_epoch_of_all() -> None:
    method = made(PathNet)
    losses = learn(method, tasks[0], SIX)
    assert len(losses) == 6  # three generations of one epoch for two paths
    assert validate(method, tasks[0])[0] == min(losses)


def test_the_loser_goes_on_from_the_winner_on_a_mutant() -> None:
    method = made(PathNet)
    method.begin_task(tasks[0])
    fit = Fitter(method, tasks[0], SIX)
    method.learn(tasks[0], fit)
    winner = fit.notes["winner"]
    assert fit.notes["paths"][winner] == method.paths[0].tolist()
    assert fit.notes["turn"] == 5
    changed = sum(
        a != b for mine, theirs in zip(*fit.notes["paths"], strict=True) for a, b in zip(mine, theirs, strict=True)
    )
    assert changed <= 6  # a mutant, not another random path


def test_both_paths_go_on_from_the_winners_best_weights_at_its_rate() -> None:
    class Watched(PathNet):
        generations = 0

        def replace_loser(self, task: Task, fit: Fitter, fits: list[Fit], draws: torch.Generator) -> None:
            with torch.no_grad():
                for p in self.parameters():
                    p.add_(1)  # as if the last epoch had gone wrong
            super().replace_loser(task, fit, fits, draws)
            self.generations += 1
            winner = fits[fit.notes["winner"]]
            loser = fits[1 - fit.notes["winner"]]
            now = self.state_dict()
            assert all(torch.equal(now[name], value) for name, value in winner.best.items() if name != "paths")
            assert (loser.lr, loser.epoch) == (winner.lr, winner.epoch)
            assert loser.lr < 0.1

    method = made(Watched)
    learn(method, tasks[0], SIX)
    assert method.generations == 2  # after the third nobody goes on


def test_a_new_fit_follows_the_rate_of_another_but_judges_anew() -> None:
    for schedule in ("cosine", "plateau"):
        training = Training(lr=0.1, epochs=8, batch=16, schedule=schedule, patience=1)
        method = made(PathNet)
        method.begin_task(tasks[0])
        method.paths[0] = torch.tensor([[0, 1, 2]] * 5)
        first = Fit(method, tasks[0], training).run(3)
        second = Fit(method, tasks[0], training).follow(first)
        assert (second.epoch, second.lr) == (first.epoch, first.lr)
        assert second.best_loss == math.inf
        first.run(1), second.run(1)
        if schedule == "cosine":
            assert second.lr == first.lr


def test_all_modules_in_use_leaves_the_head_to_learn() -> None:
    method = made(PathNet, modules=2, active=2)
    learn_all(method, tasks[:1])
    assert all(len(layer) == 2 for layer in [set(map(int, path)) for path in method.paths[0]])
    before, head = logits(method, tasks[0]), method.heads[1].weight.detach().clone()
    losses = learn(method, tasks[1])
    assert all(map(math.isfinite, losses))
    assert torch.equal(logits(method, tasks[0]), before)
    assert not torch.equal(method.heads[1].weight, head)


def test_spent_share_counts_modules_on_any_path() -> None:
    method = made(PathNet)
    facts = learn_all(method, tasks[:2])
    for layer, name in enumerate(method.column(0).named_blocks):
        for count, fact in enumerate(facts, start=1):
            on_paths = set(method.paths[:count, layer].flatten().tolist())
            assert fact["blocked"][name] == pytest.approx(len(on_paths) / 16)
    assert facts[1]["path"] == method.paths[1].tolist()


def test_paths_follow_from_the_seed_and_the_task() -> None:
    found = []
    for task in (tasks[0], tasks[0], tasks[1]):
        method = made(PathNet)
        fit = Fitter(method, task, TRAINING)
        method.begin_task(task)
        method.learn(task, fit)
        found.append(fit.notes["paths"])
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(("generations", "given", "epochs"), [(2, 4, 8), (20, 6, 6)])
def test_killed_after_any_epoch_it_ends_with_the_same_bits(
    generations: int, given: int, epochs: int, tmp_path: Path
) -> None:
    """Two generations of two epochs a path, and three generations of one: killed in every place."""
    changes = {"network.width": 1 / 16, "training.epochs": given}
    changes |= {"settings.modules": 4, "settings.generations": generations}
    config = make_config("pathnet", "D-5", preset="short", tasks=1, changes=changes)
    whole = run(config, Store(tmp_path / "whole"))
    store, seen = Store(tmp_path / "cut"), 0

    def strike(task, fit) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            raise Interruption

    for _ in whole.events("epoch"):
        seen = 0
        with contextlib.suppress(Interruption):
            run(config, store, watch=strike)
    resumed = run(config, store)
    assert resumed.events("finished")[0]["weights"] == whole.events("finished")[0]["weights"]
    assert len(whole.events("epoch")) == len(resumed.events("epoch")) == epochs
