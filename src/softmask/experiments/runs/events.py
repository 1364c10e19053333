"""The events of a run: one JSON object per line, checked against one schema when they are read."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from softmask.storage.reading import is_shallow, parse_json

Event = dict[str, Any]

# Events that are written again when work is repeated after a kill: the last one with these fields counts.
IDENTITY = {
    "epoch": ("task", "epoch"),
    "task": ("task",),
    "accuracy": ("after", "task"),
    "without_id": ("after", "task"),
    "pruning": ("ranked_over", "strategy"),
    "representation": ("onto", "union", "learned"),
}
LARGEST = 2**53
DEVICE = re.compile(r"(cpu|cuda|meta|privateuseone)(:\d+)?")


def _is_number(value: object) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    return whole or isinstance(value, float)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _is_time(value: Any) -> bool:
    return _is_number(value) and 0 <= value < math.inf


CHECKS: dict[str, Callable[[Any], bool]] = {
    "a count": _is_count,
    "a positive count": lambda value: _is_count(value) and value > 0,
    "a count or null": lambda value: value is None or _is_count(value),
    "a list of counts": lambda value: isinstance(value, list) and bool(value) and all(map(_is_count, value)),
    "a number": _is_number,  # a loss may be infinite, or no number at all
    "a time in seconds": _is_time,
    "a number from 0 to 1": _is_share,
    "text": lambda value: isinstance(value, str),
    "true or false": lambda value: isinstance(value, bool),
    "shares by name": lambda value: isinstance(value, dict) and all(map(_is_share, value.values())),
    "an object": lambda value: isinstance(value, dict) and is_shallow(value),
    "a device": lambda value: isinstance(value, str) and DEVICE.fullmatch(value) is not None,
}
# The fields that are read; those with a question mark are optional. Other fields are ignored.
SCHEMA = {
    "started": {
        "device?": "a device",
        "code?": "text",
        "network_code?": "text",
        "data?": "text",
        "processes?": "a count",
    },
    "epoch": {
        "task": "a count",
        "epoch": "a count",
        "seconds": "a time in seconds",
        "lr": "a number",
        "train_loss": "a number",
        "val_loss": "a number",
        "val_accuracy": "a number from 0 to 1",
    },
    "task": {
        "task": "a count",
        "ids": "a list of counts",
        "name": "text",
        "classes?": "a positive count",
        "learn_seconds?": "a time in seconds",
        "end_seconds?": "a time in seconds",
        "images?": "a count",
        "peak_memory?": "a count or null",
        "facts?": "an object",
    },
    "accuracy": {
        "after": "a count",
        "task": "a count",
        "validation?": "a number from 0 to 1",
        "test?": "a number from 0 to 1",
    },
    "without_id": {
        "after": "a count",
        "task": "a count",
        "validation?": "shares by name",
        "test?": "shares by name",
    },
    "pruning": {
        "strategy": "text",
        "ranked_over": "text",
        "test": "a number from 0 to 1",
        "classes": "a positive count",
    },
    "representation": {
        "onto": "text",
        "union": "true or false",
        "learned": "a count",
        "test": "a number from 0 to 1",
        "classes": "a positive count",
    },
    "failed": {"message?": "text", "reason?": "text"},
    "finished": {"digest?": "text"},
    "data": {"match": "true or false", "now": "text", "reason?": "text"},
}
_COMPILED = {
    kind: [(name.rstrip("?"), name.endswith("?"), what, CHECKS[what]) for name, what in fields.items()]
    for kind, fields in SCHEMA.items()
}


def schema_error(event: Event) -> str | None:
    """Why an event of a known kind does not fit the schema; None if it does."""
    for name, optional, what, fits in _COMPILED.get(event["kind"], ()):
        if name in event:
            if not fits(event[name]):
                return f"{name} of {event['kind']} must be {what}"
        elif not optional:
            return f"{event['kind']} has no {name}"
    return None


def read_events(content: bytes) -> tuple[list[Event], str | None]:
    """All events that fit the schema, in order, and the first damage that was found. An incomplete last line after a
    kill is not damage, and a line that is not JSON is not an event.
    """
    lines = content.split(b"\n")[:-1]
    found: list[Event] = []
    damage = None
    before = hashlib.sha256()
    finished = False
    for line, event in zip(lines, _parsed(lines), strict=True):
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            if (reason := schema_error(event)) is None:
                event["kind"] = sys.intern(event["kind"])
                found.append(event)
                finished = finished or event["kind"] == "finished"
                if finished and "digest" in event and event["digest"] != _digest(before, event):
                    damage = damage or "its lines are not those that were written"
            else:
                damage = damage or reason
        before.update(line + b"\n")
    return found, damage


def digest_of_lines(content: bytes, event: Event) -> str:
    """The digest of all lines before `finished`, which contains it; for a later event, of all lines before it and
    itself."""
    return _digest(hashlib.sha256(content), event)


def _digest(before: hashlib._Hash, event: Event) -> str:
    if event["kind"] == "finished":
        return before.hexdigest()
    digest = before.copy()
    digest.update(json.dumps({name: value for name, value in event.items() if name != "digest"}).encode())
    return digest.hexdigest()


def digest_of_names(names: Iterable[str]) -> str:
    """The digest of the names of all tasks, each of which contains a digest of its samples."""
    return hashlib.sha256("\n".join(names).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _parsed(lines: list[bytes]) -> list[Any]:
    """Each line as JSON, or None. Those of a sound file are read at once: the events then share the names of their
    fields, and a store of a thousand runs takes half the memory."""
    try:
        found = parse_json(b"[" + b",".join(lines) + b"]")
        if len(found) == len(lines):
            return list(found)
    except ValueError:
        pass
    return [_or_none(line) for line in lines]


def _or_none(line: bytes) -> Any:
    try:
        return parse_json(line)
    except ValueError:
        return None


def once(events: Iterable[Event]) -> list[Event]:
    """For events that were written repeatedly, the last one, at the position of the first."""
    found: dict[Any, Event] = {}
    for number, event in enumerate(events):
        fields = IDENTITY.get(event["kind"])
        found[(event["kind"], *(event[field] for field in fields)) if fields else number] = event
    return list(found.values())
