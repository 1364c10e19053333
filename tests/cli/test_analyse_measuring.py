"""`softmask analyse pruning` and `representation`: they measure what is missing, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Ended, softmask, tiny


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("kept")
    for method in ("spg", "ncl"):
        assert softmask(*tiny(method, "--store", store, "--keep", "all")).code == 0
    return store


def test_pruning(kept: Path) -> None:
    told = softmask("analyse", "pruning", "--store", kept, "--format", "json")
    assert [line["pruned"] for line in told.json()["rows"]][:2] == ["Nothing", "Lowest 10%"]
    assert told.err.count("pruned and tested") == 1
    again = softmask("analyse", "pruning", "--store", kept, "--format", "json")
    assert again.out == told.out
    assert "pruned and tested" not in again.err


def test_representation(kept: Path) -> None:
    told = softmask("analyse", "representation", "--store", kept, "--onto", "D-5", "--format", "json")
    assert {line["method"] for line in told.json()["rows"]} == {"NCL", "SPG"}
    assert told.err.count("3 linear heads trained") == 2


@pytest.mark.parametrize("name", ["pruning", "representation"])
def test_without_checkpoints_it_says_how_to_get_them(with_one: Ended, store: Path, name: str) -> None:
    told = softmask("analyse", name, "--store", store)
    assert told.code == 1
    assert "--keep all" in told.errors()[0]


def test_wrong_usage(kept: Path) -> None:
    assert softmask("analyse", "pruning", "--store", kept, "--ranked-over", "tensor").code == 2
    assert softmask("analyse", "representation", "--store", kept, "--onto", "D-6").code == 2
