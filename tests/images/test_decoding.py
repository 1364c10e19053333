"""Images and archives that are not what they say."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from softmask.errors import DataError
from softmask.images.decoding import JPEG, any_kind, decode, known_endings, read_image
from softmask.storage.reading import open_zip
from tests.experiments.sequences.generated import jpeg


def png_that_says(width: int, height: int) -> bytes:
    """A small file with a header of any size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("extent", [(20_000, 20_000), (65_000, 65_000), (2**31 - 1, 2**31 - 1), (50, 50), (0, 0)])
def test_an_image_that_lies_about_its_size(extent: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=r"a\.png: (claims|not an image)"):
        decode(png_that_says(*extent), "a.png", any_kind())


@pytest.mark.parametrize("share", [0, 0.1, 0.3, 0.6, 0.95])
def test_a_truncated_jpeg(share: float) -> None:
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(stream, "JPEG")
    content = stream.getvalue()
    with pytest.raises(DataError, match=r"a\.jpg: not an image") as error:
        decode(content[: int(len(content) * share)], "a.jpg", JPEG)
    assert "\n" not in str(error.value)


@given(st.binary(max_size=200), st.integers(0, 600))
def test_no_damage_gets_through_as_another_error(noise: bytes, place: int) -> None:
    content = bytearray(jpeg((10, 200, 30), 16))
    content[place : place + len(noise)] = noise
    with suppress(DataError):
        assert decode(bytes(content), "a.jpg", any_kind()).shape == (3, 32, 32)


def test_a_format_that_starts_a_program_is_not_read() -> None:
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    with pytest.raises(DataError, match="not an image"):
        decode(script, "a.eps", any_kind())
    assert ".eps" not in known_endings()
    assert {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif"} <= known_endings()


def iptc(payload: bytes, side: int = 8) -> bytes:
    """An image that says it is small and holds another file, which Pillow would open whatever it is."""

    def field(number: int, dataset: int, data: bytes) -> bytes:
        return bytes([0x1C, number, dataset]) + len(data).to_bytes(2, "big") + data

    return (
        field(3, 60, bytes([3, 0]))
        + field(3, 65, bytes([0]))
        + field(3, 20, side.to_bytes(2, "big"))
        + field(3, 30, side.to_bytes(2, "big"))
        + field(3, 120, bytes([1]))
        + field(8, 10, payload)
    )


def test_an_image_inside_another_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: opened.append("ghostscript"))
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    with pytest.raises(DataError, match="not an image"):
        decode(iptc(script), "evil.jpg", any_kind())
    assert not opened
    assert "IPTC" not in any_kind().formats


def test_what_pixels_mean_must_be_known_and_the_file_is_named() -> None:
    for mode, value, words in (("F", 0.5, "floats may mean anything"), ("I", 2**20, "more than 16 bits")):
        stream = io.BytesIO()
        Image.new(mode, (4, 4), value).save(stream, "TIFF")
        with pytest.raises(DataError, match=rf"^a\.tif: .*{words}"):
            decode(stream.getvalue(), "a.tif", any_kind())


def test_only_jpegs_where_only_jpegs_belong() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "PNG")
    with pytest.raises(DataError, match="not an image"):
        decode(stream.getvalue(), "a.JPEG", JPEG)


def test_colours_and_rows_are_where_they_belong() -> None:
    image = Image.new("RGB", (32, 32), "blue")
    image.paste("red", (0, 0, 32, 16))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    red, green, blue = decode(stream.getvalue(), "a.png", any_kind())
    assert [red[0, 0], green[0, 0], blue[0, 0]] == [255, 0, 0]
    assert [red[31, 0], green[31, 0], blue[31, 0]] == [0, 0, 255]


def test_a_file_too_large_for_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softmask.images.decoding.LARGEST_FILE", 10)
    (tmp_path / "a.png").write_bytes(bytes(11))
    with pytest.raises(DataError, match=r"a\.png: more than 10 bytes"):
        read_image(str(tmp_path / "a.png"))


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def opened(path: Path) -> dict[str, bytes]:
    with open_zip(path, largest=1000, most_members=5) as archive:
        return {name: archive.read(name) for name in archive.names()}


def test_members_are_read(tmp_path: Path) -> None:
    assert opened(write_zip(tmp_path / "a.zip", {"f/a": b"1", "f/": b"", "b": b"2"})) == {"f/a": b"1", "b": b"2"}
    with open_zip(tmp_path / "a.zip", largest=9, most_members=9) as archive, pytest.raises(DataError, match="lacks c"):
        archive.read("c")


@pytest.mark.parametrize("name", ["../a", "f/../../a", "/etc/passwd", "C:/a", "f\\..\\a"])
def test_members_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"a.zip: refused, its member .* leads out of the archive"):
        opened(write_zip(tmp_path / "a.zip", {name: b"1"}))


def a_link(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        member = zipfile.ZipInfo("link")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, "/etc/passwd")


def a_bomb(path: Path) -> None:
    write_zip(path, {"a": bytes(1001)})


def too_many(path: Path) -> None:
    write_zip(path, {str(number): b"" for number in range(6)})


def the_same_twice(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a", b"2")


def a_false_size(path: Path) -> None:
    """The directory says 10 bytes, the content unpacks to a thousand times as many."""
    write_zip(path, {"a": bytes(10_000)})
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<I", 10_000), struct.pack("<I", 10)))


def a_flipped_bit(path: Path) -> None:
    write_zip(path, {"a": np.random.default_rng(0).bytes(500)})
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (a_link, "neither a plain file nor a folder"),
        (a_bomb, "1001 bytes, but at most 1000"),
        (too_many, "6 members, but at most 5"),
        (the_same_twice, "holds 'a' twice"),
        (a_false_size, "damaged or not readable"),
        (a_flipped_bit, "damaged or not readable"),
        (lambda path: path.write_bytes(b"no zip"), "damaged or not readable"),
    ],
)
def test_hostile_archives(tmp_path: Path, spoil: Callable[[Path], None], reason: str) -> None:
    spoil(tmp_path / "a.zip")
    with pytest.raises(DataError, match=reason) as error:
        opened(tmp_path / "a.zip")
    assert str(tmp_path / "a.zip") in str(error.value)
    assert "\n" not in str(error.value)
