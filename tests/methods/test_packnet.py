"""PackNet: which weights are pruned, whose they are, and what old tasks see."""

import pytest
import torch

from softmask.learning.fit import Fitter
from softmask.learning.masked_weights import weights_of
from softmask.learning.method import Step
from softmask.learning.training import Training
from softmask.methods.packnet import PackNet
from tests.methods.comparing import learned, same_network
from tests.methods.isolation import learn, learn_all, logits, made, random_task, small_scenario

tasks = [random_task(index) for index in range(3)]


def tiny(weights: list[float], **settings: float) -> PackNet:
    """One layer's weights given by hand, the owners all free."""
    method = made(PackNet, small_scenario(tasks=2, width=1 / 64), **settings)
    weight = weights_of(method.backbone)["conv1"]
    with torch.no_grad():
        weight.fill_(9.0)
        weight.view(-1)[: len(weights)] = torch.tensor(weights)
    return method


def test_golden_pruning() -> None:
    """48 weights, half of which go: the 20 smallest of those given and 4 of the others."""
    given = [0.1 * (i + 1) * (-1) ** i for i in range(20)]
    method = tiny(given)
    weight = weights_of(method.backbone)["conv1"]
    assert weight.numel() == 48
    method.prune(0)
    owner = method.owners.of("conv1").view(-1)
    assert (owner[:20] == 0).all()
    assert int((owner == 1).sum()) == 24
    assert (weight.view(-1)[owner == 0] == 0).all()
    assert (weight.view(-1)[owner == 1] == 9.0).all()


def test_only_free_weights_are_pruned() -> None:
    """Of 48, 40 are another task's, though they are the smallest; of the 8 that are free, the share 0.75 goes."""
    method = tiny([0.001] * 40 + [1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0], pruned=0.75)
    owner = method.owners.of("conv1").view(-1)
    owner[:40] = 1
    method.prune(1)
    assert (owner[:40] == 1).all()
    assert owner[40:].tolist() == [0, 0, 0, 0, 0, 0, 2, 2]
    assert weights_of(method.backbone)["conv1"].view(-1)[40:].tolist() == [0, 0, 0, 0, 0, 0, 7, -8]


def test_equal_shares_use_all_weights_up() -> None:
    method = made(PackNet)
    assert [method.share_pruned(task) for task in range(3)] == [2 / 3, 1 / 2, 0]
    facts = learn_all(method, tasks)
    assert facts[0]["blocked"]["whole network"] == pytest.approx(1 / 3, abs=0.01)
    assert facts[1]["blocked"]["whole network"] == pytest.approx(2 / 3, abs=0.01)
    assert facts[2]["blocked"]["whole network"] == 1.0


def test_a_share_so_small_that_nothing_is_pruned_keeps_all() -> None:
    method = tiny([], pruned=0.01)  # of 48 weights less than one
    method.prune(0)
    assert (method.owners.of("conv1") == 1).all()


def test_owners_never_change_and_their_weights_stay() -> None:
    method = made(PackNet)
    for task in tasks:
        owners = {name: method.owners.of(name).clone() for name in method.owners.names}
        before = {name: weight.detach().clone() for name, weight in weights_of(method.backbone).items()}
        biases = [block.layer.bias.detach().clone() for block in method.backbone.blocks]
        learn_all(method, [task])
        for name, owner in owners.items():
            assert torch.equal(method.owners.of(name)[owner > 0], owner[owner > 0])
            assert torch.equal(weights_of(method.backbone)[name][owner > 0], before[name][owner > 0])
        stay = [torch.equal(b.layer.bias, old) for b, old in zip(method.backbone.blocks, biases, strict=True)]
        assert all(stay) == (task.id > 0), "biases learn in the first task alone"


def test_an_old_task_sees_neither_later_weights_nor_free_ones() -> None:
    method = made(PackNet)
    learn_all(method, tasks[:2])
    before = logits(method, tasks[0])
    with torch.no_grad():
        for name, weight in weights_of(method.backbone).items():
            weight[method.owners.of(name) != 1] = float("inf")
    assert torch.equal(logits(method, tasks[0]), before)
    with torch.no_grad():
        weight = weights_of(method.backbone)["fc2"]
        weight[method.owners.of("fc2") == 1] += 1.0
    assert not torch.equal(logits(method, tasks[0]), before)


@pytest.mark.parametrize("guard", ["after_backward", "biases"])
def test_without_its_guards_it_would_forget(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of old tasks get no gradient, and neither do biases."""
    if guard == "after_backward":
        monkeypatch.setattr(PackNet, "after_backward", lambda self, step: None)
    else:
        monkeypatch.setattr("softmask.methods.packnet.freeze_biases", lambda backbone, frozen: None)
    method = made(PackNet)
    learn_all(method, tasks[:1])
    before = logits(method, tasks[0])
    learn_all(method, tasks[1:])
    assert not torch.equal(logits(method, tasks[0]), before)


def test_the_first_phase_of_the_first_task_is_plain_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackNet, "learn", lambda self, task, fit: fit(self).run().restore_best())
    assert same_network(learned("packnet", tasks=1), learned("ncl", tasks=1))


def test_the_second_phase_moves_the_new_weights_alone_at_its_own_rate() -> None:
    method, task = made(PackNet), tasks[1]
    learn_all(method, tasks[:1])
    method.begin_task(task)
    fitter = Fitter(method, task, Training(lr=0.1, epochs=4, batch=16, schedule="cosine"))
    first = fitter(method, "train").run().restore_best()
    method.prune(task.id)
    method.retrains = True
    before = {name: weight.detach().clone() for name, weight in weights_of(method.backbone).items()}
    second = fitter(method, "retrain").run()
    assert (first.training.lr, first.training.epochs) == (0.1, 4)
    assert (second.training.lr, second.training.epochs) == (pytest.approx(0.01), 2)
    for name, weight in weights_of(method.backbone).items():
        moved = weight != before[name]
        assert moved.any()
        assert (method.owners.of(name)[moved] == 2).all()
        assert (weight[method.owners.of(name) == 0] == 0).all()


def test_free_weights_are_drawn_again_before_a_task() -> None:
    method = made(PackNet)
    learn_all(method, tasks[:1])
    method.begin_task(tasks[1])
    for name, weight in weights_of(method.backbone).items():
        free = weight[method.owners.of(name) == 0]
        assert (free != 0).all()
        assert free.abs().max() <= weight[0].numel() ** -0.5


def test_with_all_weights_owned_a_new_head_still_learns() -> None:
    method = made(PackNet)
    learn_all(method, tasks[:1])
    before = logits(method, tasks[0])
    method.owners.claim(0, method.owners.free())
    seen = logits(method, tasks[0])  # the free weights are zeros
    assert torch.equal(seen, before)
    head = method.heads[1].weight.detach().clone()
    losses = learn(method, tasks[1])
    assert all(loss == loss for loss in losses)
    assert not torch.equal(method.heads[1].weight, head)
    assert torch.equal(logits(method, tasks[0]), before)


def test_gradients_of_old_weights_are_exact_zeros() -> None:
    method = made(PackNet)
    learn_all(method, tasks[:1])
    method.begin_task(tasks[1])
    method.train()
    step = Step(tasks[1], *next(iter(tasks[1].train)))
    method.loss(step).backward()
    method.after_backward(step)
    for name, weight in weights_of(method.backbone).items():
        assert weight.grad is not None
        assert (weight.grad[method.owners.of(name) == 1] == 0).all()
        assert weight.grad.count_nonzero() > 0
