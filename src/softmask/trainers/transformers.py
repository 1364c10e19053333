"""Soft-masking in the Trainer of Hugging Face transformers (extra `transformers`).

callback = SoftMaskCallback(SoftMask(model.bert), head="classifier")
for dataset in tasks:
    model.classifier = torch.nn.Linear(...)                    # a new head for each task
    Trainer(model, args, train_dataset=dataset, callbacks=[callback]).train()
torch.save(callback.state_dict(), "softmask.pt")               # to continue with the next task in another process

`GuardCallback(protect(model.bert), head="classifier")` does the same for `protect`, whose loss the Trainer must add.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from softmask.core import SoftMask, gradient_importance
from softmask.core.attachment import Attachment
from softmask.core.protect import Guard, GuardedSteps
from softmask.trainers.heads import KeptHeads

FILE = "softmask.pt"


class _InCheckpoints(TrainerCallback):
    """Saves the callback's state in every checkpoint that the Trainer writes."""

    file = FILE
    _loaded = False

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def knows_tasks(self) -> bool:
        """Whether it holds earlier tasks that were not loaded."""
        return False

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Adds the state to the checkpoint that the Trainer has just written."""
        folder = _checkpoint(args, state)
        if state.is_world_process_zero and folder.is_dir():
            torch.save(self.state_dict(), folder / f"{self.file}.tmp")
            os.replace(folder / f"{self.file}.tmp", folder / self.file)

    def _restore(self, args: TrainingArguments, state: TrainerState) -> None:
        """Loads the state from the Trainer's checkpoint; without it the old tasks would be unprotected."""
        given = args.resume_from_checkpoint
        folders = [Path(given)] if isinstance(given, str) and Path(given).is_dir() else []
        files = [folder / self.file for folder in (*folders, _checkpoint(args, state))]
        if found := next((file for file in files if file.is_file()), None):
            self.load_state_dict(torch.load(found, map_location="cpu", weights_only=True))
        elif not self._loaded and not self.knows_tasks():
            raise FileNotFoundError(
                f"training resumes at step {state.global_step}, but there is no {files[-1]}: load the state of this "
                "callback before train(), with callback.load_state_dict(torch.load(...))"
            )


class GuardCallback(_InCheckpoints):
    """Attaches a guard of `protect` while a Trainer trains; when training ends, the new task is protected, too.

    Add the guard's loss in the Trainer's `compute_loss`: `loss + guard(inputs, output)`. `head` names the head inside
    the model, for guards that need one. The Trainer's checkpoints hold the state of the guard, and resuming from one
    restores it. In another process load `state_dict()` before the next task.
    """

    file = "softmask-guard.pt"

    def __init__(self, guard: Guard, head: str | None = None) -> None:
        self.guard, self.head = guard, head
        self._steps: GuardedSteps | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.release()
        if state.global_step > 0:
            self._restore(args, state)
        self._steps = self.guard.attach(kwargs["optimizer"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.release()
        head = None if self.head is None else kwargs["model"].get_submodule(self.head)
        self.guard.consolidate(_Pairs(kwargs["train_dataloader"], None), head)

    def release(self) -> None:
        """Detach from the optimizer; only needed after a training that raised an error."""
        if self._steps is not None:
            self._steps.remove()
            self._steps = None

    def state_dict(self) -> dict[str, Any]:
        """Loads with `torch.load(..., weights_only=True)`."""
        return self.guard.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.guard.load_state_dict(state)
        self._loaded = True


class SoftMaskCallback(_InCheckpoints):
    """Protects earlier tasks while a Trainer trains; measures the importance to the new task when training ends.

    Use one callback for all tasks: it keeps a copy of each task's head (`heads`), which cross-head importance needs and
    with which old tasks are evaluated. The Trainer's checkpoints hold importance and heads of the earlier tasks, and
    resuming from one restores them. Save `state_dict()` after each task, and load it into the callback of another
    process before the next task. `head` names the head inside the model. `batches` limits the batches on which
    importance is measured: by default one epoch; for a stream, as many as were trained on. Dropout is on, as in
    training.
    """

    def __init__(
        self,
        mask: SoftMask,
        head: str = "classifier",
        scale: Literal["auto", "gradient", "update"] = "auto",
        batches: int | None = None,
    ) -> None:
        self.mask, self.scale, self.batches = mask, scale, batches
        self.kept = KeptHeads(head)
        self._attachment: Attachment | None = None

    @property
    def heads(self) -> list[nn.Module]:
        """Copies of the heads of the tasks learned so far."""
        return self.kept.modules

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.release()
        if state.global_step > 0:
            self._restore(args, state)
        self.kept.rebuild(kwargs["model"])
        head = self.kept.current(kwargs["model"])
        self._attachment = self.mask.attach(kwargs["optimizer"], head=head, scale=self.scale)

    def knows_tasks(self) -> bool:
        return bool(self.heads)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.release()
        model, loader = kwargs["model"], kwargs["train_dataloader"]
        losses: list[Callable[[Any, Any], Tensor]] = [lambda batch, _: model(**batch).loss]
        losses += [self._through(model, head) for head in self.heads]
        # A stream may be endless.
        steps = None if hasattr(loader, "__len__") else state.global_step * args.gradient_accumulation_steps
        most = steps if self.batches is None else self.batches
        with _training(model):
            self.mask.update(gradient_importance(self.mask.backbone, _Pairs(loader, most), losses))
        self.kept.keep(model)

    def release(self) -> None:
        """Detach from the optimizer; only needed after a training that raised an error."""
        if self._attachment is not None:
            self._attachment.remove()
            self._attachment = None

    def state_dict(self) -> dict[str, Any]:
        """Loads with `torch.load(..., weights_only=True)`."""
        return {"mask": self.mask.state_dict(), "heads": self.kept.states()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mask.load_state_dict(state["mask"])
        self.kept.load(state["heads"])
        self._loaded = True

    def _through(self, model: nn.Module, head: nn.Module) -> Callable[[Any, Any], Tensor]:
        """Eq. 2 for an old head: the sum of its logits; labels are not used."""

        def loss(batch: Mapping[str, Any], _: Any) -> Tensor:
            with self.kept.in_place(model, head):
                inputs = {name: value for name, value in batch.items() if name not in ("labels", "label")}
                total: Tensor = _logits(model(**inputs)).sum()
                return total

        return loss


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _logits(output: Any) -> Any:
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """In train mode, as the Trainer trains, even if an evaluation came last; the modes are restored afterwards."""
    modes = [(part, part.training) for part in model.modules()]
    model.train()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


class _Pairs:
    """A loader of dictionaries as `(x, y)` batches that can be iterated again."""

    def __init__(self, loader: Iterable[Any], most: int | None) -> None:
        self.loader, self.most = loader, most

    def __iter__(self) -> Iterator[tuple[Any, None]]:
        return ((batch, None) for batch in islice(self.loader, self.most))
