"""The cost of runs, from the times and sizes that they kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.experiments.analyses.cost import cost
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from tests.experiments.analyses.made import rows, stored, triangle
from tests.experiments.runs.examples import tiny_config


def test_times_growth_throughput_and_sizes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    times = [(10.0, 1.0), (12.0, 3.0), (14.0, 5.0)]
    done = stored(store, make_config("spg", "C-10"), triangle([[5], [5, 5], [5, 5, 5]]), seconds=times)
    (told,) = rows(cost(store.runs()))
    assert told["hours"].mean == pytest.approx(45 / 3600)
    assert told["learning, s/task"].mean == pytest.approx(12)
    assert (told["task end, first s"].mean, told["task end, last s"].mean) == (1, 5)
    assert told["learning grows, %/task"].mean == pytest.approx(100 * 2 / 12)
    assert told["task end grows, s/task"].mean == pytest.approx(2)
    assert told["images/s"].mean == pytest.approx(3 * 2 * 100 / 36)  # tasks x epochs x images
    assert told["memory, MB"].mean == pytest.approx(6)
    files = [file for file in done.path.rglob("*") if file.is_file()]
    assert told["disk, MB"].mean == pytest.approx(sum(file.stat().st_size for file in files) / 1e6)


def test_a_real_run_counts_its_images_and_memory(tmp_path: Path) -> None:
    done = run(tiny_config("ncl", changes={"epochs": 1}), Store(tmp_path))
    (told,) = rows(cost([done]))
    assert told["images/s"].mean > 0
    assert told["memory, MB"] is None or told["memory, MB"].mean > 50, "Python and torch alone take more"
