"""Fine-tunes a small language model with TRL's SFTTrainer while keeping its old answers."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from softmask import protect
from softmask.trainers.transformers import GuardCallback


class Guarded(SFTTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, **given):
        loss, output = super().compute_loss(model, inputs, return_outputs=True, **given)
        loss = loss + guard(inputs, output)
        return (loss, output) if return_outputs else loss


if __name__ == "__main__":
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(48)} | {"<eos>": 48, "<pad>": 49}, "<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2))
    guard = protect(model, ways=("tokens",), pretrained=True)  # needs no old data
    texts = Dataset.from_dict({"text": [" ".join(f"w{n}" for n in torch.randint(48, (12,))) for _ in range(32)]})
    settings = SFTConfig("trl-sft", max_steps=4, save_steps=2, report_to=[], use_cpu=True, max_length=16, bf16=False)
    callbacks = [GuardCallback(guard)]
    Guarded(model, settings, train_dataset=texts, processing_class=tokenizer, callbacks=callbacks).train()
