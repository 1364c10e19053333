"""Every Python block of the README and the docs runs as printed; every command in them exists, those of a model run."""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import memory_report
from PIL import Image
from safetensors.torch import save_file

from softmask.cli import VERBS, Interrupted, load_verb, watching
from softmask.experiments.sequences import SEQUENCES
from softmask.models import ContinualModel, training
from tests.cli.command import softmask

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


# ------------------------------------------------------------------------------------- commands of a model folder

TASKS = {"cats-vs-dogs": ("cat", "dog"), "birds": ("robin", "wren"), "more-birds": ("robin", "wren", "kiwi")}
TASKS |= {"owls": ("barn-owl", "eagle-owl"), "owls-only": ("tawny-owl",)}
EPOCHS = 8
NETWORK = """
from torch import nn

def pretrained():
    return nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


def photograph(colour: int, number: int) -> Image.Image:
    """Noise around a colour that is the class's own."""
    noise = np.random.default_rng([colour, number]).integers(0, 60, (40, 40, 3))
    levels = (colour * 97 % 190, colour * 53 % 190, colour * 29 % 190)
    return Image.fromarray((noise + np.array(levels)).astype(np.uint8))


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands take for granted: photographs, a network, checkpoints, and a model that knows two tasks."""
    root = tmp_path_factory.mktemp("surroundings")
    classes = sorted({name for names in TASKS.values() for name in names})
    for task, names in TASKS.items():
        for name in names:
            (root / "photos" / task / name).mkdir(parents=True)
            for number in range(20):
                photograph(classes.index(name), number).save(root / "photos" / task / name / f"{number}.png")
    for folder in ("new-photos", "inbox"):
        (root / folder).mkdir()
        photograph(0, 100).save(root / folder / "a.png")
    (root / "my_nets.py").write_text(NETWORK)
    if importlib.util.find_spec("transformers"):
        from transformers import ViTConfig, ViTModel

        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        ViTModel(ViTConfig(patch_size=32, **sizes)).save_pretrained(root / "checkpoints" / "vit")
    if importlib.util.find_spec("timm"):
        import timm

        save_file(timm.create_model("resnet18").state_dict(), root / "resnet18.safetensors")
    model = ContinualModel.create(root / "pets-model", width=0.25)
    for task in ("cats-vs-dogs", "birds"):
        model.learn(task, root / "photos" / task, training={"epochs": EPOCHS}, probe=50)
    return root


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small task takes as few epochs as a large one; whoever watches a folder stops after three looks."""
    monkeypatch.setattr(training, "USUAL", {**training.USUAL, "adamw": replace(training.ADAMW, epochs=EPOCHS)})
    monkeypatch.setattr(training, "LEAST_STEPS", 0)
    looks = iter([None, None])

    def sleep(_: float) -> None:
        if next(looks, "enough") == "enough":
            raise Interrupted

    real = watching.arrivals
    monkeypatch.setattr("softmask.cli.predict.arrivals", lambda folder: real(folder, sleep))


def lacks(line: str) -> str | None:
    """The package that a command needs and that is not here."""
    needed = {"timm:": "timm", "transformers:": "transformers", "onnx": "onnxscript"}
    missing = [name for word, name in needed.items() if word in line and importlib.util.find_spec(name) is None]
    return next(iter(missing), None)


def of_a_model() -> Iterator[object]:
    """The blocks with commands on `pets-model`."""
    for place, code in blocks("sh"):
        if "pets-model" in code:
            lines = [line.split("#")[0].strip() for line in code.splitlines()]
            yield pytest.param([line for line in lines if line.startswith("softmask ")], id=place)


def begins_anew(words: list[str]) -> bool:
    return "--network" in words or (
        "--more" not in words and Path(words[2]).name in ContinualModel.open("pets-model").tasks
    )


@pytest.mark.parametrize("lines", list(of_a_model()))
@pytest.mark.usefixtures("quick")
def test_commands_of_a_model_run(
    lines: list[str], surroundings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From top to bottom, after the model has learned its tasks. What learns one of them anew begins a new model."""
    here = shutil.copytree(surroundings, tmp_path / "here")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])
    possible = [line for line in lines if not lacks(line)]
    for line in possible:
        words = shlex.split(line)[1:]
        if words[0] == "learn" and begins_anew(words):
            shutil.rmtree("pets-model")
        ended = softmask(*words)
        assert ended.code == (130 if "--watch" in words else 0), f"{line}: {ended.err}"
        assert ended.out or words[-1].endswith(".html")
    made = {name for name in ("pets.svg", "pets.html", "birds-export") if any(name in line for line in possible)}
    assert made <= set(os.listdir())


# ------------------------------------------------------------------------------------ commands of the benchmark

QUICK = {"run": "--tasks 2 --set epochs=1 --set width=0.0625", "search": "--tasks 1 --set epochs=1 --set width=0.0625"}
QUICK["grid"] = f"{QUICK['run']} --executor serial"
ELSEWHERE = ("DIR", "/shared", "--store results", "--executor ray", "pets-model", "reproduce")
"""They need real data, a cluster or the committed runs, or take long."""


@pytest.mark.slow
def test_commands_of_the_benchmark_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on built-in data, on two tasks of one epoch; the ones that make runs come first."""
    monkeypatch.chdir(tmp_path)
    grid = next(code for _, code in blocks("toml") if code.startswith("methods"))
    Path("grid.toml").write_text(grid)
    lines = [line for line in commands() if not any(word in line for word in ELSEWHERE)]
    for line in sorted(lines, key=lambda line: line.split()[1] not in QUICK):
        ended = softmask(*shlex.split(line)[1:], *QUICK.get(line.split()[1], "").split())
        assert ended.code == 0, f"{line}: {ended.err}"
        assert ended.out
    assert {line.split()[1] for line in lines} >= {"run", "grid", "analyse", "report", "list", "doctor"}


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
