"""The stages of a run's cost: the bytes that its paper counts, those that really travel, seconds and joules.

A visit that counted has its payload as float32 numbers, the same as its codec encodes it, and the header of its
message. Visits that did not count have bytes alone, up to their cut: they are waste, and no part of a payload.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.records.schema import PHASES
from coordinator.rounds import amounts
from coordinator.rounds.split import STEP_SLOTS
from costmodel.network.tcp import wire_bits
from edge.protocol.better import LOWER
from edge.protocol.payload import ACTIVATIONS, GRADIENTS, ITEM_NBYTES, MODEL, STEPS
from scenarios.config.tables import TomlValue
from scenarios.report import labels
from scenarios.report.columns import BYTES, JOULES, SECONDS
from scenarios.report.readings import Reading, of_field
from scenarios.report.run_reader import RecordedRun, RunGroup
from scenarios.run.visits import SUMS, quoted

CODEC = "codec."
CHAINS = (f"{CODEC}up", f"{CODEC}down", f"{CODEC}steps")
"""Beginnings of the keys of a scenario that are about codecs, and of those that name their stages"""


@dataclass(frozen=True)
class SlotBytes:
    """The vectors of one slot that travelled one way."""

    raw: int = 0
    """As float32 numbers"""
    encoded: int = 0

    def __add__(self, other: SlotBytes) -> SlotBytes:
        return SlotBytes(self.raw + other.raw, self.encoded + other.encoded)


@dataclass(frozen=True)
class StageTotals:
    """The amounts that a run had spent at the end of a round, stage by stage."""

    nominal_bytes: float
    """`nominal_rule`"""
    by_slot: Mapping[tuple[str, str], SlotBytes]
    """(slot, ``down`` or ``up``) -> its bytes in visits that counted"""
    message_bytes: int
    """Bytes of the messages of these visits, headers included"""
    wasted_bytes: int
    """Bytes of visits that did not count"""
    virtual_seconds: float
    visit_seconds: float
    """Seconds of all visits, one after another"""
    computing_seconds: float
    """Seconds of these between download and upload: of training, and of encoding on the device"""
    contention_seconds: float
    """Seconds of these that were lost because others used the same links"""
    joules: float
    compute: float
    """Joules while clients computed, received, sent, or were idle"""
    receive: float
    send: float
    idle: float
    encoding_seconds: float | None = 0.0
    """Virtual seconds by which the run would be shorter if codecs took the devices no time; None if it is unknown"""
    encoding_joules: float | None = 0.0
    """The same of the joules"""
    secure_bytes: int | None = None
    """Bytes of the phases of secure aggregation, and by which masked numbers are longer than float32; shares that come
    with a model are in the headers of messages. None in other runs"""
    whole_moments_bytes: int | None = None
    """The float32 payload if second moments travelled whole, as FedAdamW's published code sends them, and not as the
    mean of each block, as its paper says (``train.optimizer_state = "mean"``); None in other runs"""

    @property
    def payload_bytes(self) -> int:
        return sum(slot.raw for slot in self.by_slot.values())

    @property
    def encoded_bytes(self) -> int:
        return sum(slot.encoded for slot in self.by_slot.values())

    @property
    def wire_bytes(self) -> float:
        """All messages, waste included, with the headers of Ethernet, IP and TCP; acknowledgements are not counted."""
        return wire_bits(float(self.message_bytes + self.wasted_bytes)) / 8


NOMINAL: Reading[StageTotals] = of_field("nominal_bytes", "nominal bytes", BYTES, LOWER)
WHOLE_MOMENTS: Reading[StageTotals] = of_field("whole_moments_bytes", "  with whole second moments", BYTES, LOWER)
PAYLOAD: Reading[StageTotals] = of_field("payload_bytes", "float32 payload", BYTES, LOWER)
ENCODED: Reading[StageTotals] = of_field("encoded_bytes", "encoded payload", BYTES, LOWER)
SECURE: Reading[StageTotals] = of_field("secure_bytes", "  secure aggregation", BYTES, LOWER)
MESSAGES: Reading[StageTotals] = of_field("message_bytes", "with headers", BYTES, LOWER)
WASTED: Reading[StageTotals] = of_field("wasted_bytes", "wasted", BYTES, LOWER)
WIRE: Reading[StageTotals] = of_field("wire_bytes", "on the wire", BYTES, LOWER)
TIME: Reading[StageTotals] = of_field(amounts.VIRTUAL_SECONDS.field, amounts.VIRTUAL_SECONDS.heading, SECONDS, LOWER)
ENERGY: Reading[StageTotals] = of_field(amounts.ENERGY.field, amounts.ENERGY.heading, JOULES, LOWER)
STAGES: Sequence[Reading[StageTotals]] = (
    *(NOMINAL, PAYLOAD, WHOLE_MOMENTS, ENCODED, SECURE, MESSAGES, WASTED, WIRE, TIME),
    of_field("encoding_seconds", "  encoding", SECONDS, LOWER),
    of_field("visit_seconds", "time of visits", SECONDS, LOWER),
    of_field("computing_seconds", "  computing", SECONDS, LOWER),
    of_field("contention_seconds", "  contention", SECONDS, LOWER),
    ENERGY,
    *(of_field(part, f"  {part}", JOULES, LOWER) for part in ("compute", "receive", "send", "idle")),
    of_field("encoding_joules", "  encoding", JOULES, LOWER),
)
"""In the order in which one follows from another; parts are indented"""
CHAIN = (NOMINAL, ENCODED, MESSAGES, TIME, ENERGY)
"""The stages of which a saving is claimed"""
OF_BYTES = (NOMINAL, PAYLOAD, ENCODED, MESSAGES, WIRE)


def totals(run: RecordedRun, rounds: int | None = None) -> StageTotals:
    """The amounts that the run had spent when so many of its rounds had ended, by default all. ReportError."""
    rows = run.rounds[:rounds]
    vectors, whole = defaultdict[str, list[tuple[str, SlotBytes]]](list), defaultdict[str, int](int)
    sends_means = (run.scenario.get("train") or {}).get("optimizer_state") == "mean"
    is_secure = (run.scenario.get("privacy") or {}).get("secagg") is not None
    sizes = run.description.layout.sizes if sends_means or is_secure or codecs(run.settings) else {}
    for row in run.query("SELECT payload, slot, key, nbytes FROM payload_shapes"):
        # Vectors that no block names travel as they are; those of steps have the name of a block, and not its numbers.
        size = None if row["slot"] in STEP_SLOTS else sizes.get(row["key"])
        is_mean = sends_means and row["slot"] not in (MODEL, STEPS) and row["nbytes"] == ITEM_NBYTES
        raw = row["nbytes"] if size is None or is_mean else ITEM_NBYTES * size
        vectors[row["payload"]].append((row["slot"], SlotBytes(raw, row["nbytes"])))
        whole[row["payload"]] += raw if size is None else ITEM_NBYTES * size
    by_slot = defaultdict[tuple[str, str], SlotBytes](SlotBytes)
    message_bytes = wasted_bytes = whole_moments = 0
    computing, contention, parts = 0.0, 0.0, dict.fromkeys(("idle", "compute", "receive", "send"), 0.0)
    for row in run.query(
        "SELECT down_payload, up_payload, COUNT(*) AS visits, SUM(bytes_down + bytes_up) AS nbytes, "
        f"TOTAL(compute_end_s - down_end_s) AS computing, TOTAL(shared_s) AS shared, SUM(samples) AS samples, {SUMS} "
        "FROM visits WHERE round < ? GROUP BY down_payload, up_payload",
        [len(rows)],
    ):
        computing += row["computing"]
        contention += row["shared"]
        for part in parts:
            parts[part] += row[part]
        if not row["down_payload"]:
            wasted_bytes += row["nbytes"]
            continue
        message_bytes += row["nbytes"]
        for direction in ("down", "up"):
            whole_moments += row["visits"] * whole[row[f"{direction}_payload"]]
            for slot, one in vectors[row[f"{direction}_payload"]]:
                times, raw = row["visits"], row["visits"] * one.raw
                if slot in (ACTIVATIONS, GRADIENTS):
                    raw = ITEM_NBYTES * row["samples"] * _numbers_of_step(run, slot, direction)
                by_slot[slot, direction] += SlotBytes(raw, times * one.encoded)
    secure_bytes = None
    if is_secure:
        query = f"SELECT TOTAL(bytes_down + bytes_up) FROM visits WHERE kind IN ({quoted(PHASES)}) AND round < ?"
        secure_bytes = int(run.query(query, [len(rows)])[0][0])
        secure_bytes += sum(slot.encoded - slot.raw for slot in by_slot.values())
    return StageTotals(
        sum(row.nominal_bytes for row in rows),
        dict(by_slot),
        message_bytes,
        wasted_bytes,
        rows[-1].end_s if rows else 0.0,
        sum(row.busy_s for row in rows),
        computing,
        contention,
        sum(row.joules for row in rows),
        **parts,
        secure_bytes=secure_bytes,
        whole_moments_bytes=whole_moments if sends_means else None,
    )


def _numbers_of_step(run: RecordedRun, slot: str, direction: str) -> int:
    """Numbers an example of the messages of steps in one slot and direction, of a model that is cut."""
    layout, of_block = run.description.layout, run.description.cuts
    # Outputs of the front go up and their gradient down; those of the last server block, if any, the other way.
    is_of_front = (slot, direction) in ((ACTIVATIONS, "up"), (GRADIENTS, "down"))
    return int(of_block[layout.names.index(run.scenario["split"]["after"]) if is_of_front else -2])


def codecs(settings: labels.Settings) -> dict[str, TomlValue]:
    """Key -> the chain of stages by which a scenario encodes vectors; empty if they travel as they are."""
    return {key: chain for key, chain in settings.items() if key.startswith(CHAINS) and chain}


def nominal_rule(group: RunGroup) -> str:
    """How the nominal bytes of a group are counted, in words."""
    if group.first.is_app:
        return "none, since a Flower app has no paper's count"
    return "Eq. 3 of the FedBR paper" if group.first.shows_nominal else "two models a visit"
