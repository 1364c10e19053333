"""A backbone as a chain of standard layers, and the part of an image that its output depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import nn

from softmask.kernels.layers import Convolution, Linear

PLAIN_LAYERS = (Convolution, nn.Conv2d, nn.ReLU, nn.Dropout, nn.MaxPool2d, nn.Flatten, Linear, nn.Linear, nn.Identity)


@runtime_checkable
class Plain(Protocol):
    """A module whose forward computes exactly what these standard layers compute one after the other."""

    def plain_layers(self) -> list[nn.Module]: ...


def plain_chain(module: nn.Module) -> list[nn.Module] | None:
    """The standard layers that `module` is made of, in order; None if there is anything else in it."""
    if is_patched(module):
        return None
    if type(module) in PLAIN_LAYERS:
        return None if getattr(module, "return_indices", False) else [module]
    if isinstance(module, Plain):
        parts = module.plain_layers()
        if any(is_patched(child) for child in module.modules()):
            return None
    elif isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        parts = list(module)
    else:
        return None
    chains = [plain_chain(part) for part in parts]
    if any(chain is None for chain in chains):
        return None
    return [layer for chain in chains if chain is not None for layer in chain]


def is_patched(module: nn.Module) -> bool:
    """Whether the module has hooks or a replaced forward, and so may compute anything: spectral and weight norm,
    monkey-patched adapters and masked gradients work this way."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    own = module._parameters.values()
    return any(hooks) or "forward" in vars(module) or any(p is not None and p._backward_hooks for p in own)


class Window(NamedTuple):
    """How a convolution or a pool slides along one dimension."""

    kernel: int
    stride: int
    before: int
    after: int
    dilation: int
    ceil: bool

    @property
    def reach(self) -> int:
        """Distance from the first to the last entry under the window."""
        return self.dilation * (self.kernel - 1)

    def positions(self, size: int) -> int:
        """How many outputs an input of this size gives."""
        free = size + self.before + self.after - self.reach - 1
        count = max(0, (-(-free // self.stride) if self.ceil else free // self.stride) + 1)
        # As torch does: a partial window that would start in the padding at the end is left out.
        return count - 1 if self.ceil and (count - 1) * self.stride >= size + self.before else count

    def positions_within(self, entries: int) -> int:
        """How many of the first outputs read nothing beyond the first `entries` inputs (and the padding before)."""
        return max(0, (entries - 1 + self.before - self.reach) // self.stride + 1)


def needed_input(chain: Sequence[nn.Module], height: int, width: int) -> tuple[int, int]:
    """The number of rows and columns, from the top left, that give exactly the same output.

    Strides and pools that round down ignore what does not fill a window. Where padding at the end would replace pixels
    that matter, nothing is cropped.
    """
    return _needed(_windows(chain, 0), height, "height"), _needed(_windows(chain, 1), width, "width")


def _needed(windows: Sequence[Window] | None, size: int, name: str) -> int:
    if windows is None:
        return size
    sizes = _sizes(windows, size)
    if sizes[-1] < 1:
        raise ValueError(f"an image of {name} {size} is too small: nothing is left after the layers' windows")
    return next((crop for crop in range(1, size) if _keeps_output(windows, crop, sizes)), size)


def _sizes(windows: Sequence[Window], size: int) -> list[int]:
    sizes = [size]
    for window in windows:
        sizes.append(window.positions(sizes[-1]) if sizes[-1] > 0 else 0)
    return sizes


def _keeps_output(windows: Sequence[Window], crop: int, sizes: Sequence[int]) -> bool:
    """Whether some layer's whole output, and so everything after it, is unchanged by the crop."""
    size = same = crop
    for window, full in zip(windows, sizes[1:], strict=True):
        size, same = window.positions(size), window.positions_within(same)
        if size < 1:
            return False  # the layer would find its input too small
        if size == full and same >= full:
            return True
    return False


def _windows(chain: Sequence[nn.Module], dimension: int) -> list[Window] | None:
    """The windows up to the first layer that reads the whole image; None if one pads with the image's own pixels."""
    windows = []
    for layer in chain:
        if isinstance(layer, (nn.ReLU, nn.Dropout, nn.Identity)):
            continue
        if not isinstance(layer, (nn.Conv2d, nn.MaxPool2d)):
            break
        window = _window(layer, dimension)
        if isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros" and (window.before or window.after):
            return None
        windows.append(window)
    return windows


def _window(layer: nn.Conv2d | nn.MaxPool2d, dimension: int) -> Window:
    def along(value: int | tuple[int, ...]) -> int:
        return value if isinstance(value, int) else value[dimension]

    kernel, dilation = along(layer.kernel_size), along(layer.dilation)
    padding, stride = layer.padding, along(layer.stride)
    if padding == "same":
        total = dilation * (kernel - 1)
        before, after = total // 2, total - total // 2
    elif padding == "valid":
        before = after = 0
    else:
        assert not isinstance(padding, str)
        before = after = along(padding)
    ceil = isinstance(layer, nn.MaxPool2d) and layer.ceil_mode
    return Window(kernel, stride, before, after, dilation, ceil)
