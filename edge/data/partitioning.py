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
from typing import Any

import numpy as np

from edge.data import partition
from edge.data.atomic_cache import CacheError, build_once, warn_cache_unusable
from edge.data.json_partition import PARTS, content, named_clients
from edge.data.partition import Indices, Options
from edge.data.partition_registry import PARTITIONS, PartitionRow, partition_row
from edge.data.registry import Data, DataError, DataSet, PartitionError, Split
from edge.protocol.config import BOARDS, DataConfig
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

    def __getitem__(self, client: Any) -> Any:
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
    """Indices into the training set that ``train`` lacks; empty arrays without ``data.validation``. Examples that
    overlap with those of a stretch are in neither."""


def check_partition(config: DataConfig, data: DataSet) -> None:
    """PartitionError, naming the key, for a partition that no data allow, before any data is opened."""
    rule = config.partition
    if config.clients < 1:
        raise PartitionError(f"data.clients = {config.clients}: at least one client is needed")
    row = partition_row(rule.kind)
    row.check(config, data)
    if row.of_classes and data.numbers:
        by_number = [each.name for each in PARTITIONS.values() if not each.of_classes and each.name != BOARDS]
        targets = "tokens" if data.targets.continues else "real"
        raise PartitionError(
            f"data.partition.kind = {rule.kind}: is by class, and the targets of {data.name} are {targets}; choose "
            f"{', '.join(by_number[:-1])} or {by_number[-1]}"
        )
    if rule.kind != "file" and rule.file is not None:
        raise PartitionError(
            f"data.partition.file = {rule.file!r} is read only with data.partition.kind = file, not with {rule.kind}"
        )
    for key, value in rule.options.items():
        if not isinstance(value, bool | int | float | str):
            raise PartitionError(f"data.partition.options.{key} = {value!r}: must be a number, a text or a flag")
    if rule.options and not is_own(rule.kind) and rule.kind != BOARDS:
        raise PartitionError(f"data.partition.options: only a partition of your own takes them, not {rule.kind}")


def partition_data(config: DataConfig, data: Data) -> ClientIndices:
    """Partition the training and the test examples among ``config.clients`` clients, and hold out ``data.validation``.

    PartitionError if the partition is impossible, and if no client gets an example.
    """
    check_partition(config, data.row)
    rule, row, count = config.partition, partition_row(config.partition.kind), len(data.train.y)
    nobody = PartitionError(
        f"data.partition.kind = {rule.kind}: none of the {config.clients} clients gets any of the {count} "
        "training examples; lower data.clients"
    )
    # More clients than there can be are refused before arrays of their size are allocated.
    if row is PARTITIONS["natural"]:
        assert data.train.ids is not None
        ids = np.unique(data.train.ids)
        if config.clients > len(ids):
            raise PartitionError(
                f"data.clients = {config.clients}, but {data.row.name} has {len(ids)} clients "
                "(data.partition.kind = natural)"
            )
    if config.clients > count and not row.allows_empty:
        if row.equal:
            raise nobody
        raise PartitionError(f"data.clients = {config.clients}: there are only {count} training examples")
    given = None if row.given is None else row.given(data.train, data.test, config.clients, _options(config, row))
    train: Sequence[Indices]
    if given is None:
        train, test = _split_both(config, row, data)
    else:
        given = _checked(given, config, data)
        train, test = (given.get(part) or [np.empty(0, np.int64)] * config.clients for part in ("train", "test"))
    if not any(len(indices) for indices in train) and rule.kind != BOARDS:
        raise nobody
    if given is not None and "validation" in given:
        return ClientIndices(train, test, given["validation"])
    by = config.validation_by or data.row.validation_by
    labels, overlap = None if by == "client" else data.train.labels, data.row.overlap if by == "stretch" else None
    if overlap and data.row.overlap_within == "client":
        labels = np.zeros_like(data.train.labels)  # one stretch of all
    if by == "stretch" and data.row.targets.window and config.validation:
        train, validation = partition.hold_out_last(train, config.validation, data.train.ids, overlap or 0)
        return ClientIndices(train, test, validation)
    train, validation = partition.hold_out(train, config.validation, rule.seed or 0, labels, overlap)
    return ClientIndices(train, test, validation)


def client_names(config: DataConfig, data: Data) -> tuple[str, ...]:
    """Who client 0, 1, .. is, where data or partition say so; otherwise nobody has a name."""
    kind, rule = config.partition.kind, config.partition
    if kind == "natural" and data.names.clients and data.train.ids is not None:
        return tuple(data.names.clients[number] for number in np.unique(data.train.ids)[: config.clients].tolist())
    return named_clients(expanded(rule.file)) if kind == "file" and rule.file is not None else ()


def _checked(given: dict[str, list[Indices]], config: DataConfig, data: Data) -> dict[str, list[Indices]]:
    """What a row says of each client; of a user's own, PartitionError for anything that is no partition."""
    if not is_own(config.partition.kind):
        return given
    key, clients = f"data.partition.kind = {config.partition.kind}", config.clients
    for part, parts in given.items():
        if part not in PARTS or len(parts) != clients:
            raise PartitionError(
                f"{key}: gives {part!r} to {len(parts)} clients; {', '.join(PARTS)}, to {clients}, are known"
            )
    names = [str(client) for client in range(clients)]
    names += [f"{client} (validation)" for client in names]
    both = partition.check_parts(key, [*given.get("train", []), *given.get("validation", [])], len(data.train.y), names)
    in_training = [part for part in PARTS[:2] if part in given]
    checked = {part: both[place * clients :][:clients] for place, part in enumerate(in_training)}
    if "test" in given:
        checked["test"] = partition.check_parts(key, given["test"], len(data.test.y))
    return checked


def _options(config: DataConfig, row: PartitionRow) -> Options:
    rule = config.partition
    return {"seed": rule.seed or 0} | {key: getattr(rule, key) for key in row.keys} | rule.options


def _split_both(config: DataConfig, row: PartitionRow, data: Data) -> tuple[Sequence[Indices], Sequence[Indices]]:
    """Training and test examples of each client; those of a user's kind are checked."""
    rule, classes = config.partition, data.row.classes
    options = _options(config, row)
    rngs = [keyed_generator(rule.seed or 0, purpose) for purpose in ("partition", "partition.test")]

    def checked(parts: Any, count: int) -> Sequence[Indices]:
        if not is_own(rule.kind):
            return list(parts)
        key = f"data.partition.kind = {rule.kind}"
        if len(parts) != config.clients:
            raise PartitionError(f"{key}: gives examples to {len(parts)} clients, not to {config.clients}")
        return partition.check_parts(key, parts, count)

    def split(part: Split, rng: np.random.Generator) -> Sequence[Indices]:
        assert row.split is not None
        return checked(row.split(part.labels, part.ids, config.clients, classes, rng, options), len(part.y))

    try:
        train = split(data.train, rngs[0])
        if row.split_test is None:
            return train, split(data.test, rngs[1])
        return train, checked(row.split_test(data.train, train, data.test, classes, rngs[1], options), len(data.test.y))
    except PartitionError:
        raise
    except Exception as error:  # a user's function may raise anything
        if not is_own(rule.kind):
            raise
        raise PartitionError(f"data.partition.kind = {rule.kind}: {error_text(error)}") from error


def cached_partition(config: DataConfig, data: Data, cache: Path) -> ClientIndices:
    """`partition_data`, cached by content and memory-mapped, so that all workers share one copy.

    If the cache cannot be written, each worker computes its own.
    """

    def fill(folder: Path) -> None:
        for name, parts in vars(partition_data(config, data)).items():
            offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
            np.save(folder / f"{name}_indices.npy", np.concatenate(parts), allow_pickle=False)
            np.save(folder / f"{name}_offsets.npy", offsets, allow_pickle=False)

    def load(name: str) -> IndexTable:
        files = (folder / f"{name}_{part}.npy" for part in ("indices", "offsets"))
        return IndexTable(*(np.asarray(np.load(file, mmap_mode="r")) for file in files))

    try:
        folder = build_once(cache / "shares" / VERSION / _key(config, data), fill)
    except CacheError as error:
        warn_cache_unusable(error)
        return partition_data(config, data)
    try:
        return ClientIndices(load("train"), load("test"), load("validation"))
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{folder}: the saved partition is damaged ({error}); remove this folder") from error


def _key(config: DataConfig, data: Data) -> str:
    """A hash of all that a partition depends on."""
    kind, rule = config.partition.kind, asdict(config.partition)
    if kind == "file" and config.partition.file is not None:
        rule["file"] = hashlib.sha256(content(expanded(config.partition.file))).hexdigest()
    # A distribution's stream may differ between versions of numpy; a partition must not depend on the cache's age.
    facts = [data.sha256, config.clients, rule, config.validation, config.validation_by, np.__version__]
    if data.row.overlap:
        facts += [data.row.overlap, data.row.overlap_within]
    if data.row.targets.window and config.validation:
        facts.append("the last windows are held out")
    if is_own(kind):  # the text of a user's partition may change while its name stays
        row = partition_row(kind)
        modules = {kind.partition(":")[0], (row.split or row.given).__module__}
        facts += [inspect.getsource(importlib.import_module(module)) for module in sorted(modules)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
