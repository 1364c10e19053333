"""Arrays in files: written piece by piece without holding them in memory, opened by mapping them."""

from __future__ import annotations

import os
import tokenize
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt


class ArrayFile:
    """An .npy file that grows as blocks of rows are added."""

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.row_shape, self.dtype, self.rows = row_shape, np.dtype(dtype), 0
        self._file: IO[bytes] = path.open("wb")
        self._write_header()
        self._start = self._file.tell()

    def add(self, block: npt.NDArray[Any]) -> None:
        if block.shape[1:] != self.row_shape or block.dtype != self.dtype:
            raise ValueError(f"a block of shape {block.shape}, type {block.dtype} in a file of rows {self.row_shape}")
        # Written and not mapped: dirty mapped pages would count as this process's memory.
        self._file.write(np.ascontiguousarray(block).data)
        self.rows += len(block)

    def finish(self) -> None:
        """Writes the number of rows and makes sure that all is on disk."""
        self._file.seek(0)
        self._write_header()
        assert self._file.tell() == self._start, "numpy pads the header for a longer count"
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, *self.row_shape)}
        np.lib.format.write_array_header_1_0(self._file, header)


class ArrayFolder:
    """A folder to which arrays are written. Leaving it without an error finishes them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, ArrayFile] = {}

    def array(self, name: str, row_shape: tuple[int, ...], dtype: npt.DTypeLike) -> ArrayFile:
        """A new array, to which rows are added."""
        self.files[name] = ArrayFile(self.folder / f"{name}.npy", row_shape, dtype)
        return self.files[name]

    def put(self, name: str, array: npt.NDArray[Any]) -> None:
        """A complete array."""
        self.array(name, array.shape[1:], array.dtype).add(array)

    def __enter__(self) -> ArrayFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for file in self.files.values():
                    file.finish()
        finally:
            for file in self.files.values():
                file.close()


def open_array(path: Path) -> npt.NDArray[Any]:
    """Mapped for reading; ValueError or OSError where it is not a complete array."""
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (SyntaxError, tokenize.TokenError, EOFError) as error:  # a damaged header
        raise ValueError(f"{path}: not an array ({error})") from None
    return array
