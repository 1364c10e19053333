"""SupSup: weights that never change, masks of an exact size, and no transfer of any kind."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import build, load
from softmask.learning.protocol import learn_sequence
from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.learning.training import PRESETS, Training
from softmask.methods.supsup import SupSup
from softmask.testing import InMemoryJournal
from tests.methods.isolation import forgets, learn, learn_all, logits, made, random_task, small_scenario

tasks = [random_task(index) for index in range(3)]


def test_no_weight_ever_changes() -> None:
    method = made(SupSup)
    before = {name: p.detach().clone() for name, p in method.backbone.named_parameters()}
    learn_all(method, tasks[:1])
    head = method.heads[0].weight.clone()
    learn_all(method, tasks[1:])
    assert all(torch.equal(p, before[name]) for name, p in method.backbone.named_parameters())
    assert torch.equal(method.heads[0].weight, head)
    assert not any(p.requires_grad for p in (*method.backbone.parameters(), *method.heads.parameters()))
    assert all(p.dim() > 1 for p in method.parameters())  # no biases


def test_weights_are_a_sign_times_the_constant_of_their_layer() -> None:
    scenario = Scenario((3, 32, 32), (3, 3), NetworkConfig(width=1 / 16, drop1=0.2, drop2=0.5))
    method = made(SupSup, scenario, share=0.25)
    dropped = {"conv1": 0.0, "conv2": 0.2, "conv3": 0.2, "fc1": 0.5, "fc2": 0.5}
    for name, block in method.backbone.named_blocks.items():
        weight = block.layer.weight
        constant = math.sqrt((1 - dropped[name]) / (0.25 * weight[0].numel()))
        torch.testing.assert_close(weight.abs(), torch.full_like(weight, constant))
        assert 0.3 < (weight > 0).float().mean() < 0.7
    torch.testing.assert_close(method.heads[1].weight[0, 0].abs().item(), math.sqrt(0.5 / (0.25 * 128)))


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_exactly_the_share_is_kept(share: float) -> None:
    method = made(SupSup, share=share)
    for scores in method.scores.values():
        entries = scores.numel()
        assert int(method.chosen(scores).sum()) == entries - math.floor((1 - share) * entries)


def test_the_share_is_not_off_by_one_for_its_binary_digits() -> None:
    assert made(SupSup, share=0.8).kept(20480) == 16384


def note(seen: dict[str, float], name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    seen[name] = output.var().item()


def test_signal_keeps_its_scale_through_the_layers() -> None:
    """Pre-activations of training mode, with a share that would otherwise let the signal vanish."""
    torch.manual_seed(0)
    scenario = Scenario((3, 32, 32), (5,), NetworkConfig(width=1 / 2, drop1=0.2, drop2=0.5))
    for share in (0.5, 0.05):
        method = made(SupSup, scenario, share=share).train()
        seen: dict[str, float] = {}
        for name, block in method.backbone.named_blocks.items():
            block.layer.register_forward_hook(partial(note, seen, name))
        smooth = torch.nn.functional.interpolate(torch.randn(64, 3, 8, 8), size=32, mode="bilinear")
        method((smooth - smooth.mean()) / smooth.std(), 0)
        assert all(seen["conv1"] / 4 < variance < seen["conv1"] * 4 for variance in seen.values())


def test_scores_start_anew_and_know_the_task_but_not_its_place() -> None:
    method = made(SupSup)
    method.begin_task(tasks[0])
    first = {name: scores.detach().clone() for name, scores in method.scores.items()}
    learn(method, tasks[0])
    method.begin_task(tasks[1])
    assert all(not torch.equal(scores, first[name]) for name, scores in method.scores.items())
    method.begin_task(tasks[0])
    assert all(torch.equal(scores, first[name]) for name, scores in method.scores.items())
    assert first["fc2"].abs().max() <= first["fc2"].size(1) ** -0.5


def test_permuting_the_tasks_permutes_the_results() -> None:
    config = make_config("supsup", "D-5", preset="short", tasks=3, changes={"width": 1 / 16, "epochs": 2})
    sequence = load(config, None)
    order = [2, 0, 1]
    permuted = tuple(replace(sequence.tasks[old], ids=(new,)) for new, old in enumerate(order))
    found: list[dict[str, Tensor]] = []
    for each in (sequence.tasks, permuted):
        method = build(config, sequence)
        learn_sequence(method, each, config.training, InMemoryJournal(), tests=None)
        found.append({task.name: logits(method, task) for task in each})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_tasks_with_different_numbers_of_classes() -> None:
    scenario = replace(small_scenario(), classes=(3, 5, 2))
    method = made(SupSup, scenario)
    for task, classes in zip(tasks, scenario.classes, strict=True):
        task = replace(random_task(task.id, classes), classes=classes)
        learn_all(method, [task])
        assert logits(method, task).shape == (32, classes)
        entries = classes * method.backbone.widths[-1]
        assert int(method.masks.load(task.id)["head"].sum()) == entries - entries // 2


def test_rate_of_the_scores() -> None:
    method = made(SupSup, score_rate=4.0)
    assert method.lr(Training()) == 1.0
    adapted = method.adapted(PRESETS["paper"])
    assert adapted.lr_min / adapted.lr == pytest.approx(PRESETS["paper"].lr_min / PRESETS["paper"].lr)
    assert method.make_optimizer(1.0).param_groups[0]["lr"] == 1.0


def test_a_dense_head_learns_at_the_trainings_rate_beside_the_scores() -> None:
    method = made(SupSup, head="dense", score_rate=4.0)
    assert "head" not in method.scores
    method.begin_task(tasks[0])
    scores, heads = method.make_optimizer(method.lr(Training())).param_groups
    assert (scores["lr"], heads["lr"]) == (1.0, 0.25)
    assert {id(p) for p in heads["params"]} == {id(p) for p in method.heads[0].parameters()}
    learnable = sum(p.numel() for p in method.heads.parameters())
    assert learnable == 3 * 3 * (method.backbone.widths[-1] + 1)  # tasks, classes; with biases


def test_with_dense_heads_nothing_is_forgotten_either_and_heads_are_trained() -> None:
    method = made(SupSup, head="dense")
    method.begin_task(tasks[0])
    before = method.heads[0].weight.detach().clone()
    assert not forgets(method, tasks)
    assert not torch.equal(method.heads[0].weight, before)
