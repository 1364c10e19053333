"""Batches, tasks, and sequences of tasks."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.errors import ConfigError


class Normalisation(NamedTuple):
    """Per-channel mean and standard deviation of pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Bytes 0..255, shape (n, channels, height, width), to normalised float32."""
        mean, std = _by_channel(self, pixels.device)
        return pixels.to(torch.float32).div_(255).sub_(mean).div_(std)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def _by_channel(normalise: Normalisation, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cached: sending a few numbers to a GPU would wait for all its pending work."""
    mean, std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in normalise)
    return mean, std


class Batches:
    """Images and labels in batches; can be iterated any number of times.

    Images stay as they were stored (bytes, possibly memory-mapped) and are normalised batch by batch: a
    million images take no more memory than on disk. With `shuffle`, every pass draws a new order from the dataset's own
    generator, independent of dropout and other datasets.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        size: int = 64,
        *,
        normalise: Normalisation | None = None,
        shuffle: bool = False,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images but {len(labels)} labels")
        if size < 1:
            raise ValueError(f"a batch needs at least one image, not {size}")
        self.images, self.labels, self.size = images, labels, size
        self.normalise, self.shuffle, self.device = normalise, shuffle, torch.device(device)
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.labels) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        count = len(self.labels)
        order = torch.randperm(count, generator=self.generator) if self.shuffle else None
        for start in range(0, count, self.size):
            part = slice(start, start + self.size)
            yield self._load(part if order is None else order[part])

    def _load(self, which: slice | Tensor) -> tuple[Tensor, Tensor]:
        x, y = self._moved(self.images[which]), self._moved(self.labels[which])
        return (self.normalise(x) if self.normalise else x), y

    def _moved(self, part: Tensor) -> Tensor:
        """On the device. From pinned memory a copy to a GPU goes on while the next batch is prepared."""
        pinned = part.pin_memory() if self.device.type == "cuda" and part.device.type == "cpu" else part
        return pinned.to(self.device, non_blocking=True)

    def on(self, device: torch.device) -> Batches:
        """The same batches, on a device."""
        return self.batched(self.size, shuffle=self.shuffle, seed=self.seed, device=device)

    def mixed(self, seed: int) -> Batches:
        """The same images in a random order that is drawn once: SGD fails on data ordered by task or class."""
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(seed))
        images, labels = self.images[order], self.labels[order]
        return Batches(images, labels, self.size, normalise=self.normalise, device=self.device)

    @property
    def count(self) -> int:
        """The number of images."""
        return len(self.labels)

    @property
    def x(self) -> Tensor:
        """All images, normalised."""
        return self._load(slice(None))[0]

    @property
    def y(self) -> Tensor:
        """All labels."""
        return self.labels.to(self.device)

    def batched(
        self, size: int, *, shuffle: bool = False, seed: int = 0, device: torch.device | str | None = None
    ) -> Batches:
        """The same images in other batches."""
        return Batches(
            self.images,
            self.labels,
            size,
            normalise=self.normalise,
            shuffle=shuffle,
            seed=seed,
            device=self.device if device is None else device,
        )


@dataclass(frozen=True)
class Task:
    """The data of a task that a method may see. Test sets are separate: see `TaskSequence.tests`."""

    ids: tuple[int, ...]
    """Positions in the sequence; several for a task that joins others (MTL)."""
    name: str
    """Identifies the task, whatever its position in the sequence: its classes or user, and a digest of its samples."""
    classes: int
    train: Batches
    val: Batches

    @property
    def id(self) -> int:
        """The task's position; for a joint task, the last of its positions."""
        return self.ids[-1]

    def on(self, device: torch.device) -> Task:
        """The task, on a device."""
        return replace(self, train=self.train.on(device), val=self.val.on(device))

    def batched(self, size: int, *, shuffle: bool, seed: int) -> Task:
        """The task with training batches of another size or order."""
        train = self.train.batched(size, shuffle=shuffle, seed=seed)
        return replace(self, train=train, val=self.val.batched(self.val.size))


@dataclass(frozen=True)
class TaskSequence:
    """Tasks in the order in which they are learned and, separately, their test sets."""

    name: str
    tasks: tuple[Task, ...]
    tests: tuple[Batches, ...]
    input_shape: tuple[int, int, int]
    similar: bool
    """Whether the tasks are similar, for example the same classes written by other people."""

    def __post_init__(self) -> None:
        if len(self.tasks) != len(self.tests):
            raise ValueError(f"{len(self.tasks)} tasks but {len(self.tests)} test sets")

    @property
    def classes(self) -> tuple[int, ...]:
        return tuple(task.classes for task in self.tasks)

    @property
    def device(self) -> torch.device:
        """The device of its batches."""
        return self.tasks[0].train.device

    def on(self, device: torch.device) -> TaskSequence:
        """The sequence on a device; itself if it is there already."""
        if device == self.device:
            return self
        tasks, tests = (task.on(device) for task in self.tasks), (test.on(device) for test in self.tests)
        return replace(self, tasks=tuple(tasks), tests=tuple(tests))

    def first(self, count: int) -> TaskSequence:
        """The sequence cut after `count` tasks."""
        if not 1 <= count <= len(self.tasks):
            raise ValueError(f"{self.name} has {len(self.tasks)} tasks: cannot take the first {count}")
        return replace(self, tasks=self.tasks[:count], tests=self.tests[:count])


def sample_digest(*sample_ids: Sequence[int]) -> str:
    """A short name for exactly these samples in this order: equal on every machine."""
    digest = hashlib.sha256()
    for ids in sample_ids:
        digest.update((",".join(map(str, ids)) + ";").encode())
    return digest.hexdigest()[:12]


def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image of a normalised batch moved by up to an eighth of its size and flipped left to right or not.

    The border is filled with 0, the mean of the dataset.
    """
    if images.dim() != 4:
        raise ConfigError(f"augment = crop-flip needs images, not inputs of shape {tuple(images.shape[1:])}")
    count, _, height, width = images.shape
    down, right = height // 8, width // 8
    padded = F.pad(images, (right, right, down, down))
    top, left, flipped = (
        torch.randint(high, (count, 1), generator=generator) for high in (2 * down + 1, 2 * right + 1, 2)
    )
    rows, columns = top + torch.arange(height), torch.arange(width)
    columns = left + torch.where(flipped == 1, width - 1 - columns, columns)
    sample, rows, columns = (each.to(images.device) for each in (torch.arange(count), rows, columns))
    return padded[sample.view(-1, 1, 1), :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def avoid_singleton_batch(network: nn.Module, size: int, count: int) -> int:
    """The batch size, enlarged where the last batch would be a single sample, on which batch norm cannot train."""
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in network.modules()):
        while count > 1 and count % size == 1:
            size += 1
    return size
