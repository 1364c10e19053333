"""Devices by name, and random numbers that stay apart."""

from __future__ import annotations

import sys

import pytest
import torch

from softmask.errors import ConfigError, SoftmaskError
from softmask.learning.device import (
    CPU,
    device_facts,
    exact,
    find_device,
    isolated_randomness,
    parse_device,
    peak_memory,
    random_states,
    require_begun_here,
    reset_peak_memory,
    set_random_states,
)
from softmask.learning.task import Batches


def test_the_cpu_is_always_there() -> None:
    assert find_device("cpu") == CPU


def test_a_name_that_is_none() -> None:
    with pytest.raises(ConfigError, match="'gpu'"):
        find_device("gpu")


@pytest.mark.parametrize("name", ["meta", "mps", "xla:1"])
def test_a_device_that_lacks_what_is_needed(name: str) -> None:
    with pytest.raises(ConfigError, match=f"computes on cpu or cuda, not on {name}"):
        find_device(name)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="finds no GPU here; use --device cpu"):
        find_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda:1")
    assert find_device("cuda") == torch.device("cuda:2")
    with pytest.raises(ConfigError, match="no cuda:3: the GPUs have the numbers 0 to 2"):
        find_device("cuda:3")


def test_a_run_goes_on_only_where_it_was_begun() -> None:
    gpu = torch.device("cuda:1")
    for begun, device in (([], gpu), ([{"device": "cuda:0"}], gpu), ([{"kind": "started"}], CPU)):
        require_begun_here(begun, device)
    for begun, device in (([{"device": "cuda:0"}], CPU), ([{"kind": "started"}], gpu)):
        with pytest.raises(SoftmaskError, match="can go on only there: use --device"):
            require_begun_here(begun, device)


def test_a_gpu_computes_with_whole_numbers_inside_and_as_before_outside() -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul

    def state() -> list[object]:
        return [cudnn.deterministic, cudnn.benchmark, cudnn.conv.fp32_precision, matmul.fp32_precision]

    before = state()
    with exact(CPU):
        assert state() == before
    with exact(torch.device("cuda")):
        assert state() == [True, False, "ieee", "ieee"]
    assert state() == before


def test_what_is_drawn_apart_disturbs_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with isolated_randomness():
        torch.manual_seed(4)
    assert torch.equal(torch.rand(2), expected)


class FakeCuda:
    """Keeps the states that the generators of two GPUs would have."""

    def __init__(self) -> None:
        self.states = [torch.tensor([7], dtype=torch.uint8), torch.tensor([8], dtype=torch.uint8)]

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def get_device_name(self, device: torch.device) -> str:
        return "a GPU"

    def get_rng_state(self, device: torch.device | int) -> torch.Tensor:
        return self.states[_number(device)].clone()

    def set_rng_state(self, state: torch.Tensor, device: torch.device | int) -> None:
        self.states[_number(device)] = state


def _number(device: torch.device | int) -> int:
    return device if isinstance(device, int) else device.index


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in ("is_initialized", "device_count", "get_device_name", "get_rng_state", "set_rng_state"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


def test_a_gpu_s_generator_is_part_of_the_state(fake: FakeCuda) -> None:
    device = torch.device("cuda:1")
    states = random_states(device)
    fake.states[1] = torch.tensor([9], dtype=torch.uint8)
    torch.rand(1)
    set_random_states(states, device)
    assert fake.states[1].tolist() == [8]
    assert torch.equal(torch.get_rng_state(), states["global"])


def test_all_gpus_are_put_back(fake: FakeCuda) -> None:
    with isolated_randomness():
        fake.states[:] = [torch.tensor([0], dtype=torch.uint8)] * 2
    assert [state.tolist() for state in fake.states] == [[7], [8]]


def test_what_is_noted_about_a_device(fake: FakeCuda) -> None:
    assert device_facts(CPU) == {"device": "cpu"}
    assert device_facts(torch.device("cuda:1")) == {"device": "cuda:1", "gpu": "a GPU"}


def test_batches_on_a_device_are_the_same_batches() -> None:
    batches = Batches(torch.arange(6.0), torch.arange(6), 2, shuffle=True, seed=5)
    order = [y.tolist() for _, y in batches]
    again = batches.on(CPU)
    assert (again.size, again.device) == (2, CPU)
    assert [y.tolist() for _, y in again] == order


def test_auto_is_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert parse_device("auto") == torch.device("cuda")


MEGABYTE = 1_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a peak")
def test_what_was_held_before_does_not_count() -> None:
    large = torch.ones(50 * MEGABYTE)
    del large
    before = peak_memory()
    reset_peak_memory()
    after = peak_memory()
    assert before is not None
    assert after is not None
    assert after < before - 100 * MEGABYTE
    held = torch.ones(50 * MEGABYTE)
    now = peak_memory()
    assert now is not None
    assert now > after + 150 * MEGABYTE
    assert len(held) == 50 * MEGABYTE
