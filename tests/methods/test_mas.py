"""MAS: importance by hand and image by image, the penalty, and NCL at strength 0."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from softmask.learning import Batches
from softmask.learning.networks import alexnet, mlp
from softmask.methods.mas import MAS, by_layer, one_by_one
from tests.learning.toys import move, step_of, toy_scenario, toy_task
from tests.methods.comparing import learned, same_network


def identity(size: int) -> nn.Linear:
    layer = nn.Linear(size, size, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(size))
    return layer


def example(**settings: float) -> tuple[MAS, object]:
    task = toy_task(torch.tensor([[1.0, 2.0], [1.0, -2.0]]), torch.tensor([0, 1]))
    return MAS(toy_scenario([identity(2)], [identity(2), identity(2)]), MAS.Settings(**settings)), task


GOLDEN = torch.tensor([[2.0, 4.0], [4.0, 8.0]])
"""|gradient of the squared norm| = |2 x x^T|, the same for both images; their sum would cancel beside the diagonal."""


def test_golden_importance_is_a_mean_over_images_and_a_sum_over_tasks() -> None:
    method, task = example()
    method.end_task(task)
    torch.testing.assert_close(method.importance.tensors()[0], GOLDEN)
    method.end_task(task)
    torch.testing.assert_close(method.importance.tensors()[0], 2 * GOLDEN)


def test_labels_do_not_matter() -> None:
    method, task = example()
    images = task.train.images
    method.end_task(replace(task, train=Batches(images, 1 - task.train.labels, 2)))
    torch.testing.assert_close(method.importance.tensors()[0], GOLDEN)


@pytest.mark.parametrize("strength", [1.0, 3.0])
def test_golden_penalty_and_its_gradient(strength: float) -> None:
    """0.01 * 18 without one half, and 2 * 0.1 * importance."""
    method, task = example(strength=strength)
    method.end_task(task)
    move(method, 0.1, 0.0)
    step = step_of(task)
    assert method.penalty(step).item() == pytest.approx(0.18 * strength)
    method.after_backward(step)
    torch.testing.assert_close(method.backbone[0].weight.grad, 0.2 * strength * GOLDEN)


@pytest.mark.parametrize("convolutions", [True, False])
def test_layer_by_layer_is_one_image_at_a_time(convolutions: bool) -> None:
    torch.manual_seed(0)
    made = alexnet((1, 16, 16), width=1 / 16) if convolutions else mlp((1, 16, 16), width=1 / 32)
    backbone, head = made.eval(), nn.Linear(made.widths[-1], 3)
    images = [torch.randn(4, 1, 16, 16), torch.randn(3, 1, 16, 16)]
    fast, slow = (measure(backbone, images, lambda x: head(backbone(x))) for measure in (by_layer, one_by_one))
    for ours, theirs in zip(fast, slow, strict=True):
        assert theirs.abs().sum() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert not any(block.layer._forward_hooks for block in backbone.blocks)


def test_strength_0_is_ncl_to_the_bit() -> None:
    plain = learned("ncl", tasks=3)
    assert same_network(learned("mas", tasks=3, strength=0.0), plain)
    assert not same_network(learned("mas", tasks=3), plain)
