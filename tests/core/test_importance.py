"""Equations 1 to 4 and the Fisher variant: golden numbers, the oracle, and the statistics of a tensor."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from softmask import SoftMask, fisher_importance, gradient_importance
from softmask.core import cross_head_importance, importance_of
from tests.core import oracle
from tests.core.examples import Roundabout, assert_close, linear, same, small_backbone, small_batches

# ---------------------------------------------------------------------------------------------- golden numbers


GOLDEN_A_BATCHES = [(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([0, 1]))]
GOLDEN_A_HEAD = [[1.0, -1.0], [-1.0, 1.0]]


def golden_a(wrap: type[nn.Module]) -> tuple[nn.Module, nn.Module, list[nn.Module]]:
    backbone = wrap(linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]))
    return backbone, linear(GOLDEN_A_HEAD), [linear([[1.0, 2.0], [3.0, 4.0]], [5.0, -7.0])]


@pytest.mark.parametrize("wrap", [nn.Sequential, Roundabout])
def test_golden_a(wrap: type[nn.Module]) -> None:
    backbone, head, old = golden_a(wrap)
    mask = SoftMask(backbone)
    mask.consolidate(GOLDEN_A_BATCHES, head, old)
    weight, bias = mask.importance.values()
    # A biased standard deviation gives 0.761594; weight and bias standardised together 0.806884 and others.
    torch.testing.assert_close(weight, torch.full((2, 2), 0.699349), rtol=0, atol=1e-6)
    torch.testing.assert_close(bias, torch.full((2,), 0.608859), rtol=0, atol=1e-6)
    assert 1 - mask.mean() == pytest.approx(0.330814, abs=1e-6)  # the mean of the tensors' means gives 0.345896


@pytest.mark.parametrize("wrap", [nn.Sequential, Roundabout])
def test_golden_a_without_old_heads(wrap: type[nn.Module]) -> None:
    backbone, head, _ = golden_a(wrap)
    mask = SoftMask(backbone)
    mask.consolidate(GOLDEN_A_BATCHES, head)
    weight, bias = mask.importance.values()
    torch.testing.assert_close(weight, torch.full((2, 2), 0.699349), rtol=0, atol=1e-6)
    assert torch.equal(bias, torch.zeros(2))


def golden_b(wrap: type[nn.Module]) -> tuple[nn.Module, nn.Module, list[nn.Module], list[tuple[Tensor, Tensor]]]:
    backbone = wrap(
        linear([[1.0, 2.0], [0.0, 1.0], [-1.0, 1.0]], [0.0, -1.0, 0.5]),
        nn.ReLU(),
        linear([[1.0, 0.0, 1.0], [0.0, 2.0, -1.0]], [0.0, 0.5]),
        nn.ReLU(),
    )
    head = linear([[1.0, 0.0], [0.0, 1.0]])
    old = linear([[1.0, 0.0], [2.0, -1.0], [0.0, 3.0]], [10.0, -3.0, 0.5])
    batches = [
        (torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])),
        (torch.tensor([[2.0, 1.0]]), torch.tensor([1])),
    ]
    return backbone, head, [old], batches


@pytest.mark.parametrize("wrap", [nn.Sequential, Roundabout])
def test_golden_b(wrap: type[nn.Module]) -> None:
    backbone, head, old, batches = golden_b(wrap)
    mask = SoftMask(backbone)
    mask.consolidate(batches, head, old)
    w1, b1, w2, b2 = mask.importance.values()
    expected = [
        (w1, [[0.918780, 0.785000], [0.658731, 0.658731], [0.658731, 0.162652]]),
        (b1, [0.797275, 0.722898, 0.214819]),
        (w2, [[0.946775, 0.608137, 0.167441], [0.903976, 0.608137, 0.608137]]),
        (b2, [0.608859, 0.608859]),
    ]
    for given_importance, numbers in expected:
        torch.testing.assert_close(given_importance, torch.tensor(numbers), rtol=0, atol=2e-6)
    assert mask.mean() == pytest.approx(0.625761, abs=1e-6)


@pytest.mark.parametrize("wrap", [nn.Sequential, Roundabout])
def test_golden_b_without_old_heads(wrap: type[nn.Module]) -> None:
    backbone, head, _, batches = golden_b(wrap)
    mask = SoftMask(backbone)
    mask.consolidate(batches, head)
    w1, _, w2, _ = mask.importance.values()
    expected = [[0.892022, 0.785000], [0.650000, 0.650000], [0.650000, 0.162652]]
    torch.testing.assert_close(w1, torch.tensor(expected), rtol=0, atol=2e-6)
    expected = [[0.928229, 0.105923, 0.165539], [0.903976, 0.105923, 0.105923]]
    torch.testing.assert_close(w2, torch.tensor(expected), rtol=0, atol=2e-6)


def test_oracle_gives_the_golden_gradients() -> None:
    backbone, head, (old,), batches = golden_b(nn.Sequential)
    own = oracle.summed_gradients(backbone, batches, lambda x, y: F.cross_entropy(head(backbone(x)), y))
    torch.testing.assert_close(
        own["0.weight"], torch.tensor([[1.752605, 1.456032], [0, 0], [0, 0.485344]]), rtol=0, atol=2e-6
    )
    crossed = oracle.summed_gradients(backbone, batches, lambda x, y: old(backbone(x)).sum())
    torch.testing.assert_close(crossed["2.weight"], torch.tensor([[21, 0, 4.5], [10.0, 0, 0]]), rtol=0, atol=1e-5)


# ---------------------------------------------------------------------------------------------- Fisher

FISHER_X = torch.tensor([[1.0, 1.0], [2.0, 2.0], [1.0, 1.0], [3.0, 3.0]])
FISHER_Y = torch.tensor([0, 1, 0, 0])


def test_fisher_golden() -> None:
    backbone, head = linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]), linear(GOLDEN_A_HEAD)
    batches = list(zip(FISHER_X.split(2), FISHER_Y.split(2), strict=True))
    fisher = fisher_importance(backbone, batches, lambda x, y: F.cross_entropy(head(backbone(x)), y))
    # The mean of squares per sample would give 3.75 and 1.0.
    torch.testing.assert_close(fisher["weight"], torch.full((2, 2), 2.125), rtol=0, atol=1e-6)
    torch.testing.assert_close(fisher["bias"], torch.full((2,), 0.5), rtol=0, atol=1e-6)


@pytest.mark.parametrize("sizes", [(4, 4, 3), (4, 4, 1), (4,)])
def test_fisher_gives_a_short_last_batch_the_factor_of_a_full_one(sizes: tuple[int, ...]) -> None:
    backbone, head, batches = small_backbone(), nn.Linear(6, 3), small_batches(sizes)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head(backbone(x)), y)

    assert_close(fisher_importance(backbone, batches, loss), oracle.fisher(backbone, batches, loss, full_batch=4))


def test_fisher_reads_the_batches_once_and_needs_one() -> None:
    backbone, head, batches = small_backbone(), nn.Linear(6, 3), small_batches()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head(backbone(x)), y)

    once = fisher_importance(backbone, iter(batches), loss)
    assert same(once, fisher_importance(backbone, batches, loss))
    with pytest.raises(ValueError, match="no samples"):
        fisher_importance(backbone, [], loss)


# ---------------------------------------------------------------------------------------------- one tensor


@pytest.mark.parametrize(
    "gradient",
    [
        torch.zeros(5),
        torch.full((3, 3), -2.5),
        torch.tensor([4.0]),
        torch.tensor(4.0),
        torch.full((1000,), 0.1),
        torch.full((7,), 1e-38),
        torch.full((7,), 3e38),
    ],
)
def test_a_gradient_without_spread_ranks_nothing(gradient: Tensor) -> None:
    assert torch.equal(importance_of(gradient), torch.zeros_like(gradient))


@pytest.mark.parametrize("count", [2, 3, 10, 1000, 100_000])
def test_the_smallest_spread_is_still_a_spread(count: int) -> None:
    gradient = torch.ones(count)
    gradient[0] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    importance = importance_of(gradient)
    one_differs = torch.zeros(count, dtype=torch.float64)
    one_differs[0] = 1
    expected = torch.tanh((one_differs - one_differs.mean()) / one_differs.std()).abs().float()
    torch.testing.assert_close(importance, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [-1.0, -3.7, 1e-4, 1e30, -1e30, 1e-30, -1e-30, 1e36])
def test_neither_scale_nor_sign_of_the_loss_matters(scale: float) -> None:
    gradient = torch.randn(40, 30)
    torch.testing.assert_close(importance_of(gradient * scale), importance_of(gradient), rtol=1e-5, atol=1e-6)
    assert_close({"": importance_of(gradient * scale)}, {"": oracle.importance_of((gradient * scale).double())})


def test_a_shift_of_all_entries_does_not_matter() -> None:
    gradient = torch.randn(50)
    torch.testing.assert_close(importance_of(gradient + 5), importance_of(gradient), rtol=1e-4, atol=1e-5)


def test_zero_gradient_is_not_zero_importance() -> None:
    assert importance_of(torch.tensor([0.0, 1.0, 5.0]))[0] > 0.5


def test_importance_reaches_one_only_where_float32_rounds_to_it() -> None:
    gradient = torch.zeros(10_000)
    gradient[0] = 1.0  # about 100 standard deviations away
    importance = importance_of(gradient)
    assert importance[0] == 1
    assert (importance[1:] < 1).all()


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40))
def test_importance_of_any_gradient_lies_in_0_to_1(numbers: list[float]) -> None:
    importance = importance_of(torch.tensor(numbers))
    assert ((importance >= 0) & (importance <= 1)).all()
    torch.testing.assert_close(importance, oracle.importance_of(torch.tensor(numbers)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25])
def test_the_scale_of_the_loss_does_not_matter(scale: float) -> None:
    backbone, head, old, batches = golden_b(Roundabout)
    plain, scaled = SoftMask(backbone), SoftMask(backbone)
    plain.consolidate(batches, head, old)
    with torch.no_grad():
        old[0].weight.mul_(-scale)
    scaled.consolidate(batches, head, old, loss=lambda logits, y: scale * F.cross_entropy(logits, y))
    assert_close(scaled.importance, plain.importance)


# ---------------------------------------------------------------------------------------------- against the oracle


def _network(draw: st.DrawFn) -> tuple[list[nn.Module], tuple[int, ...], int]:
    """Layers, the shape of one input, the number of features."""
    dim = st.integers(2, 5)
    if draw(st.booleans()):
        widths = [draw(dim) for _ in range(draw(st.integers(2, 4)))]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs, bias=draw(st.booleans())), nn.ReLU()]
        return layers, (widths[0],), widths[-1]
    channels, size = draw(st.integers(1, 3)), draw(st.integers(5, 8))
    kernel, stride = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    first, second, features = draw(dim), draw(dim), draw(dim)
    layers = [
        nn.Conv2d(channels, first, kernel, stride=stride, padding=draw(st.integers(0, 1))),
        nn.ReLU(),
        nn.Conv2d(first, second, 2, bias=draw(st.booleans())),
        nn.ReLU(),
        *([nn.MaxPool2d(2)] if stride == 1 and draw(st.booleans()) else []),
        nn.Flatten(),
    ]
    shape = (channels, size, size)
    flat = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
    return [*layers, nn.Linear(flat, features), nn.ReLU()], shape, features


Task = tuple[nn.Module, list[tuple[Tensor, Tensor]], nn.Module, list[nn.Module]]


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    torch.manual_seed(draw(st.integers(0, 10_000)))
    layers, shape, features = _network(draw)
    backbone = draw(st.sampled_from([nn.Sequential, Roundabout]))(*layers)
    size, count = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    sizes = [size] * count + draw(st.sampled_from([[], [1], [max(1, size - 1)]]))
    classes, classes_of_old = draw(st.integers(2, 4)), draw(st.lists(st.integers(1, 4), max_size=5))
    batches = [(torch.randn(n, *shape), torch.randint(classes, (n,))) for n in sizes]
    old = [nn.Linear(features, n, bias=draw(st.booleans())) for n in classes_of_old]
    return backbone, batches, nn.Linear(features, classes), old


def in_double(task: Task) -> Task:
    backbone, batches, head, old = copy.deepcopy(task)
    return backbone.double(), [(x.double(), y) for x, y in batches], head.double(), [each.double() for each in old]


@given(tasks(), st.booleans())
def test_equals_the_oracle(task: Task, double: bool) -> None:
    """In float32, which the faster way of plain chains needs, and in double; the oracle always counts in double."""
    exact = in_double(task)
    backbone, batches, head, old = exact if double else task
    own = gradient_importance(backbone, batches, [lambda x, y: F.cross_entropy(head(backbone(x)), y)])
    assert_close(own, oracle.own_importance(*exact[:3]))
    assert_close(cross_head_importance(backbone, batches, old), oracle.cross_importance(*exact[:2], exact[3]))
    mask = SoftMask(backbone)
    mask.consolidate(batches, head, old)
    assert_close(mask.importance, oracle.task_importance(*exact))
    assert all((mask.importance[name] >= own[name]).all() for name in own)


@pytest.mark.parametrize("wrap", [nn.Sequential, Roundabout])
def test_heads_of_every_kind_are_crossed(wrap: type[nn.Module]) -> None:
    backbone, head, batches = wrap(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6)), nn.Linear(6, 3), small_batches()
    old = [
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 2)),  # changes what it is given
        nn.Linear(6, 5),
        nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Linear(6, 1, bias=False),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 2)),
    ]
    mask = SoftMask(backbone)
    mask.consolidate(batches, head, old)
    assert_close(mask.importance, oracle.task_importance(backbone, batches, head, old))


def test_a_hook_on_an_old_head_counts() -> None:
    backbone, batches, old = nn.Sequential(nn.Linear(4, 6), nn.ReLU()), small_batches(), nn.Linear(6, 3)
    old.register_forward_hook(lambda _, __, logits: logits[:, :1])
    assert_close(cross_head_importance(backbone, batches, [old]), oracle.cross_importance(backbone, batches, [old]))


def test_an_old_head_that_shares_a_weight_with_the_backbone() -> None:
    """The weight gets a gradient from the head's side too, of which the quick way knows nothing."""
    backbone = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    head = nn.Linear(4, 4)
    head.weight = backbone[0].weight
    batches = small_batches()
    expected = gradient_importance(backbone, batches, [lambda x, y: head(backbone(x)).sum()])
    assert_close(cross_head_importance(backbone, batches, [head]), expected)


def test_a_head_may_be_any_function_and_the_loss_too() -> None:
    backbone, head, batches = small_backbone(), nn.Linear(6, 1), small_batches()

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(logits.squeeze(1), y.float())

    mask = SoftMask(backbone)
    mask.consolidate(batches, lambda h: head(h), (lambda h: h[:, :2],), loss)
    expected = oracle.task_importance(backbone, batches, head, [lambda h: h[:, :2]], loss)
    assert_close(mask.importance, expected)


def test_several_losses_give_the_largest_importance_not_that_of_their_sum() -> None:
    backbone, batches = small_backbone(), small_batches()
    losses = [lambda x, y, i=i: backbone(x)[:, i].sum() for i in range(3)]
    together = gradient_importance(backbone, batches, losses)
    alone = [gradient_importance(backbone, batches, [loss]) for loss in losses]
    expected = {name: torch.stack([each[name] for each in alone]).amax(0) for name in together}
    assert same(together, expected)


def test_the_current_head_and_the_old_ones_get_no_importance() -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask = SoftMask(backbone)
    mask.consolidate(small_batches(), head, [nn.Linear(6, 2)])
    assert set(mask.importance) == {name for name, _ in backbone.named_parameters()}
