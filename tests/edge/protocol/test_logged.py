"""What a method may log, under which names, and that nothing is lost silently."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coordinator.records.round_record import RoundRecord, logged_means
from edge.protocol.logged import NumberLog, joined


def test_the_last_number_of_a_name_counts_and_one_that_is_not_finite_is_none() -> None:
    side = NumberLog()
    for name, value in (("gap", 1), ("gap", np.float32(0.5)), ("a-z_0.9", math.inf), ("unknown", math.nan)):
        side.log(name, value)
    assert repr(side.take_logged()) == "{'gap': 0.5, 'a-z_0.9': nan, 'unknown': nan}"
    assert side.take_logged() == {}


@pytest.mark.parametrize("name", ["", "Gap", "a b", "gap\n", "server/gap", "\x1b[31m", "x" * 65])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"a name is 1 to 64 of the characters a-z, 0-9, _, \. and -"):
        NumberLog().log(name, 0.5)


def test_no_number_and_too_many_names_are_refused() -> None:
    side, other = NumberLog(), NumberLog()
    with pytest.raises(ValueError, match="could not convert"):
        side.log("gap", "wide")
    for index in range(64):
        side.log(f"n{index}", index)
    side.log("n0", 1)
    with pytest.raises(ValueError, match="log: 'n64': at most 64 names"):
        side.log("n64", 0)
    other.log("more", 0)
    with pytest.raises(ValueError, match="65 names of all parts of the method"):
        joined([side.take_logged(), other.take_logged()])


def test_means_are_over_the_visits_with_a_finite_number() -> None:
    record = RoundRecord(3, 0.0)
    for client, number in ((0, 1.0), (1, math.nan), (0, 2.0)):
        record.log(client, {"gap": number, "unknown": math.nan})
    record.log(None, {"gap": 8.0})
    assert [(row.client, row.value) for row in record.logged if row.name == "gap"] == [
        *((0, 1.0), (1, None), (0, 2.0), (None, 8.0))
    ]
    assert logged_means(record.logged) == {"clients/gap": 1.5, "clients/unknown": None, "server/gap": 8.0}


def test_a_number_beyond_the_bounds_is_refused_where_it_is_logged() -> None:
    side = NumberLog()
    side.log("most", -1e30)
    with pytest.raises(ValueError, match=r"log: 'big': 1e\+31 is beyond 1e\+30, the most that a run records"):
        side.log("big", 1e31)
    assert side.take_logged() == {"most": -1e30}
