"""The table of network sizes: exact counts against the paper, and formulas against what is built."""

import json

import pytest
import torch
from typer.testing import CliRunner

from softmask.cli.analyse import app
from softmask.experiments.analyses.cost import agrees, network_size, paper_scenario
from softmask.experiments.analyses.table import Table
from softmask.experiments.paper import paper_tables, paper_value
from softmask.learning.method import Method
from softmask.learning.registry import METHODS, Entry
from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.methods.cat import CAT, Readout, Reference

SEQUENCES = ("C-10", "C-20", "T-10", "T-20", "I-100", "FC-10", "FC-20", "FE-10", "FE-20")
PLAIN = (6_708_772, 6_708_772, 6_913_672, 6_913_672, 8_552_872, 6_544_852, 6_585_832, 7_730_796, 9_001_176)
EXACT = {
    "ncl": PLAIN,
    "one": PLAIN,
    "spg": PLAIN,
    "hat": (6_754_212, 6_799_652, 6_959_112, 7_004_552, 9_007_272, 6_590_292, 6_676_712, 7_776_236, 9_092_056),
    "wsn": (6_704_128, 6_704_128, 6_908_928, 6_908_928, 8_547_328, 6_540_288, 6_581_248, 7_725_632, 8_995_392),
    "pgn": (6_680_170, 6_663_283, 6_723_110, 6_686_293, 8_257_170, 6_023_597, 6_649_477, 7_486_457, 8_905_629),
    "pathnet": (6_578_020, 6_821_212, 6_712_424, 6_629_320, 8_433_248, 6_429_288, 6_398_768, 7_782_132, 8_740_368),
    "cat": (39_541_612, 39_653_972, 40_801_912, 40_915_272, 52_696_552, 38_547_772, 38_906_792, 46_226_660, 55_131_480),
}
WIDER_THAN_PAPER = {("wsn", "T-10"), ("wsn", "T-20"), ("wsn", "FC-20"), ("wsn", "FE-20")}
SMALL = Scenario((3, 32, 32), (3, 5, 2), NetworkConfig(width=1 / 16))


@pytest.mark.parametrize("name", EXACT)
def test_exact_counts(name: str) -> None:
    method = METHODS.load(name)
    assert tuple(method.learnable(paper_scenario(sequence)) for sequence in SEQUENCES) == EXACT[name]


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_supermasks_have_a_score_for_each_weight_and_task(sequence: str) -> None:
    scenario = paper_scenario(sequence)
    weights = 6_499_328 if scenario.input_shape[0] == 3 else 6_455_872
    expected = scenario.num_tasks * weights + 2048 * sum(scenario.classes)
    assert METHODS.load("supsup").learnable(scenario) == expected


@pytest.mark.parametrize("name", [*EXACT, "supsup"])
def test_every_cell_agrees_with_the_paper_but_four(name: str) -> None:
    method = METHODS.load(name)
    for sequence in SEQUENCES:
        paper = paper_value("network_size_millions", method.title, sequence)
        agreeing = agrees(method.learnable(paper_scenario(sequence)), paper)
        assert agreeing == ((name, sequence) not in WIDER_THAN_PAPER), sequence


@pytest.mark.parametrize("name", ["ncl", "hat", "pgn", "pathnet", "spg"])
def test_counts_are_those_of_a_method_that_is_really_built(name: str) -> None:
    method: Method = METHODS.load(name)(SMALL)
    assert METHODS.load(name).learnable(SMALL) == sum(p.numel() for p in method.parameters())


def test_what_is_not_counted_or_counted_again() -> None:
    """By modules that are really built, at a small width and with tasks of different sizes."""
    wsn, supsup = METHODS.load("wsn")(SMALL), METHODS.load("supsup")(SMALL)
    scores = sum(p.numel() for p in wsn.scores.parameters())
    assert METHODS.load("wsn").learnable(SMALL) == sum(p.numel() for p in wsn.parameters()) - scores
    per_task = sum(scores.numel() for name, scores in supsup.scores.items() if name != "head")
    assert METHODS.load("supsup").learnable(SMALL) == 3 * per_task + 128 * (3 + 5 + 2)
    cat = CAT(SMALL)
    references = [Reference(Scenario(SMALL.input_shape, (n,), SMALL.network)) for n in SMALL.classes]
    backbone = sum(p.numel() for p in references[0].backbone.parameters())
    heads = sum(p.numel() for reference in references for p in reference.heads[0][0].parameters())
    readouts = [Readout(Scenario((k, 1, 1), (n,))) for k in SMALL.classes for n in SMALL.classes]
    built = sum(p.numel() for module in (cat, *readouts) for p in module.parameters())
    assert CAT.used_parameters(SMALL) == built + backbone + heads
    assert CAT.used_parameters(paper_scenario("C-10")) == 38_881_572


def test_counting_needs_no_memory_and_disturbs_no_draws() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert METHODS.load("supsup").learnable(paper_scenario("I-100")) > 6e8
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("count", "millions", "right"), [(6_750_001, 6.8, True), (6_749_999, 6.8, False)])
def test_agreement_is_judged_at_the_papers_rounding(count: int, millions: float, right: bool) -> None:
    assert agrees(count, millions) == right
    assert agrees(count, None)


def test_the_verb_shows_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("Learnable parameters", ("method", "C-10"), [("HAT", 6_754_212)], ("a note",))
    monkeypatch.setattr("softmask.experiments.analyses.cost.network_size", lambda methods: table)
    for form in ("text", "markdown", "json"):
        shown = CliRunner().invoke(app, ["network-size", "--format", form])
        assert shown.exit_code == 0
    assert json.loads(shown.stdout)["rows"]
    assert CliRunner().invoke(app, ["network-size", "--format", "yaml"]).exit_code == 2


@pytest.mark.slow
def test_the_table_has_all_methods_and_says_what_differs() -> None:
    table = network_size()
    assert table.columns[2:] == SEQUENCES
    ours = {row[0] for row in table.rows if row[1] == "parameters"}
    assert ours == {METHODS.load(name).title for name in METHODS.names()}
    assert {row[0] for row in table.rows if row[1] != "parameters"} <= set(paper_tables()["network_size_millions"])
    differing = [note for note in table.notes if "differs" in note]
    assert len(differing) == 1
    assert differing[0].startswith("WSN differs from the paper on T-10, T-20, FC-20, FE-20: ")
    assert any("38,881,572" in note for note in table.notes)


class LooksAtNumbers(Method):
    title = "looks"

    def build(self) -> None:
        super().build()
        self.start = next(self.backbone.parameters()).mean().item()


def test_one_that_cannot_be_counted_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    METHODS.names()
    monkeypatch.setitem(METHODS._entries, "looks", Entry("looks", LooksAtNumbers))
    table = network_size(["looks", "ncl"])
    assert {line[0] for line in table.rows} == {"NCL"}
    assert any("looks cannot be counted" in note for note in table.notes)
