"""A wheel and a source archive build, and the wheel works where the project's folder is not."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds from a copy, so that nothing is left in the project's folder."""
    source = tmp_path_factory.mktemp("source") / "softmask"
    left_out = shutil.ignore_patterns(
        ".venv", ".git", "dist", "build", "*.egg-info", "__pycache__", ".*_cache", "results"
    )
    shutil.copytree(ROOT, source, ignore=left_out)
    target = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--quiet", "--outdir", str(target), str(source)], check=True)
    return target


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    assert "softmask/py.typed" in names
    assert "softmask/experiments/paper/tables.json" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert all(name.startswith(("softmask/", "softmask-")) for name in names)


@pytest.mark.slow
def test_source_archive_holds_what_a_build_needs(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = archive.getnames()
    assert {"pyproject.toml", "README.md", "LICENSE"} <= {name.split("/", 1)[-1] for name in names}


@pytest.mark.slow
def test_wheel_works_from_a_clean_place(built: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    wheel = next(built.glob("*.whl"))
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": True}
    where = subprocess.run([sys.executable, "-c", "import softmask; print(softmask.__file__)"], **options).stdout
    assert Path(where.strip()).is_relative_to(site)
    small = ["--tasks", "1", "--set", "width=0.0625", "--set", "epochs=1"]
    command = [sys.executable, "-m", "softmask", "run", "--method", "spg", "--sequence", "D-5", "--preset", "short"]
    assert "ACC" in subprocess.run([*command, *small], **options).stdout
    assert "SPG" in subprocess.run([sys.executable, "-m", "softmask", "list", "methods"], **options).stdout
