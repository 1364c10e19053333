"""Imports point one way, and every module can be imported."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import softmask

ROOT = Path(softmask.__file__).parent
# Each layer may import those that stand before it, and itself.
LAYERS = ["core", "errors", "integrations", "paper", "learning", "methods", "sequences", "metrics"]
LAYERS += [
    "executors",
    "runs",
    "trackers",
    "testing",
    "analyses",
    "report",
    "reproduction",
    "continual",
    "cli",
    "__main__",
]
FREE = {"methods": {"sequences"}, "core": set()}


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
    layer = relative.parts[0].removesuffix(".py")
    if layer == "__init__":
        allowed = {"core", "continual"}  # both when they are asked for
    else:
        assert layer in LAYERS, f"where does {layer} stand?"
        allowed = set(LAYERS[: LAYERS.index(layer) + 1]) - FREE.get(layer, set())
    if layer == "core":
        allowed = {"core"}
    for name in imports_of(file):
        used = layer_of(name)
        assert used in allowed or used in ("", "__version__"), f"{relative} imports {name}"


@pytest.mark.parametrize("name", [module.name for module in pkgutil.walk_packages(softmask.__path__, "softmask.")])
def test_every_module_imports(name: str) -> None:
    if name == "softmask.integrations.avalanche":
        pytest.skip("torchvision, which Avalanche imports, does not load beside a CPU torch: see test_avalanche.py")
    if not name.endswith("__main__"):
        assert importlib.import_module(name)
