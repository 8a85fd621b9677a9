"""Texts as pieces of tokens: what is given and what is foreseen, files of every form, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge.data.decoded_cache import open_data
from edge.data.own_files import kept
from edge.data.pieces import pieces
from edge.data.registry import DATASETS, DataError, dataset
from edge.data.shakespeare import read as read_shakespeare
from edge.protocol.config import DataConfig, FileReading, TextReading
from edge.training.batches import next_tokens


def read(path: Path, cache: Path, **reading: Any) -> Any:
    name, clients = kept(path, FileReading(), cache, TextReading(**reading))
    return open_data(DataConfig(name), cache), clients


def test_each_token_behind_the_first_is_foreseen_once() -> None:
    x, given = pieces(np.arange(1, 9, dtype=np.int32), length=4)
    assert x.tolist() == [[1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 0, 0]]
    assert given.tolist() == [[1], [1], [1]]
    # Pieces that overlap by more have more before what they foresee, and foresee nothing twice.
    x, given = pieces(np.arange(1, 9, dtype=np.int32), length=4, every=2)
    assert (x.tolist(), given.tolist()) == ([[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8]], [[1], [2], [2]])
    assert pieces(np.array([5], np.int32), 4)[0].shape == (0, 4)


def test_tokens_of_a_prompt_are_never_foreseen() -> None:
    x, given = pieces(np.arange(1, 9, dtype=np.int32), length=4, given=5)
    assert (x.tolist(), given.tolist()) == ([[4, 5, 6, 7], [7, 8, 0, 0]], [[2], [1]])
    x, given = pieces(np.arange(1, 4, dtype=np.int32), length=4, given=3)
    assert x.shape == (0, 4)  # there is no answer


def test_targets_are_the_classes_of_the_tokens_behind() -> None:
    x = torch.tensor([[3, 9, 4, 7], [5, 2, 0, 0], [1, 2, 3, 4]])
    assert next_tokens(x, torch.tensor([[1.0], [1.0], [3.0]])).tolist() == [
        [8, 3, 6, -100],
        [1, -100, -100, -100],
        [-100, -100, 3, -100],
    ]


def test_a_text_of_each_client(tmp_path: Path) -> None:
    for name, text in (("anna", "abcabcabca"), ("ben", "cbacbacbac")):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{name}.txt").write_text(text)
    data, clients = read(tmp_path / "texts", tmp_path / "cache", length=4)
    assert clients == 2 and data.names.clients == ("anna", "ben")
    # Tokens are a = 1, b = 2, c = 3; the first eight characters of each train.
    assert data.train.x.tolist() == [[1, 2, 3, 1], [1, 2, 3, 1], [1, 2, 0, 0], [3, 2, 1, 3], [3, 2, 1, 3], [3, 2, 0, 0]]
    assert data.train.ids is not None and data.train.ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.x.tolist() == [[3, 1, 0, 0], [1, 3, 0, 0]]
    assert (data.row.vocabulary, data.row.target, data.row.target_text) == (4, "tokens", "the next of 3 tokens")
    assert dataset(f"{kept(tmp_path / 'texts', FileReading(), tmp_path / 'cache', TextReading(length=4)).name}").target
    assert data.notes[0] == "2 texts of 2 clients, 20 tokens, tokens by characters"


def test_prompts_and_answers_of_users(tmp_path: Path) -> None:
    records = [{"prompt": "ab", "completion": "cd", "user": f"u{number % 2}"} for number in range(10)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, records)))
    data, clients = read(
        tmp_path / "pairs.jsonl", tmp_path / "cache", tokenizer="bytes", length=6, template="{prompt}:{answer}!"
    )
    assert clients == 2 and (len(data.train.y), len(data.test.y)) == (8, 2)
    assert data.train.x[0].tolist() == [1 + byte for byte in b"ab:cd!"]
    assert set(data.train.y[:, 0].tolist()) == {3.0}
    # A table says the same.
    table = "prompt,completion,user\n" + "\n".join(f"ab,cd,u{number % 2}" for number in range(10))
    (tmp_path / "pairs.csv").write_text(table)
    other, _ = read(
        tmp_path / "pairs.csv", tmp_path / "cache", tokenizer="bytes", length=6, template="{prompt}:{answer}!"
    )
    assert other.sha256 == data.sha256


def test_parts_and_tokens_in_files(tmp_path: Path) -> None:
    for part, count in (("train", 9), ("test", 5)):
        (tmp_path / "tokens" / part).mkdir(parents=True)
        np.save(tmp_path / "tokens" / part / "own.npy", np.arange(count, dtype=np.uint16))
    data, clients = read(tmp_path / "tokens", tmp_path / "cache", length=8, tokens=100)
    assert (clients, data.row.vocabulary) == (0, 101)
    assert data.train.x.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8], [8, 9, 0, 0, 0, 0, 0, 0]]
    assert data.test.x.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0]]
    with pytest.raises(DataError, match="tokens = 5: the files have token 8"):
        read(tmp_path / "tokens", tmp_path / "cache", tokens=5)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"text": 3}', r"a.jsonl, line 1: text is int, not a text"),
        ("a.jsonl", '{"said": "x"}', r"a.jsonl, line 1: has no 'text' \(data.text names others\); it has said"),
        ("a.jsonl", "{", r"a.jsonl, line 1: is no JSON"),
        ("a.jsonl", "[]", r"a.jsonl, line 1: must be an object"),
        ("a.txt", "x", r"no training text is long enough"),
        ("a.wav", "x", r"is of no known form|has no file of a known form"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "in", tmp_path / "cache")


def test_an_unknown_tokenizer_is_refused_with_what_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    with pytest.raises(ValueError, match=r"tokenizer = 'nowhere\.json': must be characters, bytes, a tokenizer\.json"):
        read(tmp_path / "a.txt", tmp_path / "cache", tokenizer="nowhere.json")


def test_roles_in_pieces_foresee_all_but_the_first_character_of_each_part(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "shakespeare.parquet"
    pq.write_table(pa.table({"play": ["Lear"], "role": ["FOOL"], "text": ["ab" * 200]}), file)
    found = read_shakespeare(DATASETS["shakespeare-text"], [file])
    behind = [
        next_tokens(torch.from_numpy(part.x).long(), torch.from_numpy(part.y)) for part in (found.train, found.test)
    ]
    assert [int((tokens >= 0).sum()) for tokens in behind] == [319, 79]
