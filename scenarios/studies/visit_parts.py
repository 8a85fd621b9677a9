"""``fedbr explain RUN VISIT``: what the seconds and joules of one visit were made of, with the figures behind them.

All of it is read from the ledger (`coordinator.records.schema.ConditionsRow` says what each figure means): each line
can be computed again by hand, and the lines add up to the visit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.table import Table

from coordinator.records.schema import (
    AIR,
    CONDITIONS,
    COUNTED,
    GATEWAY,
    LAN,
    LEFTOVER,
    OWN_LINK,
    SERVER_LINK,
    ConditionsRow,
    StepsRow,
    VisitRow,
)
from costmodel.network.tcp import wire_bits
from costmodel.units import format_rate
from edge.protocol.spelling import closest
from scenarios.config.errors import ReportError, ScenarioError
from scenarios.report.columns import FLOPS, JOULES, SECONDS, cells
from scenarios.report.run_reader import RecordedRun
from scenarios.run.folder_files import LEDGER

DOWNLOAD, COMPUTING, UPLOAD = "download", "computing", "upload"
ROUNDING = 1e-12
"""Share of a visit's seconds that is left by rounding alone"""


@dataclass(frozen=True)
class VisitPart:
    """Some of a visit's seconds."""

    phase: str
    """`DOWNLOAD`, `COMPUTING` or `UPLOAD`"""
    name: str
    """The cause: connecting, a link, windows, half a round trip, computing, or pauses"""
    seconds: float
    source: str
    """The figures that give these seconds"""


@dataclass(frozen=True)
class VisitParts:
    """One visit of a run, and what its times and joules were made of."""

    visit: int
    round: int
    """From 1"""
    client: int
    device: str
    network: str
    kind: str
    start_s: float
    end_s: float
    is_critical: bool
    """Whether its round waited for it last"""
    bottleneck: str
    """The bottleneck of its round"""
    parts: tuple[VisitPart, ...]
    joules: dict[str, float]
    """receive, compute, send and idle; together all of the visit's"""
    conditions: dict[str, float]
    """The columns of `ConditionsRow`"""

    @property
    def seconds(self) -> float:
        """From its start to its end."""
        return self.end_s - self.start_s


def visit_parts(folder: Path, number: int) -> VisitParts:
    """The parts of visit ``number`` of a run. ScenarioError for one that the run has not, or whose conditions no clock
    has; ReportError for a folder without a run."""
    run = _run(folder)
    visits = run.query(f"SELECT {', '.join(VisitRow._fields)} FROM visits WHERE visit = ?", (number,))
    if not visits:
        (most,) = run.query("SELECT MAX(visit) AS most FROM visits")
        there = "it has none yet" if most["most"] is None else f"they are numbered from 0 to {most['most']}"
        raise ScenarioError(f"explain {folder} {number}: the run has no such visit; {there}")
    visit = VisitRow(**dict(visits[0]))
    met = run.query(f"SELECT {', '.join(ConditionsRow._fields)} FROM {CONDITIONS} WHERE visit = ?", (number,))
    if not met:
        why = "what is left of a late visit" if visit.kind == LEFTOVER else "timed by real devices"
        raise ScenarioError(f"explain {folder} {number}: this visit is {why}, and has no figures of its own")
    row = ConditionsRow(**dict(met[0]))
    (of_round,) = run.query("SELECT critical, bottleneck FROM rounds WHERE round = ?", (visit.round,))
    fleet = run.scenario.get("fleet", {})
    shares_air = fleet.get("gateways", {}).get("kind") == "airtime"
    access = LAN if fleet.get("tiers", {}).get("count") else AIR if shares_air else GATEWAY
    times = (visit.start_s, visit.down_end_s, visit.compute_end_s, visit.up_end_s)
    paused = max(visit.paused_s, 0.0)
    none = StepsRow(number, visit.round, *[0.0] * (len(StepsRow._fields) - 2))
    steps = next((each for each in run.steps if each.visit == number), none)
    # The seconds of links in the conditions are those of both messages, and of the steps between them.
    shared = ("access_down_s", "server_down_s", "access_up_s", "server_up_s")
    row = row._replace(
        own_down_s=row.own_down_s - steps.down_s,
        own_up_s=row.own_up_s - steps.up_s,
        **{name: getattr(row, name) - getattr(steps, name) for name in shared},
    )
    own_down, own_up = (
        nbytes - bits / float(wire_bits(1.0)) / noise
        for nbytes, bits, noise in (
            (visit.bytes_down, steps.down_bits, row.noise_down),
            (visit.bytes_up, steps.up_bits, row.noise_up),
        )
    )
    down = _message(DOWNLOAD, times[1] - times[0], own_down, row, access, paused)
    up = _message(UPLOAD, times[3] - times[2], own_up, row, access, paused)
    computing = _computing(visit, row, times[2] - times[1], steps)
    return VisitParts(
        *(visit.visit, visit.round + 1, visit.client, visit.device, visit.network, visit.kind),
        *(visit.start_s, visit.up_end_s, of_round["critical"] == visit.client, of_round["bottleneck"]),
        (*down, *computing, *up),
        {
            "receive": visit.receive_joules,
            "compute": visit.compute_joules,
            "send": visit.send_joules,
            "idle": visit.idle_joules,
        },
        {name: value for name, value in row._asdict().items() if name not in ("visit", "round")},
    )


def _message(
    phase: str, seconds: float, nbytes: float, row: ConditionsRow, access: str, paused: float
) -> list[VisitPart]:
    """The parts of a message that took so many seconds."""
    if seconds <= 0:
        return []
    way = "down" if phase == DOWNLOAD else "up"
    connect, own, shared, server = (
        float(getattr(row, f"{name}_{way}_s")) for name in ("connect", "own", "access", "server")
    )
    rate, noise = float(getattr(row, f"{way}_bps")), float(getattr(row, f"noise_{way}"))
    bits = float(wire_bits(nbytes)) * noise
    sent = f"{bits:,.0f} bits on the wire" + ("" if noise == 1 else f", noise x {noise:.4g} included")
    if own * rate < (1 - ROUNDING) * bits:  # others went with the first windows, or at less than this rate
        sent = f"{own * rate:,.0f} of {sent}"
    handshake = _trips(connect, row.rtt_s) or "the radio's promotion, and the handshake"
    parts = [
        VisitPart(phase, "connecting", min(connect, seconds), handshake),
        VisitPart(phase, OWN_LINK, own, f"{sent} at {format_rate(rate)}"),
        VisitPart(phase, access, shared, f"shared, at less than the client's own {format_rate(rate)}"),
        VisitPart(phase, SERVER_LINK, server, f"shared, at less than the client's own {format_rate(rate)}"),
    ]
    last = row.rtt_s / 2
    rest = seconds - sum(part.seconds for part in parts) - last
    if rest < -ROUNDING * seconds:  # it was cut before its last byte
        return _within(seconds, parts)
    what = "windows of slow start" + (", repairs of lost segments" if row.loss else "") + (", pauses" if paused else "")
    trips = _trips(rest, row.rtt_s)
    parts.append(VisitPart(phase, "windows", max(rest, 0.0), f"{what}: {trips}" if trips else what))
    parts.append(VisitPart(phase, "last byte", last, f"half a round trip of {_shown(row.rtt_s)}"))
    return _within(seconds, parts)


def _computing(visit: VisitRow, row: ConditionsRow, seconds: float, steps: StepsRow) -> list[VisitPart]:
    if seconds <= 0:
        return []
    work = (visit.steps * row.step_s + visit.flops / row.flops_per_s + row.codec_s) * row.jitter
    flops, speed = cells(FLOPS, [visit.flops])[0], cells(FLOPS, [row.flops_per_s])[0]
    codec = f" + codecs {_shown(row.codec_s)}" if row.codec_s else ""
    source = f"({visit.steps} steps x {_shown(row.step_s)} + {flops} / {speed}/s{codec}) x jitter {row.jitter:.4g}"
    parts = [VisitPart(COMPUTING, COMPUTING, min(work, seconds), source)]
    if steps.device_s or steps.seconds:
        came = "" if visit.kind in COUNTED else ", as far as it came"
        parts = [VisitPart(COMPUTING, COMPUTING, steps.device_s, f"{source}{came}")]
        for way in ("up", "down"):
            taken, bits = float(getattr(steps, f"{way}_s")), float(getattr(steps, f"{way}_bits"))
            sent = f"{bits:,.0f} bits on the wire at {format_rate(bits / taken)}" if taken else ""
            parts.append(VisitPart(COMPUTING, f"steps {way}", taken, sent))
        trips = _trips(steps.trips_s, row.rtt_s)
        others = [
            VisitPart(COMPUTING, "round trips", steps.trips_s, trips),
            VisitPart(COMPUTING, "server", steps.served_s, "its device, if it had no other client"),
            VisitPart(COMPUTING, "queue", steps.queued_s, "the server's device computed for others"),
            VisitPart(COMPUTING, "links of others", steps.shared_s, "at less than it asked for"),
        ]
        parts += _within(seconds, others)
        work = sum(part.seconds for part in parts)
    if seconds - work > ROUNDING * seconds:
        parts.append(VisitPart(COMPUTING, "pauses", seconds - work, "the client was away, or its device slower"))
    return parts


def _within(seconds: float, parts: list[VisitPart]) -> list[VisitPart]:
    return [part for part in parts if part.seconds > ROUNDING * seconds]


def _trips(seconds: float, rtt: float) -> str:
    """ "3.5 round trips of 7.5 ms" where it is a number of halves; '' otherwise."""
    halves = round(2 * seconds / rtt) if rtt > 0 else 0
    if not halves or abs(halves * rtt / 2 - seconds) > 1e-6 * seconds:
        return ""
    return f"{halves / 2:g} round trip{'s' * (halves != 2)} of {_shown(rtt)}"


def _shown(seconds: float) -> str:
    return cells(SECONDS, [seconds])[0]


def _run(folder: Path) -> RecordedRun:
    if not (folder / LEDGER[0]).is_file():
        raise ReportError(f"{folder} is not a run folder: it has no {LEDGER[0]}")
    return RecordedRun(folder)


# --- which visit ------------------------------------------------------------------------------------------------------


def number_of(folder: Path, text: str) -> int:
    """The number of the visit that a word names: a number, or ``ROUND:CLIENT`` with rounds from 1. ScenarioError with
    what there is for any other."""
    round_text, colon, client_text = text.partition(":")
    numbers = [part for part in (round_text, client_text if colon else "0") if part.isascii() and part.isdigit()]
    if len(numbers) < 2:
        raise ScenarioError(f"explain {folder} {text}: a visit is a number, or ROUND:CLIENT with rounds from 1")
    if not colon:
        return int(round_text)
    run, number = _run(folder), int(round_text) - 1
    rows = run.query("SELECT visit, client FROM visits WHERE round = ? ORDER BY kind = ?, visit", (number, LEFTOVER))
    if not rows:
        raise ScenarioError(f"explain {folder} {text}: the run has no round {round_text}")
    visits = [row["visit"] for row in rows if row["client"] == int(client_text)]
    if not visits:
        clients = {str(row["client"]) for row in rows}
        near = closest(client_text, clients)
        hint = f"; did you mean {near}?" if near else ""
        listed = ", ".join(sorted(clients, key=int)[:20])
        raise ScenarioError(f"explain {folder} {text}: no visit to client {client_text} in it, but to {listed}{hint}")
    return int(visits[0])


@dataclass(frozen=True)
class CriticalVisit:
    """A round, and the visit that it waited for last."""

    round: int
    """From 1"""
    seconds: float
    bottleneck: str
    client: int
    visit: int


def critical_visits(folder: Path) -> list[CriticalVisit]:
    """The rounds of a run with their critical visits. ReportError for a folder without a run."""
    rows = _run(folder).query(
        "SELECT rounds.round, rounds.end_s - rounds.start_s AS seconds, bottleneck, critical, MAX(visit) AS visit "
        "FROM rounds JOIN visits ON visits.round = rounds.round AND visits.client = critical AND kind != ? "
        "GROUP BY rounds.round ORDER BY rounds.round",
        (LEFTOVER,),
    )
    return [
        CriticalVisit(row["round"] + 1, row["seconds"], row["bottleneck"], row["critical"], row["visit"])
        for row in rows
    ]


# --- texts ------------------------------------------------------------------------------------------------------------


def show_rounds(visits: Sequence[CriticalVisit], stream: IO[str] | None = None) -> None:
    """Print the rounds with their critical visits."""
    console = Console(file=stream or sys.stdout, highlight=False, markup=False)
    table = Table("round", "virtual", "bottleneck", "client", "visit")
    for visit in visits:
        numbers = str(visit.client), str(visit.visit)
        table.add_row(str(visit.round), _shown(visit.seconds), visit.bottleneck, *numbers)
    console.print(table)
    console.print("The parts of a visit: fedbr explain RUN VISIT, or fedbr explain RUN ROUND:CLIENT", soft_wrap=True)


def show(visit: VisitParts, stream: IO[str] | None = None) -> None:
    """Print a visit's parts."""
    console = Console(file=stream or sys.stdout, highlight=False, markup=False)
    where = f"visit {visit.visit}: client {visit.client} ({visit.device}, {visit.network}) in round {visit.round}"
    console.print(f"{where}, {visit.kind}", soft_wrap=True)
    waited = "The round waited for it last; " if visit.is_critical else ""
    console.print(f"{waited}the round's bottleneck: {visit.bottleneck or 'none'}", soft_wrap=True)
    table = Table("phase", "part", "seconds", "from")
    phase = ""
    for part in visit.parts:
        table.add_row(part.phase if part.phase != phase else "", part.name, _shown(part.seconds), part.source)
        phase = part.phase
    table.add_section()
    table.add_row("all", "", _shown(visit.seconds), f"from {_shown(visit.start_s)} to {_shown(visit.end_s)} of the run")
    console.print(table)
    energy = ", ".join(f"{name} {cells(JOULES, [value])[0]}" for name, value in visit.joules.items() if value)
    computed = sum(part.seconds for part in visit.parts if part.name == COMPUTING)
    watts = f"; computing: {_shown(computed)} x {visit.conditions['train_watts']:g} W" if computed else ""
    console.print(f"energy: {energy or 'none'}{watts}", soft_wrap=True)
