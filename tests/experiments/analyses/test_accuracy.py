"""From stored runs to the table of accuracies: averaged over seeds, compared with ONE by task, beside the paper."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from softmask.errors import DataError
from softmask.experiments.analyses.accuracy import accuracy, chance, transfer
from softmask.experiments.analyses.by_sequence import accuracy_by_sequence
from softmask.experiments.analyses.grouping import Runs, changes, gathered, training_name
from softmask.experiments.analyses.reading import Reading
from softmask.experiments.analyses.table import Table, Value
from softmask.experiments.paper import paper_value, read_published
from softmask.experiments.report.html import make_report
from softmask.experiments.report.tables import cell_text
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.sequences import sequence_facts
from softmask.learning.training import PRESETS, Training
from tests.experiments.analyses import made

# Share of right answers after each task; two tasks.
LEARNED = {0: {0: 0.9}, 1: {0: 0.7, 1: 0.8}}
NAMES = ("cats", "dogs")


def stored(
    store: Store, config: RunConfig, matrix: Mapping[int, Mapping[int, float]], names: tuple[str, ...] = NAMES
) -> StoredRun:
    """A finished run with these results."""
    with store.open(config) as writer:
        writer.event("started")
        for after, row in matrix.items():
            writer.event("task", task=after, ids=[after], name=names[after])
            for task, share in row.items():
                writer.event("accuracy", after=after, task=task, validation=0.0, test=share)
        writer.event("finished")
    return StoredRun(writer.path)


def config(method: str = "spg", seed: int = 1, **more: Any) -> RunConfig:
    return make_config(method, "C-10", seed=seed, **more)


def row(table: Table, method: str) -> dict[str, Any]:
    (found,) = [row for row in table.rows if row[1] == method]
    return dict(zip(table.columns, found, strict=True))


def test_numbers_of_another_protocol_stand_beside_runs_of_its_sequence_and_preset(tmp_path: Path) -> None:
    store, ten = Store(tmp_path), {after: dict.fromkeys(range(after + 1), 0.7) for after in range(10)}
    names = tuple(f"task {i}" for i in range(10))
    for preset in ("gpm", "short"):
        stored(store, make_config("gpm", "C-10-GPM", preset=preset), ten, names)
    stored(store, make_config("gpm", "C-10-GPM", preset="gpm", tasks=3), LEARNED)
    stored(store, make_config("gpm", "C-10", preset="gpm"), ten, names)
    table = accuracy(store.runs())
    beside = {(row["sequence"], row["training"]): row["paper ACC"] for row in made.rows(table)}
    assert beside.pop(("C-10-GPM", "gpm")) == 72.48
    assert set(beside.values()) == {None}
    assert any("Saha" in note for note in table.notes)
    assert not any("Saha" in note for note in accuracy([]).notes)


def test_means_and_sample_deviation_over_seeds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, last in ((1, 0.70), (2, 0.74), (3, 0.81)):
        stored(store, config(seed=seed), {0: {0: 0.9}, 1: {0: last, 1: 0.8}})
    told = row(accuracy(store.runs()), "SPG")
    assert told["seeds"] == 3
    # ACC is 75, 77 and 80.5; the squared distances from 77.5 sum to 15.5, over n - 1 = 2.
    assert told["ACC"].mean == pytest.approx(77.5)
    assert told["ACC"].std == pytest.approx((15.5 / 2) ** 0.5)
    assert told["BWT"].mean == pytest.approx(-15.0)
    assert told["FWT"] is None


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, config(), LEARNED)
    told = row(accuracy(store.runs()), "SPG")["ACC"]
    assert (told.mean, told.std) == (pytest.approx(75.0), None)


def test_deviation_of_values() -> None:
    assert Value.of([]) is None
    assert Value.of([5.0]) == Value(5.0, None)
    assert Value.of([2.0, 4.0]) == Value(3.0, 2**0.5, count=2)


def test_forward_transfer_matches_tasks_by_name_not_by_place(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = stored(store, config(), LEARNED)
    # ONE learned the same two tasks the other way round: dogs 60 %, then cats 95 %.
    stored(store, config("one"), {0: {0: 0.6}, 1: {0: 0.6, 1: 0.95}}, names=("dogs", "cats"))
    expected = ((90 - 95) + (80 - 60)) / 2
    assert transfer(run, store.runs())["FWT"] == pytest.approx(expected)
    told = accuracy(store.runs())
    assert row(told, "SPG")["FWT"].mean == pytest.approx(expected)
    assert (row(told, "ONE")["FWT"], row(told, "ONE")["BWT"]) == (None, None)


@pytest.mark.parametrize(
    "reference",
    [
        config("one", seed=2),
        config("one", changes={"width": 0.5}),
        config("one", changes={"epochs": 3}),
        config("one", tasks=2),
        make_config("one", "C-20"),
    ],
)
def test_forward_transfer_needs_a_reference_that_differs_in_the_method_alone(
    tmp_path: Path, reference: RunConfig
) -> None:
    store = Store(tmp_path)
    run = stored(store, config(), LEARNED)
    stored(store, reference, LEARNED)
    assert transfer(run, store.runs())["FWT"] is None
    assert row(accuracy(store.runs()), "SPG")["FWT"] is None


def test_a_method_with_dropout_rates_of_its_own_is_compared_with_one_at_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made.stored(store, make_config("one", "C-10", tasks=2), made.triangle([[50], [50, 60]]))
    plain = made.stored(store, make_config("pgn", "C-10", tasks=2), made.triangle([[70], [70, 80]]))
    chosen = make_config("pgn", "C-10", tasks=2, changes={"drop1": 0.1})
    assert transfer(plain, store.runs())["FWT"] == pytest.approx(20)
    assert transfer(made.stored(store, chosen, made.triangle([[70], [70, 80]])), store.runs())["FWT"] is None
    made.stored(store, chosen.of_method("one"), made.triangle([[60], [60, 70]]))
    assert transfer(StoredRun(tmp_path / chosen.id()), store.runs())["FWT"] == pytest.approx(10)


@pytest.mark.parametrize("sequence", ["C-10", "FE-10"])
def test_the_rates_that_konishi_et_al_published_have_one_name(sequence: str) -> None:
    facts = sequence_facts(sequence)
    rates = {"drop1": facts.drop1, "drop2": facts.drop2}
    assert changes(make_config("pgn", sequence, changes={**rates, "settings.lr": 0.125})) == "dropout=paper lr=0.125"
    assert changes(make_config("spg", sequence, changes=rates)) is None


def test_a_reference_with_other_tasks_does_not_count(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = stored(store, config(), LEARNED)
    stored(store, config("one"), LEARNED, names=("cats", "birds"))
    assert transfer(run, store.runs())["FWT"] is None


def test_unfinished_runs_are_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.open(config()) as writer:
        writer.event("task", task=0, ids=[0], name="cats")
        writer.event("accuracy", after=0, task=0, validation=0.5, test=0.5)
    assert accuracy(store.runs()).rows == []


def test_validation_accuracies_are_not_taken_for_test_accuracies(tmp_path: Path) -> None:
    run = stored(Store(tmp_path), config(), LEARNED)
    assert run.accuracies("test")[1] == {0: pytest.approx(70), 1: pytest.approx(80)}
    assert run.accuracies("validation")[1] == {0: 0.0, 1: 0.0}


def test_the_papers_numbers_stand_beside_whole_sequences_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, config(), LEARNED)
    assert isinstance(row(accuracy(store.runs()), "SPG")["paper ACC"], float)
    part = Store(tmp_path / "part")
    stored(part, config(tasks=2), LEARNED)
    told = row(accuracy(part.runs()), "SPG")
    assert told["sequence"] == "C-10[:2]"
    assert not [name for name in told if name.startswith("paper")]


def test_runs_with_other_networks_or_settings_are_told_apart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, config(), LEARNED)
    stored(store, config(changes={"width": 0.5}), LEARNED)
    stored(store, config(changes={"importance_dropout": False}), LEARNED)
    table = accuracy(store.runs())
    assert sorted(str(row[table.columns.index("changed")]) for row in table.rows) == [
        "None",
        "importance_dropout=False",
        "width=0.5",
    ]


def test_training_is_named_by_the_nearest_preset() -> None:
    assert training_name(Training()) == "paper"
    assert training_name(PRESETS["short"]) == "short"
    assert training_name(Training(epochs=3)) == "paper epochs=3"
    assert changes(config()) is None


def test_what_a_search_found_is_told_in_six_digits() -> None:
    settings = {"network.drop1": 0.01733952105855759, "network.width": 0.5}
    assert changes(make_config("ncl", "D-5", changes=settings)) == "width=0.5 drop1=0.0173395"


def test_transfer_of_some_seeds_alone_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (1, 2, 3):
        stored(store, config(seed=seed), LEARNED)
    stored(store, config("one"), {0: {0: 0.8}, 1: {0: 0.8, 1: 0.8}})
    told = row(accuracy(store.runs()), "SPG")
    assert told["ACC"].footnotes == ()
    assert told["FWT"].footnotes == ("1 of 3 seeds: the others have no run of ONE to compare with.",)


def test_seeds_that_failed_are_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, config(), LEARNED)
    with store.open(config(seed=2)) as writer:
        writer.event("failed", reason="diverged", message="no finite loss")
    assert row(accuracy(store.runs()), "SPG")["ACC"].footnotes == ("1 of 2 seeds: the others failed.",)


def test_the_papers_ablations_stand_beside_ours(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, config("spg-no-chi"), LEARNED)
    told = row(accuracy(store.runs()), "SPG (w/o CHI)")
    assert told["paper ACC"] == paper_value("ablation_accuracy", "SPG (w/o CHI)", "C-10")


@pytest.fixture
def gone(tmp_path: Path) -> Callable[..., RunConfig]:
    """Configs on a folder of images that is gone when the runs are read."""
    pictures = tmp_path / "pictures"
    for kind in ("tame", "wild"):
        (pictures / "cats" / kind).mkdir(parents=True)
        for number in range(20):
            (pictures / "cats" / kind / f"{number}.png").touch()
    return lambda **more: make_config("spg", f"folder:{pictures}", **more)


def test_a_folder_that_grew_is_two_groups(tmp_path: Path, gone: Callable[..., RunConfig]) -> None:
    store = Store(tmp_path / "store")
    for seed, matrix in ((1, LEARNED), (2, {**LEARNED, 2: {0: 0.7, 1: 0.8, 2: 0.9}})):
        stored(store, gone(seed=seed), matrix, names=("cats", "dogs", "birds"))
    shutil.rmtree(tmp_path / "pictures")
    told = [dict(zip(accuracy(store.runs()).columns, found, strict=True)) for found in accuracy(store.runs()).rows]
    assert sorted(each["changed"].split()[-1] for each in told) == ["tasks=2", "tasks=3"]
    cells = accuracy_by_sequence(store.runs())
    assert len(cells.rows) == 2, "neither hides the other"


def test_networks_on_a_folder_that_is_gone_are_told_apart(tmp_path: Path, gone: Callable[..., RunConfig]) -> None:
    store = Store(tmp_path / "store")
    for width in (1.0, 0.5):
        stored(store, gone(changes={"width": width}), LEARNED)
    shutil.rmtree(tmp_path / "pictures")
    assert len({found[3] for found in accuracy(store.runs()).rows}) == 2
    assert len(accuracy_by_sequence(store.runs()).rows) == 2


def at(share: float, tasks: int = 2) -> dict[int, dict[int, float]]:
    return {after: dict.fromkeys(range(after + 1), share) for after in range(tasks)}


@pytest.mark.parametrize(("share", "marked"), [(0.42, True), (0.54, True), (0.75, False)])
def test_accuracy_at_chance_is_marked(tmp_path: Path, share: float, marked: bool) -> None:
    store = Store(tmp_path)
    made.stored(store, make_config("hat", "D-5", tasks=2), at(share))  # two classes in each task
    for table, column in ((accuracy(store.runs()), "ACC"), (accuracy_by_sequence(store.runs()), "D-5[:2]")):
        (value,) = table.frame[column]
        assert value.at_chance is marked
        assert any("chance (50.0 %)" in note for note in value.footnotes) is marked


def test_a_wide_spread_over_seeds_is_noise(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, share in ((1, 0.45), (2, 0.80)):
        made.stored(store, make_config("hat", "D-5", tasks=2, seed=seed), at(share))
    (value,) = accuracy(store.runs()).frame["ACC"]
    assert value.at_chance, "62.5 with a standard error of 17.5"


def test_joint_training_has_the_chance_of_its_tasks(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.open(make_config("mtl", "D-5", tasks=2)) as writer:
        writer.event("task", task=1, ids=[0, 1], name="joint", classes=4, learn_seconds=1.0, end_seconds=0.0)
        for task in (0, 1):
            writer.event("accuracy", after=1, task=task, validation=0.9, test=0.9)
        writer.event("finished")
    (group,) = gathered(store.runs()).groups
    assert chance(group) == 50


def test_the_best_of_each_sequence_is_ranked(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, last in (("one", 0.99), ("ncl", 0.5), ("hat", 0.6), ("spg", 0.7)):
        stored(store, config(method), {0: {0: 0.9}, 1: {0: last, 1: last}})
    ranks = {method: value.rank for method, value in accuracy(store.runs()).frame.set_index("method")["ACC"].items()}
    assert ranks == {"ONE": None, "NCL": None, "HAT": 2, "SPG": 1}


def test_methods_that_keep_old_data_are_ranked_apart_and_come_last(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept = {"settings.per_class": 0}
    for name, given, last in (("ncl", {}, 0.5), ("spg", {}, 0.7), ("a-gem", {}, 0.9), ("a-gem", kept, 0.6)):
        stored(store, config(name, changes=given), {0: {0: 0.9}, 1: {0: last, 1: last}})
    found = made.rows(accuracy(store.runs()))
    told = [(each["method"], each["old data kept"], each["grows with tasks"], each["ACC"].rank) for each in found]
    assert told == [
        ("NCL", None, None, None),
        ("A-GEM", None, None, 2),  # an empty buffer keeps nothing
        ("SPG", None, None, 1),
        ("A-GEM", "13 images a class", "images", None),
    ]
    assert "other data" not in found[0], "nobody uses any"
    by_sequence = made.rows(accuracy_by_sequence(store.runs()))
    assert {each["method"]: each["C-10"].rank for each in by_sequence if not each["changed"]} == {
        "NCL": None,
        "SPG": 1,
        "A-GEM": None,
    }


def test_the_caption_promises_only_what_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "D-5"), LEARNED)
    table = accuracy(store.runs())
    assert "paper" not in table.caption
    assert not any("ONE" in note for note in table.notes), "no FWT without ONE"
    by_sequence = accuracy_by_sequence(store.runs())
    assert not any("paper" in note or "average" in note or "bold" in note for note in by_sequence.notes)
    stored(store, config(), LEARNED)
    assert "paper" in accuracy(store.runs()).caption


def test_published_numbers_of_a_file_stand_beside_ours(tmp_path: Path) -> None:
    file = tmp_path / "smith2024.csv"
    file.write_text("method,sequence,ACC,BWT\nSPG,C-10,71.5,-3\nTheirs,C-10,73.25,\n")
    published = read_published(file)
    store = Store(tmp_path / "store")
    stored(store, config(), LEARNED)
    table = accuracy(store.runs(), published)
    assert row(table, "SPG")["smith2024 ACC"] == 71.5
    theirs = row(table, "Theirs")
    assert (theirs["training"], theirs["ACC"], theirs["smith2024 ACC"]) == ("published", None, 73.25)
    assert "smith2024 FWT" not in table.columns
    (value,) = accuracy_by_sequence(store.runs(), published).frame["C-10"]
    assert (value.paper, value.source) == (71.5, "smith2024")
    assert "smith2024 71.5, +3.5" in cell_text(value)


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "method,sequence,ACC\nSPG,C-10,many\n", "method,sequence\n"])
def test_a_file_without_published_numbers_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "numbers.csv"
    file.write_text(content)
    with pytest.raises(DataError, match=r"numbers\.csv"):
        read_published(file)


def test_a_pipe_as_published_numbers_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "numbers.csv")
    for file in (tmp_path / "numbers.csv", Path("/dev/zero")):
        with pytest.raises(DataError):
            read_published(file)


def test_a_method_that_is_not_installed_is_shown_by_its_name(tmp_path: Path) -> None:
    run = made.stored(Store(tmp_path), make_config("hat", "C-10"), at(0.7))
    vars(run.config).update(method="mine", settings={"strength": 3})
    (told,) = made.rows(accuracy([run]))
    assert (told["method"], told["ACC"].mean) == ("mine", pytest.approx(70))
    assert told["changed"] == "drop1=0.2 drop2=0.5 strength=3"  # its defaults are not known
    page, tables, _ = make_report(Reading(tmp_path, Runs([run])))
    assert "mine" in page
    assert [line[0] for line in tables["accuracy-by-sequence"].rows] == ["mine"]
