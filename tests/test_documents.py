"""Every Python block of the README and the docs runs as printed; every command in them exists."""

import re
import shlex
from pathlib import Path

import pytest
from benchmarks import memory_report

from softmask.cli import VERBS, load_verb
from softmask.experiments.sequences import SEQUENCES

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        for number, code in enumerate(re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)):
            found.append((f"{document.name}[{number}]", code))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_python_runs_as_printed(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom: a block may use what stands above it. Registered methods are forgotten again."""
    monkeypatch.chdir(tmp_path)
    SEQUENCES.names()
    monkeypatch.setattr(SEQUENCES, "_entries", dict(SEQUENCES._entries))
    names: dict[str, object] = {"__name__": "example"}
    for place, code in blocks("python"):
        if place.startswith(document.name):
            exec(compile(code, place, "exec"), names)


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for _, code in blocks("sh") for line in code.splitlines()]
    return sorted({line for line in lines if line.startswith("softmask ")})


@pytest.mark.parametrize("line", commands())
def test_commands_exist_with_their_options(line: str) -> None:
    words = shlex.split(line)[1:]
    assert words[0] in VERBS, f"{words[0]!r} is no verb"
    command = load_verb(words.pop(0))
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"{words[0]!r} is no verb"
        command = command.commands[words.pop(0)]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known


def test_there_are_examples_to_test() -> None:
    assert len(blocks("python")) >= 2
    assert len(commands()) >= 5


def test_images_and_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} points to {target}"


def test_tables_of_costs_are_those_of_the_benchmark() -> None:
    text = memory_report.PAGE.read_text()
    assert memory_report.tables_in(text, memory_report.load()) == text
