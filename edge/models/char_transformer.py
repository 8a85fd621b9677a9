"""A transformer of two layers for the next character, four blocks.

A. Vaswani et al., Attention Is All You Need, NeurIPS 2017, https://arxiv.org/abs/1706.03762, its decoder without
dropout: characters attend to themselves and to those before them, and positions are sines and cosines, which have no
parameters and any length. Normalisation comes before attention and before the two linear layers, and once before the
head, as in GPT-2 (Radford et al., 2019). w = 128, four heads, 4w hidden units; 82 tokens and 81 classes give 417,745
parameters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from edge.models.marked_sequences import MarkedVectors, Outputs, chosen_outputs

HEADS = 4
LONGEST_PERIOD = 10_000.0
"""Of the sines, over 2 pi"""


class PlacedVectors(MarkedVectors):
    """Marked vectors plus those of their positions."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) int64 -> (batch, length, width + 1)."""
        marked = super().forward(tokens)
        length, width = tokens.shape[1], marked.shape[2] - 1
        # Float32 whatever the blocks compute in: a position is more than bfloat16 can count.
        place = torch.arange(length, device=marked.device, dtype=torch.float32).unsqueeze(1)
        step = torch.arange(0, width, 2, device=marked.device, dtype=torch.float32) / width
        angle = place * torch.exp(step * -math.log(LONGEST_PERIOD))  # (length, width / 2)
        positions = torch.cat([angle.sin(), angle.cos(), torch.zeros_like(place)], dim=1)  # (length, width + 1)
        return marked + positions


class CausalLayer(nn.Module):
    """Attention to the characters so far, then two linear layers; each is added to its input."""

    def __init__(self, width: int, which: Outputs) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.which = which

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width + 1) -> `chosen_outputs`."""
        vectors, mark = x[..., :-1], x[..., -1:]
        vectors = vectors + self._attention(self.norm1(vectors))
        vectors = vectors + self.hidden(self.norm2(vectors))
        return chosen_outputs(vectors, mark, self.which)

    def _attention(self, x: Tensor) -> Tensor:
        """Written out, so that the same products run, and are counted, on every device."""
        batch, length, width = x.shape
        parts = self.projections(x).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)  # (batch, heads, length, width / heads)
        scores = query @ key.transpose(2, 3) / math.sqrt(width // HEADS)  # (batch, heads, length, length)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(dim=3) @ value
        result: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


def stages(
    classes: int, vocabulary: int, width: int | None, continues: bool = False
) -> list[tuple[str, list[nn.Module]]]:
    """Four stages of one unit each: (batch, length) int64, 0 for padding at the end -> (batch, classes).

    ``continues``: (batch, length, classes), of the character behind each place.
    """
    assert width is not None
    last: Outputs = "all" if continues else "last"
    return [
        ("embedding", [PlacedVectors(vocabulary, width)]),  # (length, w + 1)
        ("layer1", [CausalLayer(width, "marked")]),  # (length, w + 1)
        ("layer2", [CausalLayer(width, last)]),  # (w,)
        ("head", [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))]),
    ]
