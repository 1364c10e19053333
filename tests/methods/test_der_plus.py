"""DER++: the golden loss, the logits that are kept, and NCL without a buffer or without factors."""

import pytest
import torch

from softmask.methods.der_plus import DERPlus
from tests.learning.toys import random_scenario, random_task
from tests.methods.comparing import learned, same_network
from tests.methods.replaying import one_weight, remember


@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.5), (1.0, 0.0), (0.0, 1.0)])
def test_golden_loss(alpha: float, beta: float) -> None:
    """Kept (3, 0), said (1, 0): the mean square is 2. The label's cross-entropy is 0.313262, that of the batch ln 2."""
    method, step = one_weight(DERPlus, budget=4, alpha=alpha, beta=beta)
    remember(method, (1.0, 0))
    method.memory.answers[0] = torch.tensor([3.0, 0.0])
    method.begin_task(step.task)
    wanted = torch.tensor(0.693147 + alpha * 2 + beta * 0.313262)
    torch.testing.assert_close(method.loss(step), wanted, rtol=0, atol=1e-5)


def test_the_two_draws_differ() -> None:
    """With one draw for both, a sample's logits would be kept only where its label is learned again."""
    method, step = one_weight(DERPlus, budget=50, replay_batch=3)
    remember(method, *((float(pixel), 0) for pixel in range(50)))
    picked: list[list[int]] = []
    pick = method.memory.pick
    method.memory.pick = lambda *given: picked.append(pick(*given).tolist()) or torch.tensor(picked[-1])
    method.begin_task(step.task)
    method.loss(step)
    assert len(picked) == 2
    assert picked[0] != picked[1]


def shaped(index: int):
    task = random_task(index)
    task.train.images = task.train.images.view(-1, 1, 1, 3)
    return task


def test_kept_logits_are_those_of_the_task_s_end_and_stay() -> None:
    method = DERPlus(random_scenario(tasks=2), DERPlus.Settings(budget=30))
    method.backbone.insert(0, torch.nn.Flatten())
    method.eval().end_task(shaped(0))
    memory = method.memory
    with torch.no_grad():
        said = method(memory.images[:12], 0)
        torch.testing.assert_close(memory.answers[:12], said)
        for parameter in method.parameters():
            parameter.add_(1.0)
    method.end_task(shaped(1))
    assert memory.tasks[:24].tolist() == [0] * 12 + [1] * 12
    torch.testing.assert_close(memory.answers[:12], said)
    with torch.no_grad():
        torch.testing.assert_close(memory.answers[12:24], method(memory.images[12:24], 1))


def test_without_a_buffer_or_without_factors_it_is_ncl_to_the_bit() -> None:
    plain = learned("ncl", tasks=3)
    assert same_network(learned("der-plus", tasks=3, budget=0), plain)
    assert same_network(learned("der-plus", tasks=3, budget=20, alpha=0.0, beta=0.0), plain)
    assert not same_network(learned("der-plus", tasks=3, budget=20), plain)
