"""Fast CPU implementations of computations that `softmask.core` and `softmask.learning` define. Needs torch alone."""
