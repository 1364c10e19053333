"""Two methods on a backbone of your own and a table of your own images, compared in one table."""

import pandas as pd
from sklearn.datasets import load_digits
from torch import nn

from softmask.experiments import load_runs, run
from softmask.experiments.sequences import sequence_from_table


def backbone(input_shape: tuple[int, int, int]) -> nn.Module:
    first = nn.Sequential(nn.Conv2d(input_shape[0], 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(first, nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 128), nn.ReLU())


if __name__ == "__main__":
    digits = load_digits(n_class=6)
    table = pd.DataFrame({"image": list(digits.images / 16), "label": digits.target})
    table["task"] = [f"{2 * (label // 2)} or {2 * (label // 2) + 1}" for label in table["label"]]
    sequence = sequence_from_table("digit-pairs", table)
    for method in ("ncl", "spg"):
        run(method, sequence, network=backbone, preset="short", store="own-runs")
    print(load_runs("own-runs")[["method", "ACC", "BWT", "ACC (no id)", "time"]].round(1).to_string(index=False))
