"""Claims: judged on the paper's own numbers, on numbers made up to hold or not, and on a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from softmask.experiments.paper.checks import above, close, on_average, positive, within
from softmask.experiments.paper.claims import CLAIMS, Claim
from softmask.experiments.paper.evidence import Numbers, paper_numbers, store_numbers
from softmask.experiments.paper.verdicts import HELD, NO_DATA, NOT_HELD, claims, judge
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store
from tests.experiments.analyses.made import row, stored, triangle
from tests.experiments.runs.examples import environment

# Claims that the paper's tables themselves do not bear out, to the letter.
NOT_IN_THE_PAPERS_TABLES = {
    "spg-forward-outweighs": "SPG C-20 75.9, ONE 76.5",
    "importance-matters-less": "EWC-GI FC-10 83.4, EWC 81.2",
    "spg-best-forward": "SPG C-10 5.5, SI 7.5",
    "pruned-to-chance": "FE-10 20.7, chance 1.6",
}
ONLY_DRAWN = {"isolation-loses-transfer", "spg-gains-transfer", "spg-features", "hat-features"}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_on_the_papers_numbers(claim: Claim) -> None:
    found = judge(claim, paper_numbers())
    if claim.name in ONLY_DRAWN:
        assert found.word == NO_DATA
    elif claim.name in NOT_IN_THE_PAPERS_TABLES:
        assert found.word == NOT_HELD
        assert NOT_IN_THE_PAPERS_TABLES[claim.name] in found.numbers()
    else:
        assert found.word == HELD


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_every_claim_can_fail(claim: Claim) -> None:
    """The paper's numbers with the signs of everything turned round, and curves that say the opposite."""
    turned = {key: -value for key, value in paper_numbers().known.items()}
    for title in ("NCL", "HAT", "WSN", "SPG", "PGN"):
        turned["slope", title, "C-10"] = -1.0 if title == "SPG" else 1.0
        for learned in range(4):
            turned["representation", title, "C-10", str(learned)] = 1.0 if title == "SPG" else 2.0 + learned
    # Claims that something is small do not mind a sign: they are given what is large.
    if claim.name in {"importance-matters-less", "chi-harmless", "isolation-forgets-nothing", "pruned-to-chance"}:
        turned = {key: 30.0 * len(key[1]) for key in turned}
    assert judge(claim, Numbers(turned)).word == NOT_HELD


def test_claims_have_names_of_their_own_and_need_numbers() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert all(judge(claim, Numbers({})).word == NO_DATA for claim in CLAIMS)


def test_comparisons() -> None:
    numbers = Numbers({("ACC", "a", "C-10"): 70.04, ("ACC", "b", "C-10"): 70.0, ("ACC", "c", "C-10"): 60.0})
    holds = [finding.holds for finding in above("ACC", ("b",), ("a", "c", "missing"), ("C-10",))(numbers)]
    assert holds == [True, True], "equal as printed is enough; what is missing is not compared"
    assert not above("ACC", ("a",), ("b",), ("C-10",), 0.5)(numbers)[0].holds
    assert above("ACC", ("a",), ("c",), ("C-10",), 5.0)(numbers)[0].holds
    assert [f.holds for f in within("ACC", ("a", "c"), ("C-10",), 65, 75)(numbers)] == [True, False]
    assert [f.holds for f in close("ACC", (("a", "b"), ("a", "c")), ("C-10",), 1)(numbers)] == [True, False]
    assert on_average("ACC", ("a",), ("c",), ("C-10", "C-20"))(numbers) == [], "one sequence is no average"


def test_a_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, last in (("one", 66.0), ("ncl", 40.0), ("hat", 80.0), ("spg", 70.0)):
        first = 90.0 if method != "hat" else last
        stored(store, make_config(method, "C-10", preset="short"), triangle([[first], [last, last]]))
    table = claims(store.runs())
    assert row(table, name="ncl-forgets")["verdict"] == f"{HELD} so far"  # from 90 to 40, with one seed
    assert row(table, name="ncl-forgets")["seeds"] == 1
    assert row(table, name="isolation-forgets-nothing")["comparisons"] == "1 of 1"
    assert row(table, name="spg-forward-outweighs")["verdict"] == f"{HELD} so far"  # 70 above ONE's 66
    failed = row(table, name="spg-best-in-most")
    assert (failed["verdict"], failed["numbers"]) == (f"{NOT_HELD} so far", "SPG is best on 0 of 1 sequences")
    assert row(table, name="spg-best-similar")["verdict"] == NO_DATA
    assert {line[2] for line in table.rows if line[3] != NO_DATA} == {"short"}


def test_parts_of_sequences_and_other_data_do_not_count(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10", tasks=2), triangle([[90], [70, 70]]))
    stored(store, make_config("spg", "D-5"), triangle([[90], [70, 70]]))
    assert store_numbers(store.runs()) == {}


def test_three_seeds_are_enough_and_the_fewest_count(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (1, 2, 3):
        stored(store, make_config("spg", "C-10", seed=seed), triangle([[90], [70, 70]]))
        if seed < 3:
            stored(store, make_config("ewc", "C-10", seed=seed), triangle([[90], [60, 60]]))
    table = claims(store.runs())
    assert (row(table, name="spg-forgets-little")["seeds"], row(table, name="penalties-forget")["seeds"]) == (3, 2)


def test_the_seeds_of_a_number_are_those_that_have_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (1, 2, 3):
        stored(store, make_config("spg", "C-10", seed=seed), triangle([[90], [70, 70]]))
    stored(store, make_config("one", "C-10", seed=1), triangle([[66], [66, 66]]))
    table = claims(store.runs())
    assert row(table, name="spg-forgets-little")["seeds"] == 3
    forward = row(table, name="spg-forward-outweighs")  # only one of them has a reference
    assert (forward["verdict"], forward["seeds"]) == (f"{HELD} so far", 1)


def test_of_our_own_numbers_equal_is_not_more() -> None:
    numbers = {("ACC", "a", "C-10"): 70.0, ("ACC", "b", "C-10"): 70.0, ("ACC", "c", "C-10"): 69.99}
    for printed, expected in ((True, [True, True]), (False, [False, True])):
        found = above("ACC", ("a",), ("b", "c"), ("C-10",))(Numbers(numbers, printed=printed))
        assert [finding.holds for finding in found] == expected


def test_features_are_compared_on_the_papers_pairs_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for method, test in (("spg", 0.32), ("hat", 0.12)):
        config = make_config(method, "C-10")
        stored(store, config, triangle([[90], [70, 70]]), ended=None)
        with store.open(config) as writer:
            for onto, union, reached in (("T-10", False, test), ("T-10", True, 0.5), ("T-20", False, 0.6)):
                writer.event("representation", onto=onto, union=union, learned=1, classes=2, test=reached)
            writer.event("finished")
    (numbers,) = store_numbers(store.runs()).values()
    assert [numbers.get("representation", title, "C-10", "1") for title in ("SPG", "HAT")] == [32.0, 12.0]


def test_another_width_is_another_network(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10", changes={"width": 0.5}), triangle([[90], [70, 70]]))
    assert store_numbers(store.runs()) == {}


def test_one_seed_set_otherwise_does_not_displace_three(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (1, 2, 3):
        for method, reached in (("spg", 70.0), ("hat", 60.0)):
            config = make_config(method, "C-10", seed=seed)
            stored(store, config, triangle([[90], [reached, reached]]), validation=0.6)
    lucky = make_config("spg", "C-10", changes={"drop1": 0.1})
    stored(store, lucky, triangle([[90], [10, 10]]), validation=0.9)
    found = row(claims(store.runs()), name="spg-best-in-most")
    assert (found["verdict"], found["seeds"]) == (HELD, 3)


def test_another_width_does_not_hide_the_papers(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10"), triangle([[90], [70, 70]]), validation=0.5)
    stored(store, make_config("spg", "C-10", changes={"width": 2.0}), triangle([[90], [80, 80]]), validation=0.9)
    (numbers,) = store_numbers(store.runs()).values()
    assert numbers.get("ACC", "SPG", "C-10") == pytest.approx(70)


def test_only_what_was_compared_counts_for_the_seeds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (1, 2, 3):
        for method, reached in (("spg", 70.0), ("hat", 60.0)):
            stored(store, make_config(method, "FE-10", seed=seed), triangle([[90], [reached, reached]]))
    stored(store, make_config("spg", "FE-20"), triangle([[90], [70, 70]]))  # alone there
    found = row(claims(store.runs()), name="spg-best-similar")
    assert (found["verdict"], found["seeds"]) == (HELD, 3)


def test_seeds_that_failed_leave_it_open(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (1, 2, 3, 4):
        ended = "finished" if seed < 4 else "failed"
        stored(store, make_config("ncl", "C-10", seed=seed), triangle([[90], [40, 40]]), ended=ended)
    found = row(claims(store.runs()), name="ncl-forgets")
    assert (found["verdict"], found["seeds"]) == (f"{HELD} so far", 3)


def test_of_our_own_slopes_next_to_nothing_has_a_sign() -> None:
    for value, rises in ((-0.004, False), (0.0, False), (0.004, True)):
        numbers = Numbers({("slope", "SPG", "C-10"): value}, printed=False)
        (finding,) = positive("slope", ("SPG",), ("C-10",))(numbers)
        assert finding.holds is rises
        (finding,) = positive("slope", ("SPG",), ("C-10",), sign=-1)(numbers)
        assert finding.holds is (value < 0)
    (printed,) = positive("FWT", ("SPG",), ("C-10",))(Numbers({("FWT", "SPG", "C-10"): 0.0}))
    assert printed.holds, "zero in the paper may have been more"


def test_without_data_the_missing_runs_are_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "D-5"), triangle([[90], [70, 70]]))
    table = claims(store.runs())
    assert len(table.rows) == len(CLAIMS)
    assert set(table.frame["verdict"]) <= {NO_DATA, HELD}
    assert "SPG on I-100" in row(table, name="i100-over-wsn")["numbers"].replace("WSN, ", "")
    stored(store, make_config("spg", "FE-10"), triangle([[90], [70, 70]]))
    assert "SupSup" in row(claims(store.runs()), name="supsup-far-below")["numbers"]


@pytest.mark.parametrize("module", ["checks", "verdicts"])
def test_a_module_of_the_paper_can_be_the_first_import(module: str) -> None:
    """The table of analyses has the claims, and these are judged by the analyses."""
    program = f"import softmask.experiments.paper.{module}"
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True)
