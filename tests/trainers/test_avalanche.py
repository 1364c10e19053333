"""The plugin in a real Avalanche strategy, as far as Avalanche imports: see avalanche_script.py."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("avalanche") is None, reason="needs avalanche-lib")
def test_a_strategy_is_protected() -> None:
    command = [sys.executable, "-m", "tests.trainers.avalanche_script"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "protected" in done.stdout
