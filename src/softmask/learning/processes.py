"""One run in several processes, as `torchrun` starts them: each computes a part of every batch.

The gradients of the parts are added up, so that all processes take the same steps; only the first one writes. All else
(the order of the batches, augmentation, passes at task ends, evaluation) is computed alike by each process from the
same seeds. Apart from dropout, of which each process draws its own, a run ends as one in a single process does, to
rounding. With batch normalisation, each process normalises its own part, and running statistics are averaged after each
epoch.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from softmask.learning.device import random_states, set_random_states
from softmask.learning.method import Step
from softmask.learning.seeds import derive


class Processes:
    """This process among those that share a run."""

    def __init__(self) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.announced = False
        """Whether the first process announced that there is work to do."""

    @property
    def first(self) -> bool:
        return self.rank == 0

    def part(self, step: Step) -> tuple[Step, float]:
        """This process's samples of a batch, and their share. One without a sample takes one at a share of 0."""
        own = slice(self.rank, None, self.count)
        if not (share := len(step.y[own]) / len(step.y)):
            own = slice(0, 1)
        return replace(step, x=step.x[own], y=step.y[own]), share

    def add_up(self, parameters: Iterable[nn.Parameter]) -> None:
        """The gradients of all parts. One that no process has stays None."""
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        if not wanted:
            return
        there = torch.tensor([float(parameter.grad is not None) for parameter in wanted], device=wanted[0].device)
        dist.all_reduce(there)
        for parameter, known in zip(wanted, there.tolist(), strict=True):
            if known:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)

    def total(self, value: Tensor) -> Tensor:
        dist.all_reduce(value)
        return value

    def share(self, value: Any) -> Any:
        """What the first process has."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]


class OwnDraws:
    """Random draws of this process alone, separate from those that all processes share."""

    def __init__(self, device: torch.device, *seed: int | str) -> None:
        self.device = device
        before = random_states(device)
        torch.manual_seed(derive(*seed))
        self.own = random_states(device)
        set_random_states(before, device)

    @contextmanager
    def inside(self) -> Iterator[None]:
        before = random_states(self.device)
        set_random_states(self.own, self.device)
        try:
            yield
        finally:
            self.own = random_states(self.device)
            set_random_states(before, self.device)


_sharing: list[Processes] = []


def sharing() -> Processes | None:
    """The processes with which the present run is shared; None for a run in this process alone."""
    return _sharing[-1] if _sharing else None


def started_by_torchrun() -> bool:
    """Whether this is one of several processes for one run."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def is_first_process() -> bool:
    return not started_by_torchrun() or os.environ["RANK"] == "0"


def device_of_process(device: str) -> str:
    """Each process on a machine has a GPU of its own."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if started_by_torchrun() and device == "cuda" else device


@contextmanager
def shared_run(device: torch.device) -> Iterator[Processes | None]:
    """Inside, a run is shared with the other processes that `torchrun` started, if it did."""
    if not started_by_torchrun():
        yield None
        return
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(dist.destroy_process_group)
    _sharing.append(Processes())
    try:
        yield _sharing[-1]
    finally:
        _sharing.pop()


class FollowingJournal:
    """The journal of a process that does not write: it receives what the first process reads."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes

    def event(self, kind: str, **facts: Any) -> None:
        pass

    def stages_done(self) -> int:
        return int(self.processes.share(None))

    def load_stage(self) -> Any:
        return self.processes.share(None)

    def save_stage(self, stage: int, state: Any) -> None:
        pass

    def load_progress(self, stage: int) -> Any:
        return self.processes.share(None)

    def save_progress(self, stage: int, state: Any) -> None:
        pass


class LeadingJournal:
    """The journal of the first process, which sends to the others what it reads."""

    def __init__(self, journal: Any, processes: Processes) -> None:
        self.journal, self.processes = journal, processes

    def event(self, kind: str, **facts: Any) -> None:
        self.journal.event(kind, **facts)

    def stages_done(self) -> int:
        return int(self.processes.share(self.journal.stages_done()))

    def load_stage(self) -> Any:
        return self.processes.share(self.journal.load_stage())

    def save_stage(self, stage: int, state: Any) -> None:
        self.journal.save_stage(stage, state)

    def load_progress(self, stage: int) -> Any:
        return self.processes.share(self.journal.load_progress(stage))

    def save_progress(self, stage: int, state: Any) -> None:
        self.journal.save_progress(stage, state)
