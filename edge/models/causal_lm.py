"""A causal language model of the library transformers, as a folder of Hugging Face has it, one block.

``model.weights`` names the folder: ``config.json`` and ``*.safetensors``; nothing is fetched. Its attention is written
out (``eager``), so that the same products run, and are counted, on every device. Padding comes after the last token and
no token looks ahead, so that it changes no output that is used.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from edge.models import pretrained
from edge.protocol.options.causal_lm import CausalLmOptions


class CausalModel(nn.Module):
    """The model's logits behind every token."""

    def __init__(self, inner: nn.Module, longest: int | None) -> None:
        super().__init__()
        self.inner, self.longest = inner, longest

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) int64, 0 for padding -> (batch, length, tokens). ValueError for longer ones than it takes."""
        batch, length = tokens.shape
        if self.longest is not None and length > self.longest:
            raise ValueError(f"sequences of {length} tokens; the most is {self.longest}")
        later = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        mask = torch.zeros(length, length, device=tokens.device).masked_fill(later, torch.finfo(torch.float32).min)
        ids = (tokens - 1).clamp(min=0)
        logits: Tensor = self.inner(ids, attention_mask=mask.expand(batch, 1, length, length), use_cache=False).logits
        return logits


def stages(
    classes: int,
    vocabulary: int,
    width: int | None,
    options: CausalLmOptions,
    continues: bool = False,
    is_filled: bool = False,
) -> list[tuple[str, list[nn.Module]]]:
    """One stage: (batch, length) int64 -> (batch, length, classes). ValueError without weights, and for classes."""
    if not is_filled or options.folder is None:
        raise ValueError("model.name = 'transformers': name the folder of the model as model.weights")
    if not continues:
        raise ValueError("model.name = 'transformers': foresees tokens; train.loss = 'next-token' and data.text do")
    path = Path(options.folder)
    library, about = pretrained.extra("transformers", path), pretrained.facts(path)
    config = library.AutoConfig.from_pretrained(path, local_files_only=True)
    with torch.random.fork_rng(devices=[]):  # what is drawn here is replaced
        inner = library.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    if config.vocab_size != classes:
        raise ValueError(
            f"model.weights: {path} has {config.vocab_size:,} tokens, and the data {classes:,}; its tokenizer belongs "
            "to it (data.text.tokenizer)"
        )
    longest = [about[key] for key in ("sliding_window", "max_position_embeddings", "n_positions") if about.get(key)]
    return [("decoder", [CausalModel(inner, min(longest, default=None))])]
