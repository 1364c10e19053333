"""The page: whole, self-contained, honest about what is missing."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from softmask.errors import SoftmaskError
from softmask.experiments.analyses.reading import Reading, read_store
from softmask.experiments.report import html
from softmask.experiments.report.files import write_files
from softmask.experiments.report.html import make_report
from softmask.experiments.report.run_pages import CONFIG_ONLY, THIN, command, run_data, seed_of
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store
from tests.experiments.analyses.made import stored, triangle
from tests.experiments.report.made import mixed_store


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Reading:
    return read_store(mixed_store(tmp_path_factory.mktemp("my runs")))


@pytest.fixture(scope="module")
def page(reading: Reading) -> str:
    return make_report(reading)[0]


def data(page: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_nothing_is_asked_of_the_network(page: str) -> None:
    assert not re.search(r'(?:src|href)="(?!#|data:,")', page)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "@import" not in page
    assert "fetch(" not in page


def test_numbers_paper_and_difference(page: str) -> None:
    assert re.search(r"<strong[^>]*>76\.5</strong>.*?paper 67\.7 .*?\(\+8\.8\)", page)
    assert "softmask analyse accuracy-by-sequence --store" in page
    assert '<th scope="row">(ONE)</th>' in page


def test_what_failed_or_was_left_out_is_said(page: str, reading: Reading) -> None:
    assert '<td class="number failed">failed</td>' in page
    assert '<td class="number unfinished">unfinished</td>' in page
    assert len(reading.left_out) == 2
    assert "holiday &lt;b&gt;pictures" in page
    assert "holiday <b>" not in page
    assert "softmask analyse ablation</code> has no data yet" in page
    assert "<dt>folders left out</dt><dd>2</dd>" in page


def test_every_chart_of_the_page_has_its_data_and_words(page: str) -> None:
    charts = data(page, "charts")
    named = re.findall(r'data-chart="([^"]+)" data-alt="([^"]+)"', page)
    assert {name for name, _ in named} == set(charts)
    assert all(len(alt) > 20 for _, alt in named)


def test_every_run_has_a_page(page: str, reading: Reading) -> None:
    runs = data(page, "runs-data")
    assert set(runs) == {run.path.name for run in reading.runs}
    assert all(f'href="#run/{name}"' in page for name in runs)
    failed = next(run for name, run in runs.items() if name.startswith("wsn"))
    assert failed["said"] == "Failed after 1 tasks: no finite loss"
    spg = next(run for name, run in runs.items() if name.startswith("spg_C-10"))
    assert spg["matrix"][1][2] is None
    assert len(spg["epochs"]) == 6
    assert set(spg["blocked"]) == {"conv1", "fc2", "whole network"}


def test_a_long_name_is_a_link_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    done = stored(store, make_config("spg-no-chi", "D-5", tasks=2), triangle([[50], [50, 50]]))
    longer = done.path.rename(done.path.with_name(f"{done.path.name} of last year & more"))
    page = make_report(read_store(store))[0]
    assert f'<a href="#run/{quote(longer.name)}">{escape(longer.name)}</a>' in page


def test_names_cannot_break_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    hostile = "</script><img src=x onerror=alert(1)>"
    stored(store, make_config("spg", "D-5", tasks=2), triangle([[50], [50, 50]]), names=[hostile, "b"])
    page = make_report(read_store(store))[0]
    assert hostile not in page
    assert data(page, "runs-data").popitem()[1]["tasks"][0] == hostile


@pytest.mark.parametrize(
    "config",
    [
        make_config("spg", "D-5"),
        make_config("hat", "C-10", preset="short", seed=3, changes={"sparsity": 0.5, "width": 0.25, "epochs": 7}),
        make_config("ncl", "R-10", tasks=2, seed=5, changes={"seeds.order": 9, "joint_epochs": None}),
    ],
)
def test_the_command_of_a_run_makes_the_same_run(config: Any) -> None:
    import shlex

    from softmask.cli.options import parse_changes

    words = shlex.split(command(config))[2:]
    given = {words[i]: words[i + 1] for i in range(0, len(words), 2) if words[i] != "--set"}
    changes = [words[i + 1] for i in range(0, len(words), 2) if words[i] == "--set"]
    again = make_config(
        given["--method"],
        given["--sequence"],
        preset=given["--preset"],
        seed=int(given["--seed"]),
        tasks=int(given["--tasks"]) if "--tasks" in given else None,
        changes=parse_changes(changes),
    )
    assert again.id() == config.id()


def test_seeds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = stored(store, make_config("spg", "C-10", seed=7), triangle([[1]]))
    other = stored(store, make_config("spg", "C-10", seed=7, changes={"seeds.order": 3}), triangle([[1]]))
    assert (seed_of(first), seed_of(other)) == ("7", "3 7 7 7")


def test_many_runs_are_told_in_less_detail(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    run = next(run for run in reading.runs if run.config.method == "spg")
    assert len(run_data(run, CONFIG_ONLY)["epochs"]) == 0
    assert len(run_data(run, THIN)["epochs"]) == 6, "thinned to 60, and these are fewer"
    page = make_report(reading)[0]
    monkeypatch.setattr(html, "LIMIT", len(page.encode()) - 1)
    smaller = make_report(reading)[0]
    assert "of single runs are left out" in smaller
    monkeypatch.setattr(html, "LIMIT", 1000)
    with pytest.raises(SoftmaskError, match="divide the store"):
        make_report(reading)


def test_files(reading: Reading, tmp_path: Path) -> None:
    _, tables, figures = make_report(reading)
    some = {"accuracy": figures["accuracy"][:1]}
    count = write_files(tmp_path, tables, some)
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(written) == count
    shown = {name for name, table in tables.items() if table.rows}
    for suffix in ("md", "csv", "tex"):
        assert {file.stem for file in (tmp_path / "tables").glob(f"*.{suffix}")} == shown
    assert {file.suffix for file in (tmp_path / "figures").iterdir()} == {".png", ".svg", ".pdf"}


def test_a_store_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SoftmaskError, match="no run in"):
        make_report(read_store(Store(tmp_path)))
