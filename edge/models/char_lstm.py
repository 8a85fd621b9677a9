"""Two LSTM layers for the next character, four blocks.

S. Caldas, S. M. K. Duddu, P. Wu, T. Li, J. Konečný, H. B. McMahan, V. Smith, A. Talwalkar: LEAF: A Benchmark for
Federated Settings, 2018, https://arxiv.org/abs/1812.01097, ``models/shakespeare/stacked_lstm.py``: an embedding of 8
numbers per character, two LSTM layers of w = 256 units and a linear layer on the output at the last character. Torch's
LSTM has two vectors of biases in place of one. 82 tokens and 81 classes give 820,193 parameters.
"""

from __future__ import annotations

import warnings

from torch import Tensor, nn

from edge.models.marked_sequences import MarkedVectors, Outputs, chosen_outputs

EMBEDDING = 8


class MarkedLstm(nn.Module):
    """One LSTM layer over marked vectors. Its weights stay where the model has put them: they are never flattened."""

    def __init__(self, inputs: int, width: int, which: Outputs) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, batch_first=True)
        self.which = which

    def train(self, mode: bool = True) -> MarkedLstm:
        """Stay in training mode, which changes no number here: cuDNN has no gradient in evaluation mode."""
        return super().train(True)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, inputs + 1) -> `chosen_outputs`."""
        vectors, mark = x[..., :-1], x[..., -1:]
        if x.is_cuda:
            with warnings.catch_warnings():
                # cuDNN takes weights at the start of a storage alone, and copies those of a flat vector, 4w(inputs + w)
                # numbers, at each call. To flatten them would give the layer a storage of its own.
                warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
                outputs, _ = self.lstm(vectors)
        else:
            outputs, _ = self.lstm(vectors)
        return chosen_outputs(outputs, mark.to(outputs.dtype), self.which)


def stages(
    classes: int, vocabulary: int, width: int | None, continues: bool = False
) -> list[tuple[str, list[nn.Module]]]:
    """Four stages of one unit each: (batch, length) int64, 0 for padding at the end -> (batch, classes).

    ``continues``: (batch, length, classes), of the character behind each place.
    """
    assert width is not None
    last: Outputs = "all" if continues else "last"
    return [
        ("embedding", [MarkedVectors(vocabulary, EMBEDDING)]),  # (length, 9)
        ("lstm1", [MarkedLstm(EMBEDDING, width, "marked")]),  # (length, w + 1)
        ("lstm2", [MarkedLstm(width, width, last)]),  # (w,)
        ("head", [nn.Linear(width, classes)]),
    ]
