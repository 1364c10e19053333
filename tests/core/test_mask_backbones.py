"""A mask beside its backbone: names, changes of the backbone, restarts, copies and devices."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from softmask import SoftMask
from tests.core.examples import same, small_backbone, small_batches, with_gradients
from tests.pretended_device import DEVICE, pretended_device


def saved_and_loaded(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


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
    with pytest.raises(ValueError, match=r"'5.weight' is not in the backbone"):
        mask.update({"5.weight": torch.zeros(3)})
    mask.update({name: torch.full_like(p, 0.5) for name, p in backbone.named_parameters()})
    backbone[0] = nn.Linear(4, 9)
    with pytest.raises(ValueError, match=r"'0.weight' has shape \(9, 4\), but its importance"):
        mask.attach(torch.optim.Adam(backbone.parameters()))
