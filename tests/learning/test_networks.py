from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from softmask.core.statistics import unprotected_statistics
from softmask.kernels.chain import needed_input, plain_chain
from softmask.kernels.layers import Linear
from softmask.learning.networks import Backbone, Block, alexnet, resnet18

SHAPES = [(3, 32, 32), (1, 28, 28), (3, 64, 64), (1, 20, 26)]


@pytest.mark.parametrize(("shape", "count"), [((3, 32, 32), 6_503_872), ((1, 28, 28), 6_460_416)])
def test_parameter_counts_are_the_papers(shape: tuple[int, int, int], count: int) -> None:
    with torch.device("meta"):
        net = alexnet(shape)
    assert sum(parameter.numel() for parameter in net.parameters()) == count
    assert net.widths == (64, 128, 256, 2048, 2048)


def test_batch_normalisation_is_that_of_the_batch_in_evaluation_too() -> None:
    """Outputs 1 and 3: mean 2, deviation 1."""
    block = Block(Linear(1, 1), 0.0, "batch").eval()
    with torch.no_grad():
        block.layer.weight.fill_(1.0)
        block.layer.bias.fill_(5.0)
    torch.testing.assert_close(block(torch.tensor([[1.0], [3.0]])), torch.tensor([[0.0], [1.0]]), rtol=0, atol=1e-5)
    assert block(torch.tensor([[3.0], [1.0]]))[0].item() > 0.9, "an image's answer depends on those beside it"
    assert not list(block.buffers()), "no running statistics"


def test_a_normalised_network_has_one_normalisation_a_layer_and_reads_all_pixels() -> None:
    net = alexnet((3, 32, 32), width=0.05, norm="batch")
    assert sum(isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)) for layer in net.plain_layers()) == 5
    assert net.prepare(torch.zeros(2, 3, 32, 32)).shape == (2, 3, 32, 32), "pixels that no pool reads count in a mean"
    x = torch.randn(6, 3, 32, 32)
    torch.testing.assert_close(net.eval()(x), nn.Sequential(*net.plain_layers()).eval()(x), rtol=1e-4, atol=1e-5)


def test_names_and_dropout() -> None:
    net = alexnet((3, 32, 32), width=0.1, drop1=0.3, drop2=0.4)
    layers = ["conv1", "conv2", "conv3", "fc1", "fc2"]
    assert list(net.state_dict()) == [f"{name}.layer.{kind}" for name in layers for kind in ("weight", "bias")]
    assert [block.drop for block in net.blocks] == [0.3, 0.3, 0.4, 0.4, 0.4]
    assert net.widths == (6, 12, 25, 204, 204)
    assert alexnet((3, 32, 32), width=0.001).widths == (1, 1, 1, 2, 2)


def test_the_initialisation_is_torchs_own() -> None:
    torch.manual_seed(5)
    weight = alexnet((3, 32, 32), width=0.1).conv1.layer.weight
    torch.manual_seed(5)
    assert torch.equal(weight, nn.Conv2d(3, 6, 4).weight)


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_plain_chain(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(6)
    net = alexnet(shape, width=0.1, drop1=0.0, drop2=0.0)
    plain = nn.Sequential(*copy.deepcopy(net).plain_layers())
    x = torch.randn(6, *shape)
    expected = plain(x)
    rows, columns = needed_input(net.plain_layers(), *shape[1:])
    by_hand = x[:, :, :rows, :columns].contiguous()
    for block in net:
        by_hand = block(by_hand)
    assert torch.equal(by_hand, expected)  # the crop is exact; the memory format may change the rounding
    torch.testing.assert_close(net(x), expected, rtol=1e-5, atol=1e-6)
    expected.square().sum().backward()
    net(x).square().sum().backward()
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 1e-6 * theirs.grad.norm()


def test_unread_pixels_are_left_out() -> None:
    net = alexnet((3, 32, 32), width=0.05)
    assert net.prepare(torch.zeros(2, 3, 32, 32)).shape == (2, 3, 27, 27)
    x = torch.randn(2, 3, 32, 32, requires_grad=True)
    net.eval()(x).sum().backward()
    assert x.grad[:, :, 27:].abs().max() == 0
    assert x.grad[:, :, :27, :27].abs().max() > 0


def test_blocks_by_hand_after_prepare_give_the_same() -> None:
    net = alexnet((1, 28, 28), width=0.05).eval()
    x = torch.randn(3, 1, 28, 28)
    by_hand = net.prepare(x)
    for block in net:
        by_hand = block(by_hand)
    assert torch.equal(by_hand, net(x))


def test_train_mode_drops_and_eval_mode_does_not() -> None:
    net = alexnet((1, 12, 12), width=0.2)
    x = torch.randn(8, 1, 12, 12)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
    assert all(not layer.training for layer in net.plain_layers() if isinstance(layer, nn.Dropout))


def test_dropout_has_the_plain_chains_distribution() -> None:
    torch.manual_seed(7)
    net = alexnet((1, 12, 12), width=0.05, drop1=0.3, drop2=0.4)
    plain = nn.Sequential(*net.plain_layers())
    x = torch.randn(1, 1, 12, 12).expand(4000, -1, -1, -1)
    with torch.no_grad():
        ours, theirs = net(x), plain(x)
    deviation = ((ours.var(0) + theirs.var(0)) / 4000).sqrt() + 1e-6
    assert ((ours.mean(0) - theirs.mean(0)).abs() / deviation).max() < 4.5
    shares = (ours > 0).float().mean(0) - (theirs > 0).float().mean(0)
    assert shares.abs().max() < 4.5 * (0.5 / 4000) ** 0.5


def test_works_under_autocast_and_after_a_cut() -> None:
    net = alexnet((1, 12, 12), width=0.05)
    with torch.autocast("cpu", torch.bfloat16):
        features = net(torch.randn(2, 1, 12, 12))
    features.float().sum().backward()
    assert features.dtype == torch.bfloat16
    assert net.conv1.layer.weight.grad.dtype == torch.float32
    cut = net[:2]
    assert isinstance(cut, Backbone)
    assert cut.widths == net.widths[:2]


def test_a_backbone_is_a_plain_chain_of_its_own_layers() -> None:
    net = alexnet((1, 12, 12), width=0.05)
    chain = plain_chain(net)
    assert chain is not None
    assert [layer for layer in chain if list(layer.parameters())] == [block.layer for block in net.blocks]


@pytest.mark.parametrize("shape", [(3, 9, 30), (3, 4, 4), (1, 11, 11)])
def test_small_images_are_refused_in_words(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="too small"):
        alexnet(shape)


def test_a_wrong_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="dropout rate"):
        Block(nn.Linear(2, 2), drop=1.5)


def test_it_has_eighteen_weighted_layers_with_the_head() -> None:
    with torch.device("meta"):
        network = resnet18((3, 32, 32))
    main = [part for name, part in network.named_modules() if isinstance(part, nn.Conv2d) and "shortcut" not in name]
    assert len(main) == 17
    # A stem, four stages, three shortcuts, and two numbers a channel for each of twenty norms.
    convolutions = 3 * 64 * 9 + 64 * 64 * 9 * 4
    for before, after in ((64, 128), (128, 256), (256, 512)):
        convolutions += before * after * 9 + 3 * after * after * 9 + before * after
    norms = 2 * (5 * 64 + 5 * 128 + 5 * 256 + 5 * 512)
    assert sum(p.numel() for p in network.parameters()) == convolutions + norms


@pytest.mark.parametrize(("shape", "width"), [((3, 32, 32), 1 / 16), ((1, 28, 28), 1 / 8), ((2, 9, 13), 0.3)])
def test_features_have_the_last_width(shape: tuple[int, ...], width: float) -> None:
    network = resnet18(shape, width=width)
    assert network(torch.randn(2, *shape)).shape == (2, network.widths[-1])


def test_nothing_is_kept_that_a_mask_cannot_protect() -> None:
    """In training too, an image gives the same whatever stands beside it."""
    network = resnet18((3, 16, 16), width=1 / 16).train()
    assert not unprotected_statistics(network)
    assert not list(network.buffers())
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(network(x)[:1], network(x[:1]))


def test_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="takes images"):
        resnet18((10,))
