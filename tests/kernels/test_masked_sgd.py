from __future__ import annotations

import pytest
import torch
from torch import nn

from softmask.kernels.masked_sgd import MaskedSGD


def twins(seed: int = 0) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    one, other = nn.Linear(37, 29), nn.Linear(37, 29)
    other.load_state_dict(one.state_dict())
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        first.grad = torch.randn_like(first)
        second.grad = first.grad.clone()
    return one, other


def test_equals_scaled_gradients_and_plain_sgd() -> None:
    masked, scaled = twins()
    share = torch.rand_like(masked.weight)
    ours = MaskedSGD(masked.parameters(), lr=0.3, update_scale={masked.weight: share, masked.bias: 0.25})
    theirs = torch.optim.SGD(scaled.parameters(), lr=0.3)
    scaled.weight.grad.mul_(share)
    scaled.bias.grad.mul_(0.25)
    ours.step()
    theirs.step()
    for mine, plain in zip(masked.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-6, atol=1e-7)


def test_a_mask_of_ones_is_bit_identical_to_no_mask() -> None:
    masked, free = twins()
    for _ in range(3):
        MaskedSGD(
            masked.parameters(),
            lr=0.0373,
            update_scale={masked.weight: torch.ones_like(masked.weight), masked.bias: 1.0},
        ).step()
        MaskedSGD(free.parameters(), lr=0.0373).step()
    assert torch.equal(masked.weight, free.weight)
    assert torch.equal(masked.bias, free.bias)


def test_what_is_kept_entirely_does_not_move() -> None:
    net, before = twins()
    share = torch.ones_like(net.weight)
    share[3, 5] = 0
    MaskedSGD(net.parameters(), lr=0.1, update_scale={net.weight: share}).step()
    moved = net.weight != before.weight
    assert not moved[3, 5]
    assert moved.sum() == moved.numel() - 1


def test_groups_have_their_own_rate_and_missing_gradients_are_skipped() -> None:
    net, before = twins()
    net.bias.grad = None
    frozen = nn.Parameter(torch.ones(3))
    optimizer = MaskedSGD([{"params": [net.weight], "lr": 2.0}, {"params": [net.bias, frozen]}], lr=0.1)
    optimizer.step()
    torch.testing.assert_close(net.weight, before.weight - 2.0 * before.weight.grad)
    assert torch.equal(net.bias, before.bias)
    assert torch.equal(frozen, torch.ones(3))


def test_each_group_moves_at_its_own_learning_rate() -> None:
    net, before = twins()
    optimizer = MaskedSGD(
        [{"params": [net.weight]}, {"params": [net.bias], "lr": 2.0}], 0.1, update_scale={net.bias: 0.5}
    )
    optimizer.step()
    torch.testing.assert_close(net.weight, before.weight - 0.1 * before.weight.grad)
    torch.testing.assert_close(net.bias, before.bias - 2.0 * 0.5 * before.bias.grad)
    optimizer.param_groups[1]["lr"] = 0.0  # as a schedule changes it
    held = net.bias.detach().clone()
    optimizer.step()
    assert torch.equal(net.bias, held)


def test_a_plateau_lowers_the_rate_and_the_state_round_trips() -> None:
    net, _ = twins()
    optimizer = MaskedSGD(net.parameters(), lr=0.6)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=1 / 3, patience=0)
    for loss in (1.0, 2.0):
        optimizer.step()
        plateau.step(loss)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
    again = MaskedSGD(net.parameters(), lr=9.0)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_a_closure_computes_loss_and_gradients() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = MaskedSGD([weight], lr=0.25)

    def closure() -> float:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 4.0
    assert weight.item() == 1.0


def test_wrong_masks_are_refused() -> None:
    net, other = twins()
    with pytest.raises(ValueError, match="shape"):
        MaskedSGD(net.parameters(), lr=0.1, update_scale={net.weight: torch.ones(29)})
    with pytest.raises(ValueError, match="does not train"):
        MaskedSGD(net.parameters(), lr=0.1, update_scale={other.weight: 0.5})
    with pytest.raises(ValueError, match="negative"):
        MaskedSGD(net.parameters(), lr=-0.1)
