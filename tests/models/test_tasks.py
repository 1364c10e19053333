"""Renaming and removing tasks of a model folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from softmask.errors import SoftmaskError, UnknownName
from softmask.models import ContinualModel
from softmask.models.folder import ModelFolder, ModelFolderError
from softmask.models.learner import OPEN_ENDED
from tests.models.examples import QUICK, blobs, small_model


def three(path: Path, **wanted: object) -> ContinualModel:
    model = small_model(path, tasks=0, **wanted)
    for index in range(3):
        model.learn(f"task {index}", blobs(index), training=QUICK, probe=3 + index)
    return model


def test_a_renamed_task_answers_as_before(tmp_path: Path) -> None:
    model, x = three(tmp_path / "m"), blobs(1)[0]
    before = model.probabilities(x, "task 1")
    model.rename("task 1", "birds")
    for renamed in (model, ContinualModel.open(model.path)):
        assert renamed.tasks == ("task 0", "birds", "task 2")
        assert torch.equal(renamed.probabilities(x, "birds"), before)
    for name in ("task 0", "birds"):
        with pytest.raises(SoftmaskError, match="already"):
            model.rename("task 2", name)
    with pytest.raises(UnknownName):
        model.rename("task 1", "other")
    with pytest.raises(SoftmaskError, match="name"):
        model.rename("task 2", "")


@pytest.mark.parametrize("method", OPEN_ENDED)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.filterwarnings("ignore")
def test_after_a_removal_the_others_answer_as_before(tmp_path: Path, method: str, place: int) -> None:
    model = three(tmp_path / "m", method=method)
    left = [f"task {index}" for index in range(3) if index != place]
    inputs = {name: blobs(int(name[-1]))[0] for name in left}
    before = {name: model.probabilities(inputs[name], name) for name in left}
    samples = {drift.task: drift for drift in model.inspect(probe=True).drift}
    model.remove(f"task {place}")
    for found in (model, ContinualModel.open(model.path)):
        assert list(found.tasks) == left
        assert all(torch.equal(found.probabilities(inputs[name], name), before[name]) for name in left)
        assert all(drift == samples[drift.task] for drift in found.inspect(probe=True).drift)
    assert len(list(model.path.glob("probe-*"))) == 2
    assert len(list(model.path.glob("generation-*"))) == 1


def test_kept_samples_of_a_task_that_is_learned_after_a_removal_have_a_file_of_their_own(tmp_path: Path) -> None:
    model = three(tmp_path / "m")
    model.remove("task 0")
    before = {drift.task: drift for drift in model.inspect(probe=True).drift}
    model.learn("task 3", blobs(3), training=QUICK, probe=2, retain=0.0)
    again = ContinualModel.open(model.path)
    assert again.config.numbers == (1, 2, 3)
    found = {drift.task: drift for drift in again.inspect(probe=True).drift}
    assert found["task 3"].samples == 2
    assert [found[name].accuracy_then for name in before] == [before[name].accuracy_then for name in before]


def test_a_removal_that_is_killed_before_the_description_is_replaced_has_not_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = three(tmp_path / "m"), blobs(1)[0]
    before = model.probabilities(x, "task 1")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("softmask.models.folder.write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        model.remove("task 0")
    monkeypatch.undo()
    again = ContinualModel.open(model.path)
    assert again.tasks == ("task 0", "task 1", "task 2")
    assert torch.equal(again.probabilities(x, "task 1"), before)
    assert len(again.inspect(probe=True).drift) == 3


def test_the_only_task_is_not_removed(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m", tasks=1)
    with pytest.raises(SoftmaskError, match="only task"):
        model.remove("task 0")


@pytest.mark.parametrize("numbers", [(1, 1), (-1, 0), (1, None)])
def test_two_tasks_never_share_a_file(tmp_path: Path, numbers: tuple[int | None, ...]) -> None:
    model = small_model(tmp_path / "m", tasks=2)
    described = json.loads((model.path / "config.json").read_text())
    for task, number in zip(described["tasks"], numbers, strict=True):
        task["number"] = number
    (model.path / "config.json").write_text(json.dumps(described))
    with pytest.raises(ModelFolderError):
        ModelFolder(model.path).read_config()
