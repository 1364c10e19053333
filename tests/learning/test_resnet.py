"""The ResNet-18 for small images: its size, its shapes, and that no image depends on another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from softmask.core.statistics import unprotected_statistics
from softmask.learning.resnet import resnet18


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
