"""Texts and tokens as people have them, as pieces for language models (``data.text``).

    TEXTS.txt, CLIENT.txt, CLIENT/*.txt   whole texts; also .md
    *.jsonl                               a record in each line: a text, or a prompt and its answer; and a client
    *.csv, *.parquet, *.arrow             the same, a record in each row
    *.npy                                 token numbers from 0 on, one dimension

Parts and clients are in paths as of all files (`edge.data.own_files`). Without a test part, the last of each client's
tokens, or of its records, are the test set. Of a record with a prompt the answer alone is foreseen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge.data import own_tables
from edge.data.pieces import Tokens, pieces
from edge.data.registry import DataError
from edge.data.tokenizers import Tokenizer, tokenizer
from edge.protocol.config import TextReading

TEXTS, RECORDS, TABLES, TOKENS = (".txt", ".md"), (".jsonl",), (".csv", ".parquet", ".arrow"), (".npy",)
FORMS = (*TEXTS, *RECORDS, *TABLES, *TOKENS)
CLIENTS = (*own_tables.CLIENTS, "user")
ANSWER, PROMPT = "{answer}", "{prompt}"
ALL = "all"
"""The client of texts whose path names none"""


class TextFile(Protocol):
    """A file, and what its path says."""

    @property
    def file(self) -> Path: ...
    @property
    def part(self) -> str: ...
    @property
    def client(self) -> str: ...


@dataclass(frozen=True)
class Text:
    """One text of a client, or one record."""

    client: str
    part: str
    prompt: str
    answer: str
    """What is foreseen; without a prompt all but the first token"""
    tokens: Tokens | None = None
    """Of a file of tokens"""


@dataclass(frozen=True)
class Continuations:
    """Pieces of both parts, and what was read."""

    x: tuple[Tokens, Tokens]
    given: tuple[NDArray[np.float32], NDArray[np.float32]]
    clients: tuple[NDArray[Any], NDArray[Any]]
    vocabulary: int
    """With padding"""
    notes: tuple[str, ...]


def read(sources: Sequence[TextFile], reading: TextReading) -> Continuations:
    """The pieces of these files; DataError, naming file and line, for what does not fit."""
    texts = [text for source in sources for text in _texts(source, reading)]
    if all(text.tokens is not None for text in texts):
        largest = max((int(text.tokens.max(initial=0)) for text in texts if text.tokens is not None), default=0)
        count = largest + 1 if reading.tokens is None else reading.tokens
        if largest >= count:
            raise DataError(f"data.text.tokens = {count}: the files have token {largest}")
        name = "given as tokens"

        def encoded(text: Text) -> tuple[Tokens, int]:
            assert text.tokens is not None
            return text.tokens, 1
    elif any(text.tokens is not None for text in texts):
        raise DataError(f"{sources[0].file.parent}: has texts and token files; keep one kind")
    else:
        made = tokenizer(reading.tokenizer, lambda: (f"{text.prompt}{text.answer}" for text in texts))
        count, name = made.count, f"tokens by {reading.tokenizer}"

        def encoded(text: Text) -> tuple[Tokens, int]:
            return _encoded(text, made)

    splits = _split([(text, *encoded(text)) for text in texts], reading)
    parts = [_pieces(split, reading) for split in splits]
    if not len(parts[0][0]) or not len(parts[1][0]):
        which = "training" if not len(parts[0][0]) else "test"
        raise DataError(f"{sources[0].file.parent}: no {which} text is long enough to foresee a token")
    (x, given, clients), (x_test, given_test, clients_test) = parts
    total = sum(len(tokens) for split in splits for _, tokens, _ in split)
    notes = (f"{len(texts):,} texts of {len({text.client for text in texts}):,} clients, {total:,} tokens, {name}",)
    return Continuations((x, x_test), (given, given_test), (clients, clients_test), count + 1, notes)


def _encoded(text: Text, tokens_of: Tokenizer) -> tuple[Tokens, int]:
    """Tokens of a text, and how many of them are given. A prompt has tokens of its own, so that none spans both."""
    if not text.prompt:
        return tokens_of.encode(text.answer), 1
    prompt = tokens_of.encode(text.prompt)
    return np.concatenate([prompt, tokens_of.encode(text.answer)]), len(prompt)


Encoded = tuple[Text, Tokens, int]


def _split(texts: Sequence[Encoded], reading: TextReading) -> tuple[list[Encoded], list[Encoded]]:
    """Training and test texts."""
    if any(text.part not in ("", "train") for text, _, _ in texts):
        held = "test" if any(text.part == "test" for text, _, _ in texts) else "validation"
        return [each for each in texts if each[0].part != held], [each for each in texts if each[0].part == held]
    train: list[Encoded] = []
    test: list[Encoded] = []
    by_client: dict[str, list[Encoded]] = {}
    for each in texts:
        by_client.setdefault(each[0].client, []).append(each)
    for client in sorted(by_client):
        own = by_client[client]
        if any(text.prompt for text, _, _ in own) or len(own) >= 1 / reading.test:  # records, or many texts
            first = round(len(own) * (1 - reading.test))
            train += own[:first]
            test += own[first:]
            continue
        for text, tokens, given in own:
            first = int(len(tokens) * (1 - reading.test))
            train.append((text, tokens[:first], given))
            test.append((text, tokens[first:], given))
    return train, test


def _pieces(texts: Sequence[Encoded], reading: TextReading) -> tuple[Tokens, NDArray[np.float32], NDArray[Any]]:
    found = [pieces(tokens + 1, reading.length, reading.every, given) for _, tokens, given in texts]
    clients = [text.client for (text, _, _), (x, _) in zip(texts, found, strict=True) for _ in range(len(x))]
    x = np.concatenate([x for x, _ in found]) if found else np.zeros((0, reading.length), np.int32)
    given = np.concatenate([given for _, given in found]) if found else np.zeros((0, 1), np.float32)
    return x, given, np.array(clients, dtype=np.str_)


# --- files ------------------------------------------------------------------------------------------------------------


def _texts(source: TextFile, reading: TextReading) -> Iterator[Text]:
    file, kind, client = source.file, source.file.suffix.lower(), source.client or ALL
    if kind in TEXTS:
        try:
            yield Text(client, source.part, "", file.read_text("utf-8-sig"))
        except UnicodeDecodeError:
            raise DataError(f"{file}: is no text in UTF-8; save it so") from None
    elif kind in TOKENS:
        yield Text(client, source.part, "", "", _tokens(file))
    else:
        for place, record in _records(file) if kind in RECORDS else _rows(file):
            yield _of_record(record, place, source, reading)


def _tokens(file: Path) -> Tokens:
    try:
        held = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: is no file of tokens: {error}") from None
    if held.ndim != 1 or held.dtype.kind not in "iu" or (held.size and (held.min() < 0 or held.max() >= 2**31 - 1)):
        raise DataError(f"{file}: holds {held.dtype} of shape {held.shape}; token numbers from 0 on are one row")
    tokens: Tokens = held.astype(np.int32)
    return tokens


def _records(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        lines = file.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{file}: is no text in UTF-8; save it so") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: is no JSON: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: must be an object such as {{'text': ..}}")
        yield where, record


def _rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    table = own_tables.column_table(file)
    columns = list(table.columns)
    for place, values in enumerate(zip(*table.columns.values(), strict=True)):
        yield table.at(place), dict(zip(columns, values, strict=True))


def _of_record(record: Mapping[str, Any], where: str, source: TextFile, reading: TextReading) -> Text:
    client = source.client or ALL
    column = reading.client or next((name for name in CLIENTS if name in record), None)
    if column is not None:
        client = str(_value(record, column, where, (str, int, np.integer)))
    if reading.answer not in record:
        return Text(client, source.part, "", str(_value(record, reading.text, where)))
    before, _, after = reading.template.partition(ANSWER)
    prompt = before.replace(PROMPT, str(_value(record, reading.prompt, where)))
    answer = f"{_value(record, reading.answer, where)}{after}"
    if not answer:
        raise DataError(f"{where}: {reading.answer} is empty")
    return Text(client, source.part, prompt, answer)


def _value(record: Mapping[str, Any], name: str, where: str, types: type | tuple[type, ...] = str) -> Any:
    if name not in record:
        has = ", ".join(map(str, record))
        raise DataError(f"{where}: has no {name!r} (data.text names others); it has {has}")
    if not isinstance(record[name], types):
        raise DataError(f"{where}: {name} is {type(record[name]).__name__}, not a text")
    return record[name]
