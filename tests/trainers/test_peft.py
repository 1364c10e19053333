"""LoRA: the mask watches the adapters and nothing else."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softmask import SoftMask

os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peft = pytest.importorskip("peft")

from tests.trainers.loop import adamw, new_backbone, new_head, tasks


def test_adapters_are_masked_and_the_rest_is_frozen() -> None:
    base = new_backbone()
    backbone = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["0"]))
    mask, heads = SoftMask(backbone), list[nn.Module]()
    assert all("lora_" in name for name in mask.importance)
    assert len(mask.importance) == 2
    frozen = {name: p.detach().clone() for name, p in backbone.named_parameters() if not p.requires_grad}
    for task, batches in enumerate(tasks()):
        head = new_head(task)
        optimizer = adamw([*(p for p in backbone.parameters() if p.requires_grad), *head.parameters()])
        before = {name: p.detach().clone() for name, p in mask.parameters().items()}
        with mask.attach(optimizer, head=head):
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(head(backbone(x)), y).backward()
                optimizer.step()
        for name, parameter in mask.parameters().items():
            ones = mask.importance[name] == 1
            assert torch.equal(parameter[ones], before[name][ones])
            assert not torch.equal(parameter, before[name])
        mask.consolidate(batches, head, previous_heads=heads)
        heads.append(head)
    assert 0 < mask.mean() < 1
    assert all(torch.equal(p, frozen[name]) for name, p in backbone.named_parameters() if name in frozen)


def test_a_new_adapter_after_a_merge_is_told() -> None:
    """Its parameters have the names of the merged ones, whose importance says nothing about them."""
    config = peft.LoraConfig(r=4, target_modules=["0"])
    backbone, head = peft.get_peft_model(new_backbone(), config), new_head(0)
    mask = SoftMask(backbone)
    nn.init.normal_(next(p for name, p in backbone.named_parameters() if "lora_B" in name))
    mask.consolidate(tasks()[0], head)
    assert mask.mean() > 0
    again = peft.get_peft_model(backbone.merge_and_unload(), config)
    with pytest.warns(UserWarning, match="lora_"):
        mask.attach(adamw(again.parameters()))
