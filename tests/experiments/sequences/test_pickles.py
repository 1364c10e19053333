"""Pickled data are read; anything else in a pickle is refused without being run."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softmask.errors import DataError
from softmask.experiments.sequences.array_files import read_dictionary
from tests.experiments.sequences.pickling import array_pickle, as_file, python2_pickle

PLAIN = {
    "numbers": [0, 1, -1, 255, 256, 65536, 2**40, 1.5],
    "constants": [None, True, False, ()],
    "texts": ["a", "é" * 300],
    "nested": {"a": [(1, 2), (1, 2, 3, 4)]},
    "shared": [1, 2, 3],
}
SMALL = python2_pickle({"data": np.arange(12, dtype=np.uint8).reshape(3, 4), "labels": [1, 2, 3], "name": "x"})


def read(content: bytes) -> dict[str, object]:
    return read_dictionary(as_file(content))


def refusal(content: bytes) -> str:
    with pytest.raises(DataError) as error:
        read(content)
    message = str(error.value)
    assert message.startswith("some/file: ")
    assert "\n" not in message
    assert len(message) < 500
    return message


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_containers_and_arrays_of_every_protocol(protocol: int) -> None:
    arrays = {
        "rows": np.arange(6, dtype=np.int16).reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "swapped": np.arange(3, dtype=">u4"),
        "flags": np.array([True, False]),
    }
    written = {**PLAIN, **arrays, "again": arrays["rows"], "scalar": np.float32(0.5), "bytes": b"\xff\x00"}
    found = read(pickle.dumps(written, protocol=protocol))
    assert {name: found[name] for name in PLAIN} == PLAIN
    assert found["scalar"] == 0.5
    assert found["bytes"] == b"\xff\x00"
    np.testing.assert_array_equal(found["again"], found["rows"])
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("protocol", [2, 4])
def test_an_array_much_larger_than_all_else_is_read(protocol: int) -> None:
    """Python 3 writes it for Python 2 as text, in which half of its bytes take two."""
    written = {"data": np.random.default_rng(0).integers(0, 256, (50, 3072), dtype=np.uint8), "labels": [1] * 50}
    np.testing.assert_array_equal(read(pickle.dumps(written, protocol=protocol))["data"], written["data"])


def test_python_2_texts_become_bytes_but_keys_become_texts() -> None:
    found = read(SMALL)
    assert list(found) == ["data", "labels", "name"]
    assert found["name"] == b"x"
    assert found["labels"] == [1, 2, 3]
    np.testing.assert_array_equal(found["data"], np.arange(12).reshape(3, 4))
    assert pickle.loads(SMALL, encoding="bytes")[b"labels"] == [1, 2, 3], "the test's own writer is wrong"


class Runs:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("function", "forbidden"),
    [(os.system, "system"), (eval, "eval"), (getattr, "getattr"), (np.load, "load"), (open, "open")],
)
def test_calls_are_refused_by_name_and_not_made(
    tmp_path: Path, protocol: int, function: Callable[..., object], forbidden: str
) -> None:
    witness = tmp_path / "ran"
    arguments = {
        "system": (f"touch {witness}",),
        "eval": (f"open({str(witness)!r}, 'w')",),
        "getattr": ("text", "format"),
        "load": (str(witness),),
        "open": (str(witness), "w"),
    }[forbidden]
    hidden = {"data": [1, {"deep": Runs(function, *arguments)}]}
    message = refusal(pickle.dumps(hidden, protocol=protocol))
    assert forbidden in message or protocol < 2  # older protocols are refused as such
    assert not witness.exists()


@pytest.mark.parametrize(
    "name", ["numpy.core.multiarray.fromfile", "numpy.ndarray.tofile", "builtins.getattr", "numpy.core._reconstruct"]
)
@pytest.mark.parametrize("form", ["GLOBAL", "STACK_GLOBAL"])
def test_neighbours_of_what_is_known_are_refused(name: str, form: str) -> None:
    module, _, last = name.rpartition(".")
    if form == "GLOBAL":
        content = f"c{module}\n{last}\n".encode()
    else:
        content = b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, last)) + b"\x93"
    assert name in refusal(b"\x80\x04" + content + b".")


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\ndtype\n)\x81.",  # NEWOBJ
        b"(cnumpy\ndtype\no.",  # OBJ
        b"(inumpy\ndtype\n.",  # INST
        b"\x82\x01.",  # EXT1
        b"\x80\x02Pid\n.",  # PERSID
        b"cnumpy\nndarray\n)R.",  # the class itself is not to be called
        b"}}b.",  # a state for a dictionary
        b"](K\x01K\x02u.",  # entries for a list
        b"}(]K\x01u.",  # a list for a key
        b"}()K\x01u.",  # a tuple for a key
        b"}(K\x01u.",  # a key without a value
        b"K\x01.",
        b"h\x05.",
        b"\x87.",
        b"e.",
        b".",
        b"X\xff\xff\xff\x7fabc.",
        b"T\xff\xff\xff\xffabc.",
        b"X\x01\x00\x00\x00\xff.",
        b"cnumpy\n" + b"x" * 10_000,
        b"",
        b"\x00",
        b"<html>not found</html>",
        b"PK\x03\x04 a zip archive",
    ],
)
def test_what_is_no_data_is_refused(content: bytes) -> None:
    refusal(content)


def test_bytes_are_taken_only_in_the_harmless_encoding() -> None:
    text = b"X\x01\x00\x00\x00a"
    refusal(b"c_codecs\nencode\n" + text + b"X\x05\x00\x00\x00rot13\x86R.")


@pytest.mark.parametrize("dtype", [b"O8", b"O", b"V8", b"S5", b"M8", b"u3", b"f1", b"", b"i8,O", b"\xff"])
def test_arrays_of_anything_but_numbers_are_refused(dtype: bytes) -> None:
    assert "only numbers are read" in refusal(b"\x80\x02" + array_pickle((1,), dtype, bytes(8)) + b".")


@pytest.mark.parametrize("shape", [(2**31 - 1,) * 4, (5,), (3,), (-4,), (2, 3), (2**31 - 1, 0), (1,) * 100])
def test_an_array_must_hold_what_its_shape_says(shape: tuple[int, ...]) -> None:
    refusal(b"\x80\x02" + array_pickle(shape, b"u1", bytes(4)) + b".")


@pytest.mark.parametrize(
    "content",
    [
        b"\x8e" + struct.pack("<Q", 2**62) + b"x",  # BINBYTES8 with a false length
        b"\x96" + struct.pack("<Q", 2**40) + b"x",  # BYTEARRAY8
        b"B\xff\xff\xff\xffx",
        b"\x95" + struct.pack("<Q", 2**62) + b"N.",  # FRAME
        b"Nr\xff\xff\xff\x7f.",  # a note far out, for which Python's unpickler would allocate memory
    ],
)
def test_a_short_file_cannot_claim_much_memory(content: bytes) -> None:
    file = as_file(b"\x80\x05" + content)
    tracemalloc.start()
    with pytest.raises(DataError):
        read_dictionary(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_too_many_instructions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softmask.experiments.sequences.array_files.MOST_INSTRUCTIONS", 1000)
    assert "more than 1000 instructions" in refusal(b"}" * 2000)


@pytest.mark.parametrize(
    "around",
    [
        (b"", b"\x8c\x01x\x93."),  # a module's name
        (b"\x8c\x05numpy", b"\x93."),  # a name
        (b"cnumpy\ndtype\n(", b"K\x00K\x01tR."),  # a type
        (b"c_codecs\nencode\n\x8c\x01a", b"\x86R."),  # an encoding
    ],
)
def test_names_that_would_be_text_without_end_are_refused(around: tuple[bytes, bytes]) -> None:
    doubled = b")" + b"".join(b"q\x01h\x01\x86" for _ in range(100))
    refusal(b"\x80\x04" + around[0] + doubled + around[1])


def test_a_number_is_not_encoded() -> None:
    refusal(b"c_codecs\nencode\nK\x05X\x06\x00\x00\x00latin1\x86R.")


def test_keys_that_take_for_ever_to_hash_are_refused() -> None:
    doubled = b")" + b"".join(b"q\x01h\x01\x86" for _ in range(100))
    refusal(b"}" + doubled + b"Ns.")
    memoized_twice = b")" + b"".join(b"q\x01q\x02h\x02\x86" for _ in range(100))
    refusal(b"}" + memoized_twice + b"Ns.")


@pytest.mark.parametrize("name", ["numpy\nndarray", "numpy\ndtype", "_codecs\nencode"])
def test_no_state_can_be_set_on_a_function(name: str) -> None:
    refusal(b"\x80\x02" + f"c{name}\n".encode() + b"}X\x01\x00\x00\x00aK\x01sb.")
    slots = b"N}X\x0c\x00\x00\x00__defaults__)s\x86b."
    refusal(b"\x80\x02" + f"c{name}\n".encode() + slots)


def test_a_dtype_of_numpy_is_never_changed() -> None:
    state = b"(K\x03U\x01>NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    refusal(b"\x80\x02cnumpy\ndtype\n(U\x02i4K\x00K\x00tR" + state + b".")
    assert np.dtype("i4").byteorder == "="


def test_one_array_cannot_be_copied_over_and_over() -> None:
    data = bytes(100_000)
    held = b"K\x00B" + struct.pack("<I", len(data)) + data + b"q\x00"
    array = array_pickle((len(data) // 2,), b"u2", b"").replace(b"T\x00\x00\x00\x00", b"h\x00", 1)
    assert b"h\x00" in array
    assert "copies" in refusal(b"\x80\x02}(" + held + 50 * (b"K\x02" + array) + b"u.")


def test_a_file_cut_short_anywhere_is_refused() -> None:
    for length in range(len(SMALL)):
        refusal(SMALL[:length])


@settings(deadline=None)  # a busy machine is no failure
@given(st.binary(max_size=200))
def test_garbage_is_refused_or_harmless(content: bytes) -> None:
    with contextlib.suppress(DataError):
        assert isinstance(read(content), dict)


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(0, len(SMALL) - 1), st.integers(0, 255))
def test_a_damaged_byte_is_refused_or_harmless(place: int, byte: int) -> None:
    with contextlib.suppress(DataError):
        assert isinstance(read(SMALL[:place] + bytes([byte]) + SMALL[place + 1 :]), dict)


def test_one_text_cannot_be_copied_over_and_over() -> None:
    text = b"a" * 100_000
    held = b"K\x00X" + struct.pack("<I", len(text)) + text + b"q\x00K\x01c_codecs\nencode\nq\x01"
    copied = b"K\x02h\x01h\x00X\x06\x00\x00\x00latin1\x86R"
    assert "copies" in refusal(b"\x80\x02}(" + held + 50 * copied + b"u.")
