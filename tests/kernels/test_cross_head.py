"""The fast path against one plain backward pass per head and batch, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import skip_init

from softmask.kernels import cross_head, fast_cross_head_importance
from softmask.kernels.chain import plain_chain
from softmask.kernels.dropout import LEVELS, draws_like, dropped_levels, kept_above
from softmask.kernels.layer_groups import layer_groups
from softmask.learning.networks import alexnet

from .products import both_routines

onednn = pytest.fixture(scope="module", autouse=True, params=[True, False])(both_routines)
Batches = list[tuple[Tensor, Tensor]]


def in_batches(x: Tensor, size: int = 5) -> Batches:
    return [(part, torch.zeros(len(part))) for part in x.split(size)]


def fast_importance(
    backbone: nn.Module, batches: Batches, vectors: Tensor, reduce: Callable[[Tensor], None] = lambda gradient: None
) -> dict[str, Tensor] | None:
    """Through heads with one logit each, whose weights are the vectors."""
    heads = [skip_init(nn.Linear, len(vector), 1, bias=False) for vector in vectors]  # draws nothing
    for head, vector in zip(heads, vectors, strict=True):
        head.weight = nn.Parameter(vector[None])
    trainable = {name: p for name, p in backbone.named_parameters() if p.requires_grad}
    return fast_cross_head_importance(backbone, trainable, batches, heads, reduce)


def slow_gradients(backbone: nn.Module, batches: Batches, vector: Tensor) -> dict[str, Tensor]:
    exact = copy.deepcopy(backbone).double()
    total = sum((exact(x.double()) * vector.double()).sum() for x, _ in batches)
    named = {name: p for name, p in exact.named_parameters() if p.requires_grad}
    return dict(zip(named, torch.autograd.grad(total, list(named.values())), strict=True))


def slow_importance(backbone: nn.Module, batches: Batches, vectors: Tensor) -> dict[str, Tensor]:
    largest: dict[str, Tensor] = {}
    for vector in vectors:
        for name, gradient in slow_gradients(backbone, batches, vector).items():
            spread = gradient.std() if gradient.numel() > 1 else torch.tensor(0.0)
            flat = spread <= 1e-12 * gradient.abs().max()
            new = torch.zeros_like(gradient) if flat else ((gradient - gradient.mean()) / spread).tanh().abs()
            largest[name] = torch.maximum(largest[name], new) if name in largest else new
    return largest


def assert_same(fast: dict[str, Tensor] | None, slow: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert fast is not None
    assert fast.keys() == slow.keys()
    for name in slow:
        assert fast[name].shape == slow[name].shape
        assert fast[name].is_contiguous()
        torch.testing.assert_close(fast[name], slow[name].float(), rtol=tolerance, atol=tolerance, msg=name)


@st.composite
def image_layers(draw: st.DrawFn) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = 2
    for _ in range(draw(st.integers(0, 3))):
        kernel, stride, padding, dilation = (
            draw(st.tuples(st.integers(low, high), st.integers(low, high)))
            for low, high in ((1, 3), (1, 2), (0, 2), (1, 2))
        )
        width = draw(st.integers(1, 4))
        layers.append(nn.Conv2d(channels, width, kernel, stride, padding, dilation, bias=draw(st.booleans())))
        channels = width
        following = [nn.ReLU(inplace=draw(st.booleans())), nn.Dropout(0.3), nn.Identity()]
        if draw(st.booleans()):
            following.append(nn.MaxPool2d(draw(st.sampled_from([2, (1, 2), (3, 2)]))))
        layers += draw(st.permutations(following))
    return layers


@st.composite
def backbones(draw: st.DrawFn) -> tuple[nn.Sequential, Tensor]:
    """A random chain in eval mode, and images for it."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    images = torch.randn(draw(st.integers(1, 9)), 2, draw(st.integers(4, 11)), draw(st.integers(4, 11)))
    first = nn.Sequential(*draw(image_layers()), nn.Flatten()).eval()
    try:
        features = first(images).size(1)
    except RuntimeError:
        features = 0
    assume(features > 0)
    layers: list[nn.Module] = []
    for width in draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)):
        layers.append(nn.Linear(features, width, bias=draw(st.booleans())))
        layers += draw(st.sampled_from([[], [nn.ReLU()], [nn.Dropout(0.5), nn.ReLU()]]))
        features = width
    return nn.Sequential(first, *layers).eval(), images


@settings(max_examples=60, deadline=None)
@given(backbones(), st.integers(1, 4))
def test_summed_gradients_are_those_of_plain_backward_passes(made: tuple[nn.Sequential, Tensor], heads: int) -> None:
    backbone, images = made
    batches = in_batches(images, 4)
    vectors = torch.randn(heads, backbone(images).size(1))
    seen: list[Tensor] = []
    importance = fast_importance(backbone, batches, vectors, reduce=lambda gradient: seen.append(gradient.clone()))
    assert importance is not None
    found = [tensor for tensor in seen if tensor.dim() > 0]  # without the number of images
    chain = plain_chain(backbone)
    assert chain is not None
    last = [layer for layer in chain if isinstance(layer, nn.Linear)][-1]
    slow = [slow_gradients(backbone, batches, vector) for vector in vectors]
    own = [name for name, p in backbone.named_parameters() if all(p is not q for q in last.parameters())]
    for gradients in slow:
        for name in own:
            close_in_norm(found.pop(0), gradients[name])
    names = {p: name for name, p in backbone.named_parameters()}
    for parameter in last.parameters():
        common = found.pop(0).double()
        for vector, gradients in zip(vectors.double(), slow, strict=True):
            scaled = vector[:, None] * common if common.dim() == 2 else vector * common
            close_in_norm(scaled, gradients[names[parameter]])
    assert not found


def close_in_norm(given: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert (given - expected).norm() <= tolerance * expected.norm() + 1e-7


@settings(max_examples=40, deadline=None)
@given(backbones(), st.integers(1, 12))
def test_importance_is_that_of_plain_backward_passes(made: tuple[nn.Sequential, Tensor], heads: int) -> None:
    backbone, images = made
    vectors = torch.randn(heads, backbone(images).size(1))
    slow = slow_importance(backbone, in_batches(images), vectors)
    fast = fast_importance(backbone, in_batches(images), vectors)
    assert fast is not None
    for name, expected in slow.items():
        # A spread that is rounding alone is compared nowhere: neither way knows it.
        if not ((expected == 0) ^ (fast[name] == 0)).any():
            torch.testing.assert_close(fast[name], expected.float(), rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_the_papers_network(shape: tuple[int, int, int]) -> None:
    backbone = alexnet(shape, width=0.1).eval()
    images, vectors = torch.randn(20, *shape), torch.randn(7, backbone.widths[-1])
    batches = in_batches(images)
    assert_same(fast_importance(backbone, batches, vectors), slow_importance(backbone, batches, vectors))
    assert all(p.grad is None for p in backbone.parameters())


class SameDraws(nn.Module):
    """Dropout as an ordinary product, with the draws that the fast way takes."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropped = dropped_levels(rate)

    def forward(self, x: Tensor) -> Tensor:
        layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        draws = draws_like(x.detach().float().contiguous(memory_format=layout))
        return x * (draws > kept_above(self.dropped)) * (LEVELS / (LEVELS - self.dropped))


def test_with_the_same_draws_dropout_gives_the_same() -> None:
    layers = [nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Dropout(0.3), nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten()]
    layers += [nn.Linear(32, 12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 6), nn.ReLU(), nn.Dropout(0.5)]
    twin = nn.Sequential(*(SameDraws(layer.p) if isinstance(layer, nn.Dropout) else layer for layer in layers))
    batches, vector = in_batches(torch.randn(10, 2, 6, 6), size=10), torch.randn(1, 6)
    torch.manual_seed(11)
    fast = fast_importance(nn.Sequential(*layers).train(), batches, vector)
    torch.manual_seed(11)
    assert_same(fast, slow_importance(twin, batches, vector))


def test_dropout_has_the_distribution_of_torchs_own() -> None:
    backbone = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Dropout(0.4), nn.MaxPool2d(2), nn.Flatten())
    backbone.extend([nn.Linear(12, 4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 2)])
    same = torch.randn(1, 1, 5, 5).expand(4000, -1, -1, -1)
    seen: list[Tensor] = []
    vector = torch.randn(2)
    fast_importance(backbone, [(same, None)], vector[None], reduce=lambda gradient: seen.append(gradient / 4000))
    slow = slow_gradients(backbone, [(same, torch.zeros(1))], vector)
    for fast, name in zip(seen[1:5], list(slow)[:4], strict=True):
        assert (fast - slow[name] / 4000).norm() < 0.1 * slow[name].norm() / 4000


def test_groups_of_heads_and_portions_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = alexnet((1, 12, 12), width=0.05).eval()
    images, vectors = torch.randn(23, 1, 12, 12), torch.randn(11, backbone.widths[-1])
    whole = fast_importance(backbone, in_batches(images, 23), vectors)
    assert whole is not None
    monkeypatch.setattr(cross_head, "IMAGES_AT_ONCE", 4)
    monkeypatch.setattr(cross_head._CrossHeadPass, "heads_at_once", lambda self, heads: 3)
    for size in (1, 3, 10):
        assert_same(fast_importance(backbone, in_batches(images, size), vectors), whole)


def test_gradients_and_result_take_less_than_three_copies() -> None:
    with torch.device("meta"):
        backbone = alexnet((3, 32, 32))
    chain = plain_chain(backbone)
    assert chain is not None
    parts = layer_groups(chain)
    assert parts is not None
    total = sum(p.numel() for p in backbone.parameters())
    work = cross_head._CrossHeadPass(chain, *parts, dict(backbone.named_parameters()), lambda gradient: None)
    together = work.heads_at_once(1000)
    assert together == 5
    assert total + together * sum(p.numel() for p in work.per_head) < 3 * total


def test_a_small_backbone_takes_little_for_many_heads_at_once() -> None:
    with torch.device("meta"):
        backbone = alexnet((3, 32, 32), width=1 / 16)
    chain = plain_chain(backbone)
    assert chain is not None
    parts = layer_groups(chain)
    assert parts is not None
    work = cross_head._CrossHeadPass(chain, *parts, dict(backbone.named_parameters()), lambda gradient: None)
    together = work.heads_at_once(1000)
    assert together > 100
    assert together * sum(p.nbytes for p in work.per_head) <= cross_head.SMALL


def test_what_processes_found_can_be_added_before_standardising() -> None:
    backbone = alexnet((1, 12, 12), width=0.05).eval()
    images, vectors = torch.randn(14, 1, 12, 12), torch.randn(3, backbone.widths[-1])
    others: list[Tensor] = []
    fast_importance(backbone, in_batches(images[:5]), vectors, reduce=lambda gradient: others.append(gradient.clone()))
    together = fast_importance(backbone, in_batches(images[5:]), vectors, reduce=lambda g: g.add_(others.pop(0)))
    whole = fast_importance(backbone, in_batches(images), vectors)
    assert whole is not None
    assert_same(together, whole)


@pytest.mark.parametrize("frozen", [["conv1", "conv2"], ["fc1"], ["fc2"], ["conv1", "conv2", "conv3", "fc1"]])
def test_frozen_layers_are_left_out(frozen: list[str]) -> None:
    backbone = alexnet((1, 12, 12), width=0.05).eval()
    for name in frozen:
        backbone.get_submodule(name).requires_grad_(False)
    backbone.conv3.layer.bias.requires_grad_(False)
    batches, vectors = in_batches(torch.randn(9, 1, 12, 12)), torch.randn(4, backbone.widths[-1])
    assert_same(fast_importance(backbone, batches, vectors), slow_importance(backbone, batches, vectors))


def test_a_worked_example() -> None:
    backbone = nn.Sequential(nn.Linear(2, 2))
    nn.init.eye_(backbone[0].weight)
    nn.init.zeros_(backbone[0].bias)
    batches = [(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([0, 1]))]
    importance = fast_importance(backbone, batches, torch.tensor([[4.0, 6.0]]))
    assert importance is not None
    torch.testing.assert_close(importance["0.weight"], torch.full((2, 2), 0.699349), rtol=0, atol=1e-6)
    torch.testing.assert_close(importance["0.bias"], torch.full((2,), 0.608859), rtol=0, atol=1e-6)


def test_linear_layers_alone_take_inputs_of_any_dimension() -> None:
    backbone = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4))
    batches, vectors = in_batches(torch.randn(8, 6, 3)), torch.randn(2, 4)
    assert_same(fast_importance(backbone, batches, vectors), slow_importance(backbone, batches, vectors))


def test_without_spread_nothing_is_important() -> None:
    backbone = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 3))
    importance = fast_importance(backbone, in_batches(torch.randn(4, 1)), torch.full((2, 3), 1.5))
    assert importance is not None
    assert {name: float(value.max()) for name, value in importance.items()} == dict.fromkeys(importance, 0.0)


@pytest.mark.parametrize("scale", [1e-18, 1e15])
def test_the_scale_of_the_gradient_does_not_matter(scale: float) -> None:
    backbone = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4))
    batches, vectors = in_batches(torch.randn(8, 3)), torch.randn(2, 4)
    expected = fast_importance(backbone, batches, vectors)
    assert expected is not None
    assert_same(fast_importance(backbone, batches, vectors * scale), expected)


def wide_pool() -> list[nn.Module]:
    return [nn.Conv2d(1, 1, 1), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(4, 4)]


@pytest.mark.parametrize(
    "layers",
    [
        wide_pool,
        lambda: [nn.Flatten(), nn.Linear(25, 4), nn.Tanh()],
        lambda: [nn.Conv2d(1, 4, 5), nn.Flatten()],
        lambda: [nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 2, groups=2), nn.Flatten(), nn.Linear(32, 4)],
        lambda: [nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(25, 4)],
        lambda: [nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(9, 4)],
        lambda: [nn.Linear(5, 5), nn.Flatten(), nn.Linear(25, 4)],
        lambda: [nn.Flatten(), nn.Linear(25, 4).double()],
        lambda: [nn.Flatten(), nn.Linear(25, 4), *([nn.Linear(4, 4)] * 2)],
    ],
    ids=["overlap", "tanh", "no-linear", "groups", "reflect", "ceil", "late-flatten", "double", "shared"],
)
def test_other_structures_are_left_to_the_general_way(layers: Callable[[], Sequence[nn.Module]]) -> None:
    assert fast_importance(nn.Sequential(*layers()), in_batches(torch.randn(3, 1, 5, 5)), torch.randn(2, 4)) is None


def test_what_is_not_finite_is_named() -> None:
    backbone = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    batches = in_batches(torch.tensor([[float("nan"), 1.0]]))
    with pytest.raises(FloatingPointError, match=r"0\.weight"):
        fast_importance(backbone, batches, torch.ones(1, 2))
    with pytest.raises(FloatingPointError, match=r"0\.weight"):
        fast_importance(nn.Sequential(nn.Linear(2, 3)), batches, torch.ones(1, 3))


def test_no_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        fast_importance(nn.Sequential(nn.Linear(2, 3)), [], torch.ones(1, 3))
