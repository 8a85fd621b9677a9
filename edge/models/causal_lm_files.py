"""Causal models of the library transformers in folders: what a run's record says of them, and their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge.models import pretrained
from edge.models.pretrained import Floats


def options_of(path: Path) -> tuple[None, dict[str, Any]]:
    """``model.options``: the folder. ValueError for a GGUF file, and without the library."""
    if pretrained.is_gguf(path):
        raise ValueError(f"model.weights: {path} is GGUF; model.name = 'llama' reads it, 'transformers' takes folders")
    return None, {"folder": str(path)}


def numbers_of(path: Path) -> Iterator[Floats]:
    """The parameters of the model in a folder, in their order, each once."""
    import torch  # nobody else reads numbers

    library = pretrained.extra("transformers", path)
    model = library.AutoModelForCausalLM.from_pretrained(path, local_files_only=True, dtype=torch.float32)
    return (parameter.detach().numpy() for parameter in model.parameters())
