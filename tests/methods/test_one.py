"""ONE: the order of the tasks changes the order of the results and nothing else."""

from dataclasses import replace

import torch

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import build, load
from softmask.learning.protocol import learn_sequence
from softmask.testing import InMemoryJournal
from tests.methods.comparing import built


def test_permuting_the_tasks_permutes_the_results() -> None:
    config = make_config("one", "D-5", preset="short", tasks=3, changes={"width": 1 / 16, "epochs": 3})
    sequence = load(config, None)
    order = [2, 0, 1]
    tasks = tuple(replace(sequence.tasks[old], ids=(new,)) for new, old in enumerate(order))
    permuted = replace(sequence, tasks=tasks, tests=tuple(sequence.tests[old] for old in order))
    weights = []
    for each in (sequence, permuted):
        method = build(config, each)
        learn_sequence(method, each.tasks, config.training, InMemoryJournal(), tests=each.tests)
        weights.append([list(backbone.parameters()) for backbone in method.backbones])
    for new, old in enumerate(order):
        assert all(torch.equal(a, b) for a, b in zip(weights[1][new], weights[0][old], strict=True))


def test_initial_weights_follow_from_seed_and_task() -> None:
    first = {}
    for seed in (1, 2):
        method, tasks = built("one", **{"seeds.init": seed})
        for task in tasks:
            method.begin_task(task)
            first[seed, task.id] = method.backbones[task.id].fc1.layer.weight.detach().clone()
    assert not torch.equal(first[1, 0], first[1, 1]), "not HAT's one start for all"
    assert not torch.equal(first[1, 0], first[2, 0]), "nor the same for every seed"


def test_a_new_network_disturbs_no_other_draws() -> None:
    """Else dropout would follow from the seed of the initial weights instead of that of the batches."""
    method, tasks = built("one")
    state = torch.get_rng_state()
    method.begin_task(tasks[1])
    assert torch.equal(torch.get_rng_state(), state)
