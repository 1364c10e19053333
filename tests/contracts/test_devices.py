"""Every method, on a device that is not the CPU: all that belongs together lies together, and nothing else changes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from softmask.errors import SoftmaskError
from softmask.experiments.runs import run as running
from softmask.experiments.runs.dry_run import forecast
from softmask.experiments.runs.store import Store, StoredRun
from softmask.kernels.layers import Convolution
from softmask.learning.registry import METHODS
from softmask.testing import Interruption, _digest, _interrupt_after, _small
from tests.pretended_device import DEVICE, pretended_device

# Torch takes the pretended tensors for those without content, and warns that nothing is copied to them.
pytestmark = pytest.mark.filterwarnings("ignore:.*to a meta parameter")
QUICK = ("spg", "ewc")  # with and without a mask; the others take a minute together


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> contextlib.AbstractContextManager[None]:
    # The gradient of a convolution is computed in another way on a CPU, and rounded otherwise.
    monkeypatch.setattr(Convolution, "_as_product", lambda *_: False)
    return pretended_device(running)


@pytest.mark.parametrize(
    "method", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS.names()]
)
def test_a_run_elsewhere_equals_one_on_the_cpu(
    method: str, tmp_path: Path, elsewhere: contextlib.AbstractContextManager[None]
) -> None:
    here = running.run(_small(method), Store(tmp_path / "here"))
    with elsewhere:
        there = running.run(_small(method), Store(tmp_path / "there"), device="pretended")
    assert _digest(there) == _digest(here)
    assert there.accuracies() == here.accuracies()
    assert [run.events("started")[0]["device"] for run in (here, there)] == ["cpu", str(DEVICE)]


def test_a_run_elsewhere_goes_on_where_it_was_cut(
    tmp_path: Path, elsewhere: contextlib.AbstractContextManager[None]
) -> None:
    config, whole = _small("spg"), Store(tmp_path / "whole")

    def cut_and_resumed() -> StoredRun:
        for _ in range(3):
            with contextlib.suppress(Interruption):
                running.run(config, Store(tmp_path / "cut"), device="pretended", listeners=[_interrupt_after(1)])
        return running.run(config, Store(tmp_path / "cut"), device="pretended")

    with elsewhere:
        assert _digest(cut_and_resumed()) == _digest(running.run(config, whole, device="pretended"))


def test_a_run_is_not_continued_on_another_device(
    tmp_path: Path, elsewhere: contextlib.AbstractContextManager[None]
) -> None:
    config, store = _small("ncl"), Store(tmp_path)
    with pytest.raises(Interruption):
        running.run(config, store, listeners=[_interrupt_after(1)])
    with elsewhere, pytest.raises(SoftmaskError, match="begun on cpu and can go on only there"):
        running.run(config, store, device="pretended")


def test_a_gpu_in_trouble_is_no_failure_of_the_run(tmp_path: Path) -> None:
    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        running.run(_small("ncl"), Store(tmp_path), watch=out_of_memory)
    (cut,) = Store(tmp_path).runs()
    assert cut.status == "unfinished"


def test_a_forecast_is_measured_where_the_run_would_be(elsewhere: contextlib.AbstractContextManager[None]) -> None:
    config = _small("spg")
    with elsewhere:
        assert forecast(config, running.load(config, None).on(DEVICE)).seconds > 0


def test_the_pretended_device_mixes_with_no_other(elsewhere: contextlib.AbstractContextManager[None]) -> None:
    with elsewhere:
        there = torch.arange(3.0).to(DEVICE)
        assert (there + 1).to("cpu").tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(RuntimeError, match="two devices"):
            there + torch.ones(3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("method", METHODS.names())
def test_on_a_gpu_equal_runs_are_equal_to_the_bit(method: str, tmp_path: Path) -> None:
    first, second = (running.run(_small(method), Store(tmp_path / place), device="cuda") for place in ("a", "b"))
    assert _digest(first) == _digest(second)
