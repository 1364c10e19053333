"""Folders that are damaged or hostile are refused in one line; an end at any write leaves a whole model."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from softmask import ContinualModel
from softmask.errors import SoftmaskError
from softmask.models import ModelFolderError
from softmask.models.learner import Learned, learn_task
from softmask.storage import state_file
from softmask.storage.lease import FolderBusyError, Lease
from softmask.storage.state_file import read_state, write_state
from tests.models.examples import QUICK, blobs, small_model

NUMBERS = "generation-000001.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "original"
    small_model(folder)
    return folder


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def refused(model: Path, message: str) -> None:
    with pytest.raises(SoftmaskError, match=message) as caught:
        ContinualModel.open(model)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def change(model: Path, **fields: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | fields))


def first_task(model: Path) -> dict[str, Any]:
    return dict(json.loads((model / "config.json").read_text())["tasks"][0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 3}, "from a later release"),
        ({"format": "1"}, "not the description"),
        ({"generation": 7}, "generation-000007"),
        ({"generation": -1}, "out of range"),
        ({"generation": "../../etc/passwd"}, "generation"),
        ({"network": "resnet19"}, "wants to run resnet19"),
        ({"network": "os:abort"}, "wants to run os:abort"),
        ({"network": "../evil:run"}, "wants to run"),
        ({"width": 1.0}, "the network needs"),
        ({"width": 1e9}, "out of range"),
        ({"network": "alexnet", "input_shape": [3, 4096, 4096], "width": 8.0}, "needs .* bytes|the network"),
        ({"input_shape": [10**9]}, "sides of 1 to"),
        ({"input_shape": []}, "sides of 1 to"),
        ({"method": "hat"}, "hat needs"),
        ({"method": "ncl"}, "the network needs nothing"),
        ({"method": "nothing"}, "unknown method"),
        ({"settings": {"importance_dropout": "yes"}}, "importance_dropout"),
        ({"settings": {"evil": 1}}, "no setting 'evil'"),
        ({"seed": -1}, "out of range"),
        ({"surprise": 1}, "surprise"),
        ({"tasks": []}, "the network needs nothing"),
        ({"tasks": [{"name": "x"}]}, "tasks.0"),
        ({"mean": [0.5], "std": [0.0]}, "mean and std"),
        ({"mean": [0.5], "std": [1e-45]}, "mean and std"),
    ],
)
def test_descriptions_that_cannot_be(model: Path, fields: dict[str, Any], message: str) -> None:
    change(model, **fields)
    refused(model, message)


def test_a_task_that_cannot_be(model: Path) -> None:
    task = first_task(model)
    for fields, message in [
        ({"classes": ["a", "a"]}, "no two of one name"),
        ({"classes": ["a"]}, "2 to"),
        ({"name": "a\nb"}, "printable"),
        ({"accuracy": 7.0}, "out of range"),
        ({"free_capacity": math.inf}, "free capacity"),
        ({"classes": ["a", "b", "c"]}, "the network needs"),
    ]:
        change(model, tasks=[task | fields])
        refused(model, message)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}'])
def test_what_is_no_description(model: Path, content: bytes) -> None:
    (model / "config.json").write_bytes(content)
    refused(model, "config.json")


def test_places_without_a_model(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no such model")
    refused(tmp_path, "no config.json")


def test_a_folder_of_other_things_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "release.txt").write_text("mine")
    with pytest.raises(ModelFolderError, match=r"holds 'release\.txt'"):
        ContinualModel.create(tmp_path, "mlp", (6,))
    assert [path.name for path in tmp_path.iterdir()] == ["release.txt"]


def test_links_and_devices_are_refused(model: Path) -> None:
    for name in (NUMBERS, "config.json"):
        file = model / name
        elsewhere = model.parent / name
        file.rename(elsewhere)
        file.symlink_to(elsewhere)
        refused(model, "not a plain file")
        file.unlink()
        os.mkfifo(file)
        refused(model, "not a plain file")
        file.unlink()
        elsewhere.rename(file)
    ContinualModel.open(model)


def rewritten(model: Path, alter: Callable[[dict[str, Any]], None]) -> None:
    state = read_state(model / NUMBERS)
    alter(state)
    write_state(model / NUMBERS, state)


@pytest.mark.filterwarnings("ignore:.*not tidied up")
def test_nothing_is_written_through_a_link(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("dear to its owner")
    (model / "history.jsonl").unlink()
    (model / "history.jsonl").symlink_to(other)
    (model / "config.json.tmp").symlink_to(other)
    (model / "lease.json.tmp").symlink_to(other)
    ContinualModel.open(model).learn("another", blobs(1), training=QUICK)
    assert other.read_text() == "dear to its owner"
    assert ContinualModel.open(model).tasks == ("task 0", "another")


def test_numbers_that_do_not_fit(model: Path, original: Path) -> None:
    name, extra = "backbone.fc1.layer.weight", "_extra_state"
    mask = "fc1.layer.weight"
    for alter, message in [
        (lambda s: s.update({name: torch.zeros(3, 3)}), r"fc1.layer.weight' is \(3, 3\)"),
        (lambda s: s.update({name: s[name].double()}), "torch.float64"),
        (lambda s: s.update({name: torch.zeros(8_000_000)}), "bytes, but the network has"),
        (lambda s: s.update({name: s[name] * torch.nan}), "not finite"),
        (lambda s: s.pop(name), "is nothing, the network needs"),
        (lambda s: s.update({"more": torch.zeros(1)}), "the network needs nothing"),
        (lambda s: s[extra]["importance"].update({mask: s[extra]["importance"][mask] + 2}), r"0\.\.1"),
        (lambda s: s[extra].update(threshold="evil"), "threshold is 'evil'"),
        (lambda s: s[extra].update(version=99), "version is 99"),
    ]:
        shutil.copy(original / NUMBERS, model / NUMBERS)
        rewritten(model, alter)
        refused(model, message)


def test_damage_at_any_byte_is_seen(model: Path, original: Path) -> None:
    whole = (original / NUMBERS).read_bytes()
    for place in range(0, len(whole), len(whole) // 60):
        (model / NUMBERS).write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        refused(model, NUMBERS)
        (model / NUMBERS).write_bytes(whole[:place])
        refused(model, NUMBERS)


def test_tensors_under_other_names_are_seen(model: Path) -> None:
    """The header may fit while what it says about the state does not."""
    with safe_open(model / NUMBERS, framework="pt") as file:
        about, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    about["state"] = about["state"].replace("backbone.fc1", "backbone.fc7")
    about["checksum"] = state_file._checksum(tensors, about["state"])
    save_file(tensors, model / NUMBERS, metadata=about)
    refused(model, "fc")


def test_a_hostile_probe_is_refused(model: Path) -> None:
    change(model, tasks=[first_task(model) | {"probe": 10**18}])
    with pytest.raises(ModelFolderError, match="a count is out of range"):
        ContinualModel.open(model)
    change(model, tasks=[first_task(model) | {"probe": 10**6}])
    with pytest.raises(ModelFolderError, match="missing"):
        ContinualModel.open(model).inspect(probe=True)
    write_state(model / "probe-000.safetensors", {"inputs": torch.zeros(2, 2)})
    with pytest.raises(ModelFolderError, match=r"the network needs|bytes"):
        ContinualModel.open(model).inspect(probe=True)


class Killed(BaseException):
    """As kill -9 would: nobody catches it."""


@pytest.mark.parametrize("function", ["fsync", "replace", "listdir"])
@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_end_at_any_write_leaves_the_old_model_or_the_new_one(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: BaseException
) -> None:
    x = blobs(0)[0]
    before = ContinualModel.open(original).probabilities(x, 0)
    whole = ContinualModel.open(shutil.copytree(original, tmp_path / "whole"))
    whole.learn("task 1", blobs(1), training=QUICK, probe=2)
    for moment in range(20):
        folder = Path(shutil.copytree(original, tmp_path / f"{moment}"))
        model, usual, seen = ContinualModel.open(folder), getattr(os, function), 0

        def failing(*arguments: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen > moment:  # noqa: B023
                raise error
            return usual(*arguments)  # noqa: B023

        monkeypatch.setattr(os, function, failing)
        try:
            model.learn("task 1", blobs(1), training=QUICK, probe=2)
            ended = True
        except (Killed, OSError, SoftmaskError):
            ended = False
        monkeypatch.undo()
        found = ContinualModel.open(folder)
        expected = whole.probabilities(x, 0) if len(found.tasks) == 2 else before
        assert torch.equal(found.probabilities(x, 0), expected)
        if ended:
            break
        if len(found.tasks) == 1:
            found.learn("task 1", blobs(1), training=QUICK, probe=2)
            assert not list(folder.glob("*.tmp"))
            assert len(list(folder.glob("generation-*"))) == 1
            assert torch.equal(found.probabilities(x, 0), whole.probabilities(x, 0))
    else:
        pytest.fail("it was never let through")


class Masked(nn.Linear):
    """A network of one's own with numbers that are infinite, and others that are complex, from the start."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.register_buffer("causal", torch.full((2, 2), -math.inf).triu(1))
        self.register_buffer("turns", torch.ones(3, dtype=torch.complex64))


def test_a_network_with_infinite_and_complex_buffers_is_opened_again(tmp_path: Path) -> None:
    model = ContinualModel.create(tmp_path / "m", network=Masked, input_shape=(6,))
    model.learn("one", blobs(0), training=QUICK)
    x = blobs(0)[0]
    again = ContinualModel.open(tmp_path / "m", network=Masked)
    assert torch.equal(model.probabilities(x, 0), again.probabilities(x, 0))


def damaged_on_its_way(path: Path, state: dict[str, Any]) -> None:
    name = next(name for name, value in state.items() if name in ("backbone.fc1.layer.bias", "scatter"))
    write_state(path, {**state, name: state[name] * math.nan})


def infinite_from_training(*arguments: Any, **named: Any) -> Learned:
    taught = learn_task(*arguments, **named)
    taught.method.backbone.fc1.layer.bias.data[0] = math.inf
    return taught


@pytest.mark.parametrize(
    ("place", "damage"), [("folder.write_state", damaged_on_its_way), ("model.learn_task", infinite_from_training)]
)
def test_what_could_not_be_opened_again_is_not_committed(
    model: Path, monkeypatch: pytest.MonkeyPatch, place: str, damage: Callable[..., Any]
) -> None:
    opened = ContinualModel.open(model)
    before = files(model)
    monkeypatch.setattr(f"softmask.models.{place}", damage)
    with pytest.raises(ModelFolderError, match=r"is as it was, since it could not be opened again: .*not finite"):
        opened.learn("more", blobs(5), training=QUICK)
    assert files(model) == before
    assert ContinualModel.open(model).tasks == ("task 0",)


def files(model: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in model.iterdir() if not path.name.startswith("lease")}


@pytest.mark.parametrize(
    "alter",
    [
        lambda state: state.update({7: 1}),
        lambda state: state.update({"more": 1}),
        lambda state: next(v for k, v in state.items() if k.endswith("_extra_state")).pop("threshold"),
    ],
)
def test_a_state_that_is_built_otherwise_is_refused(model: Path, alter: Callable[[dict[str, Any]], object]) -> None:
    rewritten(model, alter)
    refused(model, "not built as the model's state is|does not fit|not readable")


def test_a_description_of_nothing_but_lists_is_refused_before_it_is_read(model: Path) -> None:
    (model / "config.json").write_text('{"settings": [' + ",".join(["[]"] * 100_000) + "]}")
    refused(model, "too many lists")


def test_a_lease_that_was_lost_writes_no_samples(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take the place of those that another process has kept meanwhile."""

    def lost(_: Lease) -> None:
        raise FolderBusyError("another process has it")

    before = files(model)
    monkeypatch.setattr(Lease, "require", lost)
    with pytest.raises(FolderBusyError):
        ContinualModel.open(model).learn("task 1", blobs(1), training=QUICK, probe=2)
    assert {name: content for name, content in files(model).items() if name.startswith("probe")} == {
        name: content for name, content in before.items() if name.startswith("probe")
    }


@pytest.mark.parametrize("place", ["network", "learned"])
def test_what_would_be_printed_can_be_printed(model: Path, place: str) -> None:
    forged = "x\nerror: forged\x1b[31m"
    if place == "network":
        change(model, network=forged)
    else:
        change(model, tasks=[first_task(model) | {"learned": forged}])
    refused(model, "printable characters")
