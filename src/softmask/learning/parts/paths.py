"""Paths through a network of modules, and how wide its modules are (PathNet)."""

from __future__ import annotations

from functools import partial

import torch

from softmask.learning.parts.columns import modular_parameters, widest
from softmask.learning.scenario import Scenario

Path = list[list[int]]
"""For every layer, the modules whose outputs are summed; one that stands twice counts twice."""

LARGEST_JUMP = 2

# The share of the plain network's units with which modules have the size that the paper gives: with 16 modules a layer,
# by the number of tasks and of classes a task. Other numbers of modules fit the paper as well.
PAPER_MODULES = 16
PAPER_WIDTHS = {(10, 10): 0.250, (20, 5): 0.255, (10, 20): 0.252, (20, 10): 0.250, (100, 10): 0.275}
PAPER_WIDTHS |= {(10, 2): 0.249, (20, 2): 0.248, (10, 62): 0.269, (20, 62): 0.279}
COLOUR = (3, 32, 32)
PAPER_SHAPES = {62: (1, 28, 28)}  # handwriting; all others are in colour
WIDTHS = tuple(step / 1000 for step in range(1, 1001))


def random_path(layers: int, modules: int, active: int, draws: torch.Generator) -> Path:
    """So many distinct modules for every layer."""
    return [torch.randperm(modules, generator=draws)[:active].tolist() for _ in range(layers)]


def mutated(path: Path, modules: int, draws: torch.Generator) -> Path:
    """On average one entry is drawn to jump by -2 to 2, around the end if need be."""
    entries = torch.tensor(path)
    drawn = torch.rand(entries.shape, generator=draws) < 1 / entries.numel()
    jumps = torch.randint(-LARGEST_JUMP, LARGEST_JUMP + 1, entries.shape, generator=draws)
    return ((entries + drawn * jumps) % modules).tolist()


def module_width(scenario: Scenario, modules: int) -> float:
    """What gives the paper's size where it has the scenario, else what fits into the size of the plain network."""
    fitted = PAPER_WIDTHS.get((scenario.num_tasks, scenario.classes[0]))
    same_shape = scenario.input_shape == PAPER_SHAPES.get(scenario.classes[0], COLOUR) and scenario.network.width == 1
    if fitted is not None and modules == PAPER_MODULES and len(set(scenario.classes)) == 1 and same_shape:
        return fitted
    return widest(scenario, WIDTHS, partial(modular_parameters, modules=modules))
