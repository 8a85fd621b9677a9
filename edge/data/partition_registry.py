"""The kinds of partition, one row each. Never opens data, never imports torch.

A kind of one's own is a `PartitionRow` in a user's module, ``data.partition.kind = "my_package.my_module:ROW"``; its
numbers are the table ``data.partition.options``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge.data import class_partition, epsilon_partition, partition
from edge.data.json_partition import read_indices
from edge.data.locate import is_file
from edge.data.partition import Indices
from edge.data.registry import DataSet, PartitionError, Split
from edge.protocol.config import DataConfig, PartitionConfig
from edge.protocol.home import expanded
from edge.protocol.plugins import find
from edge.protocol.rng import keyed_generator

ALPHA_MIN, ALPHA_MAX = 1e-3, 1e6

Ids = NDArray[Any] | None
Options = Mapping[str, Any]


def _admit(config: DataConfig, data: DataSet) -> None:
    """Refuse nothing."""


@dataclass(frozen=True)
class PartitionRow:
    """One kind of partition."""

    name: str
    title: str
    split: Callable[[Indices, Ids, int, int, np.random.Generator, Options], Sequence[ArrayLike]]
    """(labels, natural clients or None, clients, classes, generator, options) -> indices of each client's examples, in
    any order, none of them twice; examples may be left out"""
    split_test: Callable[[Split, Sequence[Indices], Split, int, np.random.Generator, Options], Any] | None = None
    """(training set, each client's indices, test set, classes, generator, options) -> the same of the test set, by
    default the result of ``split`` for the test set, with a generator of its own"""
    keys: tuple[str, ...] = ()
    """The keys of ``data.partition`` that are among the options of a shipped kind."""
    check: Callable[[DataConfig, DataSet], None] = _admit
    """PartitionError, naming the key, for what no data allow"""
    equal: bool = False
    """Whether all clients have equally many examples."""
    allows_empty: bool = True
    """Whether there may be more clients than examples."""

    def options(self, rule: PartitionConfig) -> dict[str, Any]:
        """The options of ``split``: those of ``keys``, or the user's own; and the partition's seed."""
        return {"seed": rule.seed or 0} | {key: getattr(rule, key) for key in self.keys} | rule.options


# --- the shipped kinds ------------------------------------------------------------------------------------------------


def _iid(
    labels: Indices, ids: Ids, clients: int, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    return partition.iid(len(labels), clients, rng)


def _dirichlet(
    labels: Indices, ids: Ids, clients: int, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    return partition.dirichlet(labels, clients, options["alpha"], classes, rng)


def _unbalanced(
    labels: Indices, ids: Ids, clients: int, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    alpha, min_samples, max_tries = (options[key] for key in ("alpha", "min_samples", "max_tries"))
    return partition.dirichlet_unbalanced(labels, clients, alpha, classes, rng, min_samples, max_tries)


def _mirrored(
    train: Split, parts: Sequence[Indices], test: Split, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    return partition.mirror(partition.histogram(train.y, parts, classes), test.y, rng)


def _check_alpha(config: DataConfig, data: DataSet) -> None:
    alpha = config.partition.alpha
    if not ALPHA_MIN <= alpha <= ALPHA_MAX:
        raise PartitionError(f"data.partition.alpha = {alpha} must lie in {ALPHA_MIN:g} .. {ALPHA_MAX:g}")


def _epsilon(
    labels: Indices, ids: Ids, clients: int, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    if options["epsilon"] == 0:
        return partition.iid(len(labels), clients, rng)
    return epsilon_partition.deal(labels, epsilon_partition.mixes(clients, classes, options["epsilon"], rng), rng)


def _epsilon_test(
    train: Split, parts: Sequence[Indices], test: Split, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    if options["epsilon"] == 0:
        return partition.iid(len(test.y), len(parts), rng)
    # The mix of the training set: the first that its generator drew.
    again = keyed_generator(options["seed"], "partition")
    return epsilon_partition.deal(test.y, epsilon_partition.mixes(len(parts), classes, options["epsilon"], again), rng)


def _check_epsilon(config: DataConfig, data: DataSet) -> None:
    epsilon = config.partition.epsilon
    if not 0 <= epsilon <= 9:
        raise PartitionError(f"data.partition.epsilon = {epsilon} must lie in 0 .. 9")
    if data.classes not in epsilon_partition.CLASS_COUNTS:
        raise PartitionError(
            f"data.partition.kind = epsilon is defined for sets of 10 or 100 classes; {data.name} has {data.classes}"
        )


def _classes(
    labels: Indices, ids: Ids, clients: int, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    chosen = class_partition.balanced_choice(clients, classes, options["classes_per_client"], rng)
    return class_partition.deal_equally(labels, chosen, rng)


def _classes_test(
    train: Split, parts: Sequence[Indices], test: Split, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    counts, available = partition.histogram(train.y, parts, classes), np.bincount(train.y, minlength=classes)
    return partition.mirror(counts, test.y, rng, available)


def _class_shares(
    labels: Indices, ids: Ids, clients: int, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    weights = class_partition.draw_weights(clients, classes, options["classes_per_client"], rng)
    return class_partition.deal_by_weight(labels, weights, rng)


def _class_shares_test(
    train: Split, parts: Sequence[Indices], test: Split, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    # The weights of the training set: the first that its generator drew.
    again = keyed_generator(options["seed"], "partition")
    weights = class_partition.draw_weights(len(parts), classes, options["classes_per_client"], again)
    return class_partition.deal_by_weight(test.y, weights, rng)


def _check_classes(config: DataConfig, data: DataSet) -> None:
    count = config.partition.classes_per_client
    if not 1 <= count <= data.classes:
        raise PartitionError(
            f"data.partition.classes_per_client = {count}: {data.name} has {data.classes} classes; choose 1 .. "
            f"{data.classes}"
        )


def _pairs(
    labels: Indices, ids: Ids, clients: int, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    return class_partition.pairs(labels, clients, rng)


def _check_pairs(config: DataConfig, data: DataSet) -> None:
    if data.classes % 2:
        raise PartitionError(
            f"data.partition.kind = pairs: {data.name} has {data.classes} classes, an odd number; choose classes"
        )
    if config.clients != data.classes:
        raise PartitionError(
            f"data.clients = {config.clients}: data.partition.kind = pairs has as many clients as classes; choose "
            f"{data.classes} for {data.name}"
        )


def _natural(
    labels: Indices, ids: Ids, clients: int, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    assert ids is not None
    return partition.natural(ids, np.unique(ids)[:clients].tolist())


def _natural_test(
    train: Split, parts: Sequence[Indices], test: Split, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    assert train.ids is not None
    assert test.ids is not None
    return partition.natural(test.ids, np.unique(train.ids)[: len(parts)].tolist())


def _check_natural(config: DataConfig, data: DataSet) -> None:
    if not data.natural_ids:
        raise PartitionError(f"data.partition.kind = natural: {data.name} does not say which client made an example")


def _file(
    labels: Indices, ids: Ids, clients: int, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    return read_indices(expanded(options["file"]), clients, len(labels))


def _no_tests(
    train: Split, parts: Sequence[Indices], test: Split, classes: int, rng: np.random.Generator, options: Options
) -> list[Indices]:
    return [np.empty(0, dtype=np.int64) for _ in parts]


def _check_file(config: DataConfig, data: DataSet) -> None:
    file = config.partition.file
    if file is None:
        raise PartitionError("data.partition.kind = file needs data.partition.file")
    if not is_file(expanded(file)):
        raise PartitionError(f"data.partition.file = {file!r}: no such file")


_UNBALANCED = ("alpha", "min_samples", "max_tries")
_CLASSES = ("classes_per_client",)
_ROWS = (
    PartitionRow("iid", "equal shares at random", _iid, equal=True, allows_empty=False),
    PartitionRow(
        "dirichlet",
        "equal shares, each client with class proportions of its own",
        _dirichlet,
        _mirrored,
        ("alpha",),
        _check_alpha,
        equal=True,
        allows_empty=False,
    ),
    PartitionRow(
        "dirichlet-unbalanced",
        "each class split in random proportions; sizes differ too",
        _unbalanced,
        _mirrored,
        _UNBALANCED,
        _check_alpha,
        allows_empty=False,
    ),
    PartitionRow(
        "epsilon",
        "FedBR's non-IID level, for sets of 10 or 100 classes",
        _epsilon,
        _epsilon_test,
        ("epsilon",),
        _check_epsilon,
        equal=True,
        allows_empty=False,
    ),
    PartitionRow(
        "classes",
        "k random classes per client, equally many examples of each",
        _classes,
        _classes_test,
        _CLASSES,
        _check_classes,
        equal=True,
        allows_empty=False,
    ),
    PartitionRow(
        "class-shares",
        "k random classes per client, a part of random size of each",
        _class_shares,
        _class_shares_test,
        _CLASSES,
        _check_classes,
        allows_empty=False,
    ),
    PartitionRow(
        "pairs",
        "two classes for each pair of clients, half of them each",
        _pairs,
        check=_check_pairs,
        allows_empty=False,
    ),
    PartitionRow(
        "natural", "by author of the examples, for sets that record it", _natural, _natural_test, (), _check_natural
    ),
    PartitionRow("file", "from a JSON file {client: [indices]}", _file, _no_tests, ("file",), _check_file),
)
PARTITIONS: dict[str, PartitionRow] = {row.name: row for row in _ROWS}


def partition_row(kind: str) -> PartitionRow:
    """The row of a kind, by name or as ``module:ROW``; PartitionError naming the key, with the nearest name."""
    try:
        return find(kind, PARTITIONS, PartitionRow, "partition")
    except ValueError as error:
        raise PartitionError(f"data.partition.kind: {error}") from None
