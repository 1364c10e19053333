"""Gates on units, and which weights lie between units in use."""

import math

import torch

from softmask.learning.networks import alexnet
from softmask.learning.unit_gates import between_used_units, gated, keep_only


def test_what_is_between_used_units_is_all_that_they_compute_with() -> None:
    """By trial: with all other units gated away, exactly the weights found shape the output."""
    torch.manual_seed(0)
    backbone = alexnet((3, 32, 32), width=1 / 16, drop1=0, drop2=0)
    used = [torch.rand(width) > 0.4 for width in backbone.widths]
    for block in backbone.blocks:  # no unit is silent
        torch.nn.init.uniform_(block.layer.weight, 0.01, 0.1)
    output = gated(backbone, torch.rand(4, 3, 32, 32), used)
    output.sum().backward()
    found = between_used_units(backbone, used)
    for name, parameter in backbone.named_parameters():
        assert torch.equal(parameter.grad != 0, found[name]), name
        assert found[name].shape == parameter.shape


def test_soft_gates_multiply_and_hard_ones_select() -> None:
    backbone = alexnet((1, 28, 28), width=1 / 16, drop1=0, drop2=0)
    x = torch.rand(2, 1, 28, 28)
    ones = [torch.ones(width) for width in backbone.widths]
    assert torch.equal(gated(backbone, x, ones), backbone(x))
    assert torch.equal(gated(backbone, x, [one.bool() for one in ones]), backbone(x))
    halves = [*ones[:-1], ones[-1] / 2]
    torch.testing.assert_close(gated(backbone, x, halves), backbone(x) / 2)


def test_gradients_that_are_not_kept_become_exact_zeros() -> None:
    parameter = torch.zeros(3, requires_grad=True)
    parameter.grad = torch.tensor([1.0, math.inf, math.nan])
    keep_only({parameter: torch.tensor([1.0, 0.0, 0.0]), torch.zeros(2): torch.zeros(2)})
    assert parameter.grad.tolist() == [1.0, 0.0, 0.0]
