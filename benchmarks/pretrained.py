"""Fine-tuning a pretrained model again and again: what is left of what it knew, and what it learned.

    make bench NAME=pretrained                              # all cells that are not in results/pretrained.json yet
    python -m benchmarks.pretrained SETTING SEED WAY...     # these only, e.g. pretrained 1 plain inputs=100

Images: a CNN that was trained on 60 classes of CIFAR-100, then four tasks of 10 classes, 150 images a class. Text: a
GPT that was trained on English, then Python, then C. The pretrained model is learned once and kept in the folder for
temporary files. The loop is that of `protection`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import torch

from .pretrained_report import publish
from .protection import read_cells, run
from .timing import RESULTS

FILE = RESULTS / "pretrained.json"
GRID = ("plain", "protect=0.5", "inputs=100", "labelled=100", "lr=0.1", "lora=merged:8", "replay=0.05", "half=0.5")
SETTINGS, SEEDS = ("pretrained", "gpt"), (1, 2)


def main(arguments: Sequence[str] = ()) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # SoftMask's about running statistics
    if arguments:
        name, seed, *ways = arguments
        run(name, int(seed), ways, FILE)
        return
    for seed in SEEDS:
        for name in SETTINGS:
            run(name, seed, GRID, FILE)
    publish(read_cells(FILE))


if __name__ == "__main__":
    main(sys.argv[1:])
