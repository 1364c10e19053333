"""Imports point one way, and every module can be imported."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import softmask

ROOT = Path(softmask.__file__).parent
# The packages that a package may import, besides itself. `models` and `experiments` never import each other.
BELOW_METHODS = {"kernels", "core", "errors", "learning"}
SHARED = {*BELOW_METHODS, "methods", "storage", "images"}
ALLOWED = {
    "": {"core", "models"},  # both when they are asked for
    "kernels": set(),
    "core": {"kernels"},
    "errors": set(),
    "trainers": {"core", "errors"},
    "learning": {"kernels", "core", "errors"},
    "methods": BELOW_METHODS,
    "storage": {"errors"},
    "images": {"errors", "learning", "storage"},
    "models": SHARED,
    "experiments": SHARED,
    "testing": {*SHARED, "experiments"},
    "cli": {*SHARED, "models", "experiments"},
    "__main__": {"cli"},
}


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports_of(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "softmask"}
    return {name for name in found if name.split(".")[0] == "softmask"}


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_one_way(file: Path) -> None:
    relative = file.relative_to(ROOT)
    layer = relative.parts[0].removesuffix(".py").replace("__init__", "")
    for name in imports_of(file):
        used = layer_of(name)
        assert used in {layer, "", "__version__", *ALLOWED[layer]}, f"{relative} imports {name}"


@pytest.mark.parametrize("name", [module.name for module in pkgutil.walk_packages(softmask.__path__, "softmask.")])
def test_every_module_imports(name: str) -> None:
    if name == "softmask.trainers.avalanche":
        pytest.skip("torchvision, which Avalanche imports, does not load beside a CPU torch: see test_avalanche.py")
    if not name.endswith("__main__"):
        assert importlib.import_module(name)
