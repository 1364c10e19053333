"""SPG+: SPG, LwF and NCL are its corners, to the bit; in between the mask has a factor and answers are kept."""

import torch

from softmask.learning.method import Method
from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.methods.spg_plus import SPGPlus
from tests.methods.comparing import built, learned, same_network


def plus(tasks: int = 3, **settings: float) -> Method:
    """At the training's learning rate, which is that of SPG."""
    return learned("spg-plus", tasks=tasks, **{"settings.lr": None, "temperature": 2.0, **settings})


def test_its_corners_are_spg_ncl_and_lwf_to_the_bit() -> None:
    spg, ncl = (learned(name, tasks=3) for name in ("spg", "ncl"))
    lwf = learned("lwf", tasks=3, **{"settings.lr": None})
    assert same_network(plus(answers=0.0, mask=1.0), spg)
    assert same_network(plus(answers=0.0, mask=0.0), ncl)
    assert same_network(plus(answers=1.0, mask=0.0), lwf)
    both = plus(answers=1.0, mask=0.5)
    assert not any(same_network(both, other) for other in (spg, ncl, lwf))


def test_the_corner_of_spg_measures_importance_under_the_same_draws_of_dropout() -> None:
    """Dropout is on while importance is measured: draws of its own would give another importance."""
    changes = {"network.drop1": 0.2, "network.drop2": 0.5}
    spg = learned("spg", **changes)
    same = plus(tasks=2, answers=0.0, mask=1.0, **changes)
    assert all(torch.equal(same.mask.importance[name], tensor) for name, tensor in spg.mask.importance.items())
    assert same_network(same, spg)


def test_golden_factors() -> None:
    """Importance 0.4 and mask 0.5: parameters move by 0.8 of their update, and so does the head."""
    scenario = Scenario((1, 28, 28), (2, 2), NetworkConfig(width=1 / 16))
    method = SPGPlus(scenario, SPGPlus.Settings(mask=0.5))
    method.mask.update({name: torch.full_like(p, 0.4) for name, p in method.mask.parameters().items()})
    scales = method.update_scale()
    for parameter in method.backbone.parameters():
        torch.testing.assert_close(scales[parameter], torch.full_like(parameter, 0.8))
    assert all(abs(scales[parameter] - 0.8) < 1e-6 for parameter in method.heads.parameters())


def test_without_a_mask_no_importance_is_measured() -> None:
    method, tasks = built("spg-plus", mask=0.0)
    method.begin_task(tasks[0])
    assert method.end_task(tasks[0]) == {}
    assert method.mask.mean() == 0


def test_it_stays_within_the_budget_of_spg() -> None:
    """Between tasks it keeps what SPG keeps: nothing grows with the tasks but the heads."""
    spg, own = learned("spg"), plus(tasks=2, mask=0.5)
    assert own.state_dict().keys() == spg.state_dict().keys()
    assert own.mask.state_dict()["importance"].keys() == spg.mask.state_dict()["importance"].keys()
    assert SPGPlus.cost(own.scenario).kept_copies <= 3
