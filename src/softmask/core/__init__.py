"""Importance and soft-masking (Konishi et al., ICML 2023, equations 1 to 7) for any training loop; torch alone."""

from softmask.core.answers import KeepAnswers
from softmask.core.gate import RetentionError, RetentionGate
from softmask.core.importance import (
    TaskImportance,
    cross_head_importance,
    fisher_importance,
    gradient_importance,
    importance_of,
    task_importance,
)
from softmask.core.mask import SoftMask
from softmask.core.protect import protect
from softmask.core.statistics import freeze_running_statistics
from softmask.core.subspace import SubspaceMask

__all__ = [
    "KeepAnswers",
    "RetentionError",
    "RetentionGate",
    "SoftMask",
    "SubspaceMask",
    "TaskImportance",
    "cross_head_importance",
    "fisher_importance",
    "freeze_running_statistics",
    "gradient_importance",
    "importance_of",
    "protect",
    "task_importance",
]
