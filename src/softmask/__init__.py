"""Continual learning by soft-masking: a network learns task after task without catastrophic forgetting."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

__all__ = [
    "ContinualModel",
    "KeepAnswers",
    "RetentionError",
    "RetentionGate",
    "SoftMask",
    "SubspaceMask",
    "fisher_importance",
    "freeze_running_statistics",
    "gradient_importance",
    "protect",
]

if TYPE_CHECKING:
    from softmask.core import (
        KeepAnswers,
        RetentionError,
        RetentionGate,
        SoftMask,
        SubspaceMask,
        fisher_importance,
        freeze_running_statistics,
        gradient_importance,
        protect,
    )
    from softmask.models import ContinualModel
else:  # type checkers would believe that `__getattr__` answers to any name

    def __getattr__(name: str) -> object:
        """Imported when asked for: torch takes seconds, and the command line's help can do without it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "softmask.models" if name == "ContinualModel" else "softmask.core"
        return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
