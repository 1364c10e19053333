from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from softmask.kernels.chain import needed_input, plain_chain

SIDES = st.integers(5, 22)


@st.composite
def convolution(draw: st.DrawFn, channels: int, padded: bool) -> nn.Conv2d:
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) if padded else 0
    return nn.Conv2d(channels, 2, draw(pair), draw(pair), padding, draw(pair))


@st.composite
def pool(draw: st.DrawFn, padded: bool) -> nn.MaxPool2d:
    kernel = draw(st.integers(1, 3))
    padding = draw(st.integers(0, kernel // 2)) if padded else 0
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=padded and draw(st.booleans()))


@st.composite
def chains(draw: st.DrawFn, padded: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = 1
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            layers.append(draw(convolution(channels, padded)))
            channels = 2
        else:
            layers.append(draw(pool(padded)))
    return layers


def output(chain: list[nn.Module], x: torch.Tensor) -> torch.Tensor | None:
    """None where a layer finds its input too small."""
    try:
        with torch.no_grad():
            return nn.Sequential(*chain).double()(x)
    except RuntimeError:
        return None


def crop_of(chain: list[nn.Module], x: torch.Tensor) -> tuple[int, int]:
    full = output(chain, x)
    assume(full is not None and full.numel() > 0)
    return needed_input(chain, x.size(2), x.size(3))


@settings(max_examples=150, deadline=None)
@given(chains(padded=True), SIDES, SIDES)
def test_the_crop_changes_nothing(chain: list[nn.Module], height: int, width: int) -> None:
    x = torch.randn(2, 1, height, width, dtype=torch.float64)
    rows, columns = crop_of(chain, x)
    assert rows <= height
    assert columns <= width
    cropped = output(chain, x[:, :, :rows, :columns].contiguous())
    assert cropped is not None
    # A dilated pool may have a window within its padding: -inf, and NaN after a convolution.
    torch.testing.assert_close(cropped, output(chain, x), rtol=0, atol=0, equal_nan=True)


def test_every_layer_of_the_cropped_image_has_an_input() -> None:
    # The last layer reads padding alone, so that any width would do for it.
    chain = [nn.MaxPool2d(1, 2), nn.MaxPool2d(2, 1, dilation=2), nn.Conv2d(1, 2, 1, (1, 3), (0, 1))]
    x = torch.randn(2, 1, 5, 5, dtype=torch.float64)
    rows, columns = needed_input(chain, 5, 5)
    assert output(chain, x[:, :, :rows, :columns].contiguous()) is not None


@settings(max_examples=150, deadline=None)
@given(chains(padded=False), SIDES, SIDES)
def test_one_row_or_column_less_changes_the_output(chain: list[nn.Module], height: int, width: int) -> None:
    # A growing image: every maximum lies at the bottom right of its window, so that no pool hides the last pixel.
    ramp = torch.arange(height)[:, None] * 100.0 + torch.arange(width)
    for layer in chain:
        if isinstance(layer, nn.Conv2d):
            nn.init.uniform_(layer.weight, 0.5, 1.0)
    x = ramp.double()[None, None]
    full = output(chain, x)
    rows, columns = crop_of(chain, x)
    for fewer_rows, fewer_columns in ((rows - 1, columns), (rows, columns - 1)):
        cropped = output(chain, x[:, :, :fewer_rows, :fewer_columns])
        assert cropped is None or cropped.shape != full.shape or not torch.equal(cropped, full)


@settings(max_examples=60, deadline=None)
@given(chains(padded=True), SIDES, SIDES)
def test_sizes_follow_torch(chain: list[nn.Module], height: int, width: int) -> None:
    x = torch.zeros(1, 1, height, width, dtype=torch.float64)
    full = output(chain, x)
    if full is None or full.numel() == 0:
        with pytest.raises(ValueError, match="too small"):
            needed_input(chain, height, width)
    else:
        needed_input(chain, height, width)


def test_padding_at_the_end_forbids_a_crop() -> None:
    chain = [nn.Conv2d(1, 1, 3, padding=1)]
    assert needed_input(chain, 9, 9) == (9, 9)
    # Two rows are left over: one that the pool drops, and the padding's influence that goes with it.
    assert needed_input([nn.Conv2d(1, 1, 3, padding="same"), nn.MaxPool2d(4)], 11, 8) == (9, 8)


def test_padding_by_reflection_keeps_everything() -> None:
    chain = [nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), nn.MaxPool2d(4)]
    assert needed_input(chain, 11, 11) == (11, 11)


def test_a_linear_layer_reads_everything() -> None:
    assert needed_input([nn.Flatten(), nn.Linear(81, 2)], 9, 9) == (9, 9)


class Renamed(nn.Sequential):
    pass


class Doubled(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Promised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def plain_layers(self) -> list[nn.Module]:
        return [self.layer, nn.ReLU()]


def test_nested_sequences_and_promises_are_flattened() -> None:
    inner, promised = nn.Linear(4, 3), Promised()
    chain = plain_chain(nn.Sequential(nn.Flatten(), Renamed(inner, nn.ReLU()), promised))
    assert chain is not None
    assert [type(layer) for layer in chain] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert chain[1] is inner
    assert chain[3] is promised.layer


@pytest.mark.parametrize(
    "other",
    [Doubled(nn.Linear(2, 2)), nn.BatchNorm1d(2), nn.Softmax(1), nn.MaxPool2d(2, return_indices=True)],
    ids=["own-forward", "batch-norm", "softmax", "indices"],
)
def test_anything_else_is_no_plain_chain(other: nn.Module) -> None:
    assert plain_chain(nn.Sequential(nn.Linear(2, 2), other)) is None


@pytest.mark.parametrize("where", ["sequence", "layer", "promised layer"])
def test_a_hook_makes_a_layer_other_than_plain(where: str) -> None:
    promised = Promised()
    net = nn.Sequential(nn.Linear(3, 3), promised)
    {"sequence": net, "layer": net[0], "promised layer": promised.layer}[where].register_forward_hook(
        lambda module, inputs, out: 2 * out
    )
    assert plain_chain(net) is None


def test_a_parametrised_layer_is_not_plain() -> None:
    assert plain_chain(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))) is None
