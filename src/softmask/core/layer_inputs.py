"""Layers as matrices: which layers are supported, and the second moments of their inputs. A layer computes `W x`, so a
change of its weights affects its output only along its inputs `x`. The inputs of a convolution are patches, those of an
embedding one-hot vectors, and a bias is the weight of an input that is always 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from softmask.core.parameters import WRAPPERS, named_parameters, unwrapped
from softmask.core.second_moments import Counts, Gram, Sketch

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
CHUNK = 2**22
"""Entries of a matrix of inputs at a time: 32 MB in float64."""
Meets = dict[nn.Module, list[tuple[str, "Layer"]]]
"""The layers that receive a module's inputs, by the name of the argument; a fused module has several."""


@dataclass(eq=False)
class Layer:
    """Weights (and a bias) as matrices of one row an output and one column an input, one matrix a group."""

    name: str
    weight: nn.Parameter
    bias: nn.Parameter | None = None
    groups: int = 1
    part: tuple[int, int] | None = None
    """The range of outputs, where several layers are fused into one tensor."""
    transposed: bool = False
    is_embedding: bool = False
    """Its inputs are indices, so the moment is diagonal and counts how often each row is used."""

    @property
    def inputs(self) -> int:
        """The input width without the constant input of the bias."""
        return self.weight.shape[0] if self.is_embedding or self.transposed else self.weight[0].numel()

    @property
    def width(self) -> int:
        return self.inputs + (self.bias is not None)

    def outputs_first(self, tensor: Tensor) -> Tensor:
        """A view of a weight, of its gradient or of a bias: the outputs that are meant, along the first dimension."""
        return (tensor.T if self.transposed and tensor.dim() == 2 else tensor)[slice(*self.part or (None,))]

    def matrix(self, changes: Sequence[Tensor]) -> Tensor:
        """[groups, outputs, inputs] of a change of the weight, of the bias (last column), or of both."""
        return torch.cat([t.reshape(self.groups, t.shape[0] // self.groups, -1) for t in changes], -1)

    def accumulator(self, rank: int | None) -> Counts | Gram | Sketch:
        device = self.weight.device if self.weight.device.type != "mps" else torch.device("cpu")  # it has no float64
        if self.is_embedding:
            return Counts(self.inputs, device)
        if rank is None or rank >= self.width:
            return Gram(self.groups, self.width, device)
        return Sketch(self.groups, self.width, rank, device)


def layers_of(backbone: nn.Module) -> tuple[dict[str, Layer], Meets]:
    """Every supported layer, by name, and the modules whose inputs it receives."""
    found: dict[tuple[Any, ...], Layer] = {}
    meets: Meets = {}
    within: set[nn.Module] = set()
    for name, module in unwrapped(backbone).named_modules():
        plain = ".".join(part for part in name.split(".") if part not in WRAPPERS) or "itself"
        if module in within:
            continue
        for role, layer in _layers(plain, module):
            # Tied weights are one layer that is applied more than once; an embedding meets other inputs than they do.
            layer = found.setdefault((id(layer.weight), layer.is_embedding, layer.part), layer)
            meets.setdefault(module, []).append((role, layer))
        if isinstance(module, nn.MultiheadAttention):
            within.add(module.out_proj)  # is never called: the attention takes its weights
    return {layer.name: layer for layer in found.values()}, meets


def _layers(name: str, module: nn.Module) -> Iterator[tuple[str, Layer]]:
    if isinstance(module, nn.MultiheadAttention):
        yield from _attention_layers(name, module)
        return
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if not isinstance(weight, nn.Parameter):
        return  # computed from other parameters, as weight normalisation does
    if isinstance(module, nn.Linear):
        yield "input", Layer(name, weight, bias)
    elif isinstance(module, CONVOLUTIONS):
        yield "input", Layer(name, weight, bias, module.groups)
    elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        yield "input", Layer(name, weight, is_embedding=True)
    elif type(module).__name__ == "Conv1D" and hasattr(module, "nf") and weight.dim() == 2:
        yield "x", Layer(name, weight, bias, transposed=True)


def _attention_layers(name: str, module: nn.MultiheadAttention) -> Iterator[tuple[str, Layer]]:
    apart, size = module.in_proj_weight is None, module.embed_dim
    for index, role in enumerate(("query", "key", "value")):
        outputs = (index * size, (index + 1) * size)
        if not apart:
            yield role, Layer(f"{name}.{role}", module.in_proj_weight, module.in_proj_bias, part=outputs)
        else:
            weight = getattr(module, f"{role[0]}_proj_weight")
            yield role, Layer(f"{name}.{role}", weight)
    for _, layer in _layers(f"{name}.out_proj", module.out_proj):
        yield "out_proj", layer


def entries_of(backbone: nn.Module, layers: Iterable[Layer]) -> dict[str, nn.Parameter]:
    """All other parameters, such as those of normalisation layers, whose inputs are not measured."""
    taken = {id(p) for layer in layers for p in (layer.weight, layer.bias)}
    return {name: p for name, p in named_parameters(backbone).items() if id(p) not in taken}


@contextmanager
def observed(meets: Meets, see: Callable[[Layer, Tensor], None]) -> Iterator[None]:
    """While active, `see` is called with the inputs [groups, samples, inputs] of each layer; for an embedding, the
    indices."""
    hooks = [module.register_forward_pre_hook(_observer(of, see), with_kwargs=True) for module, of in meets.items()]
    quick = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it takes the weights of whole blocks and calls no layer
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(quick)
        for hook in hooks:
            hook.remove()


def _observer(of: list[tuple[str, Layer]], see: Callable[[Layer, Tensor], None]) -> Callable[..., None]:
    inside = False

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal inside
        if inside:
            return
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        for role, layer in of:
            if role == "out_proj":
                inside = True
                given[role] = _before_projection(module, args, kwargs)
                inside = False
            x = given[role] if role in given else next(iter(given.values()))
            for rows in _rows(layer, module, x.detach()):
                see(layer, rows)

    return before


def _before_projection(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The input of an attention's output projection: its output, were the projection the identity."""
    out = module.get_submodule("out_proj")
    plain = {"out_proj.weight": torch.eye(len(out.weight)).to(out.weight)}  # type: ignore[arg-type]
    if out.bias is not None:
        plain["out_proj.bias"] = torch.zeros_like(out.bias)  # type: ignore[arg-type]
    return functional_call(module, plain, args, kwargs)[0]


def _rows(layer: Layer, module: nn.Module, x: Tensor) -> Iterator[Tensor]:
    if layer.is_embedding:
        padding = getattr(module, "padding_idx", None)  # never moves
        yield x.reshape(-1) if padding is None else x[x != padding]
    elif isinstance(module, CONVOLUTIONS):
        if x.dim() == module.weight.dim() - 1:
            x = x[None]
        # One image shows how many patches each has.
        size = max(1, CHUNK // max(1, _patches(module, x[:1]).numel()))
        for part in x.split(size):
            yield _with_constant(layer, module, _patches(module, part))
    else:
        for part in x.reshape(-1, x.shape[-1]).split(max(1, CHUNK // x.shape[-1])):
            yield _with_constant(layer, module, part[None])


def _with_constant(layer: Layer, module: nn.Module, rows: Tensor) -> Tensor:
    if layer.bias is None:
        return rows
    # A module with the same weights and no bias of this layer meets a constant of 0.
    has_it = any(parameter is layer.bias for parameter in module.parameters())
    return torch.cat([rows, torch.full_like(rows[..., :1], float(has_it))], -1)


def _patches(layer: nn.Module, x: Tensor) -> Tensor:
    """[groups, samples * positions, channels of a group * kernel]: the patch at each position of a convolution."""
    assert isinstance(layer, CONVOLUTIONS)
    # Right for numbers, "same" and "valid" alike; torch's own forward pads so, too.
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    dimensions = len(layer.kernel_size)
    for axis, (size, stride, dilation) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)):
        x = x.unfold(2 + axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    x = x.movedim(1, 1 + dimensions)  # samples, positions, channels, kernel
    positions = x.shape[: 1 + dimensions].numel()
    return x.reshape(positions, layer.groups, -1).transpose(0, 1)
