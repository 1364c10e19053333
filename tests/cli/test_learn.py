"""`softmask learn`, `predict`, `inspect`: a model in a folder without a line of Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from softmask.cli.learn import open_or_create, report_state
from softmask.models import ContinualModel
from softmask.models.folder import ModelFolder
from softmask.storage.lease import Lease
from tests.cli.command import softmask
from tests.experiments.runs.examples import environment
from tests.models.examples import DIGITS, write_digits

TINY = ["--network", "mlp", "--width", "0.0625", "--size", "28", "--channels", "1", "--set", "epochs=1"]
TINY += ["--method", "spg"]  # which tells its free capacity


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("few"), each=15)


@pytest.fixture(scope="module")
def model(few: Path) -> Path:
    """A model that knows two tasks, only read."""
    folder = few / "model"
    for task in ("first", "second"):
        ended = softmask("learn", folder, few / "train" / task, *TINY, "--probe", 2)
        assert ended.code == 0, ended.err
    return folder


def right_answers(model: Path, samples: Path, task: str) -> float:
    ended = softmask("predict", model, samples / "test" / task, "--task", task, "--json")
    found = ended.json()
    return sum(Path(each["item"]).parent.name == each["label"] for each in found) / len(found)


def test_learning_tells_what_was_learned(few: Path, tmp_path: Path) -> None:
    ended = softmask("learn", tmp_path / "m", few / "train" / "first", *TINY, "--task", "ones")
    assert ended.code == 0
    assert "ones: 3 classes, 33 training images, 1 epochs, validation accuracy" in ended.out
    assert "free capacity" in ended.out
    facts = softmask("learn", tmp_path / "m", few / "train" / "second", "--set", "epochs=1", "--json").json()
    assert (facts["name"], facts["classes"]) == ("second", ["3", "4", "5"])


def test_predictions_of_files_and_folders(model: Path, few: Path) -> None:
    test = few / "test" / "first"
    ended = softmask("predict", model, test / "0", test / "1" / "4.png", "--task", "first")
    assert ended.code == 0
    assert sum(".png" in line for line in ended.out.splitlines()) == 4
    assert "note:" not in ended.err


def test_learning_tells_what_it_cost_where_samples_were_kept(model: Path, few: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(model, tmp_path / "m")
    ended = softmask("learn", copied, few / "train" / "third", "--set", "epochs=1", "--probe", 2)
    told = [line for line in ended.out.splitlines() if "2 kept samples" in line]
    assert [line.split(":")[0] for line in told] == ["first", "second"]


def test_a_task_that_makes_it_forget_is_undone(few: Path, tmp_path: Path) -> None:
    plain = [*TINY, "--method", "ncl", "--set", "epochs=150", "--retain", 1.0]
    first = softmask("learn", tmp_path / "m", few / "train" / "first", *plain)
    assert first.code == 0, first.err
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    assert ContinualModel.open(tmp_path / "m").config.tasks[0].probe == 3, (
        "a gate needs samples: one a class is held out"
    )
    destructive = [word for change in ("optimizer=adamw", "lr=1.0", "epochs=8") for word in ("--set", change)]
    ended = softmask("learn", tmp_path / "m", few / "train" / "second", *destructive, "--retain", 1.0)
    assert ended.code == 3, ended.err
    assert len(ended.errors()) == 1
    assert "first" in ended.errors()[0]
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == before


def test_a_damaged_image_does_not_stop_the_others(model: Path, few: Path, tmp_path: Path) -> None:
    samples = shutil.copytree(few / "test" / "first" / "0", tmp_path / "images")
    (samples / "bad.png").write_bytes(b"no image")
    ended = softmask("predict", model, samples, "--task", "first", "--json")
    assert ended.code == 1
    assert len(ended.json()) == len(list(samples.iterdir())) - 1
    assert "bad.png" in ended.err


def test_without_a_task_it_is_found_and_the_answer_says_how_surely(model: Path, few: Path) -> None:
    (found,) = softmask("predict", model, few / "test" / "first" / "1" / "4.png", "--json").json()
    assert found["task"] == "first"
    assert 0.5 < found["task_share"] <= 1


def test_inspection(model: Path) -> None:
    ended = softmask("inspect", model, "--probe")
    for expected in ("first", "0, 1, 2", "fc1", "free capacity", "answers changed", "bytes on disk"):
        assert expected in ended.out
    found = softmask("inspect", model, "--json").json()
    assert [task["name"] for task in found["tasks"]] == ["first", "second"]
    assert 0 < found["free_capacity"] < 1


def test_a_method_without_a_mask_has_no_free_capacity(few: Path, tmp_path: Path) -> None:
    softmask("learn", tmp_path / "m", few / "train" / "first", *TINY, "--method", "ncl")
    assert "no soft mask" in softmask("inspect", tmp_path / "m").out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["learn", "MODEL", "FEW/train/first"], 1, "'first' already"),
        (["learn", "MODEL", "FEW/nowhere"], 1, "no such folder"),
        (["learn", "MODEL", "FEW/train/first/0"], 1, "one folder of images for each class"),
        (["learn", "MODEL", "FEW/train/third", "--width", "2"], 2, "fixed when a model is created"),
        (["learn", "MODEL", "FEW/train/third", "--network", "alexnet"], 1, "network is mlp, not alexnet"),
        (["learn", "MODEL", "FEW/train/third", "--set", "epoch=3"], 2, "did you mean 'epochs'"),
        (["learn", "MODEL", "FEW/train/third", "--set", "epochs=many"], 2, "training: epochs"),
        (["learn", "MODEL", "FEW/train/third", "--set", "settings.strength=3"], 2, "fixed when a model is created"),
        (["learn", "FEW/new", "FEW/train/third", "--method", "spq"], 2, "did you mean 'spg'"),
        (["learn", "FEW/new", "FEW/train/third", "--network", "no.such:thing"], 1, "No module named"),
        (["learn", "FEW/train", "FEW/train/third"], 1, "is not empty"),
        (["predict", "MODEL", "FEW/test/first", "--task", "frist"], 2, "did you mean 'first'"),
        (["predict", "MODEL", "FEW/nowhere.png", "--task", "first"], 1, "No such file"),
        (["predict", "FEW/nowhere", "FEW/test/first"], 1, "no such model"),
        (["inspect", "FEW/train"], 1, "no config.json"),
    ],
)
def test_mistakes_take_one_line(model: Path, few: Path, arguments: list[str], code: int, message: str) -> None:
    given = [word.replace("MODEL", str(model)).replace("FEW", str(few)) for word in arguments]
    ended = softmask(*given)
    assert ended.code == code, ended.err
    (error,) = ended.errors()
    assert message in error
    assert "Traceback" not in ended.err


def test_a_first_attempt_that_fails_leaves_no_model(few: Path, tmp_path: Path) -> None:
    ended = softmask("learn", tmp_path / "m", few / "typo", *TINY)
    assert ended.code == 1
    assert "no model was created" in ended.err
    assert not (tmp_path / "m").exists()
    wider = [word if word != "0.0625" else "0.125" for word in TINY]
    assert softmask("learn", tmp_path / "m", few / "train" / "first", *wider).code == 0
    assert "is unchanged" in softmask("learn", tmp_path / "m", few / "typo").err
    same_size = softmask("learn", tmp_path / "m", few / "train" / "second", "--size", 28, "--set", "epochs=1")
    assert same_size.code == 0, "the channels are those of the model"


def test_a_first_attempt_that_was_killed_binds_nobody(few: Path, tmp_path: Path) -> None:
    open_or_create(tmp_path / "m", {"network": "mlp", "input_shape": (3, 8, 8)}, {})  # as far as a killed `learn` came
    ended = softmask("learn", tmp_path / "m", few / "train" / "first", *TINY)
    assert ended.code == 0, ended.err
    assert "created again" in ended.err
    again = softmask("learn", tmp_path / "m", few / "train" / "second", "--size", 8)
    assert "fixed when a model is created" in again.err


def test_a_model_that_was_made_on_purpose_stays(few: Path, tmp_path: Path) -> None:
    folder, made = tmp_path / "m", {"network": "mlp", "input_shape": (1, 20, 20), "width": 0.125, "seed": 7}
    ContinualModel.create(folder, method="spg", settings={"importance_dropout": False}, **made)
    refused = softmask("learn", folder, few / "train" / "first", "--seed", 3)
    assert "has seed 7, not 3" in refused.errors()[0]
    ended = softmask("learn", folder, few / "train" / "first", "--set", "epochs=1")
    assert ended.code == 0, ended.err
    config = ContinualModel.open(folder).config
    assert (config.seed, config.input_shape, config.settings) == (7, (1, 20, 20), {"importance_dropout": False})


def test_the_name_is_that_of_the_folder_as_it_is_called(few: Path, tmp_path: Path) -> None:
    os.symlink(few / "train" / "first", tmp_path / "birds")
    assert softmask("learn", tmp_path / "m", tmp_path / "birds", *TINY).code == 0
    assert ContinualModel.open(tmp_path / "m").tasks == ("birds",)


def test_json_is_json_where_only_ascii_can_be_printed(few: Path, tmp_path: Path) -> None:
    samples = shutil.copytree(few / "train" / "first", tmp_path / "images")
    (samples / "0").rename(samples / "caf\xe9")
    command = [sys.executable, "-m", "softmask", "learn", tmp_path / "m", samples, *map(str, TINY), "--json"]
    ended = subprocess.run(command, env=environment() | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True)
    assert "caf\xe9" in json.loads(ended.stdout)["classes"]


def test_two_channels_are_none_that_an_image_has(few: Path, tmp_path: Path) -> None:
    ended = softmask("learn", tmp_path / "m", few / "train" / "first", "--channels", 2)
    assert ended.code == 2
    assert not (tmp_path / "m").exists()


def test_damaged_and_left_out_files_are_named(few: Path, tmp_path: Path) -> None:
    samples = shutil.copytree(few / "train" / "first", tmp_path / "images")
    for name in ("a.png", "b.png", "c.png"):
        (samples / "0" / name).write_bytes(b"no image")
    (samples / "1" / "x.HEIC").touch()
    refused = softmask("learn", tmp_path / "m", samples, *TINY, "--strict")
    (error,) = refused.errors()
    assert refused.code == 1
    assert not (tmp_path / "m").exists()
    ended = softmask("learn", tmp_path / "m", samples, *TINY, "--json")
    assert ended.code == 0, ended.err
    assert ended.json()["samples"] == 33, "as many as without the damaged ones"
    for told in (error, ended.err):
        assert "2 more:" in told
        assert "c.png" in told
    assert "3 of 39 images" in ended.err
    assert "ignored: 1 .heic" in refused.err


def test_a_class_without_one_image_that_can_be_read_is_refused(few: Path, tmp_path: Path) -> None:
    samples = shutil.copytree(few / "train" / "first", tmp_path / "images")
    for path in (samples / "0").iterdir():
        path.write_bytes(b"no image")
    ended = softmask("learn", tmp_path / "m", samples, *TINY)
    assert ended.code == 1
    assert len(ended.errors()) == 1


def test_a_network_of_ones_own(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from torch import nn\n\ndef small():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU())\n"
    )
    (tmp_path / "nets_of_mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "nets_of_mine", raising=False)
    own = ["--network", "nets_of_mine:small"]
    made = softmask("learn", "m", few / "train" / "first", *own, "--size", 28, "--channels", 1, "--set", "epochs=1")
    assert made.code == 0, made.err
    refused = softmask("predict", "m", few / "test" / "first", "--task", "first")
    assert "if you trust it" in refused.errors()[0], "a folder must not choose what code is run"
    assert softmask("predict", "m", few / "test" / "first", "--task", "first", *own).code == 0


@pytest.mark.slow
def test_three_tasks_in_three_processes_are_kept(tmp_path: Path) -> None:
    """The old tasks' accuracy stays within a few points; with plain fine-tuning the first is forgotten."""
    digits = write_digits(tmp_path / "digits")
    made = ["--network", "mlp", "--width", "0.5", "--size", "28", "--channels", "1"]
    made += ["--set", "epochs=10", "--set", "lr=0.01"]
    fresh = {}
    for task in DIGITS:
        own_process = [sys.executable, "-m", "softmask", "learn", tmp_path / "kept", digits / "train" / task, *made]
        subprocess.run(own_process, env=environment(), check=True, capture_output=True)
        fresh[task] = right_answers(tmp_path / "kept", digits, task)
        softmask("learn", tmp_path / "ncl", digits / "train" / task, *made, "--method", "ncl")
    kept = {task: right_answers(tmp_path / "kept", digits, task) for task in DIGITS}
    plain = {task: right_answers(tmp_path / "ncl", digits, task) for task in DIGITS}
    assert min(fresh.values()) > 0.9
    assert all(kept[task] > fresh[task] - 0.07 for task in DIGITS)
    assert plain["first"] < kept["first"] - 0.15


def test_a_model_that_another_process_teaches_is_not_removed(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path / "m")
    ContinualModel.create(folder.path, network="mlp", input_shape=(6,), width=1 / 16)
    with Lease(folder.path):
        report_state(folder, "a task", is_new=True)
        assert folder.exists()
    report_state(folder, "a task", is_new=True)
    assert not folder.path.exists()


def test_escape_sequences_in_folder_names_are_shown(few: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "evil\x1b[31m"
    for ended in (softmask("inspect", hostile), softmask("learn", tmp_path / "m", hostile, *TINY, "--task", "t")):
        assert ended.code == 1
        assert "\x1b" not in ended.out + ended.err
        assert r"evil\x1b[31m" in ended.err
    shutil.copytree(few / "train" / "first", hostile)
    ended = softmask("learn", tmp_path / "m\x1b[1m", hostile, *TINY, "--task", "t")
    assert ended.code == 0
    assert "\x1b" not in ended.out + ended.err
