"""Random paths, mutations, and the width of modules."""

import torch

from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.methods.pathnet import PAPER_WIDTHS, module_width, mutated, random_path


def test_a_random_path_has_distinct_modules_in_every_layer() -> None:
    draws = torch.Generator().manual_seed(0)
    paths = [random_path(5, 16, 3, draws) for _ in range(50)]
    assert all(len(set(layer)) == 3 and all(0 <= m < 16 for m in layer) for path in paths for layer in path)
    assert len({str(path) for path in paths}) == 50
    assert {m for path in paths for layer in path for m in layer} == set(range(16))


def test_mutation_changes_four_fifths_of_an_entry_on_average() -> None:
    """One in L x N entries is drawn, and one jump in five is 0."""
    draws = torch.Generator().manual_seed(0)
    path = [[0, 7, 15]] * 5
    changed = jumps = 0
    seen = set()
    for _ in range(4000):
        for before, after in zip(path, mutated(path, 16, draws), strict=True):
            for old, new in zip(before, after, strict=True):
                changed += old != new
                seen.add((new - old) % 16)
                jumps += 1
    assert abs(changed / 4000 - 0.8) < 0.05
    assert seen == {14, 15, 0, 1, 2}  # -2 .. 2, around the end


def test_width_of_modules() -> None:
    paper = Scenario((3, 32, 32), (10,) * 10)
    assert module_width(paper, 16) == PAPER_WIDTHS[10, 10] == 0.250
    assert module_width(paper, 10) > 0.25  # fewer modules may be wider
    grey = Scenario((1, 28, 28), (10,) * 10)
    assert module_width(grey, 16) > 0.25, "the paper's width is that of colour images"
    narrow = Scenario((3, 32, 32), (10,) * 10, NetworkConfig(width=1 / 4))
    assert module_width(narrow, 16) > 0.25, "what is rounded down counts for more in a narrow network"
    other = Scenario((1, 28, 28), (2,) * 5, NetworkConfig(width=1 / 4))
    assert 0.2 < module_width(other, 16) < 0.3
