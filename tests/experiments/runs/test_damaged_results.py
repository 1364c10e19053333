"""A finished run whose numbers were lost or changed is told, not averaged over what is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from tests.experiments.runs.examples import tiny_config

Event = dict[str, Any]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return (run(tiny_config(), Store(tmp_path_factory.mktemp("done"))).path / "events.jsonl").read_text().splitlines()


def last(lines: list[str]) -> int:
    return max(place for place, line in enumerate(lines) if json.loads(line)["kind"] == "accuracy")


def changed(**fields: Any) -> Callable[[list[str]], list[str]]:
    def change(lines: list[str]) -> list[str]:
        event = json.loads(lines[last(lines)])
        event = {key: value for key, value in {**event, **fields}.items() if value is not None}
        return [*lines[: last(lines)], json.dumps(event), *lines[last(lines) + 1 :]]

    return change


def cut(lines: list[str]) -> list[str]:
    return [*lines[: last(lines)], lines[last(lines)][:30], *lines[last(lines) + 1 :]]


def gone(lines: list[str]) -> list[str]:
    return [line for line in lines if json.loads(line)["kind"] != "accuracy"]


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        cut,
        gone,
        changed(test=None),
        changed(test=7.5),
        changed(test=True),
        changed(test=float("nan")),
        changed(test=-0.1),
    ],
    ids=["cut", "gone", "no test", "above one", "no number", "nan", "below zero"],
)
def test_damage_is_told(
    damage: Callable[[list[str]], list[str]], checkpoints: bool, done: list[str], tmp_path: Path
) -> None:
    store = Store(tmp_path)
    folder = run(tiny_config(), store).path
    if not checkpoints:  # as in a store that was sent around
        for file in (folder / "checkpoints").iterdir():
            file.unlink()
    (folder / "events.jsonl").write_text("\n".join(damage(done)) + "\n")
    assert list(store.runs()) == []
    assert "lacks results of tasks that were learned" in store.problems()[0]


def test_a_sound_run_without_checkpoints_is_sound(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for file in (run(tiny_config(), store).path / "checkpoints").iterdir():
        file.unlink()
    assert [each.status for each in store.runs()] == ["finished"]
    assert store.problems() == []
