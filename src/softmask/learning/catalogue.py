"""All methods by name: those of `softmask.methods` and those of other packages."""

from __future__ import annotations

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
        if "title" not in vars(method):  # one that was inherited is that of another method
            method.title = name
        for other in METHODS.found():
            if other.name != name and other.thing.title == method.title:
                raise SoftmaskError(f"methods {other.name!r} and {name!r} have the same title, {method.title!r}")
        METHODS.register(name)(method)
        return method

    return remember
