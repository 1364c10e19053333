"""The contract of methods on networks that are no chain of blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask import testing
from softmask.testing import METHOD_CHECKS, SMALL, check_interrupted_equals_uninterrupted, check_learns

QUICK = (("resnet18", "spg"),)
METHODS = ("ncl", "spg", "ewc", "wsn", "lwf")
TINY = {"network.width": 1 / 32}


def _contract():
    for network in ("resnet18", "vit-tiny"):
        for method in METHODS:
            for check in METHOD_CHECKS:
                quick = check is check_interrupted_equals_uninterrupted and (network, method) in QUICK
                if check is not check_learns:
                    name = f"{network}-{method}-{check.__name__.removeprefix('check_')}"
                    yield pytest.param(network, method, check, id=name, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("network", "method", "check"), _contract())
def test_contract(network: str, method: str, check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "SMALL", {**SMALL, **TINY, "network.name": network, "training.batch": 128})
    check(method, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spg", "wsn", "one", "mtl", "gpm", "supsup"])
def test_batch_normalisation(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = {"network.name": "resnet18", "network.norm": "batch", "training.batch": 128}
    monkeypatch.setattr(testing, "SMALL", {**SMALL, **TINY, **network})
    check_interrupted_equals_uninterrupted(method, tmp_path / "cut")
    testing.check_promise_of_not_forgetting(method, tmp_path / "promise")
