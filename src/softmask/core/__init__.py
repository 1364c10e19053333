"""The paper's mechanism, usable alone: needs torch and nothing else."""

from softmask.core.answers import KeepAnswers
from softmask.core.importance import cross_head_importance, fisher_importance, gradient_importance, importance_of
from softmask.core.mask import SoftMask
from softmask.core.protect import protect
from softmask.core.statistics import freeze_running_statistics
from softmask.core.subspace import SubspaceMask

__all__ = [
    "KeepAnswers",
    "SoftMask",
    "SubspaceMask",
    "cross_head_importance",
    "fisher_importance",
    "freeze_running_statistics",
    "gradient_importance",
    "importance_of",
    "protect",
]
