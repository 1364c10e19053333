"""The examples run, and show what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRACT = """
import sys
from pathlib import Path
import torch
import examples.own_method
from softmask.testing import METHOD_CHECKS

torch.set_num_threads(1)
for check in METHOD_CHECKS:
    check("l2", Path(sys.argv[1]) / check.__name__)
print("passed")
"""


def python(*arguments: object, folder: Path | None = None) -> str:
    """In a process of its own: an example may register what other tests must not see."""
    given = [str(Path(place).absolute()) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    places = os.pathsep.join([str(ROOT), *given])
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_model_forgets_less_with_the_mask() -> None:
    from examples.own_model import learn

    for protect in (False, True):
        fresh, final = learn(protect)
        lost = max(a - b for a, b in zip(fresh, final, strict=True))
        assert min(fresh) > 0.9
        assert lost < 0.1 if protect else lost > 0.15


def test_own_method_runs() -> None:
    lines = python(ROOT / "examples" / "own_method.py").splitlines()
    assert [line.split(":")[0] for line in lines] == ["after task 0", "after task 1"]


def test_own_backbone_and_own_table_in_twenty_five_lines(tmp_path: Path) -> None:
    file = ROOT / "examples" / "own_backbone.py"
    assert len(file.read_text().splitlines()) <= 25
    header, *rows = python(file, folder=tmp_path).splitlines()
    assert header.split() == ["method", "ACC", "BWT", "ACC", "(no", "id)", "time"]
    assert [row.split()[0] for row in rows] == ["ncl", "spg"]
    assert all(float(row.split()[1]) > 60 for row in rows)


@pytest.mark.slow
def test_own_method_keeps_the_contract(tmp_path: Path) -> None:
    assert python("-c", CONTRACT, tmp_path).strip() == "passed"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    python("-m", "mkdocs", "build", "--strict", "--quiet", "-f", ROOT / "mkdocs.yml", "-d", tmp_path / "site")
    methods = {path.parent.name for path in (tmp_path / "site" / "methods").glob("*/index.html")}
    assert {"spg", "hat", "ncl"} <= methods
    reference = (tmp_path / "site" / "reference" / "index.html").read_text()
    assert "Soft-mask every" in reference, "docstrings are in the reference"


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its code cells, one after the other, in an empty folder."""
    notebook = json.loads((ROOT / "examples" / "experiments.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len([line for line in cells[0].splitlines() if line.strip()]) <= 6, "from nothing to a plot in six lines"
    code = "import matplotlib; matplotlib.use('agg')\n" + "\n".join(cells) + "\nprint(sorted(load_runs()['method']))\n"
    (tmp_path / "notebook.py").write_text(code)
    assert python(tmp_path / "notebook.py", folder=tmp_path).strip() == "['ncl', 'spg']"


@pytest.mark.slow
def test_the_trainer_of_trl(tmp_path: Path) -> None:
    """It learns, and its checkpoint holds the guard."""
    pytest.importorskip("trl")
    pytest.importorskip("datasets")
    python(ROOT / "examples" / "trl_sft.py", folder=tmp_path)
    assert (tmp_path / "trl-sft" / "checkpoint-2" / "softmask-guard.pt").exists()
