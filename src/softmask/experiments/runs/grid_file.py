"""A grid as a TOML or YAML file.

methods = ["spg", "spg-hard"]
sequences = ["D-5"]
seeds = "1-5"
preset = "short"

[set]                      # for every cell
epochs = 3
network.width = 0.5

[sequence."D-5"]           # for the cells of one sequence
batch = 16

[method.spg-hard]          # for the cells of one method
settings.threshold = 0.5
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softmask.errors import ConfigError
from softmask.learning.settings import validated
from softmask.storage.reading import MEBIBYTE, read_plain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_SEEDS = 10_000
MOST_DIGITS = 18
"""Of a number: more than any field needs."""
DEEPEST = 20
"""Levels of lists and tables in a YAML file: more than any field needs."""


@dataclass(frozen=True, kw_only=True)
class GridFile:
    """The fields of a grid file; flags override them."""

    methods: list[str] | None = None
    sequences: list[str] | None = None
    seeds: list[int] | None = None
    paper: bool = False
    preset: str | None = None
    tasks: int | None = None
    settings: str | None = None
    set: dict[str, Any] = field(default_factory=dict)
    """Changes of every cell, by the full names of the fields."""
    sequence: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changes of the cells of one sequence."""
    method: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changes of the cells of one method."""


def read_grid_file(path: Path) -> GridFile:
    content = _read(path)
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: expected fields as in `methods = [...]`, not {type(content).__name__}")
    raw = dict(content)
    for name, value in raw.items():
        if isinstance(value, list) and not value:
            raise ConfigError(f"{path}: {name} is empty: leave it out, or name at least one")
        if name == "seeds" and isinstance(value, str):
            raw[name] = parse_seeds(value)
        elif name == "set" and isinstance(value, Mapping):
            raw[name] = flat(value)
        elif name in ("method", "sequence") and isinstance(value, Mapping):
            raw[name] = {key: flat(one) if isinstance(one, Mapping) else one for key, one in value.items()}
    found: GridFile = validated(GridFile, raw, str(path))
    return found


def parse_seeds(text: str) -> list[int]:
    """`1-5`, `1,2,7` or both."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = [first, last] if dash else [first]
        if not all(each.isdecimal() and len(each) <= MOST_DIGITS for each in numbers) or int(numbers[-1]) < int(first):
            raise ConfigError(f"seeds are given as in 1-5 or 1,2,7, not as {_shown(text)}")
        count = int(last or first) - int(first) + 1
        if count + len(found) > MOST_SEEDS:
            raise ConfigError(f"{_shown(text)} are more than {MOST_SEEDS:,} seeds")
        found += range(int(first), int(first) + count)
    return found


def _read(path: Path) -> Any:
    try:
        text = read_plain(path, MEBIBYTE).decode()
    except FileNotFoundError:
        raise ConfigError(f"there is no grid file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a number of too many digits is a plain ValueError
            raise ConfigError(f"{path} is not valid TOML: {_first_line(error)}") from None
    if path.suffix in (".yaml", ".yml"):
        return _read_yaml(path, text)
    raise ConfigError(f"{path}: a grid file ends in .toml, .yaml or .yml")


def _read_yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"{path}: YAML needs PyYAML: pip install 'softmask[yaml]', or write TOML") from None
    depth = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):  # a few lines of aliases of aliases take all memory
                raise ConfigError(f"{path}: YAML aliases (*name) are refused: write the values out")
            # Opening brackets take time that grows with the square of their number.
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ConfigError(f"{path} is not valid YAML: nested too deeply")
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return f"this {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def flat(table: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Without nesting: `network = {width = 1}` and `"network.width" = 1` are the same."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= {f"{name}{separator}{inner}": each for inner, each in flat(value, separator).items()}
        else:
            found[str(name)] = value
    return found
