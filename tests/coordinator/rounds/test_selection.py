"""Who takes part, and which blocks travel."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from coordinator.aggregation.block_exchange import exchanged_keys
from coordinator.rounds.selection import IdleClients, sample_cohort
from edge.protocol.payload import BlockShape, Layout

LAYOUT = Layout((BlockShape("stem", 4), BlockShape("body", 6, 2), BlockShape("head", 3)))


def test_a_cohort_is_drawn_without_replacement_in_ascending_order_by_seed_and_round_alone() -> None:
    for round in range(20):
        chosen = sample_cohort(0, round, range(10, 20), 4)
        assert chosen == sorted(set(chosen))
        assert len(chosen) == 4
        assert set(chosen) <= set(range(10, 20))
    assert sample_cohort(0, 3, range(100), 5) == sample_cohort(0, 3, range(100), 5)
    assert len({tuple(sample_cohort(seed, round, range(100), 5)) for seed in range(3) for round in range(3)}) == 9
    assert sample_cohort(0, 0, [3, 1, 2], 3) == sample_cohort(0, 0, [3, 1, 2], 9) == [1, 2, 3]


def test_everyone_who_is_there_is_drawn_equally_often() -> None:
    counts = np.bincount([client for round in range(2000) for client in sample_cohort(0, round, range(10), 3)])
    assert all(530 < count < 670 for count in counts)  # 600 expected, standard deviation 20
    counts = np.bincount([k for round in range(2000) for k in sample_cohort(0, round, range(10), 3, lambda k: k < 5)])
    assert all(1130 < count < 1270 for count in counts)  # 1200 expected, standard deviation 22


def test_only_those_are_drawn_who_are_there_and_nobody_is_asked_in_vain() -> None:
    asked: list[int] = []

    def is_there(client: int) -> bool:
        asked.append(client)
        return client % 2 == 0

    for round in range(20):
        asked.clear()
        chosen = sample_cohort(0, round, range(100), 5, is_there)
        assert chosen == sorted(client for client in asked if client % 2 == 0)
        assert len(chosen) == 5
        assert asked[-1] in chosen
        assert len(asked) == len(set(asked))
    assert sample_cohort(0, 0, [1, 3, 4], 2, is_there) == [4]
    assert sample_cohort(0, 0, [1, 3], 2, is_there) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("everything", ("stem", "body", "body.buffers", "head")),
        ("nothing", ()),
        ("without:stem, body", ("head",)),
        ("last:2", ("body", "body.buffers", "head")),
        ("without-last:1", ("stem", "body", "body.buffers")),
        ("without-layers:head", ("stem", "body", "body.buffers", "head")),  # a block, and no layer
    ],
)
def test_buffers_travel_with_their_block(text: str, expected: tuple[str, ...]) -> None:
    assert exchanged_keys(text, LAYOUT) == expected


@pytest.mark.parametrize(
    "text", ["", "all", "last:0", "last:4", "last:x", "last:²", "without:", "without", "without:tail", "without-last:4"]
)
def test_what_is_none_of_the_forms_or_names_no_block_is_refused(text: str) -> None:
    forms = (
        r": must be 'everything', 'parameters', 'nothing', 'without:BLOCK,\.\.', 'without-last:0' to "
        r"'without-last:3', or 'last:1'"
    )
    unknown = "no block 'tail'; the model has stem, body, head"
    with pytest.raises(ValueError, match=unknown if "tail" in text else forms):
        exchanged_keys(text, LAYOUT)


# --- one client at a time ---------------------------------------------------------------------------------------------


class Asked:
    """Ten clients: the first is never able, the second gone for good, and 2 to 5 are back at that second."""

    def __init__(self, seed: int = 0) -> None:
        self.count: Counter[int] = Counter()
        self.now = 0.0
        self.idle = IdleClients(seed, range(10), self.is_able, self.back)

    def is_able(self, client: int) -> bool:
        self.count[client] += 1
        return client != 0

    def back(self, client: int) -> float:
        return math.inf if client == 1 else max(float(client), self.now) if client < 6 else self.now

    def take(self, index: int) -> int | None:
        return self.idle.take(index, self.now)


def test_clients_begin_one_by_one_until_nobody_is_left_who_is_there() -> None:
    asked = Asked()
    assert sorted(str(asked.take(index)) for index in range(5)) == ["6", "7", "8", "9", "None"]
    assert asked.idle.next_return == 2.0


def test_nobody_is_asked_again_before_it_can_have_come_back() -> None:
    asked = Asked()
    for index in range(50):
        asked.take(index)
    assert asked.count == dict.fromkeys(range(10), 1)
    asked.now = 3.0
    assert sorted(str(asked.take(index)) for index in range(3)) == ["2", "3", "None"]
    assert asked.count == {**dict.fromkeys(range(10), 1), 2: 2, 3: 2}
    assert asked.idle.next_return == 4.0
    # Whose visit has ended may begin the next.
    asked.idle.put(7)
    assert (asked.take(3), asked.take(4)) == (7, None)


def test_clients_that_are_away_are_taken_when_they_return_the_first_first() -> None:
    returns = {0: 0.0, 1: 9.0, 2: 5.0, 3: math.inf}
    idle = IdleClients(0, range(4), is_eligible=lambda client: True, available_at=returns.__getitem__)
    assert [idle.take(0, 0.0), idle.take(1, 0.0), idle.next_return] == [0, None, 5.0]
    assert [idle.take(2, 4.5), idle.take(3, 5.0), idle.next_return] == [None, 2, 9.0]
    assert [idle.take(4, 20.0), idle.take(5, 20.0), idle.next_return] == [1, None, math.inf]
