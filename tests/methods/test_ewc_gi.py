"""EWC-GI: SPG's importance, accumulated by maximum, in EWC's penalty."""

import pytest
import torch
from torch import nn

from softmask.methods.ewc_gi import EWCGI
from tests.core.test_importance import golden_b
from tests.learning.toys import Chain, move, step_of, toy_scenario, toy_task
from tests.methods.comparing import learned, network, same_network


def golden() -> tuple[EWCGI, object]:
    """Golden B of the specification: two batches of unequal size, an old head with three classes."""
    backbone, head, (old,), batches = golden_b(Chain)
    method = EWCGI(toy_scenario(list(backbone), [old, head]), EWCGI.Settings(strength=2.0))
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return method, toy_task(x, y, index=1)


def test_golden_penalty() -> None:
    method, task = golden()
    method.end_task(task)
    mean = torch.cat([tensor.flatten() for tensor in method.importance.tensors()]).mean().item()
    assert mean == pytest.approx(0.625761, abs=1e-6)  # old heads included
    move(method, weights=0.1, biases=0.1)
    assert method.train().penalty(step_of(task)).item() == pytest.approx(0.106379, abs=2e-6)
    assert method.eval().penalty(step_of(task)).item() == pytest.approx(0.106379, abs=2e-6)  # in validation, as in EWC


def test_all_gradients_are_clipped_as_in_ewc() -> None:
    method, _ = golden()
    for parameter in method.parameters():
        parameter.grad = torch.full_like(parameter, 1000.0)
    method.clip_gradients()
    assert torch.cat([p.grad.flatten() for p in method.parameters()]).norm().item() == pytest.approx(100.0, rel=1e-4)


def test_importance_accumulates_by_maximum() -> None:
    method, task = golden()
    method.end_task(task)
    once = [tensor.clone() for tensor in method.importance.tensors()]
    method.importance.tensors()[0][0, 0] = 1.0
    move(method, weights=0.05, biases=0.0)
    method.end_task(task)
    for before, now in zip(once, method.importance.tensors(), strict=True):
        assert (now >= before).all()
    assert method.importance.tensors()[0][0, 0] == 1.0  # EWC's mean would lower it


def test_the_anchor_follows_the_last_task() -> None:
    method, task = golden()
    method.end_task(task)
    move(method, weights=0.1, biases=0.1)
    method.end_task(task)
    assert method.train().penalty(step_of(task)).item() == 0


def test_strength_zero_is_ncl_to_the_bit_over_two_tasks() -> None:
    plain = learned("ncl")
    assert same_network(learned("ewc-gi", strength=0.0), plain)
    assert not same_network(learned("ewc-gi"), plain)


def test_first_task_has_the_importance_of_spg() -> None:
    """And no gradient is masked: the weights are those of plain training too."""
    changes = {"drop1": 0.0, "drop2": 0.0}
    ours, spg = learned("ewc-gi", tasks=1, **changes), learned("spg", tasks=1, **changes)
    assert same_network(ours, spg)
    for name, importance in ours.importance.by_name().items():
        assert torch.equal(importance, spg.mask.importance[name])
    assert isinstance(ours.heads, nn.ModuleList)
    assert network(ours)


def test_the_range_ends_where_plain_sgd_is_still_stable() -> None:
    search = EWCGI.Settings.__dataclass_fields__["strength"].metadata["search"]
    assert search["high"] * 0.25 <= 2
