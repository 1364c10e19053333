"""Input that a mask refuses, and sizes at the edge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softmask import SoftMask, fisher_importance, gradient_importance
from softmask.core import cross_head_importance
from tests.core.examples import Roundabout

WRONG_THRESHOLDS = [float("nan"), 2, 1.0001, -0.1, float("-inf"), "x"]


@pytest.mark.parametrize("threshold", WRONG_THRESHOLDS)
def test_a_wrong_threshold_is_refused_wherever_it_comes_from(threshold: Any) -> None:
    mask = SoftMask(nn.Linear(2, 2), threshold=0.5)
    state = {**mask.state_dict(), "threshold": threshold}
    with pytest.raises(ValueError, match="threshold"):
        SoftMask(nn.Linear(2, 2), threshold=threshold)
    with pytest.raises(ValueError, match="threshold"):
        mask.threshold = threshold
    with pytest.raises(ValueError, match="threshold"):
        mask.load_state_dict(state)
    assert mask.threshold == 0.5


@pytest.mark.parametrize("importance", [3, ["weight"], {"weight": "high", "bias": "low"}])
def test_importance_that_is_no_tensors_is_refused(importance: Any) -> None:
    mask = SoftMask(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="importance"):
        mask.load_state_dict({**mask.state_dict(), "importance": importance})
    with pytest.raises(ValueError, match="version"):
        mask.load_state_dict(importance)


@pytest.mark.parametrize("missing", ["threshold", "importance"])
def test_an_incomplete_state_is_refused(missing: str) -> None:
    mask = SoftMask(nn.Linear(2, 2))
    state = {key: value for key, value in mask.state_dict().items() if key != missing}
    with pytest.raises(ValueError, match=missing):
        mask.load_state_dict(state)
    with pytest.raises(ValueError, match="importance"):
        mask.load_state_dict({"version": 1})


NO_ROWS = [(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))] * 2


@pytest.mark.parametrize("kind", [nn.Sequential, Roundabout])
def test_batches_without_rows_are_refused(kind: Any) -> None:
    backbone, head = kind(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4)), nn.Linear(4, 2)
    mask = SoftMask(backbone)
    with pytest.raises(ValueError, match="no samples"):
        mask.consolidate(NO_ROWS, head)
    with pytest.raises(ValueError, match="no samples"):
        cross_head_importance(backbone, NO_ROWS, [head])
    with pytest.raises(ValueError, match="no samples"):
        fisher_importance(backbone, NO_ROWS, lambda x, y: F.cross_entropy(head(backbone(x)), y))
    assert mask.mean() == 0


def test_rows_are_counted_inside_containers() -> None:
    backbone = nn.Linear(3, 2)
    for x in ({"input": torch.zeros(0, 3)}, ["text", torch.zeros(0, 3)], ({"input": torch.zeros(0, 3)},)):
        with pytest.raises(ValueError, match="no samples"):
            gradient_importance(backbone, [(x, None)], [lambda x, _: backbone(torch.zeros(0, 3)).sum()])
    gradient_importance(backbone, [("no tensor at all", None)], [lambda x, _: backbone(torch.ones(1, 3)).sum()])


@pytest.mark.parametrize("kind", [nn.Sequential, Roundabout])
def test_a_batch_without_rows_among_others_changes_nothing(kind: Any) -> None:
    backbone, heads = kind(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4)), [nn.Linear(4, 2) for _ in range(2)]
    full = [(torch.randn(5, 3), torch.randint(2, (5,)))]
    with_empty = [*NO_ROWS, *full]
    for batches in (full, with_empty):
        mask = SoftMask(backbone)
        mask.consolidate(batches, heads[0], heads[1:], loss=nn.CrossEntropyLoss(reduction="sum"))
        if batches is full:
            expected = dict(mask.importance)
    assert all(torch.equal(expected[name], importance) for name, importance in mask.importance.items())


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_parameters_without_entries_have_no_importance() -> None:
    backbone = nn.Linear(0, 3, bias=False)
    mask, head = SoftMask(backbone), nn.Linear(3, 2)
    assert (mask.mean(), mask.blocked()) == (0, 0)
    mask.consolidate([(torch.zeros(4, 0), torch.zeros(4, dtype=torch.long))], head, [head])
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()])
    with mask.attach(optimizer, head=head):
        head(backbone(torch.zeros(4, 0))).sum().backward()
        optimizer.step()
    assert (mask.mean(), mask.blocked()) == (0, 0)
