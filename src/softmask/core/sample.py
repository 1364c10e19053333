"""KeepSample: keeps a model's answers to a few old inputs, and uses their labels if they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.core.answers import IGNORED, Forward, KeepAnswers, Of, call, evaluating
from softmask.core.heads import one_or_many
from softmask.core.parameters import unwrapped

AT_ONCE = 32
"""Inputs of the sample in each step."""
SEED = 0


class KeepSample:
    """A loss: the distance between the old and the current answers to a few inputs, as in `KeepAnswers`.

        keep = KeepSample(backbone, x, heads=old_head)           # or y=labels
        loss = F.cross_entropy(head(features), y) + keep()       # in your own loop

    The answers are those of the model when this object was created, over all later tasks. Each call draws some of the
    inputs. With labels for the only head (for a language model: the next token at each position) their cross-entropy is
    added.
    """

    def __init__(
        self,
        backbone: nn.Module,
        x: Any,
        y: Tensor | None = None,
        heads: Sequence[nn.Module] = (),
        strength: float = 1.0,
        of: Of = "answers",
        forward: Forward = call,
        at_once: int = AT_ONCE,
    ) -> None:
        heads = one_or_many(heads)
        self.x, self.y, self.count = x, y, len(next(iter(x.values())) if isinstance(x, Mapping) else x)
        if not self.count:
            raise ValueError("the sample is empty")
        if y is not None and (len(y) != self.count or of == "features" or (of == "answers" and len(heads) != 1)):
            raise ValueError(
                "labels need one for each input of the sample, and one head (or of='tokens') that gives them"
            )
        self.keep = KeepAnswers(backbone, heads, strength, of=of, teacher="recorded", forward=forward)
        self.at_once = min(at_once, self.count)
        self.draws = torch.Generator().manual_seed(SEED)
        rows = torch.arange(self.count).split(at_once)
        self.keep.record((each, self.inputs(each)) for each in rows)

    def inputs(self, rows: Tensor) -> Any:
        if isinstance(self.x, Mapping):
            return {name: value[rows] for name, value in self.x.items()}
        return self.x[rows]

    def __call__(self) -> Tensor:
        if not self.keep.active():
            return torch.zeros(())
        rows = torch.randperm(self.count, generator=self.draws)[: self.at_once]
        x, inner = self.inputs(rows), unwrapped(self.keep.backbone)
        with evaluating(inner):
            output = self.keep.forward(inner, x)
            total = self.keep(x, output, index=rows)
        if self.y is None:
            return total
        logits: Any = getattr(output, "logits", output)
        if self.keep.of == "answers":
            logits = self.keep.heads[0](logits)
        labels = self.y[rows].to(logits.device)
        loss = F.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED)
        return total + self.keep.strength * loss

    def state_dict(self) -> dict[str, Any]:
        """The recorded answers and the state of the random draws; the sample itself must be passed again."""
        return {"keep": self.keep.state_dict(), "draws": self.draws.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.keep.load_state_dict(state["keep"])
        self.draws.set_state(state["draws"])
