"""Sequences from one's own data, from this package's documentation, and from another package."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from softmask.errors import DataError, SoftmaskError
from softmask.experiments.sequences import SEQUENCES, load_sequence, sequence, sequence_from
from softmask.learning.seeds import Seeds
from softmask.learning.task import Normalisation

REPOSITORY = Path(__file__).parents[3]
GUIDE = REPOSITORY / "docs" / "adding-a-sequence.md"


@pytest.fixture
def _registry_as_before() -> Iterator[None]:
    SEQUENCES.names()
    before = dict(SEQUENCES._entries)
    yield
    SEQUENCES._entries.clear()
    SEQUENCES._entries.update(before)


def samples(count: int = 6, classes: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    samples = torch.randint(0, 255, (count, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    return samples.to(torch.uint8), torch.arange(count) % classes


class Pairs(Dataset[Any]):
    """A dataset of Pillow images, as torchvision's are."""

    def __init__(self, grey: bool) -> None:
        self.shape = (8, 8) if grey else (8, 8, 3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> tuple[Image.Image, int]:
        return Image.fromarray(np.full(self.shape, place, np.uint8)), place % 2


def test_tensors_and_data_sets() -> None:
    triple = (samples(8), samples(4, seed=1), samples(6, seed=2))
    as_sets = tuple(TensorDataset(*part) for part in triple)
    one, two = (sequence_from("mine", [tasks]) for tasks in (triple, as_sets))
    assert one.tasks[0].name == two.tasks[0].name
    assert one.input_shape == (3, 8, 8)
    assert (one.tasks[0].train.count, one.tasks[0].val.count, one.tests[0].count) == (8, 4, 6)
    assert torch.equal(one.tasks[0].train.images, two.tasks[0].train.images)
    assert float(one.tasks[0].train.x.min()) >= -1
    assert float(one.tasks[0].train.x.max()) <= 1


@pytest.mark.parametrize(("grey", "channels"), [(True, 1), (False, 3)])
def test_pillow_images(grey: bool, channels: int) -> None:
    made = sequence_from("mine", [(Pairs(grey), Pairs(grey), Pairs(grey))])
    assert made.input_shape == (channels, 8, 8)
    assert made.tasks[0].train.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_normalisation() -> None:
    triple = (samples(), samples(), samples())
    made = sequence_from("mine", [triple], normalise=Normalisation((0.0,) * 3, (1.0,) * 3))
    assert torch.allclose(made.tasks[0].train.x, triple[0][0] / 255)
    floats = tuple((samples / 7, labels) for samples, labels in triple)
    assert torch.equal(sequence_from("mine", [floats]).tasks[0].train.x, triple[0][0] / 7)


def test_other_samples_are_another_task_of_the_same_name() -> None:
    one = sequence_from("mine", [(samples(seed=1), samples(), samples())], names=["day"])
    two = sequence_from("mine", [(samples(seed=2), samples(), samples())], names=["day"])
    assert one.tasks[0].name.startswith("day #")
    assert one.tasks[0].name != two.tasks[0].name


GOOD = samples()


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        ([], "at least one task"),
        ([(GOOD, GOOD)], "expected three: training, validation and test"),
        ([((GOOD[0][0], GOOD[1][:3]), GOOD, GOOD)], r"expected \(count, channels, height, width\)"),
        ([((GOOD[0].long(), GOOD[1]), GOOD, GOOD)], "expected bytes"),
        ([(GOOD, (GOOD[0], GOOD[1][:3]), GOOD)], "validation samples: labels must be 6 integers"),
        ([(GOOD, GOOD, (GOOD[0], GOOD[1].float()))], "test samples: labels must be"),
        ([(GOOD, GOOD, (GOOD[0], GOOD[1] - 1))], "integers from 0"),
        ([((GOOD[0], GOOD[1] * 5), GOOD, GOOD)], "never trained; number them from 0"),
        ([(GOOD, GOOD, (GOOD[0], GOOD[1] + 1))], "never trained"),
        ([(GOOD, GOOD, (GOOD[0][..., :5], GOOD[1]))], "several shapes"),
        ([((GOOD[0] * math.nan, GOOD[1]), GOOD, GOOD)], "training samples: some pixels are not finite"),
        ([([(GOOD[0][0], 0), (GOOD[0][1], 1.5)], GOOD, GOOD)], r"a label must be an integer, not 1\.5"),
    ],
)
def test_what_does_not_fit_is_said(tasks: list[Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        sequence_from("mine", tasks)


def test_arrays_and_double_precision_are_taken() -> None:
    images, labels = samples(8)
    double = (images.double() / 255).numpy(), labels.numpy()
    made = sequence_from("mine", [(double, list(double), double)])
    assert made.tasks[0].train.x.dtype == torch.float32
    torch.testing.assert_close(made.tasks[0].train.x, images / 255)


def test_names_must_be_as_many_as_tasks() -> None:
    with pytest.raises(DataError, match="1 names for 2 tasks"):
        sequence_from("mine", [(GOOD, GOOD, GOOD)] * 2, names=["a"])


@pytest.mark.usefixtures("_registry_as_before")
def test_a_function_that_returns_something_else_than_it_registered() -> None:
    @sequence("mine-3", tasks=3, classes=2, description="too few tasks")
    def mine(root: Path | None, seeds: Seeds, tasks: int) -> object:
        return sequence_from("mine-3", [(GOOD, GOOD, GOOD)])

    with pytest.raises(SoftmaskError, match=r"mine-3 is registered with 3 tasks of up to 2 classes, but .* with 1"):
        load_sequence("mine-3", None, Seeds())


@pytest.mark.usefixtures("_registry_as_before")
def test_every_block_of_the_guide_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)


def test_a_sequence_of_another_package_is_found(tmp_path: Path) -> None:
    """In a process of its own: what is found stays in the registry."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "bright.py").write_text("\n".join(blocks).replace("assert len(load_sequence", "0 and ("))
    points = re.search(r"^```toml\n\[project\.entry-points\.\"(.*)\"\]\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    assert points is not None
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{points[1]}]\n{points[2].replace(chr(34), '')}")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from softmask.cli import main\n"
        "sys.argv = ['softmask', 'data', 'check', 'bright-3', '--json']; main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"train": 192' in done.stdout
