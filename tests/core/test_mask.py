"""Equations 5 to 7: what is remembered, how it scales gradients, and how it survives a restart."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from softmask import SoftMask
from tests.core.examples import same, small_backbone, small_batches
from tests.pretended_device import DEVICE, pretended_device


def two_tensors() -> tuple[nn.Linear, SoftMask]:
    backbone = nn.Linear(3, 2)
    return backbone, SoftMask(backbone)


def with_gradients(*modules: nn.Module) -> list[Tensor]:
    """Fills every `.grad` with random numbers; returns copies."""
    parameters = [p for module in modules for p in module.parameters()]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return [parameter.grad.clone() for parameter in parameters]


def saved_and_loaded(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


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
    with pytest.raises(ValueError, match=r"'3\.bias' must lie in 0\.\.1"):
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


@given(st.floats(-0.5, 1.5, width=32), st.integers(0, 1000))
def test_thresholding_commutes_with_the_maximum(threshold: float, seed: int) -> None:
    torch.manual_seed(seed)
    backbone, head, tasks = nn.Linear(3, 2), nn.Linear(2, 2), [torch.rand(2, 3) for _ in range(3)]
    afterwards, each = SoftMask(backbone, threshold), SoftMask(backbone)
    for importance in tasks:
        afterwards.update({"weight": importance})
        each.update({"weight": (importance > threshold).float(), "bias": torch.full((2,), float(threshold < 0))})
    assert afterwards.mean() == pytest.approx(each.mean())
    gradients = with_gradients(backbone, head)
    afterwards.apply(head)
    once = [p.grad.clone() for module in (backbone, head) for p in module.parameters()]
    for parameter, gradient in zip([*backbone.parameters(), *head.parameters()], gradients, strict=True):
        parameter.grad = gradient
    each.apply(head)
    for parameter, gradient in zip([*backbone.parameters(), *head.parameters()], once, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize(("threshold", "factor"), [(1.0, 1.0), (-0.1, 0.0)])
def test_the_bounds_of_the_threshold(threshold: float, factor: float) -> None:
    """1 blocks nothing, not even importance 1; below 0 blocks everything, the head too."""
    backbone, head = nn.Linear(3, 2), nn.Linear(2, 2)
    mask = SoftMask(backbone, threshold)
    mask.update({"weight": torch.ones(2, 3)})
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


# ---------------------------------------------------------------------------------------------- names and changes


def test_a_backbone_without_anything_to_protect_is_refused() -> None:
    for backbone in (nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)):
        with pytest.raises(ValueError, match="no parameter"):
            SoftMask(backbone)


def test_a_parameter_that_is_unfrozen_later_joins() -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    backbone[0].requires_grad_(False)
    mask = SoftMask(backbone)
    assert set(mask.importance) == {"3.weight", "3.bias"}
    mask.consolidate(small_batches(), head)
    kept = dict(mask.importance)
    backbone[0].requires_grad_(True)
    gradients = with_gradients(backbone)
    mask.apply()
    assert torch.equal(backbone[0].weight.grad, gradients[0])  # it has no importance yet
    assert torch.equal(backbone[3].weight.grad, gradients[2] * (1 - kept["3.weight"]))
    mask.consolidate(small_batches(seed=2), nn.Linear(6, 3), [head])
    assert set(mask.importance) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert mask.importance["0.weight"].any()


def test_a_parameter_that_is_frozen_later_keeps_its_importance() -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask = SoftMask(backbone)
    mask.consolidate(small_batches(), head)
    kept = dict(mask.importance)
    backbone[0].requires_grad_(False)
    mask.consolidate(small_batches(seed=2), nn.Linear(6, 3), [head])
    assert torch.equal(mask.importance["0.weight"], kept["0.weight"])
    assert not torch.equal(mask.importance["3.weight"], kept["3.weight"])


class Wrapped(nn.Module):
    """Names like those of the wrappers of torch, inside a backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"module": nn.Linear(4, 6)})
        self.block["module"].register_module("_orig_mod", nn.Linear(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.block["module"](x)


def test_names_are_without_the_wrappers_own() -> None:
    plain = small_backbone()
    assert set(SoftMask(nn.DataParallel(plain)).importance) == set(SoftMask(plain).importance)
    # Without its own parts two parameters would share a name: then the names stay as they are.
    assert len(SoftMask(Wrapped()).importance) == 4


def test_names_do_not_depend_on_activation_checkpointing() -> None:
    plain = small_backbone()
    names = set(SoftMask(plain).importance)
    plain[0] = checkpoint_wrapper(plain[0])
    assert "0._checkpoint_wrapped_module.weight" in dict(plain.named_parameters())
    assert set(SoftMask(plain).importance) == names


def test_the_mask_of_a_wrapped_backbone_loads_into_a_plain_one() -> None:
    plain = small_backbone()
    wrapped = SoftMask(nn.DataParallel(plain))
    wrapped.consolidate(small_batches(), nn.Linear(6, 3))
    mask = SoftMask(plain)
    mask.load_state_dict(wrapped.state_dict())
    assert same(mask.importance, wrapped.importance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_backbone_may_be_converted_later(dtype: torch.dtype) -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask = SoftMask(backbone)
    mask.consolidate(small_batches(), head)
    kept = dict(mask.importance)
    backbone.to(dtype)
    head.to(dtype)
    gradients = with_gradients(backbone, head)
    mask.apply(head)
    assert backbone[0].weight.grad.dtype == dtype
    expected = (gradients[0].double() * (1 - kept["0.weight"]).double()).to(dtype)
    torch.testing.assert_close(backbone[0].weight.grad, expected)
    mask.consolidate([(x.to(dtype), y) for x, y in small_batches(seed=2)], head, [head])
    assert all(tensor.dtype == torch.float32 for tensor in mask.importance.values())
    assert all((mask.importance[name] >= kept[name]).all() for name in kept)


def test_half_precision_does_not_round_a_small_factor_away() -> None:
    """1 - 0.999 is 0.001; in bfloat16 the importance itself would be 1 and block what may still move."""
    backbone = nn.Linear(2, 2, bias=False).bfloat16()
    mask = SoftMask(backbone)
    mask.update({"weight": torch.full((2, 2), 0.999)})
    backbone.weight.grad = torch.ones(2, 2, dtype=torch.bfloat16)
    mask.apply()
    torch.testing.assert_close(backbone.weight.grad.float(), torch.full((2, 2), 0.001), rtol=0.01, atol=0)
    assert mask.blocked() == 0


# ---------------------------------------------------------------------------------------------- restart and copies


@pytest.mark.parametrize("threshold", [None, 0.6])
def test_a_mask_survives_a_restart(threshold: float | None) -> None:
    backbone = small_backbone()
    mask = SoftMask(backbone, threshold)
    mask.consolidate(small_batches(), nn.Linear(6, 3))
    state = saved_and_loaded(mask.state_dict())
    fresh = SoftMask(small_backbone())
    with_gradients(fresh.backbone)
    fresh.apply()
    assert fresh.mean() == 0
    fresh.load_state_dict(state)
    assert (fresh.threshold, fresh.mean(), fresh.blocked()) == (threshold, mask.mean(), mask.blocked())
    assert same(fresh.importance, mask.importance)
    gradients = with_gradients(fresh.backbone)
    fresh.apply()
    assert torch.equal(fresh.backbone[0].weight.grad, gradients[0] * mask.factor("0.weight", backbone[0].weight))
    state["importance"]["0.weight"].fill_(1)  # what was loaded is not what the caller still holds
    assert same(fresh.importance, mask.importance)


def test_a_state_of_another_backbone_is_refused_with_every_difference() -> None:
    other = SoftMask(nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 6), nn.Linear(6, 6)))
    mask = SoftMask(small_backbone())
    mask.update({"0.bias": torch.rand(8)})
    before = dict(mask.importance)
    with pytest.raises(ValueError, match="does not fit") as refused:
        mask.load_state_dict(other.state_dict())
    text = str(refused.value)
    assert all(name in text for name in ("'0.weight'", "'0.bias'", "'2.weight'", "'2.bias'", "'3.weight'", "(7, 4)"))
    with pytest.raises(ValueError, match=r"no importance of '3\.bias'.*before the layer is made trainable"):
        mask.load_state_dict({**mask.state_dict(), "importance": {k: v for k, v in before.items() if k != "3.bias"}})
    assert same(mask.importance, before)


@pytest.mark.parametrize("version", [0, 2, None])
def test_another_version_of_the_state_is_refused(version: int | None) -> None:
    mask = SoftMask(small_backbone())
    state = {**mask.state_dict(), "version": version}
    with pytest.raises(ValueError, match="version"):
        mask.load_state_dict(state)


def test_a_restart_may_find_frozen_what_was_trainable() -> None:
    backbone = small_backbone()
    mask = SoftMask(backbone)
    mask.consolidate(small_batches(), nn.Linear(6, 3))
    again = small_backbone()
    again[0].requires_grad_(False)
    fresh = SoftMask(again)
    fresh.load_state_dict(mask.state_dict())
    again[0].requires_grad_(True)
    assert same(fresh.importance, mask.importance)
    assert set(fresh.parameters()) == set(mask.importance)


def test_copies_are_independent_and_attached_to_nothing() -> None:
    backbone = small_backbone()
    mask = SoftMask(backbone, threshold=0.3)
    mask.consolidate(small_batches(), nn.Linear(6, 3))
    mask.apply()
    optimizer = torch.optim.SGD(backbone.parameters(), lr=0.1)
    with mask.attach(optimizer):
        copies = [copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))]
    for other in copies:
        assert same(other.importance, mask.importance)
        assert (other.threshold, other.mean()) == (0.3, mask.mean())
        assert not other.attached
        with other.attach(torch.optim.SGD(other.backbone.parameters(), lr=0.1)):
            other.update({"0.bias": torch.ones(8)})
        assert other.mean() != mask.mean()


def test_batches_may_come_from_a_generator() -> None:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield from small_batches()

    backbone, head, old = small_backbone(), nn.Linear(6, 3), [nn.Linear(6, 2) for _ in range(3)]
    listed, generated = SoftMask(backbone), SoftMask(backbone)
    listed.consolidate(small_batches(), head, old)
    generated.consolidate(batches(), head, old)
    assert same(listed.importance, generated.importance)


# ------------------------------------------------------------------------------------------------- other devices


def test_importance_follows_a_backbone_that_is_moved() -> None:
    backbone, head, batches = small_backbone(), nn.Linear(6, 3), small_batches()
    here, there = copy.deepcopy(backbone), copy.deepcopy(backbone)
    expected, mask = SoftMask(here), SoftMask(there)
    expected.consolidate(batches, head)
    with pretended_device():
        there.to(DEVICE)
        mask.consolidate([(x.to(DEVICE), y.to(DEVICE)) for x, y in batches], copy.deepcopy(head).to(DEVICE))
        assert {tensor.device for tensor in mask.importance.values()} == {DEVICE}
        assert {mask.factor(name, p).device for name, p in mask.parameters().items()} == {DEVICE}
        found = {name: tensor.to("cpu") for name, tensor in mask.importance.items()}
    assert same(found, dict(expected.importance))


def test_complex_parameters_are_refused_in_words() -> None:
    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))

    with pytest.raises(TypeError, match="complex parameters cannot be soft-masked: weight"):
        SoftMask(Waves())
    beside = nn.Sequential(small_backbone(), Waves().requires_grad_(False))
    assert "1.weight" not in SoftMask(beside).importance, "what is frozen needs no mask"
    backbone, head = small_backbone(), Waves()
    with pytest.raises(TypeError, match="complex"):
        SoftMask(backbone).attach(torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1), head)


def test_a_layer_of_another_size_is_told_in_words() -> None:
    backbone = small_backbone()
    mask = SoftMask(backbone)
    mask.update({name: torch.full_like(p, 0.5) for name, p in backbone.named_parameters()})
    backbone[0] = nn.Linear(4, 9)
    optimizer = torch.optim.Adam(backbone.parameters())
    for parameter in backbone.parameters():
        parameter.grad = torch.ones_like(parameter)
    with mask.attach(optimizer), pytest.raises(ValueError, match=r"'0.weight' has shape \(9, 4\), but its importance"):
        optimizer.step()
    with pytest.raises(ValueError, match=r"'5.weight' is not in the backbone"):
        mask.update({"5.weight": torch.zeros(3)})
