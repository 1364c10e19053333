"""Datasets in the formats of the real ones, as small as one likes. Each image tells which one it is."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.experiments.sequences.pickling import python2_pickle


def jpeg(colour: tuple[int, int, int] | int, side: int = 8) -> bytes:
    """An image of one colour; a single number makes it grey."""
    stream = io.BytesIO()
    Image.new("L" if isinstance(colour, int) else "RGB", (side, side), colour).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def write_tinyimagenet(
    root: Path, classes: int = 10, train: int = 6, test: int = 2, *, packed: bool = False, grey_every: int = 5
) -> Path:
    """The red of an image tells its class, its blue whether it is a test image; every so often one is grey."""
    keys = [f"n{number:08}" for number in range(classes)]
    files: dict[str, bytes] = {
        "wnids.txt": "\n".join(reversed(keys)).encode() + b"\n",
        "words.txt": "".join(f"{key}\tword {number}, other\n" for number, key in enumerate(keys)).encode(),
        "test/images/test_0.JPEG": jpeg(0),
    }
    lines = []
    samples: dict[tuple[int, int], bytes] = {}
    for label, key in enumerate(keys):
        red = 255 * label // max(1, classes - 1)
        for number in range(train):
            grey = number % grey_every == grey_every - 1
            kind = (label, int(grey))
            samples.setdefault(kind, jpeg(red if grey else (red, 0, 0)))
            files[f"train/{key}/images/{key}_{number}.JPEG"] = samples[kind]
        files[f"train/{key}/{key}_boxes.txt"] = b"0 0 1 1\n"
        tested = jpeg((red, 0, 255))
        for number in range(test):
            name = f"val_{number * classes + label}.JPEG"
            files[f"val/images/{name}"] = tested
            lines.append(f"{name}\t{key}\t0\t0\t62\t62\n")
    files["val/val_annotations.txt"] = "".join(lines).encode()
    return _written(root / "tiny-imagenet-200", files, packed)


def _written(folder: Path, files: Mapping[str, bytes], packed: bool) -> Path:
    if packed:
        archive = folder.with_name(folder.name + ".zip")
        archive.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(archive, "w") as zipped:
            for name, content in files.items():
                zipped.writestr(f"{folder.name}/{name}", content)
        return archive
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def imagenet32_rows(labels: Sequence[int], first: int = 0) -> np.ndarray:
    """Rows of three planes: a red plane, a green gradient from top to bottom, a blue corner; each is numbered."""
    images = np.zeros((len(labels), 3, 32, 32), np.uint8)
    images[:, 0] = 250
    images[:, 1] = np.arange(32, dtype=np.uint8)[:, np.newaxis] * 8
    images[:, 2, 0, 0] = np.arange(first, first + len(labels)) % 256
    images[:, 2, 0, 1] = labels
    return images.reshape(len(labels), -1)


def write_imagenet32(folder: Path, sizes: Sequence[int], test: int = 5, *, npz: bool = False) -> Path:
    """Ten training files and one for the test; class k (from 1) has sizes[k - 1] images for training."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = [label for label, size in enumerate(sizes, 1) for _ in range(size)]
    labels = [labels[place] for place in np.random.default_rng(0).permutation(len(labels))]
    tested = [label for label in range(1, len(sizes) + 1) for _ in range(test)]
    for number, part in enumerate(np.array_split(np.array(labels), 10), 1):
        mean = np.zeros(3072)
        _write_batch(folder / f"train_data_batch_{number}", part.tolist(), npz, mean=mean)
    _write_batch(folder / "val_data", tested, npz)
    return folder


def _write_batch(path: Path, labels: list[int], npz: bool, **more: np.ndarray) -> None:
    data = imagenet32_rows(labels)
    if npz:
        np.savez(path.with_name(path.name + ".npz"), data=data, labels=np.array(labels), **more)
    else:
        path.write_bytes(python2_pickle({"data": data, "labels": labels, **more}))


Users = Mapping[str, tuple[int, int]]
"""How many training and test samples each user has."""


def write_femnist(folder: Path, files: Sequence[Users], *, packed: bool = True, classes: int = 62) -> Path:
    """One pair of LEAF files for each entry. The first pixels of an image tell file, user, part and number."""
    for number, users in enumerate(files):
        for part in ("train", "test"):
            data = {
                user: _letters(number, place, part, counts[part == "test"], classes)
                for place, (user, counts) in enumerate(users.items())
            }
            _write_leaf(folder / part / f"all_data_{number}_iid_01_0_keep_0_{part}_9.json", data, packed)
    return folder


def _letters(file: int, user: int, part: str, count: int, classes: int) -> dict[str, list[Any]]:
    samples = np.full((count, 28 * 28), 255, np.uint8)
    samples[:, 0], samples[:, 1], samples[:, 2] = file, user, part == "test"
    samples[:, 3], samples[:, 4] = np.arange(count) % 256, np.arange(count) // 256
    return {
        "x": [[value / 255 for value in row] for row in samples.tolist()],
        "y": [n % classes for n in range(count)],
    }


def _write_leaf(path: Path, data: Mapping[str, dict[str, list[Any]]], packed: bool) -> None:
    content = {"users": list(data), "num_samples": [len(d["y"]) for d in data.values()], "user_data": dict(data)}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(text, 1))
    else:
        path.write_bytes(text)


def write_fceleba(root: Path, users: Users, *, side: int = 8) -> Path:
    """LEAF's lists and the images, laid out as LEAF does. Who smiles is red, who does not is blue."""
    folder = root / "celeba" / "data"
    samples = folder / "raw" / "img_align_celeba"
    samples.mkdir(parents=True, exist_ok=True)
    content = [jpeg((0, 0, 255), side), jpeg((255, 0, 0), side)]
    number = 0
    for place, part in enumerate(("train", "test")):
        data = {}
        for user, counts in users.items():
            names, labels = [], []
            for _ in range(counts[place]):
                number += 1
                names.append(f"{number:06}.jpg")
                labels.append(float(number % 2))
                (samples / names[-1]).write_bytes(content[number % 2])
            data[user] = {"x": names, "y": labels}
        _write_leaf(folder / part / f"all_data_niid_05_keep_5_{part}_9.json", data, packed=False)
    return root


def write_folder(root: Path, tasks: Mapping[str, Mapping[str, int]], *, ending: str = "png") -> Path:
    """Tasks, their classes, and how many images each has; a class may be `train/cats`. No two are alike."""
    shade = 0
    for task, classes in tasks.items():
        for name, count in classes.items():
            (root / task / name).mkdir(parents=True, exist_ok=name == ".")
            for number in range(count):
                shade += 1
                colour = (shade % 256, shade // 256, 99)
                Image.new("RGB", (40, 30), colour).save(root / task / name / f"{number}.{ending}")
    return root
