"""SPG without cross-head importance: SPG until there is an old head."""

import torch

from tests.methods.comparing import built, learned, same_network


def test_two_tasks_are_those_of_spg_to_the_bit() -> None:
    """The first importance has no old heads, so that only what follows the second task can differ."""
    dry = {"drop1": 0.0, "drop2": 0.0}  # dropout in the importance pass is drawn for each method apart
    assert same_network(learned("spg-no-chi", **dry), learned("spg", **dry))
    assert not same_network(learned("spg-no-chi", tasks=3, **dry), learned("spg", tasks=3, **dry))


def test_importance_is_never_above_that_with_old_heads() -> None:
    dry = {"drop1": 0.0, "drop2": 0.0}
    ours, spg = learned("spg-no-chi", **dry).mask, learned("spg", **dry).mask
    assert all((ours.importance[name] <= spg.importance[name]).all() for name in spg.importance)
    assert any(not torch.equal(ours.importance[name], spg.importance[name]) for name in spg.importance)


def test_old_heads_take_no_part() -> None:
    method, tasks = built("spg-no-chi")
    assert method.measure(tasks[1]).cross == {}
