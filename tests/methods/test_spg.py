"""SPG against NCL, its own equations, and its promise of constant memory."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import build, load, run
from softmask.experiments.runs.store import Store, StoredRun
from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.learning.training import PRESETS
from softmask.methods.ncl import NCL
from softmask.methods.spg import SPG
from softmask.storage.state_file import write_state

SMALL = {"width": 1 / 16, "epochs": 2}


def finished(method: str, folder: Path, tasks: int) -> StoredRun:
    config = make_config(method, "D-5", preset="short", tasks=tasks, changes=SMALL)
    return run(config, Store(folder), keep="all")


def network_of(done: StoredRun, stage: int) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in done.checkpoint(stage).items() if name != "_extra_state"}


def test_one_task_equals_ncl_to_the_bit(tmp_path: Path) -> None:
    spg, ncl = finished("spg", tmp_path, tasks=1), finished("ncl", tmp_path, tasks=1)
    ours, plain = network_of(spg, 0), network_of(ncl, 0)
    assert ours.keys() == plain.keys()
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_without_importance_the_whole_run_equals_ncl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softmask.core.mask.SoftMask.update", lambda self, importance: None)
    spg, ncl = finished("spg", tmp_path, tasks=3), finished("ncl", tmp_path, tasks=3)
    assert spg.accuracies() == ncl.accuracies()
    ours, plain = network_of(spg, 2), network_of(ncl, 2)
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_with_importance_it_does_not(tmp_path: Path) -> None:
    ours, plain = (network_of(finished(name, tmp_path, tasks=2), 1) for name in ("spg", "ncl"))
    assert any(not torch.equal(ours[name], plain[name]) for name in plain)


def test_state_without_heads_does_not_grow(tmp_path: Path) -> None:
    config = make_config("spg", "R-10", preset="short", changes={"width": 1 / 16, "epochs": 1})
    done = run(config, Store(tmp_path), keep="all")
    sizes = []
    for stage in (0, 9):
        state = {name: value for name, value in done.checkpoint(stage).items() if not name.startswith("heads.")}
        write_state(tmp_path / "state.safetensors", state)
        sizes.append((tmp_path / "state.safetensors").stat().st_size)
    assert sizes[0] == sizes[1]


def scenario() -> Scenario:
    return Scenario((1, 28, 28), (2, 2), NetworkConfig(width=1 / 16, drop1=0.0, drop2=0.0))


def with_importance() -> SPG:
    torch.manual_seed(0)
    method = SPG(scenario())
    method.mask.update({name: torch.rand_like(p) for name, p in method.mask.parameters().items()})
    method.mask.importance["fc1.layer.weight"][0] = 1.0
    return method


def test_one_step_follows_equations_6_and_7() -> None:
    """Against a plain backward pass on a copy without a mask."""
    method = with_importance()
    before = {name: p.detach().clone() for name, p in method.named_parameters()}
    x, y = torch.rand(8, 1, 28, 28), torch.randint(2, (8,))
    optimizer = method.make_optimizer(0.1)
    F.cross_entropy(method(x, 1), y).backward()
    gradients = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
    optimizer.step()
    head_factor = 1 - torch.cat([i.flatten() for i in method.mask.importance.values()]).mean()
    for name, p in method.named_parameters():
        if name.startswith("backbone."):
            keep = 1 - method.mask.importance[name.removeprefix("backbone.")]
        else:
            keep = head_factor
        expected = before[name] - 0.1 * keep * gradients[name] if name in gradients else before[name]
        torch.testing.assert_close(p.detach(), expected, rtol=1e-6, atol=1e-7)


def test_blocked_entries_stay_to_the_bit() -> None:
    method = with_importance()
    before = method.backbone.fc1.layer.weight.detach().clone()
    optimizer = method.make_optimizer(0.25)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(method(torch.rand(8, 1, 28, 28), 1), torch.randint(2, (8,))).backward()
        method.clip_gradients()
        optimizer.step()
    after = method.backbone.fc1.layer.weight.detach()
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1:], before[1:])


def test_only_gradients_of_heads_are_clipped_and_all_heads_together() -> None:
    """At a joint norm of 10000; the backbone's are left alone, however large."""
    method = with_importance()
    for parameter in method.parameters():
        parameter.grad = torch.full_like(parameter, 1e5)
    method.clip_gradients()
    assert all((parameter.grad == 1e5).all() for parameter in method.backbone.parameters())
    joint = torch.cat([parameter.grad.flatten() for parameter in method.heads.parameters()])
    assert joint.norm().item() == pytest.approx(1e4, rel=1e-4)
    assert joint.min() == joint.max(), "one factor for all heads"


def test_importance_never_decreases_and_lies_in_range() -> None:
    config = make_config("spg", "D-5", preset="short", tasks=3, changes=SMALL)
    sequence = load(config, None)
    method = build(config, sequence)
    assert isinstance(method, SPG)
    before = dict(method.mask.importance)
    for task in method.stages(sequence.tasks, PRESETS["short"]):
        method.begin_task(task)
        facts = method.end_task(task)
        for name, now in method.mask.importance.items():
            assert (now >= before[name]).all()
            assert now.min() >= 0
            assert now.max() <= 1
        before = dict(method.mask.importance)
        assert ("F-each" in facts) == (task.id > 0)


def test_end_of_task_disturbs_neither_modes_nor_draws() -> None:
    config = make_config("spg", "D-5", preset="short", tasks=2, changes=SMALL)
    sequence = load(config, None)
    method = build(config, sequence).eval()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    method.end_task(sequence.tasks[0])
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(part.training for part in method.modules())
    assert all(p.grad is None for p in method.parameters())


def test_dropout_is_on_while_importance_is_measured() -> None:
    """As in the authors' code; the setting turns it off."""
    config = make_config("spg", "D-5", preset="short", tasks=1, changes=SMALL)
    sequence = load(config, None)
    found = []
    for dropout, seed in ((True, 1), (True, 2), (False, 1), (False, 2)):
        changed = make_config(
            "spg", "D-5", preset="short", changes=SMALL | {"importance_dropout": dropout, "seeds.batches": seed}
        )
        method = build(changed, sequence)
        found.append(method.measure(sequence.tasks[0]).own["fc1.layer.weight"])
    assert not torch.equal(found[0], found[1])
    torch.testing.assert_close(found[2], found[3])


def test_same_first_weights_as_ncl() -> None:
    torch.manual_seed(3)
    spg = SPG(scenario())
    torch.manual_seed(3)
    ncl = NCL(scenario())
    assert all(torch.equal(a, b) for a, b in zip(spg.parameters(), ncl.parameters(), strict=True))
