"""A decoder of the llama class, of any size, four blocks.

H. Touvron et al., LLaMA: Open and Efficient Foundation Language Models, 2023, https://arxiv.org/abs/2302.13971: no
biases; RMSNorm before attention and before the hidden units (Zhang and Sennrich, NeurIPS 2019); rotary positions (Su et
al., RoFormer, 2021); hidden units gated by SiLU (Shazeer, 2020); heads of queries in groups that share keys and values
(Ainslie et al., EMNLP 2023). The output is that at the last token of a sequence, or at each where each is foreseen;
vectors of padding are 0. A layer of width w with heads of queries and keys q and k numbers wide has
w (2 q + 2 k) + 3 w h weights for h hidden units, and 2 w of its norms.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.models.marked_sequences import Outputs, chosen_outputs
from edge.protocol.options.llama import LlamaOptions


class RootMeanSquareNorm(nn.Module):
    """x / rms(x), with a weight for each number."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        """(.., width) -> the same."""
        whole = x.float()
        scaled: Tensor = whole * torch.rsqrt(whole.square().mean(dim=-1, keepdim=True) + self.epsilon)
        return scaled.to(x.dtype) * self.weight


class UnpaddedVectors(nn.Module):
    """An embedding without a vector of padding, with the mark of `edge.models.marked_sequences` as last channel."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(tokens, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) int64, 0 for padding -> (batch, length, width + 1)."""
        mark = (tokens != 0).unsqueeze(2)
        vectors: Tensor = self.vectors((tokens - 1).clamp(min=0)) * mark
        return torch.cat([vectors, mark.to(vectors.dtype)], dim=2)


class TiedHead(nn.Module):
    """Norm, then products with the vectors of an embedding, which stay parameters of that alone."""

    def __init__(self, norm: nn.Module, embedding: nn.Embedding) -> None:
        super().__init__()
        self.norm, self._of = norm, (embedding,)

    def forward(self, x: Tensor) -> Tensor:
        """(.., width) -> (.., tokens)."""
        return F.linear(self.norm(x), self._of[0].weight)


class GroupedAttention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, width: int, options: LlamaOptions) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.theta = options.heads, options.kv_heads, options.theta
        self.head_width = options.head_width or width // options.heads
        self.q = nn.Linear(width, self.heads * self.head_width, bias=False)
        self.k = nn.Linear(width, self.kv_heads * self.head_width, bias=False)
        self.v = nn.Linear(width, self.kv_heads * self.head_width, bias=False)
        self.o = nn.Linear(self.heads * self.head_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> the same."""
        batch, length, _ = x.shape
        query = self._split(self.q(x), self.heads)  # (batch, heads, length, head width)
        key, value = self._split(self.k(x), self.kv_heads), self._split(self.v(x), self.kv_heads)
        query, key = self._rotated(query), self._rotated(key)
        times = self.heads // self.kv_heads
        key, value = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
        scores = query @ key.transpose(2, 3) / math.sqrt(self.head_width)  # (batch, heads, length, length)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(dim=3) @ value
        result: Tensor = self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:2], heads, self.head_width).transpose(1, 2)

    def _rotated(self, x: Tensor) -> Tensor:
        """Each pair (i, i + half) of a head's numbers is turned by its place times theta^(-2i / head width)."""
        half = self.head_width // 2
        # Float32 whatever the blocks compute in: a position is more than bfloat16 can count.
        turn = self.theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
        angle = torch.arange(x.shape[2], device=x.device, dtype=torch.float32).unsqueeze(1) * turn  # (length, half)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=3)


class GatedUnits(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(.., width) -> the same."""
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class LlamaLayer(nn.Module):
    """Attention, then gated units; each is added to its input. Padding travels as the last channel."""

    def __init__(self, width: int, options: LlamaOptions, which: Outputs) -> None:
        super().__init__()
        hidden = options.hidden or -(-8 * width // 3 // 8) * 8
        self.norm1, self.attention = RootMeanSquareNorm(width, options.epsilon), GroupedAttention(width, options)
        self.norm2, self.hidden = RootMeanSquareNorm(width, options.epsilon), GatedUnits(width, hidden)
        self.which = which

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width + 1) -> `chosen_outputs`."""
        vectors, mark = x[..., :-1], x[..., -1:]
        vectors = vectors + self.attention(self.norm1(vectors))
        vectors = vectors + self.hidden(self.norm2(vectors))
        return chosen_outputs(vectors, mark, self.which)


def stages(
    classes: int,
    vocabulary: int,
    width: int | None,
    options: LlamaOptions,
    continues: bool = False,
    is_filled: bool = False,
) -> list[tuple[str, list[nn.Module]]]:
    """Four stages of one unit each: (batch, length) int64, 0 for padding at the end -> (batch, classes).

    ``continues``: the output is (batch, length, classes), of the token behind each place. ``is_filled``: the numbers
    come from a file, so that layers have no memory yet; a head of other classes is drawn.
    """
    assert width is not None
    if options.head_width is None and width % (2 * options.heads):
        raise ValueError(
            f"model.width = {width}: must be a multiple of twice the heads, {2 * options.heads}, or name "
            "model.options.head_width"
        )
    if options.tied and not continues:
        options = options.model_copy(update={"tied": False})  # there are classes to tell apart, and no tokens
    half, last = options.layers // 2, options.layers - 1
    with torch.device("meta") if is_filled else nullcontext():
        embedding = UnpaddedVectors(vocabulary - 1, width)
        layers = [
            LlamaLayer(width, options, "marked" if number < last else "all" if continues else "last")
            for number in range(options.layers)
        ]
        norm = RootMeanSquareNorm(width, options.epsilon)
    with torch.device("meta") if is_filled and continues else nullcontext():
        head: nn.Module = TiedHead(norm, embedding.vectors)
        if not options.tied:
            head = nn.Sequential(norm, nn.Linear(width, classes, bias=False))
    return [
        ("embedding", [embedding]),
        ("lower", [nn.Sequential(*layers[:half])]),
        ("upper", [nn.Sequential(*layers[half:])]),
        ("head", [head]),
    ]
