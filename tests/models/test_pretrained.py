"""Networks that come pretrained: their weights, and that they are protected from the first task on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from softmask.core import RetentionError
from softmask.errors import ConfigError, SoftmaskError, UnknownName
from softmask.models import ContinualModel
from softmask.models.learner import LearnerError
from softmask.models.networks import NetworkError, name_of
from tests.models.examples import QUICK, blobs, longer

GENTLE = longer(lr=0.02, epochs=30)
DESTRUCTIVE = longer(lr=1.0, epochs=12)


def pretrained_network() -> nn.Module:
    """Weights that a file would hold."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())


def moved(model: ContinualModel) -> float:
    """How far the features of other points have gone."""
    x = blobs(9)[0]
    with torch.no_grad():
        before, after = pretrained_network().eval()(x), model._method.backbone.eval()(x)
        return ((before - after).norm() / before.norm()).item()


def test_a_pretrained_network_is_protected_from_the_first_task_on(tmp_path: Path) -> None:
    found = {}
    for pretrained in (False, True):
        model = ContinualModel.create(tmp_path / str(pretrained), pretrained_network, (6,), pretrained=pretrained)
        assert moved(model) == 0, "its weights are those that it came with"
        facts = model.learn("first", blobs(0), training=GENTLE)
        found[pretrained] = moved(model)
        assert facts.accuracy is not None
        assert facts.accuracy > 0.8
    assert found[True] < 0.5 * found[False]
    again = ContinualModel.open(tmp_path / "True", pretrained_network)
    assert again.config.pretrained
    again.learn("second", blobs(1), training=QUICK)
    assert torch.equal(again._method.backbone[1].running_mean, torch.zeros(16)), "statistics are those it came with"


def test_only_some_methods_protect_a_pretrained_network(tmp_path: Path) -> None:
    with pytest.raises(LearnerError):
        ContinualModel.create(tmp_path / "m", pretrained_network, (6,), method="ncl", pretrained=True)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("network", ["alexnet", "timm:resnet10t"])
def test_a_pretrained_network_by_name_needs_weights(tmp_path: Path, network: str) -> None:
    """Its random features would be protected, and nothing learned well."""
    with pytest.raises(ConfigError):
        ContinualModel.create(tmp_path / "m", network, (3, 32, 32), pretrained=True)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_weights_from_a_file(tmp_path: Path, ending: str) -> None:
    file, state = tmp_path / f"weights{ending}", pretrained_network().state_dict()
    state = {**state, "0.weight": torch.full((16, 6), 0.5), "old_head.weight": torch.zeros(3)}
    save_file(state, file) if ending == ".safetensors" else torch.save(state, file)
    with pytest.warns(UserWarning, match="old_head"):
        model = ContinualModel.create(tmp_path / "m", pretrained_network, (6,), weights=file)
    assert model.config.pretrained
    again = ContinualModel.open(model.path, pretrained_network)
    assert torch.equal(again._method.backbone[0].weight, torch.full((16, 6), 0.5))


def test_weights_that_do_not_fit_make_no_model(tmp_path: Path) -> None:
    states = {"lacks": {"0.weight": torch.zeros(16, 6)}, "shape": {"0.weight": torch.zeros(2, 2)}, "code": nn.ReLU()}
    for name, state in states.items():
        torch.save(state, tmp_path / f"{name}.pt")
        with pytest.raises(NetworkError):
            ContinualModel.create(tmp_path / "m", pretrained_network, (6,), weights=tmp_path / f"{name}.pt")
    (tmp_path / "damaged.safetensors").write_bytes(b"no")
    for name in ("damaged.safetensors", "nothing.pt", "."):
        with pytest.raises(NetworkError):
            ContinualModel.create(tmp_path / "m", pretrained_network, (6,), weights=tmp_path / name)
    assert not (tmp_path / "m").exists()


# ---------------------------------------------------------------------------------------------- adopting


def elsewhere() -> tuple[nn.Module, nn.Linear]:
    """A backbone and a head that know the first blobs."""
    backbone, head = pretrained_network(), nn.Linear(16, 2)
    x, y = blobs(0)
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(backbone(x)), y).backward()
        optimizer.step()
    return backbone.eval(), head


def test_a_model_is_adopted_without_any_data(tmp_path: Path) -> None:
    backbone, head = elsewhere()
    given = {"network": pretrained_network, "input_shape": (6,), "classes": ["low", "high"]}
    model = ContinualModel.adopt(tmp_path / "m", backbone, head, "known", **given)
    (task,) = model.config.tasks
    assert (task.samples, task.accuracy, task.classes) == (0, None, ("low", "high"))
    x = blobs(0)[0]
    assert torch.allclose(model.probabilities(x, "known"), head(backbone(x)).softmax(1))
    model.learn("new", blobs(1), training=QUICK)
    assert model.tasks == ContinualModel.open(model.path, pretrained_network).tasks == ("known", "new")
    assert model.inspect().to_dict()["tasks"][0]["accuracy"] is None
    with pytest.raises(LearnerError):
        ContinualModel.adopt(tmp_path / "spg", backbone, head, "known", method="spg", **given)


def test_a_few_inputs_are_enough_for_a_gate(tmp_path: Path) -> None:
    backbone, head = elsewhere()
    x, y = blobs(0)
    given = {"network": pretrained_network, "input_shape": (6,)}
    model = ContinualModel.adopt(tmp_path / "m", backbone, head, "known", inputs=x, settings={"strength": 0.0}, **given)
    assert model.config.tasks[0].classes == ("0", "1")
    (drift,) = model.inspect(probe=True).drift
    assert (drift.samples, drift.accuracy_then, drift.changed) == (60, None, 0.0)
    with pytest.raises(RetentionError):
        model.learn("new", (-3 * x, y), training=DESTRUCTIVE, retain=1.0)
    assert ContinualModel.open(model.path, pretrained_network).tasks == ("known",)


# ---------------------------------------------------------------------------------------------- libraries


@pytest.mark.parametrize("name", ["timm:hf-hub:someone/model", "timm:resnet18.a1_in1k", "timm:../x", "timm:"])
def test_names_that_timm_would_fetch_are_refused(name: str) -> None:
    with pytest.raises(NetworkError):
        name_of(name)
    with pytest.raises(UnknownName):
        name_of("resnet19")


def test_a_network_of_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    known = timm.create_model("resnet10t", pretrained=False, num_classes=7)
    torch.save(known.state_dict(), tmp_path / "weights.pt")
    with pytest.warns(UserWarning, match="fc"):
        ContinualModel.create(tmp_path / "m", "timm:resnet10t", (3, 32, 32), weights=tmp_path / "weights.pt")
    model = ContinualModel.open(tmp_path / "m")
    x = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(model._method.backbone.conv1[0].weight, known.conv1[0].weight)
    model.learn("first", (x, torch.arange(8) % 2), training={"epochs": 1, "batch": 4})
    assert len(ContinualModel.open(tmp_path / "m").predict(x, "first")) == 8


def test_a_model_in_a_folder_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    network = f"transformers:{tmp_path / 'vit'}"
    model = ContinualModel.create(tmp_path / "m", network, (3, 16, 16), pretrained=True)
    known = transformers.AutoModel.from_pretrained(tmp_path / "vit", local_files_only=True)
    weights = dict(known.named_parameters())
    assert all(torch.equal(p, weights[name]) for name, p in model._method.backbone.model.named_parameters())
    x = torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8)
    model.learn("first", (x, torch.arange(8) % 2), training={"epochs": 1, "batch": 4})
    with pytest.raises(SoftmaskError, match="trust"):
        ContinualModel.open(model.path)
    assert len(ContinualModel.open(model.path, network).predict(x, "first")) == 8
    with pytest.raises(NetworkError, match="nowhere/at-all") as refused:
        ContinualModel.create(tmp_path / "other", "transformers:nowhere/at-all", (3, 16, 16))
    assert "\n" not in str(refused.value)
