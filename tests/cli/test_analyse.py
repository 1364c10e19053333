"""`softmask analyse accuracy` as text, Markdown and JSON."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from softmask.experiments.analyses import ANALYSES
from softmask.experiments.metrics import FORMULAS, NO_ID
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store
from tests.cli.command import Ended, softmask
from tests.experiments.analyses.made import stored, triangle


def test_text(with_one: Ended, store: Path) -> None:
    told = softmask("analyse", "accuracy", "--store", store)
    assert told.code == 0
    header = next(line for line in told.out.splitlines() if "method" in line)
    columns = ["sequence", "method", "training", "changed", "seeds", "ACC", "FWT", "BWT", NO_ID, "grows with tasks"]
    assert header.split() == " ".join(columns).split(), "ONE grows; nobody keeps old data"
    assert all(formula in told.out for formula in FORMULAS.values()), "square brackets are printed as they are"
    assert "D-5[:2]" in told.out


def test_markdown(with_one: Ended, store: Path) -> None:
    told = softmask("analyse", "accuracy", "--store", store, "--format", "markdown")
    assert told.code == 0
    table = [line for line in told.out.splitlines() if line.startswith("|")]
    assert len(table) == 4  # header, rule, ONE and SPG
    assert len({line.count("|") for line in table}) == 1
    assert "paper ACC" not in table[0], "the paper has no numbers for D-5"


def test_json(with_one: Ended, store: Path) -> None:
    told = softmask("analyse", "accuracy", "--store", store, "--format", "json").json()
    rows = {row["method"]: row for row in told["rows"]}
    assert set(rows) == {"ONE", "SPG"}
    assert rows["ONE"]["FWT"] is None
    assert rows["SPG"]["FWT"]["std"] is None, "one seed has no deviation"
    run = softmask(
        "run",
        "-m",
        "spg",
        "-s",
        "D-5",
        "-p",
        "short",
        "--tasks",
        2,
        "--store",
        store,
        "--json",
        "--set",
        "width=0.0625",
        "--set",
        "epochs=2",
    ).json()
    assert all(rows["SPG"][name]["mean"] == run[name] for name in FORMULAS)


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_an_empty_store_is_an_error(tmp_path: Path, form: str) -> None:
    ended = softmask("analyse", "accuracy", "--store", tmp_path, "--format", form)
    assert ended.code == 1
    assert ended.out == ""
    assert "no finished run in" in ended.errors()[0]
    assert "`softmask run` makes one" in ended.errors()[0]


@pytest.mark.parametrize("name", [name for name, analysis in ANALYSES.items() if analysis.needs_runs])
def test_every_analysis_of_a_small_store_is_a_table_or_says_why_not(with_one: Ended, store: Path, name: str) -> None:
    told = softmask("analyse", name, "--store", store, "--format", "csv")
    if told.code == 0:
        assert len(told.out.splitlines()) > 1
    else:
        assert told.code == 1
        assert re.search(f"has data for `{name}`|has no checkpoint", told.errors()[0])


def test_latex(with_one: Ended, store: Path) -> None:
    told = softmask("analyse", "accuracy-by-sequence", "--store", store, "--format", "latex")
    assert r"\toprule" in told.out


def test_a_wrong_format_or_name_is_wrong_usage(store: Path) -> None:
    assert softmask("analyse", "accuracy", "--format", "pdf").code == 2
    assert softmask("analyse", "acuracy").code == 2


def test_only_some_methods_and_sequences(with_one: Ended, store: Path) -> None:
    everything = softmask("analyse", "accuracy", "--store", store, "--format", "json").json()
    wanted = ("--methods", "spg", "--sequences", "D-5", "--format", "json")
    assert softmask("analyse", "accuracy", "--store", store, *wanted).json() == everything, "ONE stays: FWT needs it"
    only_one = softmask("analyse", "accuracy", "--store", store, "-m", "one", "--format", "json").json()
    assert [row["method"] for row in only_one["rows"]] == ["ONE"]


@pytest.mark.parametrize(("flag", "name", "meant"), [("--methods", "spgg", "spg"), ("--sequences", "D5", "D-5")])
def test_a_selection_that_the_store_does_not_have(
    with_one: Ended, store: Path, flag: str, name: str, meant: str
) -> None:
    ended = softmask("analyse", "matrix", "--store", store, flag, name)
    assert ended.code == 2
    assert f"in this store '{name}': did you mean '{meant}'?" in ended.errors()[0]


def test_damaged_events_cost_one_run_not_the_table(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method in ("spg", "one"):
        run = stored(store, make_config(method, "C-10"), triangle([[90], [70, 80]]))
    events = run.path / "events.jsonl"
    events.write_text(events.read_text().replace('"name"', '"nome"'))
    told = softmask("analyse", "accuracy", "--store", tmp_path, "--format", "json")
    assert [row["method"] for row in told.json()["rows"]] == ["SPG"]
    assert f"left out: {run.path}" in told.err


def test_json_has_one_spelling_in_all_verbs(with_one: Ended, store: Path) -> None:
    told = softmask("analyse", "accuracy", "--store", store, "--json")
    assert told.json() == softmask("analyse", "accuracy", "--store", store, "--format", "json").json()


def test_the_base_stays_when_methods_are_given(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, last in (("spg", 70), ("ncl", 50), ("hat", 60)):
        stored(store, make_config(method, "C-10"), triangle([[90], [last, last]]))
    told = softmask("analyse", "differences", "--store", tmp_path, "-m", "ncl", "--json").json()
    assert [(row["method"], row["ACC"]["mean"]) for row in told["rows"]] == [("NCL", -20.0)]
    told = softmask("analyse", "differences", "--store", tmp_path, "-m", "ncl", "--against", "hat", "--json").json()
    assert [(row["method"], row["ACC"]["mean"]) for row in told["rows"]] == [("NCL", -10.0)]
    assert softmask("analyse", "differences", "--store", tmp_path, "--against", "had").code == 2


def test_claims_of_a_partial_store(tmp_path: Path) -> None:
    stored(Store(tmp_path), make_config("spg", "D-5"), triangle([[90], [70, 70]]))
    told = softmask("analyse", "claims", "--store", tmp_path, "--json")
    assert told.code == 0
    assert all("missing" in row["numbers"] for row in told.json()["rows"] if row["verdict"] == "no data")


def test_published_numbers(tmp_path: Path) -> None:
    stored(Store(tmp_path / "store"), make_config("spg", "C-10"), triangle([[90], [70, 70]]))
    (tmp_path / "theirs.csv").write_text("method,sequence,ACC\nSPG,C-10,71.5\n")
    options = ("--store", tmp_path / "store", "--published", tmp_path / "theirs.csv")
    assert "theirs ACC" in softmask("analyse", "accuracy", *options).out
    assert softmask("analyse", "accuracy", *options[:-1], tmp_path / "nowhere.csv").code == 1
