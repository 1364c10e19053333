"""KeepAnswers against the textbook's formula, and in training loops as people write them."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask import KeepAnswers, freeze_running_statistics
from tests.core.examples import Batch, copied, same, small_backbone, small_batches


def moved(backbone: nn.Module) -> nn.Module:
    """Changes it a little, as training would."""
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return backbone


def textbook(old: nn.Module, new: nn.Module, heads: list[nn.Linear], x: Tensor, temperature: float) -> float:
    """Sum over heads, mean over samples, of T^2 sum_c p_c log(p_c / q_c); by hand, in float64."""
    total = 0.0
    for head in heads:
        for row in x:
            p, q = (
                _softmax(copy.deepcopy(head).double()(copy.deepcopy(m).double()(row.double())), temperature)
                for m in (old, new)
            )
            total += temperature**2 * (p * (p / q).log()).sum().item() / len(x)
    return total


def _softmax(logits: Tensor, temperature: float) -> Tensor:
    powers = (logits / temperature).exp()
    return powers / powers.sum()


def fit(backbone: nn.Module, head: nn.Module, batches: list[Batch], keep: Any = None, given: bool = True) -> None:
    optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=0.01, weight_decay=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        features = backbone(x)
        loss = F.cross_entropy(head(features), y)
        loss = loss + (keep(x, features if given else None) if keep else 0)
        loss.backward()
        optimizer.step()


# ---------------------------------------------------------------------------------------------- the formula


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("count", [1, 3])
def test_the_distance_is_the_textbooks(temperature: float, count: int) -> None:
    backbone, heads = small_backbone(), [nn.Linear(6, 3 + n) for n in range(count)]
    keep = KeepAnswers(backbone, heads, strength=0.7, temperature=temperature)
    old, (x, _) = copy.deepcopy(backbone), small_batches()[0]
    moved(backbone)
    expected = 0.7 * textbook(old, backbone, heads, x, temperature)
    assert expected > 1e-4
    assert keep(x, backbone(x)).item() == pytest.approx(expected, rel=1e-4)
    assert keep(x).item() == pytest.approx(expected, rel=1e-4)


def test_its_gradient_is_that_of_soft_labels() -> None:
    """d/dz of T^2 KL(p || softmax(z / T)) is T (q - p), here carried to the features by a head that is the identity."""
    backbone, head = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(3))
    keep, x = KeepAnswers(backbone, head, temperature=2.0), torch.randn(4, 3)
    wanted = (backbone(x) / 2).softmax(1).detach()
    features = moved(backbone)(x).detach().requires_grad_()
    keep(x, features).backward()
    torch.testing.assert_close(features.grad, 2 * ((features / 2).softmax(1) - wanted).detach() / 4)


def test_an_unchanged_model_is_at_distance_zero() -> None:
    backbone, (x, _) = small_backbone(), small_batches()[0]
    assert KeepAnswers(backbone, nn.Linear(6, 3))(x, backbone(x)) == 0
    assert KeepAnswers(backbone, of="features")(x, backbone(x)) == 0


def test_the_distance_of_features_is_relative() -> None:
    backbone, x = nn.Linear(4, 6), small_batches()[0][0]
    keep, wanted = KeepAnswers(backbone, of="features", strength=3), backbone(x).detach()
    said = moved(backbone)(x)
    expected = 3 * sum((said - wanted).pow(2).flatten().tolist()) / sum(wanted.pow(2).flatten().tolist())
    assert keep(x, said).item() == pytest.approx(expected, rel=1e-5)


def test_images_with_a_class_at_each_pixel() -> None:
    """Logits (N, C, H, W) as cross-entropy takes them: the mean over all pixels."""
    backbone, head, x = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 3, 1), torch.randn(2, 2, 5, 5)
    keep = KeepAnswers(backbone, head, temperature=1)
    p = head(backbone(x)).detach().softmax(1)
    q = head(moved(backbone)(x)).softmax(1)
    assert keep(x, backbone(x)).item() == pytest.approx((p * (p / q).log()).sum(1).mean().item(), rel=1e-4)


# ---------------------------------------------------------------------------------------------- nothing to keep


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("options", [{"strength": 0}, {"heads": ()}], ids=["strength 0", "no heads"])
def test_nothing_to_keep_is_plain_training_to_the_bit(options: dict[str, Any], dropout: float) -> None:
    start, head = small_backbone(dropout), nn.Linear(6, 3)
    results = []
    for kept in (False, True):
        backbone, own = copy.deepcopy(start), copy.deepcopy(head)
        keep = KeepAnswers(backbone, **{"heads": [nn.Linear(6, 3)], **options}) if kept else None
        torch.manual_seed(5)
        fit(backbone, own, small_batches(), keep)
        results.append({**copied(backbone), **{f"head {k}": v for k, v in copied(own).items()}})
    assert same(*results)


def test_nothing_to_keep_costs_nothing() -> None:
    backbone = small_backbone()
    keep = KeepAnswers(backbone)
    assert keep.remembered is None
    backbone.forward = None  # type: ignore[assignment]
    assert keep(torch.randn(2, 4)) == 0
    assert keep(torch.randn(2, 4)).shape == ()


# ---------------------------------------------------------------------------------------------- both sides in eval mode


class Functional(nn.Module):
    """Dropout that is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.inner(x), 0.5, self.training)


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))


@pytest.mark.parametrize("make", [lambda: small_backbone(0.5), Functional, normalised])
@pytest.mark.parametrize("given", [True, False])
def test_the_student_is_asked_in_evaluation_mode(make: Any, given: bool) -> None:
    backbone, head, x = make(), nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), torch.randn(16, 4)
    keep = KeepAnswers(backbone, head)
    assert backbone.training
    statistics, random = copied(backbone), torch.get_rng_state()
    assert keep(x) == 0
    assert same(copied(backbone), statistics)
    assert torch.equal(torch.get_rng_state(), random)
    features = backbone(x)
    if isinstance(backbone, nn.Sequential) and isinstance(backbone[1], nn.BatchNorm1d):
        keep.remember(head)  # the pass above moved the running statistics
    distance = keep(x, features if given else None)
    assert distance == 0  # with dropout in the student it is far from 0
    assert distance.requires_grad
    assert backbone.training


@pytest.mark.parametrize("make", [small_backbone, lambda: _frozen(normalised()), lambda: small_backbone(0.5).eval()])
def test_there_is_no_second_pass_where_both_modes_are_the_same(make: Any) -> None:
    backbone, x, seen = make(), torch.randn(16, 4), []
    keep = KeepAnswers(backbone, nn.Linear(6, 3))
    keep(x, backbone(x))  # tried once
    backbone.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(3):
        features = backbone(x)
        keep(x, features).backward()
    assert len(seen) == 3


def _frozen(backbone: nn.Module) -> nn.Module:
    freeze_running_statistics(backbone)
    return backbone


def test_the_mode_may_change_in_between() -> None:
    backbone, x = small_backbone(0.5).eval(), torch.randn(16, 4)
    keep = KeepAnswers(backbone, nn.Linear(6, 3))
    assert keep(x, backbone(x)) == 0
    assert keep(x, backbone.train()(x)) == 0


# ---------------------------------------------------------------------------------------------- gradients and dtypes


def test_gradients_reach_the_backbone_alone() -> None:
    backbone, head, x = small_backbone(), nn.Linear(6, 3), small_batches()[0][0]
    keep = KeepAnswers(backbone, head)
    moved(backbone)
    keep(x, backbone(x)).backward()
    assert all(p.grad is not None and p.grad.any() for p in backbone.parameters())
    assert keep.remembered is not None
    frozen = [*head.parameters(), *keep.remembered.parameters(), *(p for h in keep.heads for p in h.parameters())]
    assert all(p.grad is None for p in frozen)
    assert all(p.requires_grad for p in head.parameters())


def test_the_memory_does_not_follow_the_model_or_its_heads() -> None:
    backbone, head, x = small_backbone(), nn.Linear(6, 3), small_batches()[0][0]
    keep = KeepAnswers(backbone, head)
    moved(backbone)
    before = keep(x).item()
    moved(head)
    assert keep(x).item() == before > 0


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    backbone, head, x = small_backbone(), nn.Linear(6, 3), torch.randn(64, 4)
    keep, exact = KeepAnswers(backbone, head), KeepAnswers(backbone, head)
    moved(backbone)
    expected = exact(x).item()
    with torch.autocast("cpu", torch.bfloat16):
        features = backbone(x)
        distance = keep(x, features) if inside else None
    distance = keep(x, features) if distance is None else distance
    assert features.dtype == torch.bfloat16
    assert distance.dtype == torch.float32
    assert distance.item() == pytest.approx(expected, rel=0.1, abs=1e-4)
    distance.backward()
    assert all(p.grad is not None for p in backbone.parameters())


# ---------------------------------------------------------------------------------------------- tokens


class Language(nn.Module):
    """A causal language model that sees only the last token; answers as transformers' models do."""

    def __init__(self, wrapped: bool = True) -> None:
        super().__init__()
        self.embed, self.out, self.wrapped = nn.Embedding(7, 5), nn.Linear(5, 7), wrapped

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        logits = self.out(self.embed(input_ids))
        return SimpleNamespace(logits=logits) if self.wrapped else logits


def _by_position(old: Language, new: Language, ids: Tensor) -> Tensor:
    p, q = ((m.out(m.embed(ids)) / 2).softmax(-1).detach() for m in (old, new))
    return 4 * (p * (p / q).log()).sum(-1)


@pytest.mark.parametrize("wrapped", [True, False])
def test_tokens_that_count(wrapped: bool) -> None:
    model, ids = Language(wrapped), torch.randint(7, (2, 4))
    keep, old = KeepAnswers(model, of="tokens"), copy.deepcopy(model)
    moved(model)
    each = _by_position(old, model, ids)
    attention, labels = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]), ids.clone()
    labels[0, :2], labels[1, 3] = -100, -100
    expected = {
        "all": each.mean(),
        "attention": each[attention.bool()].mean(),
        # position t answers for the label at t + 1: of row 0 positions 1 and 2, of row 1 positions 0 and 1
        "labels": torch.stack([each[0, 1], each[0, 2], each[1, 0], each[1, 1]]).mean(),
        "mask": each[0, 0],
    }
    chosen = torch.zeros(2, 4, dtype=torch.bool)
    chosen[0, 0] = True
    out = model(ids)
    given = {
        "all": keep(ids, out),
        "attention": keep({"input_ids": ids, "attention_mask": attention}, out),
        "labels": keep({"input_ids": ids, "labels": labels}, out),
        "mask": keep({"input_ids": ids, "labels": labels}, mask=chosen),
    }
    assert {k: v.item() for k, v in given.items()} == pytest.approx(
        {k: v.item() for k, v in expected.items()}, rel=1e-4
    )
    assert keep({"input_ids": ids, "labels": torch.full_like(ids, -100)}) == 0


# ---------------------------------------------------------------------------------------------- inputs


def test_inputs_may_be_tuples_and_mappings() -> None:
    backbone, head, x = nn.Bilinear(4, 4, 6), nn.Linear(6, 3), torch.randn(5, 4)
    keep = KeepAnswers(backbone, head)
    moved(backbone)
    assert keep((x, x)) == keep({"input1": x, "input2": x}) > 0


def test_features_that_have_to_be_picked() -> None:
    class Wrapped(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return SimpleNamespace(pooled=super().forward(x))

    backbone, head, x = Wrapped(4, 6), nn.Linear(6, 3), torch.randn(5, 4)
    with pytest.raises(TypeError, match="forward="):
        KeepAnswers(backbone, head)(x)
    keep = KeepAnswers(backbone, head, forward=lambda module, x: module(x).pooled)
    assert keep(x) == 0
    moved(backbone)
    assert keep(x) == keep(x, backbone(x).pooled) > 0


def test_wrappers_are_looked_through() -> None:
    backbone, head, x = small_backbone(), nn.Linear(6, 3), small_batches()[0][0]
    plain, wrapped = KeepAnswers(backbone, head), KeepAnswers(nn.DataParallel(backbone), head)
    moved(backbone)
    assert plain(x) == wrapped(x) > 0
    assert plain.state_dict()["model"].keys() == wrapped.state_dict()["model"].keys()


# ---------------------------------------------------------------------------------------------- teachers


class Adapted(nn.Module):
    """A base layer and a low-rank part that can be switched off, as peft does it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.on = base.requires_grad_(False), True
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (self.up(self.down(self.drop(x))) if self.on else 0)

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        self.on = False
        try:
            yield
        finally:
            self.on = True


def test_the_adapter_off_is_a_copy_of_the_base_model() -> None:
    base, head, x = nn.Linear(4, 6), nn.Linear(6, 3), torch.randn(8, 4)
    model = Adapted(base)
    nn.init.zeros_(model.up.weight)
    by_copy, off = KeepAnswers(model, head), KeepAnswers(model, head, teacher="adapter-off")
    assert off.remembered is None
    with torch.no_grad():
        model.up.weight.normal_()
    gradients = []
    for keep in (by_copy, off):
        model.zero_grad()
        distance = keep(x, model(x))
        distance.backward()
        gradients.append((distance.item(), model.up.weight.grad.clone()))
    assert gradients[0][0] == pytest.approx(gradients[1][0], rel=1e-6)
    assert gradients[0][0] > 0.01
    torch.testing.assert_close(gradients[0][1], gradients[1][1])
    assert model.on


def test_the_adapter_off_leaves_autocast_with_gradients() -> None:
    model, head, x = Adapted(nn.Linear(4, 6)), nn.Linear(6, 3), torch.randn(8, 4)
    keep = KeepAnswers(model, head, teacher="adapter-off")
    with torch.autocast("cpu", torch.bfloat16):
        (keep(x) + model(x).float().sum()).backward()
    assert model.up.weight.grad is not None


def test_recorded_answers_are_those_of_a_copy() -> None:
    backbone, heads = small_backbone(0.5), [nn.Linear(6, 3), nn.Linear(6, 4)]
    x = torch.randn(20, 4)
    by_copy, recorded = KeepAnswers(backbone, heads), KeepAnswers(backbone, heads, teacher="recorded")
    recorded.record((torch.arange(20)[i], x[i]) for i in torch.randperm(20).split(6))
    assert recorded.remembered is None
    assert backbone.training
    moved(backbone)
    some = torch.tensor([3, 19, 3, 0])
    features = backbone(x[some])
    torch.testing.assert_close(recorded(x[some], features, index=some), by_copy(x[some], features))
    assert recorded(x[some], index=[3, 19, 3, 0]) > 0
    with pytest.raises(LookupError, match="20"):
        recorded(x[:1], index=[20])
    with pytest.raises(ValueError, match="index"):
        recorded(x[:1])
    with pytest.raises(ValueError, match="sample 3"):
        recorded.record([([3], x[3:4])])
    with pytest.raises(ValueError, match="2 indices"):
        recorded.record([([21, 22], x[:1])])
    with pytest.raises(RuntimeError, match="recorded"):
        by_copy.record([])


# ---------------------------------------------------------------------------------------------- task after task


def test_remember_begins_the_next_task() -> None:
    backbone, heads, x = small_backbone(), [nn.Linear(6, 3)], small_batches()[0][0]
    keep = KeepAnswers(backbone, heads)
    moved(backbone)
    assert keep(x) > 0
    keep.remember([*heads, nn.Linear(6, 2)])
    assert keep(x) == 0
    assert len(keep.heads) == 2
    keep.remember()
    assert not keep.active()
    assert keep.remembered is None


@pytest.mark.parametrize("teacher", ["copy", "recorded"])
def test_interrupted_equals_uninterrupted(teacher: Any) -> None:
    start, old, head, batches = small_backbone(), nn.Linear(6, 3), nn.Linear(6, 3), small_batches((5, 5, 5, 5))
    places = {id(x): list(range(5 * n, 5 * n + 5)) for n, (x, _) in enumerate(batches)}

    def term(keep: KeepAnswers) -> Any:
        return lambda x, features: keep(x, features, index=places[id(x)])

    def begun() -> tuple[nn.Module, nn.Module, KeepAnswers]:
        backbone, own = copy.deepcopy(start), copy.deepcopy(head)
        keep = KeepAnswers(backbone, old, strength=5, teacher=teacher)
        if teacher == "recorded":
            keep.record((places[id(x)], x) for x, _ in batches)
        fit(backbone, own, batches[:2], term(keep))
        return backbone, own, keep

    backbone, own, keep = begun()
    fit(backbone, own, batches[2:], term(keep))
    expected = copied(backbone)

    backbone, own, keep = begun()
    file = io.BytesIO()
    torch.save(keep.state_dict(), file)
    file.seek(0)
    again = KeepAnswers(backbone, teacher=teacher)  # no heads: linear ones are made anew
    again.load_state_dict(torch.load(file, weights_only=True))
    fit(backbone, own, batches[2:], term(again))
    assert same(copied(backbone), expected)
    assert again.strength == 5


def test_states_that_do_not_fit() -> None:
    backbone = small_backbone()
    keep = KeepAnswers(backbone, nn.Linear(6, 3))
    state = keep.state_dict()
    with pytest.raises(ValueError, match="version"):
        keep.load_state_dict({**state, "version": 0})
    with pytest.raises(ValueError, match="of='answers'"):
        KeepAnswers(backbone, of="features").load_state_dict(state)
    with pytest.raises(ValueError, match="remembered model"):
        KeepAnswers(nn.Linear(4, 6), nn.Linear(6, 3)).load_state_dict(state)
    with pytest.raises(ValueError, match="head 1"):
        KeepAnswers(backbone, nn.Linear(6, 4)).load_state_dict(state)
    deep = nn.Sequential(nn.Linear(6, 3))
    with pytest.raises(ValueError, match="not linear"):
        KeepAnswers(backbone).load_state_dict(KeepAnswers(backbone, deep).state_dict())
    other = KeepAnswers(backbone, copy.deepcopy(deep))
    other.load_state_dict(KeepAnswers(backbone, deep).state_dict())
    assert same(copied(other.heads[0]), copied(deep))


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        ({"of": "logits"}, ValueError, "of must"),
        ({"teacher": "ema"}, ValueError, "teacher must"),
        ({"strength": -1}, ValueError, "strength"),
        ({"strength": float("nan")}, ValueError, "strength"),
        ({"temperature": 0}, ValueError, "temperature"),
        ({"heads": [F.relu]}, TypeError, "function"),
        ({"heads": nn.Linear(6, 3), "of": "features"}, ValueError, "of='features'"),
        ({"teacher": "adapter-off"}, ValueError, "disable_adapter"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        KeepAnswers(small_backbone(), **wrong)


def test_a_head_with_one_output_is_refused() -> None:
    """Its softmax is always 1: nothing would be kept, and nobody would know."""
    with pytest.raises(ValueError, match="one output"):
        KeepAnswers(small_backbone(), nn.Linear(6, 1))(torch.randn(2, 4))


def test_it_keeps() -> None:
    """After the same steps old answers are nearer to what they were, the more the stronger."""
    start, old, head, batches = small_backbone(), nn.Linear(6, 3), nn.Linear(6, 3), small_batches() * 20
    drift = []
    for strength in (0.0, 1.0, 30.0):
        backbone = copy.deepcopy(start)
        fit(backbone, copy.deepcopy(head), batches, KeepAnswers(backbone, old, strength=strength))
        x = torch.cat([x for x, _ in batches])
        drift.append((old(backbone(x)).softmax(1) - old(start(x)).softmax(1)).abs().mean().item())
    assert drift[0] > 1.2 * drift[1] > 1.2**2 * drift[2]
