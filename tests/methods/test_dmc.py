"""DMC: the targets of the double distillation, the auxiliary images, and what each phase trains."""

import pytest
import torch
from torch import Tensor, nn

from softmask.learning.fit import Fit, Fitter
from softmask.learning.training import Training
from softmask.methods import dmc
from softmask.methods.dmc import DMC, centred, dead_leaves
from tests.methods.comparing import learned, same_network
from tests.methods.isolation import learn_all, made, random_task

tasks = [random_task(index) for index in range(3)]


def test_golden_target() -> None:
    """Each head's logits less their own mean: (1, 2, 6) - 3 and (4, 8, 0) - 4."""
    heads = [nn.Linear(1, 3, bias=False) for _ in range(2)]
    with torch.no_grad():
        heads[0].weight.copy_(torch.tensor([[1.0], [2.0], [6.0]]))
        heads[1].weight.copy_(torch.tensor([[4.0], [8.0], [0.0]]))
        assert centred(heads, torch.ones(1, 1)).tolist() == [[-2.0, -1.0, 3.0, 0.0, 4.0, -4.0]]


def test_dead_leaves_are_the_same_for_a_seed_and_no_noise() -> None:
    images = dead_leaves(20, (3, 32, 32), 1)
    assert images.shape == (20, 3, 32, 32)
    assert torch.equal(images, dead_leaves(20, (3, 32, 32), 1))
    assert not torch.equal(images, dead_leaves(20, (3, 32, 32), 2))
    assert images.mean().abs() < 1e-3
    assert images.std() == pytest.approx(1, abs=1e-3)
    assert (images[..., 1:] == images[..., :-1]).float().mean() > 0.5, "most neighbours have one colour"
    assert (images[..., 1:] != images[..., :-1]).any(), "and there are edges"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The targets, and the distance to them before and after the consolidation."""
    seen: dict[str, Tensor] = {}
    run = Fit.run

    def noting(self: Fit, epochs: int | None = None) -> Fit:
        learner = self.learner
        if not (isinstance(learner, DMC) and learner.consolidates):
            return run(self, epochs)
        chosen = torch.arange(len(learner.images))
        learner.eval()
        seen["targets"], seen["before"] = learner.targets, learner.distance(chosen, self.task.id).detach()
        run(self, epochs).restore_best()
        seen["after"] = learner.eval().distance(chosen, self.task.id).detach()
        return self

    monkeypatch.setattr(Fit, "run", noting)
    return seen


def test_both_models_are_distilled_into_one(watched: dict[str, Tensor]) -> None:
    method = made(DMC, auxiliary=50)
    learn_all(method, tasks[:1])
    assert not watched, "the first task has nothing to consolidate"
    old = [p.detach().clone() for p in method.parameters()]
    learn_all(method, tasks[1:2], Training(lr=0.1, epochs=5, batch=16, schedule="cosine"))
    assert watched["targets"].shape == (50, 6)
    for logits in watched["targets"].split(3, 1):
        torch.testing.assert_close(logits.mean(1), torch.zeros(50), rtol=0, atol=1e-5)
    assert watched["after"] < watched["before"]
    assert not torch.equal(method.heads[0].weight, old[-6]), "old heads learn along"
    assert method.old is None
    assert not method.images.numel()


def test_targets_are_those_of_the_old_model_with_old_heads_and_of_the_new_one_with_its_own() -> None:
    method = made(DMC, auxiliary=20)
    method.begin_task(tasks[1])
    assert method.old is not None
    method.images = dead_leaves(20, (3, 32, 32), 5)
    expected_old = centred(method.heads[:1], method.backbone.eval()(method.images)).detach()
    with torch.no_grad():
        for parameter in method.backbone.parameters():
            parameter.mul_(1.1)
    expected_new = centred([method.heads[1]], method.backbone(method.images)).detach()
    torch.testing.assert_close(method.double_targets(1), torch.cat([expected_old, expected_new], 1))


def test_the_second_phase_has_adams_rate_and_all_heads_so_far() -> None:
    method = made(DMC, auxiliary=20)
    made_fits = []

    class Noting(Fitter):
        def __call__(self, learner: DMC, name: str = "fit") -> Fit:
            fit = super().__call__(learner, name)
            learning = [head.weight.requires_grad for head in learner.heads]
            made_fits.append((name, type(fit.optimizer).__name__, fit.lr, learning))
            return fit

    method.begin_task(tasks[1])
    method.learn(tasks[1], Noting(method, tasks[1], Training(lr=0.1, epochs=1, batch=16)))
    assert made_fits == [
        ("new", "MaskedSGD", 0.1, [False, True, False]),
        ("consolidate", "Adam", pytest.approx(1e-3), [True, True, False]),
    ]


def test_held_out_images_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    method = made(DMC, auxiliary=20)
    method.images, method.consolidates = torch.zeros(20, 3, 32, 32), True
    chosen: list[Tensor] = []
    monkeypatch.setattr(dmc.DMC, "distance", lambda self, rows, new: chosen.append(rows) or rows.sum().float())
    for _ in range(20):
        method.loss(dmc.Step(tasks[1], tasks[1].train.x, tasks[1].train.y))
    trained = torch.cat(chosen).unique().tolist()
    assert trained == list(range(2, 20))


def test_the_first_task_is_ncl_to_the_bit() -> None:
    assert same_network(learned("dmc", tasks=1), learned("ncl", tasks=1))
