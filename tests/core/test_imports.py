"""`softmask.core` and `softmask.kernels` need torch alone, and importing `softmask` is quick."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import softmask.core
import softmask.kernels

FILES = [file for package in (softmask.core, softmask.kernels) for file in Path(package.__path__[0]).rglob("*.py")]
HEAVY = ["torch._dynamo", "typer", "pydantic", "sklearn", "rich", "safetensors", "PIL", "matplotlib", "optuna"]


def imported(file: Path) -> set[str]:
    """The full names of all modules that a file imports, at whatever depth of the code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} imports relatively"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_core_imports_torch_alone(file: Path) -> None:
    strangers = {
        name
        for name in imported(file)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "torch"}
        and not f"{name}.".startswith(("softmask.core.", "softmask.kernels."))
    }
    assert not strangers


def loaded(code: str, names: list[str]) -> str:
    """Which of these modules are there after this code, in a process of its own."""
    code = f"{code}; import sys; print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_softmask_loads_nothing_heavy() -> None:
    assert loaded("from softmask import SoftMask", HEAVY) == "[]"


def test_torch_is_imported_when_something_is_asked_for() -> None:
    assert loaded("import softmask; dir(softmask)", ["torch"]) == "[]"
    assert loaded("import softmask; softmask.SoftMask", ["torch"]) == "['torch']"


def test_softmask_offers_what_it_lists_and_nothing_else() -> None:
    assert softmask.SoftMask is softmask.core.SoftMask
    assert all(getattr(softmask, name).__doc__ for name in softmask.__all__)
    assert set(softmask.__all__) <= set(dir(softmask))
    with pytest.raises(AttributeError, match="no attribute 'SoftMsk'"):
        _ = softmask.SoftMsk


@pytest.mark.parametrize("name", softmask.core.__all__)
def test_what_the_core_offers_exists(name: str) -> None:
    assert getattr(softmask.core, name).__doc__
