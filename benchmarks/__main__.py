"""`python -m benchmarks [NAME ...]`: without a name the three that matter most, with `all` every one."""

from __future__ import annotations

import importlib
import os
import sys

MAIN = ("step", "importance", "evaluation")
OTHERS = (
    *("profile", "products", "precision", "processes", "methods", "latency", "avalanche"),
    *("report", "own_model", "model_folder", "memory", "leakage", "grid", "stores", "stress"),
    *("protection", "pretrained", "predict", "time_to_accuracy"),
)


def main() -> None:
    names = sys.argv[1:] or MAIN
    names = (*MAIN, *OTHERS) if names == ["all"] else names
    for name in names:
        if name not in (*MAIN, *OTHERS):
            sys.exit(f"no benchmark {name!r}; there are {', '.join((*MAIN, *OTHERS))} and all")
    if "OMP_WAIT_POLICY" not in os.environ:
        print("note: OMP_WAIT_POLICY is not set; beside other busy processes set it to passive", file=sys.stderr)
    for name in names:
        importlib.import_module(f"benchmarks.{name}").main()


main()
