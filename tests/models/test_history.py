"""The log of a model, and its accuracies over time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softmask.errors import ConfigError
from softmask.models import ContinualModel
from softmask.models.history import read_history
from softmask.models.page import page
from tests.models.examples import QUICK, blobs, small_model


@pytest.fixture
def model(tmp_path: Path) -> ContinualModel:
    """One task with kept samples, one without, then a new name for the first."""
    made = small_model(tmp_path / "m", tasks=0)
    made.learn("a", blobs(0), training=QUICK, probe=5)
    made.learn("b", blobs(1), training=QUICK)
    made.rename("a", "<i>$a")
    return made


def test_accuracies_after_every_event(model: ContinualModel) -> None:
    found = model.history()
    assert [event.kind for event in found.events] == ["created", "learned", "learned", "renamed"]
    assert [event.task for event in found.events] == ["", "<i>$a", "b", "<i>$a"]
    (drift,) = model.inspect(probe=True).drift
    assert found.curves.keys() == {"<i>$a", "b"}
    assert [place for place, _ in found.curves["<i>$a"]] == [1, 2]
    assert found.curves["<i>$a"][-1][1] == drift.accuracy_now
    assert found.curves["b"] == [(2, model.config.tasks[1].accuracy)]
    model.remove("b")
    assert model.history().curves.keys() == {"<i>$a"}


def test_plots(model: ContinualModel, tmp_path: Path) -> None:
    for name in ("plot.svg", "plot.png"):
        model.history().draw(tmp_path / name)
    assert b"<svg" in (tmp_path / "plot.svg").read_bytes()
    assert (tmp_path / "plot.png").read_bytes()[1:4] == b"PNG"
    with pytest.raises(ConfigError):
        model.history().draw(tmp_path / "plot.txt")


def test_a_page(model: ContinualModel) -> None:
    text = page(model.inspect(probe=True), model.history())
    assert "data:image/svg+xml;base64," in text
    assert "Kept samples" in text
    assert "&lt;i&gt;$a" in text
    assert "<i>" not in text


def test_names_are_those_of_today_and_lines_of_older_releases_count(tmp_path: Path) -> None:
    """A removed task's name may be used again, and an older one may have been renamed to it."""
    lines = [
        {"kind": "learned", "task": "a", "accuracy": 0.5},
        {"kind": "removed", "task": "a"},
        {"kind": "learned", "task": "b", "accuracies": {"b": 0.75}},
        {"kind": "renamed", "task": "b", "name": "a"},
        {"kind": "learned", "task": "c", "accuracies": {"a": 0.7, "c": 0.9}},
    ]
    file = tmp_path / "history.jsonl"
    file.write_text("\n".join(["{", *map(json.dumps, lines), '"kind"', "[" * 100_000]))
    assert read_history(file).curves == {"a": [(2, 0.75), (4, 0.7)], "c": [(4, 0.9)]}
    assert read_history(tmp_path / "nothing").events == ()
