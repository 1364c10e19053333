"""Small facts about importance that are kept with a run."""

import pytest
import torch

from softmask.learning.capacity import cross_head_facts, widest
from softmask.learning.method import Method
from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.methods.pathnet import PathNet, modular_parameters
from softmask.methods.pgn import PGN, progressive_parameters


def test_facts_about_old_heads_by_hand() -> None:
    own, cross, before = (
        {"a": torch.tensor(values[:3]), "b": torch.tensor(values[3:])}
        for values in ([0.5, 0.2, 0.9, 0.0], [0.7, 0.1, 0.9, 0.4], [0.6, 0.3, 0.95, 0.5])
    )
    facts = cross_head_facts(own, cross, before)
    assert facts == pytest.approx({"F-each": 0.5, "G-each": 0.3, "F-total": 0.25, "G-total": 0.1}, abs=1e-6)
    assert cross_head_facts(own, {}, before) == {}


SMALL = Scenario((3, 32, 32), (3, 5, 2, 2), NetworkConfig(width=1 / 4))
GREY = Scenario((1, 28, 28), (2,) * 6, NetworkConfig(width=1 / 8))


@pytest.mark.parametrize("scenario", [SMALL, GREY])
@pytest.mark.parametrize("expansion", [0.5, 1.0, 1.35])
def test_progressive_formula_counts_what_is_built(scenario: Scenario, expansion: float) -> None:
    with torch.device("meta"):
        built = PGN(scenario, PGN.Settings(expansion=expansion))
    assert progressive_parameters(scenario, expansion / scenario.num_tasks) == sum(
        p.numel() for p in built.parameters()
    )


@pytest.mark.parametrize("scenario", [SMALL, GREY])
def test_modular_formula_counts_what_is_built(scenario: Scenario) -> None:
    with torch.device("meta"):
        built = PathNet(scenario, PathNet.Settings(width=0.3, modules=10))
    assert modular_parameters(scenario, 0.3, 10) == sum(p.numel() for p in built.parameters())


def test_widest_takes_the_last_that_fits() -> None:
    plain = Method.learnable(SMALL)
    assert widest(SMALL, [0.1, 0.2, 0.3, 0.4], lambda scenario, scale: round(plain * scale / 0.31)) == 0.3
    assert widest(SMALL, [0.1, 0.2], lambda scenario, scale: 10**9) == 0.1  # never empty-handed
