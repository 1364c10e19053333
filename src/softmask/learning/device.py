"""Where a method learns: the processor, or an accelerator by torch's name for it. All else follows the tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from softmask.errors import ConfigError

CPU = torch.device("cpu")


def find_device(name: str) -> torch.device:
    """The device of this name, if this machine has it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"there is no device {name!r}; devices are called cpu, cuda, cuda:1, mps") from None
    if device.type == "cpu":
        return CPU
    module = _module(device)
    count = module.device_count() if module is not None and module.is_available() else 0
    if not count:
        raise ConfigError(f"torch {torch.__version__} finds no {device.type} device here; use cpu")
    if (device.index or 0) >= count:
        raise ConfigError(f"there is no {device}: the {device.type} devices have the numbers 0 to {count - 1}")
    return device


@contextmanager
def as_exact_as_a_cpu(device: torch.device) -> Iterator[None]:
    """The same bits each time and whole float32 numbers, where cuDNN by default looks for the quickest."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        yield


@contextmanager
def random_apart(device: torch.device = CPU) -> Iterator[None]:
    """What is drawn inside disturbs nothing outside, neither on the CPU nor on `device`."""
    where: dict[str, Any] = {"device_type": device.type} if _own_generator(device) else {}
    with torch.random.fork_rng(devices=[device] if where else [], **where):
        yield


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Of the generators that draw for a method on this device."""
    own = _own_generator(device)
    return {"global": torch.get_rng_state(), **({"device": own.get_rng_state(device)} if own else {})}


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """What an interrupted run had on another device begins anew there: draws differ between devices anyway."""
    torch.set_rng_state(states["global"])
    own = _own_generator(device)
    if own and "device" in states:
        own.set_rng_state(states["device"], device)


def _own_generator(device: torch.device) -> Any:
    """The device's part of torch, if draws on it do not come from the CPU's generator."""
    return None if device.type == "cpu" else _module(device)


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type, None)
