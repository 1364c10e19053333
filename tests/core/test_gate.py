"""RetentionGate: what passes, what is put back, and what the curves tell."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from softmask.core import RetentionError, RetentionGate
from softmask.core.gate import require_retained


class Net(nn.Module):
    """With dropout and running statistics, so that a measurement in training mode would show."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.9))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def setting(count: int = 300) -> tuple[Net, nn.Linear, Tensor]:
    torch.manual_seed(0)
    return Net(), nn.Linear(8, 3), torch.randn(count, 4)


def state(*parts: nn.Module) -> list[dict[str, Tensor]]:
    return [copy.deepcopy(part.state_dict()) for part in parts]


def same(one: list[dict[str, Tensor]], two: list[dict[str, Tensor]]) -> bool:
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, two, strict=True) for name in a)


def destroy(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    model.train()(torch.randn(32, 4) * 9)  # running statistics move, too


@torch.no_grad()
def destroy_head(head: nn.Linear) -> None:
    head.weight.neg_()
    head.bias.neg_()


@pytest.mark.parametrize("labelled", [True, False])
def test_an_update_that_destroys_is_put_back_to_the_bit(labelled: bool) -> None:
    model, head, x = setting()
    model.eval()
    gate = RetentionGate(model, share=0.98)
    gate.add("old", x, head(model(x)).argmax(1) if labelled else None, head)
    before = state(model, head)

    def update() -> None:
        with gate:
            destroy(model)
            gate.measure()

    with pytest.raises(RetentionError) as refused:
        update()
    assert same(before, state(model, head))
    assert refused.value.lost == ("old",)
    assert len(refused.value.curves["old"]) == 3
    assert refused.value.curves["old"][0] == 1


def test_a_harmless_update_passes_and_stays() -> None:
    model, head, x = setting()
    gate = RetentionGate(model)
    gate.add("old", x, head=head)
    with gate, torch.no_grad():
        model.layers[0].weight.mul_(1 + 1e-6)
        after = state(model)
    assert same(after, state(model))


def test_an_exception_puts_the_weights_back() -> None:
    model, head, x = setting()
    gate = RetentionGate(model)
    gate.add("old", x, head=head)
    before = state(model)

    def update() -> None:
        with gate:
            destroy(model)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update()
    assert same(before, state(model))


def test_measuring_is_in_evaluation_mode_and_leaves_the_modes_alone() -> None:
    model, head, x = setting()
    model.train()
    model.layers[1].eval()
    gate = RetentionGate(model)
    gate.add("old", x, head=head)
    before = state(model)
    assert gate.measure() == gate.measure() == {"old": 1.0}
    assert same(before, state(model))
    assert model.training
    assert not model.layers[1].training


def test_heads_that_move_are_put_back() -> None:
    model, head, x = setting()
    gate = RetentionGate(model)
    gate.add("old", x, head=head)
    before = state(head)
    with pytest.raises(RetentionError), gate:
        destroy_head(head)
    assert same(before, state(head))


def test_the_share_counts_from_what_was_known() -> None:
    require_retained(0.9, {"a": [0.5, 0.1, 0.45], "b": [0.0, 0.0]})
    with pytest.raises(RetentionError) as refused:
        require_retained(0.9, {"a": [0.5, 0.44], "b": [0.5, 0.5]})
    assert refused.value.lost == ("a",)


def test_a_second_update_has_a_curve_of_its_own() -> None:
    model, head, x = setting()
    gate = RetentionGate(model)
    gate.add("old", x, head=head)
    for _ in range(2):
        with gate:
            gate.measure()
        assert len(gate.curves["old"]) == 3


def test_language_models_answer_by_their_logits_and_padding_does_not_count() -> None:
    class Speaker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 5)

        def forward(self, input_ids: Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.words(input_ids))

    model, tokens = Speaker(), torch.arange(5).view(1, 5)
    with torch.no_grad():
        model.words.weight.copy_(torch.eye(5))
    gate = RetentionGate(model)
    gate.add("text", {"input_ids": tokens}, torch.tensor([[0, 1, -100, -100, 0]]))
    assert gate.measure() == {"text": pytest.approx(2 / 3)}


@pytest.mark.parametrize("share", [-0.1, 1.1, 98])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        RetentionGate(nn.Linear(2, 2), share)


def test_a_gate_without_old_tasks_is_no_gate() -> None:
    with pytest.raises(RuntimeError, match="no old task"), RetentionGate(nn.Linear(2, 2)):
        pass


@pytest.mark.parametrize("labels", [torch.zeros(7, dtype=torch.int64), torch.full((300,), -100)])
def test_labels_that_do_not_fit_are_refused(labels: Tensor) -> None:
    model, head, x = setting()
    with pytest.raises(ValueError, match=r"labels|label"):
        RetentionGate(model).add("old", x, labels, head)
