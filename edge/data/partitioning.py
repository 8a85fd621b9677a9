"""The partition of a configuration: `partition_data`, and `cached_partition` for many processes.

The partition has its own seed, so that runs with different seeds, and all methods, use the same one.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np

from edge.data import partition
from edge.data.atomic_cache import CacheError, build_once, warn_cache_unusable
from edge.data.json_partition import content
from edge.data.partition import Indices
from edge.data.partition_registry import PARTITIONS, PartitionRow, partition_row
from edge.data.registry import Data, DataError, DataSet, PartitionError, Split
from edge.protocol.config import DataConfig
from edge.protocol.home import expanded
from edge.protocol.plugins import error_text, is_own
from edge.protocol.rng import keyed_generator

VERSION = "v1"


class IndexTable(Sequence[Indices]):
    """The indices of each client as slices of one array, which are made when they are asked for.

    An array object per client would take 130 bytes in every worker, which adds up with 100,000 clients.
    """

    def __init__(self, indices: Indices, offsets: Indices) -> None:
        """``offsets`` (clients + 1,): client k has ``indices[offsets[k] : offsets[k + 1]]``."""
        self._indices, self._offsets = indices, offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, client: int) -> Indices: ...

    @overload
    def __getitem__(self, client: slice) -> Sequence[Indices]: ...

    def __getitem__(self, client: int | slice) -> Indices | Sequence[Indices]:
        if isinstance(client, slice):
            return [self[each] for each in range(*client.indices(len(self)))]
        place = range(len(self))[client]  # IndexError beyond the last, as of a list
        return self._indices[self._offsets[place] : self._offsets[place + 1]]


@dataclass(frozen=True)
class ClientIndices:
    """The sorted indices of each client's examples, client by client."""

    train: Sequence[Indices]
    test: Sequence[Indices]
    """Indices into the test set, split by the same rule; empty arrays where there is no such rule."""
    validation: Sequence[Indices] = field(default_factory=list)
    """Indices into the training set that ``train`` lacks; empty arrays without ``data.validation``."""


def check_partition(config: DataConfig, data: DataSet) -> None:
    """PartitionError, naming the key, for a partition that no data allow, before any data is opened."""
    rule = config.partition
    if config.clients < 1:
        raise PartitionError(f"data.clients = {config.clients}: at least one client is needed")
    partition_row(rule.kind).check(config, data)
    if rule.kind != "file" and rule.file is not None:
        raise PartitionError(
            f"data.partition.file = {rule.file!r} is read only with data.partition.kind = file, not with {rule.kind}"
        )
    for key, value in rule.options.items():
        if not isinstance(value, bool | int | float | str):
            raise PartitionError(f"data.partition.options.{key} = {value!r}: must be a number, a text or a flag")
    if rule.options and not is_own(rule.kind):
        raise PartitionError(f"data.partition.options: only a partition of your own takes them, not {rule.kind}")


def partition_data(config: DataConfig, data: Data) -> ClientIndices:
    """Partition the training and the test examples among ``config.clients`` clients, and hold out ``data.validation``.

    PartitionError if the partition is impossible, and if no client gets an example.
    """
    check_partition(config, data.row)
    rule, row = config.partition, partition_row(config.partition.kind)
    _check_count(config, row, data)
    train, test = _split_both(config, row, data)
    if not any(len(indices) for indices in train):
        raise _no_client_error(config, len(data.train.y))
    labels = data.train.y if config.validation_by == "class" else None
    train, validation = partition.hold_out(train, config.validation, rule.seed or 0, labels)
    return ClientIndices(train, test, validation)


def _split_both(config: DataConfig, row: PartitionRow, data: Data) -> tuple[list[Indices], list[Indices]]:
    rule, options = config.partition, row.options(config.partition)
    rngs = [keyed_generator(rule.seed or 0, purpose) for purpose in ("partition", "partition.test")]

    def split(part: Split, rng: np.random.Generator) -> list[Indices]:
        found = row.split(part.y, part.ids, config.clients, data.classes, rng, options)
        return _checked(rule.kind, found, config.clients, len(part.y))

    try:
        train = split(data.train, rngs[0])
        if row.split_test is None:
            return train, split(data.test, rngs[1])
        found = row.split_test(data.train, train, data.test, data.classes, rngs[1], options)
        return train, _checked(rule.kind, found, config.clients, len(data.test.y))
    except PartitionError:
        raise
    except Exception as error:  # a user's function may raise anything
        if not is_own(rule.kind):
            raise
        raise PartitionError(f"data.partition.kind = {rule.kind}: {error_text(error)}") from error


def _checked(kind: str, found: Any, clients: int, count: int) -> list[Indices]:
    """A user's result as sorted int64 arrays; PartitionError unless it is ``clients`` parts of ``count`` examples."""
    if not is_own(kind):
        return list(found)
    key = f"data.partition.kind = {kind}"
    if len(found) != clients:
        raise PartitionError(f"{key}: gives examples to {len(found)} clients, not to {clients}")
    client_of = np.full(count, -1, dtype=np.int64)
    return [_own_part(key, client, part, client_of) for client, part in enumerate(found)]


def _own_part(key: str, client: int, part: Any, client_of: Indices) -> Indices:
    """One client's examples, noted in ``client_of``."""
    indices, count = np.asarray(part), len(client_of)
    if indices.size == 0:
        return np.empty(0, dtype=np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise PartitionError(f"{key}: client {client} must hold a list of whole numbers, not {indices.dtype}")
    if indices.min() < 0 or indices.max() >= count:
        wrong = indices.min() if indices.min() < 0 else indices.max()
        raise PartitionError(f"{key}: client {client} holds example {wrong}, the data has 0..{count - 1}")
    indices = np.sort(indices.astype(np.int64))
    twice = indices[1:][indices[1:] == indices[:-1]]
    if twice.size:
        raise PartitionError(f"{key}: client {client} holds example {twice[0]} twice")
    taken = indices[client_of[indices] >= 0]
    if taken.size:
        other = client_of[taken[0]]
        raise PartitionError(f"{key}: client {client} and client {other} both hold example {taken[0]}")
    client_of[indices] = client
    return indices


def _check_count(config: DataConfig, row: PartitionRow, data: Data) -> None:
    """PartitionError for more clients than there can be, before arrays of their size are allocated."""
    count = len(data.train.y)
    if row is PARTITIONS["natural"]:
        assert data.train.ids is not None
        ids = np.unique(data.train.ids)
        if config.clients > len(ids):
            raise PartitionError(
                f"data.clients = {config.clients}, but {data.row.name} has {len(ids)} clients "
                "(data.partition.kind = natural)"
            )
    if config.clients <= count or row.allows_empty:
        return
    if row.equal:
        raise _no_client_error(config, count)
    raise PartitionError(f"data.clients = {config.clients}: there are only {count} training examples")


def _no_client_error(config: DataConfig, count: int) -> PartitionError:
    return PartitionError(
        f"data.partition.kind = {config.partition.kind}: none of the {config.clients} clients gets any of the {count} "
        "training examples; lower data.clients"
    )


def cached_partition(config: DataConfig, data: Data, cache: Path) -> ClientIndices:
    """`partition_data`, cached by content and memory-mapped, so that all workers share one copy.

    If the cache cannot be written, each worker computes its own.
    """
    try:
        folder = build_once(
            cache / "shares" / VERSION / _key(config, data), lambda folder: _save(partition_data(config, data), folder)
        )
    except CacheError as error:
        warn_cache_unusable(error)
        return partition_data(config, data)
    try:
        train, test = _load(folder, "train"), _load(folder, "test")
        validation = _load(folder, "validation") if config.validation else _nothing(config.clients)
        return ClientIndices(train, test, validation)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{folder}: the saved partition is damaged ({error}); remove this folder") from error


def _nothing(clients: int) -> IndexTable:
    """No example for any client."""
    return IndexTable(np.zeros(0, np.int64), np.broadcast_to(np.int64(0), clients + 1))


def _key(config: DataConfig, data: Data) -> str:
    rule = asdict(config.partition)
    # Keys that versions lacked are left out, where they have no effect, so that saved partitions are found.
    if not rule["options"]:
        del rule["options"]
    if "classes_per_client" not in partition_row(config.partition.kind).keys:
        del rule["classes_per_client"]
    if config.partition.kind == "file" and config.partition.file is not None:
        rule["file"] = hashlib.sha256(content(expanded(config.partition.file))).hexdigest()
    # A distribution's stream may differ between versions of numpy; a partition must not depend on the cache's age.
    facts = [data.sha256, config.clients, rule, np.__version__]
    # Without either, the key is that of the versions that had neither.
    facts += [config.validation] if config.validation else []
    facts += ["by class"] if config.validation and config.validation_by == "class" else []
    facts += [_source(config.partition.kind)] if is_own(config.partition.kind) else []
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _source(kind: str) -> str:
    """The hash of the text of a user's partition, which may change while its name stays."""
    modules = {kind.partition(":")[0], partition_row(kind).split.__module__}
    texts = [inspect.getsource(importlib.import_module(module)) for module in sorted(modules)]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def _save(client_indices: ClientIndices, folder: Path) -> None:
    for name, parts in vars(client_indices).items():
        np.save(folder / f"{name}_indices.npy", np.concatenate(parts), allow_pickle=False)
        np.save(folder / f"{name}_offsets.npy", _offsets(parts), allow_pickle=False)


def _offsets(parts: Sequence[Indices]) -> Indices:
    return np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)


def _load(folder: Path, name: str) -> IndexTable:
    indices = np.asarray(np.load(folder / f"{name}_indices.npy", mmap_mode="r"))
    return IndexTable(indices, np.asarray(np.load(folder / f"{name}_offsets.npy", mmap_mode="r")))
