"""Methods and sequences by name. Files are discovered; other packages register through entry points.

`METHODS` holds the methods of `softmask.methods` and those of other packages.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from softmask.errors import SoftmaskError, UnknownName
from softmask.learning.method import FAMILIES, Method

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A name is part of a folder's, and of lists with commas."""


class NameClash(SoftmaskError):
    """Two things have the same name."""

    def __init__(self, kind: str, name: str, known: object, other: object) -> None:
        super().__init__(f"two {kind}s are called {name!r}: {_place(known)} and {_place(other)}")
        self.name, self.known = name, known


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered thing and the facts it was registered with."""

    name: str
    thing: T
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def card(self) -> str:
        """The docstring of the module that it lives in, or its own."""
        module = sys.modules.get(getattr(self.thing, "__module__", __name__))
        return inspect.cleandoc(getattr(module, "__doc__", None) or self.thing.__doc__ or "")


class Registry(Generic[T]):
    """A registry of named things, filled by importing a package's files and the entry points of other packages."""

    def __init__(self, kind: str, package: str, group: str | None = None) -> None:
        self.kind, self.package = kind, package
        self.group = group or package  # the entry-point group through which other packages join
        self._entries: dict[str, Entry[T]] = {}
        self._broken: dict[str, str] = {}
        """Why a name cannot be used: its package does not load, or two packages register it."""
        self._searched = False

    def register(self, name: str, **facts: Any) -> Callable[[T], T]:
        """Decorator that registers a thing under this name. Names are unique."""
        if not NAME.fullmatch(name):
            raise SoftmaskError(f"{self.kind} {name!r}: a name has letters, digits, '.', '-' and '_', no more")

        def remember(thing: T) -> T:
            known = self._entries.get(name)
            if known is not None and _place(known.thing) != _place(thing):
                raise NameClash(self.kind, name, known.thing, thing)
            self._entries[name] = Entry(name, thing, facts)
            return thing

        return remember

    def found(self) -> list[Entry[T]]:
        """Those that are known by now."""
        return list(self._entries.values())

    def names(self) -> list[str]:
        self._search()
        return sorted(self._entries.keys() - self._broken.keys())

    def entry(self, name: str) -> Entry[T]:
        self._search()
        if name in self._broken:
            raise SoftmaskError(self._broken[name])
        if name not in self._entries:
            hint = f". To use a file of your own: docs/adding-a-{self.kind}.md" if name.endswith(".py") else ""
            raise UnknownName(self.kind, name, self._entries, hint)
        return self._entries[name]

    def load(self, name: str) -> T:
        return self.entry(name).thing

    def _search(self) -> None:
        if self._searched:
            return
        package = importlib.import_module(self.package)
        for file in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{file.name}")
        for point in entry_points(group=self.group):
            before = dict(self._entries)
            try:
                point.load()
            except (Exception, SystemExit) as error:  # of one package, which is no reason to do without all others
                self._entries = before  # half a module is gone with its names
                message = f"{self.kind} {point.name!r} ({point.value}) does not load: {error!r}"
                if point.name not in before:
                    self._broken[point.name] = message
                if isinstance(error, NameClash) and not _place(error.known).startswith(self.package + "."):
                    self._broken[error.name] = f"{error}; which is meant depends on nothing but their order: rename one"
                warnings.warn(message, stacklevel=2)
        self._searched = True


def _place(thing: object) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', repr(thing))}"


METHODS: Registry[type[Method]] = Registry("method", "softmask.methods")
Class = TypeVar("Class", bound=type[Method])


def register(name: str) -> Callable[[Class], Class]:
    """Decorator that registers a method under this name. Tables identify methods by title, so titles are unique."""

    def remember(method: Class) -> Class:
        _require_settings_of_defaults(method)
        if method.family not in FAMILIES:
            raise SoftmaskError(f"method {name!r}: its family is one of {', '.join(FAMILIES)}, not {method.family!r}")
        if "title" not in vars(method):  # one that was inherited is that of another method
            method.title = name
        for other in METHODS.found():
            if other.name != name and other.thing.title == method.title:
                raise SoftmaskError(f"methods {other.name!r} and {name!r} have the same title, {method.title!r}")
        METHODS.register(name)(method)
        return method

    return remember


def _require_settings_of_defaults(method: type[Method]) -> None:
    """Checks that the default settings are valid."""
    place = f"{method.__module__}.{method.Settings.__qualname__}"
    if not dataclasses.is_dataclass(method.Settings) or "__init__" not in vars(method.Settings):
        raise SoftmaskError(f"{place} must be a dataclass: decorate it with @dataclass(frozen=True)")
    for each in dataclasses.fields(method.Settings):
        if each.init and each.default is each.default_factory is dataclasses.MISSING:
            raise SoftmaskError(f"{place}: {each.name} needs a default")
