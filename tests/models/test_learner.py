"""Every method that a growing model may have: its memory does not depend on the number of tasks, and it learns on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from softmask.errors import ConfigError
from softmask.models import ContinualModel, ModelConfig
from softmask.models.learner import OPEN_ENDED, LearnerError, make_method, method_settings
from tests.models.examples import QUICK, blobs, small_model


@pytest.mark.parametrize("method", OPEN_ENDED)
def test_memory_beside_the_heads_is_the_same_for_any_number_of_tasks(method: str) -> None:
    config = ModelConfig(network="mlp", input_shape=(6,), width=1 / 16, method=method)
    one, three = (make_method(config, "mlp", classes).state_dict() for classes in ((2,), (2, 3, 4)))
    shared = [name for name in three if not name.startswith("heads.")]
    assert shared == [name for name in one if not name.startswith("heads.")]
    for name in shared:
        if isinstance(one[name], torch.Tensor):
            assert torch.equal(one[name], three[name]), "initial numbers follow from the seed alone"
    assert torch.equal(one["heads.0.weight"], three["heads.0.weight"])


@pytest.mark.parametrize("method", [name for name in OPEN_ENDED if name not in ("spg", "ncl")])
@pytest.mark.filterwarnings("ignore")
def test_it_learns_on_after_a_restart(tmp_path: Path, method: str) -> None:
    small_model(tmp_path / "m", tasks=1, method=method)
    model = ContinualModel.open(tmp_path / "m")
    assert model.learn("task 1", blobs(1), training=QUICK).accuracy >= 0.5
    again = ContinualModel.open(tmp_path / "m")
    x = blobs(0)[0]
    assert torch.equal(model.probabilities(x, 0), again.probabilities(x, 0))


def test_settings_are_checked() -> None:
    assert method_settings("ewc", {"strength": 3}).strength == 3
    with pytest.raises(LearnerError, match="did you mean 'strength'"):
        method_settings("ewc", {"strenght": 3})
    assert method_settings("ewc", {"lr": 0.1}).lr == 0.1
    assert method_settings("ewc", {"lr": None}).lr is None
    assert method_settings("lwf", {}).lr is None, "the benchmark's default is no rate for AdamW"
    with pytest.raises(ConfigError, match=r"strength: .*number.*not 'much'"):
        method_settings("ewc", {"strength": "much"})
    with pytest.raises(ConfigError, match=r"strength: .*not below|strength must"):
        method_settings("ewc", {"strength": -1})
    for wrong in (1, None):
        with pytest.raises(ConfigError, match=f"importance_dropout: .*boolean.*not {wrong}"):
            method_settings("spg", {"importance_dropout": wrong})
