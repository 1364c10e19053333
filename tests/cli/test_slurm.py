"""A grid as a job array: the script's body is run here as Slurm would run it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from softmask.experiments.runs.store import Store
from tests.cli.command import softmask

SMALL = ("--set", "width=0.0625", "--set", "epochs=1", "--tasks", "1", "--preset", "short", "--sequences", "D-5")


@pytest.mark.slow
def test_a_job_array(tmp_path: Path) -> None:
    store, folder = tmp_path / "runs here", tmp_path / "the job's"
    asked = ("grid", "--methods", "ncl,one", "--seeds", "1-2", *SMALL, "--store", store, "--slurm", folder)
    ended = softmask(*map(str, asked), "--shards", "3")
    assert ended.code == 0, ended.err
    assert not store.exists(), "nothing is run"
    script = folder / "run.sh"
    assert str(script) in ended.out.replace("\n", "")
    assert re.search(r"^#SBATCH --array=1-3$", script.read_text(), re.MULTILINE)
    assert sorted(file.name for file in folder.glob("shard-*")) == [f"shard-000{index}.json" for index in (1, 2, 3)]
    for task in (1, 2, 3):
        done = subprocess.run(
            ["sh", str(script)],
            env={**os.environ, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_CPUS_PER_TASK": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    runs = list(Store(store).runs())
    assert {(run.config.method, run.config.seeds.order) for run in runs} == {
        (method, seed) for method in ("ncl", "one") for seed in (1, 2)
    }
    assert all(run.finished for run in runs)
    again = softmask(*map(str, asked))
    assert again.code == 2
    assert again.errors() == [again.err.strip()]


def test_what_is_no_shard(tmp_path: Path) -> None:
    for content in ("{}", "[", '{"format": 1, "configs": [{}]}'):
        (tmp_path / "shard.json").write_text(content)
        ended = softmask("grid", "--shard", str(tmp_path / "shard.json"))
        assert ended.code == 2
        assert "Traceback" not in ended.err
    assert softmask("grid", "--shard", "x.json", "--methods", "ncl").code == 2
