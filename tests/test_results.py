"""RESULTS.md says what its commands print, from the runs that lie beside it."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_tables_are_what_the_commands_print() -> None:
    spec = importlib.util.spec_from_file_location("refresh_results", ROOT / "docs" / "refresh_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.RESULTS.read_text()
    assert len(module.PRINTED.findall(text)) >= 3
    assert module.refreshed(text) == text, "run `make results`"
