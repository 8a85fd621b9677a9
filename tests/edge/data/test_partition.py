"""Who holds which examples: sizes, mixes and coverage of every kind of partition, and its refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge.data import partition
from edge.data import partitioning as sharing
from edge.data.json_partition import read_parts
from edge.data.partition import (
    balanced_choice,
    deal_by_weight,
    deal_mixes,
    dirichlet,
    draw_by_weight,
    draw_weights,
    histogram,
    hold_out,
    iid,
    mirror,
    mixes,
    pairs,
    unbalanced,
)
from edge.data.partition_registry import PartitionRow
from edge.data.partitioning import cached_partition, check_partition, partition_data
from edge.data.registry import DATASETS, Data, PartitionError, Split
from edge.protocol.config import DataConfig, PartitionConfig
from edge.protocol.rng import keyed_generator


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(classes: int, each: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return rng(99).permutation(np.repeat(np.arange(classes), each))


def toy(classes: int = 10, train: int = 100, test: int = 20, name: str = "digits", ids: Any = None) -> Data:
    """A set without pixels worth looking at: ``train`` and ``test`` examples of each class."""
    y, z = balanced(classes, train), balanced(classes, test)
    x = np.zeros((1, 1, 8, 8), dtype=np.uint8)
    return Data(DATASETS[name], Split(x, y, ids), Split(x, z, ids), "hash", "made up")


def config(clients: int, name: str = "digits", **rule: Any) -> DataConfig:
    return DataConfig(name, clients=clients, partition=PartitionConfig(**rule))


def test_iid_gives_equal_parts_leaves_the_remainder_and_may_leave_local_tests_empty() -> None:
    parts = iid(np.zeros(23, np.int64), None, 5, 10, rng(), {})
    assert [len(part) for part in parts] == [4, 4, 4, 4, 4]
    assert len(np.unique(np.concatenate(parts))) == 20
    for kind in ("iid", "epsilon"):
        shares = partition_data(config(50, kind=kind), toy(train=100, test=2))
        assert {len(part) for part in shares.test} == {0}


def test_balanced_dirichlet_covers_everything_in_equal_sizes_also_when_classes_run_out() -> None:
    parts = dirichlet(balanced(10, 100), None, 20, 10, rng(), {"alpha": 0.3})
    assert {len(part) for part in parts} == {50}
    assert np.sort(np.concatenate(parts)).tolist() == list(range(1000))
    # alpha = 0.001 is one class per client; with 3 classes of 10 and 2 clients of 15, each must top up.
    labels = balanced(3, 10)
    parts = dirichlet(labels, None, 2, 3, rng(), {"alpha": 0.001})
    assert [len(part) for part in parts] == [15, 15]
    assert histogram(labels, parts, 3)[0].max() == 10


def test_the_draw_by_weight_is_one_draw_after_another() -> None:
    # Two of three with weights 0.6, 0.3, 0.1: first and second in either order.
    expected = {(0, 1): 0.6 * 0.3 / 0.4 + 0.3 * 0.6 / 0.7, (0, 2): 0.6 * 0.1 / 0.4 + 0.1 * 0.6 / 0.9}
    weights, random = np.array([0.6, 0.3, 0.1]), rng()
    drawn = [tuple(sorted(draw_by_weight(weights, 2, random).tolist())) for _ in range(20_000)]
    for pair, probability in expected.items():
        assert drawn.count(pair) / 20_000 == pytest.approx(probability, abs=0.012)  # 3.5 standard deviations


def test_unbalanced_dirichlet_covers_everything_and_keeps_the_floor_or_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels, few = balanced(10, 500), balanced(10, 10)
    options = {"alpha": 0.5, "min_samples": 10, "max_tries": 1000}
    parts = unbalanced(labels, None, 16, 10, rng(), options)
    sizes = [len(part) for part in parts]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(5000))
    assert 10 <= min(sizes) < max(sizes)
    with pytest.raises(PartitionError, match=r"smallest client held \d+ at best.*min_samples or data.clients"):
        unbalanced(few, None, 9, 10, rng(), {"alpha": 0.05, "min_samples": 11, "max_tries": 20})
    # Impossible at once: 10 clients x 11 examples of 100.
    with pytest.raises(PartitionError, match="100 examples among 10 clients"):
        unbalanced(few, None, 10, 10, rng(), {"alpha": 100.0, "min_samples": 11, "max_tries": 10**9})
    monkeypatch.setattr(partition, "MOST_NUMBERS", 1000)
    with pytest.raises(PartitionError, match=r"no split with 40 examples for each in 6 draws"):
        # 20 clients in 10 classes are 200 numbers a draw.
        partition_data(config(20, kind="dirichlet-unbalanced", alpha=0.01, min_samples=40, max_tries=2**53), toy())


def test_epsilon_on_ten_classes_has_seventy_percent_of_one_class() -> None:
    labels = balanced(10, 5000)
    parts = deal_mixes(labels, mixes(100, 10, 7, rng()), rng())
    counts = histogram(labels, parts, 10)
    assert {len(part) for part in parts} == {500}
    assert np.sort(np.concatenate(parts)).tolist() == list(range(50_000))
    # 350 of the dominant class k mod 10, and 150 / 9 = 16.7 of each other.
    assert np.allclose(mixes(10, 10, 1, rng()), 0.1)  # identically distributed
    assert counts[np.arange(100), np.arange(100) % 10].tolist() == [350] * 100
    assert set(np.unique(counts).tolist()) == {16, 17, 350}


@pytest.mark.parametrize("clients", [10, 100, 500])
def test_epsilon_on_a_hundred_classes_lacks_seventy(clients: int) -> None:
    labels = balanced(100, 500)
    parts = deal_mixes(labels, mixes(clients, 100, 7, rng()), rng())
    counts = histogram(labels, parts, 100)
    assert np.sort(np.concatenate(parts)).tolist() == list(range(50_000))
    assert set((counts > 0).sum(axis=1).tolist()) == {30}
    assert set((counts > 0).sum(axis=0).tolist()) == {30 * clients // 100}
    held = counts[counts > 0]
    assert held.max() - held.min() <= 1


def test_a_local_test_set_mirrors_the_local_training_set() -> None:
    counts = np.array([[30, 0], [10, 20], [0, 20]])
    labels = np.repeat([0, 1], [8, 6])
    parts = mirror(counts, labels, rng())
    # Class 0: 8 cut at 6 and 8. Class 1: 6 cut at 0, 3 and 6.
    assert histogram(labels, parts, 2).tolist() == [[6, 0], [2, 3], [0, 3]]


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "dirichlet-unbalanced", "epsilon"])
def test_the_same_seed_shares_alike_and_another_differs(kind: str) -> None:
    one, two, other = (partition_data(config(10, kind=kind, seed=seed), toy()) for seed in (0, 0, 1))
    assert [part.tolist() for part in one.train] == [part.tolist() for part in two.train]
    assert [part.tolist() for part in one.test] == [part.tolist() for part in two.test]
    assert [part.tolist() for part in one.train] != [part.tolist() for part in other.train]


def test_natural_clients_are_taken_in_order() -> None:
    ids = np.array([4, 0, 4, 2, 0, 4])
    x, y = np.zeros((6, 1, 28, 28), dtype=np.uint8), np.zeros(6, dtype=np.int64)
    data = Data(DATASETS["femnist"], Split(x, y, ids), Split(x[:2], y[:2], ids[:2]), "hash", "made up")
    shares = partition_data(config(2, "femnist", kind="natural"), data)
    assert [part.tolist() for part in shares.train] == [[1, 4], [3]]
    assert [part.tolist() for part in shares.test] == [[1], []]
    with pytest.raises(PartitionError, match="femnist has 3 clients"):
        partition_data(config(4, "femnist", kind="natural"), data)


def test_a_file_says_who_holds_what(tmp_path: Path) -> None:
    (tmp_path / "shares.json").write_text(json.dumps({"1": [5, 2], "0": [9], "2": []}))
    shares = partition_data(config(3, kind="file", file=str(tmp_path / "shares.json")), toy())
    assert [part.tolist() for part in shares.train] == [[9], [2, 5], []]
    assert [part.tolist() for part in shares.test] == [[], [], []]


def test_a_file_may_have_the_validation_and_test_examples_of_named_clients(tmp_path: Path) -> None:
    text = '{"zoe": {"train": [9, 2], "validation": [0], "test": [3]}, "ann": {"test": [1, 0], "train": [5]}, "bo": []}'
    (tmp_path / "shares.json").write_text(text)
    by_file = replace(config(3, kind="file", file=str(tmp_path / "shares.json")), validation=0.5)
    shares = partition_data(by_file, toy())
    assert [part.tolist() for part in shares.train] == [[2, 9], [5], []]
    assert [part.tolist() for part in shares.validation] == [[0], [], []]
    assert [part.tolist() for part in shares.test] == [[3], [0, 1], []]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"0": {"train": [1], "tests": [2]}, "1": []}', "client 0: 'tests' is no part; did you mean 'test'"),
        ('{"0": {"test": [4]}, "1": []}', r"test: client 0 holds example 4, the data has 0\.\.3"),
        (
            '{"a": {"train": [1], "validation": [1]}, "b": []}',
            r"a \(validation\) and client a both hold example 1",
        ),
        ('{"ann": [1]}', r"has 1 clients \(ann, \.\.\), not data.clients = 2"),
        ('{"0": [1], "1": [10]}', r"client 1 holds example 10, the data has 0\.\.9"),
        ('{"0": [1], "1": [2, 3, 2]}', "client 1 holds example 2 twice"),
        ('{"0": [1], "1": [2, 1]}', "client 1 and client 0 both hold example 1"),
        ('{"0": [1]}', "client 1 is missing"),
        ('{"0": [1], "1": [true]}', "client 1 must hold a list of whole numbers"),
        ('{"0": [1], "0": [2]}', "client 0 appears twice"),
        ("[[1], [2]]", "must be one JSON object"),
        ("[" * 100_000, "cannot read"),
    ],
)
def test_a_bad_file_is_named_with_its_client(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "shares.json"
    file.write_text(text)
    with pytest.raises(PartitionError, match=rf"shares\.json.*{complaint}|cannot read .*shares\.json"):
        read_parts(file, clients=2, train=10, test=4)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (config(2, kind="dirichlet", alpha=0.0), "data.partition.alpha = 0.0 must lie in 0.001"),
        (config(2, kind="epsilon", epsilon=10), "data.partition.epsilon = 10"),
        (config(2, "femnist", kind="epsilon"), "data.partition.kind = epsilon .* femnist has 62"),
        (config(2, kind="natural"), "data.partition.kind = natural: digits does not say"),
        (config(2, kind="file", file="nowhere.json"), "data.partition.file = 'nowhere.json': no such file"),
        (
            config(10, "cifar10", kind="classes", classes_per_client=20),
            r"data.partition.classes_per_client = 20: cifar10 has 10 classes; choose 1 \.\. 10",
        ),
        (
            config(9, "cifar10", kind="pairs"),
            "data.clients = 9: data.partition.kind = pairs has as many clients as classes; choose 10 for cifar10",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_any_data_is_opened(bad: DataConfig, complaint: str) -> None:
    with pytest.raises(PartitionError, match=complaint):
        check_partition(bad, DATASETS[bad.name])


def test_a_validation_split_is_drawn_from_each_clients_training_examples_alone() -> None:
    # 0.4 of 10, 1, 0 and 3 examples, rounded down.
    whole = [np.arange(0, 20, 2), np.array([31]), np.array([], np.int64), np.array([41, 43, 47])]
    train, held = hold_out(whole, 0.4, seed=0)
    assert [len(part) for part in held] == [4, 0, 0, 1]
    for before, kept, out in zip(whole, train, held, strict=True):
        assert np.sort(np.concatenate([kept, out])).tolist() == before.tolist()
        assert (np.diff(kept) > 0).all()
        assert (np.diff(out) > 0).all()
    # 0.29 * 100 is 28.999999999999996 in floating point, and 0.999 of three examples leaves one.
    assert [len(part) for part in hold_out([np.arange(100)], 0.29, 0)[1]] == [29]
    assert [len(part) for part in hold_out([np.arange(3)], 0.9999999999, 0)[0]] == [1]
    alone = hold_out([np.arange(50), np.arange(50)], 0.5, seed=0)[1]
    assert alone[0].tolist() != alone[1].tolist(), "each client has a stream of its own"
    assert alone[0].tolist() == hold_out([np.arange(50)], 0.5, seed=0)[1][0].tolist()
    assert alone[0].tolist() != hold_out([np.arange(50)], 0.5, seed=1)[1][0].tolist()


# --- pFedMB's classes, also at the sizes of CIFAR ---------------------------------------------------------------------

Counts = NDArray[np.int64]
CIFAR10, CIFAR100 = ("cifar10", 10, 5000, 1000), ("cifar100", 100, 500, 100)
"""(name, classes, training and test examples of each class)"""


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


def test_two_classes_of_cifar10_for_15_and_for_50_clients() -> None:
    # 15 clients: 30 places, 3 per class; 5000 / 3 = 1666 and 1000 * 1666 / 5000 = 333 of each class.
    train, _, test = counted(*CIFAR10, config(15, "cifar10", kind="classes"))
    assert (np.sort(train, axis=1)[:, -2:] == 1666).all()
    assert (np.sort(test, axis=1)[:, -2:] == 333).all()
    assert ((train > 0).sum(axis=1) == 2).all()
    assert ((train > 0) == (test > 0)).all()
    assert ((train > 0).sum(axis=0) == 3).all()
    # 50 clients: 10 per class, 500 and 100 of each; a fifth of 1000 is held out, 100 of each class.
    train, validation, test = counted(*CIFAR10, by_class(50, kind="classes"))
    assert (np.sort(train, axis=1) == [0] * 8 + [400] * 2).all()
    assert validation.tolist() == test.tolist() == (train // 4).tolist()


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


def test_of_windows_that_overlap_a_stretch_of_each_class_is_held_out_and_its_neighbours_are_left_out() -> None:
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    # A fifth of 15 is 3: of the ten examples of class 0 two, and of the five of class 1 one.
    train, held = hold_out([np.arange(15)], 0.2, 0, labels, overlap=1)
    assert held[0].tolist() == [4, 6, 10]
    # Neither 3 and 11, of class 0 beside 4 and 10, nor 5 and 7.
    assert train[0].tolist() == [0, 1, 2, 8, 9, 12, 13, 14]
    train, held = hold_out([np.arange(15)], 0.2, 0, labels, overlap=0)
    assert np.sort(np.concatenate([train[0], held[0]])).tolist() == list(range(15))
    # Where nothing else of the class remained, they stay; a client without examples has none.
    train, held = hold_out([np.arange(2), np.arange(0)], 0.5, 0, np.zeros(2, np.int64), overlap=1)
    assert sorted([*train[0].tolist(), *held[0].tolist()]) == [0, 1]
    assert (len(held[0]), len(train[1]), len(held[1])) == (1, 0, 0)
    # So they do in a class of three whose middle one is held out.
    few = np.repeat([0, 1], [3, 9])
    train, _ = hold_out([np.arange(12)] * 20, 0.25, 0, few, overlap=1)
    assert {tuple(part[few[part] == 0].tolist()) for part in train} == {(2,), (0, 2), (0,)}


def test_of_series_the_last_windows_of_each_are_held_out_and_those_that_share_values_with_them_left_out() -> None:
    series = np.array([0] * 10 + [1] * 5)
    parts = [np.arange(10), np.arange(10, 15)]
    kept, held = partition.hold_out_last(parts, 0.2, series, 2)
    assert [each.tolist() for each in kept] == [[0, 1, 2, 3, 4, 5], [10, 11]]
    assert [each.tolist() for each in held] == [[8, 9], [14]]
    (kept_by_one,), (held_by_one,) = partition.hold_out_last([np.arange(15)], 0.2, series, 2)
    assert (kept_by_one.tolist(), held_by_one.tolist()) == ([0, 1, 2, 3, 4, 5, 10, 11], [8, 9, 14])
    problem = "client 1 has 5 training windows, of which the last 2 are held out, and all others have values in common"
    with pytest.raises(PartitionError, match=problem):
        partition.hold_out_last(parts, 0.4, series, 3)


def test_a_data_set_of_overlapping_windows_is_held_out_in_stretches_unless_a_scenario_says_otherwise() -> None:
    y, ids = np.repeat([0, 1], 10), np.zeros(20, np.int64)
    split = Split(np.zeros((20, 6, 128), np.float32), y, ids)
    data = Data(DATASETS["hapt"], split, split, "hash", "made up")
    rule = DataConfig(name="hapt", clients=1, partition=PartitionConfig("natural"), validation=0.2)
    default, stretch, drawn = (
        partition_data(replace(rule, validation_by=by), data) for by in (None, "stretch", "client")
    )
    held = default.validation[0]
    assert held.tolist() == stretch.validation[0].tolist()
    assert held.tolist() == [4, 5, 13, 14]
    assert default.train[0].tolist() == [0, 1, 2, 7, 8, 9, 10, 11, 16, 17, 18, 19]
    assert (len(drawn.train[0]), len(drawn.validation[0])) == (16, 4)


# --- the cache, and partitions of one's own ---------------------------------------------------------------------------


def test_shares_are_kept_by_content_so_that_an_edited_file_is_another_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, asked = tmp_path / "shares.json", config(10, kind="dirichlet")
    kept = []
    for text in ('{"0": [1]}', '{"0": [2]}'):
        file.write_text(text)
        own = cached_partition(config(1, kind="file", file=str(file)), toy(), tmp_path / "cache")
        kept.append(own.train[0].tolist())
    assert kept == [[1], [2]]
    fresh = partition_data(asked, toy())
    cached_partition(asked, toy(), tmp_path)
    monkeypatch.setattr(sharing, "partition_data", None)  # calling it would fail
    again = cached_partition(asked, toy(), tmp_path)
    assert [part.tolist() for part in again.train] == [part.tolist() for part in fresh.train]
    assert [part.tolist() for part in again.test] == [part.tolist() for part in fresh.test]
    assert not again.train[0].flags.writeable


def by_label(labels: Any, ids: Any, clients: int, classes: int, rng: np.random.Generator, options: Any) -> list[Any]:
    """Client k gets ``each`` examples of class k modulo the number of classes, drawn at random."""
    assert options["seed"] == 0
    members = [rng.permutation(np.flatnonzero(labels == k % classes))[: options["each"]] for k in range(clients)]
    return [part.tolist() if options.get("lists") else part.astype(np.int32) for part in members]


BY_LABEL = PartitionRow("by-label", "one class each", by_label)
BY_LABEL_TRAIN = PartitionRow("train", "no tests", by_label, lambda train, parts, test, *_: [[] for _ in parts])


def own(clients: int, name: str = "BY_LABEL", **options: Any) -> DataConfig:
    return config(clients, kind=f"{__name__}:{name}", options=options)


@pytest.mark.parametrize("options", [{"each": 5}, {"each": 5, "lists": True}])
def test_a_partition_of_ones_own_splits_training_and_test_examples(options: dict[str, Any]) -> None:
    data = toy()
    shares = partition_data(own(4, **options), data)
    for part, labels in ((shares.train, data.train.y), (shares.test, data.test.y)):
        assert [(len(indices), set(labels[indices])) for indices in part] == [(5, {k}) for k in range(4)]
        assert all(indices.dtype == np.int64 and (np.diff(indices) > 0).all() for indices in part)
    assert shares.train[0].tolist() != shares.test[0].tolist()
    assert [len(part) for part in partition_data(own(4, "BY_LABEL_TRAIN", each=5), data).test] == [0] * 4
    assert [len(part) for part in partition_data(replace(own(4, each=5), validation=0.4), data).train] == [3] * 4


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (lambda: [[0], [1]], "gives examples to 2 clients, not to 3"),
        (lambda: [[0], [-1], [1]], "client 1 holds example -1"),
        (lambda: [[0], [1, 1], [2]], "client 1 holds example 1 twice"),
        (lambda: [[0], [1, 2], [2]], "client 2 and client 1 both hold example 2"),
        (lambda: [[0.5], [1], [2]], "client 0 must hold a list of whole numbers, not float64"),
        (lambda: [[], [], []], "none of the 3 clients gets any of the 1000"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_what_it_gives_is_checked(monkeypatch: pytest.MonkeyPatch, found: Any, complaint: str) -> None:
    monkeypatch.setitem(globals(), "WRONG", PartitionRow("wrong", "wrong", lambda *_: found()))
    with pytest.raises(PartitionError, match=rf"data\.partition\.kind = .*:WRONG: .*({complaint})"):
        partition_data(own(3, "WRONG"), toy())


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({"train": [[0], [1]]}, "gives 'train' to 2 clients"),
        (
            {"train": [[0], [1], [2]], "tests": [[0], [1], [2]]},
            "gives 'tests' to 3 clients; train, validation, test, to",
        ),
        (
            {"train": [[0], [1], [2]], "validation": [[3], [1], []]},
            r"client 1 \(validation\) and client 1 both hold example 1",
        ),
        ({"train": [[0], [1], [2]], "test": [[0], [-1], []]}, "client 1 holds example -1"),
    ],
)
def test_parts_that_it_gives_are_checked_too(monkeypatch: pytest.MonkeyPatch, found: Any, complaint: str) -> None:
    monkeypatch.setitem(globals(), "GIVEN", PartitionRow("given", "given", given=lambda *_: found))
    with pytest.raises(PartitionError, match=rf"data\.partition\.kind = .*:GIVEN: .*{complaint}"):
        partition_data(own(3, "GIVEN"), toy())


def test_its_name_and_options_are_checked_and_its_text_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bad, complaint in (
        (config(2, kind="dirichlett"), "data.partition.kind: no partition 'dirichlett'; did you mean 'dirichlet'"),
        (config(2, kind=f"{__name__}:toy"), "is not a partition"),
        (config(2, kind="iid", options={"each": 1}), "only a partition of your own takes them, not iid"),
        (own(2, each=[1]), r"data\.partition\.options\.each = \[1\]: must be a number, a text or a flag"),
    ):
        with pytest.raises(PartitionError, match=complaint):
            check_partition(bad, DATASETS["digits"])
    cache = tmp_path / "shares" / "v1"
    for text in ("first", "first", "second"):
        monkeypatch.setattr("inspect.getsource", lambda module, text=text: text)
        cached_partition(own(2, each=3), toy(), tmp_path)
    assert len([folder for folder in cache.iterdir() if folder.is_dir()]) == 2
