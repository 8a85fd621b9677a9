"""The decoder `edge.models.llama` in files of pretrained models: its shape, and its numbers. No torch.

H. Touvron et al., LLaMA, 2023, as the format GGUF and the folders of Hugging Face's models have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge.models import pretrained
from edge.models.pretrained import Floats

IN_GGUF = {
    "norm1": "attn_norm",
    **{f"attention.{each}": f"attn_{name}" for each, name in zip("qkvo", ("q", "k", "v", "output"), strict=True)},
    "norm2": "ffn_norm",
    **{f"hidden.{each}": f"ffn_{each}" for each in ("gate", "up", "down")},
}
"""Tensors of a layer, in the order of its parameters, as GGUF names them"""
IN_TRANSFORMERS = {
    "norm1": "input_layernorm",
    **{f"attention.{each}": f"self_attn.{each}_proj" for each in "qkvo"},
    "norm2": "post_attention_layernorm",
    **{f"hidden.{each}": f"mlp.{each}_proj" for each in ("gate", "up", "down")},
}
"""The same, as the folders of Hugging Face's models do"""


def options_of(path: Path) -> tuple[int, dict[str, Any]]:
    """``model.width`` and ``model.options`` of the model in a GGUF file, or in a folder with ``config.json``."""
    about = pretrained.facts(path)
    if pretrained.is_gguf(path):
        kind = about["general.architecture"]
        if kind != "llama":
            raise ValueError(f"{path}: is of architecture {kind!r}, and this model is of llama's")
        get = {key.removeprefix(f"{kind}."): value for key, value in about.items()}
        heads, width = get["attention.head_count"], get["embedding_length"]
        found = {
            "layers": get["block_count"],
            "heads": heads,
            "kv_heads": get.get("attention.head_count_kv", heads),
            "head_width": get.get("rope.dimension_count", width // heads),
            "hidden": get["feed_forward_length"],
            "theta": get.get("rope.freq_base", 10_000.0),
            "epsilon": get["attention.layer_norm_rms_epsilon"],
            "tied": not about["has output.weight"],
        }
        return width, found
    if about.get("model_type") != "llama" or about.get("attention_bias") or about.get("mlp_bias"):
        kind = about.get("model_type")
        raise ValueError(f"{path}: its model_type is {kind!r}, or its layers have biases; this model is of llama's")
    scaling = about.get("rope_scaling") or about.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise ValueError(f"{path}: its rotary positions are scaled, which this model does not have")
    heads, width = about["num_attention_heads"], about["hidden_size"]
    found = {
        "layers": about["num_hidden_layers"],
        "heads": heads,
        "kv_heads": about.get("num_key_value_heads", heads),
        "head_width": about.get("head_dim") or width // heads,
        "hidden": about["intermediate_size"],
        "theta": float(about.get("rope_theta") or scaling.get("rope_theta", 10_000.0)),
        "epsilon": about["rms_norm_eps"],
        "tied": bool(about.get("tie_word_embeddings", False)),
    }
    return width, found


def numbers_of(path: Path) -> Iterator[Floats]:
    """The tensors of the model in a file, in the order of the parameters of `edge.models.llama.stages`."""
    _, options = options_of(path)
    is_gguf = pretrained.is_gguf(path)
    names = IN_GGUF if is_gguf else IN_TRANSFORMERS
    with pretrained.tensors(path) as read:
        yield read("token_embd.weight" if is_gguf else "model.embed_tokens.weight")
        for layer in range(options["layers"]):
            for own, name in names.items():
                tensor = read(f"{f'blk.{layer}' if is_gguf else f'model.layers.{layer}'}.{name}.weight")
                if is_gguf and own in ("attention.q", "attention.k"):
                    tensor = _halves(tensor, options["heads" if own == "attention.q" else "kv_heads"])
                yield tensor
        yield read("output_norm.weight" if is_gguf else "model.norm.weight")
        if not options["tied"]:
            yield read("output.weight" if is_gguf else "lm_head.weight")


def _halves(weight: Floats, heads: int) -> Floats:
    """GGUF has the two numbers that rotate together side by side; here they are half a head apart."""
    outputs, inputs = weight.shape
    return weight.reshape(heads, outputs // heads // 2, 2, inputs).swapaxes(1, 2).reshape(outputs, inputs)
