"""Settings for the built-in sequences D-5 and R-10: every method learns with them, in a few minutes on a CPU.

The presets are intended for sequences with thousands of images: at a batch size of 64 a task of R-10 has 70 steps in
preset `short`, in which HAT and PGN do not get above chance. All methods share the training; a method has settings here
only where its defaults fail.
"""

from __future__ import annotations

from typing import Any

from softmask.errors import ConfigError

# Smaller batches give every method more steps. R-10 has twice as many tasks, each with nearly twice as many images.
TRAINING: dict[str, dict[str, Any]] = {"D-5": {"epochs": 20, "batch": 16}, "R-10": {"epochs": 8, "batch": 16}}
# Slower than the authors' s_max of 400, since a task has 200 steps: HAT reaches 66.5 on R-10, with its defaults 47.4.
GATES = {"steepness": 50.0, "sparsity": 0.2}
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "D-5": {},
    # Ten columns that together are as large as one plain network have one channel each in the first layer. With 4 they
    # have six, and PGN 5.5 million parameters where the plain network has 0.4.
    "R-10": {"hat": {**GATES, "lr": 0.5}, "cat": GATES, "pgn": {"expansion": 4.0}},
}


def built_in_settings(method: str, sequence: str) -> dict[str, Any]:
    """As `make_config` takes them."""
    if sequence not in TRAINING:
        raise ConfigError(f"built-in settings are for {' and '.join(TRAINING)}, not for {sequence}")
    training = {f"training.{name}": value for name, value in TRAINING[sequence].items()}
    return training | {f"settings.{name}": value for name, value in METHODS[sequence].get(method, {}).items()}
