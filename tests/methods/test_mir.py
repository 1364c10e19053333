"""MIR: the virtual step worked out by hand, who is replayed, and NCL with an empty buffer."""

import torch

from softmask.learning.replay import Samples
from softmask.methods.mir import MIR
from tests.methods.comparing import learned, same_network
from tests.methods.replaying import linear, one_weight, remember


def example() -> tuple[MIR, object, Samples]:
    """The new head answers (feature, 0) to the image 2 of label 1: the gradient is 2 s(2) = 1.761594, the weight would
    become -0.761594. Of two old images, 1, label 0 would cost 1.145 instead of 0.313, label 1 0.383 instead of 1.313.
    """
    method, step = one_weight(MIR, linear([1.0], [0.0]), budget=4, replay_batch=1, candidates=2)
    remember(method, (1.0, 1), (1.0, 0))
    method.begin_task(step.task)
    return method, step, method.memory.at(torch.tensor([0, 1]))


def test_golden_virtual_step() -> None:
    method, step, candidates = example()
    moved = method.virtual_weights(step)
    torch.testing.assert_close(moved["1.weight"], torch.tensor([[-0.761594]]), rtol=0, atol=1e-5)
    torch.testing.assert_close(method.losses(candidates, 1), torch.tensor([1.313262, 0.313262]), rtol=0, atol=1e-5)
    then = method.losses(candidates, 1, moved)
    torch.testing.assert_close(then, torch.tensor([0.383167, 1.144761]), rtol=0, atol=1e-5)


def test_the_most_interfered_is_replayed_not_the_one_of_the_largest_loss() -> None:
    method, step, candidates = example()
    chosen = method.most_interfered(step, candidates)
    assert chosen.labels.tolist() == [0]
    torch.testing.assert_close(method.loss(step), torch.tensor((2.126928 + 0.313262) / 2), rtol=0, atol=1e-5)


def test_the_virtual_step_leaves_no_trace() -> None:
    method, step, _ = example()
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method.train()
    method.loss(step)
    after = method.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if name != "draws.count")
    assert all(parameter.grad is None for parameter in method.parameters())
    assert all(part.training for part in method.modules())


def test_an_empty_buffer_is_ncl_to_the_bit() -> None:
    plain = learned("ncl", tasks=3)
    assert same_network(learned("mir", tasks=3, budget=0), plain)
    assert not same_network(learned("mir", tasks=3, budget=20), plain)
