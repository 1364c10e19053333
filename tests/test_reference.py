"""The signatures in docs/reference.md are those of the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_reference_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("refresh_reference", ROOT / "docs" / "refresh_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.REFERENCE.read_text()
    assert module.refreshed(text) == text, "run `make reference`"
    assert len(module.SECTION.findall(text)) > 30
    assert not re.search(r"^:::", text, re.MULTILINE), "a line that only the site understands"
