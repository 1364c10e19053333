"""Checking configs and settings that come from a file or the command line against their dataclasses."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from softmask.errors import ConfigError, nearest

LONGEST = 200
"""Of a wrong value in a message."""


def validated(kind: type, raw: dict[str, Any], what: str) -> Any:
    """Types are checked, unknown fields refused, and the error is told in words."""
    refuse_unknown(kind, raw, what)
    try:
        text = json.dumps(raw, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: {error}; values are finite numbers, text, true, false, null or lists") from None
    try:
        # Strict, so that a number in quotes is no number; JSON, so that lists may stand for tuples.
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{what}: {_in_words(error)}") from None
    except (PydanticUserError, PydanticSchemaGenerationError, TypeError, NameError) as error:
        # What another package wrote: a type that nobody can check, a `__post_init__` that fails.
        raise ConfigError(f"{what}: {kind.__qualname__} cannot be checked: {error}".split("\n")[0]) from error


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    """Kept: making one takes longer than a thousand checks, and a store may hold many runs."""
    return TypeAdapter(kind)


def refuse_unknown(kind: type, raw: Mapping[str, Any], what: str) -> None:
    """Not left to pydantic: another package's `Settings` need not tell it to refuse what it does not know."""
    fields = [field.name for field in dataclasses.fields(kind)]
    for name in raw:
        if name not in fields:
            hint = nearest(str(name), fields)
            raise ConfigError(f"{what}: there is no field {name!r}{hint} (known: {', '.join(fields) or 'none'})")


def _in_words(error: ValidationError) -> str:
    problems = []
    for problem in error.errors():
        place = ".".join(map(str, problem["loc"]))
        # A value error is told in our own words, which name the value already.
        told = problem["msg"].removeprefix("Value error, ")
        if problem["type"] != "value_error":
            given = repr(problem["input"])
            told = f"{told}, not {given if len(given) <= LONGEST else given[:LONGEST] + '...'}"
        problems.append(f"{place}: {told}" if place else told)
    return "; ".join(problems)
