"""PGN: columns that stay, adapters that are used, and their sizes."""

import pytest
import torch

from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.methods.ncl import NCL
from softmask.methods.pgn import PGN
from tests.methods.isolation import forgets, learn_all, logits, made, random_task, small_scenario

tasks = [random_task(index) for index in range(3)]


def test_one_column_of_full_width_is_the_plain_network() -> None:
    scenario = small_scenario(tasks=1)
    assert torch.equal(logits(made(PGN, scenario, expansion=1.0), tasks[0]), logits(made(NCL, scenario), tasks[0]))


def test_only_the_column_of_the_task_moves() -> None:
    method = made(PGN)
    learn_all(method, tasks[:1])
    before = {name: p.detach().clone() for name, p in method.named_parameters()}
    learn_all(method, tasks[1:2])
    moved = {name for name, p in method.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert {name.split(".")[1] for name in moved} == {"1"}
    assert {name.split(".")[0] for name in moved} == {"columns", "heads", "adapters"}


@torch.no_grad()
def test_without_scales_a_column_does_not_see_earlier_ones() -> None:
    method = made(PGN)
    seen = logits(method, tasks[1])
    for p in method.columns[0].parameters():
        p.add_(0.1)
    assert not torch.equal(logits(method, tasks[1]), seen)
    for adapter in method.adapters[1].values():
        adapter.scales.zero_()
    alone = logits(method, tasks[1])
    for p in method.columns[0].parameters():
        p.add_(0.1)
    assert torch.equal(logits(method, tasks[1]), alone)


@torch.no_grad()
@pytest.mark.parametrize("layer", ["conv2", "conv3", "fc1", "fc2", "head"])
def test_every_adapter_shapes_the_answer(layer: str) -> None:
    method = made(PGN, small_scenario(width=1 / 4), adapter_scale=1.0)
    for column in (1, 2):  # of the task's own column, and of an earlier column that it reads
        before = logits(method, tasks[2])
        method.adapters[column][layer].reduce.weight.add_(0.5)
        # An earlier column's head is not read by anybody else.
        assert torch.equal(logits(method, tasks[2]), before) == (layer == "head" and column == 1)


@torch.no_grad()
def test_an_adapter_by_hand() -> None:
    """U ReLU(V [a1 h1; a2 h2] + c) + d, against the formula; in front of the head without the ReLU."""
    method = made(PGN, adapter_scale=1.0)
    for name, rectify in (("fc2", torch.relu), ("head", torch.nn.Identity())):
        adapter = method.adapters[2][name]
        earlier = [torch.randn(5, adapter.reduce.out_features) for _ in range(2)]
        joined = torch.cat([adapter.scales[0] * earlier[0], adapter.scales[1] * earlier[1]], 1)
        inner = rectify(joined @ adapter.reduce.weight.T + adapter.reduce.bias)
        torch.testing.assert_close(adapter(earlier), inner @ adapter.project.weight.T + adapter.project.bias)


def test_scales_start_small() -> None:
    scenario = Scenario((3, 32, 32), (2,) * 30, NetworkConfig(width=1 / 4))
    scales = torch.cat([a.scales for column in made(PGN, scenario).adapters for a in column.values()])
    assert scales.std().item() == pytest.approx(0.1, rel=0.1)


def test_columns_are_never_empty() -> None:
    scenario = Scenario((3, 32, 32), (2,) * 30, NetworkConfig(width=1 / 16))
    assert min(made(PGN, scenario, expansion=1.0).column(0).widths) == 1


def test_spent_share_is_that_of_the_columns_so_far() -> None:
    method = made(PGN)
    facts = learn_all(method, tasks)
    sizes = [
        sum(p.numel() for p in method.columns[c].parameters())
        + sum(p.numel() for name, p in method.adapters[c].named_parameters() if not name.startswith("head."))
        for c in range(3)
    ]
    for index, fact in enumerate(facts):
        assert fact["blocked"]["whole network"] == pytest.approx(sum(sizes[: index + 1]) / sum(sizes))


@torch.no_grad()
@pytest.mark.parametrize("layer", ["conv2", "conv3", "fc1", "fc2", "head"])
def test_as_released_only_the_present_columns_adapters_act_and_not_the_heads(layer: str) -> None:
    method = made(PGN, small_scenario(width=1 / 4), adapter_scale=1.0, adapters="released")
    for column in (1, 2):
        before = logits(method, tasks[2])
        method.adapters[column][layer].reduce.weight.add_(0.5)
        assert torch.equal(logits(method, tasks[2]), before) == (layer == "head" or column == 1)


def test_as_released_the_sizes_are_the_same_and_nothing_is_forgotten() -> None:
    ours, theirs = made(PGN), made(PGN, adapters="released")
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]
    assert not forgets(theirs, tasks)
