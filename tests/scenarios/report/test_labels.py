"""Labels: runs are named by what differs between their scenarios, in few words."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.report.labels import differing, identities, labels, short, value_text

PLAIN: dict[str, Any] = {
    "method": "fedavg",
    "server": "plain",
    "seed": 0,
    "data.partition.seed": 0,
    "fleet.seed": 0,
    "rounds.policy": "sync",
    "rounds.max": 6,
    "train.lr": 0.1,
    "fleet.devices.pi": 0.5,
    "fleet.devices.nano": 0.5,
}


def names(*changes: dict[str, Any]) -> list[str]:
    """The labels of these changes of `PLAIN`."""
    return labels(identities([PLAIN | change for change in changes]))


def test_methods_are_named_alone_and_a_server_optimizer_is_always_named() -> None:
    assert names({}, {"method": "fedbr", "train.lr": 0.05}) == ["fedavg", "fedbr"]
    assert names({"server": "fedavgm"}) == ["fedavg, server=fedavgm"]


def test_the_policy_comes_before_other_keys_which_are_named_only_where_labels_would_be_equal() -> None:
    slow = {"train.lr": 0.05}
    assert names({}, slow, {"rounds.policy": "fedbuff"}, {"method": "fedbr"}) == [
        "fedavg, sync, lr=0.1",
        "fedavg, sync, lr=0.05",
        "fedavg, fedbuff",
        "fedbr, sync",
    ]


@pytest.mark.parametrize("key", ["data.partition.seed", "fleet.seed"])
def test_seeds_make_no_group_of_their_own_nor_does_a_partition_or_fleet_that_follows_them(key: str) -> None:
    first, second = identities([PLAIN, PLAIN | {"seed": 1, "data.partition.seed": 1, "fleet.seed": 1}])
    assert first == second
    fixed, moved = identities([PLAIN | {"seed": 1}, PLAIN | {"seed": 1, key: 7}])
    assert differing([fixed, moved]) == [key]


def test_a_key_is_as_short_as_it_is_clear() -> None:
    known = {"train.lr", "train.batch", "eval.batch", "rounds.max", "method"}
    assert [short(key, known) for key in ("train.lr", "train.batch", "rounds.max", "method")] == [
        "lr",
        "train.batch",
        "rounds.max",
        "method",
    ]
    assert [value_text(value) for value in (None, True, 1e9, ["a", "b"], [])] == [
        "not set",
        "true",
        "1e+09",
        "a+b",
        "none",
    ]
    chain = [{"kind": "topk", "ratio": 0.01}, {"kind": "quantize", "bits": 4, "norm": "max"}, {"kind": "sign"}]
    assert value_text(chain) == "topk(0.01)+quantize(4,max)+sign"
