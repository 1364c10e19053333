"""Nested state (dictionaries, lists, numbers, tensors) in one safetensors file, written atomically."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from softmask.errors import SoftmaskError

FORMAT = "2"
TENSORS_ONLY = "1"  # files of version 0.1: the checksum covers the tensors, not the header


class StateFileError(SoftmaskError):
    """The state cannot be written or read."""


def write_state(path: Path, state: Any) -> None:
    """Writes a temporary file and renames it: a kill at any moment leaves either the old file or the new one."""
    tensors: dict[str, Tensor] = {}
    about = {"format": FORMAT, "state": json.dumps(_encode(state, None, tensors))}
    about["checksum"] = _checksum(tensors, about["state"])
    aside = path.with_name(path.name + ".tmp")
    try:
        aside.unlink(missing_ok=True)
        aside.touch(exist_ok=False)
        mode = aside.stat().st_mode
        save_file(_apart(tensors), aside, metadata=about)
        os.chmod(aside, mode)  # as any other file of this user; safetensors makes files that only their owner may read
        replace_file(aside, path)
    except (OSError, SafetensorError) as error:
        _discard(aside)
        raise StateFileError(
            f"cannot write {path}: {error}; the previous file is unchanged: free some space and start again"
        ) from None


def read_state(path: Path) -> Any:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise StateFileError(f"cannot read {path}: it is not a regular file")
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") not in (FORMAT, TENSORS_ONLY):
                raise StateFileError(f"{path} has format {about.get('format')!r}; this version reads {FORMAT}")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dictionary)
        if about["checksum"] != _checksum(tensors, about["state"] if about["format"] == FORMAT else None):
            raise StateFileError(f"cannot read {path}: its checksum is wrong, so it is damaged")
        return _decode(json.loads(about["state"]), tensors)
    except RecursionError:
        raise StateFileError(f"cannot read {path}: nested too deeply") from None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StateFileError(f"cannot read {path}: {error}") from None


def replace_file(aside: Path, target: Path) -> None:
    """Renames a finished file durably: when this returns, it survives a power cut."""
    with open(aside, "rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """For files without a lease: each writer has its own temporary file, and the last one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        aside.write_text(text, encoding="utf-8")
        replace_file(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Writes a temporary file and renames it. The folder must be leased."""
    aside = path.with_name(path.name + ".tmp")
    try:
        aside.write_text(json.dumps(content, indent=1) + "\n")
        replace_file(aside, path)
    except OSError as error:
        _discard(aside)
        raise StateFileError(f"cannot write {path}: {error}") from None


def _discard(aside: Path) -> None:
    with suppress(OSError):  # the first error is the one to report
        aside.unlink(missing_ok=True)


def _encode(value: Any, place: str | None, tensors: dict[str, Tensor]) -> Any:
    """The state with names in place of its tensors, which are collected.

    In a file names begin with the first key, as `backbone.0.weight`; in a digest (`place` "") with a slash, since the
    digests of stored runs were computed so.
    """

    def below(key: Any) -> str:
        return str(key) if place is None else f"{place}/{key}"

    if isinstance(value, Tensor):
        place = place or ""
        # Two keys may have the same text, such as 1 and "1".
        name = place if place not in tensors else f"{place}#{len(tensors)}"
        if value.layout != torch.strided:
            raise TypeError(f"{place}: a sparse tensor cannot be saved in a state file; register it as not persistent")
        tensors[name] = value.detach().to("cpu").contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"pairs": [[key, _encode(item, below(key), tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, below(index), tensors) for index, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{place}: a {type(value).__name__} cannot be saved in a state file")


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies where memory is shared, as by tied weights: safetensors refuses to write it twice."""
    taken: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in taken else tensor
        taken.add(memory)
    return apart


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        if "tuple" in value:
            return tuple(_decode(item, tensors) for item in value["tuple"])
        return {key: _decode(item, tensors) for key, item in value["pairs"]}
    return value


def digest_of(state: Any) -> str:
    """A digest of every value in a state, to compare runs to the bit."""
    tensors: dict[str, Tensor] = {}
    digest = hashlib.sha256(json.dumps(_encode(state, "", tensors), sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _checksum(tensors: dict[str, Tensor], header: str | None) -> str:
    """Quick to compute; detects damage, not malice. Without a header, as version 0.1 computed it."""
    total = 0 if header is None else zlib.crc32(header.encode())
    for name, tensor in sorted(tensors.items()):
        if header is not None:
            total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(_bytes(tensor), total)
    return f"{total:08x}"


def _bytes(tensor: Tensor) -> memoryview:
    """The tensor's memory without a copy; flattened, because a scalar tensor cannot be viewed as bytes."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")
