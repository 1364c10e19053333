"""Answers of a model on a fixed dataset, kept by the index of the sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class RecordedAnswers:
    """For each sample one row of each answer, on the CPU."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.answers: list[list[Tensor]] = []

    def add(self, index: Any, answers: Sequence[Tensor]) -> None:
        keys = _keys(index)
        if any(len(answer) != len(keys) for answer in answers):
            raise ValueError(f"{len(keys)} indices were given for {len(answers[0])} samples")
        if known := [key for key in keys if key in self.rows]:
            raise ValueError(f"sample {known[0]} was recorded already")
        if not self.answers:
            self.answers = [[] for _ in answers]
        self.rows.update({key: len(self.rows) + place for place, key in enumerate(keys)})
        for kept, answer in zip(self.answers, answers, strict=True):
            kept.extend(answer.detach().cpu().clone().unbind())

    def of(self, index: Any, device: torch.device) -> list[Tensor]:
        if index is None:
            raise ValueError("recorded answers need the samples' index: keep(x, features, index=index)")
        keys = _keys(index)
        if unknown := [key for key in keys if key not in self.rows]:
            raise LookupError(f"sample {unknown[0]} was not recorded; {len(self.rows)} samples were")
        return [torch.stack([kept[self.rows[key]] for key in keys]).to(device) for kept in self.answers]

    def state_dict(self) -> dict[str, Any]:
        return {"index": torch.tensor(list(self.rows)), "answers": [torch.stack(kept) for kept in self.answers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rows = {key: row for row, key in enumerate(state["index"].tolist())}
        self.answers = [list(kept.clone().unbind()) for kept in state["answers"]]


def _keys(index: Any) -> list[int]:
    return index.tolist() if isinstance(index, Tensor) else [int(each) for each in index]
