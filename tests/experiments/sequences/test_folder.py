"""One's own images in folders."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softmask.errors import ConfigError, DataError
from softmask.experiments.executors import SerialExecutor
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.run import load as load_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store, StoreError
from softmask.experiments.sequences import load_sequence, sequence_facts
from softmask.experiments.sequences.checking import check_one
from softmask.experiments.sequences.folder import is_divided
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from softmask.storage.reading import files_below
from tests.experiments.sequences.generated import write_folder

PETS = {"1 furry": {"cats": 10, "dogs": 20}, "2 feathered": {"ducks": 10, "geese": 10, "swans": 10}}


def load(root: Path, seeds: Seeds | None = None) -> TaskSequence:
    return load_sequence(f"folder:{root}", None, seeds or Seeds())


def test_facts_come_from_the_folder(tmp_path: Path) -> None:
    facts = sequence_facts(f"folder:{write_folder(tmp_path, PETS)}")
    assert (facts.tasks, facts.classes, facts.similar, facts.needs_data) == (2, 3, False, False)


def test_tasks_in_the_order_of_their_names_each_class_divided(tmp_path: Path) -> None:
    sequence = load(write_folder(tmp_path, PETS))
    assert [task.name.split(" #")[0] for task in sequence.tasks] == list(PETS)
    assert sequence.classes == (2, 3)
    task, test = sequence.tasks[0], sequence.tests[0]
    assert Counter(test.labels.tolist()) == {0: 2, 1: 4}
    assert Counter(task.val.labels.tolist()) == {0: 1, 1: 2}
    assert Counter(task.train.labels.tolist()) == {0: 7, 1: 14}
    shades = [shade for part in (task.train, task.val, test) for shade in part.images[:, 0, 0, 0].tolist()]
    assert sorted(shades) == list(range(1, 31)), "every image is in one part"


def test_given_parts_are_kept(tmp_path: Path) -> None:
    layout = {f"{part}/{name}": 3 for part in ("train", "val", "test") for name in ("cats", "dogs")}
    root = write_folder(tmp_path, {"a": layout, "b": {name: 5 for name in layout if not name.startswith("val")}})
    sequence = load(root)
    assert sequence.similar, "the tasks have the same classes"
    pairs = zip(sequence.tasks, sequence.tests, strict=True)
    counts = [(task.train.count, task.val.count, test.count) for task, test in pairs]
    assert counts == [(6, 6, 6), (8, 2, 10)]
    assert set(sequence.tests[0].images[:, 0, 0, 0].tolist()) == set(range(13, 19))


def test_the_digest_follows_the_images_not_the_place(tmp_path: Path) -> None:
    one = write_folder(tmp_path / "one", PETS)
    two = tmp_path / "two"
    shutil.copytree(one, two)
    names = [task.name for task in load(one).tasks]
    assert [task.name for task in load(two).tasks] == names
    Image.new("RGB", (9, 9), "pink").save(two / "1 furry" / "cats" / "0.png")
    changed = [task.name for task in load(two).tasks]
    assert [changed[0] != names[0], changed[1] == names[1]] == [True, True]


def test_the_split_seed_moves_images(tmp_path: Path) -> None:
    root = write_folder(tmp_path, PETS)
    assert load(root, Seeds(split=2)).tasks[0].name != load(root).tasks[0].name
    assert [task.name for task in load(root, Seeds(order=2)).tasks] == [task.name for task in load(root).tasks]


def test_all_sorts_of_images(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"t": {"a": 3, "b": 3}})
    folder = root / "t" / "a"
    Image.new("P", (5, 7)).save(folder / "x.gif")
    Image.new("L", (5, 7), 200).save(folder / "x.bmp")
    Image.new("CMYK", (5, 7)).save(folder / "x.jpg")
    Image.new("1", (5, 7), 1).save(folder / "x.tif")
    Image.new("RGBA", (5, 7), (255, 0, 0, 0)).save(folder / "clear.webp", lossless=True)
    Image.fromarray(np.full((5, 7), 40_000, np.uint16)).save(folder / "deep.png")
    (folder / "notes.txt").write_text("not an image")
    (folder / ".hidden.png").write_text("not an image either")
    sequence = load(root)
    parts = (sequence.tasks[0].train, sequence.tasks[0].val, sequence.tests[0])
    images = [image for part in parts for image in part.images[part.labels == 0]]
    assert len(images) == 9
    centres = {tuple(image[:, 16, 16].tolist()) for image in images}
    assert {(200, 200, 200), (155, 155, 155), (255, 255, 255)} <= centres


def test_an_image_taken_sideways_is_turned_upright(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"t": {"a": 3, "b": 3}})
    sideways = Image.new("RGB", (40, 40), "blue")
    sideways.paste("red", (0, 0, 20, 40))  # red on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: red on top
    for number in range(3):
        sideways.save(root / "t" / "a" / f"{number}.png", exif=exif)
    train = load(root).tasks[0].train
    image = train.images[train.labels == 0][0]
    assert image[0, 2].min() > 200
    assert image[0, 29].max() < 50


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        ({}, "holds no folders"),
        ({"cats": {".": 5}, "dogs": {".": 5}}, "root is a single task, put it in a folder"),
        ({"a": {"cats": 5}}, "a: 1 folders of images; a task needs at least two classes"),
        ({"a": {"cats": 5, "dogs": 2}}, "class 'dogs' has 2 images, at least 3 are needed"),
        ({"a": {"train/cats": 5, "train/dogs": 5}}, "beside 'train' there must be 'test'"),
        ({"a": {"train/c": 5, "train/d": 5, "test/e": 5}}, "has the class 'e', which .*train has not"),
        ({"a": {"train/c": 5, "train/d": 5, "test/c": 0}}, "test: no images"),
    ],
)
def test_layouts_that_do_not_serve(tmp_path: Path, tasks: dict[str, dict[str, int]], reason: str) -> None:
    root = write_folder(tmp_path / "root", tasks)
    root.mkdir(exist_ok=True)
    with pytest.raises(DataError, match=reason):
        load(root)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder; folder:PATH takes"):
        sequence_facts(f"folder:{tmp_path / 'nowhere'}")


def test_an_image_that_lies_about_its_size(tmp_path: Path) -> None:
    root = write_folder(tmp_path, PETS)
    path = root / "1 furry" / "cats" / "3.png"
    content = bytearray(path.read_bytes())
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"3.png: (claims 60000x60000|not an image)"):
        load(root)


def test_it_can_be_run(tmp_path: Path) -> None:
    name = f"folder:{write_folder(tmp_path, PETS)}"
    config = make_config("ncl", name, preset="short", tasks=1)
    assert RunConfig.from_dict(config.to_dict()) == config
    assert len(load_config(config, None).tasks) == 1
    with pytest.raises(ConfigError, match="has 2 tasks"):
        make_config("ncl", name, tasks=3)


def test_a_folder_has_one_name(tmp_path: Path) -> None:
    name = f"folder:{write_folder(tmp_path, PETS)}"
    for spelling in (f"{name}/", f"{name}/../{name.rpartition('/')[2]}//"):
        assert make_config("ncl", spelling) == make_config("ncl", name)
    with pytest.raises(ConfigError, match="folder:PATH needs a path"):
        make_config("ncl", "folder:")


def test_trains_are_a_class_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "1.png").touch()
    assert not is_divided(tmp_path)
    (tmp_path / "train" / "bus").mkdir()
    assert is_divided(tmp_path)


def test_a_run_of_other_images_is_not_taken_for_this_one(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "images", PETS)
    changes = {"epochs": 1, "width": 0.0625}
    config = make_config("ncl", f"folder:{root}", preset="short", tasks=1, changes=changes)
    store = Store(tmp_path / "store")
    done = run(config, store)
    assert run(config, store).path == done.path
    shutil.move(root, tmp_path / "elsewhere")
    assert run(config, store).path == done.path, "images that are gone are not others"
    shutil.move(tmp_path / "elsewhere", root)
    next((root / "1 furry" / "cats").iterdir()).unlink()
    with pytest.raises(StoreError):
        run(config, store)


def test_tasks_that_came_or_went_make_another_run(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "images", PETS)
    config = make_config("ncl", f"folder:{root}", preset="short", changes={"epochs": 1, "width": 0.0625})
    store = Store(tmp_path / "store")
    run(config, store)
    shutil.copytree(root / "1 furry", root / "3 more")
    with pytest.raises(StoreError, match="learned 2 tasks, there are 3 now"):
        run(config, store)
    (cell,) = Grid((config,)).run(store, SerialExecutor())
    assert cell.state == "failed", "a grid looks, too"
    shutil.rmtree(root / "3 more")
    assert run(config, store).finished
    shutil.rmtree(root / "2 feathered")
    with pytest.raises(StoreError, match="learned 2 tasks, there are 1 now"):
        run(config, store)


def test_files_that_are_left_out_are_told(tmp_path: Path) -> None:
    write_folder(tmp_path, {"t": {"a": 4, "b": 4}})
    (tmp_path / "t" / "a" / "x.HEIC").touch()
    with pytest.warns(UserWarning, match="ignored: 1 .heic"):
        sequence_facts(f"folder:{tmp_path}")


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    write_folder(tmp_path, {"t": {"a": 4, "b": 4}})
    os.mkfifo(tmp_path / "t" / "a" / "pipe.png")
    os.symlink(tmp_path / "nowhere", tmp_path / "t" / "a" / "link.png")
    found = files_below(tmp_path)
    assert not any(path.endswith("pipe.png") for path in found)
    assert any(path.endswith("link.png") for path in found), "to be named when it is read"


def test_names_need_not_be_text(tmp_path: Path) -> None:
    named = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    write_folder(named, {os.fsdecode(b"t\xe9"): {"a": 4, "b": 4}})
    assert len(load(named).tasks) == 1


def test_images_that_are_tested_and_trained_on_are_counted(tmp_path: Path) -> None:
    write_folder(tmp_path, {"t": {"a": 6, "b": 6}})
    assert not any("trained or validated" in note for note in check_one(f"folder:{tmp_path}", None).notes)
    for name in ("a", "b"):
        for path in sorted((tmp_path / "t" / name).iterdir()):
            shutil.copy(path, path.with_name(f"again-{path.name}"))
    (note,) = [note for note in check_one(f"folder:{tmp_path}", None).notes if "trained or validated" in note]
    assert int(note.split(": ")[-1].split()[0]) > 0
