"""The callback in a real Lightning Trainer: the same as in a plain loop."""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from softmask import SoftMask, protect
from tests.trainers.loop import adamw, assert_same, learned_by_hand, new_backbone, new_head, tasks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch")

from softmask.trainers.lightning import GuardCallback, SoftMaskCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = new_backbone(), new_head(0)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self) -> Optimizer:
        return adamw([*self.backbone.parameters(), *self.head.parameters()])


def trainer(folder: Path, callback: SoftMaskCallback, **changes: Any) -> Any:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "max_epochs": 2, "default_root_dir": folder}
    return lightning.Trainer(callbacks=[callback], **(quiet | changes))


@pytest.mark.filterwarnings("ignore")
def test_the_same_as_by_hand(tmp_path: Path) -> None:
    module = Classifier()
    callback = SoftMaskCallback(SoftMask(module.backbone))
    for task, batches in enumerate(tasks()):
        module.head = new_head(task)
        trainer(tmp_path, callback).fit(module, DataLoader(batches, batch_size=None))
    assert len(callback.heads) == 3
    assert_same(callback.mask, learned_by_hand())


@pytest.mark.filterwarnings("ignore")
def test_importance_goes_into_checkpoints(tmp_path: Path) -> None:
    module = Classifier()
    callback = SoftMaskCallback(SoftMask(module.backbone))
    fitted = trainer(tmp_path, callback)
    fitted.fit(module, DataLoader(tasks()[0], batch_size=None))
    fitted.save_checkpoint(tmp_path / "saved.ckpt")
    other = SoftMaskCallback(SoftMask(new_backbone()))
    state = torch.load(tmp_path / "saved.ckpt", weights_only=True)["callbacks"]
    other.load_state_dict(next(iter(state.values())))
    assert other.mask.mean() == callback.mask.mean() > 0


@pytest.mark.filterwarnings("ignore")
def test_heads_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    """Without them a callback in a new process would leave out what matters to the tasks before."""
    module = Classifier()
    callback = SoftMaskCallback(SoftMask(module.backbone))
    for task, batches in enumerate(tasks()):
        if task == 2:  # a new process: nothing but the module's weights and the checkpoint
            state = torch.load(tmp_path / "saved.ckpt", weights_only=True)["callbacks"]
            callback = SoftMaskCallback(SoftMask(module.backbone))
            callback.load_state_dict(next(iter(state.values())))
        module.head = new_head(task)
        fitted = trainer(tmp_path, callback)
        fitted.fit(module, DataLoader(batches, batch_size=None))
        fitted.save_checkpoint(tmp_path / "saved.ckpt")
    assert len(callback.heads) == 3
    assert_same(callback.mask, learned_by_hand())


@pytest.mark.filterwarnings("ignore")
def test_a_loader_without_a_length(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(tasks()[0])

    module = Classifier()
    callback = SoftMaskCallback(SoftMask(module.backbone))
    trainer(tmp_path, callback).fit(module, DataLoader(Stream(), batch_size=None))
    assert callback.mask.mean() > 0


class TwoOptimizers(Classifier):
    """One for the backbone, one for the head, stepped by hand."""

    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return adamw(self.backbone.parameters()), adamw(self.head.parameters())

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, index))
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.filterwarnings("ignore")
def test_backbone_and_head_with_optimizers_of_their_own(tmp_path: Path) -> None:
    module = TwoOptimizers()
    callback = SoftMaskCallback(SoftMask(module.backbone))
    for task, batches in enumerate(tasks()):
        module.head = new_head(task)
        trainer(tmp_path, callback).fit(module, DataLoader(batches, batch_size=None))
    assert_same(callback.mask, learned_by_hand())


@pytest.mark.filterwarnings("ignore")
def test_an_error_in_training_lets_the_optimizer_go(tmp_path: Path) -> None:
    module = Classifier()
    callback = SoftMaskCallback(SoftMask(module.backbone))
    module.training_step = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, callback).fit(module, DataLoader(tasks()[0], batch_size=None))
    assert not callback.mask.attached


def test_a_head_that_is_not_there() -> None:
    module = nn.Sequential(new_backbone())
    with pytest.raises(ValueError, match="classifier"):
        SoftMaskCallback(SoftMask(module), head="classifier").kept.current(module)


class Endless(IterableDataset[Any]):
    """A stream that counts what is taken of it."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Any:
        batches = tasks()[0]
        while self.taken < 1000:  # ends after all, so that a mistake is a failure and no standstill
            self.taken += 1
            yield batches[self.taken % len(batches)]


@pytest.mark.filterwarnings("ignore")
def test_of_a_stream_as_much_is_measured_as_was_trained_on(tmp_path: Path) -> None:
    module, stream = Classifier(), Endless()
    callback = SoftMaskCallback(SoftMask(module.backbone))
    trainer(tmp_path, callback, max_steps=5, max_epochs=-1).fit(module, DataLoader(stream, batch_size=None))
    assert callback.mask.mean() > 0
    assert stream.taken < 30


@pytest.mark.filterwarnings("ignore")
def test_batches_that_were_not_trained_on_are_not_measured(tmp_path: Path) -> None:
    found = []
    for limit, batches in ((1, tasks()[0]), (None, tasks()[0][:1])):
        module = Classifier()
        callback = SoftMaskCallback(SoftMask(module.backbone))
        trainer(tmp_path, callback, limit_train_batches=limit).fit(module, DataLoader(batches, batch_size=None))
        found.append(callback.mask.importance)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_precisions_other_than_float32(tmp_path: Path, precision: str) -> None:
    module = Classifier()
    callback = SoftMaskCallback(SoftMask(module.backbone))
    trainer(tmp_path, callback, precision=precision).fit(module, DataLoader(tasks()[0], batch_size=None))
    assert (len(callback.heads), callback.mask.mean() > 0) == (1, True)


@pytest.mark.filterwarnings("ignore")
def test_heads_that_wait_for_a_model_are_saved_again(tmp_path: Path) -> None:
    module = Classifier()
    callback = SoftMaskCallback(SoftMask(module.backbone))
    before = callback.state_dict()
    trainer(tmp_path, callback).fit(module, DataLoader(tasks()[0], batch_size=None))
    other = SoftMaskCallback(SoftMask(module.backbone))
    other.load_state_dict(callback.state_dict())
    assert len(other.state_dict()["heads"]) == 1
    callback.load_state_dict(before)  # back to where no task was learned: no head either
    trainer(tmp_path, callback).fit(module, DataLoader(tasks()[0], batch_size=None))
    assert len(callback.heads) == 1


class Guarded(Classifier):
    """The classifier whose loss has the terms of a guard."""

    def training_step(self, batch: Any, index: int) -> Tensor:
        features = self.backbone(batch[0])
        return F.cross_entropy(self.head(features), batch[1]) + self.guards[0](batch[0], features)


@pytest.mark.filterwarnings("ignore")
def test_a_guard_goes_into_checkpoints(tmp_path: Path) -> None:
    module = Guarded()
    module.guards = [protect(module.backbone, ways=("answers", "subspace"))]
    for task, batches in enumerate(tasks()[:2]):
        module.head = new_head(task)
        fitted = trainer(tmp_path, GuardCallback(module.guards[0]))  # type: ignore[arg-type]
        fitted.fit(module, DataLoader(batches, batch_size=None))
    fitted.save_checkpoint(tmp_path / "saved.ckpt")
    state = torch.load(tmp_path / "saved.ckpt", weights_only=True)["callbacks"]
    other = protect(new_backbone(), ways=("answers", "subspace"))
    GuardCallback(other).load_state_dict(next(iter(state.values())))
    assert len(other.heads) == len(module.guards[0].heads) == 2
    x = batches[0][0]
    other.model.load_state_dict(module.backbone.state_dict())
    assert torch.equal(other(x, other.model(x)), module.guards[0](x, module.backbone(x)))
