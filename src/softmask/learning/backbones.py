"""Backbones by name: the built-in ones, `timm:NAME`, and a function of the user's own as `module:function`.

A function returns a module from inputs to features; it has no arguments, or one called `input_shape`. It is run only if
its name was given on the command line or in Python (`trust_network`): a file must not decide which code is run.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import keyword
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from softmask.errors import ConfigError, SoftmaskError, UnknownName, nearest
from softmask.learning.networks import Backbone, alexnet, mlp, resnet18, vit_tiny

NetworkFunction = Callable[..., nn.Module]
CHAINS = ("alexnet", "mlp")
"""Backbones that are a chain of blocks with one weighted layer each."""
NAMES = (*CHAINS, "resnet18", "vit-tiny")
KINDS = (*NAMES, "timm:NAME", "module:function")
TIMM = "timm:"
DROPOUT = {"alexnet": ("drop1", "drop2"), "mlp": ("drop2",)}
"""The dropout rates that a backbone has; other backbones have none, or dropout of their own."""
NORMALISED = ("alexnet", "resnet18")
"""Backbones that support batch normalisation."""


class NetworkError(SoftmaskError):
    """The network cannot be built, or does not fit the input."""


_trusted: set[str] = set()


def is_function(name: str) -> bool:
    """Whether a name refers to a user's function."""
    return ":" in name and not name.startswith(TIMM)


def has_width(name: str) -> bool:
    return name in NAMES


def check_name(name: str) -> None:
    if name not in NAMES and ":" not in name:
        raise UnknownName("network", name, KINDS)


def trust_network(name: str) -> None:
    """Allows this process to run the function of this name from now on."""
    _trusted.add(name)


def is_trusted(name: str) -> bool:
    return not is_function(name) or name in _trusted


def require_trusted(name: str) -> None:
    if not is_trusted(name):
        raise NetworkError(
            f"this wants to run {name}: if you trust it, say so by --network {name}, or in Python by "
            f"softmask.learning.trust_network({name!r})"
        )


def name_of_function(function: NetworkFunction) -> str:
    """`module:function` of a function that can be imported; it is trusted from now on."""
    if isinstance(function, nn.Module):
        raise NetworkError("a network is given by the function that makes it, not by a module: each run makes its own")
    name = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
    if not callable(function) or imported(name) is not function:
        raise NetworkError(f"{function!r} cannot be imported as {name}: give a function at the top of a module")
    trust_network(name)
    return name


def make_backbone(
    name: str,
    input_shape: tuple[int, ...],
    *,
    width: float = 1.0,
    drop1: float = 0.0,
    drop2: float = 0.0,
    norm: Literal["batch"] | None = None,
    weights: str | None = None,
) -> Backbone:
    """A module with `widths`, the last of which is that of its features.

    It need not be a `Backbone`: methods that need blocks refuse others.
    """
    made = _made(name, input_shape, width, drop1, drop2, norm)
    if weights is not None:
        load_weights(made, weights, name)
    return cast(Backbone, made)


def _made(
    name: str, input_shape: tuple[int, ...], width: float, drop1: float, drop2: float, norm: Literal["batch"] | None
) -> nn.Module:
    check_name(name)
    try:
        if name == "alexnet":
            channels, height, columns = input_shape
            return alexnet((channels, height, columns), width=width, drop1=drop1, drop2=drop2, norm=norm or "none")
        if name == "mlp":
            return mlp(input_shape, width=width, drop=drop2)
        if name == "resnet18":
            return resnet18(input_shape, width=width, norm=norm or "group")
        if name == "vit-tiny":
            return vit_tiny(input_shape, width=width)
    except ValueError as error:
        raise NetworkError(f"network {name}: {error}") from None
    if name.startswith(TIMM):
        return with_widths(from_timm(name.removeprefix(TIMM), input_shape), input_shape, name)
    require_trusted(name)
    return with_widths(called(imported(name), input_shape, name), input_shape, name)


def from_timm(name: str, input_shape: tuple[int, ...]) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import timm
    except ImportError:
        raise NetworkError(f"timm:{name} needs the package timm: pip install 'softmask[timm]'") from None
    except Exception as error:  # a torchvision for another version of torch
        raise NetworkError(f"timm does not load: {type(error).__name__}: {error}") from None
    if name not in timm.list_models():
        raise NetworkError(
            f"timm has no model {name!r}{nearest(name, timm.list_models())} (timm.list_models names all)"
        )
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": input_shape[0]}
    try:
        try:
            # Transformers are made for one size of image; other models do not know the option.
            return cast(nn.Module, timm.create_model(name, img_size=tuple(input_shape[1:]), **options))
        except TypeError:
            return cast(nn.Module, timm.create_model(name, **options))
    except Exception as error:  # of the model's own code
        raise NetworkError(f"network timm:{name}: {type(error).__name__}: {error}") from None


def imported(name: str) -> NetworkFunction:
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
    return cast(NetworkFunction, found)


def called(function: NetworkFunction, input_shape: tuple[int, ...], name: str) -> nn.Module:
    """The module that a user's function returns."""
    try:
        wanted = inspect.signature(function).parameters
    except (TypeError, ValueError):  # built in
        wanted = {}  # type: ignore[assignment]
    try:
        backbone: object = function(input_shape=input_shape) if "input_shape" in wanted else function()
    except NetworkError:
        raise
    except Exception as error:  # custom code may raise anything
        raise NetworkError(f"network {name}: {type(error).__name__}: {error}") from None
    if not isinstance(backbone, nn.Module):
        raise NetworkError(f"network {name} gave a {type(backbone).__name__}, not an nn.Module")
    return backbone


def with_widths(backbone: nn.Module, input_shape: tuple[int, ...], name: str) -> nn.Module:
    """`widths` is measured with a forward pass: a module's own attribute of that name may mean anything."""
    if not isinstance(backbone, Backbone):
        backbone.widths = (feature_width(backbone, input_shape, name),)  # type: ignore[assignment]
    if not any(parameter.requires_grad for parameter in backbone.parameters()):
        raise NetworkError(f"network {name} has no parameter that requires grad: it could learn nothing")
    return backbone


def feature_width(backbone: nn.Module, input_shape: tuple[int, ...], name: str) -> int:
    """The number of features that a module gives."""
    device = next((p.device for p in backbone.parameters()), torch.device("cpu"))
    training = backbone.training
    try:
        with torch.no_grad():
            features = backbone.eval()(torch.zeros(2, *input_shape, device=device))
    except Exception as error:  # custom code may raise anything
        raise NetworkError(f"network {name} cannot take inputs of shape {input_shape}: {error}") from None
    finally:
        backbone.train(training)
    if not isinstance(features, Tensor) or features.dim() != 2:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise NetworkError(f"network {name} must give features of shape (batch, width), not {got}")
    return features.size(1)


def with_digest(weights: str) -> str:
    """`FILE#digest`: the id of a run depends on the content of its initial weights."""
    path, mark, _ = weights.rpartition("#")
    return weights if mark and path else f"{weights}#{_digest(Path(weights))}"


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise ConfigError(f"cannot read the weights {file}: {error.strerror}") from None


def load_weights(backbone: nn.Module, weights: str, name: str) -> None:
    """The weights in a safetensors or torch file. Entries that the backbone does not have, such as those of a head for
    other classes, are ignored; every parameter and buffer of the backbone must be present."""
    path, _, digest = with_digest(weights).rpartition("#")
    if _digest(Path(path)) != digest:
        raise ConfigError(f"{path} is not the file that this run started from: its digest is no longer {digest}")
    state = read_weights(Path(path))
    own = backbone.state_dict()
    missing = [key for key in own if key not in state]
    if missing:
        raise NetworkError(f"{path} has no weights for {len(missing)} of {len(own)} parts of {name}: {missing[0]}, ...")
    try:
        backbone.load_state_dict({key: state[key] for key in own})
    except RuntimeError as error:
        raise NetworkError(f"{path} does not fit {name}: {' '.join(str(error).split())[:300]}") from None


def read_weights(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever is wrong with a foreign file
        raise NetworkError(f"{file} is not readable as weights: {' '.join(str(error).split())[:200]}") from None
    for key in ("state_dict", "model"):  # as training programs wrap them
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise NetworkError(f"{file} holds no weights by name")
    return found


def code_digest(name: str) -> str | None:
    """The digest of the file of a user's function; None for other networks, and if there is no file to read."""
    if not is_function(name):
        return None
    try:
        source = inspect.getsource(sys.modules[imported(name).__module__])
    except (OSError, TypeError, KeyError):  # typed in by hand
        return None
    return hashlib.sha256(source.encode()).hexdigest()[:16]
