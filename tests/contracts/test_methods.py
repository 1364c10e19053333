"""The contract of every registered method."""

import gc
from pathlib import Path

import pytest
import torch

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from softmask.learning.method import FAMILIES, Method
from softmask.learning.registry import METHODS
from softmask.testing import (
    METHOD_CHECKS,
    SMALL,
    check_interrupted_equals_uninterrupted,
    check_learns,
)

# `make test` checks one method of each family in full, and of the other systems of the paper that an interrupted run
# ends in the same bits: that check also fails where the same seed gives other bits. `make test-slow` checks the rest.
IN_FULL = ("spg", "ewc", "hat", "a-gem", "tag", "one")
OF_THE_PAPER = ("mtl", "ncl", "si", "ucl", "ewc-gi", "spg-fi", "wsn", "supsup", "pgn", "pathnet", "cat")
LEARNED_IN_THE_FAST_TESTS = ("spg",)  # twelve seconds each


def _contract():
    for name in METHODS.names():
        for check in METHOD_CHECKS:
            if check is check_learns:
                fast = name in LEARNED_IN_THE_FAST_TESTS
            else:
                fast = name in IN_FULL or (name in OF_THE_PAPER and check is check_interrupted_equals_uninterrupted)
            marks = () if fast else pytest.mark.slow
            yield pytest.param(name, check, id=f"{name}-{check.__name__.removeprefix('check_')}", marks=marks)


def _names():
    return [pytest.param(name, marks=() if name in IN_FULL else pytest.mark.slow) for name in METHODS.names()]


@pytest.mark.parametrize(("name", "check"), _contract())
def test_contract(name: str, check, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.parametrize("name", METHODS.names())
def test_has_a_card_and_is_named_like_its_file(name: str) -> None:
    entry = METHODS.entry(name)
    assert issubclass(entry.thing, Method)
    assert entry.thing.title
    assert entry.thing.family in FAMILIES.keys() - {"other"}
    assert entry.thing.__module__.rsplit(".", 1)[1].replace("_", "-") == name
    assert len(entry.card.splitlines()) >= 4
    assert entry.card.partition("\n")[0].endswith(".")


@pytest.mark.filterwarnings("ignore")  # looking at every object that there is touches deprecated ones
@pytest.mark.parametrize("name", _names())
def test_a_run_leaves_nothing_for_the_garbage_collector(name: str, tmp_path: Path) -> None:
    """Else a process that does one run after the other, as a search or a pool, holds several networks at a time."""
    store = Store(tmp_path)
    run(
        make_config(name, "D-5", preset="short", seed=1, tasks=1, changes=SMALL), store
    )  # fills what is kept on purpose
    gc.collect()
    gc.disable()
    try:
        before = _tensors()
        run(make_config(name, "D-5", preset="short", seed=2, tasks=3, changes=SMALL), store)
        assert _tensors() == before
    finally:
        gc.enable()


def _tensors() -> int:
    return sum(type(thing) in (torch.Tensor, torch.nn.Parameter) for thing in gc.get_objects())
