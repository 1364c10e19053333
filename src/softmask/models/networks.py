"""The networks that a model may have: three by name, those of timm, transformers' from a folder, any function.

Nothing is downloaded: weights come from files that are there.
"""

from __future__ import annotations

import importlib
import keyword
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from softmask.core import freeze_running_statistics
from softmask.errors import SoftmaskError, UnknownName
from softmask.learning.networks import Backbone, alexnet, mlp, resnet18

Network = str | Callable[[], nn.Module]
"""A name, `module:function`, or the function itself, which without arguments gives a module from inputs to features."""


class NetworkError(SoftmaskError):
    """A network that cannot be made, or that does not fit the input."""


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
}


TIMM, TRANSFORMERS = "timm:", "transformers:"
OF_TIMM = re.compile(r"timm:[a-z0-9_]{1,100}")
"""A name in timm's own list: no address from which it would fetch anything."""


def is_trusted(name: str) -> bool:
    """Whether a folder may name it: it runs nothing but code that is installed on purpose."""
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
    """A custom network runs only if the caller names it: a foreign folder must not choose what is imported."""
    if is_trusted(named):
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
    try:
        if isinstance(network, str) and network in BUILT_IN:
            backbone = BUILT_IN[network](shape, width, dropout)
        else:
            backbone = _maker(network, shape)()
    except NetworkError:
        raise
    except Exception as error:  # custom code may raise anything
        raise NetworkError(f"network {name_of(network)}: {type(error).__name__}: {error}") from None
    if not isinstance(backbone, nn.Module):
        raise NetworkError(f"network {name_of(network)} gave a {type(backbone).__name__}, not an nn.Module")
    if frozen_statistics:
        freeze_running_statistics(backbone)
    if not (isinstance(network, str) and network in BUILT_IN):  # its own `widths` may mean anything
        backbone.widths = (_feature_width(backbone, shape, name_of(network)),)  # type: ignore[assignment]
    if not any(parameter.requires_grad for parameter in backbone.parameters()):
        raise NetworkError(f"network {name_of(network)} has no parameter that requires grad: it could learn nothing")
    return cast(Backbone, backbone)


def _feature_width(backbone: nn.Module, shape: tuple[int, ...], name: str) -> int:
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    training = backbone.training
    try:
        with torch.no_grad():
            features = backbone.eval()(torch.zeros(2, *shape, device=device))
    except Exception as error:  # custom code may raise anything
        raise NetworkError(f"network {name} cannot take inputs of shape {shape}: {error}") from None
    finally:
        backbone.train(training)
    if not isinstance(features, Tensor) or features.dim() != 2:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise NetworkError(f"network {name} must give features of shape (batch, width), not {got}")
    return features.size(1)


def _maker(network: Network, shape: tuple[int, ...]) -> Callable[[], nn.Module]:
    if not isinstance(network, str):
        return network
    if network.startswith(TIMM):
        return partial(_of_timm, network.removeprefix(TIMM), shape)
    if network.startswith(TRANSFORMERS):
        return partial(OfTransformers, network.removeprefix(TRANSFORMERS))
    return _imported(network)


def _extra(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise NetworkError(
            f"this network needs {package}, which this Python lacks: install the extra {package!r}"
        ) from None


def _of_timm(name: str, shape: tuple[int, ...]) -> nn.Module:
    """Without its last layer. Transformers of timm must know the size of the images."""
    timm = _extra("timm")
    given = {"pretrained": False, "num_classes": 0, "in_chans": shape[0]}
    try:
        found: nn.Module = timm.create_model(name, **given, img_size=shape[1:])
    except TypeError:
        found = timm.create_model(name, **given)
    return found


class OfTransformers(nn.Module):
    """The model in a folder of `save_pretrained`, without its head; its pooled output, or the mean over positions."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        transformers = _extra("transformers")
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        self.model = transformers.AutoModel.from_config(config)

    def forward(self, x: Tensor) -> Tensor:
        output = self.model(x)
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        return output.last_hidden_state.mean(1) if pooled is None else pooled.flatten(1)


def load_weights(backbone: nn.Module, source: Path, network: Network) -> None:
    """Those of a state file (safetensors, or torch's own without code), or of a folder of transformers."""
    if source.is_dir():
        if not isinstance(backbone, OfTransformers):
            raise NetworkError(f"{source} is a folder: weights of {name_of(network)} are in a file")
        transformers = _extra("transformers")
        state = transformers.AutoModel.from_pretrained(str(source), local_files_only=True).state_dict()
        target: nn.Module = backbone.model
    else:
        state, target = _state_in(source), backbone
    try:
        found = target.load_state_dict(state, strict=False)
    except RuntimeError as error:
        told = " ".join(str(error).split())[:300]
        raise NetworkError(f"{source} does not fit {name_of(network)}: {told}") from None
    if found.missing_keys:
        raise NetworkError(f"{source} does not fit {name_of(network)}: it lacks {found.missing_keys[0]!r}")
    if found.unexpected_keys:
        named = ", ".join(found.unexpected_keys[:3])
        warnings.warn(f"{source}: {len(found.unexpected_keys)} weights are not used: {named}", stacklevel=2)


def _state_in(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files are met with every kind of error
        raise NetworkError(f"{file}: not readable as weights ({' '.join(str(error).split())[:150]})") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise NetworkError(f"{file}: not a state dict of tensors")
    return state


def _imported(name: str) -> Callable[[], nn.Module]:
    module, _, function = name.partition(":")
    parts = [*module.split("."), *function.split(".")]
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise NetworkError(f"network {name[:100]!r} is not of the form module:function")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: object = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except Exception as error:  # custom code may raise anything while it is imported
        raise NetworkError(f"network {name}: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise NetworkError(f"network {name}: not a function")
    return cast(Callable[[], nn.Module], found)
