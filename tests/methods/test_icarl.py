"""iCaRL: herding by hand, shared exemplars, the nearest mean within the task, and NCL and LwF as its corners."""

from typing import Any

import pytest
import torch
from torch import nn

from softmask.learning.method import Step
from softmask.methods.icarl import ICaRL, herded
from tests.learning.toys import toy_scenario, toy_task
from tests.methods.comparing import learned, same_network
from tests.methods.replaying import linear


def test_golden_herding() -> None:
    """The mean is 3.25: first 2; then 1, since (2 + 1) / 2 is nearer than with 0 or 10; then 10, which 0 is not."""
    features = torch.tensor([[0.0], [1.0], [2.0], [10.0]])
    assert herded(features, 4).tolist() == [2, 1, 3, 0]
    assert herded(features, 2).tolist() == [2, 1]
    assert herded(features, 9).tolist() == [2, 1, 3, 0], "nobody is chosen twice"
    assert herded(features, 0).tolist() == []


PLANE = [[3.0, 0.0], [2.0, 0.1], [0.0, 5.0], [0.1, 1.0]]
"""Two classes by their direction; those of the first are longer."""


def plane_task(index: int, turned: bool = False):
    x = torch.tensor(PLANE).flip(1) if turned else torch.tensor(PLANE)
    return toy_task(x.view(4, 1, 1, 2), torch.tensor([0, 0, 1, 1]), index=index, size=4)


def plane(**settings: float) -> ICaRL:
    """The features are the image; no head has an opinion, so that only means can tell classes apart."""
    backbone = nn.Linear(2, 2, bias=False)
    nn.init.eye_(backbone.weight)
    scenario = toy_scenario([nn.Flatten(), backbone], [linear([0.0, 0.0], [0.0, 0.0]) for _ in range(3)])
    return ICaRL(scenario, ICaRL.Settings(**settings)).eval()


def learn(method: ICaRL, *tasks: Any) -> ICaRL:
    for task in tasks:
        method.begin_task(task)
        method.end_task(task)
    return method


def test_the_nearest_mean_decides_among_the_classes_of_the_task_alone() -> None:
    """By direction: both features have norm 1. The second task's labels are the other way round."""
    method = learn(plane(budget=8), plane_task(0), plane_task(1, turned=True))
    x = torch.tensor([[0.2, 0.1], [7.0, 9.0]]).view(2, 1, 1, 2)
    assert method(x, 0).argmax(1).tolist() == [0, 1]
    assert method(x, 1).argmax(1).tolist() == [1, 0]
    assert method(x, 0).shape == (2, 2)
    assert method(x, 2).tolist() == [[0, 0], [0, 0]], "a task that is not learned yet answers by its head"


def test_golden_mean() -> None:
    """Exemplars (3, 0) and (2, 0.1) become (1, 0) and (0.998752, 0.049938); so does their mean."""
    method = learn(plane(budget=8), plane_task(0))
    torch.testing.assert_close(method.means[0], torch.tensor([0.999688, 0.024977]), rtol=0, atol=1e-5)


def test_the_budget_is_shared_and_the_best_exemplars_stay() -> None:
    method = learn(plane(budget=4), plane_task(0))
    first = [method.memory.images[method.memory.members(0, label)[0]].clone() for label in (0, 1)]
    assert len(method.memory) == 4
    learn(method, plane_task(1, turned=True))
    assert len(method.memory) == 4
    assert sorted(zip(method.memory.tasks.tolist(), method.memory.labels.tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    for label in (0, 1):
        assert torch.equal(method.memory.images[method.memory.members(0, label)[0]], first[label])


def test_too_small_a_budget_leaves_the_heads_to_answer() -> None:
    method = learn(plane(budget=3), plane_task(0))
    assert method.known.tolist() == [True, False, False]
    learn(method, plane_task(1))
    assert not method.known.any()
    assert len(method.memory) == 0


def test_means_follow_the_network() -> None:
    method = learn(plane(budget=8), plane_task(0))
    with torch.no_grad():
        method.backbone[1].weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    learn(method, plane_task(1))
    torch.testing.assert_close(method.means[0], torch.tensor([0.024977, 0.999688]), rtol=0, atol=1e-5)
    x = torch.tensor([[7.0, 0.5]]).view(1, 1, 1, 2)
    assert method(x, 0).argmax(1).tolist() == [0]


def test_exemplars_join_the_loss_on_their_own_head_and_old_heads_stay() -> None:
    """All four exemplars join the batch of four. The old head is wrong about all of them, by a large margin."""
    method = learn(plane(budget=8), plane_task(0))
    with torch.no_grad():
        method.heads[0].weight.copy_(torch.tensor([[0.0, 0.0], [0.0, 0.0]]))
        method.heads[0].bias.copy_(torch.tensor([-1.0, 1.0]))
    task = plane_task(1)
    method.begin_task(task)
    step = Step(task, *next(iter(task.train)))
    # ln 2 for the batch; ln(1 + e^2) = 2.126928 and ln(1 + e^-2) = 0.126928 for two exemplars each.
    wanted = (4 * 0.693147 + 2 * 2.126928 + 2 * 0.126928) / 8
    torch.testing.assert_close(method.loss(step), torch.tensor(wanted), rtol=0, atol=1e-5)
    method.loss(step).backward()
    assert method.heads[0].weight.grad is None


@pytest.mark.parametrize("temperature", [2.0, 3.0])
def test_its_corners_are_ncl_and_lwf_to_the_bit(temperature: float) -> None:
    rate: dict[str, Any] = {"settings.lr": None, "temperature": temperature}
    lwf = learned("lwf", tasks=3, **rate)
    assert same_network(learned("icarl", tasks=3, budget=0, **rate), lwf)
    if temperature == 2.0:
        plain = learned("ncl", tasks=3)
        assert same_network(learned("icarl", tasks=3, budget=0, strength=0.0, **rate), plain)
        both = learned("icarl", tasks=3, budget=20, **rate)
        assert not any(same_network(both, other) for other in (plain, lwf))
