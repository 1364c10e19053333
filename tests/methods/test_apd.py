"""APD: the weights of a task, the price of moving the shared ones, and what old tasks keep."""

import math

import pytest
import torch

from softmask.learning.masked_weights import weights_of
from softmask.learning.method import Step
from softmask.learning.training import Training
from softmask.methods.apd import APD, towards_zero
from tests.methods.isolation import learn, learn_all, logits, made, random_task, small_scenario

tasks = [random_task(index) for index in range(3)]


def tiny(**settings: float) -> APD:
    """All shared weights are 4, all masks 1/2."""
    method = made(APD, small_scenario(width=1 / 64), **settings)
    with torch.no_grad():
        for weight in weights_of(method.backbone).values():
            weight.fill_(4.0)
    return method


def test_golden_weights_of_a_task() -> None:
    """4 * sigmoid(ln 3) + 0.5 = 4 * 3/4 + 0.5."""
    method = tiny()
    with torch.no_grad():
        method.masks[0].fill_(math.log(3))
        method.difference["fc1"].fill_(0.5)
    torch.testing.assert_close(method.weights(0)["fc1"], torch.full_like(method.weights(0)["fc1"], 3.5))
    torch.testing.assert_close(method.weights(1)["conv1"], torch.full_like(method.weights(1)["conv1"], 2.0))


def test_golden_price_of_moving_the_shared_weights() -> None:
    """Distance 0.5 * 0.001 = 0.0005 from the old task's weights, times fidelity 100: 0.05, below the limit 0.2;
    times the mask: 0.025. At a distance of 0.5 the limit counts: 0.2 * 0.5."""
    method = tiny(sparsity=0.2, fidelity=100.0)
    learn_all(method, [])
    method.learned.fill_(1)
    method.begin_task(tasks[1])
    weights = weights_of(method.backbone)
    for moved, gradient in ((0.001, 0.025), (1.0, 0.1), (-1.0, -0.1)):
        with torch.no_grad():
            for weight in weights.values():
                weight.fill_(4.0 + moved)
                weight.grad = torch.zeros_like(weight)
        method.after_backward(Step(tasks[1], tasks[1].train.x, tasks[1].train.y))
        torch.testing.assert_close(weights["fc2"].grad, torch.full_like(weights["fc2"], gradient), rtol=1e-3, atol=1e-6)


def test_old_differences_follow_the_shared_weights() -> None:
    """Moved by 1 under a mask of 1/2, the difference becomes -0.5, less sparsity / fidelity = 0.01."""
    method = tiny(sparsity=0.1, fidelity=10.0)
    method.learned.fill_(1)
    method.begin_task(tasks[1])
    with torch.no_grad():
        for weight in weights_of(method.backbone).values():
            weight.add_(1.0)
    facts = method.end_task(tasks[1])
    kept = method.differences.by_name()["fc1"][0]
    torch.testing.assert_close(kept, torch.full_like(kept, -0.49))
    assert facts["drift"] == pytest.approx(0.01, rel=1e-3)


def test_soft_threshold_gives_exact_zeros() -> None:
    assert towards_zero(torch.tensor([-3.0, -0.5, 0.0, 0.5, 1.0, 2.0]), 1.0).tolist() == [-2, 0, 0, 0, 0, 1]


def test_small_entries_count_in_training_alone() -> None:
    method = tiny(sparsity=0.1)
    with torch.no_grad():
        method.difference["fc1"].fill_(0.1)
    assert method.train().own(0)["fc1"].any()
    assert not method.eval().own(0)["fc1"].any(), "what is validated is what will be kept"
    method.begin_task(tasks[0])
    with torch.no_grad():
        method.difference["fc2"].fill_(0.2)
    method.end_task(tasks[0])
    assert not method.own(0)["fc1"].any()
    assert method.own(0)["fc2"].all()


TRAINING = Training(lr=0.1, epochs=3, batch=16, schedule="cosine")


def drifts(**settings: float) -> float:
    method = made(APD, **settings)
    return max(facts["drift"] for facts in learn_all(method, tasks[:2], TRAINING))


def test_old_weights_drift_less_the_more_fidelity_counts() -> None:
    """Never by more than sparsity / fidelity + sparsity; without fidelity they follow the shared weights."""
    found = [drifts(fidelity=fidelity, sparsity=1e-5) for fidelity in (0.0, 1e-3, 1e-2, 1e3)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 10 * found[-1]
    assert found[-1] <= 1e-5 / 1e3 + 1e-5 + 1e-6


def test_old_answers_stay_close_but_not_to_the_bit() -> None:
    assert not APD.never_forgets
    changed = {}
    for fidelity in (0.0, 100.0):
        method = made(APD, fidelity=fidelity)
        learn_all(method, tasks[:1], TRAINING)
        before = logits(method, tasks[0])
        learn_all(method, tasks[1:], TRAINING)
        changed[fidelity] = (logits(method, tasks[0]) - before).abs().max().item()
    assert 0 < changed[100.0] < 0.5 * changed[0.0]


def test_the_first_weights_are_those_of_a_plain_network() -> None:
    method = made(APD)
    torch.manual_seed(0)
    plain = small_scenario().backbone()
    x = tasks[0].val.x
    torch.testing.assert_close(method.eval().features(x, 0), plain.eval()(x))


def test_masks_biases_and_head_of_old_tasks_stay() -> None:
    method = made(APD)
    learn_all(method, tasks[:1])
    before = [method.masks[0].detach().clone(), method.biases[0].detach().clone()]
    learn(method, tasks[1])
    assert torch.equal(method.masks[0], before[0])
    assert torch.equal(method.biases[0], before[1])
    assert not torch.equal(method.masks[1], before[0])
    assert method.difference["fc2"].eq(0).any(), "the price leaves exact zeros"
    assert method.difference["fc2"].ne(0).any()
