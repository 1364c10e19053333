"""A device that is not the CPU, for machines that have none: it computes on the CPU and refuses to mix tensors.

Its tensors say that they live on `meta:1`, a device that torch knows and nobody has. They hold a tensor of the CPU, and
take no part in an operation with one that lives on the CPU, unless that is a single number, an index or a copy from one
device to the other: just as it is with CUDA. Random numbers come from the CPU's generator, so that results must be
equal to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta:1")
COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default)


class Pretended(Tensor):
    """A tensor on the pretended device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        tensor: Pretended = Tensor._make_wrapper_subclass(cls, held.size(), dtype=held.dtype, device=DEVICE, **layout)  # type: ignore[attr-defined]
        tensor.held = held
        return tensor

    def tolist(self) -> Any:
        """Torch refuses this to tensors of a subclass."""
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _perform(operation, args, kwargs or {})


class _OnThePretended(TorchDispatchMode):
    """Sees what makes a tensor there from none, or from one on the CPU."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _perform(operation, args, kwargs or {})


def _perform(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    there = [tensor for tensor in given if isinstance(tensor, Pretended)]
    here = [tensor for tensor in given if not isinstance(tensor, Pretended)]
    if operation in INDEXING and isinstance(args[0], Pretended):  # positions may lie on the CPU, values not
        here = [value for value in args[2:] if isinstance(value, Tensor) and not isinstance(value, Pretended)]
    if there and any(tensor.dim() for tensor in here) and operation not in COPIES:
        raise RuntimeError(f"{operation} with tensors of two devices")
    wanted = kwargs.get("device")
    ends_there = wanted == DEVICE if wanted is not None else bool(there)
    if operation is torch.ops.aten.copy_.default:  # ends where its first argument lives
        ends_there = isinstance(args[0], Pretended)
    if wanted is not None and ends_there:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known = {id(tensor.held): tensor for tensor in there}
    result = operation(*tree_map(_held, args), **tree_map(_held, kwargs))

    if torch.Tag.inplace_view in operation.tags:  # the shape that is seen from outside changes, too
        with no_dispatch():
            operation(*args, **kwargs)

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor) or not ends_there:
            return value
        return known[id(value)] if id(value) in known else Pretended(value)

    return tree_map(placed, result)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Pretended) else value


@contextmanager
def pretended_device(*modules: Any) -> Iterator[None]:
    """Inside, these modules get the pretended device for any name."""
    make = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}
    make_generator, here = torch.Generator, "cpu"

    def made_here(name: str) -> Any:
        """Torch makes these out of our sight; so they are made on the CPU and sent there."""

        def made(data: Any, *, device: Any = None, **options: Any) -> Tensor:
            there = make[name](data, **options)
            return there if device is None else there.to(device)

        return made

    with pytest.MonkeyPatch.context() as patch, _OnThePretended():
        for module in modules:
            for finds in {"find_device", "parse_device"} & vars(module).keys():
                patch.setattr(module, finds, lambda name: DEVICE)
        for name in make:
            patch.setattr(torch, name, made_here(name))
        patch.setattr(torch, "Generator", lambda device=here: make_generator(here))
        # The shortest dtypes need no autocast, and a tensor that holds another cannot be made in inference mode.
        patch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
        patch.setattr(torch, "is_autocast_enabled", lambda *_: False)
        patch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad() if mode else nullcontext())
        yield
