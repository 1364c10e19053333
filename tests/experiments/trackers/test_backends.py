"""The real trackers, on this machine alone: what was sent is read back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.trackers import tracked
from tests.experiments.runs.examples import tiny_config

CONFIG = tiny_config()
NAME = "validation/loss"


def sent(folder: Path, tracker: str) -> StoredRun:
    """A run that was interrupted once, tracked all the way."""
    store = Store(folder / "store")

    def stop(event: dict[str, object]) -> None:
        if event["kind"] == "task":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), tracked(CONFIG, store, [tracker]) as listeners:
        run(CONFIG, store, listeners=[*listeners, stop])
    with tracked(CONFIG, store, [tracker]) as listeners:
        return run(CONFIG, store, listeners=listeners)


def losses(done: StoredRun) -> list[tuple[int, float]]:
    return [(step, event["val_loss"]) for step, event in enumerate(done.events("epoch"), start=1)]


def test_tensorboard_has_every_number_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = sent(tmp_path, "tensorboard")
    files = EventAccumulator(str(done.path / "tensorboard"))
    files.Reload()
    found = [(scalar.step, scalar.value) for scalar in files.Scalars(f"{NAME} by epoch")]
    assert found == [(step, pytest.approx(loss)) for step, loss in losses(done)]
    assert "test/task 002 by task" in files.Tags()["scalars"]


@pytest.mark.slow
def test_mlflow_has_every_number_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    done = sent(tmp_path, "mlflow")
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("softmask")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.status == "FINISHED"
    assert kept.info.run_name == CONFIG.id()
    assert kept.data.params["training.epochs"] == "2"
    history = client.get_metric_history(kept.info.run_id, f"{NAME} by epoch")
    assert sorted((metric.step, metric.value) for metric in history) == losses(done)


def logged(content: bytes) -> Iterator[bytes]:
    """The records of a wandb file: a header of 7 bytes, then LevelDB's log format in blocks of 32 KiB."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # no room for a header: the rest of the block is empty
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        if place + 7 + length > len(content):
            return  # it is being written
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


@pytest.mark.slow
def test_wandb_offline_has_every_number_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    done = sent(tmp_path, "wandb")
    files = sorted((done.path / "wandb").rglob("*.wandb"))
    assert len(files) == 2, "one for each start"

    def found() -> list[tuple[int, float]]:
        rows = []
        for file in files:
            for data in logged(file.read_bytes()):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(data)
                if record.WhichOneof("record_type") == "history":
                    rows.append(
                        {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                    )
        name = f"epoch/{NAME}"
        return [(int(row["by epoch"]), float(row[name])) for row in rows if name in row]

    # It is wandb's own process that writes: beside other work it may do so a moment after the run is finished.
    until = time.monotonic() + 30
    while len(found()) < len(losses(done)) and time.monotonic() < until:
        time.sleep(0.1)
    assert found() == losses(done)
