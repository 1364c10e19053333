"""Small facts about importance that are kept with a run."""

import pytest
import torch

from softmask.learning.parts.capacity import cross_head_facts


def test_facts_about_old_heads_by_hand() -> None:
    own, cross, before = (
        {"a": torch.tensor(values[:3]), "b": torch.tensor(values[3:])}
        for values in ([0.5, 0.2, 0.9, 0.0], [0.7, 0.1, 0.9, 0.4], [0.6, 0.3, 0.95, 0.5])
    )
    facts = cross_head_facts(own, cross, before)
    assert facts == pytest.approx({"F-each": 0.5, "G-each": 0.3, "F-total": 0.25, "G-total": 0.1}, abs=1e-6)
    assert cross_head_facts(own, {}, before) == {}
