"""Prints every dependency of pyproject.toml at its lowest declared version, as a constraints file for pip."""

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for requirement in [*project["dependencies"], *(line for name in sys.argv[1:] for line in extras[name])]:
    name, _, rest = requirement.partition(">=")
    if version := re.match(r"[\d.]+", rest):
        print(f"{name}=={version.group()}")
