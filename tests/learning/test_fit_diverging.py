"""The training loop where a loss or a weight is not finite."""

import itertools
import math

import pytest
import torch

from softmask.learning.fit import DivergedError, Fit
from softmask.learning.training import PRESETS, Training
from tests.learning.tiny import TinyMethod, rates, tiny_method, tiny_task

PAPER = PRESETS["paper"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_goes_back_to_the_best(scripted, bad: float) -> None:
    scripted([1.0, bad, 0.5, *[2.0] * 100])
    method = tiny_method()
    fit = Fit(method, tiny_task(), PAPER)
    fit.run(1)
    best = method.heads[0].weight.clone()
    fit.run(1)
    assert torch.equal(method.heads[0].weight, best)
    fit.run(1)
    assert fit.best_loss == 0.5


def test_a_weight_that_is_not_finite_is_taken_back_even_if_no_loss_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    method = tiny_method()
    method.unseen = torch.nn.Parameter(torch.zeros(2))
    fit = Fit(method, tiny_task(), PAPER)
    fit.run(1)
    with monkeypatch.context() as patched:
        patched.setattr(method, "after_step", lambda step: method.unseen.data.fill_(math.inf))
        fit.run(1)
    assert math.isfinite(fit.last["val_loss"])
    assert method.unseen.tolist() == [0, 0]
    assert fit.best_epoch == 0


class WithAdam(TinyMethod):
    def make_optimizer(self, lr: float):
        return torch.optim.Adam(self.parameters(), lr)


def test_moments_that_saw_what_is_not_finite_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the weights would be restored and spoiled again by the next step, for ever."""
    method = WithAdam(tiny_method().scenario)
    fit = Fit(method, tiny_task(), PAPER)
    fit.run(1)
    with monkeypatch.context() as patched:
        patched.setattr(method, "loss", lambda step: math.nan * TinyMethod.loss(method, step))
        fit.run(1)
    assert math.isnan(fit.last["train_loss"])
    fit.run(1)
    assert math.isfinite(fit.last["train_loss"])
    assert math.isfinite(fit.last["val_loss"])


def test_never_finite_is_diverged(scripted) -> None:
    scripted(itertools.repeat(math.nan))
    fit = Fit(tiny_method(), tiny_task(), Training(epochs=3))
    with pytest.raises(DivergedError, match=r"tiny 0 diverged.*learning rate 0\.25"):
        fit.run().restore_best()


def test_before_the_first_finite_loss_the_best_is_the_start_of_the_task(scripted) -> None:
    scripted([math.nan, 1.0])
    method = tiny_method()
    start = method.heads[0].weight.detach().clone()
    fit = Fit(method, tiny_task(), Training(epochs=2))
    fit.run(1)
    assert torch.equal(method.heads[0].weight, start)


def test_a_training_loss_that_is_not_finite_is_taken_back_though_validation_is(scripted, monkeypatch) -> None:
    scripted([1.0, 0.5, 2.0])
    method = tiny_method()
    fit = Fit(method, tiny_task(), Training())
    fit.run(1)
    monkeypatch.setattr(fit, "train_epoch", lambda: math.inf)
    fit.run(1)
    assert fit.best_loss == 1.0


def test_epochs_that_are_not_finite_lower_the_rate(scripted) -> None:
    """It is what may still save the task: taken back and tried again at the same rate, it would fail for ever."""
    scripted(itertools.chain([1.0], itertools.repeat(math.nan)))
    seen = rates(Fit(tiny_method(), tiny_task(), PAPER))
    assert len(seen) == 36
    assert seen[-1] == PAPER.lr_min


def test_a_loss_that_is_not_finite_takes_running_statistics_back_too(scripted) -> None:
    """SI's path integral and TAG's moments belong to the weights."""
    scripted([1.0, math.nan])
    method = tiny_method()
    fit = Fit(method, tiny_task(), PAPER).run(1)
    assert method.steps == 3
    fit.run(1)
    assert method.steps == 3
