"""AdamW under update scales: against torch's own AdamW, and which methods refuse it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from softmask.errors import ConfigError
from softmask.kernels.masked_sgd import MaskedSGD
from softmask.learning.fit import Fit
from softmask.learning.masked_adamw import MaskedAdamW, make_optimizer
from softmask.learning.training import Training
from tests.learning.tiny import TinyMethod, tiny_method, tiny_task

ADAMW = Training(lr=0.05, lr_min=1e-4, epochs=4, batch=4, schedule="cosine", optimizer="adamw", weight_decay=0.1)


def steps(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, count: int = 5) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_each_update_is_that_of_adamw_times_its_scale() -> None:
    parameter = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)))
    scale = torch.rand(4, 3, generator=torch.Generator().manual_seed(2))
    masked, slow = nn.Parameter(parameter.detach().clone()), nn.Parameter(parameter.detach().clone())
    steps(MaskedAdamW([masked], 0.1, 0.2, {masked: scale}), masked)
    plain = AdamW([slow], 0.1, weight_decay=0.2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        before = slow.detach().clone()
        slow.grad = torch.randn(slow.shape, generator=generator)
        plain.step()
        with torch.no_grad():
            slow.copy_(before + scale * (slow - before))
    assert torch.allclose(masked, slow, atol=1e-6)
    assert not torch.equal(masked, parameter)


def test_a_scale_of_zero_stands_still_and_one_of_ones_is_plain() -> None:
    start = torch.randn(6, generator=torch.Generator().manual_seed(1))
    kept, free, plain = (nn.Parameter(start.clone()) for _ in range(3))
    steps(MaskedAdamW([kept], 0.1, 0.2, {kept: torch.zeros(6)}), kept)
    steps(MaskedAdamW([free], 0.1, 0.2, {free: torch.ones(())}), free)
    steps(AdamW([plain], 0.1, weight_decay=0.2, fused=True), plain)
    assert torch.equal(kept, start)
    assert torch.equal(free, plain)


class OneThird(TinyMethod):
    def update_scale(self) -> dict[nn.Parameter, float]:
        return {self.heads[0].weight: 0.0}


def test_the_scale_of_a_method_holds_under_adamw() -> None:
    method = OneThird(tiny_method().scenario)
    weight, bias = (parameter.detach().clone() for parameter in method.heads[0].parameters())
    Fit(method, tiny_task(), ADAMW).run()
    assert torch.equal(method.heads[0].weight, weight)
    assert not torch.equal(method.heads[0].bias, bias)


class TwoRates(TinyMethod):
    def make_optimizer(self, lr: float) -> MaskedSGD:
        weight, bias = self.heads[0].parameters()
        return MaskedSGD([{"params": [weight]}, {"params": [bias], "lr": 3 * lr}], lr)


def test_groups_keep_their_rates() -> None:
    made = make_optimizer(TwoRates(tiny_method().scenario), ADAMW)
    assert [group["lr"] for group in made.param_groups] == pytest.approx([0.05, 0.15])
    assert {group["weight_decay"] for group in made.param_groups} == {0.1}


class OwnOptimizer(TinyMethod):
    def make_optimizer(self, lr: float) -> SGD:
        return SGD(self.parameters(), lr)


class OnGradients(TinyMethod):
    needs_sgd = True


@pytest.mark.parametrize("kind", [OwnOptimizer, OnGradients])
def test_methods_that_adamw_would_break_refuse_it(kind: type[TinyMethod]) -> None:
    method = kind(tiny_method().scenario)
    with pytest.raises(ConfigError, match="adamw"):
        Fit(method, tiny_task(), ADAMW)
    Fit(method, tiny_task(), replace(ADAMW, optimizer="sgd", weight_decay=0.0)).run()


@pytest.mark.parametrize("schedule", ["cosine", "plateau"])
def test_an_interrupted_fit_goes_on_with_its_moments_to_the_same_bits(schedule: str) -> None:
    training = replace(ADAMW, schedule=schedule)
    whole = Fit(tiny_method(), tiny_task(), training).run()
    first = Fit(tiny_method(), tiny_task(), training).run(2)
    second = Fit(first.learner, tiny_task(), training)
    second.load_state_dict(first.state_dict())
    second.run()
    for one, two in zip(whole.learner.parameters(), second.learner.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("wrong", [{"weight_decay": -1.0, "optimizer": "adamw"}, {"weight_decay": 0.1}])
def test_a_weight_decay_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="weight_decay"):
        Training(**wrong)  # type: ignore[arg-type]
