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
from torch.utils.data import DataLoader

from softmask import SoftMask
from tests.integrations.loop import adamw, assert_same, learned_by_hand, new_backbone, new_head, tasks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch")

from softmask.integrations.lightning import SoftMaskCallback

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
def test_an_error_in_training_lets_the_optimizer_go(tmp_path: Path) -> None:
    module = Classifier()
    callback = SoftMaskCallback(SoftMask(module.backbone))
    module.training_step = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, callback).fit(module, DataLoader(tasks()[0], batch_size=None))
    assert not callback.mask.attached


def test_a_head_that_is_not_there() -> None:
    module = nn.Sequential(new_backbone())
    with pytest.raises(ValueError, match="no part 'classifier'"):
        SoftMaskCallback(SoftMask(module), head="classifier").kept.current(module)
