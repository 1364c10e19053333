"""Running statistics of normalisation layers: the warning, and how to freeze them."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask import SoftMask, freeze_running_statistics


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.rest = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6))
        self.not_tracking = nn.BatchNorm1d(6, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.not_tracking(self.rest(torch.relu(self.norm(self.convolution(x)))))


def statistics(backbone: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in backbone.buffers()]


def unchanged(backbone: nn.Module, before: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(backbone.buffers(), before, strict=True))


def train(backbone: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(backbone.parameters(), lr=0.1)
    for _ in range(steps):
        backbone.train()
        optimizer.zero_grad()
        F.cross_entropy(backbone(torch.randn(5, 1, 4, 4) + 3), torch.randint(6, (5,))).backward()
        optimizer.step()


def test_one_warning_names_the_layers() -> None:
    with pytest.warns(UserWarning, match="running statistics") as caught:
        SoftMask(Normalised())
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "norm, rest.2." in text
    assert "not_tracking" not in text
    assert "freeze_running_statistics" in text
    assert caught[0].filename == __file__  # it points at the caller


@pytest.mark.parametrize(
    "backbone", [nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), nn.BatchNorm1d(2, track_running_stats=False)]
)
def test_no_warning_without_running_statistics(backbone: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftMask(backbone)


def test_a_backbone_that_is_one_such_layer() -> None:
    with pytest.warns(UserWarning, match="itself"):
        SoftMask(nn.BatchNorm1d(2))


def test_frozen_statistics_stay_through_training() -> None:
    backbone = Normalised()
    train(backbone)
    freeze_running_statistics(backbone)
    before, weight = statistics(backbone), backbone.norm.weight.clone()
    train(backbone)
    assert unchanged(backbone, before)
    assert not torch.equal(backbone.norm.weight, weight)  # the affine parameters are the mask's business


def test_frozen_statistics_stay_in_what_was_compiled_before() -> None:
    """Compiled code does not look again whether a layer got a hook since."""
    backbone = Normalised()
    compiled = torch.compile(backbone, backend="eager")
    train(compiled)
    freeze_running_statistics(backbone)
    before = statistics(backbone)
    train(compiled)
    assert unchanged(backbone, before)


def test_frozen_statistics_are_what_normalises() -> None:
    backbone = nn.BatchNorm1d(3)
    backbone(torch.randn(20, 3) + 2)
    freeze_running_statistics(backbone)
    x = torch.randn(4, 3)
    backbone.eval()
    expected = backbone(x)
    backbone.train()
    assert torch.equal(backbone(x), expected)


def test_no_warning_once_frozen() -> None:
    backbone = Normalised()
    freeze_running_statistics(backbone)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftMask(backbone)


def test_the_handles_undo_it() -> None:
    backbone = Normalised()
    handles = freeze_running_statistics(backbone)
    assert len(handles) == 2
    assert freeze_running_statistics(backbone) == []  # frozen already
    for handle in handles:
        handle.remove()
    before = statistics(backbone)
    train(backbone)
    assert not unchanged(backbone, before)
    with pytest.warns(UserWarning, match="running statistics"):
        SoftMask(backbone)


def _through_torch(backbone: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(backbone, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b)), _through_torch])
def test_a_copy_is_frozen_too(copied) -> None:
    backbone = Normalised()
    freeze_running_statistics(backbone)
    other = copied(backbone)
    before = statistics(other)
    train(other)
    assert unchanged(other, before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SoftMask(other)


@pytest.mark.filterwarnings("ignore:running statistics")
def test_consolidate_leaves_statistics_alone_and_masks_the_affine_parameters() -> None:
    backbone, head = Normalised(), nn.Linear(6, 3)
    mask, before = SoftMask(backbone), statistics(backbone)
    mask.consolidate([(torch.randn(5, 1, 4, 4), torch.randint(3, (5,)))], head, [nn.Linear(6, 2)])
    assert unchanged(backbone, before)
    assert mask.importance["norm.weight"].any()
    assert "norm.running_mean" not in mask.importance
