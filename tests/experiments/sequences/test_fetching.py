"""Fetching from a server on this machine that misbehaves in every way that servers do."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from softmask.errors import DataError
from softmask.experiments.sequences import SEQUENCES, Download, sequence_facts
from softmask.experiments.sequences.fetching import fetch

CONTENT = bytes(range(256)) * 2000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT. `behave` is asked for every request and may do something else."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behave: Callable[[Handler, int], bool] = lambda handler, number: False
        self.ranges: list[str | None] = []
        self.content, self.version = CONTENT, '"one"'

    @property
    def download(self) -> Download:
        return Download(f"http://127.0.0.1:{self.server_port}/file", "file.bin", MD5, len(CONTENT))


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if self.server.behave(self, len(self.server.ranges)):
            return
        same = self.headers.get("If-Range") in (None, self.server.version)
        self.send(int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and same else 0)

    def send(self, first: int, upto: int | None = None) -> None:
        content = self.server.content
        if first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.send_header("ETag", self.server.version)
        self.end_headers()
        self.wfile.write(content[first:upto])

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def get(server: Server, folder: Path, attempts: int = 3) -> Path:
    return fetch(server.download, folder, stalled=0.3, attempts=attempts, pause=0.01)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    seen: list[int] = []
    fetch(server.download, tmp_path / "new", progress=lambda have, size: seen.append(have))
    assert (tmp_path / "new" / "file.bin").read_bytes() == CONTENT
    assert seen == sorted(seen)
    assert seen[-1] == len(CONTENT)
    get(server, tmp_path / "new")
    assert server.ranges == [None]
    assert left_in(tmp_path / "new") == ["file.bin"]


def drop(handler: Handler, number: int) -> bool:
    """The first three connections end after another 100,000 bytes."""
    wanted = handler.headers.get("Range")
    first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
    if number <= 3:
        handler.send(first, first + 100_000)
        return True
    return False


def test_a_dropped_connection_is_continued(server: Server, tmp_path: Path) -> None:
    server.behave = drop
    assert get(server, tmp_path, attempts=2).read_bytes() == CONTENT, "what brings something is no failure"
    assert server.ranges == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]


def test_a_later_command_continues(server: Server, tmp_path: Path) -> None:
    server.behave = drop
    with pytest.raises(DataError, match=r"100,000 of 512,000 bytes are there.*the same command continues"):
        get(server, tmp_path, attempts=1)
    assert not (tmp_path / "file.bin").exists()
    server.behave = lambda handler, number: False
    get(server, tmp_path)
    assert server.ranges[-1] == "bytes=100000-"
    assert left_in(tmp_path) == ["file.bin"]


def test_a_file_that_changed_meanwhile_is_begun_again(server: Server, tmp_path: Path) -> None:
    server.behave, server.version = drop, '"zero"'
    with pytest.raises(DataError):
        get(server, tmp_path, attempts=1)
    server.version = '"one"'
    server.behave = lambda handler, number: False
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_server_that_cannot_continue(server: Server, tmp_path: Path) -> None:
    def whole_or_drop(handler: Handler, number: int) -> bool:
        handler.send(0, None if number == 3 else 200_000)
        return True

    server.behave = whole_or_drop
    assert get(server, tmp_path, attempts=4).read_bytes() == CONTENT


def test_a_wrong_body_is_removed(server: Server, tmp_path: Path) -> None:
    server.content = bytes(len(CONTENT))
    with pytest.raises(DataError, match=f"not the official file.*expected {MD5}.*removed"):
        get(server, tmp_path)
    assert left_in(tmp_path) == []


def test_a_body_too_long_is_cut_off(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT * 3
    with pytest.raises(DataError, match="sends more than the 512,000 bytes"):
        get(server, tmp_path)
    assert left_in(tmp_path) == []


def test_a_server_that_stalls(server: Server, tmp_path: Path) -> None:
    def stall(handler: Handler, number: int) -> bool:
        handler.send(0, 50_000)
        handler.wfile.flush()
        time.sleep(1)
        return True

    server.behave = stall
    start = time.monotonic()
    with pytest.raises(DataError, match=r"broke off.*timed out"):
        get(server, tmp_path, attempts=2)
    assert time.monotonic() - start < 5
    assert not (tmp_path / "file.bin").exists()


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (403, 1), (503, 3)])
def test_a_server_that_refuses(server: Server, tmp_path: Path, status: int, asked: int) -> None:
    def refuse(handler: Handler, number: int) -> bool:
        handler.send_error(status)
        return True

    server.behave = refuse
    with pytest.raises(DataError, match=f"the server answered {status}"):
        get(server, tmp_path)
    assert len(server.ranges) == asked, "what will not change is not asked again"


def test_a_part_that_is_longer_than_the_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    (tmp_path / "file.bin.part.json").write_text(f'{{"{server.download.address}": "\\"one\\""}}')
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_part_of_unknown_origin_is_not_continued(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"something else")
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None]


def test_another_file_of_that_name_is_left_alone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match="already there, but not the official file"):
        get(server, tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"mine"
    assert server.ranges == []


def test_nobody_answers(tmp_path: Path) -> None:
    nobody = Download("http://127.0.0.1:9/file", "file.bin", MD5, 3)
    with pytest.raises(DataError, match="broke off, 0 of 3 bytes"):
        fetch(nobody, tmp_path, attempts=2, pause=0.01)


def test_a_file_that_cannot_be_written_is_no_bad_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / (server.download.file + ".part.json")).mkdir()
    with pytest.raises(DataError, match="Is a directory"):
        get(server, tmp_path)


@pytest.mark.parametrize(
    "address", ["http://[", "http://host:port/", "http:///\x7f", "https://a b/\tc", "http://" + "a" * 70]
)
def test_a_redirect_to_a_malformed_address_is_one_line(server: Server, tmp_path: Path, address: str) -> None:
    def redirect(handler: Handler, number: int) -> bool:
        handler.send_response(302)
        handler.send_header("Location", address)
        handler.end_headers()
        return True

    server.behave = redirect
    with pytest.raises(DataError) as caught:
        get(server, tmp_path, attempts=1)
    assert "\n" not in str(caught.value)
    assert server.download.address in str(caught.value)


@pytest.mark.parametrize("name", [name for name in SEQUENCES.names() if sequence_facts(name).needs_data])
def test_data_are_fetched_over_https(name: str) -> None:
    source = sequence_facts(name).source
    assert source is not None
    assert source.download is None or source.download.address.startswith("https://")
