"""The attention block of CAT."""

import pytest
import torch

from softmask.errors import SoftmaskError
from softmask.methods.cat import KnowledgeAttention


def test_number_of_parameters_at_full_width() -> None:
    with torch.device("meta"):
        block = KnowledgeAttention(2048, 4)
    assert sum(p.numel() for p in block.parameters()) == 25_182_208


def test_a_single_source_has_all_the_weight() -> None:
    block = KnowledgeAttention(16, 4).eval()
    assert torch.equal(block.weights(torch.randn(16), torch.randn(3, 1, 16)), torch.ones(3, 1, 4))


def test_weights_by_hand() -> None:
    torch.manual_seed(0)
    block = KnowledgeAttention(6, 2).eval()
    query, knowledge = torch.randn(6), torch.randn(1, 3, 6)
    asked = block.query(torch.nn.functional.layer_norm(query, (6,), eps=1e-6))
    keys = block.key(knowledge[0])
    for head, part in enumerate((slice(0, 3), slice(3, 6))):
        scores = keys[:, part] @ asked[part] / 3**0.5
        torch.testing.assert_close(block.weights(query, knowledge)[0, :, head], scores.softmax(0))


def test_the_order_of_the_sources_does_not_matter() -> None:
    block = KnowledgeAttention(16, 2).eval()
    query, knowledge = torch.randn(16), torch.randn(3, 4, 16)
    torch.testing.assert_close(block(query, knowledge), block(query, knowledge.flip(1)))


def test_sources_shape_the_answer_and_dropout_is_off_in_evaluation() -> None:
    block = KnowledgeAttention(16, 2).eval()
    query, knowledge = torch.randn(16), torch.randn(3, 2, 16)
    assert torch.equal(block(query, knowledge), block(query, knowledge))
    assert not torch.allclose(block(query, knowledge), block(query, knowledge + 1))
    block.train()
    assert not torch.equal(block(query, knowledge), block(query, knowledge))


def test_heads_must_divide_the_features() -> None:
    with pytest.raises(SoftmaskError, match="5 attention heads do not divide 16"):
        KnowledgeAttention(16, 5)
