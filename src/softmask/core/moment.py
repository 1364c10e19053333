"""Noticing that importance has changed, so that what was derived from it is made anew."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class Moment:
    """The mask at one moment: tells whether the threshold or an importance was replaced or changed in place since."""

    def __init__(self, importance: Mapping[str, Tensor], threshold: float | None) -> None:
        # The tensors themselves are kept: an id alone may be given to another tensor once they are gone.
        self._tensors = [(tensor, _version(tensor)) for tensor in importance.values()]
        self._threshold = threshold

    def is_now(self, importance: Mapping[str, Tensor], threshold: float | None) -> bool:
        if threshold != self._threshold or len(importance) != len(self._tensors):
            return False
        return all(
            then is now and version is not None and version == _version(now)
            for (then, version), now in zip(self._tensors, importance.values(), strict=True)
        )


def _version(tensor: Tensor) -> int | None:
    """Counts the changes in place; a tensor made in inference mode does not count them."""
    return None if tensor.is_inference() else tensor._version
