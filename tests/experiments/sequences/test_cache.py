"""Decoded images are kept, and never believed when they should not be."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from softmask.errors import DataError
from softmask.experiments.sequences.cache import Facts, Stored, cache_folder, cached
from softmask.storage.arrays import ArrayFile, ArrayFolder, open_array


class Recipe:
    """Decodes a file of bytes, and counts how often it was asked to."""

    def __init__(self, folder: Path, content: bytes = b"\x01\x02\x03", version: int = 1) -> None:
        self.source, self.version, self.built = folder / "source", version, 0
        if not self.source.exists():
            self.source.write_bytes(content)

    def __call__(self) -> Stored:
        return cached("toy", self.version, self.source.parent, [self.source], self.build)

    def build(self, output: ArrayFolder) -> Facts:
        self.built += 1
        content = np.frombuffer(self.source.read_bytes(), np.uint8)
        images = output.array("images", (2, 2), np.uint8)
        for value in content:
            images.add(np.full((1, 2, 2), value, np.uint8))
        return {"first": int(content[0])}

    def shown(self) -> list[int]:
        return self().arrays["images"][:, 0, 0].tolist()


def entry() -> Path:
    (found,) = cache_folder().iterdir()
    return found


def test_built_once_and_mapped_afterwards(tmp_path: Path) -> None:
    recipe = Recipe(tmp_path)
    for _ in range(3):
        assert recipe.shown() == [1, 2, 3]
        assert recipe().facts == {"first": 1}
    assert recipe.built == 1
    images = recipe().arrays["images"]
    assert isinstance(images, np.memmap)
    assert not images.flags.writeable
    manifest = json.loads((entry() / "manifest.json").read_text())
    assert manifest["version"] == 1
    (facts,) = json.loads((entry() / "sources.json").read_text()).values()
    assert facts[0] == 3
    assert len(facts[2]) == 64


def test_other_content_is_decoded_again(tmp_path: Path) -> None:
    recipe = Recipe(tmp_path)
    recipe()
    recipe.source.write_bytes(b"\x07\x08\x09")
    os.utime(recipe.source, ns=(1, 1))
    assert recipe.shown() == [7, 8, 9]
    recipe.source.write_bytes(b"\x05")
    assert recipe.shown() == [5]
    assert recipe.built == 3
    assert len(list(cache_folder().iterdir())) == 1, "the stale entry is gone"


def test_a_touched_or_copied_file_is_not_decoded_again(tmp_path: Path) -> None:
    recipe = Recipe(tmp_path)
    recipe()
    os.utime(recipe.source, ns=(5, 5))
    recipe()
    assert recipe.built == 1
    manifest = (entry() / "manifest.json").read_text()
    recipe()
    assert (entry() / "manifest.json").read_text() == manifest, "the new time is remembered"


def test_contents_are_not_read_while_sizes_and_times_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(tmp_path)
    recipe()

    def fail(path: str) -> str:
        raise AssertionError(f"{path} is read")

    monkeypatch.setattr("softmask.experiments.sequences.cache.content_digest", fail)
    recipe()


def test_another_version_of_the_recipe_builds_again(tmp_path: Path) -> None:
    Recipe(tmp_path)()
    newer = Recipe(tmp_path, version=2)
    newer()
    assert newer.built == 1


def torn_array(entry: Path) -> None:
    path = entry / "images.npy"
    path.write_bytes(path.read_bytes()[:-3])


def no_array(entry: Path) -> None:
    (entry / "images.npy").unlink()


def foreign_array(entry: Path) -> None:
    np.save(entry / "images.npy", np.zeros((3, 2, 2), np.int16))


def pickled_array(entry: Path) -> None:
    np.save(entry / "images.npy", np.array([print], object), allow_pickle=True)


def garbage_array(entry: Path) -> None:
    (entry / "images.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00" + b"{" * 16)


def torn_manifest(entry: Path) -> None:
    path = entry / "manifest.json"
    path.write_bytes(path.read_bytes()[:20])


def foreign_manifest(entry: Path) -> None:
    (entry / "manifest.json").write_text("[1, 2, 3]")


def other_format(entry: Path) -> None:
    manifest = json.loads((entry / "manifest.json").read_text())
    (entry / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))


def no_manifest(entry: Path) -> None:
    (entry / "manifest.json").unlink()


def a_file_instead(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("what is this?")


@pytest.mark.parametrize(
    "spoil",
    [
        torn_array,
        no_array,
        foreign_array,
        pickled_array,
        garbage_array,
        torn_manifest,
        foreign_manifest,
        other_format,
        no_manifest,
        a_file_instead,
    ],
)
def test_torn_and_foreign_entries_are_built_again(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    recipe = Recipe(tmp_path)
    recipe()
    spoil(entry())
    assert recipe.shown() == [1, 2, 3]
    assert recipe.built == 2
    recipe()
    assert recipe.built == 2


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    recipe = Recipe(tmp_path)

    def fail(output: ArrayFolder) -> Facts:
        output.array("images", (2,), np.uint8).add(np.zeros((4, 2), np.uint8))
        raise DataError("a broken image")

    with pytest.raises(DataError, match="a broken image"):
        cached("toy", 1, tmp_path, [recipe.source], fail)
    assert not list(cache_folder().iterdir())


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    recipe = Recipe(tmp_path)

    def build(output: ArrayFolder) -> Facts:
        facts = recipe.build(output)
        recipe.source.write_bytes(b"other content")
        return facts

    with pytest.raises(DataError, match="source: changed while it was read"):
        cached("toy", 1, tmp_path, [recipe.source], build)
    assert not list(cache_folder().iterdir())


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    recipe = Recipe(tmp_path)
    recipe.source.unlink()
    with pytest.raises(DataError, match=f"{recipe.source}: No such file"):
        recipe()


def test_without_a_writable_cache_it_works_with_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "occupied").write_text("a file where the folder should be")
    monkeypatch.setenv("SOFTMASK_CACHE", str(tmp_path / "occupied"))
    recipe = Recipe(tmp_path)
    with pytest.warns(UserWarning, match="not cached: cannot write to .*occupied"):
        assert recipe.shown() == [1, 2, 3]


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, new = (cache_folder() / f"toy-{name}.building" for name in ("old", "new"))
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (time.time() - 90_000,) * 2)
    Recipe(tmp_path)()
    assert [old.exists(), new.exists()] == [False, True]


def build_and_show(folder: Path, cache: Path, barrier: object, shown: object) -> None:
    os.environ["SOFTMASK_CACHE"] = str(cache)
    recipe = Recipe(folder)
    barrier.wait()  # type: ignore[attr-defined]
    shown.put(recipe.shown())  # type: ignore[attr-defined]


def test_processes_that_build_at_once_do_not_collide(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, shown = context.Barrier(4), context.Queue()
    Recipe(tmp_path)()  # a stale entry is in the way of all of them
    (tmp_path / "source").write_bytes(b"\x04\x05")
    processes = [
        context.Process(target=build_and_show, args=(tmp_path, cache_folder(), barrier, shown)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    assert [shown.get(timeout=60) for _ in processes] == [[4, 5]] * 4
    for process in processes:
        process.join()
    assert [path.suffix for path in cache_folder().iterdir()] == [""]


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMASK_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("SOFTMASK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/softmask")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "softmask"


def test_arrays_that_grow_are_those_of_numpy(tmp_path: Path) -> None:
    file = ArrayFile(tmp_path / "a.npy", (3,), np.uint8)
    file.add(np.ones((2, 3), np.uint8))
    file.add(np.zeros((100_000, 3), np.uint8)[::2])
    with pytest.raises(ValueError, match=r"a block of shape \(2, 4\)"):
        file.add(np.zeros((2, 4), np.uint8))
    file.finish()
    file.close()
    array = np.load(tmp_path / "a.npy")
    assert array.shape == (50_002, 3)
    assert array.sum() == 6
    assert open_array(tmp_path / "a.npy").shape == (50_002, 3)
