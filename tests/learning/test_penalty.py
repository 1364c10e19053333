"""Penalties by hand against autograd."""

import pytest
import torch

from softmask.learning import penalty
from softmask.learning.per_parameter import blocks, inner_product

SHAPES = [(5, 3), (5,), (4, 2, 3, 3), (1, 1)]


def tensors(seed: int, positive: bool = False) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    found = tuple(torch.randn(shape, generator=generator) for shape in SHAPES)
    return tuple(tensor.abs() for tensor in found) if positive else found


@pytest.fixture(params=[1, 4, 2**16])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("softmask.learning.per_parameter.BLOCK", request.param)
    return request.param


def test_quadratic(block: int) -> None:
    parameters = tuple(tensor.requires_grad_() for tensor in tensors(0))
    anchors, curvatures = tensors(1), tensors(2, positive=True)
    every = zip(parameters, anchors, curvatures, strict=True)
    value = sum((c * (p - a).square()).sum() for p, a, c in every) / 2
    gradients = torch.autograd.grad(3 * value, parameters)
    torch.testing.assert_close(penalty.quadratic_penalty(parameters, anchors, curvatures), value.detach())
    penalty.add_quadratic_gradient(parameters, anchors, curvatures, scale=3.0)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_absolute(block: int) -> None:
    parameters = tuple(tensor.requires_grad_() for tensor in tensors(0))
    anchors, slopes = tensors(1), tensors(2, positive=True)
    anchors[0][0, 0] = parameters[0][0, 0].detach()
    value = sum((s * (p - a).abs()).sum() for p, a, s in zip(parameters, anchors, slopes, strict=True))
    gradients = torch.autograd.grad(3 * value, parameters)
    torch.testing.assert_close(penalty.absolute_penalty(parameters, anchors, slopes), value.detach())
    penalty.add_absolute_gradient(parameters, anchors, slopes, scale=3.0)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert parameters[0].grad[0, 0] == 0


def test_blocks_are_small_views_of_everything(block: int) -> None:
    whole = [torch.zeros(8, 3), torch.zeros(2)]
    for left, right in blocks(whole, [torch.ones(8, 3), torch.ones(2)]):
        assert left.numel() <= max(block, left[0].numel())
        left.add_(right)
    assert all((tensor == 1).all() for tensor in whole)


def test_gradients_are_added_to_those_that_are_there() -> None:
    parameter = torch.ones(2, requires_grad=True)
    parameter.grad = torch.tensor([5.0, 6.0])
    penalty.add_quadratic_gradient((parameter,), (torch.zeros(2),), (torch.ones(2),), scale=2.0)
    assert parameter.grad.tolist() == [7.0, 8.0]


def test_inner_product_keeps_the_sign_of_a_small_sum() -> None:
    """Summed in float32 over the tensors, the small terms would be lost."""
    left = [torch.tensor([2.0**30]), torch.tensor([-1.0]), torch.tensor([-(2.0**30)])]
    assert inner_product(left, [torch.ones(1)] * 3).item() == -1.0
