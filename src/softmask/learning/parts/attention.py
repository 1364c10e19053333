"""Attention over what earlier tasks compute (CAT)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.errors import SoftmaskError

DROP = 0.1
EPSILON = 1e-6


class KnowledgeAttention(nn.Module):
    """A transformer's block with one query, the task's own, and the features under earlier tasks' gates to look at.

    Normalisation comes first: query + attention(norm(query), knowledge), then x + feed_forward(norm(x)), then a norm.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise SoftmaskError(f"{heads} attention heads do not divide {width} features")
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.before_attention, self.before_feeding, self.last = (nn.LayerNorm(width, eps=EPSILON) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.Dropout(DROP))

    def forward(self, query: Tensor, knowledge: Tensor) -> Tensor:
        """(width) and (batch, sources, width) to (batch, width)."""
        weights = F.dropout(self.weights(query, knowledge), DROP, self.training)
        values = self._by_head(self.value(knowledge))
        looked_at = torch.einsum("bsh,bshw->bhw", weights, values).flatten(1)
        x = query + F.dropout(self.output(looked_at), DROP, self.training)
        return self.last(x + self.feed(self.before_feeding(x)))

    def weights(self, query: Tensor, knowledge: Tensor) -> Tensor:
        """How much each head looks at each source: (batch, sources, heads), 1 in sum over the sources."""
        asked = self._by_head(self.query(self.before_attention(query)))
        scores = torch.einsum("hw,bshw->bsh", asked, self._by_head(self.key(knowledge)))
        return (scores / asked.size(-1) ** 0.5).softmax(1)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))
