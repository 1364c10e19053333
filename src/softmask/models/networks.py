"""The networks of a model: four built-in ones, those of timm, transformers models from a folder, and any function.
Nothing is downloaded: weights come from local files.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from softmask.core import freeze_running_statistics
from softmask.errors import UnknownName
from softmask.learning.backbones import TIMM, NetworkError, called, from_timm, imported, read_weights, with_widths
from softmask.learning.networks import Backbone, alexnet, mlp, resnet18, vit_tiny

Network = str | Callable[[], nn.Module]
"""A name, `module:function`, or the function itself, which returns a module from inputs to features when called without
arguments."""


def _alexnet(shape: tuple[int, ...], width: float, dropout: bool) -> nn.Module:
    if len(shape) != 3:
        raise ValueError(f"alexnet takes images (channels, height, width), not {shape}")
    image = (shape[0], shape[1], shape[2])
    return alexnet(image, width=width) if dropout else alexnet(image, width=width, drop1=0.0, drop2=0.0)


# The others have no dropout in any case.
BUILT_IN: dict[str, Callable[[tuple[int, ...], float, bool], nn.Module]] = {
    "alexnet": _alexnet,
    "mlp": lambda shape, width, _: mlp(shape, width=width),
    "resnet18": lambda shape, width, _: resnet18(shape, width=width),
    "vit-tiny": lambda shape, width, _: vit_tiny(shape, width=width),
}

TRANSFORMERS = "transformers:"
OF_TIMM = re.compile(r"timm:[a-z0-9_]{1,100}")
"""A name in timm's own list; not an address to download from."""


def is_trusted(name: str) -> bool:
    """Whether a folder may name it: only code that was installed deliberately is run."""
    return name in BUILT_IN or bool(OF_TIMM.fullmatch(name))


def name_of(network: Network) -> str:
    """The name of a network in the description of a model."""
    if isinstance(network, str):
        if network.startswith(TIMM) and not is_trusted(network):
            raise NetworkError(f"{network[:100]!r}: timm's networks are named as in timm:resnet18, without a tag")
        if ":" not in network and network not in BUILT_IN:
            raise UnknownName("network", network, [*BUILT_IN, "timm:NAME", "transformers:FOLDER", "module:function"])
        return network
    if isinstance(network, nn.Module):
        raise NetworkError("a network is given by the function that makes it, not by a module: a folder keeps its name")
    if not hasattr(network, "__qualname__"):
        raise NetworkError(f"a {type(network).__name__} has no name to be kept: give a function that can be imported")
    return f"{network.__module__}:{network.__qualname__}"


def check_trusted(named: str, given: Network | None) -> None:
    """A custom network runs only if the caller names it: a foreign folder must not decide what is imported."""
    if is_trusted(named):
        if given is not None and name_of(given) != named:
            raise NetworkError(f"the model's network is {named}, not {name_of(given)}")
    elif given is None:
        raise NetworkError(f"the model wants to run {named}: if you trust it, pass network {named!r} (--network)")
    elif isinstance(given, str) and given != named:
        raise NetworkError(f"the model's network is {named}, not {given}")


def make_backbone(
    network: Network, shape: tuple[int, ...], width: float, *, dropout: bool, frozen_statistics: bool
) -> Backbone:
    """A module with `widths`, the last of which is that of its features. A custom network has its own dropout.

    The statistics of batch normalisation are frozen after the first task (`frozen_statistics`).
    """
    name = name_of(network)
    backbone = _made(network, name, shape, width, dropout)
    if frozen_statistics:
        freeze_running_statistics(backbone)
    return cast(Backbone, backbone if name in BUILT_IN else with_widths(backbone, shape, name))


def _made(network: Network, name: str, shape: tuple[int, ...], width: float, dropout: bool) -> nn.Module:
    if name in BUILT_IN:
        try:
            return BUILT_IN[name](shape, width, dropout)
        except ValueError as error:
            raise NetworkError(f"network {name}: {error}") from None
    if not isinstance(network, str):
        return called(network, shape, name)
    if network.startswith(TIMM):
        return from_timm(network.removeprefix(TIMM), shape)
    if network.startswith(TRANSFORMERS):
        return called(lambda: OfTransformers(network.removeprefix(TRANSFORMERS)), shape, name)
    return called(imported(network), shape, name)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise NetworkError(
            "this network needs the package transformers: pip install 'softmask[transformers]'"
        ) from None
    return transformers


class OfTransformers(nn.Module):
    """The model in a folder of `save_pretrained`, without its head; its pooled output, or the mean over positions."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        if not (Path(folder) / "config.json").is_file():
            raise NetworkError(f"{folder}: no folder of transformers, which has a config.json; nothing is downloaded")
        transformers = _transformers()
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        self.model = transformers.AutoModel.from_config(config)

    def forward(self, x: Tensor) -> Tensor:
        output = self.model(x)
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        return output.last_hidden_state.mean(1) if pooled is None else pooled.flatten(1)


def load_weights(backbone: nn.Module, source: Path, network: Network) -> None:
    """The weights in a state file (safetensors, or torch's format without code), or in a folder of transformers."""
    if source.is_dir():
        if not isinstance(backbone, OfTransformers):
            raise NetworkError(f"{source} is a folder: weights of {name_of(network)} are in a file")
        transformers = _transformers()
        state = transformers.AutoModel.from_pretrained(str(source), local_files_only=True).state_dict()
        target: nn.Module = backbone.model
    else:
        state, target = read_weights(source), backbone
    try:
        found = target.load_state_dict(state, strict=False)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise NetworkError(f"{source} does not fit {name_of(network)}: {reason}") from None
    if found.missing_keys:
        raise NetworkError(f"{source} does not fit {name_of(network)}: it lacks {found.missing_keys[0]!r}")
    if found.unexpected_keys:
        named = ", ".join(found.unexpected_keys[:3])
        warnings.warn(f"{source}: {len(found.unexpected_keys)} weights are not used: {named}", stacklevel=2)
