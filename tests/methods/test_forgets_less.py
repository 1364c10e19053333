"""What protection is for: on D-5, more is left of five tasks than after plain fine-tuning."""

from pathlib import Path

import pytest

from softmask.experiments.metrics import average_accuracy
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store

CHANGES = {"network.width": 1 / 4, "training.batch": 16, "training.lr": 0.1}


def left(name: str, folder: Path) -> float:
    return average_accuracy(run(make_config(name, "D-5", preset="short", changes=CHANGES), Store(folder)).accuracies())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> float:
    return left("ncl", tmp_path_factory.mktemp("plain"))


OTHERS = ["packnet", "spacenet", "apd", "trgp", "gpm-became", "binplay", "dmc"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_so_do_methods_with_parts_of_their_own_or_other_images(name: str, plain: float, tmp_path: Path) -> None:
    assert left(name, tmp_path) > max(plain + 5, 65)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["lwf", "gpm", "sgp", "spg-plus", "mas", "er", "der-plus", "mir", "gem", "icarl", "mer", "gr"]
)
def test_protected_methods_keep_clearly_more_than_ncl(name: str, plain: float, tmp_path: Path) -> None:
    """By five points; chance is 50 percent."""
    assert left(name, tmp_path) > max(plain + 5, 65)
