"""Rounds with secure aggregation: phases with barriers, a client that is lost in each, quorums, and what is paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.store import read
from coordinator.rounds.budget import RunLimits
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.secure_rules import SecureRules
from edge.protocol.config import PrivacyConfig
from tests.coordinator.rounds.clockwork import DOWN_NBYTES, EVER, UP_NBYTES, ran, windows
from tests.toy import Run

TWELVE = [(1.0, 2.0, 1.0)] * 12
SHARES = 11
WEIGHTS = 1250
"""Of the model"""
INVITATION = 81
"""Of the server, a message without vectors"""
Row = tuple[str, int, int, float, float]
"""(kind, bytes down, bytes up, start, end) of a visit"""


def secured(folder: Path, behaviour: Any = None, limits: RunLimits | None = None, **privacy: Any) -> Run:
    how = {"secagg": "secagg+", "secagg_shares": SHARES, **privacy}
    shared: dict[str, Any] = {"behaviour": behaviour, "sum": "fixed_point", "weights": "uniform", "limits": limits}
    return ran(folder, seconds=TWELVE, privacy=how, **shared)


def visits(folder: Path) -> dict[int, list[Row]]:
    """client -> its visits, in the order of their starts."""
    query = "SELECT client, kind, bytes_down, bytes_up, start_s, up_end_s FROM visits ORDER BY start_s, up_end_s"
    found: dict[int, list[Row]] = {}
    for client, *row in read(folder / "ledger.sqlite", query):
        found.setdefault(client, []).append(tuple(row))
    return found


def kinds(rows: Sequence[Row]) -> list[str]:
    return [row[0] for row in rows]


def totals(folder: Path) -> Mapping[str, Any]:
    return dict(read(folder / "ledger.sqlite", "SELECT * FROM rounds")[0])


def test_each_phase_begins_when_the_one_before_has_ended_for_all(tmp_path: Path) -> None:
    secured(tmp_path)
    for phase, following in ((0, 1), (1, 2), (2, 3)):
        ends = [rows[phase][4] for rows in visits(tmp_path).values()]
        starts = {rows[following][3] for rows in visits(tmp_path).values()}
        assert starts == {max(ends)}
    assert {tuple(kinds(rows)) for rows in visits(tmp_path).values()} == {("setup", "share", "train", "unmask")}
    assert totals(tmp_path)["end_s"] > max(rows[3][4] for rows in visits(tmp_path).values())  # masks are taken off


def test_bytes_by_hand_as_published_and_as_flower_sends_them(tmp_path: Path) -> None:
    published, flower = tmp_path / "published", tmp_path / "flower"
    secured(published)
    # Keys and shares of 32 bytes for ten neighbours; 4 bytes a number, and one number more; 12 names of 4 bits.
    assert [row[1:3] for row in visits(published)[0]] == [
        (INVITATION, 64),
        (2 * 10 * 32, 2 * 10 * 32),
        (DOWN_NBYTES + 2 * 10 * 32, UP_NBYTES + 4),
        (6, 11 * 32),
    ]
    secured(flower, secagg_wire="flower")
    assert [row[1:3] for row in visits(flower)[0]] == [
        (INVITATION, 430),
        (430 * 11, 612 * 10),
        (DOWN_NBYTES + 612 * 10, UP_NBYTES + 4 * WEIGHTS + 8),
        (0, 52 * 10),
    ]


def test_seconds_that_end_in_the_first_phase_or_in_training_cut_these(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    secured(whole)
    for phase, seen in (("setup", ("dropped",)), ("train", ("dropped", "dropped", "cut"))):
        middle = next((row[3] + row[4]) / 2 for row in visits(whole)[0] if row[0] == phase)
        run = secured(tmp_path / phase, limits=RunLimits(virtual_seconds=middle))
        assert run.stopped_by == "virtual_seconds"
        rows = visits(tmp_path / phase)
        assert {tuple(kinds(each)) for each in rows.values()} == {seen}
        assert max(row[4] for each in rows.values() for row in each) <= middle
        assert totals(tmp_path / phase)["bytes_up"] < totals(whole)["bytes_up"]


@pytest.mark.parametrize(
    ("phase", "seen"),
    [
        ("setup", ["dropped"]),
        ("share", ["setup", "dropped"]),
        ("train", ["setup", "share", "lost"]),
        ("unmask", ["setup", "share", "train", "dropped"]),
    ],
)
def test_a_client_that_is_lost_in_a_phase_takes_no_part_in_later_ones(
    phase: str, seen: list[str], tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    secured(whole, secagg_wire="flower")
    start, end = next(row[3:] for row in visits(whole)[3] if row[0] == phase)
    leaves = [(0.0, (start + end) / 2)]
    lost = secured(cut, windows(*[leaves if client == 3 else [EVER] for client in range(12)]), secagg_wire="flower")
    of_cut = visits(cut)
    assert kinds(of_cut[3]) == seen
    others = [rows for client, rows in of_cut.items() if client != 3]
    assert {tuple(kinds(rows)) for rows in others} == {("setup", "share", "train", "unmask")}
    # Its update counts once it has come, whether it unmasks others or not.
    assert totals(cut)["participants"] == (12 if phase == "unmask" else 11)
    unmasked = sorted({rows[3][2] for rows in others})
    holders = SecureRules(PrivacyConfig(), 0, 0).holders(12, SHARES, 0, -1)
    assert holders is not None
    near = sum(3 in group for client, group in enumerate(holders.tolist()) if client != 3)
    assert near == 10
    # Ten of the eleven others share with it. Where it has shared and sends nothing, they send a share of its key.
    expected = {"train": [52 * 9 + 324, 52 * 10], "unmask": [52 * 10]}.get(phase, [52 * 9, 52 * 10])
    assert unmasked == sorted(expected)
    wasted = totals(cut)["wasted_bytes"]
    assert (wasted > 0) == (phase != "setup") or wasted == sum(of_cut[3][-1][1:3])
    assert lost.federation.rounds == 1


def test_a_round_without_a_quorum_is_lost_and_paid_for(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    secured(whole)
    start, end = next(row[3:] for row in visits(whole)[0] if row[0] == "unmask")
    leaves = [(0.0, (start + end) / 2)]
    # Five of twelve do not answer: of eleven shares some client is left with seven or less, of which eight are needed.
    secured(cut, windows(*[leaves if client < 5 else [EVER] for client in range(12)]))
    row = totals(cut)
    assert row["participants"] == 0 and row["wasted_bytes"] == row["bytes_down"] + row["bytes_up"]
    assert row["bytes_up"] > 12 * UP_NBYTES and row["joules"] > 0
    assert {kind for rows in visits(cut).values() for kind in kinds(rows)} == {"dropped", "lost"}
    assert row["model_sha256"] != totals(whole)["model_sha256"]


def test_lightsecagg_waits_for_the_first_answers_alone(tmp_path: Path) -> None:
    secured(tmp_path, secagg="lightsecagg", secagg_shares=None, secagg_quorum=0.75)
    rows = visits(tmp_path)
    assert {tuple(kinds(each)) for each in rows.values()} == {("share", "train", "unmask")}
    # U = 9 of 12, T = 6: pieces of a third of the numbers, one for each of 11 others.
    piece = -(-(WEIGHTS + 1) // 3)
    assert [row[1:3] for row in rows[0]] == [
        (INVITATION, 11 * 4 * piece),
        (DOWN_NBYTES + 11 * 4 * piece, UP_NBYTES + 4),
        (6, 4 * piece),
    ]


def test_holders_hold_each_others_shares_and_all_have_as_many() -> None:
    rules = SecureRules(PrivacyConfig(secagg="secagg+"), 10, 3)
    drawn = rules.holders(40, 7, 2, -1)
    again = rules.holders(40, 7, 3, -1)
    assert drawn is not None and again is not None
    assert drawn[:, 0].tolist() == [*range(40)]
    assert all(len(set(group)) == 7 for group in drawn.tolist())
    assert all(client in drawn[other] for client, group in enumerate(drawn.tolist()) for other in group)
    assert drawn.tolist() != again.tolist()
    # 2 ceil(log2 40) + 1, of which two thirds must answer
    protocol = rules.protocol(40)
    assert (protocol.shares, protocol.quorum) == (13, 9)


def test_a_budget_pays_for_all_phases_or_for_no_round(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    secured(whole)
    nbytes = totals(whole)["bytes_down"] + totals(whole)["bytes_up"]
    how = {"secagg": "secagg+", "secagg_shares": SHARES}
    shared: dict[str, Any] = {
        "seconds": TWELVE,
        "privacy": how,
        "sum": "fixed_point",
        "weights": "uniform",
        "rounds": 3,
    }
    enough = ran(tmp_path / "enough", limits=RunLimits(bytes=2 * nbytes), **shared)
    assert (enough.federation.rounds, enough.stopped_by) == (2, "bytes")
    short = ran(tmp_path / "short", limits=RunLimits(bytes=2 * nbytes - 1), **shared)
    assert (short.federation.rounds, short.stopped_by) == (1, "bytes")


def test_virtual_seconds_that_end_in_a_phase_cut_it(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    secured(whole)
    middle = next((row[3] + row[4]) / 2 for row in visits(whole)[0] if row[0] == "share")
    how = {"secagg": "secagg+", "secagg_shares": SHARES}
    run = ran(
        tmp_path / "cut",
        RoundPolicy(),
        TWELVE,
        limits=RunLimits(virtual_seconds=middle),
        privacy=how,
        sum="fixed_point",
        weights="uniform",
    )
    assert run.stopped_by == "virtual_seconds"
    rows = visits(tmp_path / "cut")
    assert {tuple(kinds(each)) for each in rows.values()} == {("dropped", "dropped")}
    assert max(row[4] for each in rows.values() for row in each) <= middle
    assert totals(tmp_path / "cut")["end_s"] == middle
