"""Which networks a model may have, and that a folder never chooses what code is run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from softmask.errors import UnknownName
from softmask.models.networks import NetworkError, check_trusted, make_backbone, name_of


def two_numbers() -> nn.Module:
    return nn.Linear(6, 2)


def no_features() -> nn.Module:
    return nn.Unflatten(1, (2, 3))


def no_module() -> int:
    return 3


def needs_more(width: int) -> nn.Module:
    return nn.Linear(6, width)


def frozen() -> nn.Module:
    return nn.Linear(6, 2).requires_grad_(False)


def fails() -> nn.Module:
    raise KeyError("weights")


class WithWidths(nn.Linear):
    widths = (64, 32)


def with_widths() -> nn.Module:
    return WithWidths(6, 2)


def made(network: object, shape: tuple[int, ...] = (6,)) -> nn.Module:
    return make_backbone(network, shape, 1 / 16, dropout=False, frozen_statistics=False)  # type: ignore[arg-type]


def test_the_width_of_ones_own_features_is_measured() -> None:
    assert made(two_numbers).widths == (2,)
    assert made(f"{__name__}:two_numbers").widths == (2,)
    assert made(with_widths).widths == (2,), "what it says of itself may mean anything"
    assert name_of(two_numbers) == f"{__name__}:two_numbers"


@pytest.mark.parametrize(
    ("network", "shape", "message"),
    [
        (no_features, (6,), r"features of shape \(batch, width\), not \(2, 2, 3\)"),
        (no_module, (6,), "gave a int"),
        (needs_more, (6,), "missing 1 required"),
        (fails, (6,), "KeyError: 'weights'"),
        (frozen, (6,), "no parameter that requires grad"),
        (nn.Linear(6, 2), (6,), "given by the function that makes it"),
        (partial(nn.Linear, 6, 2), (6,), "a partial has no name to be kept"),
        (two_numbers, (5,), "cannot take inputs"),
        ("no.such.module:thing", (6,), "No module named"),
        (f"{__name__}:thing", (6,), "has no attribute"),
        (f"{__name__}:pytest", (6,), "not a function"),
        ("../evil:run", (6,), "not of the form"),
        ("os;import sys:x", (6,), "not of the form"),
        ("alexnet", (6,), "takes images"),
        ("alexnet", (3, 4, 4), "too small"),
        ("resnet18", (6,), "takes images"),
    ],
)
def test_what_cannot_be_a_network(network: object, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        made(network, shape)


def test_names() -> None:
    with pytest.raises(UnknownName, match="did you mean 'resnet18'"):
        name_of("resnet")


def test_own_code_must_be_named_by_the_caller() -> None:
    check_trusted("mlp", None)
    check_trusted("mlp", "mlp")
    check_trusted("a:b", "a:b")
    check_trusted("a:b", two_numbers)
    for named, given in (("a:b", None), ("a:b", "a:c"), ("mlp", "alexnet"), ("mlp", two_numbers)):
        with pytest.raises(NetworkError):
            check_trusted(named, given)


def test_statistics_are_frozen_on_request() -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))

    backbone = make_backbone(normalised, (6,), 1.0, dropout=False, frozen_statistics=True).train()
    backbone(torch.randn(8, 6))
    assert (backbone[1].running_mean == 0).all()


def test_a_module_that_cannot_be_imported_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_written_network.py").write_text("def make(:")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NetworkError, match="half_written_network:make: SyntaxError"):
        made("half_written_network:make")


def test_a_module_is_not_called_by_mistake() -> None:
    with pytest.raises(NetworkError, match="not by a module"):
        name_of(nn.Linear(6, 2))
