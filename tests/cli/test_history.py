"""`softmask history`, `inspect --html`, `predict --watch`, `learn --more`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from softmask.cli import watching
from softmask.models import ContinualModel
from tests.cli.command import softmask
from tests.models.examples import write_digits

TINY = ["--network", "mlp", "--width", "0.0625", "--size", "28", "--channels", "1", "--set", "epochs=1"]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("few"), each=15)


@pytest.fixture(scope="module")
def model(few: Path) -> Path:
    for task in ("first", "second"):
        made = [*TINY, "--mean", "0.1", "--std", "0.3"] if task == "first" else TINY
        ended = softmask("learn", few / "model", few / "train" / task, *made, "--probe", 3)
        assert ended.code == 0, ended.err
    return few / "model"


def test_history(model: Path, tmp_path: Path) -> None:
    ended = softmask("history", model, "--plot", tmp_path / "plot.svg")
    assert ended.code == 0
    kinds = [event["kind"] for event in softmask("history", model, "--json").json()["events"]]
    assert kinds == ["created", "learned", "learned"], "what happened, and no marks of ours"
    assert (tmp_path / "plot.svg").exists()
    found = softmask("history", model, "--json").json()
    assert found["accuracies"].keys() == {"first", "second"}
    assert softmask("history", tmp_path / "nothing").code == 1
    assert softmask("history", model, "--plot", tmp_path / "plot.gif").code == 2


def test_a_page_for_the_browser(model: Path, tmp_path: Path) -> None:
    ended = softmask("inspect", model, "--probe", "--html", tmp_path / "page.html")
    assert ended.code == 0
    assert ended.out == ""
    assert "first" in (tmp_path / "page.html").read_text()


def test_normalisation_is_set_and_kept(model: Path, few: Path) -> None:
    config = ContinualModel.open(model).config
    assert (config.mean, config.std) == ((0.1,), (0.3,))
    other = softmask("learn", model, few / "train" / "third", "--mean", "0.2", "--std", "0.3")
    assert other.code == 2
    assert len(other.errors()) == 1
    assert softmask("learn", model, few / "train" / "third", "--mean", "much").code == 2


def test_more_images_and_a_new_class(model: Path, few: Path, tmp_path: Path) -> None:
    copied, images = shutil.copytree(model, tmp_path / "m"), tmp_path / "images"
    shutil.copytree(few / "train" / "third" / "6", images / "6")
    ended = softmask("learn", copied, images, "--task", "first", "--more", "--set", "epochs=1", "--json")
    assert ended.code == 0, ended.err
    assert ended.json()["classes"] == ["0", "1", "2", "6"]
    more = softmask("learn", copied, few / "train" / "first", "--more", "--set", "epochs=1")
    told = [line for line in more.out.splitlines() if "kept samples" in line]
    assert [line.split(":")[0] for line in told] == ["first", "second"], "what the task itself lost is told, too"
    refused = softmask("learn", copied, few / "train" / "third", "--more")
    assert refused.code == 2, "third is no task yet"


def test_images_are_answered_as_they_arrive(
    model: Path, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, arriving, looks = tmp_path / "in", few / "test" / "first" / "0", []
    folder.mkdir()
    first, second = sorted(arriving.iterdir())[:2]

    class EnoughError(Exception):
        pass

    def sleep(_: float) -> None:
        looks.append(1)
        if len(looks) == 1:
            shutil.copy(first, folder / "a.png")
        if len(looks) == 4:
            shutil.copy(second, folder / "b.png")
            (folder / "bad.png").write_bytes(b"no image")
        if len(looks) == 7:
            raise EnoughError

    real = watching.arrivals
    monkeypatch.setattr("softmask.cli.predict.arrivals", lambda folder: real(folder, sleep))
    told: list[str] = []
    monkeypatch.setattr("softmask.cli.predict.out.print", lambda text, **_: told.append(text))
    with pytest.raises(EnoughError):
        softmask("predict", model, "--watch", folder, "--task", "first", "--json")
    assert [Path(json.loads(line)["item"]).name for line in told] == ["a.png", "b.png"]
    assert softmask("predict", model, "--watch", tmp_path / "nowhere").code == 1
    assert softmask("predict", model).code == 2


def test_weights_are_for_a_new_model(model: Path, few: Path) -> None:
    ended = softmask("learn", model, few / "train" / "third", "--weights", few / "weights.pt")
    assert ended.code == 2
    assert "weights" in ended.errors()[0]
