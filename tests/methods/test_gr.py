"""GR: the golden loss on generated images, a generator that remembers its own, and NCL at strength 0."""

from typing import Any

import pytest
import torch

from softmask.learning import Batches, Scenario, Task
from softmask.learning.method import Step
from softmask.learning.scenario import NetworkConfig
from softmask.methods.gr import GR, Generator, from_standard_normal
from tests.learning.toys import Chain
from tests.methods.comparing import built, learned, network, same_network
from tests.methods.replaying import linear


def test_golden_divergence() -> None:
    """1/2 (1 + 1 - 0 - 1) + 1/2 (0 + 4 - ln 4 - 1)."""
    found = from_standard_normal(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 4.0]]).log())
    torch.testing.assert_close(found, torch.tensor(1.306853))


def test_golden_loss_of_the_generator() -> None:
    """Everything zero: the code is standard normal noise, the image 0; pixels of 1 and 3 cost (1 + 9) / 2 each."""
    generator = Generator((1, 4, 4), channels=1, latent=2)
    torch.nn.utils.vector_to_parameters(
        torch.zeros(sum(p.numel() for p in generator.parameters())), generator.parameters()
    )
    images = torch.ones(2, 1, 4, 4)
    images[1] = 3.0
    torch.testing.assert_close(generator.loss(images), torch.tensor(16 * 5.0 / 2))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 11, 14)])
def test_images_of_any_size(shape: tuple[int, int, int]) -> None:
    generator = Generator(shape, channels=2, latent=3)
    assert generator.sample(5).shape == (5, *shape)
    assert generator.loss(torch.zeros(2, *shape)).isfinite()


def one_image(task: int, pixel: float) -> Task:
    batches = Batches(torch.full((32, 1, 12, 12), pixel), torch.arange(32) % 2, 8)
    return Task((task,), f"pixel {pixel:g}", 2, batches, batches)


def blank(**settings: Any) -> GR:
    scenario = Scenario((1, 12, 12), (2, 2), NetworkConfig(width=1 / 16, drop1=0.0, drop2=0.0))
    return GR(scenario, GR.Settings(channels=128, latent=4, generator_lr=3e-3, **settings)).eval()


def test_the_generator_draws_old_images_that_it_has_seen_only_through_itself() -> None:
    """Black images, then white ones. Without its own images of before, it would draw white ones alone."""
    method = blank()
    torch.manual_seed(0)
    method.learn_images(one_image(0, -1.0), epochs=15)
    assert method.generator.sample(50).mean((1, 2, 3)).max() < 0
    method.learn_images(one_image(1, 1.0), epochs=30)
    drawn = method.generator.sample(200).mean((1, 2, 3))
    assert (drawn < -0.1).float().mean() > 0.15
    assert (drawn > 0.1).float().mean() > 0.15
    assert not any(parameter.requires_grad for parameter in method.generator.parameters())


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_golden_loss_on_generated_images(strength: float) -> None:
    """As in LwF's golden: on the generated 2, T = 2, a weight of 1 that becomes 3 has a distance of 1.092831.

    The new image is 5: on it the distance would be another.
    """
    method, task = blank(strength=strength), one_image(1, 5.0)
    weight = linear([1.0])
    method.backbone = Chain(torch.nn.Flatten(), torch.nn.AdaptiveAvgPool1d(1), weight)
    method.heads = torch.nn.ModuleList([linear([1.0], [0.0]), linear([0.0], [0.0])])
    asked: list[int] = []
    method.generator.sample = lambda count, *_: asked.append(count) or torch.full((count, 1, 12, 12), 2.0)
    method.begin_task(task)
    step = Step(task, task.train.x, task.train.y)
    torch.testing.assert_close(method.loss(step), torch.tensor(0.693147), rtol=0, atol=1e-5)
    with torch.no_grad():
        weight.weight.fill_(3.0)
    wanted = torch.tensor(0.693147 + strength * 1.092831)
    torch.testing.assert_close(method.loss(step), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(method.validate(step)[0], wanted, rtol=0, atol=1e-5)
    assert asked == [64, 64, 32]


def test_validation_draws_the_same_images_every_time() -> None:
    method, (first, second) = built("gr")
    method.eval().end_task(first)
    method.begin_task(second)
    with torch.no_grad():
        for parameter in method.backbone.parameters():
            parameter.mul_(1.5)
        step = Step(second, second.val.x[:8], second.val.y[:8])
        drawn = int(method.draws.count)
        assert method.validate(step)[0] == method.validate(step)[0]
    assert int(method.draws.count) == drawn


def test_strength_0_and_the_first_task_are_ncl_to_the_bit() -> None:
    rate: dict[str, Any] = {"settings.lr": None}
    plain = learned("ncl", tasks=3)
    without = learned("gr", tasks=3, strength=0.0, **rate)
    assert same_network(without, plain)
    assert not same_network(learned("gr", tasks=3, **rate), plain)
    assert same_network(learned("gr", tasks=1, **rate), learned("ncl", tasks=1))
    untrained, _ = built("gr")
    pairs = zip(without.generator.parameters(), untrained.generator.parameters(), strict=True)
    assert all(torch.equal(ours, new) for ours, new in pairs), "no generator without strength"
    assert network(plain).keys() == network(without).keys()
