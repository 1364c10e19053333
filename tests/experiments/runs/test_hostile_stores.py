"""A store from elsewhere, or one that had bad luck: one bad run is left out with its reason, nothing else suffers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from softmask.errors import SoftmaskError
from softmask.experiments.analyses import ANALYSES, grouping
from softmask.experiments.executors import SerialExecutor
from softmask.experiments.report.run_pages import run_data
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store, StoredRun, StoreError
from softmask.experiments.sequences import SEQUENCES
from softmask.learning.registry import METHODS
from tests.cli.command import softmask
from tests.experiments.runs.examples import tiny_config

DEEP = "[" * 100_000 + "]" * 100_000
DIGITS = "1" * 5_000


def rewritten(kind: str, **changes: Any) -> Callable[[Path], None]:
    """Changes the last event of a kind, in a run of an older release, which has no digest; None removes a field."""

    def change(folder: Path) -> None:
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        last = [event for event in events if event["kind"] == kind][-1]
        for event in events:
            event.pop("digest", None)
        for name, value in changes.items():
            last[name] = value
            if value is None:
                del last[name]
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))

    return change


def appended(event: dict[str, Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with open(folder / "events.jsonl", "a") as file:
            file.write(json.dumps(event) + "\n")

    return change


def with_config(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(text) and None


def one_digit(folder: Path) -> None:
    """Of an accuracy, as a bit flip would change it."""
    file = folder / "events.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    place = max(number for number, line in enumerate(lines) if b'"kind": "accuracy"' in line)
    event = json.loads(lines[place])
    event["test"] = 0.25 if event["test"] != 0.25 else 0.75
    lines[place] = (json.dumps(event) + "\n").encode()
    file.write_bytes(b"".join(lines))


PRUNING = {"strategy": "x", "ranked_over": "backbone", "test": 0.5, "classes": 2}


def one_digit_of_a_later_event(folder: Path) -> None:
    """Of a result that was measured after the run had finished."""
    with Store(folder.parent).open(tiny_config()) as writer:
        writer.event("pruning", **PRUNING)
        writer.event("data", match=True, now="0123")
    file = folder / "events.jsonl"
    content = file.read_bytes()
    assert content.count(b'"test": 0.5, "classes": 2') == 1
    file.write_bytes(content.replace(b'"test": 0.5, "classes": 2', b'"test": 0.7, "classes": 2'))


def pipe_instead_of(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def link_to_a_device(folder: Path) -> None:
    (folder / "events.jsonl").unlink()
    (folder / "events.jsonl").symlink_to("/dev/zero")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "deep config": with_config(DEEP),
    "deep inside the config": with_config('{"format": 1, "config": {"method": ' + DEEP + "}}"),
    "many digits": with_config('{"format": 1, "config": {"tasks": ' + DIGITS + "}}"),
    "ids an int": rewritten("task", ids=3),
    "no name": rewritten("task", name=None),
    "text for seconds": rewritten("task", learn_seconds="long"),
    "facts no object": rewritten("task", facts=[1]),
    "no val_loss": rewritten("epoch", val_loss=None),
    "text for a loss": rewritten("epoch", train_loss="low"),
    "nan accuracy": rewritten("accuracy", test=float("nan")),
    "a device that nobody has": rewritten("started", device="abacus"),
    "pruning": appended({"kind": "pruning", **PRUNING, "test": "high"}),
    "representation": appended({"kind": "representation", "onto": "x", "union": False, "test": 0.5, "classes": 2}),
    "no classes": appended({"kind": "pruning", **PRUNING, "classes": 0}),
    "a time of many digits": rewritten("task", learn_seconds=10**400),
    "a loss of many digits": rewritten("epoch", val_loss=10**400),
    "one digit": one_digit,
    "one digit of a later event": one_digit_of_a_later_event,
    "pipe as config": pipe_instead_of("config.json"),
    "pipe as events": pipe_instead_of("events.jsonl"),
    "device as events": link_to_a_device,
}


@pytest.fixture
def store(whole_run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two runs: one that is going to be damaged, and another."""
    monkeypatch.setenv("SOFTMASK_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "store"
    shutil.copytree(whole_run.path, root / whole_run.path.name)
    run(tiny_config("ncl", tasks=1, changes={"epochs": 1}), Store(root))
    return Store(root)


@pytest.fixture(autouse=True)
def known_again() -> Iterator[None]:
    """The tables remember what a method is called and what its defaults are; without its plugin it has neither."""
    yield
    grouping.method_title.cache_clear()
    grouping._usual.cache_clear()


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_left_out_with_its_reason(name: str, store: Store) -> None:
    folder = store.root / tiny_config().id()
    DAMAGES[name](folder)
    assert [found.config.method for found in store.runs()] == ["ncl"]
    (problem,) = store.problems()
    assert str(folder) in problem
    with pytest.raises(StoreError):
        run(tiny_config(), store)
    listed = softmask("list", "runs", "--store", store.root, "--json")
    assert (listed.code, len(listed.json()["rows"])) == (0, 1)
    cells = Grid((tiny_config(), tiny_config("ncl", tasks=1, changes={"epochs": 1}))).run(store, SerialExecutor())
    assert sorted(cell.state for cell in cells) == ["failed", "finished"], "the others go on"


def test_a_run_of_an_older_release_has_no_digest_and_is_read(store: Store) -> None:
    rewritten("finished")(store.root / tiny_config().id())
    assert len(list(store.runs())) == 2


def test_results_that_are_measured_later_are_read_with_or_without_a_digest(store: Store) -> None:
    folder = store.root / tiny_config().id()
    appended({"kind": "pruning", **PRUNING, "strategy": "by an older release"})(folder)
    with store.open(tiny_config()) as writer:
        writer.event("pruning", **PRUNING)
        writer.event("representation", onto="caf\u00e9", union=False, learned=1, classes=2, test=1 / 3)
    (found,) = [run for run in store.runs() if run.config.method == "spg"]
    old, new = found.events("pruning")
    assert ("digest" in old, "digest" in new) == (False, True)
    assert found.events("representation")[0]["test"] == 1 / 3


def test_half_a_line_is_not_cut_from_a_file_that_has_another_name(store: Store, tmp_path: Path) -> None:
    mine, folder = tmp_path / "mine", store.root / tiny_config().id()
    mine.write_text("precious, without an end of line")
    (folder / "events.jsonl").unlink()
    os.link(mine, folder / "events.jsonl")
    with pytest.raises(SoftmaskError, match=r"events\.jsonl"), store.open(tiny_config()):
        pass
    assert mine.read_text() == "precious, without an end of line"
    assert not (folder / "lease.json").exists()


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_a_folder_that_may_not_be_read_is_a_failed_cell(
    error: OSError, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = store.root / tiny_config().id(), os.open

    def refusing(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).startswith(str(folder)):
            raise error
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    assert [found.config.method for found in store.runs()] == ["ncl"]
    (problem,) = store.problems()
    assert str(error.strerror) in problem
    assert isinstance(error, PermissionError) != ("delete" in problem), "deleting is no answer to a lack of permission"
    cells = Grid((tiny_config(), tiny_config("ncl", tasks=1, changes={"epochs": 1}))).run(store, SerialExecutor())
    assert sorted(cell.state for cell in cells) == ["failed", "finished"]


@pytest.mark.parametrize(("retry", "ended"), [(False, ["failed", "finished"]), (True, ["finished", "finished"])])
def test_a_folder_that_may_not_be_looked_into_costs_no_other_cell(
    retry: bool, ended: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried again, it is the run itself that meets the error, if it is still there."""
    configs, busy = [tiny_config("ncl", tasks=1, seed=seed, changes={"epochs": 1}) for seed in (1, 2)], Store.busy

    def refused(store: Store, config: RunConfig) -> bool:
        if config == configs[0]:
            raise PermissionError(13, "Permission denied")
        return busy(store, config)

    monkeypatch.setattr(Store, "busy", refused)
    cells = Grid(tuple(configs)).run(Store(tmp_path), SerialExecutor(), retry_failed=retry)
    assert sorted(cell.state for cell in cells) == ended


@pytest.mark.parametrize("name", ["events.jsonl", "config.json.tmp", "progress.safetensors.tmp", "checkpoints"])
def test_a_run_is_not_written_through_links(name: str, tmp_path: Path) -> None:
    store, config = Store(tmp_path / "store"), tiny_config("ncl", tasks=1)
    mine = tmp_path / "mine"
    if name == "checkpoints":
        mine.mkdir()
    else:
        mine.write_text("precious")
    folder = store.root / config.id()
    folder.mkdir(parents=True)
    (folder / name).symlink_to(mine)
    with pytest.raises(StoreError):
        run(config, store)
    assert mine.read_text() == "precious" if mine.is_file() else not list(mine.iterdir())


def test_a_folder_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    store, config = Store(tmp_path / "store"), tiny_config("ncl", tasks=1)
    store.root.mkdir()
    (tmp_path / "mine").mkdir()
    (store.root / config.id()).symlink_to(tmp_path / "mine")
    with pytest.raises(StoreError):
        run(config, store)
    assert not list((tmp_path / "mine").iterdir())


def test_a_store_is_shown_without_the_plugin_that_made_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: entry for name, entry in METHODS._entries.items() if name != "spg"}
    monkeypatch.setattr(METHODS, "_entries", known)
    assert sorted(found.config.method for found in store.runs()) == ["ncl", "spg"]
    (gone,) = [found for found in store.runs() if found.config.method == "spg"]
    assert gone.path.name == gone.config.id()
    assert gone.accuracies()
    listed = softmask("list", "runs", "--store", store.root)
    assert listed.code == 0
    assert "spg" in listed.out


@pytest.mark.parametrize("registry", [METHODS, SEQUENCES], ids=["method", "sequence"])
def test_every_table_is_made_without_the_plugin(
    registry: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        registry, "_entries", {name: entry for name, entry in registry._entries.items() if name not in ("spg", "D-5")}
    )
    for name in set(ANALYSES) - {"network-size"}:  # which needs no runs
        assert softmask("analyse", name, "--store", store.root).code in (0, 1), name  # 1: these runs have no such facts
    assert softmask("report", store.root, "-o", tmp_path / "report.html").code == 0
    assert softmask("report", store.root, "-o", tmp_path / "page.html", "--files", tmp_path / "files").code == 0


def far_away(folder: Path) -> None:
    """Tasks with numbers from a million on."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for event in events:
        event.pop("digest", None)
        event |= {name: event[name] + 10**6 for name in ("task", "after") if name in event}
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def no_shares(folder: Path) -> None:
    facts = {"blocked": {"whole network": float("nan"), "fc1": 10**400}, "F-each": float("inf"), "G-each": float("nan")}
    rewritten("task", facts=facts)(folder)


def deep_settings(folder: Path) -> None:
    config = {**tiny_config().to_dict(), "method": "gone", "settings": {"x": json.loads("[" * 500 + "]" * 500)}}
    with_config(json.dumps({"format": 1, "config": config}))(folder)


@pytest.mark.parametrize("damage", [far_away, no_shares, deep_settings])
def test_every_table_and_the_report_are_made_in_spite_of(
    damage: Callable[[Path], None], store: Store, tmp_path: Path
) -> None:
    damage(store.root / tiny_config().id())
    for name in ("accuracy", "capacity", "cross-head"):
        assert softmask("analyse", name, "--store", store.root).code in (0, 1), name
    assert softmask("report", store.root, "-o", tmp_path / "report.html").code == 0


def test_a_matrix_has_columns_for_the_tasks_that_are_there(store: Store) -> None:
    """Not for all numbers up to the highest, which may be any."""
    folder = store.root / tiny_config().id()
    far_away(folder)
    assert [len(row) for row in run_data(StoredRun(folder))["matrix"]] == [2, 2]


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv"])
def test_names_in_a_store_send_nothing_to_the_terminal(form: str, store: Store) -> None:
    config = {**tiny_config().to_dict(), "sequence": "D-5\x1b[2J\x9b"}
    with_config(json.dumps({"format": 1, "config": config}))(store.root / tiny_config().id())
    ended = softmask("analyse", "accuracy-by-sequence", "--store", store.root, "--format", form)
    assert ended.code == 0
    assert not {"\x1b", "\x9b"} & set(ended.out + ended.err)


def test_a_finished_run_gives_back_the_lease_of_a_dead_process(store: Store) -> None:
    folder = store.root / tiny_config().id()
    (folder / "lease.json").write_text('{"token": "x", "host": "h", "machine": "elsewhere", "pid": 1}')
    os.utime(folder / "lease.json", (1e9, 1e9))
    run(tiny_config(), store)
    assert not (folder / "lease.json").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("grid.yaml", "a: &a [1]\nmethods: [*a, *a]\n"),
        ("grid.yaml", "set: " + "[" * 5_000 + "]" * 5_000),
        ("grid.toml", "tasks = " + DIGITS),
        ("grid.toml", f"seeds = [0x{'f' * 5000}]"),
        ("grid.toml", "set.x = " + "[" * 5_000 + "]" * 5_000),
        ("grid.toml", "seeds = []"),
        ("grid.yaml", "seeds: []"),
        ("grid.toml", f"seeds = '{DIGITS}'"),
    ],
)
def test_a_hostile_grid_file_is_refused_in_a_line(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    ended = softmask("grid", "-m", "ncl", "-s", "D-5", "--file", tmp_path / name, "--store", tmp_path / "store")
    assert ended.code == 2
    assert len(ended.errors()) == 1
    assert len(ended.err) < 1_500
    assert "Traceback" not in ended.err


def test_a_pipe_as_a_grid_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "grid.toml")
    ended = softmask("grid", "--file", tmp_path / "grid.toml")
    assert (ended.code, len(ended.errors())) == (2, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        ("--set", "epochs=" + DEEP),
        ("--set", "epochs=" + DIGITS),
        ("--set", "training.lr=1e308"),
        ("--set", f"training.epochs={DIGITS[:900]}"),
        ("--threads", "100000"),
        ("--changed-data", "perhaps"),
    ],
    ids=["deep", "digits", "infinite rate", "too many epochs", "threads", "policy"],
)
def test_hostile_options_are_refused(wrong: tuple[str, str], tmp_path: Path) -> None:
    ended = softmask("run", "-m", "ncl", "-s", "D-5", "-p", "short", "--tasks", 1, "--store", tmp_path, *wrong)
    assert ended.code in (1, 2)
    assert "Traceback" not in ended.err
    assert len(ended.err) < 12_000


def test_make_config_is_as_strict_as_before() -> None:
    with pytest.raises(Exception, match="gone"):
        make_config("gone", "D-5")
    with pytest.raises(Exception, match="gone"):
        make_config("ncl", "gone")
