"""SpaceNet: which connections a task gets, how they move, and which units are reserved."""

import pytest
import torch

from softmask.learning.fit import Fitter
from softmask.learning.masked_weights import weights_of
from softmask.learning.method import Step
from softmask.learning.training import Training
from softmask.methods.spacenet import Ends, SpaceNet
from tests.methods.isolation import learn_all, logits, made, random_task

tasks = [random_task(index) for index in range(3)]
TRAINING = Training(lr=0.1, epochs=3, batch=16, schedule="cosine")


def counts(method: SpaceNet, task: int) -> dict[str, int]:
    """The task's connections by layer."""
    return {name: int(method.connections_of(task, name).sum()) for name in method.owners.names}


def test_a_task_gets_its_share_of_connections_between_its_units() -> None:
    method = made(SpaceNet, budget=0.25)
    method.begin_task(tasks[0])
    widths = method.backbone.widths
    for units, width in zip(method.selected.split(widths), widths, strict=True):
        assert int(units.sum()) == round(0.5 * width)
    found = counts(method, 0)
    assert found["fc2"] == int(0.25 * 128 * 128 / 3)
    assert found["conv2"] == int(0.25 * 8 * 4 / 3), "whole kernels"
    for layer in method.ends(method.selected, torch.ones(3, dtype=torch.bool)):
        outside = ~(layer.outputs[:, None] & layer.inputs[None])
        assert not method.connections_of(0, layer.name)[outside].any()


def test_inputs_after_a_flatten_are_those_of_their_channel() -> None:
    method = made(SpaceNet)
    units = torch.zeros(sum(method.backbone.widths))
    first = sum(method.backbone.widths[:2])
    units[first + 1] = 7.0  # the second channel of conv3, which fc1 sees at four positions
    layers = {layer.name: layer for layer in method.ends(units, torch.ones(3))}
    assert layers["fc1"].inputs.nonzero().squeeze(1).tolist() == [4, 5, 6, 7]
    assert layers["conv1"].inputs.tolist() == [1, 1, 1]
    assert layers["conv3"].outputs[1] == 7


def test_golden_move() -> None:
    """Of four connections the least important goes, and one grows at the largest product of free places."""
    method = made(SpaceNet, drop=0.25)
    owner, weight = method.owners.of("fc2"), weights_of(method.backbone)["fc2"]
    owner[0, 0] = owner[0, 1] = owner[1, 0] = owner[1, 1] = 1
    owner[2, 2] = 9  # another task's
    chosen = torch.zeros(128, dtype=torch.bool)
    chosen[:3] = True
    importance, promise = torch.zeros(128, 128), torch.zeros(128, 128)
    importance[:2, :2] = torch.tensor([[4.0, 3.0], [1.0, 2.0]])
    promise[1, 0], promise[2, 2], promise[2, 1], promise[2, 0] = 9.0, 8.0, 5.0, 4.0
    promise[3, 3] = 99.0  # not selected
    with torch.no_grad():
        method.move(0, Ends("fc2", chosen, chosen), promise, importance)
    assert owner[1, 0] == 0, "dropped, and not grown again at once"
    assert owner[2, 1] == 1
    assert weight[2, 1] == 0, "what grows begins at 0"
    assert owner[2, 2] == 9
    assert int((owner == 1).sum()) == 4


def test_importance_is_the_change_times_the_gradient_and_counts_incoming_connections() -> None:
    method = made(SpaceNet)
    method.begin_task(tasks[0])
    for weight in weights_of(method.backbone).values():
        weight.grad = torch.full_like(weight, 3.0)
    step = Step(tasks[0], tasks[0].train.x, tasks[0].train.y, progress=0.5, lr=0.1)
    method.after_backward(step)
    own = method.owners.owned_by(0)["fc2"]
    torch.testing.assert_close(method.importance.by_name()["fc2.layer.weight"], own * 0.9)
    method.after_step(step)
    assert not method.unit_importance.any(), "only at the end of an epoch"
    method.first_rate = 10.0  # connections stay
    method.after_step(Step(tasks[0], step.x, step.y, progress=1.0, lr=0.1))
    torch.testing.assert_close(method.unit_importance.split(method.backbone.widths)[4], own.sum(1) * 0.9)
    assert not any(each.any() for each in method.importance.tensors())


def test_where_no_place_is_left_fewer_grow() -> None:
    method = made(SpaceNet, selected=1.0, drop=1.0)
    owner = method.owners.of("conv1")
    owner[:] = 1
    owner[0, 0] = 0
    chosen = torch.ones(4, dtype=torch.bool)
    with torch.no_grad():
        method.move(0, Ends("conv1", torch.ones(3, dtype=torch.bool), chosen), torch.ones(4, 3), torch.ones(4, 3))
    assert counts(method, 0)["conv1"] == 11, "one moved"


def test_the_number_of_connections_is_constant_and_some_move() -> None:
    method = made(SpaceNet)
    method.begin_task(tasks[0])
    before, places = counts(method, 0), {name: method.connections_of(0, name) for name in method.owners.names}
    method.learn(tasks[0], Fitter(method, tasks[0], TRAINING))
    assert counts(method, 0) == before
    assert any(not torch.equal(method.connections_of(0, name), place) for name, place in places.items())


def test_connections_have_one_owner_for_good_and_a_new_task_gets_only_free_ones() -> None:
    method = made(SpaceNet)
    for task in tasks:
        owners = {name: method.owners.of(name).clone() for name in method.owners.names}
        weights = {name: weight.detach().clone() for name, weight in weights_of(method.backbone).items()}
        learn_all(method, [task], TRAINING)
        for name, owner in owners.items():
            assert torch.equal(method.owners.of(name)[owner > 0], owner[owner > 0])
            assert torch.equal(weights_of(method.backbone)[name][owner > 0], weights[name][owner > 0])


def test_reserved_units_are_the_most_important_and_never_chosen_again() -> None:
    method = made(SpaceNet, reserved=1.0)
    method.begin_task(tasks[0])
    method.unit_importance.copy_(torch.arange(len(method.reserved)))
    method.end_task(tasks[0])
    reserved, selected = (units.split(method.backbone.widths)[4] for units in (method.reserved, method.selected))
    assert int(reserved.sum()) == 128 // 3
    assert (selected | ~reserved).all()
    assert reserved.nonzero().min() > (selected & ~reserved).nonzero().max()
    method.begin_task(tasks[1])
    assert not (method.selected & method.reserved).any()
    for layer in method.ends(method.reserved, torch.zeros(3, dtype=torch.bool)):
        new = method.connections_of(1, layer.name)
        assert not new[layer.outputs].any()
        assert not new[:, layer.inputs].any()


@pytest.mark.parametrize("guard", ["after_backward", "biases", "later"])
def test_without_its_guards_it_would_forget(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old connections get no gradient, biases neither, and an old task does not see later connections."""
    if guard == "after_backward":
        monkeypatch.setattr(SpaceNet, "after_backward", lambda self, step: None)
    elif guard == "biases":
        monkeypatch.setattr("softmask.methods.spacenet.freeze_biases", lambda backbone, frozen: None)
    else:
        monkeypatch.setattr(
            "softmask.learning.owned_weights.WeightOwners.seen_by",
            lambda self, task: {name: self.of(name) > 0 for name in self.names},
        )
    method = made(SpaceNet)
    learn_all(method, tasks[:1])
    before = logits(method, tasks[0])
    learn_all(method, tasks[1:])
    assert not torch.equal(logits(method, tasks[0]), before)
