"""`softmask export`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import softmask
from tests.models.examples import small_model


def test_a_task_is_exported(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m")
    ended = softmask("export", model.path, tmp_path / "out", "--task", "task 0")
    assert ended.code == 0, ended.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["labels.json", "weights.safetensors"]
    assert "weights.safetensors" in ended.out
    for arguments, code in ((("--task", "task 0"), 1), (("--task", "task 0", "--format", "zip"), 2)):
        refused = softmask("export", model.path, tmp_path / "out", *arguments)
        assert refused.code == code
        assert len(refused.errors()) == 1
