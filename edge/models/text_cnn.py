"""A small convolutional model for sequences of tokens of any length, four blocks, no normalisation layer.

After Y. Kim, Convolutional Neural Networks for Sentence Classification, EMNLP 2014, https://arxiv.org/abs/1408.5882:
an embedding (w numbers per token, all 0 for padding), convolutions of three tokens (2w and 2w channels), the maximum
over the sequence, and a linear layer; Kim's has convolutions of several lengths side by side in place of the second
one, and dropout. w = 16, 1,024 tokens and 10 classes give 21,386 parameters.
"""

from __future__ import annotations

from torch import Tensor, nn


class TokenVectors(nn.Module):
    """An embedding with its vectors as channels."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(vocabulary, width, padding_idx=0)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) -> (batch, width, length)."""
        vectors: Tensor = self.vectors(tokens)
        return vectors.transpose(1, 2)


def stages(classes: int, vocabulary: int, width: int | None) -> list[tuple[str, list[nn.Module]]]:
    """Four stages of one unit each: (batch, length) int64 -> (batch, classes)."""
    assert width is not None
    last = [nn.Conv1d(2 * width, 2 * width, 3, padding=1), nn.AdaptiveMaxPool1d(1), nn.ReLU(), nn.Flatten()]
    return [
        ("embedding", [TokenVectors(vocabulary, width)]),  # (w, length)
        ("conv1", [nn.Sequential(nn.Conv1d(width, 2 * width, 3, padding=1), nn.ReLU())]),
        ("conv2", [nn.Sequential(*last)]),  # (2w,)
        ("head", [nn.Linear(2 * width, classes)]),
    ]
