"""Devices by name, and random numbers that stay apart."""

from __future__ import annotations

import pytest
import torch

from softmask.errors import ConfigError
from softmask.learning.device import CPU, find_device, random_apart, random_states, set_random_states
from softmask.learning.task import Batches


def test_the_cpu_is_always_there() -> None:
    assert find_device("cpu") == CPU


def test_a_name_that_is_none() -> None:
    with pytest.raises(ConfigError, match="no device 'gpu'; devices are called cpu, cuda"):
        find_device("gpu")


@pytest.mark.parametrize("name", ["meta", "xla"])
def test_a_device_that_cannot_compute_here(name: str) -> None:
    with pytest.raises(ConfigError, match=f"finds no {name} device here"):
        find_device(name)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="finds no cuda device here; use cpu"):
        find_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="no cuda:2: the cuda devices have the numbers 0 to 1"):
        find_device("cuda:2")


def test_what_is_drawn_apart_disturbs_nothing() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with random_apart(CPU):
        torch.rand(5)
    assert torch.equal(torch.rand(2), expected)


class FakeCuda:
    """Keeps the state that a GPU's generator would have."""

    def __init__(self) -> None:
        self.state = torch.tensor([7], dtype=torch.uint8)

    def get_rng_state(self, device: object) -> torch.Tensor:
        return self.state.clone()

    def set_rng_state(self, state: torch.Tensor, device: object) -> None:
        self.state = state


def test_a_gpu_s_generator_is_part_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    device = torch.device("cuda")
    states = random_states(device)
    fake.state = torch.tensor([8], dtype=torch.uint8)
    torch.rand(1)
    set_random_states(states, device)
    assert fake.state.tolist() == [7]
    assert torch.equal(torch.get_rng_state(), states["global"])
    set_random_states({"global": states["global"]}, device)  # begun on the CPU


def test_batches_on_a_device_are_the_same_batches() -> None:
    batches = Batches(torch.arange(6.0), torch.arange(6), 2, shuffle=True, seed=5)
    order = [y.tolist() for _, y in batches]
    again = batches.on(CPU)
    assert (again.size, again.device) == (2, CPU)
    assert [y.tolist() for _, y in again] == order
