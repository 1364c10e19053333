"""The parameters of a module, under names that do not depend on wrappers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

# Name parts that torch.compile, data parallelism, FSDP and activation checkpointing add.
WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's own module inside the wrappers of torch.compile and data parallelism."""
    while True:
        if isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        elif isinstance(module, (DataParallel, DistributedDataParallel)):
            module = module.module
        else:
            return module


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by names that do not depend on wrappers; tied ones once, under their first name."""
    found = dict(unwrapped(module).named_parameters())
    plain = {".".join(part for part in name.split(".") if part not in WRAPPERS): p for name, p in found.items()}
    return plain if len(plain) == len(found) else found  # a module whose own parts have such names keeps them


def named_trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in named_parameters(module).items() if p.requires_grad}


def require_maskable(parameters: Mapping[str, nn.Parameter]) -> None:
    """Eq. 3 ranks real numbers; frozen parameters are not ranked."""
    if complex_names := [name for name, p in parameters.items() if p.requires_grad and p.is_complex()]:
        raise TypeError(f"complex parameters cannot be soft-masked: {', '.join(complex_names)}")
    if lazy := [name for name, p in parameters.items() if is_lazy(p)]:
        raise ValueError(f"lazy parameters without a shape: {', '.join(lazy)}; run one batch through the module first")


def parameters_of(owner: nn.Module | Iterable[nn.Parameter] | None) -> list[nn.Parameter]:
    """The parameters of a module, or those given one by one."""
    if owner is None:
        return []
    if isinstance(owner, nn.Module):
        return list(owner.parameters())
    found = [owner] if isinstance(owner, nn.Parameter) else list(owner)
    if wrong := [type(each).__name__ for each in found if not isinstance(each, Tensor)]:
        raise TypeError(f"a head must be a module or an iterable of parameters; found a {wrong[0]}")
    return found


def modules_behind(functions: Iterable[object]) -> list[nn.Module]:
    """The modules among callables, called themselves or through one of their methods."""
    behind = [getattr(function, "__self__", function) for function in functions]
    return [module for module in behind if isinstance(module, nn.Module)]
