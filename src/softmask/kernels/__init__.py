"""Fast CPU implementations of computations that `softmask.core` and `softmask.learning` define. Needs torch alone.

`core` asks a single function, `fast_cross_head_importance`, which returns None where no fast path applies.
"""

from softmask.kernels.cross_head import fast_cross_head_importance

__all__ = ["fast_cross_head_importance"]
