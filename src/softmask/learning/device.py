"""Devices: the CPU, or a GPU by torch's name for it; and the peak memory of the process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softmask.errors import ConfigError, SoftmaskError

CPU = torch.device("cpu")


def parse_device(name: str) -> torch.device:
    """The device of this name, whether or not this machine has it. `auto` is a GPU if this machine has one."""
    if name == "auto":
        return torch.device("cuda") if torch.cuda.is_available() else CPU
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"there is no device {name!r}; devices are called auto, cpu, cuda, cuda:1") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"softmask computes on cpu or cuda, not on {name}")
    return CPU if device.type == "cpu" else device


def find_device(name: str) -> torch.device:
    """The device of this name, if this machine has it."""
    device = parse_device(name)
    if device == CPU:
        return CPU
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ConfigError(f"torch {torch.__version__} finds no GPU here; use --device cpu")
    # With its index: the default GPU may change while a model is open.
    number = torch.cuda.current_device() if device.index is None else device.index
    if number >= count:
        raise ConfigError(f"there is no {device}: the GPUs have the numbers 0 to {count - 1}")
    return torch.device("cuda", number)


def device_facts(device: torch.device) -> dict[str, str]:
    """Facts about the device that may explain different results later."""
    facts = {"device": str(device)}
    return facts | {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else facts


def require_begun_here(started: list[dict[str, Any]], device: torch.device, processes: int = 1) -> None:
    """A run resumes with bit-identical results only on the same kind of device and with as many processes."""
    if started and (before := started[-1].get("processes", 1)) != processes:
        raise SoftmaskError(f"this run was begun with {before} processes and can go on only with as many")
    begun = started[-1].get("device", "cpu") if started else str(device)
    if torch.device(begun).type != device.type:
        raise SoftmaskError(f"this run was begun on {begun} and can go on only there: use --device {begun}")


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """On a GPU: deterministic algorithms and full float32 precision, where torch by default prefers speed."""
    wanted = _exact_settings() if device.type == "cuda" else []
    before = [getattr(part, name) for part, name, _ in wanted]
    try:
        for part, name, value in wanted:
            setattr(part, name, value)
        yield
    finally:
        for (part, name, _), value in zip(wanted, before, strict=True):
            setattr(part, name, value)


def _exact_settings() -> list[tuple[Any, str, Any]]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    same_bits = [(cudnn, "deterministic", True), (cudnn, "benchmark", False)]
    if hasattr(cudnn, "conv"):  # asking newer versions by the older name may raise
        return [*same_bits, (cudnn.conv, "fp32_precision", "ieee"), (matmul, "fp32_precision", "ieee")]
    return [*same_bits, (cudnn, "allow_tf32", False), (matmul, "allow_tf32", False)]


@contextmanager
def isolated_randomness() -> Iterator[None]:
    """Random draws and seeds inside do not affect those outside. `manual_seed` affects all GPUs, so all are
    restored."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(gpus), device_type="cuda"):
        yield


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that a method uses on this device."""
    own = {"gpu": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"global": torch.get_rng_state()} | own


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["global"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["gpu"], device)


STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory() -> int | None:
    """In bytes, since the peak was reset or, where that is not possible, since the process began. None if the system
    does not report it."""
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def reset_peak_memory() -> None:
    """Resets the peak, so that memory of an earlier run does not count. Only Linux supports this."""
    with suppress(OSError):
        FORGET.write_text("5")
