"""Soft-masking for continual learning: a network that learns task after task and keeps what it knew."""

from softmask.core import SoftMask, fisher_importance, freeze_running_statistics, gradient_importance

__version__ = "0.1.0"

__all__ = ["SoftMask", "fisher_importance", "freeze_running_statistics", "gradient_importance"]
