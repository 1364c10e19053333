"""MER: the golden updates, the order of the steps, and NCL with an empty reservoir."""

import pytest
import torch

from softmask.methods.mer import MER
from tests.methods.comparing import learned, same_network
from tests.methods.replaying import linear, one_weight, remember


def stepped(**settings: float) -> MER:
    """One step of the training loop: the new head answers (feature, 0) to the image 2 of label 1; one old image, 1."""
    method, step = one_weight(MER, linear([1.0], [0.0]), budget=4, **settings)
    remember(method, (1.0, 0))
    method.begin_task(step.task)
    optimizer = method.make_optimizer(lr=1.0)
    method.loss(step).backward()
    method.after_backward(step)
    optimizer.step()
    method.after_step(step)
    return method


@pytest.mark.parametrize(
    ("beta", "gamma", "wanted"),
    [(1.0, 1.0, -0.079894), (0.5, 1.0, 0.460053), (1.0, 0.5, 0.460053), (0.5, 0.5, 0.730027)],
)
def test_golden_update(beta: float, gamma: float, wanted: float) -> None:
    """The new image moves the weight from 1 by -2 s(2) = -1.761594, the old one then by 1 - s(-0.761594) = 0.681700."""
    method = stepped(replay_steps=1, beta=beta, gamma=gamma)
    weight = method.backbone[1].weight
    torch.testing.assert_close(weight, torch.tensor([[wanted]]), rtol=0, atol=1e-5)


def test_old_and_new_heads_go_the_same_share_of_their_way() -> None:
    """The new head's gradient is (s(2) - 0) * 2 in its first row; the old head's is that of its sample."""
    whole, half = (stepped(replay_steps=1, beta=share, gamma=1.0) for share in (1.0, 0.5))
    for index, first in ((0, 1.0), (1, 1.0)):
        moved = whole.heads[index].weight[0, 0] - first
        assert abs(moved) > 1e-3
        torch.testing.assert_close(half.heads[index].weight[0, 0] - first, moved / 2)
    assert torch.equal(whole.heads[2].weight, torch.zeros(2, 1))


def test_sequences_begin_where_the_last_one_ended() -> None:
    """Within-batch updates follow each other; the across-batch update starts from the weights before them all."""
    one, two = stepped(replay_steps=1, beta=0.5), stepped(replay_steps=1, beta=0.5, batches=2)
    half = stepped(replay_steps=1, beta=0.5, batches=2, gamma=0.5)
    weight, further, back = (method.backbone[1].weight.item() for method in (one, two, half))
    assert abs(further - weight) > 1e-3
    assert back == pytest.approx((1 + further) / 2, abs=1e-6)


def test_every_replay_step_draws_anew_and_nothing_stays_behind() -> None:
    method = stepped(replay_steps=3, batches=2)
    assert int(method.draws.count) == 6
    assert method.before == []


def test_an_empty_reservoir_is_ncl_to_the_bit() -> None:
    plain = learned("ncl", tasks=3)
    assert same_network(learned("mer", tasks=3, budget=0), plain)
    assert not same_network(learned("mer", tasks=3, budget=20), plain)
