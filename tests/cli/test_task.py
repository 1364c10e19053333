"""`softmask task rename` and `softmask task remove`."""

from __future__ import annotations

from pathlib import Path

from softmask.models import ContinualModel
from tests.cli.command import softmask
from tests.models.examples import small_model


def test_a_task_is_renamed_and_removed(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m", tasks=2)
    assert softmask("task", "rename", model.path, "task 0", "birds").code == 0
    assert ContinualModel.open(model.path).tasks == ("birds", "task 1")
    assert softmask("task", "remove", model.path, "task 1").code == 0
    assert ContinualModel.open(model.path).tasks == ("birds",)


def test_mistakes_take_one_line(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m", tasks=1)
    for arguments, code in ((("remove", model.path, "task 0"), 1), (("rename", model.path, "tusk 0", "birds"), 2)):
        ended = softmask("task", *arguments)
        assert ended.code == code
        assert len(ended.errors()) == 1
