"""The `Settings` of a method: search ranges, checks, and their documentation.

`validated` checks any config from a file or the command line against its dataclass.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from softmask.errors import ConfigError, nearest

LONGEST = 200
"""Length of a wrong value in an error message."""


@dataclass(frozen=True)
class NoSettings:
    """The method has no settings."""

    __pydantic_config__ = {"extra": "forbid"}


def search(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    choices: Sequence[Any] | None = None,
) -> Any:
    """A field of a method's `Settings` with the range for a hyperparameter search.

    Either from `low` to `high`, on a log scale if `log`; or one of `choices`, which are numbers, text, true or false.
    """
    if choices is not None:
        if (
            not choices
            or (low, high) != (None, None)
            or not all(isinstance(each, (int, float, str)) for each in choices)
        ):
            raise ValueError(f"search: choices are a few numbers or texts, without low and high, not {choices!r}")
    elif low is None or high is None or not low < high or (log and not low > 0):
        raise ValueError(f"search: needs low < high{', both above 0 for log' if log else ''}; low={low}, high={high}")
    return field(default=default, metadata={"search": {"low": low, "high": high, "log": log, "choices": choices}})


def new_field(default: Any) -> Any:
    """A field that configs of earlier versions lack. It enters a run's id only if it differs from the default, so that
    the ids of earlier runs do not change.
    """
    return field(default=default, metadata={"new": True})


def omit_new_defaults(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass without those of new fields that are at their defaults."""
    usual = {each.name: each.default for each in dataclasses.fields(kind) if each.metadata.get("new")}
    return {name: value for name, value in values.items() if name not in usual or value != usual[name]}


def require_above_zero(settings: Any, *names: str) -> None:
    """For the `__post_init__` of a method's `Settings`: a field that is None is not checked."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be above 0, not {value}")


def require_not_negative(settings: Any, *names: str) -> None:
    """As `require_above_zero`, but zero is allowed, to turn something off."""
    for name in names:
        if not getattr(settings, name) >= 0:
            raise ValueError(f"{name} must be 0 or more, not {getattr(settings, name)}")


def require_share(settings: Any, name: str) -> None:
    """As `require_above_zero`, for a part of something."""
    value = getattr(settings, name)
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, not {value}")


@dataclass(frozen=True)
class Setting:
    """One field of a method's `Settings`."""

    name: str
    kind: str
    """Its type, as written in the source."""
    default: Any
    search: Mapping[str, Any] | None
    """The range of `softmask search`, if there is one: `low`, `high` and `log`, or `choices`."""
    about: str
    """The docstring below the field; empty where there is none, or no source to read it from."""


def settings_card(settings: type) -> list[Setting]:
    about = _docstrings(settings)
    return [
        Setting(
            name=each.name,
            kind=each.type if isinstance(each.type, str) else inspect.formatannotation(each.type),
            default=_default(each),
            search=each.metadata.get("search"),
            about=about.get(each.name, ""),
        )
        for each in dataclasses.fields(settings)
    ]


def as_text(cards: list[Setting]) -> str:
    """Two lines or more for each setting."""
    lines = []
    for each in cards:
        searched = "" if each.search is None else f"; searched: {range_text(each.search)}"
        lines.append(f"{each.name} = {shown(each.default)}  ({each.kind}{searched})")
        lines += textwrap.wrap(each.about, width=120, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def shown(value: Any) -> str:
    """As typed after `--set`."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def range_text(search: Mapping[str, Any]) -> str:
    if search["choices"] is not None:
        return " or ".join(map(shown, search["choices"]))
    return f"{shown(search['low'])} to {shown(search['high'])}" + (", log scale" if search["log"] else "")


def _default(each: dataclasses.Field[Any]) -> Any:
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return None if each.default is dataclasses.MISSING else each.default


def _docstrings(settings: type) -> dict[str, str]:
    """Python does not store docstrings of fields: they are read from the source, also of parent classes."""
    found: dict[str, str] = {}
    for each in reversed(settings.__mro__):
        try:
            (written,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        except (OSError, TypeError, ValueError, SyntaxError):  # built in, typed in by hand, or made by a program
            continue
        if isinstance(written, ast.ClassDef):
            for line, below in itertools.pairwise(written.body):
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    found.pop(line.target.id, None)
                    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                        found[line.target.id] = " ".join(str(below.value.value).split())
    return found


def validated(kind: type, raw: dict[str, Any], what: str) -> Any:
    """Checks types and refuses unknown fields, with a readable error."""
    refuse_unknown(kind, raw, what)
    try:
        text = json.dumps(raw, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: {error}; values are finite numbers, text, true, false, null or lists") from None
    try:
        # Strict, so that a number in quotes is no number; JSON, so that lists may stand for tuples.
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{what}: {_validation_message(error)}") from None
    except (PydanticUserError, PydanticSchemaGenerationError, TypeError, NameError) as error:
        # Code of another package: a type that nobody can check, a `__post_init__` that fails.
        raise ConfigError(f"{what}: {kind.__qualname__} cannot be checked: {error}".split("\n")[0]) from error


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    """Kept: making one takes longer than a thousand checks, and a store may hold many runs."""
    return TypeAdapter(kind)


def refuse_unknown(kind: type, raw: Mapping[str, Any], what: str) -> None:
    """Checked here: the `Settings` of another package need not configure pydantic to refuse unknown fields."""
    fields = [field.name for field in dataclasses.fields(kind)]
    for name in raw:
        if name not in fields:
            hint = nearest(str(name), fields)
            raise ConfigError(f"{what}: there is no field {name!r}{hint} (known: {', '.join(fields) or 'none'})")


def _validation_message(error: ValidationError) -> str:
    problems = []
    for problem in error.errors():
        place = ".".join(map(str, problem["loc"]))
        # The message of a value error is ours and contains the value already.
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] != "value_error":
            given = repr(problem["input"])
            message = f"{message}, not {given if len(given) <= LONGEST else given[:LONGEST] + '...'}"
        problems.append(f"{place}: {message}" if place else message)
    return "; ".join(problems)
