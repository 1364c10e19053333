"""The controls of SPG: as much protection as in SPG, but not where SPG puts it."""

import pytest
import torch

from tests.methods.comparing import built, learned, same_network


def with_importance(name: str, seed: int = 1):
    method, _ = built(name, batches=seed)
    generator = torch.Generator().manual_seed(0)
    found = {key: torch.rand(p.shape, generator=generator) for key, p in method.mask.parameters().items()}
    method.mask.update(found)
    return method


def test_uniform_slows_every_parameter_of_a_tensor_by_the_mean() -> None:
    method, spg = with_importance("spg-uniform"), with_importance("spg")
    scales = dict(zip(spg.backbone.parameters(), method.backbone.parameters(), strict=True))
    for theirs, ours in scales.items():
        slow = method.update_scale()[ours]
        assert isinstance(slow, float)
        assert slow == pytest.approx(spg.update_scale()[theirs].mean().item(), abs=1e-6)
    heads = {method.update_scale()[p] for p in method.heads.parameters()}
    assert heads == {spg.update_scale()[p] for p in spg.heads.parameters()}


def test_shuffled_has_the_same_values_in_another_order() -> None:
    method, spg = with_importance("spg-shuffled"), with_importance("spg")
    for theirs, ours in zip(spg.backbone.parameters(), method.backbone.parameters(), strict=True):
        before, after = spg.update_scale()[theirs], method.update_scale()[ours]
        assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)
        assert before.numel() < 8 or not torch.equal(before, after)


def test_the_permutation_stays_from_task_to_task_and_follows_the_seed() -> None:
    first, again, other = (with_importance("spg-shuffled", seed) for seed in (1, 1, 2))
    weights = [method.backbone.fc1.layer.weight for method in (first, again, other)]
    scales = [method.update_scale()[w] for method, w in zip((first, again, other), weights, strict=True)]
    assert torch.equal(scales[0], scales[1])
    assert not torch.equal(scales[0], scales[2])
    first.mask.update({key: torch.full_like(p, 0.5) for key, p in first.mask.parameters().items()})
    later = first.update_scale()[weights[0]]
    assert (later <= scales[0]).all(), "a parameter that was protected stays protected"


@pytest.mark.parametrize("name", ["spg-uniform", "spg-shuffled"])
def test_first_task_is_ncl_to_the_bit_and_the_second_not_spg(name: str) -> None:
    assert same_network(learned(name, tasks=1), learned("ncl", tasks=1))
    dry = {"drop1": 0.0, "drop2": 0.0}
    assert not same_network(learned(name, **dry), learned("spg", **dry))
