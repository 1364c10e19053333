"""UCL: the golden regulariser, the chain of strengths, sampling, and two learning rates."""

import itertools
import math
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softmask.learning.fit import Fit
from softmask.learning.method import Step
from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.learning.seeds import Seeds
from softmask.learning.training import Training
from softmask.methods.ncl import NCL
from softmask.methods.ucl import UCL, joined_strengths
from tests.core.examples import linear
from tests.learning.toys import random_scenario, random_task, step_of, toy_scenario, toy_task
from tests.methods.comparing import built, learned

FOUR = toy_task(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64), size=4)


def rho_of(deviation: float) -> float:
    return torch.tensor(deviation).expm1().log().item()


@torch.no_grad()
def golden(task: int) -> tuple[UCL, Step]:
    """One unit with two inputs; a share of noise of 0.25 makes the initial deviation 0.5."""
    scenario = toy_scenario([linear([[0.0, 0.0]], [0.0])], [linear([[1.0]], [0.0]), linear([[1.0]], [0.0])])
    method = UCL(scenario, UCL.Settings(alpha=5.0, beta=0.002, noise_share=0.25))
    assert F.softplus(method.rhos[0]).item() == pytest.approx(0.5)
    for values, weight, bias, deviation in (
        ((method.old_means.tensors(), method.old_rhos.tensors()), [[1.0, 0.0]], 0.5, 0.25),
        ((tuple(method.backbone.parameters()), tuple(method.rhos)), [[1.5, -1.0]], 0.0, 0.5),
    ):
        (means, offsets), (rho,) = values
        means.copy_(torch.tensor(weight))
        offsets.fill_(bias)
        rho.fill_(rho_of(deviation))
    at = toy_task(FOUR.train.x, FOUR.train.y, index=task, size=4)
    method.begin_task(at)
    return method.train(), step_of(at)


@pytest.mark.parametrize(("task", "expected"), [(0, 3.7510625), (1, 1.3760625)])
def test_golden_regulariser(task: int, expected: float) -> None:
    method, step = golden(task)
    assert rho_of(0.25) == pytest.approx(-1.258692, abs=1e-6)
    assert rho_of(0.5) == pytest.approx(-0.432752, abs=1e-6)
    assert method.penalty(step).item() == pytest.approx(expected, rel=1e-6)


def test_the_true_batch_size_divides_the_regulariser() -> None:
    """Also for a short last batch."""
    method, step = golden(1)
    short = Step(step.task, step.x[:1], step.y[:1])
    assert method.penalty(short).item() == pytest.approx(4 * 1.3760625, rel=1e-6)


@pytest.mark.parametrize("count", [4, 1], ids=["full batch", "short last batch"])
def test_gradients_by_hand_are_those_of_the_formula(count: int) -> None:
    method, full = golden(1)
    step = Step(full.task, full.x[:count], full.y[:count])
    method.penalty(step).backward()
    method.after_backward(step)
    mean, offset = (p.detach().clone().requires_grad_() for p in method.backbone.parameters())
    rho = method.rhos[0].detach().clone().requires_grad_()
    old_mean, old_offset = method.old_means.tensors()
    old, now, first = 0.25, F.softplus(rho), 0.5
    squares = ((first / old) ** 2) * ((mean - old_mean).square().sum() + (offset - old_offset).square().sum())
    absolutes = first**2 * (((old_mean / old) ** 2 * (mean - old_mean).abs()).sum())
    absolutes = absolutes + first**2 * ((old_offset / old) ** 2 * (offset - old_offset).abs()).sum()
    ratio = (now / old).square()
    changes = (ratio - ratio.log() + now.square() - now.square().log()).sum()
    ((squares / 2 + absolutes + 0.002 / 2 * changes) / count).backward()
    torch.testing.assert_close(method.backbone[0].weight.grad, mean.grad)
    torch.testing.assert_close(method.backbone[0].bias.grad, offset.grad)
    torch.testing.assert_close(method.rhos[0].grad, rho.grad)


def test_golden_chain_of_strengths() -> None:
    """Two channels at two positions each: a channel's strength holds for entries that lie side by side."""
    channels, unit = torch.tensor([1.0, 2.0]), torch.tensor([1.5])
    assert joined_strengths(nn.Linear(4, 1), unit, channels).tolist() == [[1.5, 1.5, 2.0, 2.0]]
    first = joined_strengths(nn.Conv2d(1, 2, 1), channels, None)
    assert first.flatten().tolist() == [1.0, 2.0]


def test_strengths_run_through_the_network_in_order() -> None:
    method, (task, _) = built("ucl")
    with torch.no_grad():
        for rho in method.old_rhos.tensors():
            rho.sub_(torch.rand_like(rho))
    method.begin_task(task)
    plain = [curvature.div(method.settings.alpha).sqrt() for curvature in method.curvatures]
    weights, strengths = plain[::2], plain[1::2]  # a bias has the strength of its unit
    assert torch.equal(weights[0], strengths[0].view(-1, 1, 1, 1).expand_as(weights[0]))
    torch.testing.assert_close(weights[4][3, 7], torch.maximum(strengths[4][3], strengths[3][7]))
    torch.testing.assert_close(weights[1][2, 1, 0, 0], torch.maximum(strengths[1][2], strengths[0][1]))


def test_in_the_first_task_the_old_model_is_the_initial_one() -> None:
    method, (task, _) = built("ucl")
    method.begin_task(task)
    step = step_of(task)
    assert all(torch.equal(a, b) for a, b in zip(method.old_means.tensors(), method.backbone.parameters(), strict=True))
    method.train().penalty(step).backward()
    method.after_backward(step)
    assert all((parameter.grad == 0).all() for parameter in method.backbone.parameters())
    assert all((rho.grad != 0).any() for rho in method.rhos)


@pytest.mark.parametrize("task", [0, 1])
def test_at_the_old_means_nothing_pulls(task: int) -> None:
    method, step = golden(task)
    with torch.no_grad():
        for parameter, old in zip(method.backbone.parameters(), method.old_means.tensors(), strict=True):
            parameter.copy_(old)
    method.penalty(step).backward()
    method.after_backward(step)
    assert all((parameter.grad == 0).all() for parameter in method.backbone.parameters())


def test_initial_weights() -> None:
    """Total variance 2 / inputs for a linear layer, 2 / outputs for a convolution, noise included."""
    torch.manual_seed(0)
    scenario = Scenario((3, 32, 32), (2,), NetworkConfig(width=0.5))
    method = UCL(scenario, UCL.Settings(noise_share=0.25))
    fc2, conv2 = method.backbone.fc2.layer, method.backbone.conv2.layer
    for layer, rho, fan in ((fc2, method.rhos[4], 1024), (conv2, method.rhos[1], 64 * 9)):
        deviation = F.softplus(rho.detach()).flatten()[0].item()
        assert deviation**2 == pytest.approx(2 / fan * 0.25, rel=1e-4)
        assert layer.weight.var().item() == pytest.approx(2 / fan * 0.75, rel=0.02)
        assert (layer.bias == 0).all()


def test_evaluation_uses_means_training_draws() -> None:
    method, (task, _) = built("ucl", drop1=0.0, drop2=0.0)
    method.begin_task(task)
    x = task.train.x[:4]
    method.eval()
    assert torch.equal(method(x, 0), method(x, 0))
    state = torch.get_rng_state()
    method.train()
    assert not torch.equal(method(x, 0), method(x, 0))
    assert torch.equal(torch.get_rng_state(), state)  # dropout goes its own way


def test_every_weight_has_noise_of_its_own_with_the_deviation_of_its_unit() -> None:
    """Unit vectors in, weights out. The gradient reaches the mean as it is, the deviation through the noise."""
    method = UCL(toy_scenario([nn.Linear(300, 20)], [nn.Linear(20, 2)]))
    layer, (rho,) = method.backbone[0], method.rhos
    with torch.no_grad():
        rho.copy_(torch.linspace(-3, 1, 20).unsqueeze(1))
    drawn = method.train().features(torch.eye(300), task=0).t()
    noise = ((drawn - layer.weight) / F.softplus(rho)).detach()
    assert noise.std(1).tolist() == pytest.approx([1.0] * 20, abs=0.15)
    assert noise.mean(1).abs().max() < 0.25
    drawn.sum().backward()
    torch.testing.assert_close(layer.weight.grad, torch.ones(20, 300))
    torch.testing.assert_close(rho.grad, torch.sigmoid(rho.detach()) * noise.sum(1, keepdim=True), rtol=1e-3, atol=1e-3)


def test_noise_is_drawn_once_for_a_batch_not_for_each_sample() -> None:
    method = UCL(toy_scenario([nn.Linear(6, 20)], [nn.Linear(20, 2)]))
    rows = method.train().features(torch.randn(1, 6).expand(5, 6), task=0)
    torch.testing.assert_close(rows, rows[:1].expand(5, 20))


def test_the_loss_is_the_mean_cross_entropy_and_the_regulariser() -> None:
    """The cross-entropy is a mean already: it is not divided by the batch once more."""
    method, (task, _) = built("ucl", drop1=0.0, drop2=0.0)
    method.begin_task(task)
    step = step_of(task)
    loss = method.train().loss(step)
    method.draws.count.zero_()  # the same noise again
    expected = F.cross_entropy(method(step.x, 0), step.y) + method.penalty(step)
    torch.testing.assert_close(loss, expected)


def test_deviations_learn_from_the_likelihood() -> None:
    method, (task, _) = built("ucl")
    method.begin_task(task)
    x, y = next(iter(task.train))
    F.cross_entropy(method.train()(x, 0), y).backward()
    assert all(rho.grad is not None and rho.grad.any() for rho in method.rhos)


def test_validation_is_the_cross_entropy_of_the_means() -> None:
    method, step = golden(1)
    method.eval()
    with torch.inference_mode():
        loss, _ = method.validate(step)
        assert loss.item() == pytest.approx(F.cross_entropy(method(step.x, 1), step.y).item())


def test_parameters_are_those_of_ncl_and_one_for_each_unit() -> None:
    scenario = Scenario((3, 32, 32), (10,) * 10)
    counts = [sum(p.numel() for p in kind(scenario).parameters()) for kind in (UCL, NCL)]
    assert counts[0] - counts[1] == 4544


def test_both_rates_fall_together(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = itertools.chain([1.0], itertools.repeat(2.0))
    monkeypatch.setattr("softmask.learning.fit.validate", lambda learner, task: (next(losses), 0.5))
    method, task = UCL(random_scenario(tasks=1), UCL.Settings(rho_rate=4.0)), random_task()
    method.begin_task(task)
    fit, rates = Fit(method, task, Training()), []
    fit.after_epoch = lambda fit: rates.append([group["lr"] for group in fit.optimizer.param_groups])
    fit.run()
    assert len(rates) == 36
    assert all(rho / plain == pytest.approx(4.0) for plain, rho in rates)
    assert len({plain for plain, _ in rates}) == 7


def test_what_is_old_changes_at_task_ends_only() -> None:
    method = learned("ucl", tasks=2)
    assert all(torch.equal(a, b) for a, b in zip(method.old_means.tensors(), method.backbone.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(method.old_rhos.tensors(), method.rhos, strict=True))


@pytest.mark.parametrize(("optimizer", "clipped"), [("sgd", True), ("adam", False)])
def test_only_sgd_is_clipped(optimizer: str, clipped: bool) -> None:
    method = UCL(random_scenario(tasks=1), UCL.Settings(optimizer=optimizer, lr=1e-3))
    task = random_task()
    method.begin_task(task)
    assert type(method.make_optimizer(1e-3)).__name__ == {"sgd": "MaskedSGD", "adam": "Adam"}[optimizer]
    for parameter in method.parameters():
        parameter.grad = torch.full_like(parameter, 1000.0)
    method.clip_gradients()
    norm = torch.cat([p.grad.flatten() for p in method.parameters()]).norm().item()
    assert (norm == pytest.approx(100.0, rel=1e-3)) == clipped


def test_a_certain_unit_is_warned_of() -> None:
    """Deviations far below the initial one make penalties that a large learning rate cannot follow."""
    method, _ = golden(1)
    with torch.no_grad():
        method.old_rhos.tensors()[0].fill_(rho_of(0.5 / 8))
    method.begin_task(toy_task(FOUR.train.x, FOUR.train.y, index=1, size=4))
    with pytest.warns(UserWarning, match=r"UCL with alpha 5 and beta 0\.002 may diverge at a learning rate of 0\.25"):
        method.make_optimizer(0.25)
    assert method.stability.penalty_rate_largest == pytest.approx(0.25 * 64 / 4, rel=1e-4)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_share_of_noise_is_neither_none_nor_all(share: float) -> None:
    with pytest.raises(ValueError, match="noise_share"):
        UCL.Settings(noise_share=share)


def test_adam_has_no_rate_that_its_springs_could_overtax() -> None:
    method = UCL(random_scenario(tasks=1), UCL.Settings(optimizer="adam", lr=1e-3, alpha=1e6))
    method.begin_task(random_task())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.make_optimizer(1e-3)
    plain = UCL(random_scenario(tasks=1), UCL.Settings(lr=1e-3, alpha=1e6))
    plain.begin_task(random_task())
    with pytest.warns(UserWarning, match="may diverge"):
        plain.make_optimizer(1e-3)


def test_what_is_old_stays_while_a_task_is_learned() -> None:
    method, task = UCL(random_scenario(tasks=2)), random_task()
    old = [tensor.clone() for tensor in (*method.old_means.tensors(), *method.old_rhos.tensors())]
    method.begin_task(task)
    Fit(method, task, Training(epochs=2)).run()
    now = (*method.old_means.tensors(), *method.old_rhos.tensors())
    assert all(torch.equal(a, b) for a, b in zip(now, old, strict=True))
    assert not torch.equal(method.backbone[0].weight, method.old_means.tensors()[0])


@pytest.mark.parametrize("rho", [-40.0, 200.0])
def test_no_deviation_is_lost_in_rounding(rho: float) -> None:
    """log(1 + exp(rho)) is 0 below -17 and infinite above 88."""
    method, step = golden(1)
    with torch.no_grad():
        method.rhos[0].fill_(rho)
        method.old_rhos.tensors()[0].fill_(rho)
    method.begin_task(step.task)
    method.train()
    value = method.penalty(step)
    value.backward()
    assert value.isfinite()
    assert method.rhos[0].grad.isfinite().all()
    drawn = method.features(step.x, 1)
    assert drawn.isfinite().all()


def test_noise_follows_from_the_seed_of_the_run() -> None:
    """The initial weights are the same here: only what is drawn for them may differ."""
    features = []
    for seed in (1, 1, 2):
        method = UCL(replace(random_scenario(tasks=1), seeds=Seeds(batches=seed)))
        features.append(method.train().features(torch.eye(3), task=0))
    assert torch.equal(features[0], features[1])
    assert not torch.equal(features[0], features[2])


def test_the_term_of_the_deviations_is_a_sum_over_the_units_of_all_layers() -> None:
    """The golden has one unit, for which a mean over units is the same."""
    torch.manual_seed(0)
    layers = [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5)]
    method, task = UCL(toy_scenario(layers, [nn.Linear(5, 2)]), UCL.Settings(beta=0.2)), random_task()
    method.begin_task(task)
    with torch.no_grad():
        for rho in method.rhos:
            rho.add_(torch.randn_like(rho))
    old, new = (
        F.softplus(torch.cat([rho.detach().flatten() for rho in rhos]))
        for rhos in (method.old_rhos.tensors(), method.rhos)
    )
    ratio, variance = (new / old).square(), new.square()
    expected = (ratio - ratio.log() + variance - variance.log()).sum() * 0.2 / 2 / 4
    assert len(new) == 9
    assert method.train().penalty(step_of(task)).item() == pytest.approx(expected.item(), rel=1e-5)


def test_initial_means_are_uniform() -> None:
    """Within the root of three deviations, the share of the noise taken out."""
    torch.manual_seed(0)
    method = UCL(toy_scenario([nn.Linear(50, 400)], [nn.Linear(400, 2)]), UCL.Settings(noise_share=0.25))
    bound = math.sqrt(3 * 2 / 50 * 0.75)
    assert 0.999 * bound < method.backbone[0].weight.abs().max() <= bound
