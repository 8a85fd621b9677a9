"""The common parts of the models of characters: vectors with a mark of padding, and the output at the last character.

A sequence is padded after its last character, and layers look only back, so that padding changes no output that is
used. Blocks pass one tensor on, so the mark travels as its last channel: 1 at a character, 0 at padding.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Outputs = Literal["marked", "all", "last"]
"""Of a layer: at all characters with the mark, for the next layer; at all; or at the last"""


class MarkedVectors(nn.Module):
    """An embedding, with the mark as its last channel; the vector of padding is 0 and never learns."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(vocabulary, width, padding_idx=0)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) int64 -> (batch, length, width + 1)."""
        vectors: Tensor = self.vectors(tokens)
        return torch.cat([vectors, (tokens != 0).unsqueeze(2).to(vectors.dtype)], dim=2)


def last_output(outputs: Tensor, mark: Tensor) -> Tensor:
    """The outputs at the last character: (batch, length, width), (batch, length, 1) -> (batch, width).

    A sum of which one term is not 0, because gathering has no deterministic gradient on every device.
    """
    is_last = mark - F.pad(mark[:, 1:], (0, 0, 0, 1))  # (batch, length, 1)
    return (outputs * is_last).sum(dim=1)


def chosen_outputs(outputs: Tensor, mark: Tensor, which: Outputs) -> Tensor:
    """(batch, length, width), (batch, length, 1) -> (batch, length, width + 1), (batch, length, width) or (batch,
    width)."""
    if which == "marked":
        return torch.cat([outputs, mark], dim=2)
    return outputs if which == "all" else last_output(outputs, mark)
