"""The kinds of partition, one row each. Never opens data, never imports torch.

A kind of one's own is a `PartitionRow` in a user's module, ``data.partition.kind = "my_package.my_module:ROW"``; its
numbers are the table ``data.partition.options``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from edge.data import partition
from edge.data.json_partition import read_parts
from edge.data.locate import is_file
from edge.data.partition import Ids, Indices, Options, Parts
from edge.data.registry import DataSet, PartitionError, Split
from edge.protocol.config import BOARDS, DataConfig
from edge.protocol.home import expanded
from edge.protocol.plugins import find

ALPHA_MIN, ALPHA_MAX = 1e-3, 1e6


@dataclass(frozen=True)
class PartitionRow:
    """One kind of partition."""

    name: str
    title: str
    split: Callable[[Indices, Ids, int, int, Generator, Options], Sequence[ArrayLike]] | None = None
    """(labels, natural clients or None, clients, classes, generator, options) -> indices of each client's examples, in
    any order, none of them twice; examples may be left out; None where ``given`` tells all"""
    split_test: Callable[[Split, Parts, Split, int, Generator, Options], Any] | None = None
    """(training set, each client's indices, test set, classes, generator, options) -> the same of the test set, by
    default the result of ``split`` for the test set, with a generator of its own"""
    keys: tuple[str, ...] = ()
    """The keys of ``data.partition`` that are among the options of a shipped kind."""
    check: Callable[[DataConfig, DataSet], None] = lambda config, data: None
    """PartitionError, naming the key, for what no data allow"""
    given: Callable[[Split, Split, int, Options], dict[str, list[Indices]]] | None = None
    """(training set, test set, clients, options) -> each client's indices by part: "train" and perhaps "validation", of
    the training set, and "test"; for shipped kinds that draw nothing"""
    equal: bool = False
    """Whether all clients have equally many examples."""
    allows_empty: bool = True
    """Whether there may be more clients than examples."""
    of_classes: bool = False
    """Whether it is by class, which real targets have not"""


def _check_alpha(config: DataConfig, data: DataSet) -> None:
    alpha = config.partition.alpha
    if not ALPHA_MIN <= alpha <= ALPHA_MAX:
        raise PartitionError(f"data.partition.alpha = {alpha} must lie in {ALPHA_MIN:g} .. {ALPHA_MAX:g}")


def _check_epsilon(config: DataConfig, data: DataSet) -> None:
    epsilon = config.partition.epsilon
    if not 0 <= epsilon <= 9:
        raise PartitionError(f"data.partition.epsilon = {epsilon} must lie in 0 .. 9")
    if data.classes not in partition.EPSILON_CLASSES:
        raise PartitionError(
            f"data.partition.kind = epsilon is defined for sets of 10 or 100 classes; {data.name} has {data.classes}"
        )


def _check_classes(config: DataConfig, data: DataSet) -> None:
    count = config.partition.classes_per_client
    if not 1 <= count <= data.classes:
        raise PartitionError(
            f"data.partition.classes_per_client = {count}: {data.name} has {data.classes} classes; choose 1 .. "
            f"{data.classes}"
        )


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


def _check_natural(config: DataConfig, data: DataSet) -> None:
    if data.id_column is None:
        raise PartitionError(f"data.partition.kind = natural: {data.name} does not say which client made an example")


def _check_file(config: DataConfig, data: DataSet) -> None:
    file = config.partition.file
    if file is None:
        raise PartitionError("data.partition.kind = file needs data.partition.file")
    try:
        path = expanded(file)
    except RuntimeError as error:
        raise PartitionError(f"data.partition.file = {file!r}: {error}") from None
    if not is_file(path):
        raise PartitionError(f"data.partition.file = {file!r}: no such file")


def _of_boards(labels: Indices, ids: Ids, clients: int, classes: int, rng: Generator, options: Options) -> Parts:
    """All examples of this machine, which is the board of the client in the options; without one, nobody's."""
    nobody = np.empty(0, dtype=np.int64)
    return [np.arange(len(labels)) if client == options.get("client") else nobody for client in range(clients)]


_EQUAL: dict[str, Any] = {"equal": True, "allows_empty": False}
_UNBALANCED = ("alpha", "min_samples", "max_tries")
_CLASSES = ("classes_per_client",)
_ROWS = (
    PartitionRow("iid", "equal shares at random", partition.iid, **_EQUAL),
    PartitionRow(
        "dirichlet",
        "equal shares, each client with class proportions of its own",
        partition.dirichlet,
        partition.mirrored,
        ("alpha",),
        _check_alpha,
        **_EQUAL,
        of_classes=True,
    ),
    PartitionRow(
        "dirichlet-unbalanced",
        "each class split in random proportions; sizes differ too",
        partition.unbalanced,
        partition.mirrored,
        _UNBALANCED,
        _check_alpha,
        allows_empty=False,
    ),
    PartitionRow(
        "epsilon",
        "FedBR's non-IID level, for sets of 10 or 100 classes",
        partition.epsilon,
        partition.epsilon_test,
        ("epsilon",),
        _check_epsilon,
        **_EQUAL,
        of_classes=True,
    ),
    PartitionRow(
        "classes",
        "k random classes per client, equally many examples of each",
        partition.some_classes,
        partition.mirrored_in_part,
        _CLASSES,
        _check_classes,
        **_EQUAL,
        of_classes=True,
    ),
    PartitionRow(
        "class-shares",
        "k random classes per client, a part of random size of each",
        partition.class_shares,
        partition.class_shares_test,
        _CLASSES,
        _check_classes,
        allows_empty=False,
        of_classes=True,
    ),
    PartitionRow(
        "pairs",
        "two classes for each pair of clients, half of them each",
        partition.pairs,
        check=_check_pairs,
        allows_empty=False,
        of_classes=True,
    ),
    PartitionRow(
        "natural",
        "by author of the examples, for sets that record it",
        partition.natural,
        partition.natural_test,
        check=_check_natural,
    ),
    PartitionRow(
        "file",
        "from a JSON file {client: [indices]}, perhaps with tests",
        keys=("file",),
        check=_check_file,
        given=lambda train, test, clients, options: read_parts(
            expanded(options["file"]), clients, len(train.y), len(test.y)
        ),
    ),
    PartitionRow(BOARDS, "each client's examples lie on its own board, in apps that are exported", _of_boards),
)
PARTITIONS: dict[str, PartitionRow] = {row.name: row for row in _ROWS}


def partition_row(kind: str) -> PartitionRow:
    """The row of a kind, by name or as ``module:ROW``; PartitionError naming the key, with the nearest name."""
    try:
        return find(kind, PARTITIONS, PartitionRow, "partition")
    except ValueError as error:
        raise PartitionError(f"data.partition.kind: {error}") from None
