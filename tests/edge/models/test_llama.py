"""The decoder of the llama class: its weights by hand, positions, padding, and shared keys."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from edge.models.llama import GatedUnits, GroupedAttention, RootMeanSquareNorm
from edge.protocol.config import AdapterConfig, ModelConfig
from edge.protocol.options.llama import LlamaOptions
from edge.training.adapters import adapted, is_frozen
from edge.training.blocks import Block, build

VOCABULARY, CLASSES = 30, 29


def decoder(width: int = 16, **options: object) -> list[Block]:
    torch.manual_seed(0)
    return build(ModelConfig("llama", width, options=options), CLASSES, VOCABULARY)


def run(blocks: list[Block], tokens: torch.Tensor) -> torch.Tensor:
    x = tokens
    for _, module in blocks:
        x = module(x)
    return x


def weights(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def test_weights_by_hand() -> None:
    # Four heads of 4 queries, two of keys and values: 16 (16 + 8 + 8 + 16); hidden 8/3 x 16 = 42.7, 48: 3 x 16 x 48.
    layer = 16 * 48 + 3 * 16 * 48 + 2 * 16
    sizes = {name: weights(module) for name, module in decoder(layers=3)}
    assert sizes == {
        "embedding": (VOCABULARY - 1) * 16,
        "lower": layer,
        "upper": 2 * layer,
        "head": 16 + 16 * CLASSES,
    }


def test_smollm2_135m_has_as_many_weights_as_its_authors_say() -> None:
    """30 layers of width 576, nine heads, three of keys and values, 1,536 hidden units, 49,152 tokens; its head is the
    embedding."""
    options = {"layers": 30, "heads": 9, "kv_heads": 3, "hidden": 1536, "tied": True}
    with torch.device("meta"):
        blocks = build(ModelConfig("llama", 576, options=options), 49_152, 49_153, continues=True)
        assert sum(weights(module) for _, module in blocks) == 134_515_008
        for on, learns in ((("q", "k", "v", "o"), 921_600), (("linear",), 2_442_240)):
            frame = [block for block in build(ModelConfig("llama", 576, options=options), 2, 2) if block[0] != "head"]
            found = adapted(frame, AdapterConfig("lora", 8, on=on))
            assert sum(e.numel() for _, module in found for e in module.parameters() if not is_frozen(e)) == learns


def test_an_output_depends_on_no_later_token_and_on_no_padding() -> None:
    blocks = decoder()
    tokens = torch.tensor([[5, 9, 3, 7]])
    padded = F.pad(tokens, (0, 3))
    torch.testing.assert_close(run(blocks, tokens), run(blocks, padded))
    attention = GroupedAttention(16, LlamaOptions())
    x = torch.randn(1, 6, 16)
    later = x.clone()
    later[0, 4:] += 1.0
    torch.testing.assert_close(attention(x)[0, :4], attention(later)[0, :4])


def test_rotary_scores_depend_on_distances_alone() -> None:
    attention = GroupedAttention(8, LlamaOptions(heads=1, kv_heads=1, head_width=8))
    same = torch.randn(1, 1, 1, 8).expand(1, 1, 7, 8)
    query, key = attention._rotated(same), attention._rotated(same.flip(3).contiguous())
    scores = (query @ key.transpose(2, 3))[0, 0]
    for distance in range(5):
        diagonal = torch.diagonal(scores, -distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)
    # The first pair turns by one a place, the second by theta^(-1/4).
    turned = attention._rotated(torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0]).expand(1, 1, 3, 8))[0, 0, 2]
    assert turned[[0, 4]].tolist() == pytest.approx([math.cos(2), math.sin(2)], abs=1e-6)
    assert turned[[1, 5]].tolist() == pytest.approx([math.cos(0.2), math.sin(0.2)], abs=1e-6)


def test_norm_and_gated_units_are_their_formulas() -> None:
    torch.manual_seed(0)
    norm, units, x = RootMeanSquareNorm(4), GatedUnits(4, 6), torch.randn(3, 4)
    torch.testing.assert_close(norm(x), x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt())
    gate, up = x @ units.gate.weight.T, x @ units.up.weight.T
    torch.testing.assert_close(units(x), (gate * torch.sigmoid(gate) * up) @ units.down.weight.T)


def test_heads_share_keys_in_groups() -> None:
    torch.manual_seed(0)
    shared, x = GroupedAttention(16, LlamaOptions(heads=4, kv_heads=2)), torch.randn(2, 5, 16)
    own = GroupedAttention(16, LlamaOptions(heads=4, kv_heads=4))
    own.q, own.o = shared.q, shared.o
    for name in ("k", "v"):
        weight = getattr(shared, name).weight.view(2, 4, 16).repeat_interleave(2, dim=0).reshape(16, 16)
        getattr(own, name).weight.data.copy_(weight)
    torch.testing.assert_close(own(x), shared(x))


def test_a_width_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.width = 18: must be a multiple of twice the heads, 8, or name"):
        decoder(width=18)
