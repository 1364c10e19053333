"""The second moments of what each layer meets, against loops over its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from softmask import SubspaceMask

CONVOLUTIONS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "1d": (nn.Conv1d, (4, 6, 3), {}),
    "1d stride dilation": (nn.Conv1d, (4, 6, 3), {"stride": 2, "dilation": 2, "padding": 3}),
    "2d": (nn.Conv2d, (4, 6, 3), {"padding": 1}),
    "2d groups": (nn.Conv2d, (4, 6, (3, 2)), {"groups": 2, "stride": (2, 1), "padding": (1, 0)}),
    "2d depthwise": (nn.Conv2d, (4, 4, 3), {"groups": 4, "bias": False}),
    "2d same": (nn.Conv2d, (4, 6, (5, 3)), {"padding": "same", "dilation": (1, 2)}),
    "2d valid": (nn.Conv2d, (4, 6, 3), {"padding": "valid"}),
    "2d circular": (nn.Conv2d, (4, 6, 3), {"padding": (2, 1), "padding_mode": "circular"}),
    "2d reflect same": (nn.Conv2d, (4, 6, 4), {"padding": "same", "padding_mode": "reflect"}),
    "2d replicate": (nn.Conv2d, (4, 6, 3), {"padding": 1, "padding_mode": "replicate", "stride": 2}),
    "3d": (nn.Conv3d, (4, 2, 2), {"stride": (1, 2, 1), "padding": (0, 1, 0)}),
}


class Conv1D(nn.Module):
    """As transformers has it: a linear layer with its weights transposed."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, self.nx), self.weight).reshape(*x.shape[:-1], self.nf)


class Attention(nn.Module):
    def __init__(self, across: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention, self.across = nn.MultiheadAttention(8, 2, dropout=0.5, **options), across

    def others(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x[..., : self.attention.kdim] + 1, x[..., : self.attention.vdim] * 2) if self.across else (x, x)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, *self.others(x))[0]


def summed(vectors: list[Tensor]) -> Tensor:
    """The sum of x x^T in a loop, of mean eigenvalue 1."""
    total = torch.zeros(len(vectors[0]), len(vectors[0]), dtype=torch.float64)
    for vector in vectors:
        total += torch.outer(vector.double(), vector.double())
    return total / total.trace() * len(total)


def vectors_of(rows: Tensor, bias: bool) -> list[Tensor]:
    return [torch.cat([row, row.new_ones(int(bias))]) for row in rows]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_meets_patches(name: str) -> None:
    """The oracle: a convolution of the same form whose every output is one entry of the patch."""
    kind, sizes, options = CONVOLUTIONS[name]
    layer = kind(*sizes, **options)
    groups, (outputs, channels, *kernel) = layer.groups, layer.weight.shape
    x = torch.randn(3, sizes[0], *[7] * len(kernel))
    width = layer.weight[0].numel()
    copy = kind(channels, width, *sizes[2:], **{**options, "groups": 1, "bias": False})
    with torch.no_grad():
        copy.weight.copy_(torch.eye(width).reshape(width, channels, *kernel))
    mask = SubspaceMask(layer)
    mask.consolidate([x[:2], x[2:]])
    for group, part in enumerate(x.split(channels, 1)):
        patches = copy(part).detach().movedim(1, -1).reshape(-1, width)
        expected = summed(vectors_of(patches, layer.bias is not None))
        torch.testing.assert_close(mask.used["itself"][group], expected)
    assert mask.used["itself"].shape[0] == groups
    assert outputs == len(layer.weight)


def test_a_convolution_of_one_image_without_a_batch() -> None:
    layer, x = nn.Conv2d(2, 3, 3), torch.randn(2, 5, 5)
    alone, batch = SubspaceMask(layer), SubspaceMask(layer)
    alone.consolidate([x])
    batch.consolidate([x[None]])
    assert torch.equal(alone.used["itself"], batch.used["itself"])


@pytest.mark.parametrize("layer", [nn.Linear(5, 3), nn.Linear(5, 3, bias=False), Conv1D(3, 5)], ids=str)
def test_a_linear_layer_meets_its_inputs(layer: nn.Module) -> None:
    x = torch.randn(2, 4, 5)
    mask = SubspaceMask(layer)
    mask.consolidate([x])
    expected = summed(vectors_of(x.reshape(-1, 5), layer.bias is not None))
    torch.testing.assert_close(mask.used["itself"][0], expected)


def test_an_embedding_counts_its_rows_without_padding() -> None:
    mask = SubspaceMask(nn.Embedding(5, 2, padding_idx=0))
    mask.consolidate([torch.tensor([[0, 1, 1], [0, 0, 4]])])
    assert torch.equal(mask.used["itself"], torch.tensor([0, 10 / 3, 0, 0, 5 / 3], dtype=torch.float64))


@pytest.mark.parametrize(
    ("across", "options"),
    [(False, {}), (True, {}), (False, {"bias": False}), (True, {"batch_first": True}), (True, {"kdim": 6, "vdim": 5})],
    ids=str,
)
def test_attention_meets_queries_keys_values_and_what_it_gathers(across: bool, options: dict[str, Any]) -> None:
    net, x = Attention(across, **options), torch.randn(4, 4, 8)
    mask = SubspaceMask(net)
    mask.consolidate([x])
    keys, values = net.others(x)
    fused = net.attention.in_proj_weight is not None
    for role, given in (("query", x), ("key", keys), ("value", values)):
        bias = fused and options.get("bias", True)
        expected = summed(vectors_of(given.reshape(-1, given.shape[-1]), bias))
        torch.testing.assert_close(mask.used[f"attention.{role}"][0], expected)
    # The gathered input is the output, seen through the inverse of the output projection.
    out, answer = net.attention.out_proj, net.eval()(x).detach()
    inner = (answer - (0 if out.bias is None else out.bias.detach())) @ out.weight.detach().inverse().T
    expected = summed(vectors_of(inner.reshape(-1, 8), out.bias is not None))
    torch.testing.assert_close(mask.used["attention.out_proj"][0], expected, rtol=1e-3, atol=1e-3)


def test_the_quick_path_of_an_encoder_hides_no_layer() -> None:
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    quick, mask = torch.backends.mha.get_fastpath_enabled(), SubspaceMask(net)
    mask.consolidate([torch.randn(2, 3, 8)])
    assert set(mask.used) >= {"layers.0.linear1", "layers.0.linear2", "layers.0.self_attn.out_proj"}
    assert all(tensor.any() for tensor in mask.used.values())
    assert torch.backends.mha.get_fastpath_enabled() == quick


def test_a_layer_that_is_applied_twice_meets_both_inputs() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    net, x = Twice(), torch.randn(4, 3)
    mask = SubspaceMask(net)
    mask.consolidate([x])
    both = [*x, *net.layer(x).detach()]
    torch.testing.assert_close(mask.used["layer"][0], summed(vectors_of(torch.stack(both), True)))


def test_tied_weights_are_one_layer_and_an_embedding_that_shares_them_another() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.first, self.second = nn.Embedding(5, 5), nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
            self.first.weight = self.second.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(self.words(x)))

    net, x = Tied(), torch.tensor([0, 0, 3])
    mask = SubspaceMask(net)
    mask.consolidate([x])
    assert set(mask.used) == {"words", "first"}
    one, two = net.words(x).detach(), net.first(net.words(x)).detach()
    vectors = [*vectors_of(one, True), *(torch.cat([row, torch.zeros(1)]) for row in two)]
    torch.testing.assert_close(mask.used["first"][0], summed(vectors))


def test_a_low_rank_is_the_best_of_its_rank() -> None:
    layer, x = nn.Linear(9, 3), torch.randn(300, 9) * torch.arange(1.0, 10.0)
    full, low = SubspaceMask(layer), SubspaceMask(layer, rank=4)
    full.consolidate(x.split(70))
    low.consolidate(x.split(70))
    assert low.used["itself"].shape == (1, 10, 4)
    values = torch.linalg.eigvalsh(full.used["itself"])[0].flip(0)
    kept = low.used["itself"][0].square().sum(0)
    assert (kept <= values[:4] * (1 + 1e-9)).all()
    assert (kept >= 0.9 * values[:4]).all()


def test_the_duck_is_transformers_own() -> None:
    theirs = pytest.importorskip("transformers.pytorch_utils").Conv1D
    assert list(inspect.signature(theirs).parameters) == list(inspect.signature(Conv1D).parameters)
    mask = SubspaceMask(theirs(3, 5))
    mask.consolidate([torch.randn(4, 5)])
    assert mask.used["itself"].shape == (1, 6, 6)
