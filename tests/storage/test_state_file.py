"""State comes back as it was, damage is noticed, and no half-written file takes the place of a whole one."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from softmask.storage import state_file
from softmask.storage.state_file import StateFileError, digest_of, read_state, write_json, write_state, write_text

SHARED = torch.arange(6.0)
STATE = {
    "weights": torch.randn(3, 4, generator=torch.Generator().manual_seed(1)),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "one number": torch.tensor(3),
    "nothing": torch.zeros(0, 3),
    "spread": torch.arange(12).view(3, 4).t(),
    "tied": [SHARED, SHARED, SHARED[2:4]],
    1: torch.tensor(1),
    "1": torch.tensor([True, False]),
    "plain": (1, [2.5, None, "text", float("inf")], {"deep": {}}),
}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    write_state(tmp_path / "state", STATE)
    assert equal(read_state(tmp_path / "state"), STATE)
    assert digest_of(read_state(tmp_path / "state")) == digest_of(STATE)


leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5)
nested = st.recursive(
    leaves | st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(torch.tensor),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text("a/1#", max_size=3) | st.integers(0, 2), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, derandomize=True, max_examples=20)
@given(nested)
def test_any_nested_state_comes_back(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "any.safetensors"
    write_state(file, state)
    assert equal(read_state(file), state)


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"settings/path: a .*Path "):
        write_state(tmp_path / "state", {"settings": {"path": tmp_path}})
    assert not list(tmp_path.iterdir())


def test_a_digest_sees_values_names_types_and_shapes() -> None:
    base = {"a": torch.zeros(2, 3)}
    others = [
        {"b": torch.zeros(2, 3)},
        {"a": torch.zeros(3, 2)},
        {"a": torch.zeros(2, 3, dtype=torch.int32)},
        {"a": torch.zeros(2, 3) - 0.0 * torch.ones(2, 3) + 1e-45},
    ]
    assert len({digest_of(state) for state in [base, *others]}) == 5
    assert digest_of(base) == digest_of({"a": torch.zeros(2, 3)})


def test_a_truncated_file_is_refused_at_any_length(tmp_path: Path) -> None:
    file = tmp_path / "state"
    write_state(file, {"a": torch.arange(8.0), "epoch": 3})
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(StateFileError, match=r"cannot read .*state"):
            read_state(file)


def test_a_changed_byte_anywhere_never_gives_another_state(tmp_path: Path) -> None:
    file = tmp_path / "state"
    state = {"a": torch.arange(8.0), "epoch": 3}
    write_state(file, state)
    content = file.read_bytes()
    refused = 0
    for place in range(len(content)):
        for changed in {content[place] ^ 1, content[place] ^ 16, ord("1"), ord(" "), ord('"')} - {content[place]}:
            file.write_bytes(content[:place] + bytes([changed]) + content[place + 1 :])
            try:
                found = read_state(file)
            except StateFileError:
                refused += 1
            else:  # white space of the header, say
                assert equal(found, state), f"byte {place} changed to {changed}"
    assert refused > 4 * len(content)


def test_a_changed_value_in_the_header_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state"
    write_state(file, {"a": torch.arange(8.0), "epoch": 3})
    content = file.read_bytes()
    assert content.count(rb"\"epoch\", 3") == 1
    file.write_bytes(content.replace(rb"\"epoch\", 3", rb"\"epoch\", 5"))
    with pytest.raises(StateFileError):
        read_state(file)


def test_a_file_of_version_0_1_is_still_read(tmp_path: Path) -> None:
    """Its names begin with a slash, and its checksum covers the tensors alone."""
    tensor = torch.arange(4.0)
    skeleton = {"pairs": [["a", {"tensor": "/a"}], ["epoch", 3]]}
    checksum = f"{zlib.crc32(tensor.numpy().tobytes()):08x}"
    about = {"format": "1", "state": json.dumps(skeleton), "checksum": checksum}
    save_file({"/a": tensor}, tmp_path / "state", metadata=about)
    assert equal(read_state(tmp_path / "state"), {"a": tensor, "epoch": 3})


def test_names_in_the_file_are_those_of_the_state(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {"backbone.0.weight": torch.zeros(2), "mask": {"importance": torch.ones(1)}})
    assert set(load_file(tmp_path / "state")) == {"backbone.0.weight", "mask/importance"}


def test_two_writers_of_one_text_do_not_share_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, begun = state_file.replace_file, threading.Event()

    def overtaken(aside: Path, target: Path) -> None:
        if not begun.is_set():
            begun.set()
            other = threading.Thread(target=write_text, args=(target, "second"))
            other.start()
            other.join()
            assert target.read_text() == "second"
        replace(aside, target)

    monkeypatch.setattr(state_file, "replace_file", overtaken)
    write_text(tmp_path / "report.html", "first")
    assert (tmp_path / "report.html").read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_the_folder_is_synced_after_a_file_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut may undo the rename, and a run would go on from a file that is gone."""
    calls: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def renamed(*paths: Any) -> None:
        calls.append("rename")
        rename(*paths)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    for write in (write_state, write_json):
        calls.clear()
        write(tmp_path / "state", {"epoch": 1})
        assert calls == ["file", "rename", "folder"]


@pytest.mark.parametrize("content", [b"", b"garbage", b"\0" * 4096, b'{"a": 1}'])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(StateFileError, match="cannot read"):
        read_state(tmp_path / "state")


def test_a_pipe_or_a_device_is_not_a_state(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(StateFileError, match="regular"):
            read_state(path)


def test_a_state_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    text = "[" * 100_000 + "]" * 100_000
    about = {"format": "2", "state": text, "checksum": f"{zlib.crc32(text.encode()):08x}"}
    save_file({}, tmp_path / "state", metadata=about)
    with pytest.raises(StateFileError, match="deep"):
        read_state(tmp_path / "state")


def test_another_format_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "FORMAT", "3")
    write_state(tmp_path / "state", {})
    monkeypatch.undo()
    with pytest.raises(StateFileError, match="format '3'"):
        read_state(tmp_path / "state")


@pytest.mark.parametrize("broken_call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken_call: str
) -> None:
    write_state(tmp_path / "state", {"epoch": 1})
    write_json(tmp_path / "about.json", {"epoch": 1})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, broken_call, full)
    with pytest.raises(StateFileError, match="No space left on device"):
        write_state(tmp_path / "state", {"epoch": 2})
    with pytest.raises(StateFileError, match="No space left on device"):
        write_json(tmp_path / "about.json", {"epoch": 2})
    monkeypatch.undo()
    assert read_state(tmp_path / "state") == {"epoch": 1}
    assert json.loads((tmp_path / "about.json").read_text()) == {"epoch": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["about.json", "state"]


def test_what_a_kill_left_beside_the_target_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "state.tmp").write_bytes(b"half of")
    write_state(tmp_path / "state", {"epoch": 2})
    assert read_state(tmp_path / "state") == {"epoch": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
