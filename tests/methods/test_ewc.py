"""EWC: golden Fisher and penalty, the running mean over tasks, and NCL at strength zero."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softmask import fisher_importance
from softmask.learning.fit import Fit
from softmask.learning.task import Task
from softmask.learning.training import Training
from softmask.methods.ewc import EWC
from tests.core.examples import linear
from tests.core.test_importance import FISHER_X, FISHER_Y, GOLDEN_A_HEAD
from tests.learning.toys import move, random_scenario, random_task, step_of, toy_scenario, toy_task
from tests.methods.comparing import built, learned, same_network


def golden(strength: float = 10.0) -> tuple[EWC, Task]:
    scenario = toy_scenario([linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])], [linear(GOLDEN_A_HEAD)] * 2)
    return EWC(scenario, EWC.Settings(strength=strength, fisher_batch=2)), toy_task(FISHER_X, FISHER_Y)


def test_golden_fisher_and_penalty() -> None:
    method, task = golden()
    method.end_task(task)
    weight, bias = method.importance.tensors()
    # Squares of single samples would give 3.75 and 1.0; gradients that pile up between batches more than that.
    torch.testing.assert_close(weight, torch.full((2, 2), 2.125))
    torch.testing.assert_close(bias, torch.full((2,), 0.5))
    move(method, weights=0.1, biases=0.2)
    assert method.train().penalty(step_of(task)).item() == pytest.approx(0.625, rel=1e-5)  # 1.25 without the one half
    method.after_backward(step_of(task))
    torch.testing.assert_close(method.backbone[0].weight.grad, torch.full((2, 2), 10 * 2.125 * 0.1))
    torch.testing.assert_close(method.backbone[0].bias.grad, torch.full((2,), 10 * 0.5 * 0.2))


def test_the_anchor_is_the_end_of_the_last_task_and_does_not_disturb_the_fisher() -> None:
    """The Fisher is that of the cross-entropy even where the penalty is large for weights far from the old anchor."""
    method, task = golden(strength=1e6)
    method.end_task(task)
    before = [tensor.clone() for tensor in method.importance.tensors()]
    move(method, weights=0.1, biases=0.2)
    second = toy_task(FISHER_X, FISHER_Y, index=1)
    plain = fisher_importance(
        method.backbone, second.train.batched(2), lambda x, y: F.cross_entropy(method.heads[1](method.backbone(x)), y)
    )
    method.end_task(second)
    for now, old, new in zip(method.importance.tensors(), before, plain.values(), strict=True):
        torch.testing.assert_close(now, (new + old) / 2)
    assert method.train().penalty(step_of(second)).item() == 0


@pytest.mark.parametrize(("past_tasks", "expected"), [(0, 4.0), (1, 2.5), (2, 2.0), (3, 1.75)])
def test_fishers_are_averaged_over_tasks(past_tasks: int, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a sum nor the mean of the last two."""
    method, _ = golden()
    for tensor in method.importance.tensors():
        tensor.fill_(1.0)
    four = {name: torch.full_like(tensor, 4.0) for name, tensor in method.importance.by_name().items()}
    monkeypatch.setattr(method, "measure", lambda task: four)
    method.end_task(toy_task(FISHER_X, FISHER_Y, index=past_tasks))
    assert all((tensor == expected).all() for tensor in method.importance.tensors())


def test_strength_zero_is_ncl_to_the_bit_over_two_tasks() -> None:
    plain = learned("ncl")
    assert same_network(learned("ewc", strength=0.0), plain)
    assert not same_network(learned("ewc", strength=1.0), plain)


def test_the_penalty_is_part_of_validation_unless_switched_off() -> None:
    method, task = golden()
    method.end_task(task)
    move(method, weights=0.1, biases=0.2)
    method.eval()
    without = EWC(method.scenario, EWC.Settings(strength=10.0, penalty_in_validation=False))
    without.load_state_dict(method.state_dict())
    with torch.inference_mode():
        with_penalty, plain = (each.validate(step_of(task))[0] for each in (method, without.eval()))
    assert (with_penalty - plain).item() == pytest.approx(0.625, rel=1e-4)
    assert without.train().penalty(step_of(task)) is not None


def test_all_gradients_are_clipped_together_with_the_penalty() -> None:
    method, task = golden()
    method.end_task(task)
    move(method, weights=100.0, biases=100.0)
    method.train().loss(step_of(task)).backward()
    method.after_backward(step_of(task))
    assert method.backbone[0].weight.grad.norm() > 100
    method.clip_gradients()
    norm = torch.cat([p.grad.flatten() for p in method.parameters()]).norm().item()
    assert norm == pytest.approx(100.0, rel=1e-4)


def test_dropout_is_on_while_the_fisher_is_measured() -> None:
    found = []
    for dropout, seed in ((True, 1), (True, 2), (False, 1), (False, 2)):
        method, (task,) = built("ewc", tasks=1, importance_dropout=dropout, **{"seeds.batches": seed})
        method.eval().end_task(task)
        found.append(method.importance.by_name()["fc1.layer.weight"])
        assert not any(part.training for part in method.modules())
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])


def test_a_penalty_that_will_overshoot_is_named_before_the_first_step() -> None:
    scenario = random_scenario(tasks=2)
    method, task = EWC(scenario, EWC.Settings(strength=100.0)), random_task()
    method.importance.tensors()[0][0, 0] = 1.0
    with pytest.warns(UserWarning, match=r"EWC with strength 100 may diverge at a learning rate of 0\.25"):
        Fit(method, task, Training())
    facts = method.end_task(task)
    entries = sum(p.numel() for p in method.backbone.parameters())
    assert facts == {"penalty_rate_largest": 25.0, "penalty_rate_above_2": pytest.approx(1 / entries)}


def test_a_penalty_that_is_stable_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    method = EWC(random_scenario(tasks=2), EWC.Settings(strength=7.9))
    for tensor in method.importance.tensors():
        tensor.fill_(1.0)
    Fit(method, random_task(), Training())
    assert not recwarn.list
    assert method.stability.penalty_rate_largest == pytest.approx(7.9 / 4)


def test_the_default_strength_overshoots_nearly_nowhere_where_a_task_was_learned_well() -> None:
    """HAT's 5000 does, at this rate by a factor of ten. How near to 2 the largest comes depends on the processor."""
    method = learned("ewc", **{"network.width": 0.25}, epochs=20, batch=16)
    assert 0 < method.stability.penalty_rate_largest < 4
    assert method.stability.penalty_rate_above_2 < 1e-4


def test_the_fisher_is_measured_in_the_batches_that_the_strength_was_chosen_for() -> None:
    assert EWC.Settings().fisher_batch == 20


def test_heads_carry_no_penalty() -> None:
    method = learned("ewc")
    watched = {name for name, _ in method.backbone.named_parameters()}
    assert set(method.importance.by_name()) == set(method.anchor.by_name()) == watched
    assert all(isinstance(head, nn.Linear) for head in method.heads)
