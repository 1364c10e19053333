"""Two learning rates in one optimizer."""

from softmask.learning.parts.own_rate import sgd_with_own_rate
from softmask.methods.ncl import NCL
from tests.methods.isolation import made


def test_those_apart_have_their_own_rate_and_frozen_ones_none() -> None:
    method = made(NCL)
    method.heads[1].requires_grad_(False)
    apart = [*method.heads[0].parameters(), *method.heads[1].parameters()]
    optimizer = sgd_with_own_rate(method, apart, 0.5, 0.1)
    first, second = optimizer.param_groups
    assert (first["lr"], second["lr"]) == (0.5, 0.05)
    assert [p.shape for p in second["params"]] == [p.shape for p in method.heads[0].parameters()]
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in method.parameters() if p.requires_grad}
