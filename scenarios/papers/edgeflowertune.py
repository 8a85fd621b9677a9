"""EdgeFlowerTune's log: three Jetson Nanos and five phones that fine-tune Gemma-3 270M, and what other rules would do.

Edge-Intelligence-Lab, https://github.com/Edge-Intelligence-Lab/EdgeFlowerTune, docs/original: LoRA on q, k, v and o in
fp32, ten steps a round of 8 x 64 tokens of WikiText, 100 rounds of all eight devices. Bytes follow from shapes; seconds
of Nanos and phones are those of their rows (`costmodel.fleet.devices`), which were fitted to these steps.
"""

from __future__ import annotations

from functools import partial
from statistics import fmean

from costmodel.fleet.devices import devices
from edge.protocol.payload import ITEM_NBYTES
from scenarios.papers.published import ADAPTER_UPLOAD, NANO_STEP, NANO_WAITS, PHONE_STEP, ROUND_SECONDS, TABLE_AMOUNTS
from scenarios.papers.spec import (
    PAPER,
    SCALES,
    SMALL,
    TINY,
    PaperFigure,
    PaperLimit,
    PaperPanel,
    PaperRow,
    TablePart,
    setting_of,
)

SOURCE = "Edge-Intelligence-Lab, EdgeFlowerTune, docs/original, 2026"
SCENARIO = "phone-keyboard"
NANO, PHONE = "jetson-nano", "snapdragon-778g"

# --- the testbed, by arithmetic ---------------------------------------------------------------------------------------

LAYERS, WIDTH, HIDDEN, VOCABULARY = 18, 640, 2048, 262_144
QUERIES, KEYS = 1024, 256
"""Numbers of all heads of queries and outputs, and of keys and of values"""
SHAPES = ((WIDTH, QUERIES), (WIDTH, KEYS), (WIDTH, KEYS), (QUERIES, WIDTH))
"""q, k, v and o: (inputs, outputs)"""
FROZEN = LAYERS * (sum(inputs * outputs for inputs, outputs in SHAPES) + 3 * WIDTH * HIDDEN) + VOCABULARY * WIDTH
"""Weights of matrices, the embedding's once"""
BATCH, TOKENS, STEPS = 8, 64, 10
HEADER_NBYTES = 80
"""A header of each array of an adapter in an upload: 2,960,640 B of rank 8 are 2,949,120 and 144 headers"""
NANOS, PHONES = 3, 5
RATES = {NANO: 1e9, PHONE: 400e6}
"""Bit/s of the devices' links: Ethernet and Wi-Fi"""


def trained(rank: int) -> int:
    """Weights of all adapters of a rank."""
    return LAYERS * rank * sum(inputs + outputs for inputs, outputs in SHAPES)


def upload(rank: int) -> int:
    """Bytes of an upload of adapters of a rank, in the testbed's format."""
    return ITEM_NBYTES * trained(rank) + 2 * len(SHAPES) * LAYERS * HEADER_NBYTES


def step_seconds(device: str, rank: int) -> float:
    """Seconds of one step: a token takes 4 FLOPs for each frozen weight, whose gradient nobody needs, 6 for others."""
    row = devices()[device]
    return BATCH * TOKENS * (4 * FROZEN + 6 * trained(rank)) / row.throughput("attention") + row.step_seconds


def visit_seconds(device: str, rank: int) -> float:
    """Seconds of ten steps between two messages at the rate of the link."""
    return STEPS * step_seconds(device, rank) + 2 * 8 * upload(rank) / RATES[device]


# --- rows -------------------------------------------------------------------------------------------------------------

RANK, PHONE_RANK, ALONE, CUT, BUFFER = 8, 4, "Nanos alone", "deadline", "FedBuff"
BY_SPEED = "ranks by speed"
BUFFERED = 3
ROUNDS = {PAPER: 100, SMALL: 16, TINY: 8}
"""Scale -> rounds of the row in which all wait; other rows have the same time"""
TINY_VISIT = 2.7
"""Virtual seconds of a phone's visit at the scale tiny, in which all wait for it"""
NANO_VISIT = 0.27
LIMITS = {PAPER: 171_200.0, SMALL: ROUNDS[SMALL] * TINY_VISIT, TINY: ROUNDS[TINY] * TINY_VISIT}
CUTS = {PAPER: 150.0, SMALL: 2 * NANO_VISIT, TINY: 2 * NANO_VISIT}
"""Scale -> seconds after which a round ends without phones"""


def _in_time(row: PaperRow, steps: float) -> PaperRow:
    """The row with ``steps`` times as many rounds as that in which all wait, as many as its time has."""
    scaled = {
        scale: TablePart({"rounds.max": round(rounds * steps), "eval.every": max(1, round(steps))})
        for scale, rounds in ROUNDS.items()
    }
    return PaperRow(row.method, row.overrides, note=row.note, scaled=scaled)


ROWS = {
    "rank 4": _in_time(PaperRow("fedavg", {"adapter.rank": 4}), 1),
    "rank 8": _in_time(PaperRow("fedavg", {"adapter.rank": 8}), 1),
    "rank 16": _in_time(PaperRow("fedavg", {"adapter.rank": 16}), 1),
    BY_SPEED: _in_time(
        PaperRow(
            "flexlora",
            {"adapter.rank": 8, "adapter.alpha": 4.0, "submodel.rate": {NANO: 1.0, PHONE: 0.5}},
            note="phones have rank 4",
        ),
        1,
    ),
    ALONE: _in_time(
        PaperRow(
            "fedavg",
            {"data.clients": NANOS, "rounds.participants": NANOS, "fleet.devices": {NANO: 1.0}},
            note="without the phones and their data, and judged on that of the Nanos",
        ),
        10.5,
    ),
    CUT: PaperRow(
        "fedavg",
        {"rounds.policy": "deadline"},
        note="a round ends before any phone has ended",
        scaled={
            scale: TablePart(
                {
                    "rounds.deadline": f"{CUTS[scale]:g} s",
                    "rounds.max": round(LIMITS[scale] / CUTS[scale]),
                    "eval.every": 5,
                }
            )
            for scale in SCALES
        },
    ),
    BUFFER: _in_time(
        PaperRow(
            "fedavg",
            {"rounds.policy": "fedbuff", "rounds.buffer": BUFFERED},
            note=f"a step for each {BUFFERED} updates",
        ),
        12,
    ),
}
RANKS = {"rank 4": 4, "rank 16": 16}
"""Row -> rank, where it is not `RANK`"""


def round_seconds(row: str) -> float:
    """Seconds from one server step to the next."""
    rank = RANKS.get(row, RANK)
    nano, phone = visit_seconds(NANO, rank), visit_seconds(PHONE, PHONE_RANK if row == BY_SPEED else rank)
    if row == ALONE:
        return nano
    if row == CUT:
        return CUTS[PAPER]
    return BUFFERED / (NANOS / nano + PHONES / phone) if row == BUFFER else max(nano, phone)


def waits(row: str) -> float:
    """The share of a round for which a Nano has nothing to do."""
    return 0.0 if row == BUFFER else 1 - visit_seconds(NANO, RANKS.get(row, RANK)) / round_seconds(row)


def counted(measure: str, of: PaperRow) -> float:
    """An amount of a row of the table."""
    row = next(name for name, each in ROWS.items() if each is of)
    rank = RANKS.get(row, RANK)
    return {
        ADAPTER_UPLOAD: lambda: float(upload(rank)),
        NANO_STEP: lambda: step_seconds(NANO, rank),
        PHONE_STEP: lambda: step_seconds(PHONE, PHONE_RANK if row == BY_SPEED else rank),
        ROUND_SECONDS: lambda: round_seconds(row),
        NANO_WAITS: lambda: waits(row),
    }[measure]()


# --- the log ----------------------------------------------------------------------------------------------------------

NANO_STEPS, PHONE_STEPS = (11.3659, 14.1289, 11.8274), (170.1887, 174.3541, 170.3717, 170.5589, 170.6399)
NANO_ROUNDS, PHONE_ROUNDS = (113.735, 141.525, 118.561), (1701.893, 1743.547, 1703.723, 1705.596, 1706.405)
LOGGED = {
    ADAPTER_UPLOAD: {"rank 4": 1_486_080.0, "rank 8": 2_960_640.0, "rank 16": 5_909_760.0},
    NANO_STEP: {"rank 8": round(fmean(NANO_STEPS), 2)},
    PHONE_STEP: {"rank 8": round(fmean(PHONE_STEPS), 1)},
    ROUND_SECONDS: {"rank 8": round(max(PHONE_ROUNDS), 1)},
    NANO_WAITS: {"rank 8": round(1 - fmean(NANO_ROUNDS) / max(PHONE_ROUNDS), 3)},
}
"""Measure -> row -> what the log has, means over devices of a kind; a round ends with the slowest phone"""
ACCURACY = "accuracy at time"
GEMMA = TablePart(
    {
        "model.width": WIDTH,
        "model.options": {"layers": LAYERS, "heads": 4, "kv_heads": 1, "head_width": 256, "hidden": HIDDEN},
        "adapter.train": ["head"],
        "train.batch": BATCH,
    },
    "a decoder of Gemma's shape with random weights and characters of Shakespeare's roles in place of a pretrained one "
    "and WikiText",
)
SMALLER = TablePart(
    {"train.batch": 64},
    "a decoder of two layers of width 32, random, of which embedding and head learn beside the adapters, on characters "
    "of Shakespeare's roles; batches of 64, so that a phone's step takes 11 times as long as a Nano's",
)
FLEET = TablePart(
    {
        "data.clients": NANOS + PHONES,
        "rounds.participants": NANOS + PHONES,
        "train.local_steps": STEPS,
        "train.instructions": "native",
        "fleet.devices": [NANO] * NANOS + [PHONE] * PHONES,
        "fleet.networks": {"wifi-5": 1.0},
        "fleet.jitter": 0.0,
    },
    inferred="all devices on Wi-Fi 5",
)
NOTES = (
    "Ranks hardly change a phone's step, since the frozen base takes 99 % of it: ranks by speed save bytes, no time. "
    "What the phones cost is their wait: alone, the Nanos make 14 rounds in the time of one, without the phones' data.",
    "Rows of devices were fitted to the means of WikiText's steps. Steps that they were not fitted to, MMLU and three "
    "phones with one sequence of 128 tokens, are in `fedbr list devices`: 11 and 2 % off on MMLU, and a fifth of what "
    "the three phones took, which no FLOPs explain.",
    "Splitting the model, whose rounds the log also has, is another table's.",
)


def _panel(measure: str) -> PaperPanel:
    column = TABLE_AMOUNTS[measure].column
    counts = partial(counted, measure)
    return PaperPanel(column, "the testbed", "log", measure, 100.0, LOGGED[measure], column=column, counts=counts)


FIGURES = {
    "edgeflowertune": PaperFigure(
        "EdgeFlowerTune: LoRA of Gemma-3 270M on three Jetson Nanos and five phones",
        SOURCE,
        ROWS,
        {
            "log": {
                scale: setting_of(
                    SCENARIO,
                    [FLEET, GEMMA if scale == PAPER else SMALLER],
                    {}
                    if scale == PAPER
                    else {ACCURACY: PaperLimit(LIMITS[scale], "the time of as many rounds of all")},
                )
                for scale in SCALES
            }
        },
        (
            *map(_panel, (ADAPTER_UPLOAD, NANO_STEP, PHONE_STEP, ROUND_SECONDS, NANO_WAITS)),
            PaperPanel("accuracy", "the testbed", "log", ACCURACY, LIMITS[PAPER], {}, column="in the same time"),
        ),
        NOTES,
        is_table=True,
    )
}
