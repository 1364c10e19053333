"""Writes anew what the commands in RESULTS.md print: `python docs/refresh_results.py`. All other text stays."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "RESULTS.md"
# A command, and what it printed up to the mark.
PRINTED = re.compile(r"```sh\n(softmask [^\n]+)\n```\n.*?<!-- end -->", re.DOTALL)


def refreshed(text: str) -> str:
    return PRINTED.sub(lambda found: f"```sh\n{found[1]}\n```\n\n{printed_by(found[1])}\n<!-- end -->", text)


def printed_by(command: str) -> str:
    words = [sys.executable, "-m", *shlex.split(command)]
    return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip() + "\n"


if __name__ == "__main__":
    RESULTS.write_text(refreshed(RESULTS.read_text()))
