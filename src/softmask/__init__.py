"""Soft-masking for continual learning: a network that learns task after task and keeps what it knew."""

import importlib
from typing import TYPE_CHECKING, Any

from softmask.core import SoftMask, fisher_importance, freeze_running_statistics, gradient_importance

if TYPE_CHECKING:
    from softmask.continual import ContinualModel

__version__ = "0.1.0"

__all__ = ["ContinualModel", "SoftMask", "fisher_importance", "freeze_running_statistics", "gradient_importance"]


def __getattr__(name: str) -> Any:
    """`ContinualModel` needs more than torch, so it is imported when it is asked for."""
    if name == "ContinualModel":
        return importlib.import_module("softmask.continual").ContinualModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
