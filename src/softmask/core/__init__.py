"""Importance and soft-masking (Konishi et al., ICML 2023, equations 1 to 7) for any training loop; torch alone."""

from softmask.core.importance import (
    TaskImportance,
    cross_head_importance,
    fisher_importance,
    gradient_importance,
    importance_of,
    task_importance,
)
from softmask.core.mask import SoftMask
from softmask.core.statistics import freeze_running_statistics

__all__ = [
    "SoftMask",
    "TaskImportance",
    "cross_head_importance",
    "fisher_importance",
    "freeze_running_statistics",
    "gradient_importance",
    "importance_of",
    "task_importance",
]
