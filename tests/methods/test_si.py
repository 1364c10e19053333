"""SI: the golden path of one scalar, and the path integral going back with the weights."""

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from softmask.learning.fit import DivergedError, Fit
from softmask.learning.method import Step
from softmask.learning.training import Training
from softmask.methods.si import SI
from tests.core.examples import linear
from tests.learning.toys import move, random_scenario, random_task, step_of, toy_scenario, toy_task
from tests.methods.comparing import SMALL, learned, same_network

TWO_STEPS = toy_task(torch.ones(2, 1), torch.zeros(2, dtype=torch.int64), size=1)


class OneScalar(SI):
    """The loss is half the squared distance of the only weight to a target."""

    target = 0.0

    def loss(self, step: Step) -> Tensor:
        loss = (self.weight - self.target).square() / 2
        penalty = self.penalty(step)
        return loss if penalty is None else loss + penalty

    @property
    def weight(self) -> Tensor:
        return self.backbone[0].weight.squeeze()


def train_towards(method: OneScalar, target: float) -> float:
    """Two steps of a task; returns the path integral."""
    method.target = target
    method.begin_task(TWO_STEPS)
    Fit(method, TWO_STEPS, Training(lr=0.1, lr_min=0.1)).train_epoch()
    path = method.path.tensors()[0].item()
    method.end_task(TWO_STEPS)
    return path


def test_golden_path_of_one_scalar() -> None:
    scenario = toy_scenario([linear([[0.0]])], [nn.Linear(1, 1)])
    method = OneScalar(scenario, SI.Settings(strength=0.5, damping=0.1))
    assert train_towards(method, 3.0) == pytest.approx(1.629, abs=1e-5)  # the true decrease is 1.54755
    assert method.weight.item() == pytest.approx(0.57, abs=1e-6)
    assert method.importance.tensors()[0].item() == pytest.approx(3.833843, abs=1e-5)
    # The gradient of the penalised loss would give 0.312276; a penalty with one half another weight.
    assert train_towards(method, -1.0) == pytest.approx(0.361097, abs=1e-5)
    assert method.weight.item() == pytest.approx(0.331891, abs=1e-5)
    assert method.importance.tensors()[0].item() == pytest.approx(6.138287, abs=1e-4)


class Measured(SI):
    """Takes the integral from the moves that the optimizer really made."""

    def build(self) -> None:
        super().build()
        self.measured = [torch.zeros_like(p) for p in self.backbone.parameters()]

    def after_backward(self, step: Step) -> None:
        self.before = [(p.grad.clone(), p.detach().clone()) for p in self.backbone.parameters()]
        super().after_backward(step)

    def after_step(self, step: Step) -> None:
        for total, (gradient, weight), now in zip(self.measured, self.before, self.backbone.parameters(), strict=True):
            total.sub_(gradient * (now.detach() - weight))


def test_the_path_is_that_of_the_actual_moves_while_the_rate_falls() -> None:
    method, task = Measured(random_scenario(tasks=1), SI.Settings(strength=0.3)), random_task()
    for importance in method.importance.tensors():
        importance.fill_(1.0)
    method.begin_task(task)
    Fit(method, task, Training(epochs=4, schedule="cosine")).run()
    for path, measured in zip(method.path.tensors(), method.measured, strict=True):
        torch.testing.assert_close(path, measured, rtol=1e-4, atol=1e-6)


def test_the_reported_loss_holds_the_penalty() -> None:
    method = OneScalar(toy_scenario([linear([[2.0]])], [nn.Linear(1, 1)]), SI.Settings(strength=0.5))
    method.anchor.zero_()
    method.importance.tensors()[0].fill_(3.0)
    assert method.loss(Step(TWO_STEPS, *next(iter(TWO_STEPS.train)))).item() == pytest.approx(2 + 0.5 * 3 * 4)


@torch.no_grad()
def test_the_accumulated_importance_is_clamped_not_the_share_of_a_task() -> None:
    method = OneScalar(toy_scenario([linear([[0.0]])], [nn.Linear(1, 1)]), SI.Settings(damping=0.1))
    importance, path = method.importance.tensors()[0], method.path.tensors()[0]
    importance.fill_(5.0)
    path.fill_(-0.2)
    method.end_task(TWO_STEPS)
    assert importance.item() == pytest.approx(3.0)  # 5 if the share alone were clamped
    path.fill_(-1.0)
    method.end_task(TWO_STEPS)
    assert importance.item() == 0


def test_strength_zero_is_ncl_to_the_bit_over_two_tasks() -> None:
    plain = learned("ncl")
    assert same_network(learned("si", strength=0.0), plain)
    assert not same_network(learned("si"), plain)


def test_first_task_only_adds_to_the_path() -> None:
    method, task = SI(random_scenario(tasks=1)), random_task()
    method.begin_task(task)
    Fit(method, task, Training(epochs=3)).run()
    assert all((path >= 0).all() for path in method.path.tensors())
    assert any((path > 0).any() for path in method.path.tensors())


def test_the_path_goes_back_to_the_best_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else numerator and denominator of the importance would belong to different paths."""
    losses = itertools.chain([1.0], itertools.repeat(2.0))
    monkeypatch.setattr("softmask.learning.fit.validate", lambda learner, task: (next(losses), 0.5))
    method, task = SI(random_scenario(tasks=1)), random_task()
    method.begin_task(task)
    fit = Fit(method, task, Training(epochs=4)).run(1)
    best = [path.clone() for path in method.path.tensors()]
    fit.run()
    assert any(not torch.equal(path, then) for path, then in zip(method.path.tensors(), best, strict=True))
    fit.restore_best()
    assert all(torch.equal(path, then) for path, then in zip(method.path.tensors(), best, strict=True))


def test_a_task_begins_with_an_empty_path() -> None:
    method = learned("si", tasks=1)
    assert any(path.any() for path in method.path.tensors())
    method.begin_task(random_task(index=0))
    assert not any(path.any() for path in method.path.tensors())


def test_the_warning_counts_the_missing_one_half() -> None:
    method = SI(random_scenario(tasks=1), SI.Settings(strength=3.0))
    method.importance.tensors()[0][0, 0] = 2.0
    with pytest.warns(UserWarning, match="SI with strength 3"):
        method.make_optimizer(0.25)
    assert method.stability.penalty_rate_largest == pytest.approx(0.25 * 2 * 3 * 2)


def test_a_penalty_that_explodes_ends_the_run_as_diverged(tmp_path: Path) -> None:
    config = make_config("si", "D-5", preset="short", tasks=2, changes={**SMALL, "strength": 1e12})
    store = Store(tmp_path)
    with (
        pytest.warns(UserWarning, match=r"strength 1e\+12"),
        pytest.raises(DivergedError, match="strength=1000000000000"),
    ):
        run(config, store)
    (failed,) = store.find(config).events("failed")
    assert failed["reason"] == "diverged"


def test_before_the_first_task_the_anchor_is_the_initial_model() -> None:
    """The share of the first task is divided by the way from there, not from zero."""
    method = SI(toy_scenario([linear([[2.0]])], [nn.Linear(1, 1)]), SI.Settings(damping=0.1))
    move(method, weights=0.5, biases=0.0)
    method.path.tensors()[0].fill_(0.7)
    method.end_task(toy_task(torch.ones(2, 1), torch.zeros(2, dtype=torch.int64)))
    assert method.importance.tensors()[0].item() == pytest.approx(0.7 / (0.25 + 0.1), rel=1e-5)


@pytest.mark.parametrize("within", [True, False])
def test_the_penalty_is_part_of_validation_unless_switched_off(within: bool) -> None:
    method = SI(random_scenario(tasks=1), SI.Settings(strength=0.5, penalty_in_validation=within)).eval()
    for importance in method.importance.tensors():
        importance.fill_(1.0)
    move(method, weights=0.1, biases=0.0)
    step = step_of(random_task())
    plain = F.cross_entropy(method(step.x, 0), step.y)
    assert (method.validate(step)[0] - plain).item() == pytest.approx(0.5 * 12 * 0.01 * within, abs=1e-6)
