"""All methods by name: those of `softmask.methods` and those of other packages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from softmask.errors import SoftmaskError
from softmask.learning.method import Method
from softmask.learning.registry import Registry

METHODS: Registry[type[Method]] = Registry("method", "softmask.methods")
Class = TypeVar("Class", bound=type[Method])


def register(name: str) -> Callable[[Class], Class]:
    """Decorator: makes a method known under this name. Tables tell methods apart by titles, so each has its own."""

    def remember(method: Class) -> Class:
        _require_settings_of_defaults(method)
        if "title" not in vars(method):  # one that was inherited is that of another method
            method.title = name
        for other in METHODS.found():
            if other.name != name and other.thing.title == method.title:
                raise SoftmaskError(f"methods {other.name!r} and {name!r} have the same title, {method.title!r}")
        METHODS.register(name)(method)
        return method

    return remember


def _require_settings_of_defaults(method: type[Method]) -> None:
    """A run has a config before anybody set anything."""
    place = f"{method.__module__}.{method.Settings.__qualname__}"
    if not dataclasses.is_dataclass(method.Settings) or "__init__" not in vars(method.Settings):
        raise SoftmaskError(f"{place} must be a dataclass: decorate it with @dataclass(frozen=True)")
    for field in dataclasses.fields(method.Settings):
        if field.init and field.default is field.default_factory is dataclasses.MISSING:
            raise SoftmaskError(f"{place}: {field.name} needs a default")
