"""Some rows of a large array of pictures as a tensor: each batch is read from the array when it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Answered from the shape alone.
_METADATA = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.nbytes.__get__,  # type: ignore[attr-defined]
    Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
    Tensor.__len__,
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
}


class ChosenImages(Tensor):
    """A tensor without memory of its own, over rows of a (memory-mapped) array.

    Slices and rows picked by their numbers are copied out of the array; every other operation first copies all the
    rows. A million mapped pictures are thus ready at once and cost what has been looked at so far.
    """

    stored: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.intp]

    @staticmethod
    def __new__(cls, stored: npt.NDArray[np.uint8], rows: npt.NDArray[np.intp]) -> ChosenImages:
        shape = (len(rows), *stored.shape[1:])
        made: ChosenImages = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.uint8)
        made.stored, made.rows = stored, rows
        return made

    def copied(self, which: slice | npt.NDArray[np.intp] = slice(None)) -> Tensor:
        """These of the rows as an ordinary tensor."""
        return torch.from_numpy(np.ascontiguousarray(self.stored[self.rows[which]]))

    @classmethod
    def __torch_function__(
        cls, operation: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        if operation in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return operation(*arguments)
        if operation is Tensor.__getitem__ and isinstance(arguments[0], cls):
            images, which = arguments
            if isinstance(which, slice):
                return images.copied(which)
            if isinstance(which, Tensor) and which.dtype == torch.int64:
                return images.copied(which.numpy())
        return operation(*map(_whole, arguments), **{name: _whole(value) for name, value in (named or {}).items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """For what goes round `__torch_function__`; batches do not, since torch imports much at its first use."""
        return operation(*map(_whole, arguments), **{name: _whole(value) for name, value in (named or {}).items()})


def _whole(value: Any) -> Any:
    if isinstance(value, ChosenImages):
        return value.copied()
    return type(value)(map(_whole, value)) if isinstance(value, list | tuple) else value
