"""Backbones by name: features, code of the user's own, weights from a file, batch normalisation over the tasks."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from softmask.core.importance import cross_head_importance, gradient_importance
from softmask.errors import ConfigError, UnknownName
from softmask.learning import backbones
from softmask.learning.backbones import (
    NetworkError,
    make_backbone,
    name_of_function,
    require_trusted,
    trust_network,
    with_digest,
)
from softmask.learning.masked_weights import other_parameters, weights_of, with_weights
from softmask.learning.networks import Backbone, patch_side
from tests.methods.comparing import built, learned

SHAPE = (3, 32, 32)


def own_network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 7))


def any_shape(input_shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[1] * input_shape[2], 5))


def no_features() -> nn.Module:
    return nn.Conv2d(3, 2, 1)


@pytest.mark.parametrize(
    ("name", "shape", "width", "features"),
    [
        ("alexnet", (3, 32, 32), 0.125, 256),
        ("mlp", (3, 32, 32), 0.125, 64),
        ("resnet18", (1, 28, 28), 0.125, 64),
        ("vit-tiny", (1, 28, 28), 0.125, 24),
    ],
)
def test_features(name: str, shape: tuple[int, ...], width: float, features: int) -> None:
    backbone = make_backbone(name, shape, width=width)
    assert backbone.widths[-1] == features
    assert backbone(torch.randn(2, *shape)).shape == (2, features)
    assert isinstance(backbone, Backbone) is (name in backbones.CHAINS)


def test_names_that_nothing_answers_to() -> None:
    with pytest.raises(UnknownName):
        make_backbone("resnet19", SHAPE)
    with pytest.raises(NetworkError):
        make_backbone("alexnet", (3, 4, 4))


@pytest.mark.parametrize(("size", "side"), [((32, 32), 4), ((28, 28), 4), ((64, 64), 8), ((8, 8), 1), ((20, 28), 2)])
def test_patches(size: tuple[int, int], side: int) -> None:
    assert patch_side(*size) == side


def test_attention_is_that_of_torch() -> None:
    torch.manual_seed(0)
    vit = make_backbone("vit-tiny", (1, 14, 14), width=0.125)
    layer = vit.layers[0]  # type: ignore[attr-defined]
    x = torch.randn(2, 5, 24)
    theirs = nn.MultiheadAttention(24, 3, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": layer.asked.weight,
            "in_proj_bias": layer.asked.bias,
            "out_proj.weight": layer.joined.weight,
            "out_proj.bias": layer.joined.bias,
        }
    )
    torch.testing.assert_close(layer.joined(layer.attend(x)), theirs(x, x, x)[0])


def test_code_is_run_only_if_its_name_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "_trusted", set())
    name = f"{__name__}:own_network"
    with pytest.raises(NetworkError):
        make_backbone(name, SHAPE)
    trust_network(name)
    assert make_backbone(name, SHAPE).widths == (7,)
    require_trusted("resnet18")


def test_a_function_has_the_name_by_which_it_is_imported() -> None:
    name = name_of_function(any_shape)
    assert make_backbone(name, (1, 4, 6)).widths == (5,)
    for unusable in (lambda: own_network(), nn.Linear(2, 2)):
        with pytest.raises(NetworkError):
            name_of_function(unusable)


def test_features_must_be_vectors() -> None:
    with pytest.raises(NetworkError):
        make_backbone(name_of_function(no_features), SHAPE)


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_weights_from_a_file(ending: str, tmp_path: Path) -> None:
    source, file = make_backbone("resnet18", SHAPE, width=0.0625), tmp_path / f"weights.{ending}"
    state = {**source.state_dict(), "fc.weight": torch.zeros(2, 2)}
    if ending == "pt":
        torch.save({"state_dict": state}, file)
    else:
        save_file(state, file)
    loaded = make_backbone("resnet18", SHAPE, width=0.0625, weights=with_digest(str(file)))
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in source.state_dict().items())
    with pytest.raises(NetworkError):
        make_backbone("resnet18", SHAPE, width=0.125, weights=str(file))
    with pytest.raises(NetworkError):
        make_backbone("vit-tiny", SHAPE, weights=str(file))
    named = with_digest(str(file))
    file.write_bytes(b"other")
    with pytest.raises(ConfigError):
        make_backbone("resnet18", SHAPE, width=0.0625, weights=named)


def test_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package's interface: `img_size` is known to transformers alone."""
    asked: list[dict[str, object]] = []

    def create_model(name: str, **options: object) -> nn.Module:
        if "img_size" in options and name == "resnet10t":
            raise TypeError("unexpected keyword argument 'img_size'")
        asked.append(options)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 9))

    fake = types.ModuleType("timm")
    fake.create_model, fake.list_models = create_model, lambda: ["resnet10t", "vit"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", fake)
    for name in ("resnet10t", "vit"):
        assert make_backbone(f"timm:{name}", SHAPE).widths == (9,)
    assert all(options["pretrained"] is False for options in asked)
    assert asked[1]["img_size"] == (32, 32)
    with pytest.raises(NetworkError):
        make_backbone("timm:resnet11", SHAPE)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(NetworkError):
        make_backbone("timm:vit", SHAPE)


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "vit-tiny"])
def test_weights_in_place_of_the_own(name: str) -> None:
    backbone = make_backbone(name, (1, 28, 28), width=0.0625).eval()
    x = torch.randn(2, 1, 28, 28)
    weights = weights_of(backbone)
    torch.testing.assert_close(with_weights(backbone, weights, x), backbone(x))
    assert with_weights(backbone, {n: torch.zeros_like(w) for n, w in weights.items()}, x).std(0).abs().max() < 1e-6
    every = {id(p) for p in backbone.parameters()}
    assert {id(p) for p in (*weights.values(), *other_parameters(backbone))} == every


@pytest.mark.parametrize("name", ["alexnet", "mlp"])
def test_cross_head_importance_of_a_chain_is_that_of_the_general_path(name: str) -> None:
    """Which is the one that other backbones take."""
    torch.manual_seed(1)
    backbone = make_backbone(name, (1, 20, 20), width=0.0625).eval()
    heads = [nn.Linear(backbone.widths[-1], 2) for _ in range(3)]
    batches = [(torch.randn(4, 1, 20, 20), torch.zeros(4)) for _ in range(2)]
    general = gradient_importance(
        backbone, batches, [lambda x, _, head=head: head(backbone(x)).sum() for head in heads]
    )
    quick = cross_head_importance(backbone, batches, heads)
    assert quick.keys() == general.keys()
    for each, value in quick.items():
        torch.testing.assert_close(value, general[each], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "vit-tiny"])
def test_cross_head_importance_without_a_chain(name: str) -> None:
    torch.manual_seed(2)
    backbone = make_backbone(name, (1, 14, 14), width=0.0625).eval()
    heads = [nn.Linear(backbone.widths[-1], 2) for _ in range(3)]
    batches = [(torch.randn(4, 1, 14, 14), torch.zeros(4)) for _ in range(2)]
    alone = [cross_head_importance(backbone, batches, [head]) for head in heads]
    together = cross_head_importance(backbone, batches, heads)
    assert together.keys() == dict(backbone.named_parameters()).keys()
    for each, value in together.items():
        assert torch.equal(value, torch.stack([one[each] for one in alone]).amax(0))


BATCH_NORM = {
    "network.width": 1 / 32,
    "training.batch": 128,
    "network.name": "resnet18",
    "network.norm": "batch",
    "network.drop1": 0.0,
    "network.drop2": 0.0,
}


def test_running_statistics_are_those_of_the_first_task() -> None:
    first, both = (learned("ncl", tasks, **BATCH_NORM, epochs=1).state_dict() for tasks in (1, 2))
    statistics = [name for name in first if "running" in name or "tracked" in name]
    assert statistics
    assert all(torch.equal(first[name], both[name]) for name in statistics)
    assert not torch.equal(first["backbone.stem.weight"], both["backbone.stem.weight"])
    assert first["backbone.norm.num_batches_tracked"] > 0


def test_each_network_of_one_follows_its_own_task() -> None:
    state = learned("one", 2, **BATCH_NORM, epochs=1).state_dict()
    means = [state[f"backbones.{task}.norm.running_mean"] for task in (0, 1)]
    assert all(mean.abs().max() > 0 for mean in means)
    assert not torch.equal(*means)


def test_batch_normalisation_is_no_reason_for_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    built("spg", **BATCH_NORM)
    assert not [warning for warning in recwarn if "statistics" in str(warning.message)]
