"""The callback in a real Trainer: what it does to a small BERT, and that it is what a loop by hand does."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from examples.text_tasks import CLASSES, Texts, learn, small_bert
from transformers import Trainer, TrainerCallback, TrainingArguments

from softmask import SoftMask, gradient_importance, protect
from softmask.core.protect import Guard
from softmask.trainers.transformers import GuardCallback, SoftMaskCallback


def arguments(folder: Path) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        learning_rate=1e-3,
        weight_decay=0.1,
        per_device_train_batch_size=16,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )


def taught(folder: Path, tasks: int, batches: int | None = None) -> tuple[nn.Module, SoftMaskCallback]:
    model = small_bert()
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    callback = SoftMaskCallback(SoftMask(model.bert), batches=batches)
    for task in range(tasks):
        torch.manual_seed(task)
        model.classifier = nn.Linear(32, CLASSES)
        Trainer(model, arguments(folder), train_dataset=Texts(task, 64, seed=0), callbacks=[callback]).train()
    return model, callback


def test_importance_is_that_of_the_own_loss_and_of_old_heads(tmp_path: Path) -> None:
    model, callback = taught(tmp_path, tasks=1)
    before = dict(callback.mask.importance)
    old = copy.deepcopy(callback.heads[0])
    torch.manual_seed(1)
    model.classifier = nn.Linear(32, CLASSES)
    texts = Texts(1, 64, seed=0)
    Trainer(model, arguments(tmp_path), train_dataset=texts, callbacks=[callback]).train()
    batches = [(texts.words[i : i + 16], texts.labels[i : i + 16]) for i in range(0, 64, 16)]
    found = gradient_importance(
        model.bert,
        batches,
        [
            lambda x, y: nn.functional.cross_entropy(model.classifier(model.bert(x).pooler_output), y),
            lambda x, _: old(model.bert(x).pooler_output).sum(),
        ],
    )
    for name, importance in callback.mask.importance.items():
        if name.endswith("key.bias"):
            continue  # it shifts all scores alike, which softmax does not see: its gradient is nothing but rounding
        torch.testing.assert_close(importance, torch.maximum(before[name], found[name]), atol=2e-3, rtol=0)
    assert len(callback.heads) == 2
    assert not any(parameter.requires_grad for head in callback.heads for parameter in head.parameters())


def test_what_is_blocked_does_not_move_under_adamw(tmp_path: Path) -> None:
    model, callback = taught(tmp_path, tasks=1, batches=2)
    callback.mask.update({name: torch.ones_like(p) for name, p in callback.mask.parameters().items()})
    before = {name: p.detach().clone() for name, p in callback.mask.parameters().items()}
    model.classifier = nn.Linear(32, CLASSES)
    Trainer(model, arguments(tmp_path), train_dataset=Texts(1, 64, seed=0), callbacks=[callback]).train()
    for name, parameter in callback.mask.parameters().items():
        assert torch.equal(parameter, before[name])
    assert not callback.mask.attached


@pytest.mark.slow
def test_forgetting_with_and_without() -> None:
    """AdamW with weight decay: scaling updates protects, scaling gradients hardly does."""
    without, protected, gradient = (learn(scale) for scale in (None, "auto", "gradient"))
    assert min(without.fresh) > 0.8
    assert without.forgotten > 0.15
    assert protected.forgotten < without.forgotten / 2
    assert protected.forgotten < gradient.forgotten - 0.05


def test_another_process_goes_on_with_what_was_kept(tmp_path: Path) -> None:
    model, callback = taught(tmp_path, tasks=1, batches=2)
    torch.save(callback.state_dict(), tmp_path / "softmask.pt")
    again = SoftMaskCallback(SoftMask(model.bert), batches=2)
    again.load_state_dict(torch.load(tmp_path / "softmask.pt", weights_only=True))
    assert again.mask.mean() == callback.mask.mean() > 0
    model.classifier = nn.Linear(32, CLASSES)
    Trainer(model, arguments(tmp_path), train_dataset=Texts(1, 64, seed=0), callbacks=[again]).train()
    assert len(again.heads) == 2
    assert torch.equal(again.heads[0].weight, callback.heads[0].weight)


def resumable(folder: Path, epochs: int) -> TrainingArguments:
    made = arguments(folder)
    made.save_strategy, made.num_train_epochs = "epoch", epochs
    return made


def test_resuming_with_a_fresh_callback_restores_importance_and_heads(tmp_path: Path) -> None:
    model, callback = taught(tmp_path / "first", tasks=1, batches=2)
    model.classifier = nn.Linear(32, CLASSES)
    before = callback.mask.state_dict()["importance"]
    texts = Texts(1, 64, seed=0)
    Trainer(model, resumable(tmp_path, 1), train_dataset=texts, callbacks=[callback]).train()
    fresh = SoftMaskCallback(SoftMask(model.bert), batches=2)
    seen: dict[str, Tensor] = {}

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen.update(fresh.mask.importance)

    made = Trainer(model, resumable(tmp_path, 2), train_dataset=texts, callbacks=[fresh, Watch()])
    made.train(resume_from_checkpoint=True)
    assert seen.keys() == before.keys()
    assert all(torch.equal(seen[name], before[name]) for name in before), "while the second task is trained"
    assert len(fresh.heads) == 2
    assert torch.equal(fresh.heads[0].weight, callback.heads[0].weight)


def test_resuming_from_elsewhere_needs_the_state_by_hand(tmp_path: Path) -> None:
    model = small_bert()
    texts = Texts(0, 32, seed=0)
    callback = SoftMaskCallback(SoftMask(model.bert), batches=1)
    Trainer(model, resumable(tmp_path / "here", 1), train_dataset=texts, callbacks=[callback]).train()
    checkpoint = tmp_path / "here" / "checkpoint-2"
    fresh = SoftMaskCallback(SoftMask(model.bert), batches=1)
    made = Trainer(model, resumable(tmp_path / "there", 2), train_dataset=texts, callbacks=[fresh])
    with pytest.raises(FileNotFoundError, match="checkpoint-2"):
        made.train(resume_from_checkpoint=str(checkpoint))
    fresh.load_state_dict(torch.load(checkpoint / "softmask.pt", weights_only=True))
    made.train(resume_from_checkpoint=str(checkpoint))
    assert len(fresh.heads) == 1


class Listening(nn.Module):
    """Notes whether it was in training mode when importance was measured."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: set[bool] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.modes.add(self.training)
        return x


def test_dropout_is_on_whether_or_not_an_evaluation_came_last(tmp_path: Path) -> None:
    model = small_bert()
    callback = SoftMaskCallback(SoftMask(model.bert), batches=1)
    listening = Listening()
    model.classifier = nn.Sequential(nn.Linear(32, CLASSES), listening)
    texts = Texts(0, 16, seed=0)
    with_evaluation = arguments(tmp_path)
    with_evaluation.eval_strategy = "epoch"
    made = Trainer(model, with_evaluation, train_dataset=texts, eval_dataset=texts, callbacks=[callback])
    measure = callback.on_train_end
    modes = []

    def watched(*args: Any, **kwargs: Any) -> None:
        modes.append(model.training)
        listening.modes.clear()
        measure(*args, **kwargs)
        modes.append(model.training)

    callback.on_train_end = watched  # type: ignore[method-assign]
    made.train()
    assert modes == [False, False], "the evaluation's mode, before and after"
    assert listening.modes == {True}


def test_heads_that_wait_for_a_model_are_saved_again(tmp_path: Path) -> None:
    model, callback = taught(tmp_path, tasks=1, batches=1)
    other = SoftMaskCallback(SoftMask(model.bert))
    other.load_state_dict(callback.state_dict())
    assert len(other.state_dict()["heads"]) == 1


class Guarded(Trainer):
    guard: Guard

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **given: Any) -> Any:
        loss, output = super().compute_loss(model, inputs, return_outputs=True, **given)
        loss = loss + self.guard(inputs)
        return (loss, output) if return_outputs else loss


def guarded(model: nn.Module, folder: Path, epochs: int) -> Guarded:
    """A Trainer whose guard is over a model that knows one task with the head as it is."""
    guard = protect(
        model.bert, ways=("answers", "subspace"), forward=lambda bert, x: bert(x["input_ids"]).pooler_output
    )
    settings = resumable(folder, epochs)
    settings.lr_scheduler_type = "constant"
    made = Guarded(model, settings, train_dataset=Texts(1, 64, seed=0), callbacks=[])
    made.guard = guard
    made.add_callback(GuardCallback(guard, head="classifier"))
    return made


def test_a_guard_in_the_trainer_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    results = []
    for stops in (False, True):
        model = small_bert()
        old = copy.deepcopy(model.classifier)
        trainer = guarded(model, tmp_path / str(stops), 1 if stops else 2)
        trainer.guard.consolidate([(Texts(0, 16, seed=0)[slice(None)], None)], old)
        trainer.train()
        if stops:
            model = small_bert()  # another process: nothing but the checkpoint
            trainer = guarded(model, tmp_path / "True", 2)
            trainer.train(resume_from_checkpoint=True)
        assert len(trainer.guard.heads) == 2, "the task that it knew, and the one that it has learned"
        assert torch.equal(trainer.guard.heads[0].weight, old.weight)
        results.append({name: p.detach().clone() for name, p in model.named_parameters()})
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, msg=name)
