"""Help, version, doctor and Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import softmask as package
from softmask.cli import VERBS, load_verb
from softmask.experiments.runs.store import StoredRun
from softmask.learning.training import PRESETS
from tests.cli.command import softmask
from tests.experiments.runs.examples import environment, tiny_command


def verbs() -> Iterator[tuple[str, ...]]:
    """Every verb and group of verbs that there is, the whole program first."""
    yield ()
    for name in VERBS:
        yield (name,)
        yield from ((name, inner) for inner in getattr(load_verb(name), "commands", ()))


@pytest.mark.parametrize("verb", list(verbs()), ids=" ".join)
def test_help_has_an_example_of_the_verb(verb: tuple[str, ...]) -> None:
    told = softmask(*verb, "--help")
    assert told.code == 0
    text = " ".join(re.sub(r"[^\w<>`:.-]+", " ", told.out).split())
    assert re.search(rf"Example: {' '.join(['softmask', *verb])}\b", text)


@pytest.mark.parametrize("verb", ["run", "grid", "search", "reproduce"])
def test_help_names_every_preset(verb: str) -> None:
    (text,) = [each.help for each in load_verb(verb).params if each.name == "preset"]
    assert set(re.findall(r"`(\w+)`", text)) == set(PRESETS)


def test_version() -> None:
    assert softmask("--version").out.strip() == f"softmask {package.__version__}"


def test_doctor_passes_without_data() -> None:
    told = softmask("doctor")
    assert told.code == 0
    assert "self-check passed" in told.out
    assert re.search(r"^D-5 +built in$", told.out, re.MULTILINE)
    assert re.search(r"^C-10 +not ready: .*--data", told.out, re.MULTILINE)


def test_doctor_tells_of_damaged_data(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"damaged")
    told = softmask("doctor", "--data", tmp_path)
    assert told.code == 0
    assert re.search(r"^C-10 +not ready: .*cifar-100-python\.tar\.gz", told.out, re.MULTILINE)


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    with subprocess.Popen(
        tiny_command(store=tmp_path, epochs=100_000),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert "epoch 1 " in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "error: interrupted; the same command continues where it stopped"
    assert "Traceback" not in out + err
    (folder,) = tmp_path.iterdir()
    assert StoredRun(folder).status == "unfinished"
    assert not (folder / "lease.json").exists()
