"""Equations 5 to 7: what is remembered, and how it scales gradients."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from softmask import SoftMask
from tests.core.examples import same, small_backbone, small_batches, with_gradients


def two_tensors() -> tuple[nn.Linear, SoftMask]:
    backbone = nn.Linear(3, 2)
    return backbone, SoftMask(backbone)


# ---------------------------------------------------------------------------------------------- accumulation


def test_starts_with_zero_importance() -> None:
    backbone, mask = two_tensors()
    assert set(mask.importance) == {"weight", "bias"}
    assert all(not tensor.any() and tensor.dtype == torch.float32 for tensor in mask.importance.values())
    assert all(not tensor.requires_grad for tensor in mask.importance.values())
    assert mask.mean() == mask.blocked() == 0
    assert mask.backbone is backbone


def test_update_is_the_elementwise_maximum() -> None:
    _, mask = two_tensors()
    first = {"weight": torch.tensor([[0.1, 0.9, 0.5], [0.0, 1.0, 0.3]]), "bias": torch.tensor([0.2, 0.0])}
    second = {"weight": torch.tensor([[0.2, 0.8, 0.5], [0.1, 0.0, 0.2]])}
    mask.update(first)
    mask.update(second)
    assert torch.equal(mask.importance["weight"], torch.tensor([[0.2, 0.9, 0.5], [0.1, 1.0, 0.3]]))
    assert torch.equal(mask.importance["bias"], first["bias"])


def test_consolidate_never_forgets() -> None:
    backbone, heads = small_backbone(), [nn.Linear(6, 3) for _ in range(3)]
    mask = SoftMask(backbone)
    before = dict(mask.importance)
    for task, head in enumerate(heads):
        mask.consolidate(small_batches(seed=task), head, heads[:task])
        assert all((mask.importance[name] >= before[name]).all() for name in before)
        assert all((tensor <= 1).all() for tensor in mask.importance.values())
        before = dict(mask.importance)


@pytest.mark.parametrize("wrong", [5.0, -0.1, float("nan")])
def test_a_state_out_of_range_is_refused_as_a_whole(wrong: float) -> None:
    """Importance 5 would turn gradients around."""
    backbone = small_backbone()
    mask, other = SoftMask(backbone), SoftMask(small_backbone())
    mask.update({name: torch.full_like(p, 0.5) for name, p in backbone.named_parameters()})
    other.importance["3.bias"] = torch.full_like(other.importance["3.bias"], wrong)
    with pytest.raises(ValueError, match=r"3\.bias"):
        mask.load_state_dict(other.state_dict())
    assert mask.mean() == 0.5


def test_what_was_remembered_is_no_alias_of_what_was_given() -> None:
    _, mask = two_tensors()
    given_importance = {"weight": torch.full((2, 3), 0.5), "bias": torch.full((2,), 0.5)}
    mask.update(given_importance)
    given_importance["weight"].fill_(1)
    assert mask.mean() == 0.5
    kept = mask.state_dict()
    mask.update({"weight": torch.ones(2, 3)})
    assert (kept["importance"]["weight"] == 0.5).all()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"nonsense": torch.ones(2)}, "nonsense"),
        ({"bias": torch.ones(3)}, r"'bias' has shape \(3,\)"),
        ({"bias": torch.ones(2, 1)}, "bias"),
        ({"bias": torch.tensor([0.5, math.nan])}, "bias"),
        ({"bias": torch.tensor([0.5, 1.0001])}, "bias"),
        ({"bias": torch.tensor([0.5, -0.1])}, "bias"),
        ({"bias": torch.tensor([0.5, math.inf])}, "bias"),
    ],
)
def test_a_bad_update_is_refused_as_a_whole(bad: dict[str, Tensor], message: str) -> None:
    _, mask = two_tensors()
    mask.update({"weight": torch.full((2, 3), 0.25)})
    before = dict(mask.importance)
    with pytest.raises(ValueError, match=message):
        mask.update({"weight": torch.full((2, 3), 0.5), **bad})
    assert same(mask.importance, before)
    assert mask.mean() == pytest.approx(0.25 * 6 / 8)


def test_a_refused_update_names_every_difference() -> None:
    _, mask = two_tensors()
    with pytest.raises(ValueError, match="importance does not fit") as refused:
        mask.update({"a": torch.ones(1), "b": torch.ones(1), "weight": torch.ones(1), "bias": torch.ones(5)})
    assert all(name in str(refused.value) for name in ("'a'", "'b'", "'weight'", "'bias'", "(5,)", "(2, 3)"))


def test_the_mean_is_over_all_entries_and_blocked_counts_exact_ones() -> None:
    _, mask = two_tensors()
    almost = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    weight = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    mask.update({"weight": weight, "bias": torch.stack([torch.tensor(1.0), almost])})
    assert mask.mean() == pytest.approx(4 / 8)  # the mean of the tensors' means is 2/3
    assert mask.blocked() == 3 / 8


# ---------------------------------------------------------------------------------------------- hard masks


def test_a_threshold_is_strict_and_the_soft_importance_is_kept() -> None:
    backbone = nn.Linear(3, 1, bias=False)
    mask = SoftMask(backbone, threshold=0.5)
    mask.update({"weight": torch.tensor([[0.4, 0.5, 0.51]])})
    backbone.weight.grad = torch.full((1, 3), 3.0)
    mask.apply()
    assert backbone.weight.grad.tolist() == [[3.0, 3.0, 0.0]]
    assert mask.mean() == mask.blocked() == pytest.approx(1 / 3)
    assert torch.equal(mask.importance["weight"], torch.tensor([[0.4, 0.5, 0.51]]))


@given(st.floats(0.0, 1.0, width=32), st.integers(0, 1000))
def test_thresholding_commutes_with_the_maximum(threshold: float, seed: int) -> None:
    torch.manual_seed(seed)
    backbone, head, tasks = nn.Linear(3, 2), nn.Linear(2, 2), [torch.rand(2, 3) for _ in range(3)]
    afterwards, each = SoftMask(backbone, threshold), SoftMask(backbone)
    for importance in tasks:
        afterwards.update({"weight": importance})
        each.update({"weight": (importance > threshold).float()})
    assert afterwards.mean() == pytest.approx(each.mean())
    gradients = with_gradients(backbone, head)
    afterwards.apply(head)
    once = [p.grad.clone() for module in (backbone, head) for p in module.parameters()]
    for parameter, gradient in zip([*backbone.parameters(), *head.parameters()], gradients, strict=True):
        parameter.grad = gradient
    each.apply(head)
    for parameter, gradient in zip([*backbone.parameters(), *head.parameters()], once, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize(("threshold", "factor"), [(1.0, 1.0), (0.0, 0.0)])
def test_the_bounds_of_the_threshold(threshold: float, factor: float) -> None:
    """1 blocks nothing, not even importance 1; 0 blocks whatever has importance, and then the head too."""
    backbone, head = nn.Linear(3, 2), nn.Linear(2, 2)
    mask = SoftMask(backbone, threshold)
    mask.update({"weight": torch.ones(2, 3), "bias": torch.full((2,), 1e-30)})
    gradients = with_gradients(backbone, head)
    mask.apply(head)
    for parameter, gradient in zip([*backbone.parameters(), *head.parameters()], gradients, strict=True):
        assert torch.equal(parameter.grad, gradient * factor)
    assert mask.mean() == mask.blocked() == 1 - factor


def test_a_new_threshold_takes_effect() -> None:
    backbone = nn.Linear(2, 1, bias=False)
    mask = SoftMask(backbone, threshold=0.5)
    mask.update({"weight": torch.tensor([[0.4, 0.6]])})
    backbone.weight.grad = torch.ones(1, 2)
    mask.apply()
    assert (mask.mean(), backbone.weight.grad.tolist()) == (0.5, [[1.0, 0.0]])
    mask.threshold = 0.7
    backbone.weight.grad = torch.ones(1, 2)
    mask.apply()
    assert (mask.mean(), backbone.weight.grad.tolist()) == (0.0, [[1.0, 1.0]])


# ---------------------------------------------------------------------------------------------- scaling gradients


def test_apply_scales_exactly() -> None:
    backbone, head = nn.Linear(3, 2), nn.Linear(2, 4)
    mask = SoftMask(backbone)
    mask.update({"weight": torch.rand(2, 3), "bias": torch.rand(2)})
    gradients = with_gradients(backbone, head)
    mask.apply(head)
    f = 1 - torch.cat([mask.importance["weight"].flatten(), mask.importance["bias"]]).double().mean().item()
    assert torch.equal(backbone.weight.grad, gradients[0] * (1 - mask.importance["weight"]))
    assert torch.equal(backbone.bias.grad, gradients[1] * (1 - mask.importance["bias"]))
    torch.testing.assert_close(head.weight.grad, gradients[2] * f)
    torch.testing.assert_close(head.bias.grad, gradients[3] * f)


def test_one_step_by_hand_is_the_papers_step() -> None:
    backbone, head = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 3)
    mask = SoftMask(backbone)
    mask.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
    before = [p.detach().clone() for p in [*backbone.parameters(), *head.parameters()]]
    x, y = small_batches()[0]
    F.cross_entropy(head(backbone(x)), y).backward()
    gradients = [p.grad.clone() for p in [*backbone.parameters(), *head.parameters()]]
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.3)
    mask.apply(head)
    optimizer.step()
    factors = [*(1 - gamma for gamma in mask.importance.values()), 1 - mask.mean(), 1 - mask.mean()]
    for parameter, old, gradient, factor in zip(
        optimizer.param_groups[0]["params"], before, gradients, factors, strict=True
    ):
        torch.testing.assert_close(parameter.detach(), old - 0.3 * factor * gradient)


def test_without_a_head_only_the_backbone_is_scaled() -> None:
    backbone, head = nn.Linear(3, 2), nn.Linear(2, 4)
    mask = SoftMask(backbone)
    mask.update({"weight": torch.ones(2, 3)})
    gradients = with_gradients(backbone, head)
    mask.apply()
    assert not backbone.weight.grad.any()
    assert torch.equal(head.weight.grad, gradients[2])


def test_a_head_may_be_an_iterable_of_parameters() -> None:
    backbone, head = nn.Linear(3, 2), nn.Linear(2, 4)
    mask = SoftMask(backbone)
    mask.update({"weight": torch.full((2, 3), 0.5), "bias": torch.full((2,), 0.5)})
    for given_head in (head, list(head.parameters()), head.parameters(), iter([head.weight, head.bias])):
        gradients = with_gradients(backbone, head)
        mask.apply(given_head)
        assert torch.equal(head.weight.grad, gradients[2] * 0.5)
        assert torch.equal(head.bias.grad, gradients[3] * 0.5)


def test_parameters_without_a_gradient_are_passed_over() -> None:
    backbone, head = nn.Linear(3, 2), nn.Linear(2, 4)
    mask = SoftMask(backbone)
    mask.update({"weight": torch.ones(2, 3)})
    mask.apply(head)
    assert all(p.grad is None for p in [*backbone.parameters(), *head.parameters()])


def test_a_parameter_of_head_and_backbone_is_scaled_once() -> None:
    backbone, head = nn.Linear(3, 3), nn.Linear(3, 3)
    head.weight = backbone.weight
    mask = SoftMask(backbone)
    mask.update({"weight": torch.full((3, 3), 0.5)})
    backbone.weight.grad = torch.ones(3, 3)
    mask.apply(head)
    assert (backbone.weight.grad == 0.5).all()


def test_a_gradient_keeps_its_identity() -> None:
    """Fused gradient buffers (of data parallelism, for one) are views: they must be scaled where they lie."""
    backbone = nn.Linear(3, 2)
    mask = SoftMask(backbone)
    mask.update({"weight": torch.rand(2, 3)})
    with_gradients(backbone)
    gradient = backbone.weight.grad
    mask.apply()
    assert backbone.weight.grad is gradient


@pytest.mark.parametrize("rows_twice", [False, True])
def test_sparse_gradients_are_scaled_and_stay_sparse(rows_twice: bool) -> None:
    backbone = nn.Embedding(5, 3, sparse=True)
    mask = SoftMask(backbone)
    mask.update({"weight": torch.rand(5, 3)})
    words = torch.tensor([1, 4, 1]) if rows_twice else torch.tensor([1, 4])
    (backbone(words) * torch.randn(len(words), 3)).sum().backward()
    before = backbone.weight.grad.to_dense()
    mask.apply()
    assert backbone.weight.grad.is_sparse
    torch.testing.assert_close(backbone.weight.grad.to_dense(), before * (1 - mask.importance["weight"]))


# ---------------------------------------------------------------------------------------------- no stale numbers


def test_a_sparse_first_task_is_as_without_a_mask_to_the_bit() -> None:
    """Rows that stand in a batch many times are added up by the optimizer, not before."""
    torch.manual_seed(1)
    words = nn.Embedding(20, 8, sparse=True)
    masked = copy.deepcopy(words)
    for module in (words, masked):
        torch.manual_seed(2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        handle = SoftMask(masked).attach(optimizer) if module is masked else None
        for _ in range(20):
            optimizer.zero_grad()
            module(torch.randint(20, (64,))).square().sum().backward()
            optimizer.step()
        if handle:
            handle.remove()
    assert torch.equal(words.weight, masked.weight)


def test_a_head_may_be_one_parameter_but_nothing_else() -> None:
    backbone, head = nn.Linear(3, 2), nn.Linear(2, 2)
    mask = SoftMask(backbone)
    mask.update({name: torch.full_like(p, 0.5) for name, p in backbone.named_parameters()})
    gradients = with_gradients(head)
    mask.apply(head.weight)
    torch.testing.assert_close(head.weight.grad, gradients[0] / 2)
    torch.testing.assert_close(head.bias.grad, gradients[1])
    for wrong in ([head], head.named_parameters()):
        with pytest.raises(TypeError, match="head"):
            mask.apply(wrong)  # type: ignore[arg-type]


def _factor_and_mean(mask: SoftMask, backbone: nn.Linear) -> tuple[float, float]:
    backbone.weight.grad = torch.ones_like(backbone.weight)
    mask.apply()
    return backbone.weight.grad[0, 0].item(), mask.mean()


def test_importance_that_the_user_changes_takes_effect() -> None:
    backbone = nn.Linear(2, 2, bias=False)
    mask = SoftMask(backbone)
    assert _factor_and_mean(mask, backbone) == (1.0, 0.0)
    mask.importance["weight"].fill_(0.5)
    assert _factor_and_mean(mask, backbone) == (0.5, 0.5)
    mask.importance["weight"] = torch.full((2, 2), 0.25)
    assert _factor_and_mean(mask, backbone) == (0.75, 0.25)
    mask.importance = {"weight": torch.full((2, 2), 0.75)}
    assert _factor_and_mean(mask, backbone) == (0.25, 0.75)
    mask.update({"weight": torch.ones(2, 2)})
    assert _factor_and_mean(mask, backbone) == (0.0, 1.0)


def test_importance_that_was_made_in_inference_mode_takes_effect() -> None:
    backbone = nn.Linear(2, 2, bias=False)
    with torch.inference_mode():
        mask = SoftMask(backbone)
        mask.update({"weight": torch.full((2, 2), 0.5)})
    assert _factor_and_mean(mask, backbone) == (0.5, 0.5)
    with torch.inference_mode():
        mask.importance["weight"] = torch.full((2, 2), 0.25)
        assert mask.mean() == 0.25
        mask.importance["weight"].fill_(0.75)
    assert _factor_and_mean(mask, backbone) == (0.25, 0.75)


def test_importance_of_a_wrong_shape_is_refused_at_use() -> None:
    backbone, mask = two_tensors()
    with_gradients(backbone)
    mask.importance["weight"] = torch.ones(3, 2)
    with pytest.raises(ValueError, match="'weight'"):
        mask.apply()
