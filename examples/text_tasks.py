"""A small BERT learns three text tasks in a Trainer, with AdamW and weight decay; prints its forgetting.

Run `python examples/text_tasks.py`. It prints the accuracy on each task when it was learned and after the last one,
three times: without the callback, with it, and with `scale="gradient"`, which has no effect under Adam.
The texts are generated: a sentence is a row of random words, some of them typical of its class.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as transformers_logging

from softmask import SoftMask
from softmask.trainers.transformers import SoftMaskCallback

WORDS, LENGTH, CLASSES, TYPICAL = 60, 12, 3, 4


class Texts(Dataset[dict[str, Tensor]]):
    """Sentences of one task: in each, some words are drawn from those that are typical of its class."""

    def __init__(self, task: int, count: int, seed: int) -> None:
        vocabulary = torch.randperm(WORDS, generator=torch.Generator().manual_seed(task))
        typical = vocabulary[: CLASSES * TYPICAL].view(CLASSES, TYPICAL)
        draws = torch.Generator().manual_seed(1000 * seed + task)
        self.labels = torch.randint(CLASSES, (count,), generator=draws)
        self.words = torch.randint(WORDS, (count, LENGTH), generator=draws)
        chosen = torch.randint(TYPICAL, (count, TYPICAL), generator=draws)
        self.words[:, 1 : 1 + TYPICAL] = typical[self.labels].gather(1, chosen)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


@dataclass(frozen=True)
class Outcome:
    """Accuracy on each task when it was learned, and after the last."""

    fresh: list[float]
    final: list[float]

    @property
    def forgotten(self) -> float:
        """Mean loss of accuracy over all tasks but the last."""
        return sum(a - b for a, b in zip(self.fresh[:-1], self.final[:-1], strict=True)) / (len(self.fresh) - 1)


def small_bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
            num_labels=CLASSES,
        )
    )


def accuracy(model: BertForSequenceClassification, head: nn.Module, texts: Texts) -> float:
    model.eval()
    with torch.inference_mode():
        logits = head(model.bert(input_ids=texts.words).pooler_output)
    return (logits.argmax(1) == texts.labels).double().mean().item()


def learn(scale: str | None, tasks: int = 3, count: int = 1000, epochs: float = 6) -> Outcome:
    """All tasks, one after another; `scale` None means without the callback."""
    model = small_bert()
    callback = None if scale is None else SoftMaskCallback(SoftMask(model.bert), scale=scale)  # type: ignore[arg-type]
    tests, heads, fresh = [Texts(task, 500, seed=1) for task in range(tasks)], list[nn.Module](), list[float]()
    for task in range(tasks):
        torch.manual_seed(task)
        model.classifier = nn.Linear(model.config.hidden_size, CLASSES)
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                learning_rate=1e-3,
                weight_decay=0.1,
                per_device_train_batch_size=32,
                num_train_epochs=epochs,
                lr_scheduler_type="linear",
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                logging_strategy="no",
                use_cpu=True,
                seed=task,
            )
            callbacks = [] if callback is None else [callback]
            trainer = Trainer(model, arguments, train_dataset=Texts(task, count, seed=0), callbacks=callbacks)
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        heads.append(model.classifier)
        fresh.append(accuracy(model, heads[task], tests[task]))
    return Outcome(fresh, [accuracy(model, head, texts) for head, texts in zip(heads, tests, strict=True)])


def main() -> None:
    transformers_logging.set_verbosity_error()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    for title, scale in [("no callback", None), ("SoftMaskCallback", "auto"), ('scale="gradient"', "gradient")]:
        outcome = learn(scale)
        fresh, final = (" ".join(f"{100 * a:5.1f}" for a in row) for row in (outcome.fresh, outcome.final))
        print(
            f"{title:18} when learned {fresh}   at the end {final}   forgotten {100 * outcome.forgotten:5.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
