"""The bases of GPM and SGP against versions with explicit vectors, singular values and loops."""

import pytest
import torch
from torch import Tensor

from softmask.core.directions import with_scaled_basis, with_task

THRESHOLD, ALPHA = 0.9, 5.0


def inputs(task: int, width: int = 7, samples: int = 30) -> Tensor:
    """Each task uses directions of its own, with falling energy."""
    generator = torch.Generator().manual_seed(task)
    mixing = torch.randn(width, width, generator=generator, dtype=torch.float64)
    scale = 0.5 ** torch.arange(width, dtype=torch.float64)
    return torch.randn(samples, width, generator=generator, dtype=torch.float64) * scale @ mixing


def moment(x: Tensor) -> Tensor:
    """[1, width, width] with trace `width`."""
    product = x.T @ x
    return (product * len(product) / product.trace())[None]


def basis_grows(basis: list[Tensor], x: Tensor) -> list[tuple[Tensor, float]]:
    """New directions and the length of the inputs along each."""
    rest = x.clone()
    for vector in basis:
        rest -= torch.outer(rest @ vector, vector)
    _, lengths, vectors = torch.linalg.svd(rest, full_matrices=False)
    covered = 1 - (lengths.square().sum() / x.square().sum()).item()
    new = []
    for length, vector in zip(lengths, vectors, strict=True):
        if covered >= THRESHOLD:
            break
        new.append((vector, length.item()))
        covered += (length.square() / x.square().sum()).item()
    return new


def test_gpm_against_explicit_vectors() -> None:
    used, basis = None, list[Tensor]()
    for task in range(4):
        x = inputs(task)
        used = with_task(used, moment(x), "gpm", THRESHOLD)
        basis += [vector for vector, _ in basis_grows(basis, x)]
        torch.testing.assert_close(used[0], sum(torch.outer(v, v) for v in basis))
    assert len(basis) > 2


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_sgp_against_explicit_vectors(alpha: float) -> None:
    used = None
    known: list[tuple[Tensor, float]] = []
    for task in range(4):
        x = inputs(task)
        used = with_scaled_basis(used, moment(x), THRESHOLD, alpha)
        top = torch.linalg.svdvals(x)[0].item()
        new = basis_grows([vector for vector, _ in known], x)

        def importance(length: float, top: float = top) -> float:
            return (alpha + 1) * length / (alpha * length + top)

        known = [(v, min(1.0, share + importance((x @ v).norm().item()))) for v, share in known]
        known += [(vector, importance(length)) for vector, length in new]
        torch.testing.assert_close(used[0], sum(share * torch.outer(v, v) for v, share in known))
    assert any(share < 1 for _, share in known)


def test_inputs_that_are_zero_take_no_direction() -> None:
    nothing = torch.zeros(1, 3, 3, dtype=torch.float64)
    assert torch.equal(with_scaled_basis(None, nothing, THRESHOLD, ALPHA), nothing)
