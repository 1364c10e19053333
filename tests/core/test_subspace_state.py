"""The state of a SubspaceMask: it survives a restart, fits its backbone, and is measured without leaving a trace."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from softmask import SubspaceMask
from tests.core.examples import copied, same, small_backbone, small_batches, train


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def learned(backbone: nn.Module, **options: Any) -> SubspaceMask:
    mask = SubspaceMask(backbone, **options)
    mask.consolidate(small_batches())
    return mask


# ---------------------------------------------------------------------------------------------- restarts


@pytest.mark.parametrize("options", [{}, {"rule": "gpm", "strength": 0.9}, {"rank": 3}], ids=str)
@pytest.mark.parametrize("restart", ["between tasks", "in a task"])
def test_interrupted_equals_uninterrupted(restart: str, options: dict[str, Any]) -> None:
    results = []
    for interrupted in (False, True):
        torch.manual_seed(2)
        backbone, head = nn.Sequential(small_backbone(), nn.LayerNorm(6)), nn.Linear(6, 3)
        mask = SubspaceMask(backbone, **options)
        for task in range(3):
            batches = small_batches(seed=task)
            optimizer = AdamW([*backbone.parameters(), *head.parameters()], lr=0.01)
            for part in range(2):
                if interrupted and (restart == "in a task" or part == 0):
                    state = through_a_file([backbone.state_dict(), optimizer.state_dict(), mask.state_dict()])
                    backbone = nn.Sequential(small_backbone(), nn.LayerNorm(6))
                    backbone.load_state_dict(state[0])
                    optimizer = AdamW([*backbone.parameters(), *head.parameters()], lr=1)
                    optimizer.load_state_dict(state[1])
                    mask = SubspaceMask(backbone)
                    mask.load_state_dict(state[2])
                with mask.attach(optimizer, head=head):
                    train(backbone, head, optimizer, batches, steps=3)
            mask.consolidate(batches)
        results.append((copied(backbone), mask.used, mask.free()))
    assert same(results[0][0], results[1][0])
    assert same(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]


def test_memory_does_not_grow_with_the_tasks() -> None:
    mask = learned(small_backbone())
    shapes = {name: tensor.shape for name, tensor in mask.used.items()}
    for seed in range(3):
        mask.consolidate(small_batches(seed=seed))
    assert {name: tensor.shape for name, tensor in mask.used.items()} == shapes == {"0": (1, 5, 5), "3": (1, 9, 9)}


def test_a_state_is_no_alias() -> None:
    mask = learned(small_backbone())
    other = SubspaceMask(small_backbone())
    other.load_state_dict(mask.state_dict())
    other.used["0"].zero_()
    assert mask.used["0"].any()


def test_settings_come_with_the_state() -> None:
    mask = learned(small_backbone(), strength=0.25, rank=2, rule="ridge")
    other = SubspaceMask(small_backbone())
    other.load_state_dict(through_a_file(mask.state_dict()))
    assert (other.strength, other.rank, other.rule) == (0.25, 2, "ridge")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda used: {**used, "fc": used["0"]}, "'fc' is not in the backbone"),
        (lambda used: {"0": used["0"]}, "'3'"),
        (lambda used: {**used, "0": used["3"]}, "'0' has shape"),
        (lambda used: {**used, "0": used["0"][0]}, "'0' has shape"),
    ],
    ids=["renamed", "missing", "another shape", "another dimension"],
)
def test_a_state_of_another_backbone_is_refused_as_a_whole(change: Any, told: str) -> None:
    mask = learned(small_backbone())
    state = {**mask.state_dict(), "used": change(mask.used)}
    other = SubspaceMask(small_backbone(), strength=0.1)
    with pytest.raises(ValueError, match=told):
        other.load_state_dict(state)
    assert other.used == {}
    assert other.strength == 0.1


@pytest.mark.parametrize("change", [{"version": 2}, {"strength": 2}, {"rule": "svd"}, {"rank": 0}], ids=str)
def test_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    mask = learned(small_backbone())
    with pytest.raises(ValueError, match=next(iter(change))):
        mask.load_state_dict({**mask.state_dict(), **change})


def test_a_copy_is_attached_to_no_optimizer() -> None:
    mask = learned(small_backbone())
    optimizer = AdamW(mask.backbone.parameters())
    with mask.attach(optimizer):
        other = copy.deepcopy(mask)
    assert len(other.attached) == 0
    assert same(other.used, mask.used)
    assert other.free() == mask.free()


# ---------------------------------------------------------------------------------------------- changed backbones


def test_use_goes_along_with_a_layer_that_gets_another_name() -> None:
    class Wrapper(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base = base

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x)

    backbone = small_backbone()
    mask = learned(backbone)
    free = mask.free()
    backbone[3] = Wrapper(backbone[3])
    assert mask.free() == {"0": free["0"], "3.base": free["3"]}


def test_use_that_would_be_lost_is_an_error() -> None:
    backbone = small_backbone()
    mask = learned(backbone)
    backbone[3] = nn.Identity()
    with pytest.raises(ValueError, match="'3' is not in the backbone"):
        mask.free()


def test_frozen_layers_are_not_measured_and_join_later() -> None:
    backbone = small_backbone()
    backbone[0].requires_grad_(False)
    mask = learned(backbone)
    assert set(mask.used) == {"3"}
    backbone[0].requires_grad_(True)
    assert mask.free()["0"] == 1
    mask.consolidate(small_batches())
    assert set(mask.used) == {"0", "3"}


# ---------------------------------------------------------------------------------------------- measuring


class Recorder(nn.Module):
    """Keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 2), []

    def forward(self, x: Any, scale: float = 1.0) -> Tensor:
        self.calls.append(x)
        given = x["a"] if isinstance(x, Mapping) else x[0] if isinstance(x, tuple) else x
        return self.layer(given * scale)


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    "batch",
    [X, (X,), [X], (X, torch.zeros(3)), [X, None], {"x": X}, ({"x": X, "scale": 1.0}, 0), {"a": X}, ((X, X), 0)],
    ids=["x", "(x,)", "[x]", "(x, y)", "[x, y]", "keywords", "(keywords, y)", "a mapping", "a tuple as x"],
)
def test_forms_of_a_batch(batch: Any) -> None:
    net = Recorder()
    mask = SubspaceMask(net)
    mask.consolidate([batch])
    expected = SubspaceMask(Recorder())
    expected.consolidate([X])
    assert torch.equal(mask.used["layer"], expected.used["layer"])
    assert len(net.calls) == 1


def test_three_values_are_no_batch() -> None:
    with pytest.raises(ValueError, match=r"\(x, y\)"):
        SubspaceMask(Recorder()).consolidate([(X, X, X)])


def test_measuring_leaves_no_trace_and_has_dropout_off() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), nn.Linear(5, 6))
    net[2].eval()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.warns(UserWarning, match="running statistics"):
        masks = [SubspaceMask(net), SubspaceMask(net)]
    before, modes, drawn = copied(net), [m.training for m in net.modules()], torch.get_rng_state()
    for mask in masks:
        mask.consolidate(small_batches())
    assert same(masks[0].used, masks[1].used)
    assert same(copied(net), before)
    assert [m.training for m in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in net.parameters())
    assert not any(m._forward_pre_hooks for m in net.modules())


def test_a_generator_and_heads_as_for_a_soft_mask() -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask = SubspaceMask(backbone)
    mask.consolidate((batch for batch in small_batches()), head, [head])
    assert same(mask.used, learned(backbone).used)


def test_no_batches_and_strange_inputs_change_nothing() -> None:
    mask = SubspaceMask(small_backbone())
    with pytest.raises(ValueError, match="no batches"):
        mask.consolidate([])
    with pytest.raises(FloatingPointError, match="'0'"):
        mask.consolidate([torch.full((2, 4), torch.nan)])
    assert mask.used == {}


def test_a_layer_that_is_never_called_is_told() -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    net[0].aside = nn.Linear(3, 3)
    with pytest.warns(UserWarning, match=r"0\.aside"):
        SubspaceMask(net).consolidate([X])


@pytest.mark.parametrize("options", [{"strength": -0.1}, {"strength": 1.5}, {"rank": 0}, {"rule": "svd"}], ids=str)
def test_wrong_settings(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        SubspaceMask(small_backbone(), **options)


def test_a_backbone_without_parameters_that_learn() -> None:
    with pytest.raises(ValueError, match="requires grad"):
        SubspaceMask(small_backbone().requires_grad_(False))


def test_an_optimizer_of_something_else() -> None:
    with pytest.raises(ValueError, match="optimizer"):
        SubspaceMask(small_backbone()).attach(AdamW(nn.Linear(2, 2).parameters()))
