"""The training loop against its golden counts and against a kill."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from softmask.learning.fit import Fit, Fitter
from softmask.learning.method import Step
from softmask.learning.training import PRESETS, Training, scaled
from tests.learning.tiny import TinyMethod, rates, tiny_method, tiny_task

PAPER = PRESETS["paper"]


def test_never_improving_again_takes_36_epochs(scripted) -> None:
    scripted(itertools.chain([1.0], itertools.repeat(2.0)))
    fit = Fit(tiny_method(), tiny_task(), PAPER)
    seen = rates(fit)
    assert len(seen) == 36
    levels = [(round(rate, 5), len(list(group))) for rate, group in itertools.groupby(seen)]
    assert levels == [(0.25, 6), (0.08333, 5), (0.02778, 5), (0.00926, 5), (0.00309, 5), (0.00103, 5), (0.001, 5)]


@pytest.mark.parametrize("lr", [8e-5, 1e-5, 1e-8])
def test_so_it_does_at_any_rate(scripted, lr: float) -> None:
    """The last cut is small: a schedule that passes it over never reaches the floor, and training never stops."""
    scripted(itertools.chain([1.0], itertools.repeat(2.0)))
    seen = rates(Fit(tiny_method(), tiny_task(), scaled(PAPER, lr)))
    assert len(seen) == 36
    assert seen[-1] == pytest.approx(lr / 250)


def test_weights_of_the_best_epoch_are_restored(scripted) -> None:
    scripted(itertools.chain([1.0], itertools.repeat(2.0)))
    method = tiny_method()
    fit = Fit(method, tiny_task(), PAPER)
    fit.run(1)
    best = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    fit.run()
    assert not torch.equal(method.heads[0].weight, best["heads.0.weight"])  # not restored by itself
    fit.restore_best()
    assert all(torch.equal(tensor, best[name]) for name, tensor in method.state_dict().items())
    assert method.steps == 3  # buffers go back with the weights


def test_tiny_improvements_lower_the_rate_but_do_not_stop(scripted) -> None:
    """The schedule looks for a relative 1e-4, the stopping rule for any improvement at all."""
    scripted(1.0 - 1e-6 * epoch for epoch in itertools.count())
    seen = rates(Fit(tiny_method(), tiny_task(), PAPER))
    assert len(seen) == 500
    assert seen[30] > PAPER.lr_min
    assert seen[31] == PAPER.lr_min


def test_the_threshold_is_relative(scripted) -> None:
    scripted(0.05 - 1e-6 * epoch for epoch in itertools.count())
    seen = rates(Fit(tiny_method(), tiny_task(), PAPER))
    assert len(set(seen)) == 2


def test_a_stale_epoch_at_a_higher_rate_does_not_count(scripted) -> None:
    """Only epochs whose own rate was already the lowest do; an improvement sets the count back."""
    training = Training(lr=1e-3, lr_min=1e-3, patience=3)
    scripted([1.0, 2.0, 2.0, 0.5, 2.0, 2.0, 2.0, 2.0])
    fit = Fit(tiny_method(), tiny_task(), training).run()
    assert fit.epoch == 7


def test_cosine_gives_the_rates_of_torchs_own_schedule_to_the_bit() -> None:
    training = PRESETS["short"]
    floor, last = training.lr_min / training.lr, training.epochs - 1
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], training.lr)
    torchs = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: floor + (1 - floor) * (1 + math.cos(math.pi * epoch / last)) / 2
    )
    expected = []
    for _ in range(training.epochs):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        torchs.step()
    assert rates(Fit(tiny_method(), tiny_task(), training)) == expected


def test_cosine_runs_all_epochs_down_to_the_lowest_rate() -> None:
    seen = rates(Fit(tiny_method(), tiny_task(), PRESETS["short"]))
    assert len(seen) == 10
    assert seen[0] == 0.25
    assert seen[-1] == pytest.approx(0.25 / 250)
    assert seen == sorted(seen, reverse=True)
    assert seen[3] == pytest.approx(1e-3 + (0.25 - 1e-3) * (1 + math.cos(math.pi * 3 / 9)) / 2)


def test_another_rate_keeps_its_distance_to_the_floor() -> None:
    assert scaled(PAPER, 0.25) == PAPER
    assert scaled(PAPER, 0.0025).lr_min == pytest.approx(1e-5)


class Groups(TinyMethod):
    """A second group of parameters with four times the rate."""

    def make_optimizer(self, lr: float):
        head = self.heads[0]
        groups = [{"params": [head.weight], "lr": lr}, {"params": [head.bias], "lr": 4 * lr}]
        return torch.optim.SGD(groups, lr=lr)


def test_groups_with_rates_of_their_own_fall_together(scripted) -> None:
    scripted(itertools.chain([1.0], itertools.repeat(2.0)))
    fit = Fit(Groups(tiny_method().scenario), tiny_task(), PAPER)
    ratios = []
    fit.after_epoch = lambda fit: ratios.append(
        fit.optimizer.param_groups[1]["lr"] / fit.optimizer.param_groups[0]["lr"]
    )
    fit.run()
    assert len(ratios) == 36
    assert ratios == pytest.approx([4.0] * 36)


class Recorder(TinyMethod):
    """Notes the order of the hooks and the progress of each step."""

    def build(self) -> None:
        super().build()
        self.calls: list[str] = []
        self.progress: list[float] = []

    def loss(self, step: Step):
        self.calls.append("loss" if self.training else "loss in eval mode")
        self.progress.append(step.progress)
        return super().loss(step)

    def after_backward(self, step: Step) -> None:
        assert self.heads[0].weight.grad is not None
        self.calls.append("after_backward")

    def clip_gradients(self) -> None:
        self.calls.append("clip")

    def after_step(self, step: Step) -> None:
        self.calls.append("after_step")


def test_order_of_hooks_and_progress() -> None:
    method = Recorder(tiny_method().scenario)
    Fit(method, tiny_task(count=10, size=4), Training(epochs=1)).run()
    assert method.calls == ["loss", "after_backward", "clip", "after_step"] * 3
    assert method.progress == [0.0, 0.5, 1.0]
    method.progress.clear()
    Fit(method, tiny_task(count=4, size=4), Training(epochs=1)).run()
    assert method.progress == [1.0]


def test_train_loss_is_a_mean_over_samples() -> None:
    """Of a batch of four and one of two, not of two batches."""
    method, task = tiny_method(), tiny_task(count=6, size=4)
    with torch.no_grad():
        expected = method.loss(Step(task, task.train.x, task.train.y)).item()
    fit = Fit(method, task, Training(lr=1e-9, lr_min=1e-9))
    assert fit.train_epoch() == pytest.approx(expected, rel=1e-5)


def killed_and_resumed(after: int) -> tuple[dict, dict]:
    """States at the end of an uninterrupted Fit and of one killed after so many epochs."""
    training = Training(epochs=6, patience=2)
    states = []
    saved: list[dict] = []
    for kill in (None, after):
        method, task = tiny_method(), tiny_task(shuffle=True)
        torch.manual_seed(3)
        fit = Fitter(method, task, training, save=saved.append)(method)
        fit.run(kill)
        if kill is not None:
            method, task = tiny_method(), tiny_task(shuffle=True)
            torch.manual_seed(99)
            fit = Fitter(method, task, training, saved=saved[-1])(method)
            fit.run()
        fit.restore_best()
        states.append({**method.state_dict(), "epoch": fit.epoch, "best": fit.best_loss, "lr": fit.lr})
    return states[0], states[1]


@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_killed_fit_ends_like_a_whole_one(after: int) -> None:
    whole, resumed = killed_and_resumed(after)
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]) if isinstance(value, torch.Tensor) else value == resumed[name]


def test_notes_and_fits_of_other_learners_survive() -> None:
    """What PathNet and CAT need: two Fits at once, one of them for a learner of its own."""
    saved: list[dict] = []
    method, other, task = tiny_method(), tiny_method(), tiny_task()
    fitter = Fitter(method, task, Training(epochs=4), save=saved.append)
    fitter.notes["generation"] = 2
    fitter(method, "first").run(1)
    second = fitter(other, "second").run(2)
    method2, other2 = tiny_method(), tiny_method()
    again = Fitter(method2, tiny_task(), Training(epochs=4), saved=saved[-1])
    assert again.notes == {"generation": 2}
    assert again(method2, "first").epoch == 1
    resumed = again(other2, "second")
    assert resumed.epoch == 2
    assert torch.equal(resumed.run().learner.heads[0].weight, second.run().learner.heads[0].weight)
    again.drop("second")
    assert again(other2, "second").epoch == 0


def test_a_cut_of_the_rate_goes_on_from_where_it_is(scripted) -> None:
    scripted(itertools.chain([1.0], itertools.repeat(2.0)))
    method = tiny_method()
    fit = Fit(method, tiny_task(), Training())
    best, seen = None, []
    fit.run(1)
    best = method.heads[0].weight.detach().clone()
    fit.after_epoch = lambda fit: seen.append(torch.equal(method.heads[0].weight, best))
    fit.run()
    assert len(seen) == 35
    assert not any(seen)


def test_learning_a_task_ends_on_its_best_epoch(scripted) -> None:
    """What `end_task` and the measurement then see."""
    scripted(itertools.chain([1.0], itertools.repeat(2.0)))
    method, task, seen = tiny_method(), tiny_task(), []
    fitter = Fitter(method, task, Training(epochs=3), watch=lambda fit: seen.append(method.heads[0].weight.clone()))
    method.learn(task, fitter)
    assert torch.equal(method.heads[0].weight, seen[0])
    assert not torch.equal(seen[0], seen[2])


def test_an_equal_loss_is_no_improvement(scripted) -> None:
    """Else a loss that stands still would go on for all 500 epochs, and end with the last of them."""
    scripted(itertools.repeat(1.0))
    fit = Fit(tiny_method(), tiny_task(), PAPER).run()
    assert fit.epoch == 36
    assert fit.best_epoch == 0


def test_every_epoch_trains_in_train_mode() -> None:
    """Validation in between leaves eval mode behind: dropout would be on in the first epoch alone."""
    method = Recorder(tiny_method().scenario)
    Fit(method, tiny_task(), Training(epochs=3)).run()
    assert method.calls.count("loss") == 9
    assert "loss in eval mode" not in method.calls


@pytest.mark.parametrize("preset", ["paper", "short"])
def test_the_best_epoch_is_restored_whatever_the_schedule(scripted, preset: str) -> None:
    scripted(itertools.chain([1.0], itertools.repeat(2.0)))
    method = tiny_method()
    fit = Fit(method, tiny_task(), PRESETS[preset]).run(1)
    best = method.heads[0].weight.detach().clone()
    fit.run().restore_best()
    assert torch.equal(method.heads[0].weight, best)


def test_first_epochs_are_for_networks_that_start_from_random_weights() -> None:
    training = replace(PRESETS["short"], epochs=2, first_epochs=5)
    method = tiny_method(tasks=2)
    assert [Fit(method, tiny_task(index), training).training.epochs for index in (0, 1)] == [5, 2]
    method.starts_anew = lambda task: True
    assert Fit(method, tiny_task(1), training).training.epochs == 5
    assert Fit(tiny_method(), tiny_task(), PAPER).training.epochs == PAPER.epochs


@pytest.mark.parametrize("schedule", ["cosine", "plateau"])
def test_the_learning_rate_rises_linearly_and_then_follows_its_schedule(schedule: str) -> None:
    seen: list[float] = []

    class Recorder(TinyMethod):
        def after_step(self, step: Step) -> None:
            seen.append(step.lr)

    training = Training(lr=0.4, lr_min=0.1, epochs=6, batch=5, schedule=schedule, warmup_epochs=2)
    fit = Fit(Recorder(tiny_method().scenario), tiny_task(size=5), training)
    assert len(fit.task.train) == 2
    fit.run(3)
    assert seen == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    fit.run()
    if schedule == "cosine":
        assert seen[-1] == pytest.approx(0.1)


def test_an_interrupted_warm_up_with_augmentation_goes_on_to_the_same_bits() -> None:
    training = Training(lr=0.4, epochs=5, batch=5, schedule="cosine", warmup_epochs=3, augment="crop-flip")
    whole = Fit(tiny_method(), tiny_task(size=5), training).run()
    first = Fit(tiny_method(), tiny_task(size=5), training).run(2)
    second = Fit(first.learner, tiny_task(size=5), training)
    second.load_state_dict(first.state_dict())
    second.run()
    for one, two in zip(whole.learner.parameters(), second.learner.parameters(), strict=True):
        assert torch.equal(one, two)


def test_augmentation_is_for_training_alone_and_changes_each_epoch() -> None:
    trained: list[torch.Tensor] = []
    validated: list[torch.Tensor] = []

    class Recorder(TinyMethod):
        def features(self, x: torch.Tensor, task: int) -> torch.Tensor:
            (trained if self.training else validated).append(x)
            return super().features(x, task)

    task = tiny_task(count=4, size=4)
    Fit(Recorder(tiny_method().scenario), task, Training(epochs=2, schedule="cosine", augment="crop-flip")).run()
    first, second = trained
    assert not torch.equal(first, task.train.images)
    assert not torch.equal(first, second)
    assert all(torch.equal(x, task.val.images) for x in validated)
