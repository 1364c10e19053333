"""More data for a known task: its head goes on learning and grows, and other tasks stay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from softmask.core import RetentionError
from softmask.errors import DataError, SoftmaskError, UnknownName
from softmask.models import ContinualModel
from softmask.models.growing import GrowingHead, grown_classes, settled, shift_new_classes
from softmask.models.learner import OPEN_ENDED
from tests.models.examples import QUICK, blobs, longer, small_model
from tests.models.test_gate import content

DESTRUCTIVE = longer(lr=1.0, epochs=12)
GENTLE = {"optimizer": "sgd", "lr": 0.01, "epochs": 20, "schedule": "cosine", "shuffle": True, "batch": 32}


def of_classes(seed: int, *classes: int, count: int = 90) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of some of four classes."""
    x, y = blobs(seed, classes=4, count=2 * count)
    rows = torch.isin(y, torch.tensor(classes))
    return x[rows], y[rows]


def known(path: Path, method: str = "lwf", probe: int = 12) -> ContinualModel:
    """Two tasks; the first knows classes 0 and 1 of four."""
    model = small_model(path, tasks=0, method=method, width=1 / 4)
    model.learn("first", of_classes(0, 0, 1), training=GENTLE, probe=probe)
    model.learn("second", blobs(1), training=GENTLE, probe=4)
    return model


@pytest.mark.parametrize("method", OPEN_ENDED)
def test_new_classes_are_added_and_the_old_ones_stay_known(tmp_path: Path, method: str) -> None:
    model = known(tmp_path / "m", method)
    old = model.config.tasks[0]
    model.learn("first", of_classes(0, 0, 1, 2, 3), training=QUICK, more=True)
    again = ContinualModel.open(model.path)
    assert again.tasks == ("first", "second")
    grown = again.config.tasks[0]
    assert grown.classes == ("0", "1", "2", "3")
    assert grown.samples == old.samples + 164
    assert grown.epochs == GENTLE["epochs"] + QUICK.epochs
    x, y = of_classes(0, 0, 1, 2, 3)
    assert (again.probabilities(x, "first").argmax(1) == y).double().mean() > 0.8
    assert torch.equal(again.probabilities(x, "first"), model.probabilities(x, "first"))
    assert [drift.samples for drift in again.inspect(probe=True).drift] == [8, 4]
    model.learn("third", blobs(2), training=QUICK)
    assert ContinualModel.open(model.path).tasks == ("first", "second", "third")


def test_new_classes_alone_do_not_push_the_old_ones_out(tmp_path: Path) -> None:
    model = known(tmp_path / "m")
    x, y = of_classes(0, 0, 1)
    row = model._method.heads[0].weight.detach().clone()  # type: ignore[operator]
    facts = model.learn("first", of_classes(0, 2), training=GENTLE, more=True, probe=3)
    assert facts.classes == ("0", "1", "2")
    assert (model.probabilities(x, "first").argmax(1) == y).double().mean() > 0.6
    assert (model.probabilities(of_classes(0, 2)[0], "first").argmax(1) == 2).double().mean() > 0.5
    assert torch.equal(model._method.heads[0].weight[:2], row), "rows of classes without new images are held"
    (drift, _) = model.inspect(probe=True).drift
    assert drift.samples == 11, "earlier samples and new ones"


def test_without_kept_samples_old_classes_need_new_images(tmp_path: Path) -> None:
    model = known(tmp_path / "m", probe=0)
    before = content(model.path)
    with pytest.raises(SoftmaskError, match="no images of '0'"):
        model.learn("first", of_classes(0, 1, 2), training=QUICK, more=True)
    assert content(model.path) == before
    model.learn("first", of_classes(0, 0, 1, 2), training=QUICK, more=True)
    assert model.config.tasks[0].classes == ("0", "1", "2")


def test_more_data_may_be_of_one_class_and_pass_the_gate(tmp_path: Path) -> None:
    model = known(tmp_path / "m")
    model.learn("first", of_classes(0, 1), training=QUICK, more=True, retain=0.5)
    assert model.config.tasks[0].classes == ("0", "1")


def test_more_data_that_destroy_are_refused(tmp_path: Path) -> None:
    model = known(tmp_path / "m", "ncl")
    before = content(model.path)
    x, y = of_classes(0, 0, 1)
    with pytest.raises(RetentionError) as refused:
        model.learn("first", (x, 1 - y), training=DESTRUCTIVE, more=True, retain=0.98)
    assert "first" in refused.value.lost
    assert content(model.path) == before
    assert ContinualModel.open(model.path).config == model.config


def test_mistakes_change_nothing(tmp_path: Path) -> None:
    model = known(tmp_path / "m")
    before = content(model.path)
    with pytest.raises(UnknownName):
        model.learn("frist", of_classes(0, 0, 1), more=True)
    with pytest.raises(SoftmaskError, match="--more"):
        model.learn("first", of_classes(0, 0, 1))
    with pytest.raises(DataError, match="floats"):
        model.learn("first", (torch.zeros(8, 6, dtype=torch.uint8), torch.arange(8) % 2), more=True)
    assert content(model.path) == before


def test_rows_of_a_growing_head() -> None:
    old, fresh = nn.Linear(3, 2), nn.Linear(3, 4)
    head = GrowingHead(old, fresh, torch.tensor([True, False, False, False]))
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        head(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
    plain = settled(head)
    x = torch.randn(5, 3)
    assert torch.allclose(plain(x), head(x))
    assert torch.equal(plain.weight[0], old.weight[0])
    assert torch.equal(plain.bias[0], old.bias[0])
    assert not torch.equal(plain.weight[1], old.weight[1])
    assert grown_classes(("b", "a"), ("a", "c", "b", "d")) == ("b", "a", "c", "d")


def test_the_offset_of_new_classes() -> None:
    """By hand: old samples are right below -2, new ones above -4, so that -3 is right for all."""
    head = nn.Linear(1, 3)
    before = head.bias.detach().clone()
    old = torch.tensor([[1.0, 0.0, 3.0], [0.0, 1.0, 3.0]]), torch.tensor([0, 1])
    new = torch.tensor([[0.0, 0.0, 4.0]]), torch.tensor([2])
    shift_new_classes(head, 2, old, new)
    assert (head.bias - before).tolist() == pytest.approx([0, 0, -3])


def test_a_search_finds_the_first_strength_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = known(tmp_path / "m")
    tried: list[float] = []
    real = RetentionError(0.9, {"first": [1.0, 0.0]}, ["first"])

    def check(gate: object, method: object) -> None:
        tried.append(method.settings.strength)  # type: ignore[attr-defined]
        if len(tried) < 3:
            raise real

    monkeypatch.setattr("softmask.models.gate.FolderGate.check", check)
    settings = model.config.settings
    with pytest.warns(UserWarning, match="learned again"):
        model.learn("third", blobs(2), training=QUICK, retain=0.9, search_minutes=5, probe=3)
    assert tried == [0.5, 1.0, 2.0]
    assert model.config.settings == settings, "the next task begins with the folder's own strength"
    assert model.history().events[-1].facts["strength"] == 2.0
    tried.clear()
    other = ContinualModel.open(shutil.copytree(model.path, tmp_path / "other"))
    before = content(other.path)
    with pytest.raises(RetentionError):
        other.learn("fourth", blobs(3), training=QUICK, retain=0.9, search_minutes=1e-9)
    assert len(tried) == 1, "no attempt begins that cannot end in time"
    assert content(other.path) == before


def test_without_a_strength_the_rate_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = known(tmp_path / "m", "ncl")
    tried: list[int] = []

    def check(gate: object, method: object) -> None:
        tried.append(1)
        if len(tried) < 2:
            raise RetentionError(0.9, {"first": [1.0, 0.0]}, ["first"])

    monkeypatch.setattr("softmask.models.gate.FolderGate.check", check)
    with pytest.warns(UserWarning, match="learned again"):
        model.learn("third", blobs(2), training=QUICK, retain=0.9, search_minutes=5)
    assert model.history().events[-1].facts["lr"] == pytest.approx(QUICK.lr / 2)
    with pytest.raises(SoftmaskError, match="retain"):
        model.learn("fourth", blobs(3), search_minutes=5)
