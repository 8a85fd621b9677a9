"""Who holds which classes: pFedMB's partitions, also at the sizes of CIFAR, and the validation split by class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge.data.partition import (
    balanced_choice,
    deal_by_weight,
    deal_equally,
    draw_weights,
    histogram,
    hold_out,
    pairs,
)
from edge.data.partition_registry import PARTITIONS
from edge.data.partitioning import cached_partition, check_partition, partition_data
from edge.data.registry import DATASETS, Data, PartitionError, Split
from edge.protocol.config import DataConfig, PartitionConfig
from edge.protocol.rng import keyed_generator

Counts = NDArray[np.int64]
CIFAR10, CIFAR100 = ("cifar10", 10, 5000, 1000), ("cifar100", 100, 500, 100)
"""(name, classes, training and test examples of each class)"""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def counted(name: str, classes: int, train: int, test: int, config: DataConfig) -> tuple[Counts, Counts, Counts]:
    """(clients, classes) training, validation and test examples of a set with these labels and no pixels."""
    x = np.zeros((1, 1, 1, 1), dtype=np.uint8)
    y, z = (rng(seed).permutation(np.repeat(np.arange(classes), each)) for seed, each in ((1, train), (2, test)))
    found = partition_data(config, Data(DATASETS[name], Split(x, y, None), Split(x, z, None), "hash", "made up"))
    held = np.concatenate([*found.train, *found.validation])
    assert len(np.unique(held)) == len(held), "no example is held twice"
    return (
        histogram(y, found.train, classes),
        histogram(y, found.validation, classes),
        histogram(z, found.test, classes),
    )


def config(clients: int, name: str = "cifar10", **rule: Any) -> DataConfig:
    return DataConfig(name, clients=clients, partition=PartitionConfig(**rule))


def by_class(clients: int, name: str = "cifar10", **rule: Any) -> DataConfig:
    """With a fifth of each client's classes held out."""
    return replace(config(clients, name, **rule), validation=0.2, validation_by="class")


@pytest.mark.parametrize(
    ("clients", "classes", "per_client"), [(15, 10, 2), (50, 10, 2), (4, 3, 2), (7, 10, 3), (3, 100, 20), (40, 10, 9)]
)
def test_every_client_has_k_distinct_classes_and_every_class_equally_many_clients(
    clients: int, classes: int, per_client: int
) -> None:
    for seed in range(5):
        chosen = balanced_choice(clients, classes, per_client, rng(seed))
        assert chosen.sum(axis=1).tolist() == [per_client] * clients
        least, more = divmod(clients * per_client, classes)
        assert np.sort(chosen.sum(axis=0)).tolist() == [least] * (classes - more) + [least + 1] * more
    assert balanced_choice(5, 3, 3, rng()).all(), "with all classes there is one choice"


def test_the_choice_is_random_and_depends_on_the_seed() -> None:
    one, again, other = (balanced_choice(15, 10, 2, rng(seed)) for seed in (0, 0, 1))
    assert one.tolist() == again.tolist() != other.tolist()
    # Four clients with one of two classes: each of the 6 halves of the clients has class 0 at times.
    assert len({tuple(balanced_choice(4, 2, 1, rng(seed))[:, 0]) for seed in range(100)}) == 6


def test_all_clients_get_as_many_examples_of_each_class_as_the_scarcest_allows() -> None:
    # Classes of 9, 8 and 7 examples for 2, 1 and 2 clients: 4, 8 and 3 each, so 3 for all.
    chosen = np.array([[True, True, False], [True, False, True], [False, False, True]])
    labels = np.repeat([0, 1, 2], [9, 8, 7])
    parts = deal_equally(labels, chosen, rng())
    assert histogram(labels, parts, 3).tolist() == [[3, 3, 0], [3, 0, 3], [0, 0, 3]]


def test_two_classes_of_cifar10_for_15_and_for_50_clients() -> None:
    # 15 clients: 30 places, 3 per class; 5000 / 3 = 1666 and 1000 * 1666 / 5000 = 333 of each class.
    train, _, test = counted(*CIFAR10, config(15, kind="classes"))
    assert (np.sort(train, axis=1)[:, -2:] == 1666).all()
    assert (np.sort(test, axis=1)[:, -2:] == 333).all()
    assert ((train > 0).sum(axis=1) == 2).all()
    assert ((train > 0) == (test > 0)).all()
    assert ((train > 0).sum(axis=0) == 3).all()
    # 50 clients: 10 per class, 500 and 100 of each; a fifth of 1000 is held out, 100 of each class.
    train, validation, test = counted(*CIFAR10, by_class(50, kind="classes"))
    assert (np.sort(train, axis=1) == [0] * 8 + [400] * 2).all()
    assert validation.tolist() == test.tolist() == (train // 4).tolist()


def test_a_test_set_leaves_out_as_large_a_part_of_each_class_as_the_training_set() -> None:
    # 12 clients: 24 places, 4 classes with 3 and 6 with 2. All get 1666 of 5000, and 333 of 1000, also of the 6.
    train, _, test = counted(*CIFAR10, config(12, kind="classes"))
    assert set(np.unique(train).tolist()) == {0, 1666}
    assert set(np.unique(test).tolist()) == {0, 333}
    assert np.sort((train > 0).sum(axis=0)).tolist() == [2] * 6 + [3] * 4


def test_a_class_is_cut_by_weight_and_left_out_if_nobody_has_it() -> None:
    weights = np.array([[0.3, 0.5, 0], [0.6, 0, 0], [0, 0.5, 0]])
    labels = np.repeat([0, 1, 2], [9, 4, 5])
    # Class 0 is cut 1 : 2, class 1 in halves.
    assert histogram(labels, deal_by_weight(labels, weights, rng()), 3).tolist() == [[3, 2, 0], [6, 0, 0], [0, 2, 0]]
    drawn = draw_weights(15, 100, 20, rng())
    assert ((drawn > 0).sum(axis=1) == 20).all()
    assert 0.3 <= drawn[drawn > 0].min() < drawn.max() < 0.7


@pytest.mark.parametrize("clients", [15, 50])
def test_twenty_classes_of_cifar100_in_the_same_fractions_for_training_validation_and_test(clients: int) -> None:
    rule: dict[str, Any] = {"kind": "class-shares", "classes_per_client": 20}
    train, validation, test = counted(*CIFAR100, by_class(clients, "cifar100", **rule))
    whole, drawn = train + validation, draw_weights(clients, 100, 20, keyed_generator(0, "partition"))
    totals = drawn.sum(axis=0)
    fractions = drawn / np.where(totals > 0, totals, 1)
    assert ((drawn > 0).sum(axis=1) == 20).all()
    assert np.abs(whole - 500 * fractions).max() < 1
    assert np.abs(test - 100 * fractions).max() < 1
    assert np.abs(validation - 0.2 * whole).max() < 1.01  # a client's fifth is rounded down first
    assert whole.sum(axis=0).tolist() == [500 if total else 0 for total in totals]
    assert test.sum(axis=0).tolist() == [100 if total else 0 for total in totals]


def test_pairs_of_clients_halve_pairs_of_classes() -> None:
    train, validation, test = counted(*CIFAR10, by_class(10, kind="pairs"))
    blocks = np.kron(np.eye(5, dtype=int), np.ones((2, 2), int))  # clients 2g and 2g + 1, classes 2g and 2g + 1
    assert train.tolist() == (2000 * blocks).tolist()
    assert validation.tolist() == test.tolist() == (500 * blocks).tolist()
    labels = np.repeat([0, 1, 2, 3], [3, 5, 2, 0])
    assert histogram(labels, pairs(labels, None, 4, 4, rng(), {}), 4).tolist() == [
        [2, 2, 0, 0],
        [1, 3, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 1, 0],
    ]


def test_dirichlet_has_the_same_proportions_in_training_validation_and_test() -> None:
    rule: dict[str, Any] = {"kind": "dirichlet-unbalanced", "alpha": 0.4}
    train, validation, test = counted(*CIFAR10, by_class(15, **rule))
    whole = train + validation
    assert whole.sum() == 50_000
    assert test.sum() == 10_000
    assert np.abs(test - whole / 5).max() < 1
    assert np.abs(validation - whole / 5).max() < 1.01


def test_classes_are_held_out_in_proportion_with_the_largest_remainders_rounded_up() -> None:
    labels = np.repeat([4, 1, 2], [10, 5, 5])
    # A quarter of 20 is 5: 2.5, 1.25 and 1.25.
    train, held = hold_out([np.arange(20)], 0.25, 0, labels)
    assert np.bincount(labels[held[0]]).tolist() == [0, 1, 1, 0, 3]
    assert np.sort(np.concatenate([train[0], held[0]])).tolist() == list(range(20))
    assert (np.diff(train[0]) > 0).all()
    assert (np.diff(held[0]) > 0).all()
    # Of 100 classes of one example, 20; another client, with the same examples, holds out others.
    parts = hold_out([np.arange(100)] * 2, 0.2, 0, np.arange(100))[1]
    assert [len(part) for part in parts] == [20, 20]
    assert parts[0].tolist() != parts[1].tolist()
    # The last example stays, as in a split of the client's examples together.
    assert [len(part) for part in hold_out([np.arange(3)], 0.9999999999, 0, np.array([0, 0, 1]))[0]] == [1]
    assert [len(part) for part in hold_out([np.arange(3), np.arange(0)], 0.3, 0, np.array([0, 0, 1]))[1]] == [0, 0]


def test_a_split_by_class_is_another_partition_in_the_cache(tmp_path: Path) -> None:
    x, y = np.zeros((1, 1, 1, 1), dtype=np.uint8), np.repeat(np.arange(10), 100)
    data = Data(DATASETS["digits"], Split(x, y, None), Split(x, y, None), "hash", "made up")
    rule = PartitionConfig("classes")
    apart, together = (DataConfig(partition=rule, validation=0.3, validation_by=by) for by in ("class", "client"))
    counts = [histogram(y, cached_partition(each, data, tmp_path).validation, 10) for each in (apart, together, apart)]
    assert counts[0].tolist() == counts[2].tolist() != counts[1].tolist()
    assert np.unique(counts[0]).tolist() == [0, 15]  # two clients per class, 50 each


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (
            config(10, kind="classes", classes_per_client=20),
            r"data.partition.classes_per_client = 20: cifar10 has 10 classes; choose 1 \.\. 10",
        ),
        (config(10, kind="classes", classes_per_client=0), "data.partition.classes_per_client = 0"),
        (
            config(10, "cifar100", kind="class-shares", classes_per_client=101),
            r"data.partition.classes_per_client = 101: cifar100 has 100 classes; choose 1 \.\. 100",
        ),
        (
            config(9, kind="pairs"),
            "data.clients = 9: data.partition.kind = pairs has as many clients as classes; choose 10 for cifar10",
        ),
        (config(10, "cifar100", kind="pairs"), "data.clients = 10: .* choose 100 for cifar100"),
    ],
)
def test_a_choice_that_the_set_does_not_have_is_refused(bad: DataConfig, complaint: str) -> None:
    with pytest.raises(PartitionError, match=complaint):
        check_partition(bad, DATASETS[bad.name])


def test_pairs_need_an_even_number_of_classes() -> None:
    odd = replace(DATASETS["digits"], classes=9)
    with pytest.raises(PartitionError, match="pairs: digits has 9 classes, an odd number"):
        PARTITIONS["pairs"].check(config(9, "digits", kind="pairs"), odd)


def test_more_places_than_examples_of_a_class_are_an_error() -> None:
    # 60 clients with 2 of 10 classes: 12 places per class of 10 examples.
    with pytest.raises(PartitionError, match="none of the 60 clients gets any of the 100"):
        counted("digits", 10, 10, 2, config(60, "digits", kind="classes"))
