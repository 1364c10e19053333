"""Importance of whatever backbone and batches: what is refused, what is passed over, and what must stay as it was."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from softmask import SoftMask, fisher_importance, freeze_running_statistics, gradient_importance
from softmask.core import cross_head_importance, importance_of
from tests.core import oracle
from tests.core.examples import Roundabout, assert_close, copied, same, small_backbone, small_batches

# ---------------------------------------------------------------------------------------------- what cannot be measured


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("through_old_head", [False, True])
@pytest.mark.parametrize("wrap", [nn.Sequential, Roundabout])
def test_a_gradient_that_is_not_finite_is_refused_by_name(
    bad: float, through_old_head: bool, wrap: type[nn.Module]
) -> None:
    backbone, head, old = wrap(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6, 3), nn.Linear(6, 2)
    mask, batches = SoftMask(backbone), small_batches()
    mask.consolidate(batches, head, [old])
    before = {name: tensor.clone() for name, tensor in mask.importance.items()}
    with torch.no_grad():
        (old if through_old_head else head).weight[0, 0] = bad
    with pytest.raises(FloatingPointError, match=r"'(layers\.)?0\.(weight|bias)'"):
        mask.consolidate(batches, head, [old])
    assert same(mask.importance, before)


def test_fisher_refuses_what_is_not_finite() -> None:
    backbone = small_backbone()
    with pytest.raises(FloatingPointError, match=r"'0\.weight'"):
        fisher_importance(backbone, small_batches(), lambda x, y: backbone(x).sum() * math.inf)


@pytest.mark.parametrize("batches", [[], iter([])])
def test_no_batches_is_an_error(batches: object) -> None:
    mask = SoftMask(small_backbone())
    with pytest.raises(ValueError, match="no samples"):
        mask.consolidate(batches, nn.Linear(6, 3), [nn.Linear(6, 2)])
    with pytest.raises(ValueError, match="no samples"):
        cross_head_importance(Roundabout(nn.Linear(4, 2)), [], [nn.Linear(2, 2)])
    assert mask.mean() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("wrap", [nn.Sequential, Roundabout])
def test_importance_is_float32_whatever_the_parameters_are(dtype: torch.dtype, wrap: type[nn.Module]) -> None:
    backbone = wrap(nn.Linear(4, 6), nn.ReLU()).to(dtype)
    head, old = nn.Linear(6, 3).to(dtype), [nn.Linear(6, 2).to(dtype)]
    batches = [(x.to(dtype), y) for x, y in small_batches()]
    mask = SoftMask(backbone)
    mask.consolidate(batches, head, old)
    assert all(tensor.dtype == torch.float32 for tensor in mask.importance.values())
    wide = [(x.double(), y) for x, y in batches]
    as_oracle = oracle.task_importance(
        copy.deepcopy(backbone).double(), wide, copy.deepcopy(head).double(), [copy.deepcopy(old[0]).double()]
    )
    assert_close(mask.importance, as_oracle, tolerance=1e-5 if dtype == torch.float64 else 0.1)


# ---------------------------------------------------------------------------------------------- which parameters


class Peculiar(nn.Module):
    """Has a parameter that takes no part, a frozen one and a tied one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.second = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 6)
        self.again.weight = self.first.weight
        self.unused = nn.Parameter(torch.randn(3))
        self.second.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.again(torch.tanh(self.first(x)))))


def test_unused_frozen_and_tied_parameters() -> None:
    backbone, head, batches = Peculiar(), nn.Linear(6, 3), small_batches()
    mask = SoftMask(backbone)
    mask.consolidate(batches, head, [nn.Linear(6, 2)])
    assert set(mask.importance) == {"unused", "first.weight", "first.bias", "again.bias", "second.weight"}
    assert torch.equal(mask.importance["unused"], torch.zeros(3))
    own = gradient_importance(backbone, batches, [lambda x, y: F.cross_entropy(head(backbone(x)), y)])
    assert_close(own, oracle.own_importance(backbone, batches, head))


def test_a_loss_that_no_parameter_takes_part_in() -> None:
    backbone = small_backbone()
    importance = gradient_importance(backbone, small_batches(), [lambda x, y: x.sum()])
    assert all(torch.equal(tensor, torch.zeros_like(tensor)) for tensor in importance.values())


class Words(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 6, sparse=sparse)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x).mean(1)


def test_sparse_gradients_give_what_dense_ones_give() -> None:
    sparse, dense, head, old = Words(True), Words(False), nn.Linear(6, 3), [nn.Linear(6, 2), nn.Linear(6, 4)]
    dense.load_state_dict(sparse.state_dict())
    batches = [(torch.randint(7, (4, 3)), torch.randint(3, (4,))) for _ in range(2)]
    masks = [SoftMask(sparse), SoftMask(dense)]
    for mask in masks:
        mask.consolidate(batches, head, old)
    assert_close(masks[0].importance, masks[1].importance)
    both = [
        fisher_importance(backbone, batches, lambda x, y, b=backbone: F.cross_entropy(head(b(x)), y))
        for backbone in (sparse, dense)
    ]
    assert_close(*both)


# ---------------------------------------------------------------------------------------------- kinds of batches


def test_a_list_a_loader_and_a_generator_give_the_same() -> None:
    backbone, head, old = small_backbone(), nn.Linear(6, 3), [nn.Linear(6, 2) for _ in range(5)]
    x, y = small_batches((13,))[0]
    batches = list(zip(x.split(5), y.split(5), strict=True))
    kinds = [batches, DataLoader(TensorDataset(x, y), 5), (batch for batch in batches), map(tuple, batches)]
    results = []
    for kind in kinds:
        mask = SoftMask(backbone)
        mask.consolidate(kind, head, old)
        results.append(mask.importance)
    assert_close(results[0], oracle.task_importance(backbone, batches, head, old))
    assert all(same(results[0], result) for result in results[1:])


def test_one_shot_batches_serve_every_loss_and_every_head() -> None:
    backbone, batches, old = small_backbone(), small_batches(), [nn.Linear(6, 2) for _ in range(5)]
    losses = [lambda x, y, i=i: backbone(x)[:, i].sum() for i in range(3)]
    assert same(gradient_importance(backbone, iter(batches), losses), gradient_importance(backbone, batches, losses))
    assert same(cross_head_importance(backbone, iter(batches), old), cross_head_importance(backbone, batches, old))


def test_old_heads_may_be_any_collection() -> None:
    backbone, head, batches = small_backbone(), nn.Linear(6, 3), small_batches()
    heads = nn.ModuleDict({str(i): nn.Linear(6, 2) for i in range(3)})
    results = []
    for old in (list(heads.values()), heads.values(), nn.ModuleList(heads.values()), iter(heads.values())):
        mask = SoftMask(backbone)
        mask.consolidate(batches, head, old)
        results.append(mask.importance)
    assert all(same(results[0], result) for result in results[1:])


# ---------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("wrap", [nn.Sequential, Roundabout])
@pytest.mark.parametrize("crossed", [False, True])
def test_dropout_is_on_in_train_mode(wrap: type[nn.Module], crossed: bool) -> None:
    backbone = wrap(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 6))
    head, old, batches = nn.Linear(6, 3), nn.Linear(6, 2), small_batches()

    def measured(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        if crossed:
            return cross_head_importance(backbone, batches, [old])
        return gradient_importance(backbone, batches, [lambda x, y: F.cross_entropy(head(backbone(x)), y)])

    first, again, other = measured(1), measured(1), measured(2)
    assert same(first, again)
    assert all(not torch.equal(first[name], other[name]) for name in first if name.endswith("weight"))
    backbone.eval()
    assert same(measured(1), measured(2))


@pytest.mark.parametrize("wrap", [nn.Sequential, Roundabout])
def test_dropout_of_each_batch_is_drawn_anew(wrap: type[nn.Module]) -> None:
    backbone = wrap(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 6))
    batch, old = small_batches((5,))[0], nn.Linear(6, 2)
    once, four_times = (cross_head_importance(backbone, [batch] * n, [old]) for n in (1, 4))
    first = "0.weight" if "0.weight" in once else "layers.0.weight"
    assert not torch.allclose(once[first], four_times[first], atol=1e-3)


# ---------------------------------------------------------------------------------------------- nothing is disturbed


class Counting(nn.Module):
    """Replaces its buffer instead of changing it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x


class CountingLoss(Counting):
    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return F.cross_entropy(super().forward(logits), labels)


def _busy_backbone() -> nn.Module:
    backbone = Roundabout(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), Counting(), nn.Linear(8, 6), nn.Dropout(0.1)
    )
    backbone.layers[6].eval()
    return backbone


@pytest.mark.filterwarnings("ignore:running statistics")
@pytest.mark.parametrize("measure", ["consolidate", "gradient", "cross", "fisher", "failure"])
def test_nothing_is_disturbed(measure: str) -> None:
    backbone, batches = _busy_backbone(), small_batches()
    head, old = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))
    mask = SoftMask(backbone)
    backbone.layers[0].weight.grad = torch.ones(8, 4)
    head[1].bias.grad = torch.full((3,), 2.0)
    modules = nn.ModuleList([backbone, head, old])
    buffers = dict(modules.named_buffers())
    state, random = copied(modules), torch.get_rng_state()
    modes = {name: module.training for name, module in modules.named_modules()}
    grads = {name: None if p.grad is None else (p.grad, p.grad.clone()) for name, p in modules.named_parameters()}

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head[1](backbone(x)), y)

    if measure == "consolidate":
        mask.consolidate(batches, head, [old, old, old])
    elif measure == "gradient":
        gradient_importance(backbone, batches, [loss])
    elif measure == "cross":
        cross_head_importance(backbone, batches, [old, old])
    elif measure == "fisher":
        fisher_importance(backbone, batches, loss)
    else:
        with pytest.raises(FloatingPointError):
            mask.consolidate(batches, head, [old], loss=lambda logits, y: logits.sum() * math.nan)

    assert same(copied(modules), state)
    assert all(dict(modules.named_buffers())[name] is buffer for name, buffer in buffers.items())
    assert torch.equal(torch.get_rng_state(), random)
    assert {name: module.training for name, module in modules.named_modules()} == modes
    for name, parameter in modules.named_parameters():
        if grads[name] is None:
            assert parameter.grad is None
        else:
            assert parameter.grad is grads[name][0]
            assert torch.equal(parameter.grad, grads[name][1])


def test_modes_stay_even_where_a_forward_pass_changes_them() -> None:
    backbone = _busy_backbone()
    freeze_running_statistics(backbone)
    backbone.train()
    SoftMask(backbone).consolidate(small_batches(), nn.Linear(6, 3), [nn.Linear(6, 2)])
    assert all(module.training for module in backbone.modules())


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("wrap", [nn.Sequential, Roundabout])
def test_works_where_gradients_are_switched_off(without_gradients: type, wrap: type[nn.Module]) -> None:
    backbone, head, old = wrap(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6, 3), [nn.Linear(6, 2), nn.Linear(6, 4)]
    x, y = small_batches((13,))[0]
    batches = list(zip(x.split(5), y.split(5), strict=True))
    expected = oracle.task_importance(backbone, batches, head, old)
    for kind in (batches, DataLoader(TensorDataset(x, y), 5), ((x * 1, y) for x, y in batches)):
        with without_gradients():
            mask = SoftMask(backbone)
            mask.consolidate(kind, head, old)
            fisher_importance(backbone, batches, lambda x, y: F.cross_entropy(head(backbone(x)), y))
        assert_close(mask.importance, expected)
    # The measurements are used in ordinary training.
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    with mask.attach(optimizer, head=head):
        F.cross_entropy(head(backbone(x)), y).backward()
        optimizer.step()


def _doubled(layer: nn.Module) -> None:
    """A forward that was replaced on the instance, as adapters and trainers do it."""
    plain = layer.forward
    layer.forward = lambda x: 2 * plain(x).relu()  # type: ignore[method-assign]


def _rows_masked(layer: nn.Module) -> None:
    assert isinstance(layer, nn.Linear)
    layer.weight.register_hook(lambda gradient: gradient * (torch.arange(len(gradient)) % 2)[:, None])


@pytest.mark.parametrize("change", [_doubled, _rows_masked])
@pytest.mark.parametrize("where", ["layer", "head"])
def test_what_was_changed_on_an_instance_counts(change: Callable[[nn.Module], None], where: str) -> None:
    backbone, old = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU()), nn.Linear(6, 3)
    change(old if where == "head" else backbone[0])
    batches = small_batches()
    expected = gradient_importance(backbone, batches, [lambda x, y: old(backbone(x)).sum()])
    found = cross_head_importance(backbone, batches, [old])
    for name, importance in expected.items():
        torch.testing.assert_close(found[name], importance)


def test_one_sample_without_a_batch_is_one_sample() -> None:
    backbone, old = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU()), nn.Linear(6, 3)
    single = [(x, y) for xs, ys in small_batches() for x, y in zip(xs, ys, strict=True)]
    batched = [(x[None], y[None]) for x, y in single]
    one, other = (cross_head_importance(backbone, batches, [old]) for batches in (single, batched))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_buffer_that_cannot_be_written_and_one_that_is() -> None:
    backbone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    backbone.register_buffer("places", torch.zeros(1).expand(4))
    before = backbone[1].running_mean.clone()
    head = nn.Linear(6, 3)
    gradient_importance(backbone, small_batches(), [lambda x, y: F.cross_entropy(head(backbone(x)), y)])
    assert torch.equal(backbone[1].running_mean, before)


def test_a_parameter_without_entries_has_no_importance() -> None:
    assert importance_of(torch.empty(0, 3)).shape == (0, 3)


class OnAGraph(nn.Module):
    """Has the edges of a graph as a sparse buffer, and one that changes."""

    def __init__(self, edges: Tensor) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.register_buffer("edges", edges)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x @ self.edges.to_dense()))


@pytest.mark.filterwarnings("ignore:running statistics", "ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_buffers_stay(layout: torch.layout) -> None:
    edges = torch.eye(4).to_sparse(layout=layout)
    backbone = OnAGraph(edges)
    mask = SoftMask(backbone)
    statistics = backbone.norm.running_mean.clone()
    mask.consolidate(small_batches(), nn.Linear(6, 3), [nn.Linear(6, 2)])
    assert mask.mean() > 0
    assert backbone.edges is edges
    assert torch.equal(backbone.norm.running_mean, statistics)


class Checkpointed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)


def test_reentrant_checkpoints_give_what_plain_passes_give() -> None:
    plain, head, old = small_backbone(), nn.Linear(6, 3), [nn.Linear(6, 2), nn.Linear(6, 5), nn.Linear(6, 1)]
    checkpointed = Checkpointed(*plain)
    masks = [SoftMask(backbone) for backbone in (plain, checkpointed)]
    gradients = [torch.randn_like(p) for p in (*checkpointed.parameters(), *head.parameters())]
    for parameter, gradient in zip((*checkpointed.parameters(), *head.parameters()), gradients, strict=True):
        parameter.grad = gradient
    for mask in masks:
        mask.consolidate(small_batches(), head, old)
    assert_close(masks[1].importance, masks[0].importance)
    now = [p.grad for p in (*checkpointed.parameters(), *head.parameters())]
    assert all(mine is theirs for mine, theirs in zip(now, gradients, strict=True))


def test_what_a_bound_method_or_a_loss_changes_is_put_back() -> None:
    backbone, head, loss = small_backbone(), nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), CountingLoss()
    before = copied(head)
    SoftMask(backbone).consolidate(small_batches(), head.forward, [head.forward], loss)
    assert same(copied(head), before)
    assert loss.calls == 0


def test_a_backbone_that_was_frozen_since_gets_no_importance() -> None:
    backbone = small_backbone()
    mask = SoftMask(backbone)
    backbone.requires_grad_(False)
    mask.consolidate(small_batches(), nn.Linear(6, 3), [nn.Linear(6, 2)])
    assert mask.mean() == 0
