"""The training of a model folder: defaults by optimizer, changes to them, and folders of version 0.1."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from softmask.errors import ConfigError
from softmask.learning.training import Training
from softmask.models import ContinualModel, ModelConfig
from softmask.models.data import Labelled
from softmask.models.description import KnownTask, parse_config
from softmask.models.training import ADAMW, SGD, usual_training
from tests.models.examples import blobs, small_model

TASK = KnownTask("old", ("a", "b"), 10, 0.5, 1, 0.0, "2026-01-01", None)


def config(optimizer: str = "adamw", tasks: int = 0, shape: tuple[int, ...] = (3, 8, 8)) -> ModelConfig:
    known = tuple(replace(TASK, name=f"old {index}") for index in range(tasks))
    return ModelConfig(network="mlp", input_shape=shape, optimizer=optimizer, tasks=known)  # type: ignore[arg-type]


def samples(count: int = 2000, shape: tuple[int, ...] = (3, 8, 8), kind: torch.dtype = torch.uint8) -> Labelled:
    return Labelled(torch.zeros(count, *shape, dtype=kind), torch.arange(count) % 2, ("a", "b"))


def test_folders_of_version_0_1_go_on_as_before() -> None:
    description = {"format": 1, "network": "mlp", "input_shape": [3, 8, 8], "method": "spg"}
    old = parse_config(json.dumps(description), "config.json")
    assert (old.optimizer, old.dropout) == ("sgd", True)
    first = Training(lr=0.05, lr_min=1e-3, patience=4, epochs=100, batch=32, shuffle=True)
    assert usual_training(old, None, samples()) == first
    assert usual_training(replace(old, tasks=(TASK,)), None, samples()) == replace(first, lr=0.01)


@pytest.mark.parametrize(
    ("method", "optimizer", "dropout"), [("lwf", "adamw", False), ("ncl", "adamw", False), ("spg", "sgd", True)]
)
def test_new_folders_learn_as_suits_their_method(tmp_path: Path, method: str, optimizer: str, dropout: bool) -> None:
    made = ContinualModel.create(tmp_path / "m", network="mlp", input_shape=(6,), width=1 / 16, method=method)
    assert (made.config.optimizer, made.config.dropout) == (optimizer, dropout)
    assert ContinualModel.open(tmp_path / "m").config == made.config


def test_answers_are_kept_by_default(tmp_path: Path) -> None:
    made = ContinualModel.create(tmp_path / "m", network="mlp", input_shape=(6,), width=1 / 16)
    assert (made.config.method, made.config.settings) == ("lwf", {"strength": 0.5})
    warmer = ContinualModel.create(tmp_path / "w", network="mlp", input_shape=(6,), settings={"temperature": 3.0})
    assert warmer.config.settings == {"strength": 0.5, "temperature": 3.0}
    stronger = ContinualModel.create(tmp_path / "s", network="mlp", input_shape=(6,), settings={"strength": 1.0})
    assert stronger.config.settings == {"strength": 1.0}


@pytest.mark.parametrize(
    ("train", "shape", "augment"),
    [
        (samples(), (3, 8, 8), "crop-flip"),
        (samples(shape=(1, 8, 8)), (1, 8, 8), "none"),
        (samples(kind=torch.float32), (3, 8, 8), "none"),
        (samples(shape=(3,)), (3,), "none"),
    ],
    ids=["photographs", "grey", "floats", "no images"],
)
def test_only_photographs_are_augmented(train: Labelled, shape: tuple[int, ...], augment: str) -> None:
    assert usual_training(config(shape=shape), None, train).augment == augment
    assert usual_training(config(shape=shape), {"augment": "none"}, train).augment == "none"


@pytest.mark.parametrize(("count", "epochs"), [(2000, 20), (1000, 32), (100, 200)])
def test_small_tasks_take_more_epochs(count: int, epochs: int) -> None:
    assert usual_training(config(), None, samples(count)).epochs == epochs
    assert usual_training(config(), {"epochs": 3}, samples(count)).epochs == 3


def test_another_optimizer_brings_its_defaults() -> None:
    assert usual_training(config(), {"optimizer": "sgd"}) == SGD
    assert usual_training(config("sgd"), {"optimizer": "adamw"}) == ADAMW
    assert usual_training(config("sgd", tasks=1), {"optimizer": "adamw", "lr": 0.5}) == replace(ADAMW, lr=0.5)


@pytest.mark.parametrize("changes", [Training(epochs=7), replace(Training(), epochs=7), {"epochs": 7}])
def test_fields_that_are_not_named_keep_their_defaults(changes: Training | dict[str, int]) -> None:
    assert usual_training(config(), changes) == replace(ADAMW, epochs=7)


def test_a_replaced_field_leaves_the_others_as_they_were_given() -> None:
    given = replace(Training(epochs=7), batch=16)
    assert given.given == {"epochs", "batch"}
    assert usual_training(config(), given) == replace(ADAMW, epochs=7, batch=16)
    assert copy.deepcopy(Training(lr=0.25)).given == {"lr"}, "the paper's rate, but asked for"


def test_a_low_rate_and_few_epochs_need_no_other_field() -> None:
    assert usual_training(config(), {"lr": 1e-6}) == replace(ADAMW, lr=1e-6, lr_min=1e-6)
    assert usual_training(config(), {"epochs": 1}) == replace(ADAMW, epochs=1, warmup_epochs=0)


@pytest.mark.parametrize(
    "wrong", [{"epoch": 3}, {"epochs": "many"}, {"optimizer": "adam"}, {"lr": True}, {"lr": 1e-3, "lr_min": 0.1}]
)
def test_mistakes_are_told_before_images_are_read(tmp_path: Path, wrong: dict[str, object]) -> None:
    model = small_model(tmp_path / "m", tasks=0)
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        model.learn("task", tmp_path / "nowhere", training=wrong)


def test_the_training_of_a_task_is_that_of_its_folder(tmp_path: Path) -> None:
    seen: list[Training] = []
    model = ContinualModel.create(tmp_path / "m", network="mlp", input_shape=(6,), width=1 / 16)
    model.learn("task", blobs(0), training={"epochs": 2}, watch=lambda _, fit: seen.append(fit.training))
    assert (seen[0].optimizer, seen[0].epochs, seen[0].weight_decay) == ("adamw", 2, ADAMW.weight_decay)
