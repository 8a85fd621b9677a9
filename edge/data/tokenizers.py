"""From texts to tokens, and back: characters, bytes, or the tokenizer of a pretrained model. Tokens count from 0 here.

``data.text.tokenizer`` names ``characters``, those of the texts themselves; ``bytes`` of UTF-8; a ``tokenizer.json`` of
the library tokenizers, or the folder that holds one; or, as ``model.weights`` does, a GGUF file or the package of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge.data.pieces import Tokens
from edge.data.registry import DataError
from edge.models import pretrained
from edge.protocol.home import expanded

CHARACTERS, BYTES = "characters", "bytes"
JSON = "tokenizer.json"
SMOLLM = "smollm"
"""The splitting of texts before byte pairs that GGUF's files of SmolLM name: digits one by one, then as GPT-2 does"""
BYTE_PAIRS = {"gpt-2": False, "gpt2": False, SMOLLM: True}
"""Splittings by their names in GGUF, and whether digits are split one by one"""


@dataclass(frozen=True)
class Tokenizer:
    """Texts as tokens 0 .. count - 1."""

    count: int
    encode: Callable[[str], Tokens]


def tokenizer(name: str, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """The tokenizer of this name; ``texts``: all, for that of characters. DataError for one that cannot be read."""
    if name == BYTES:
        return Tokenizer(256, lambda text: np.frombuffer(text.encode(), np.uint8).astype(np.int32))
    if name == CHARACTERS:
        letters = sorted(set().union(*texts()))
        place = {letter: index for index, letter in enumerate(letters)}
        return Tokenizer(len(letters), lambda text: np.array([place[letter] for letter in text], np.int32))
    try:
        path = file_of(name)
        made = _from_gguf(path) if pretrained.is_gguf(path) else _library(path).Tokenizer.from_file(str(path))
    except ValueError as error:
        raise DataError(str(error)) from None
    except Exception as error:  # the library raises its own
        raise DataError(f"data.text.tokenizer = {name!r}: cannot be read: {error}") from None

    def encode(text: str) -> Tokens:
        return np.array(made.encode(text, add_special_tokens=False).ids, np.int32)

    return Tokenizer(made.get_vocab_size(), encode)


def file_of(name: str) -> Path:
    """The file of a tokenizer; ValueError, naming the key, for none."""
    path = expanded(name)
    path = path / JSON if path.is_dir() else path
    if path.is_file() and path.suffix == ".json":
        return path
    try:
        return pretrained.located(name)
    except ValueError:
        raise ValueError(
            f"data.text.tokenizer = {name!r}: must be {CHARACTERS}, {BYTES}, a {JSON} or the folder of one, or a GGUF "
            "file or the installed package of one"
        ) from None


def _library(path: Path) -> Any:
    return pretrained.extra("tokenizers", path)


def _from_gguf(path: Path) -> Any:
    """Byte pairs with the merges of a GGUF file. ValueError for a tokenizer of another kind."""
    library, about = _library(path), pretrained.tokenizer_facts(path)
    split = about.get("pre", "gpt-2")
    if about.get("model") != "gpt2" or split not in BYTE_PAIRS:
        kind = f"{about.get('model')}, {split}"
        raise ValueError(f"{path}: its tokenizer is of kind {kind}; give a {JSON} as data.text.tokenizer")
    ids = {token: place for place, token in enumerate(about["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in about["merges"]]
    made = library.Tokenizer(library.models.BPE(vocab=ids, merges=merges))
    steps = [library.pre_tokenizers.Digits(individual_digits=True)] if BYTE_PAIRS[split] else []
    bytes_of = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.pre_tokenizer = library.pre_tokenizers.Sequence([*steps, bytes_of])
    made.decoder = library.decoders.ByteLevel()
    special = [token for token, kind in zip(about["tokens"], about["token_type"], strict=True) if kind in (3, 4)]
    made.add_special_tokens(special)
    return made
