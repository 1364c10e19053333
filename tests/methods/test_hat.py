"""HAT: gates, blocked weights, the embedding's gradient, and what breaks if a guard is taken away."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import build, load
from softmask.learning.method import Step
from softmask.learning.scenario import Scenario
from softmask.methods.hat import HAT
from softmask.methods.ncl import NCL
from tests.methods.isolation import forgets, learn, learn_all, logits, made, random_task, small_scenario

tasks = [random_task(index) for index in range(3)]


@torch.no_grad()
def open_all(method: HAT) -> HAT:
    for embedding in method.embeddings:
        embedding.fill_(6.0)
    return method


def test_with_open_gates_the_answers_are_the_plain_networks() -> None:
    hat, plain = open_all(made(HAT)), made(NCL)
    assert torch.equal(logits(hat, tasks[0]), logits(plain, tasks[0]))


def test_a_closed_unit_may_even_be_infinite() -> None:
    method = open_all(made(HAT))
    with torch.no_grad():
        method.embeddings[0][0] = -6.0  # the first unit of conv1
        method.backbone.conv1.layer.bias[0] = math.inf
    assert logits(method, tasks[0]).isfinite().all()


def test_gates_of_training_run_from_flat_to_steep() -> None:
    method = made(HAT, sparsity=0.5, steepness=200.0)
    assert method.scale(0.0) == pytest.approx(1 / 200)
    assert method.scale(1.0) == pytest.approx(200)
    assert method.scale(0.5) == pytest.approx((200 + 1 / 200) / 2)
    with torch.no_grad():
        method.embeddings[0].fill_(0.01)
    assert method.soft_gates(0, 1.0)[0].item() == pytest.approx(1 / (1 + math.exp(-2)), rel=1e-6)
    assert method.hard_gates(0).all()


def test_regulariser_is_the_share_of_free_units_that_are_opened() -> None:
    method = made(HAT, sparsity=2.0)
    gates = torch.rand(len(method.used))
    assert float(method.opened(gates)) == pytest.approx(2 * gates.mean().item(), rel=1e-5)  # before the first task
    method.used[:100] = True  # one fraction over all layers, not a mean of fractions
    assert float(method.opened(gates)) == pytest.approx(2 * gates[100:].mean().item(), rel=1e-5)
    assert 0 <= float(method.opened(gates)) <= 2
    method.used[:] = True
    assert float(method.opened(gates)) == 0.0


def compensated(method: HAT, embedding: float, progress: float) -> float:
    """The factor of the embedding's gradient."""
    with torch.no_grad():
        method.embeddings[0].fill_(embedding)
    method.free_weights = {}
    method.embeddings[0].grad = torch.ones_like(method.embeddings[0])
    method.after_backward(Step(tasks[0], torch.empty(0), torch.empty(0), progress))
    return float(method.embeddings[0].grad[0])


def test_compensation_of_the_embeddings_gradient() -> None:
    assert compensated(made(HAT, steepness=1.0), 0.7, 1.0) == pytest.approx(1.0, rel=1e-6)  # s = s_max = 1
    method = made(HAT, steepness=100.0)
    scale = method.scale(0.25)
    assert compensated(method, 0.0, 0.25) == pytest.approx(100 / scale, rel=1e-6)
    factor = 100 * (math.cosh(scale * 0.3) + 1) / (scale * (math.cosh(0.3) + 1))
    assert compensated(method, 0.3, 0.25) == pytest.approx(factor, rel=1e-5)
    assert math.isfinite(compensated(method, 6.0, 1.0))  # cosh(600) alone would not be


def test_compensated_gradient_is_that_of_a_gate_that_is_not_annealed() -> None:
    """Golden: one gate, loss = gate. s_max sigmoid'(e), whatever s."""
    method = made(HAT, steepness=8.0)
    method.free_weights = {}
    for progress in (0.1, 0.5):
        with torch.no_grad():
            method.embeddings[0].fill_(0.2)
        method.embeddings[0].grad = None
        method.soft_gates(0, progress).sum().backward()
        method.after_backward(Step(tasks[0], torch.empty(0), torch.empty(0), progress))
        slope = torch.sigmoid(torch.tensor(0.2)) * torch.sigmoid(torch.tensor(-0.2))
        assert method.embeddings[0].grad[0].item() == pytest.approx(8 * slope.item(), rel=1e-5)


def slowly(method: HAT, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """The logits of the first task, each unit times its gate, with dropout as it is."""
    x = method.backbone.prepare(x)
    for block, gate in zip(method.backbone.blocks, gates.split(method.backbone.widths), strict=True):
        x = block(x)
        x = torch.einsum("bu...,u->bu...", x, gate.float())
    return method.heads[0](x)


def test_the_loss_of_training_has_the_gates_of_the_moment() -> None:
    method = made(HAT, small_scenario(drop=0.0), sparsity=0.5, steepness=50.0).train()
    x, y = next(iter(tasks[0].train))
    for progress in (0.1, 0.6):
        gates = torch.sigmoid((1 / 50 + (50 - 1 / 50) * progress) * method.embeddings[0])
        expected = F.cross_entropy(slowly(method, x, gates), y) + 0.5 * gates.mean()
        torch.testing.assert_close(method.loss(Step(tasks[0], x, y, progress)), expected)


def test_validation_has_hard_gates_in_both_parts_of_its_loss() -> None:
    method = made(HAT, sparsity=0.5).eval()
    x, y = next(iter(tasks[0].val))
    gates = method.embeddings[0] > 0
    expected = F.cross_entropy(slowly(method, x, gates), y) + 0.5 * gates.float().mean()
    torch.testing.assert_close(method.validate(Step(tasks[0], x, y))[0], expected)


def test_embeddings_stay_within_their_limit() -> None:
    method = made(HAT)
    with torch.no_grad():
        method.embeddings[0][:2] = torch.tensor([9.0, -9.0])
    method.after_step(Step(tasks[0], torch.empty(0), torch.empty(0)))
    assert method.embeddings[0][:2].tolist() == [6.0, -6.0]


def test_weights_between_used_units_stay_and_others_move() -> None:
    method = made(HAT)
    learn_all(method, tasks[:1])
    used = dict(zip(method.backbone.named_blocks, method.by_layer(method.used.clone()), strict=True))
    before = {name: p.detach().clone() for name, p in method.backbone.named_parameters()}
    learn_all(method, tasks[1:2])
    moved = {name: (p.detach() != before[name]) for name, p in method.backbone.named_parameters()}
    inputs = None
    for name, post in used.items():
        pre = torch.ones(3, dtype=torch.bool) if inputs is None else inputs
        if name == "fc1":
            pre = torch.stack([pre] * 4, 1).flatten()  # each channel four times in a row
        blocked = post[:, None] & pre[None, :]
        assert not moved[f"{name}.layer.weight"][blocked].any()
        assert not moved[f"{name}.layer.bias"][post].any()
        inputs = post
    assert any(entries.any() for entries in moved.values())


def test_blocked_share_follows_from_the_counts_of_used_units() -> None:
    method = made(HAT)
    facts = learn_all(method, tasks[:2])[-1]["blocked"]
    units = [int(layer.sum()) for layer in method.by_layer(method.used)]
    sizes = [4 * 3 * 16 + 4, 8 * 4 * 9 + 8, 16 * 8 * 4 + 16, 128 * 64 + 128, 128 * 128 + 128]
    fan_in = [3 * 16, units[0] * 9, units[1] * 4, units[2] * 4, units[3]]
    blocked = [out * into + out for out, into in zip(units, fan_in, strict=True)]
    for name, part, size in zip(method.backbone.named_blocks, blocked, sizes, strict=True):
        assert facts[name] == pytest.approx(part / size)
    assert facts["whole network"] == pytest.approx(sum(blocked) / sum(sizes))


def test_full_capacity_still_learns_the_head() -> None:
    method = made(HAT)
    learn_all(method, tasks[:1])
    method.used[:] = True
    before, head = logits(method, tasks[0]), method.heads[1].weight.detach().clone()
    losses = learn(method, tasks[1])
    assert all(map(math.isfinite, losses))
    assert torch.equal(logits(method, tasks[0]), before)
    assert not torch.equal(method.heads[1].weight, head)


class Unguarded(HAT):
    """Nothing is protected."""

    def protect(self, used: torch.Tensor) -> None:
        self.free_weights = {}


class FreeBiases(HAT):
    def protect(self, used: torch.Tensor) -> None:
        super().protect(used)
        self.free_weights = {p: mask for p, mask in self.free_weights.items() if p.dim() > 1}


class Decaying(HAT):
    def make_optimizer(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr, weight_decay=1e-4)


class WithMomentum(HAT):
    """The optimizer, and so its momentum, lives on from task to task."""

    def make_optimizer(self, lr: float) -> torch.optim.Optimizer:
        if not hasattr(self, "kept"):
            self.kept = torch.optim.SGD(self.parameters(), lr, momentum=0.9)
        return self.kept


@pytest.mark.parametrize("kind", [Unguarded, FreeBiases, Decaying, WithMomentum])
def test_without_a_guard_it_forgets(kind: type[HAT]) -> None:
    assert not forgets(made(HAT), tasks[:2])
    assert forgets(made(kind), tasks[:2])


def test_embeddings_of_other_tasks_are_not_trained() -> None:
    method = made(HAT)
    method.begin_task(tasks[1])
    assert [e.requires_grad for e in method.embeddings] == [False, True, False]


def test_sparsity_leaves_more_units_free() -> None:
    open_units = []
    for sparsity in (0.0, 4.0):
        method = made(HAT, small_scenario(), sparsity=sparsity)
        open_units.append(learn_all(method, tasks[:1])[0]["open_units"])
    assert open_units[1] < open_units[0]


def test_grey_images_of_another_size() -> None:
    """28 x 28: other kernels, the same four positions a channel before the linear layers."""
    config = make_config("hat", "D-5", preset="short", tasks=1, changes={"width": 1 / 16})
    sequence = load(config, None)
    method = build(config, sequence)
    assert isinstance(method, HAT)
    assert isinstance(method.scenario, Scenario)
    assert isinstance(method.backbone.fc1.layer, nn.Linear)
    assert method.backbone.fc1.layer.in_features == 4 * method.backbone.widths[2]
    assert logits(method, sequence.tasks[0]).shape[1] == 2


def test_soft_gates_are_those_of_the_authors() -> None:
    """Outside training sigmoid(s_max e), kept as a running maximum; a gradient keeps one minus the smaller gate."""
    method = made(HAT, gates="soft", steepness=100.0)
    expected = torch.sigmoid(100 * method.embeddings[0].detach())
    torch.testing.assert_close(method.gates(0).detach(), expected)
    learn_all(method, tasks[:2])
    both = torch.stack([torch.sigmoid(100 * method.embeddings[task].detach()) for task in range(2)])
    torch.testing.assert_close(method.used, both.max(0).values)
    method.begin_task(tasks[2])
    conv1, conv2, *_ = method.by_layer(method.used)
    for parameter in method.parameters():
        parameter.grad = torch.ones_like(parameter)
    method.after_backward(Step(tasks[2], torch.empty(0), torch.empty(0)))
    smaller = torch.minimum(conv2[:, None], conv1[None, :])
    wanted = (1 - smaller)[:, :, None, None].expand_as(method.backbone.conv2.layer.weight)
    torch.testing.assert_close(method.backbone.conv2.layer.weight.grad, wanted)
    torch.testing.assert_close(method.backbone.conv2.layer.bias.grad, 1 - conv2)


def test_soft_gates_leak_and_count_as_blocked_only_where_they_are_exactly_one() -> None:
    """Of a gate of 0.999 a thousandth of the gradient gets through: that is why hard gates are the default."""
    method = made(HAT, gates="soft")
    with torch.no_grad():
        method.embeddings[0].fill_(6.9 / 400)  # a gate of 0.999
    facts = method.end_task(tasks[0])
    assert facts["blocked"]["whole network"] == 0.0
    method.begin_task(tasks[1])
    assert all(0 < share.max() < 0.002 for share in method.free_weights.values())
    with torch.no_grad():
        method.embeddings[0].fill_(1.0)
    assert method.end_task(tasks[0])["blocked"]["whole network"] == 1.0
    assert forgets(made(HAT, gates="soft", steepness=25.0), tasks[:2])
