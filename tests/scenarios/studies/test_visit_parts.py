"""One visit of a recorded run, taken apart by the figures in its ledger, and computed again by hand."""

from __future__ import annotations

import io
import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

import fedbr
from scenarios.cli import main
from scenarios.studies import visit_parts
from scenarios.studies.visit_parts import VisitParts
from tests.crossed import every
from tests.scenarios.in_this_process import pool_in_this_process, run

__all__ = ["pool_in_this_process"]

ROUTERS = ("fleet.gateways.count=2", "fleet.gateways.down=1 Mbit/s", "fleet.gateways.up=1 Mbit/s")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("plain"), "rounds.max=2", "fleet.server.up=2 Mbit/s")


def seconds_of(visit: VisitParts, phase: str) -> dict[str, float]:
    return {part.name: part.seconds for part in visit.parts if part.phase == phase}


def test_a_visit_is_computed_again_by_hand(plain: Path) -> None:
    visit = visit_parts.visit_parts(plain, 0)
    met, row = visit.conditions, fedbr.Run(plain).visits.slice(0, 1).to_pylist()[0]
    # A frame of 1514 bytes carries 1448. The first 10 frames and the next 20 wait for a round trip each, since the
    # client's link needs less for them.
    assert row["bytes_down"] == 61_696
    bits = 8 * 61_696 * 1514 / 1448
    windows = 12_112 * (10 + 20)
    assert seconds_of(visit, "download") == pytest.approx(
        {
            "connecting": 3.5 * met["rtt_s"],
            "own link": (bits - windows) / met["down_bps"],
            "windows": 2 * met["rtt_s"],
            "last byte": met["rtt_s"] / 2,
        },
        rel=1e-9,
    )
    work = (row["steps"] * met["step_s"] + row["flops"] / met["flops_per_s"]) * met["jitter"]
    assert seconds_of(visit, "computing") == pytest.approx({"computing": work})
    assert visit.joules["compute"] == pytest.approx(met["train_watts"] * work)
    assert seconds_of(visit, "upload")["server link"] > 0.05  # five visits share 2 Mbit/s
    assert sum(part.seconds for part in visit.parts) == pytest.approx(visit.seconds)
    assert sum(visit.joules.values()) == pytest.approx(row["joules"])


@pytest.mark.parametrize(
    "words",
    every(
        2,
        [
            ROUTERS,
            ("rounds.policy=fedasync", "fleet.server.up=2 Mbit/s"),
            ("rounds.policy=deadline", "rounds.deadline=300 ms", "rounds.on_late=finish"),
            ("fleet.tiers.count=2", "tiers.interval=2"),
            ("fleet.networks={broadband=1}", "fleet.bandwidth.kind=ou", "fleet.bandwidth.outages=true"),
        ],
        is_one=True,
    ),
    ids=["gateways", "asynchronous", "late", "tiers", "varying"],
)
def test_the_parts_of_every_visit_add_up_to_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = run(tmp_path, "rounds.max=2", *words)
    numbers = fedbr.Run(folder).conditions["visit"].to_pylist()
    assert len(numbers) >= 10
    for number in numbers:
        visit = visit_parts.visit_parts(folder, number)
        assert sum(part.seconds for part in visit.parts) == pytest.approx(visit.seconds, abs=1e-9), visit
        assert all(part.seconds > 0 for part in visit.parts), visit
        assert all(math.isfinite(value) for value in visit.conditions.values()), visit


def test_the_command_prints_the_parts_and_finds_a_visit_by_round_and_client(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run_command(["explain", str(plain)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "The parts of a visit: fedbr explain RUN VISIT, or fedbr explain RUN ROUND:CLIENT"
    rounds = visit_parts.critical_visits(plain)
    assert [critical.round for critical in rounds] == [1, 2]

    critical = rounds[1]
    place = f"2:{critical.client}"
    assert main.run_command(["explain", str(plain), place, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["visit"], found["is_critical"], found["round"]) == (critical.visit, True, 2)
    assert found == json.loads(json.dumps(asdict(fedbr.Run(plain).explain(critical.visit))))

    stream = io.StringIO()
    visit_parts.show(fedbr.Run(plain).explain(0), stream)
    text = stream.getvalue()
    assert "3.5 round trips of" in text
    assert "x jitter" in text
