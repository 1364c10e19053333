"""WSN: which weights are chosen, which may change, and what is kept."""

import math

import pytest
import torch

from softmask.learning.fit import Fit
from softmask.learning.method import Step
from softmask.learning.networks import Backbone
from softmask.methods.wsn import WSN
from tests.methods.isolation import TRAINING, forgets, learn, learn_all, logits, made, random_task, small_scenario

tasks = [random_task(index) for index in range(3)]


def weights(method: WSN) -> dict[str, torch.Tensor]:
    return {name: block.layer.weight.detach().clone() for name, block in method.backbone.named_blocks.items()}


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_every_layer_keeps_its_exact_count(share: float) -> None:
    method = made(WSN, share=share)
    for name, mask in method.chosen().items():
        entries = mask.numel()
        assert int(mask.sum()) == entries - round((1 - share) * (entries - 1))
        kept, left = method.scores[name].abs()[mask == 1], method.scores[name].abs()[mask == 0]
        assert len(left) == 0 or kept.min() >= left.max()


def test_with_all_weights_it_is_the_plain_network_without_biases() -> None:
    method = made(WSN, share=1.0)
    plain = made(WSN, share=1.0)
    x = tasks[0].val.x
    plain.eval()
    assert isinstance(plain.backbone, Backbone)
    assert torch.equal(logits(method, tasks[0]), plain.heads[0](plain.backbone(x)))
    assert all(block.layer.bias is None for block in method.backbone.blocks)
    assert all(head.bias is None for head in method.heads)


def test_first_weights_are_larger_where_fewer_are_kept() -> None:
    full, tenth = weights(made(WSN, share=1.0)), weights(made(WSN, share=0.1))
    for name in full:
        torch.testing.assert_close(tenth[name], full[name] / 0.1**0.5)
        assert full[name].abs().max() <= full[name][0].numel() ** -0.5


def test_only_weights_that_are_chosen_and_new_move() -> None:
    method = made(WSN)
    learn_all(method, tasks[:1])
    used, before = method.masks.union(), weights(method)
    learn(method, tasks[1])
    for name, now in weights(method).items():
        assert torch.equal(now[used[name] == 1], before[name][used[name] == 1])
    assert any(not torch.equal(now, before[name]) for name, now in weights(method).items())


def test_gradients_of_used_weights_are_exact_zeros_and_scores_get_all() -> None:
    method = made(WSN)
    learn_all(method, tasks[:1])
    method.begin_task(tasks[1])
    method.train()
    x, y = next(iter(tasks[1].train))
    step = Step(tasks[1], x, y)
    method.loss(step).backward()
    method.after_backward(step)
    used, chosen = method.masks.union(), method.chosen()
    for name, block in method.backbone.named_blocks.items():
        gradient = block.layer.weight.grad
        assert (gradient[(used[name] == 1) | (chosen[name] == 0)] == 0).all()
    assert method.scores["fc2"].grad[used["fc2"] == 1].count_nonzero() > 0
    assert method.scores["fc2"].grad[chosen["fc2"] == 0].count_nonzero() > 0


def test_union_only_grows_and_scores_go_on() -> None:
    method = made(WSN)
    before = method.masks.union()
    for task in tasks:
        scores = {name: value.detach().clone() for name, value in method.scores.items()}
        method.begin_task(task)
        assert all(torch.equal(method.scores[name], value) for name, value in scores.items())
        learn_all(method, [task])
        now = method.masks.union()
        assert all((now[name] >= before[name]).all() for name in now)
        before = now


def test_kept_mask_is_that_of_the_restored_scores() -> None:
    """Not of the last batch: the last epochs here are made worse on purpose."""
    method = made(WSN, score_rate=30.0)
    method.begin_task(tasks[0])
    fit = Fit(method, tasks[0], TRAINING).run()
    last = method.chosen()
    fit.best["scores.fc2"] = torch.randn_like(fit.best["scores.fc2"])
    fit.restore_best()
    method.end_task(tasks[0])
    kept = method.masks.load(0)
    assert all(torch.equal(kept[name], mask) for name, mask in method.chosen().items())
    assert not torch.equal(kept["fc2"], last["fc2"])


def test_scores_have_their_own_rate() -> None:
    optimizer = made(WSN, score_rate=3.0).make_optimizer(0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, pytest.approx(0.3)]
    assert len(optimizer.param_groups[1]["params"]) == 5


def test_masks_flip_and_the_fact_says_so() -> None:
    facts = learn_all(made(WSN, score_rate=30.0), tasks[:1])[0]
    assert facts["flipped"].keys() == {"conv1", "conv2", "conv3", "fc1", "fc2"}
    assert all(0 <= share <= 1 for share in facts["flipped"].values())
    assert max(facts["flipped"].values()) > 0


def test_full_capacity_still_learns() -> None:
    method = made(WSN)
    learn_all(method, tasks[:1])
    ones = {name: torch.ones_like(weight) for name, weight in weights(method).items()}
    method.masks.save(2, ones)
    before, frozen, head = logits(method, tasks[0]), weights(method), method.heads[1].weight.detach().clone()
    losses = learn(method, tasks[1])
    assert all(map(math.isfinite, losses))
    assert torch.equal(logits(method, tasks[0]), before)
    assert all(torch.equal(now, frozen[name]) for name, now in weights(method).items())
    assert not torch.equal(method.heads[1].weight, head)


def test_masks_take_one_bit_a_weight_and_task() -> None:
    scenario = small_scenario(tasks=3)
    method = made(WSN, scenario)
    entries = sum(weight.numel() for weight in weights(method).values())
    stored = sum(b.numel() * b.element_size() for name, b in method.masks.named_buffers() if name != "known")
    assert stored <= 3 * (entries / 8 + 5)


class Unguarded(WSN):
    def after_backward(self, step: Step) -> None:
        """Nothing is protected."""


class Decaying(WSN):
    def make_optimizer(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr, weight_decay=1e-4)


class WithMomentum(WSN):
    """The optimizer, and so its momentum, lives on from task to task."""

    def make_optimizer(self, lr: float) -> torch.optim.Optimizer:
        if not hasattr(self, "kept_optimizer"):
            self.kept_optimizer = torch.optim.SGD(self.parameters(), lr, momentum=0.9)
        return self.kept_optimizer


@pytest.mark.parametrize("kind", [Unguarded, Decaying, WithMomentum])
def test_without_a_guard_it_forgets(kind: type[WSN]) -> None:
    assert not forgets(made(WSN), tasks[:2])
    assert forgets(made(kind), tasks[:2])
