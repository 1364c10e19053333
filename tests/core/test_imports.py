"""`softmask.core` needs torch alone, and importing `softmask` is quick."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import softmask.core

FILES = sorted(Path(softmask.core.__file__).parent.rglob("*.py"))
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
        if name.split(".")[0] not in {*sys.stdlib_module_names, "torch"} and not f"{name}.".startswith("softmask.core.")
    }
    assert not strangers


def test_importing_softmask_loads_nothing_heavy() -> None:
    code = f"import sys; from softmask import SoftMask; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", softmask.core.__all__)
def test_what_the_core_offers_exists(name: str) -> None:
    assert getattr(softmask.core, name).__doc__
