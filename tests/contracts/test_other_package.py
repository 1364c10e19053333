"""A method of another package: found through its entry point, held to the same contract."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OTHER_PACKAGE = Path(__file__).parents[1] / "other_package"

PROGRAM = """
import sys
from pathlib import Path
import torch
from softmask.learning import METHODS
from softmask.testing import METHOD_CHECKS

torch.set_num_threads(1)
assert "first-features" in METHODS.names()
assert METHODS.entry("first-features").card.startswith("First features")
for check in METHOD_CHECKS:
    check("first-features", Path(sys.argv[1]) / check.__name__)
print("passed", len(METHOD_CHECKS))
"""


def with_path(package: Path) -> str:
    return os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.slow
def test_is_found_and_passes_the_contract(tmp_path: Path) -> None:
    """In a process of its own, where the package is installed as any other is: on the path, with its metadata."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": with_path(OTHER_PACKAGE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("passed ")


def test_a_change_of_its_code_is_told(tmp_path: Path) -> None:
    package = Path(shutil.copytree(OTHER_PACKAGE, tmp_path / "package", ignore=shutil.ignore_patterns("__pycache__")))
    command = [sys.executable, "-m", "softmask", "grid", "--methods", "first-features,ncl", "--sequences", "D-5"]
    command += ["--preset", "short", "--tasks", "1", "--set", "epochs=1", "--set", "width=0.0625"]
    command += ["--store", str(tmp_path / "store"), "--executor", "serial"]

    def notes() -> str:
        env = {**os.environ, "PYTHONPATH": with_path(package), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "has changed" not in notes() + notes()
    with (package / "first_features.py").open("a") as file:
        file.write("\n# Another thought.\n")
    assert notes().count("the code of first-features has changed") == 1
