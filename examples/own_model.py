"""Your own model, training loop and optimizer with the core of the package alone.

Run `python examples/own_model.py`. Three tasks of handwritten digits, one after another, with a small network
and Adam; it prints the accuracy on each task when it was learned and after the last, without the mask and with it.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from softmask import SoftMask

TASKS = ((0, 1, 2), (3, 4, 5), (6, 7, 8))
Data = tuple[Tensor, Tensor]


def digits(classes: tuple[int, ...]) -> tuple[Data, Data]:
    """Training and test images of these digits, labelled by their position among these classes."""
    source = load_digits()
    images = torch.tensor(source.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(source.target)
    rows = torch.isin(labels, torch.tensor(classes)).nonzero().flatten()
    images, labels = images[rows], labels[rows] - classes[0]
    tested = torch.arange(len(rows)) % 5 == 0
    return (images[~tested], labels[~tested]), (images[tested], labels[tested])


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())


def accuracy(backbone: nn.Module, head: nn.Module, data: Data) -> float:
    with torch.inference_mode():
        return (head(backbone(data[0])).argmax(1) == data[1]).double().mean().item()


def learn(protect: bool, epochs: int = 15) -> tuple[list[float], list[float]]:
    """Accuracy on each task when it was learned, and after the last."""
    torch.manual_seed(0)
    backbone = network()
    mask = SoftMask(backbone)
    heads: list[nn.Module] = []
    fresh: list[float] = []
    data = [digits(classes) for classes in TASKS]
    for task, ((images, labels), test) in enumerate(data):
        batches = list(zip(images.split(32), labels.split(32), strict=True))
        head = nn.Linear(128, len(TASKS[task]))
        optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=1e-2)
        with mask.attach(optimizer, head=head) if protect else nullcontext():
            for _ in range(epochs):
                for x, y in batches:
                    optimizer.zero_grad()
                    F.cross_entropy(head(backbone(x)), y).backward()
                    optimizer.step()
        mask.consolidate(batches, head, previous_heads=heads)
        heads.append(head)
        fresh.append(accuracy(backbone, head, test))
    return fresh, [accuracy(backbone, head, test) for head, (_, test) in zip(heads, data, strict=True)]


def main() -> None:
    for title, protect in (("without the mask", False), ("with the mask", True)):
        fresh, final = learn(protect)
        rows = (" ".join(f"{100 * share:5.1f}" for share in row) for row in (fresh, final))
        print(f"{title:16}  when learned {next(rows)}   at the end {next(rows)}", flush=True)


if __name__ == "__main__":
    main()
