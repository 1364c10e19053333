"""The networks that a model may have: four by name, and any importable function."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import nn

from softmask.core import freeze_running_statistics
from softmask.errors import UnknownName
from softmask.learning.backbones import NetworkError, called, imported, with_widths
from softmask.learning.networks import Backbone, alexnet, mlp, resnet18, vit_tiny

Network = str | Callable[[], nn.Module]
"""A name, `module:function`, or the function itself, which without arguments gives a module from inputs to features."""


def _alexnet(shape: tuple[int, ...], width: float, dropout: bool) -> nn.Module:
    if len(shape) != 3:
        raise ValueError(f"alexnet takes images (channels, height, width), not {shape}")
    rates = {} if dropout else {"drop1": 0.0, "drop2": 0.0}
    return alexnet((shape[0], shape[1], shape[2]), width=width, **rates)


# The others have no dropout in any case.
BUILT_IN: dict[str, Callable[[tuple[int, ...], float, bool], nn.Module]] = {
    "alexnet": _alexnet,
    "mlp": lambda shape, width, _: mlp(shape, width=width),
    "resnet18": lambda shape, width, _: resnet18(shape, width=width),
    "vit-tiny": lambda shape, width, _: vit_tiny(shape, width=width),
}


def name_of(network: Network) -> str:
    """The name of a network in the description of a model."""
    if isinstance(network, str):
        if ":" not in network and network not in BUILT_IN:
            raise UnknownName("network", network, [*BUILT_IN, "module:function"])
        return network
    if isinstance(network, nn.Module):
        raise NetworkError("a network is given by the function that makes it, not by a module: a folder keeps its name")
    if not hasattr(network, "__qualname__"):
        raise NetworkError(f"a {type(network).__name__} has no name to be kept: give a function that can be imported")
    return f"{network.__module__}:{network.__qualname__}"


def check_trusted(named: str, given: Network | None) -> None:
    """A custom network runs only if the caller names it: a foreign folder must not choose what is imported."""
    if named in BUILT_IN:
        if given is not None and name_of(given) != named:
            raise NetworkError(f"the model's network is {named}, not {name_of(given)}")
    elif given is None:
        raise NetworkError(f"the model wants to run {named}: if you trust it, say so by network {named!r} (--network)")
    elif isinstance(given, str) and given != named:
        raise NetworkError(f"the model's network is {named}, not {given}")


def make_backbone(
    network: Network, shape: tuple[int, ...], width: float, *, dropout: bool, frozen_statistics: bool
) -> Backbone:
    """A module with `widths`, the last of which is that of its features. A custom network has its own dropout.

    Batch normalisation follows the data of the first task and stays as that left it (`frozen_statistics`).
    """
    name = name_of(network)
    if name in BUILT_IN:
        try:
            backbone = BUILT_IN[name](shape, width, dropout)
        except ValueError as error:
            raise NetworkError(f"network {name}: ValueError: {error}") from None
    else:
        backbone = called(imported(network) if isinstance(network, str) else network, shape, name)
    if frozen_statistics:
        freeze_running_statistics(backbone)
    return cast(Backbone, backbone if name in BUILT_IN else with_widths(backbone, shape, name))
