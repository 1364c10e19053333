"""Where a task begins: with the weights that the last one left, and the head that was there from the start."""

import pytest
import torch

from tests.methods.comparing import built

SHARED = ["ncl", "ewc", "ewc-gi", "si", "ucl", "a-gem", "tag", "hat", "cat", "wsn"]
SHARED += ["spg", "spg-fi", "spg-no-chi", "spg-no-smh", "spg-hard", "spg-uniform", "spg-shuffled"]
SHARED += ["lwf", "gpm", "sgp", "spg-plus", "mas", "er", "der-plus", "mir", "gem", "icarl", "mer", "gr"]
SHARED += ["trgp", "gpm-became", "binplay", "dmc"]


@pytest.mark.parametrize("name", SHARED)
def test_beginning_a_task_leaves_the_network_as_it_is(name: str) -> None:
    """Started anew, nothing would be carried from task to task, and much would seem forgotten."""
    method, tasks = built(name)
    for task in tasks:
        before = {key: parameter.detach().clone() for key, parameter in method.named_parameters()}
        method.begin_task(task)
        for key, parameter in method.named_parameters():
            if key.startswith(("backbone.", "heads.")):
                assert torch.equal(parameter, before[key])
