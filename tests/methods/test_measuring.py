"""Importance is measured on the task's own head, all earlier ones, the training data; against the oracle."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from softmask.learning.method import Method
from softmask.learning.task import Task
from softmask.methods.ewc import EWC
from softmask.methods.ewc_gi import EWCGI
from softmask.methods.spg import SPG
from softmask.methods.spg_fi import SPGFI, squashed
from softmask.methods.spg_hard import SPGHard
from softmask.methods.spg_no_smh import SPGWithoutMaskedHead
from tests.core import oracle
from tests.core.examples import assert_close
from tests.learning.toys import random_scenario, random_task
from tests.methods.comparing import built


def third_of_four(index: int = 2) -> Task:
    """A task in the middle of four, whose validation data are not its training data."""
    return replace(random_task(index), val=random_task(9).val)


def fisher_by_hand(method: Method, task: Task) -> dict[str, torch.Tensor]:
    head = method.heads[task.id]
    return oracle.fisher(
        method.backbone, list(task.train.batched(5)), lambda x, y: F.cross_entropy(head(method.backbone(x)), y), 5
    )


def test_the_fisher_is_that_of_the_tasks_own_head_on_its_training_data() -> None:
    """In batches of its own size: neither the training's, nor another head's, nor the validation data's."""
    method, task = EWC(random_scenario(tasks=4), EWC.Settings(fisher_batch=5)), third_of_four()
    assert_close(method.measure(task), fisher_by_hand(method, task))


def test_the_fisher_of_spg_fi_is_that_of_ewc() -> None:
    method, task = SPGFI(random_scenario(tasks=4), SPGFI.Settings(fisher_batch=5)), third_of_four()
    method.end_task(random_task(1))  # what was before plays no part but by the maximum afterwards
    expected = {name: squashed(fisher, "standardise") for name, fisher in fisher_by_hand(method, task).items()}
    assert_close(method.measure(task).own, expected)


def importance_by_hand(method: Method, task: Task) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    batches, old = list(task.train), list(method.heads)[: task.id]
    own = oracle.own_importance(method.backbone, batches, method.heads[task.id])
    return own, oracle.cross_importance(method.backbone, batches, old)


@pytest.mark.parametrize("kind", [SPG, SPGHard, SPGWithoutMaskedHead])
def test_importance_is_that_of_the_own_head_and_all_earlier_ones_on_the_training_data(kind: type[SPG]) -> None:
    """Ablations that change the mask leave the measuring, old heads included, as it is."""
    method, task = kind(random_scenario(tasks=4)), third_of_four()
    own, cross = importance_by_hand(method, task)
    found = method.measure(task)
    assert_close(found.own, own)
    assert_close(found.cross, cross)


def test_importance_of_ewc_gi_is_that_of_spg() -> None:
    method, task = EWCGI(random_scenario(tasks=4)), third_of_four()
    own, cross = importance_by_hand(method, task)
    assert_close(method.measure(task), {name: torch.maximum(own[name], cross[name]) for name in own})


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("name", ["spg", "ewc-gi", "spg-no-chi"])
def test_dropout_is_on_while_importance_is_measured(name: str, dropout: bool) -> None:
    found = []
    for seed in (1, 2):
        method, tasks = built(name, importance_dropout=dropout, **{"seeds.batches": seed})
        measured = method.measure(tasks[1])
        fields = measured if name == "ewc-gi" else {"spg": measured.cross, "spg-no-chi": measured.own}[name]
        found.append(fields["fc1.layer.weight"])
    assert torch.equal(*found) != dropout


def test_total_is_told_against_what_was_there_before_the_task() -> None:
    method = SPG(random_scenario(tasks=2))
    method.end_task(random_task(0))
    before, task = dict(method.mask.importance), random_task(1)
    cross = method.measure(task).cross
    facts = method.end_task(task)
    above = torch.cat([(cross[name] > before[name]).flatten() for name in cross])
    assert above.any()
    assert facts["F-total"] == pytest.approx(above.double().mean().item())
