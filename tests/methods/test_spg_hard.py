"""SPG with a hard mask: the chain of equalities that ties the family to NCL."""

import pytest
import torch

from softmask.methods.spg_hard import SPGHard
from tests.methods.comparing import built, learned, network, same_network


def test_a_threshold_of_one_blocks_nothing_and_is_ncl_to_the_bit() -> None:
    """Three tasks, so that masks, heads and importance all had their chance to differ."""
    assert same_network(learned("spg-hard", tasks=3, threshold=1.0), learned("ncl", tasks=3))


def test_a_threshold_of_zero_blocks_whatever_has_importance_after_the_first_task() -> None:
    """The backbone, and through its mean the head too."""
    after_one, after_two = (network(learned("spg-hard", tasks=tasks, threshold=0.0)) for tasks in (1, 2))
    assert all(torch.equal(after_two[name], after_one[name]) for name in after_one)
    initial = network(built("spg-hard", threshold=0.0)[0])
    assert not torch.equal(after_one["backbone.fc1.layer.weight"], initial["backbone.fc1.layer.weight"])
    assert all(torch.equal(after_two[name], initial[name]) for name in ("heads.1.weight", "heads.1.bias"))


def masked(threshold: float, importances: list[torch.Tensor], **changes: str) -> SPGHard:
    method, _ = built("spg-hard", threshold=threshold, **changes)
    name = "fc1.layer.bias"
    for importance in importances:
        method.mask.update({name: importance})
    return method


def test_the_threshold_itself_is_not_blocked() -> None:
    size = built("spg-hard")[0].mask.importance["fc1.layer.bias"].numel()
    importance = torch.full((size,), 0.5)
    importance[0] = 0.5000001
    method = masked(0.5, [importance])
    keep = method.update_scale()[method.backbone.fc1.layer.bias]
    assert keep[0] == 0
    assert (keep[1:] == 1).all()


def test_thresholding_and_maximum_may_change_places() -> None:
    size = built("spg-hard")[0].mask.importance["fc1.layer.bias"].numel()
    torch.manual_seed(0)
    importances = [torch.rand(size) for _ in range(3)]
    method = masked(0.6, importances)
    each = torch.stack([(importance > 0.6).float() for importance in importances]).amax(0)
    assert torch.equal(1 - method.update_scale()[method.backbone.fc1.layer.bias], each)


def test_what_is_remembered_stays_soft() -> None:
    method = learned("spg-hard")
    values = torch.cat([tensor.flatten() for tensor in method.mask.importance.values()])
    assert ((values > 0.01) & (values < 0.99)).any()


def test_the_head_factor_is_the_free_share_or_on_request_soft() -> None:
    size = built("spg-hard")[0].mask.importance["fc1.layer.bias"].numel()
    importance = torch.full((size,), 0.7)
    entries = sum(tensor.numel() for tensor in built("spg-hard")[0].mask.importance.values())
    binary, soft = (masked(0.6, [importance], head_factor=which) for which in ("binary", "soft"))
    assert binary.head_factor() == pytest.approx(1 - size / entries)
    assert soft.head_factor() == pytest.approx(1 - 0.7 * size / entries)


def test_blocked_shares_count_what_the_threshold_blocks() -> None:
    method, tasks = built("spg-hard", threshold=0.0)
    assert method.end_task(tasks[0])["blocked"]["whole network"] == 1.0
