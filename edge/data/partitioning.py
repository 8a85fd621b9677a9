"""The partition of a configuration: `partition_data`, and `cached_partition` for many processes.

The partition has its own seed, so that runs with different seeds, and all methods, use the same one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from edge.data import epsilon_partition, partition
from edge.data.atomic_cache import CacheError, build_once, warn_cache_unusable
from edge.data.json_partition import content, read_indices
from edge.data.locate import is_file
from edge.data.partition import Indices
from edge.data.registry import Data, DataError, DataSet, PartitionError
from edge.protocol.config import DataConfig, PartitionConfig
from edge.protocol.rng import keyed_generator

VERSION = "v1"
ALPHA_MIN, ALPHA_MAX = 1e-3, 1e6
EQUAL = ("iid", "dirichlet", "epsilon")
"""Kinds in which all clients have equally many examples."""


@dataclass(frozen=True)
class ClientIndices:
    """The sorted indices of each client's examples, client by client."""

    train: list[Indices]
    test: list[Indices]
    """Indices into the test set, split by the same rule; empty arrays where there is no such rule."""
    validation: list[Indices] = field(default_factory=list)
    """Indices into the training set that ``train`` lacks; empty arrays without ``data.validation``."""


def check_partition(config: DataConfig, row: DataSet) -> None:
    """PartitionError, naming the key, for a partition that no data allow, before any data is opened."""
    rule = config.partition
    if config.clients < 1:
        raise PartitionError(f"data.clients = {config.clients}: at least one client is needed")
    if rule.kind in ("dirichlet", "dirichlet-unbalanced") and not ALPHA_MIN <= rule.alpha <= ALPHA_MAX:
        raise PartitionError(f"data.partition.alpha = {rule.alpha} must lie in {ALPHA_MIN:g} .. {ALPHA_MAX:g}")
    if rule.kind == "epsilon" and not 0 <= rule.epsilon <= 9:
        raise PartitionError(f"data.partition.epsilon = {rule.epsilon} must lie in 0 .. 9")
    if rule.kind == "epsilon" and row.classes not in epsilon_partition.CLASS_COUNTS:
        raise PartitionError(
            f"data.partition.kind = epsilon is defined for sets of 10 or 100 classes; {row.name} has {row.classes}"
        )
    if rule.kind == "natural" and not row.natural_ids:
        raise PartitionError(f"data.partition.kind = natural: {row.name} does not say which client made an example")
    if rule.kind == "file" and rule.file is None:
        raise PartitionError("data.partition.kind = file needs data.partition.file")
    if rule.kind == "file" and not is_file(Path(str(rule.file))):
        raise PartitionError(f"data.partition.file = {rule.file!r}: no such file")
    if rule.kind != "file" and rule.file is not None:
        raise PartitionError(
            f"data.partition.file = {rule.file!r} is read only with data.partition.kind = file, not with {rule.kind}"
        )


def partition_data(config: DataConfig, data: Data) -> ClientIndices:
    """Partition the training and the test examples among ``config.clients`` clients, and hold out ``data.validation``.

    PartitionError if the partition is impossible, and if no client gets an example.
    """
    check_partition(config, data.row)
    rule = config.partition
    _check_count(config, len(data.train.y))
    rngs = (keyed_generator(rule.seed, "partition"), keyed_generator(rule.seed, "partition.test"))
    if rule.kind == "file":
        assert rule.file is not None
        train = read_indices(Path(rule.file), config.clients, len(data.train.y))
        client_indices = ClientIndices(train, [np.empty(0, dtype=np.int64) for _ in range(config.clients)])
    elif rule.kind == "natural":
        client_indices = _natural(config.clients, data)
    elif rule.kind in ("dirichlet", "dirichlet-unbalanced"):
        client_indices = _dirichlet(rule, config.clients, data, *rngs)
    elif rule.kind == "epsilon" and rule.epsilon > 0:
        mix = epsilon_partition.mixes(config.clients, data.classes, rule.epsilon, rngs[0])
        client_indices = ClientIndices(
            epsilon_partition.deal(data.train.y, mix, rngs[0]), epsilon_partition.deal(data.test.y, mix, rngs[1])
        )
    else:
        train = partition.iid(len(data.train.y), config.clients, rngs[0])
        client_indices = ClientIndices(train, partition.iid(len(data.test.y), config.clients, rngs[1]))
    if not any(len(indices) for indices in client_indices.train):
        raise _no_client_error(config, len(data.train.y))
    train, validation = partition.hold_out(client_indices.train, config.validation, rule.seed)
    return replace(client_indices, train=train, validation=validation)


def _check_count(config: DataConfig, count: int) -> None:
    """PartitionError for more clients than examples, before arrays of their size are allocated."""
    if config.clients <= count or config.partition.kind in ("file", "natural"):
        return
    if config.partition.kind in EQUAL:
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
        validation = _load(folder, "validation") if config.validation else [indices[:0] for indices in train]
        return ClientIndices(train, test, validation)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{folder}: the saved partition is damaged ({error}); remove this folder") from error


def _natural(clients: int, data: Data) -> ClientIndices:
    assert data.train.ids is not None
    assert data.test.ids is not None
    ids = np.unique(data.train.ids)
    if clients > len(ids):
        raise PartitionError(
            f"data.clients = {clients}, but {data.row.name} has {len(ids)} clients (data.partition.kind = natural)"
        )
    chosen = ids[:clients].tolist()
    return ClientIndices(partition.natural(data.train.ids, chosen), partition.natural(data.test.ids, chosen))


def _dirichlet(
    rule: PartitionConfig, clients: int, data: Data, rng: np.random.Generator, test_rng: np.random.Generator
) -> ClientIndices:
    labels = data.train.y
    if rule.kind == "dirichlet":
        train = partition.dirichlet(labels, clients, rule.alpha, data.classes, rng)
    else:
        train = partition.dirichlet_unbalanced(
            labels, clients, rule.alpha, data.classes, rng, rule.min_samples, rule.max_tries
        )
    counts = partition.histogram(labels, train, data.classes)
    return ClientIndices(train, partition.mirror(counts, data.test.y, test_rng))


def _key(config: DataConfig, data: Data) -> str:
    rule = asdict(config.partition)
    if config.partition.kind == "file" and config.partition.file is not None:
        rule["file"] = hashlib.sha256(content(Path(config.partition.file))).hexdigest()
    # A distribution's stream may differ between versions of numpy; a partition must not depend on the cache's age.
    facts = [data.sha256, config.clients, rule, np.__version__]
    # Without one, the key is that of the versions that had no validation split.
    facts += [config.validation] if config.validation else []
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _save(client_indices: ClientIndices, folder: Path) -> None:
    for name, parts in vars(client_indices).items():
        np.save(folder / f"{name}_indices.npy", np.concatenate(parts), allow_pickle=False)
        np.save(folder / f"{name}_offsets.npy", _offsets(parts), allow_pickle=False)


def _offsets(parts: Sequence[Indices]) -> Indices:
    return np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)


def _load(folder: Path, name: str) -> list[Indices]:
    indices = np.asarray(np.load(folder / f"{name}_indices.npy", mmap_mode="r"))
    offsets = np.load(folder / f"{name}_offsets.npy")
    return [indices[start:end] for start, end in pairwise(offsets)]
