"""Four settings in which a model learns one large task and then two small ones: networks, data and scores.

Images: 20 classes of CIFAR-100 (450 images each), then twice 10 others (150 images each), a head for each task.
Text: English, then Python, then C, letter by letter; one model for all, no heads. Validation data come from the
training files and are seen neither by training nor by the table.
"""

from __future__ import annotations

import ast
import math
import os
import pydoc_data.topics
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from softmask.experiments.sequences.cifar100 import PER_CLASS, locate, read_cifar100

LETTERS, CONTEXT, WINDOWS = 128, 64, 2048


class Part(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Task:
    train: Part
    validation: Part
    test: Part
    classes: int


@dataclass(frozen=True)
class Setting:
    """`lower` names the layers that freezing keeps. Without heads the backbone's own output is the answer."""

    title: str
    make: Callable[[], nn.Module]
    tasks: Callable[[int], list[Task]]
    augment: Callable[[Tensor, Generator], Tensor]
    lower: tuple[str, ...]
    width: int | None
    lr: float = 1e-3
    batch: int = 32
    epochs: tuple[int, int] = (12, 12)  # of the first task, and of each later one

    def head(self, classes: int) -> nn.Module:
        return nn.Identity() if self.width is None else nn.Linear(self.width, classes)


def loss_of(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of classes, or of the next letter at each place."""
    return F.cross_entropy(logits.float().flatten(0, -2), y.flatten())


@torch.no_grad()
def accuracy(net: nn.Module, head: nn.Module, part: Part) -> float:
    """In percent: of images, or of next letters."""
    net.eval()
    parts = zip(part.x.split(250), part.y.split(250), strict=True)
    right = sum(int((head(net(x)).argmax(-1) == y).sum()) for x, y in parts)
    net.train()
    return 100 * right / part.y.numel()


@torch.no_grad()
def mean_loss(net: nn.Module, head: nn.Module, part: Part) -> float:
    net.eval()
    parts = zip(part.x.split(250), part.y.split(250), strict=True)
    total = sum(len(x) * loss_of(head(net(x)), y).item() for x, y in parts)
    net.train()
    return total / len(part.x)


# ------------------------------------------------------------------------------------------------- networks


class CNN(nn.Module):
    """Three convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = (nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 16), (16, 32), (32, 64)))
        self.f1 = nn.Linear(64 * 16, 128)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.c1, self.c2, self.c3):
            x = F.max_pool2d(F.relu(layer(x)), 2)
        return F.relu(self.f1(x.flatten(1)))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.short(x) + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


class ResNet(nn.Module):
    """Three residual blocks with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Residual(16, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2))
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3))


class Block(nn.Module):
    """Attention and two linear layers, normalised before; `causal` for language.

    Attention is written out: with heads this small torch's fused one takes twice as long on a CPU in bfloat16.
    """

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
        mixed = scores.softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """Patches of 4 x 4 pixels, three blocks of width 64, the mean over patches."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, width, 4, 4), nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.Sequential(*(Block(width, 4, causal=False) for _ in range(3)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(self.patches(x).flatten(2).transpose(1, 2) + self.places)).mean(1)


class GPT(nn.Module):
    """Two causal blocks of width 96 over letters; gives logits."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width, 4, causal=True) for _ in range(2)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, LETTERS)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.blocks(self.letters(x) + self.places)))


# ------------------------------------------------------------------------------------------------- images


def image_tasks(seed: int) -> list[Task]:
    """One task of 20 classes and two of 10."""
    return _image_tasks(seed, (20, 450), (10, 150), (10, 150))


def pretrained_tasks(seed: int) -> list[Task]:
    """One task of 60 classes and four of 10."""
    return _image_tasks(seed, (60, 450), *[(10, 150)] * 4)


def _image_tasks(seed: int, *sizes: tuple[int, int]) -> list[Task]:
    """Of so many classes with so many images each.

    Training takes the first images of a class in the order of the file, validation the last 50 of 500.
    """
    if not os.environ.get("SOFTMASK_DATA"):
        raise FileNotFoundError("needs CIFAR-100: set SOFTMASK_DATA to the folder with cifar-100-python.tar.gz")
    train, test, _ = read_cifar100(locate(Path(os.environ["SOFTMASK_DATA"]), 10), PER_CLASS)
    order, tasks, start = np.random.RandomState(seed).permutation(100), [], 0
    for classes, count in sizes:
        group, start = order[start : start + classes], start + classes
        cuts = ((train, slice(count)), (train, slice(450, 500)), (test, slice(100)))
        tasks.append(Task(*(_images(part, group, cut) for part, cut in cuts), len(group)))
    return tasks


def _images(part: object, group: np.ndarray, cut: slice) -> Part:
    rows = np.stack([np.where(part.labels == c)[0][cut] for c in group])  # type: ignore[attr-defined]
    x = torch.from_numpy(np.asarray(part.images)[rows.flatten()])  # type: ignore[attr-defined]
    return Part((x.float() / 255 - 0.47) / 0.27, torch.arange(len(group)).repeat_interleave(rows.shape[1]))


def crop_and_flip(x: Tensor, draw: Generator) -> Tensor:
    x = x.flip(3) if torch.rand((), generator=draw) < 0.5 else x
    row, column = torch.randint(0, 9, (2,), generator=draw).tolist()
    return F.pad(x, (4, 4, 4, 4))[:, :, row : row + 32, column : column + 32]


# ------------------------------------------------------------------------------------------------- texts


def text_tasks(seed: int) -> list[Task]:
    """The last tenth of each text is for the test, the tenth before it for validation."""
    texts = ((english(), 4 * WINDOWS), (python(), WINDOWS // 2), (c(), WINDOWS // 2))
    return [_text_task(text, count, seed) for text, count in texts]


def _text_task(text: str, count: int, seed: int) -> Task:
    letters = torch.tensor([min(ord(letter), LETTERS - 1) for letter in text])
    draw = torch.Generator().manual_seed(seed)
    ends = [math.floor(share * len(letters)) for share in (0, 0.8, 0.9, 1)]
    parts = []
    for start, end, windows in zip(ends, ends[1:], (count, 256, 256), strict=False):
        places = start + torch.randint(end - start - CONTEXT - 1, (windows,), generator=draw)
        window = letters[places[:, None] + torch.arange(CONTEXT + 1)]
        parts.append(Part(window[:, :-1], window[:, 1:]))
    return Task(*parts, LETTERS)


def english() -> str:
    """Python's own manual, which comes with it, and the licences that Debian has."""
    licences = sorted(Path("/usr/share/common-licenses").glob("*"))
    found = [path.read_text("utf-8", "replace") for path in licences if path.is_file() and not path.is_symlink()]
    return "\n".join([*pydoc_data.topics.topics.values(), *found])


def python() -> str:
    """Modules of the standard library without their docstrings, which are English."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return "\n".join(_code(path.read_text("utf-8", "replace")) for path in files[:120])


def _code(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def c() -> str:
    """The system's headers; where there are none, those that come with Python or torch."""
    places = (Path("/usr/include"), Path(sysconfig.get_paths()["include"]), Path(torch.__file__).parent / "include")
    for place in places:
        text = "\n".join(path.read_text("utf-8", "replace") for path in sorted(place.glob("*.h")))
        if len(text) > 200_000:
            return text
    raise FileNotFoundError("no C headers found beside the system, Python or torch")


def as_it_is(x: Tensor, draw: Generator) -> Tensor:
    return x


SETTINGS = {
    "cnn": Setting("CNN, CIFAR-100", CNN, image_tasks, crop_and_flip, ("c1", "c2"), 128),
    "resnet": Setting("ResNet with BatchNorm", ResNet, image_tasks, crop_and_flip, ("stem", "norm", "blocks.0"), 128),
    "vit": Setting("ViT", ViT, image_tasks, crop_and_flip, ("patches", "blocks.0"), 64),
    "gpt": Setting(
        "GPT: English, Python, C", GPT, text_tasks, as_it_is, ("letters", "blocks.0"), None, epochs=(24, 12)
    ),
    "pretrained": Setting("CNN that knows 60 classes", CNN, pretrained_tasks, crop_and_flip, ("c1", "c2"), 128),
}
