"""What a model folder keeps: three tasks of photographs through `softmask learn` and `predict`.

Five classes of CIFAR-100 a task, 450 images a class, as folders of PNG files. After every task the 100 test images of
each class learned so far are predicted. Every command is a process of its own. `FOLDER_SEEDS=1,2` names the seeds,
which draw the classes, too; `FOLDER_WAYS=lwf,ncl` the ways; `FOLDER_WIDTH=1` the width of the AlexNet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from softmask.experiments.sequences.cifar100 import PER_CLASS, locate, read_cifar100

from .timing import RESULTS, Report

TASKS, CLASSES = 3, 5
WAYS: dict[str, tuple[str, ...]] = {
    "lwf": (),
    "lwf 1": ("--set", "settings.strength=1"),
    "ncl": ("--method", "ncl"),
    "spg": ("--method", "spg"),
}
TITLES = {
    "lwf": "the defaults: old heads' answers kept (`lwf`, strength 0.5)",
    "lwf 1": "the same with strength 1",
    "ncl": "plain fine-tuning, same training (`--method ncl`)",
    "spg": "the defaults of 0.1: soft mask, SGD (`--method spg`)",
}


def write_images(root: Path, seed: int) -> None:
    """Folders `train/TASK/CLASS` and `test/TASK/CLASS`."""
    train, test, names = read_cifar100(locate(Path(os.environ["SOFTMASK_DATA"]), 10), PER_CLASS)
    drawn = np.random.RandomState(seed).permutation(len(names))
    for part, samples, count in (("train", train, PER_CLASS.train), ("test", test, PER_CLASS.test)):
        for place, label in enumerate(drawn[: TASKS * CLASSES]):
            folder = root / part / f"task{place // CLASSES}" / names[label]
            folder.mkdir(parents=True)
            for row in np.flatnonzero(samples.labels == label)[:count]:
                Image.fromarray(np.asarray(samples.images[row]).transpose(1, 2, 0)).save(folder / f"{row}.png")


def accuracies(root: Path, way: str, seed: int, width: str) -> list[list[float]]:
    """In percent: a row for each task learned, a column for each task."""
    model, rows = root / way, []
    for learned in range(TASKS):
        images = root / "train" / f"task{learned}"
        made = ("--network", "alexnet", "--width", width, "--seed", str(seed), *WAYS[way])
        _softmask("learn", model, images, *made)
        rows.append([_accuracy(model, root / "test" / f"task{task}") for task in range(learned + 1)])
        print(way, seed, rows[-1], file=sys.stderr, flush=True)
    return rows


def _accuracy(model: Path, images: Path) -> float:
    found = json.loads(_softmask("predict", model, images, "--task", images.name, "--json"))
    return 100 * sum(Path(each["item"]).parent.name == each["label"] for each in found) / len(found)


def _softmask(*arguments: Any) -> str:
    command = [sys.executable, "-m", "softmask", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    width = os.environ.get("FOLDER_WIDTH", "1")
    details: dict[str, Any] = {}
    kept = RESULTS / "model_folder.json"
    if kept.exists():  # rows of other seeds, ways and widths stay
        details = json.loads(kept.read_text())["measured"]
    for seed in map(int, os.environ.get("FOLDER_SEEDS", "1,2").split(",")):
        with tempfile.TemporaryDirectory() as folder:
            write_images(Path(folder), seed)
            for way in os.environ.get("FOLDER_WAYS", ",".join(WAYS)).split(","):
                details[f"width {width}, seed {seed}, {way}"] = accuracies(Path(folder), way, seed, width)
    rows = []
    for name in sorted(details):
        found, way = details[name], name.rsplit(", ", 1)[1]
        first, last = found[0][0], found[-1][0]
        new = sum(found[task][task] for task in range(1, TASKS)) / (TASKS - 1)
        mean = sum(found[-1]) / TASKS
        rows.append((name.rsplit(", ", 1)[0], TITLES[way], f"{first:.1f}, {last:.1f}", f"{new:.1f}", f"{mean:.1f}"))
    columns = ("setting", "way", "first task: when learned, at the end", "new tasks, when learned", "mean at the end")
    notes = ["Accuracy on test images in percent, after three tasks of five classes of CIFAR-100."]
    Report("model_folder", columns, rows, notes).publish({"measured": details})


if __name__ == "__main__":
    main()
