"""Settings of a method on a sequence, found by a search, as a JSON file that `run` and `grid` accept.

{"format": 1, "method": "ewc", "sequence": "C-10",
 "settings": {"strength": 812.5}, "network": {"drop1": 0.12, "drop2": 0.4}, "training": {},
 "found": {"trials": 20, "value": 71.3, ...}}

A folder `DIR/<sequence>/<method>.json` holds many of them; the name `paper` stands for the settings that its authors
published, and `built-in` for those of the built-in sequences.
"""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softmask.errors import ConfigError
from softmask.experiments.paper import paper_tables
from softmask.experiments.runs.built_in_settings import built_in_settings
from softmask.experiments.runs.config import make_config
from softmask.experiments.sequences import SEQUENCES, sequence_facts
from softmask.learning.registry import METHODS
from softmask.learning.settings import validated
from softmask.storage.reading import MEBIBYTE, parse_json, read_plain
from softmask.storage.state_file import write_text

FORMAT = 1
SECTIONS = ("settings", "network", "training")
PUBLISHED, BUILT_IN = "paper", "built-in"
# The authors' code has tuned dropout rates only for their own method; its ablations differ only in the mechanism.
PUBLISHED_FOR = ("spg", "spg-no-chi", "spg-no-smh", "spg-hard")


@dataclass(frozen=True, kw_only=True)
class FoundSettings:
    """The fields of a settings file. Seeds are not among them: settings are found once and used with several."""

    method: str
    sequence: str
    settings: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    """How the settings were found: trials, objective, value, preset, tasks, seed, date. For information only."""

    def changes(self) -> dict[str, Any]:
        """As `make_config` takes them."""
        return {f"{section}.{key}": value for section in SECTIONS for key, value in getattr(self, section).items()}

    def check(self, where: str) -> None:
        """Checked by the same rules as any config."""
        try:
            make_config(self.method, self.sequence, changes=self.changes())
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None


def settings_changes(place: Path | str, method: str, sequence: str) -> dict[str, Any]:
    """The changes in a file, in a folder of files, of `paper` or of `built-in` for a method on a sequence."""
    METHODS.entry(method)
    sequence = SEQUENCES.spelt(sequence)
    if str(place) == PUBLISHED:
        return _published(method, sequence)
    if str(place) == BUILT_IN:
        return built_in_settings(method, sequence)
    file = Path(place)
    if file.is_dir():
        file = settings_path(file, method, sequence)
        if not file.exists():
            warnings.warn(f"there is no {file}: the defaults are used for {method} on {sequence}", stacklevel=2)
            return {}
    found = read_settings(file)
    for name, actual, wanted in (("method", found.method, method), ("sequence", found.sequence, sequence)):
        if actual != wanted:
            raise ConfigError(f"{file} holds settings for the {name} {actual}, not for {wanted}")
    return found.changes()


def settings_path(folder: Path, method: str, sequence: str) -> Path:
    """The path of one file in a folder of settings. A sequence may be named by a path."""
    return folder / re.sub(r"[^A-Za-z0-9.-]+", "-", sequence).strip(".-") / f"{method}.json"


def write_settings(path: Path, found: FoundSettings) -> None:
    found.check(str(path))
    write_text(path, json.dumps({"format": FORMAT, **dataclasses.asdict(found)}, indent=1) + "\n")


def read_settings(path: Path) -> FoundSettings:
    try:
        content = parse_json(read_plain(path, MEBIBYTE))
    except FileNotFoundError:
        raise ConfigError(f"there is no settings file {path}: `softmask search` writes one") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} as JSON: {error}") from None
    version = content.pop("format", None) if isinstance(content, dict) else None
    if version != FORMAT:
        raise ConfigError(
            f"{path} is not a settings file, which has '\"format\": {FORMAT}': `softmask search` writes one"
        )
    found: FoundSettings = validated(FoundSettings, content, str(path))
    found.check(str(path))
    return found


def _published(method: str, sequence: str) -> dict[str, Any]:
    """The dropout rates that the authors tuned for SPG, the only settings that they published."""
    if sequence not in paper_tables()["sequences"]:
        raise ConfigError(f"the paper has no sequence {sequence}: its settings are for {_paper_sequences()}")
    facts = sequence_facts(sequence)
    if method not in PUBLISHED_FOR:
        warnings.warn(
            f"the authors published no settings for {method}: it gets the dropout rates of SPG on {sequence}",
            stacklevel=3,
        )
    return {"network.drop1": facts.drop1, "network.drop2": facts.drop2}


def _paper_sequences() -> str:
    return ", ".join(paper_tables()["sequences"])
