"""Soft-masking in the Trainer of Hugging Face transformers (extra `transformers`).

callback = SoftMaskCallback(SoftMask(model.bert), head="classifier")
for dataset in tasks:
    model.classifier = torch.nn.Linear(...)                    # a new head for each task
    Trainer(model, args, train_dataset=dataset, callbacks=[callback]).train()
torch.save(callback.state_dict(), "softmask.pt")               # the Trainer's checkpoints do not hold it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal

from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from softmask.core import SoftMask, gradient_importance
from softmask.core.attachment import Attachment
from softmask.trainers.heads import KeptHeads, first_tensor


class SoftMaskCallback(TrainerCallback):
    """Protects earlier tasks while a Trainer trains; measures what the new one needs when it ends.

    Use one callback for all tasks: it keeps a copy of each task's head (`heads`), which cross-head importance needs and
    with which old tasks are evaluated. These and the importance are not in the Trainer's checkpoints: keep
    `state_dict()` after each task, and load it into the callback of another day's process before it trains. `head`
    names the head inside the model. `batches` limits how many batches importance is measured on: all of
    an epoch by default, of a stream as many as were trained on. Dropout is on, as in training.
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
        self.kept.rebuild(kwargs["model"])
        head = self.kept.current(kwargs["model"])
        self._attachment = self.mask.attach(kwargs["optimizer"], head=head, scale=self.scale)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.release()
        model, loader = kwargs["model"], kwargs["train_dataloader"]
        losses: list[Callable[[Any, Any], Tensor]] = [lambda batch, _: model(**batch).loss]
        losses += [self._through(model, head) for head in self.heads]
        # The end of a stream may never come.
        steps = None if hasattr(loader, "__len__") else state.global_step * args.gradient_accumulation_steps
        most = steps if self.batches is None else self.batches
        with _training(model):
            self.mask.update(gradient_importance(self.mask.backbone, _Pairs(loader, most), losses))
        self.kept.keep(model)

    def release(self) -> None:
        """Let the optimizer go; needed by hand only after a training that was broken off."""
        if self._attachment is not None:
            self._attachment.remove()
            self._attachment = None

    def state_dict(self) -> dict[str, Any]:
        """Loads with `torch.load(..., weights_only=True)`."""
        return {"mask": self.mask.state_dict(), "heads": self.kept.states()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mask.load_state_dict(state["mask"])
        self.kept.load(state["heads"])

    def _through(self, model: nn.Module, head: nn.Module) -> Callable[[Any, Any], Tensor]:
        """Eq. 2 for an old head: the sum of its logits; labels are not used."""

        def loss(batch: Mapping[str, Any], _: Any) -> Tensor:
            with self.kept.in_place(model, head):
                inputs = {name: value for name, value in batch.items() if name not in ("labels", "label")}
                total: Tensor = first_tensor(model(**inputs)).sum()
                return total

        return loss


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """As the Trainer trains, with dropout, whether or not an evaluation came last; afterwards as before."""
    modes = [(part, part.training) for part in model.modules()]
    model.train()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


class _Pairs:
    """A loader of dictionaries as `(x, y)` batches that may be gone through again."""

    def __init__(self, loader: Iterable[Any], most: int | None) -> None:
        self.loader, self.most = loader, most

    def __iter__(self) -> Iterator[tuple[Any, None]]:
        return ((batch, None) for batch in islice(self.loader, self.most))
