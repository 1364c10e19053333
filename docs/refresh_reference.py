"""Writes the signatures of docs/reference.md, which can be read where no site is built.

    python docs/refresh_reference.py

Below each heading with a name stand the first sentence of its docstring, its signature, and of a class its public
methods. On the site, `docs/site_hooks.py` puts the whole docstrings in their place.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

REFERENCE = Path(__file__).parent / "reference.md"
SECTION = re.compile(r"^### `(?P<name>[\w.]+)`\n.*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)
WIDTH = 120
Function = ast.FunctionDef | ast.AsyncFunctionDef


def refreshed(text: str) -> str:
    return SECTION.sub(lambda match: f"{section(match['name'])}\n", text).rstrip() + "\n"


def section(name: str) -> str:
    found = definition(name)
    if isinstance(found, ast.Module):
        lines = [line for each in found.body if isinstance(each, Function) for line in _public(each)]
    elif isinstance(found, ast.ClassDef):
        lines = _class(found)
    else:
        lines = signature(found)
    return "\n".join([f"### `{name}`", "", first_sentence(found), "", "```text", *lines, "```", ""])


def definition(name: str) -> ast.Module | ast.ClassDef | Function:
    """Read from the source: the packages that trainers are for need not be installed."""
    module, _, last = name.rpartition(".")
    if name == "softmask.testing":
        return ast.parse(inspect.getsource(importlib.import_module(name)))
    if "trainers" not in name:
        thing = getattr(importlib.import_module(module), last)
        module, last = thing.__module__, thing.__qualname__
    file = REFERENCE.parent.parent / "src" / Path(*module.split(".")).with_suffix(".py")
    for each in ast.parse(file.read_text()).body:
        if isinstance(each, (ast.ClassDef, Function)) and each.name == last:
            return each
    raise LookupError(f"{file} does not define {last}")


def _class(found: ast.ClassDef) -> list[str]:
    """How to make one, and its public methods."""
    methods = [each for each in found.body if isinstance(each, Function)]
    made = next((each for each in methods if each.name == "__init__"), None)
    fields = [ast.unparse(each) for each in found.body if isinstance(each, ast.AnnAssign) and _is_field(each)]
    fields = [re.sub(r"new_field\((.*)\)$", r"\1", each) for each in fields]
    lines = signature(made, found.name) if made else _call(found.name, fields) if _is_dataclass(found) else [found.name]
    return [*lines, *(textwrap.indent(line, "    ") for each in methods for line in _public(each))]


def _is_dataclass(found: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(each) for each in found.decorator_list)


def _is_field(each: ast.AnnAssign) -> bool:
    return (
        isinstance(each.target, ast.Name) and not each.target.id.startswith("_") and "ClassVar" not in ast.unparse(each)
    )


def _public(each: Function) -> Iterator[str]:
    decorators = {ast.unparse(decorator) for decorator in each.decorator_list}
    if each.name.startswith("_") or decorators & {"overload"} or any(name.endswith(".setter") for name in decorators):
        return
    yield from [each.name] if "property" in decorators else signature(each)


def signature(each: Function, name: str | None = None) -> list[str]:
    """`name(argument: type = default) -> type`, over several lines where one is too short."""
    arguments, count = each.args, len(each.args.posonlyargs) + len(each.args.args)
    defaults = [None] * (count - len(arguments.defaults)) + list(arguments.defaults)
    words = [_argument(a, d) for a, d in zip([*arguments.posonlyargs, *arguments.args], defaults, strict=True)]
    words = [word for word in words if word not in ("self", "cls")]
    if arguments.vararg or arguments.kwonlyargs:
        words.append("*" + (_argument(arguments.vararg, None) if arguments.vararg else ""))
    words += [_argument(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    words += [f"**{_argument(arguments.kwarg, None)}"] if arguments.kwarg else []
    returned = f" -> {ast.unparse(each.returns)}" if each.returns and name is None else ""
    return _call(name or each.name, words, returned)


def _call(name: str, words: list[str], returned: str = "") -> list[str]:
    line = f"{name}({', '.join(words)}){returned}"
    if len(line) < WIDTH - 4:
        return [line]
    return [f"{name}(", *(f"    {word}," for word in words), f"){returned}"]


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    equals = " = " if kind else "="
    return argument.arg + kind + (f"{equals}{ast.unparse(default)}" if default is not None else "")


def first_sentence(found: ast.Module | ast.ClassDef | Function) -> str:
    first = (ast.get_docstring(found) or "").partition("\n\n")[0]
    return textwrap.fill(" ".join(first.split()), WIDTH)


if __name__ == "__main__":
    REFERENCE.write_text(refreshed(REFERENCE.read_text()))
