"""SPG-FI: EWC's Fisher, squashed, in SPG's mask."""

import pytest
import torch

from softmask.methods.spg_fi import SPGFI, squashed
from tests.core.examples import linear
from tests.core.test_importance import FISHER_X, FISHER_Y, GOLDEN_A_HEAD
from tests.learning.toys import random_scenario, random_task, toy_scenario, toy_task
from tests.methods.comparing import built, learned, same_network


def test_golden_squashing() -> None:
    found = squashed(torch.tensor([0.0, 0.0, 0.0, 4.0]), "standardise")
    torch.testing.assert_close(found, torch.tensor([0.462117, 0.462117, 0.462117, 0.905148]), rtol=0, atol=1e-6)
    # Two values are standardised to the same whatever they are; three show that it is F, not its root.
    fisher = torch.tensor([0.0, 1.0, 4.0])
    torch.testing.assert_close(squashed(fisher, "standardise"), ((fisher - fisher.mean()) / fisher.std()).tanh().abs())


def test_defaults_are_those_of_ewc_and_spg() -> None:
    settings = SPGFI.Settings()
    assert (settings.fisher_batch, settings.importance_dropout, settings.squashing) == (20, True, "standardise")


@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_is_on_while_the_fisher_is_measured(dropout: bool) -> None:
    found = []
    for seed in (1, 2):
        method, (task,) = built("spg-fi", tasks=1, importance_dropout=dropout, **{"seeds.batches": seed})
        found.append(method.measure(task).own["fc1.layer.weight"])
    assert torch.equal(*found) != dropout


@pytest.mark.parametrize("how", ["standardise", "maximum", "spread"])
def test_a_fisher_without_spread_gives_zero(how: str) -> None:
    assert squashed(torch.full((4,), 3.0), how).tolist() == [0.0] * 4
    assert squashed(torch.tensor([2.0]), how).tolist() == [0.0]


def test_the_other_squashings() -> None:
    fisher = torch.tensor([0.0, 1.0, 4.0])
    torch.testing.assert_close(squashed(fisher, "maximum"), fisher / 4)
    torch.testing.assert_close(squashed(fisher, "spread"), torch.tanh(fisher / fisher.std()))


def test_the_fisher_is_that_of_ewc() -> None:
    """Entries of the golden Fisher are equal in each tensor: the guard gives zero, raw values would not."""
    scenario = toy_scenario([linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])], [linear(GOLDEN_A_HEAD)])
    method, seen = SPGFI(scenario, SPGFI.Settings(fisher_batch=2)), []
    original = squashed

    def spy(fisher: torch.Tensor, how: str) -> torch.Tensor:
        seen.append(fisher)
        return original(fisher, how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softmask.methods.spg_fi.squashed", spy)
        method.end_task(toy_task(FISHER_X, FISHER_Y))
    torch.testing.assert_close(seen[0], torch.full((2, 2), 2.125))
    torch.testing.assert_close(seen[1], torch.full((2,), 0.5))
    assert method.mask.mean() == 0


def test_first_task_is_ncl_to_the_bit() -> None:
    assert same_network(learned("spg-fi", tasks=1), learned("ncl", tasks=1))
    assert not same_network(learned("spg-fi"), learned("ncl"))


def test_masks_lie_in_range_and_accumulate_by_maximum() -> None:
    after_one, after_two = (learned("spg-fi", tasks=tasks) for tasks in (1, 2))
    once, twice = after_one.mask, after_two.mask
    for name, importance in twice.importance.items():
        assert importance.min() >= 0
        assert importance.max() <= 1
        assert (importance >= once.importance[name]).all()
    assert 0 < 1 - twice.mean() < 1
    assert {after_two.update_scale()[p] for p in after_two.heads.parameters()} == {1 - twice.mean()}


def test_old_heads_have_no_fisher() -> None:
    """It needs labels, and they have none for new data."""
    assert SPGFI(random_scenario(tasks=3)).measure(random_task(2)).cross == {}
