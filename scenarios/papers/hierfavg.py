"""HierFAVG's table: seconds and joules until an accuracy, by local steps and rounds of the edge; and its cost model.

Liu, Zhang, Song and Letaief, Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020,
https://arxiv.org/abs/1905.06641. kappa_1 local steps are followed by an average in each edge server, and kappa_2 of
these by one in the cloud; rows have kappa_1 kappa_2 = 60. Settings are those of the authors' code
(https://github.com/LuminLiu/HierFL), which has neither time nor energy. No printed value could be read, so none is
here.
"""

from __future__ import annotations

from functools import partial
from math import log2

from coordinator.rounds.amounts import ENERGY, VIRTUAL_SECONDS
from edge.protocol.payload import ITEM_NBYTES
from scenarios.papers.published import INTERVAL_JOULES, INTERVAL_SECONDS, TABLE_AMOUNTS
from scenarios.papers.spec import (
    PAPER,
    SCALES,
    SMALL,
    TINY,
    PaperFigure,
    PaperLimit,
    PaperPanel,
    PaperRow,
    PaperSetting,
    TablePart,
    setting_of,
)

SOURCE = (
    "Liu, Zhang, Song and Letaief, Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020; settings of the "
    "authors' code"
)
SCENARIO = "hierfavg-mnist"

# --- the cost model ---------------------------------------------------------------------------------------------------

BANDWIDTH_HZ, TRANSMIT_WATTS, CHANNEL_GAIN, NOISE_WATTS = 1e6, 0.5, 1e-8, 1e-10
UPLINK_BITS_PER_SECOND = BANDWIDTH_HZ * log2(1 + TRANSMIT_WATTS * CHANNEL_GAIN / NOISE_WATTS)
"""A client's rate to its edge server"""
CLOUD_TIMES = 10
"""An upload from an edge server to the cloud takes so many times as long as one from a client to its edge server"""
CYCLES_PER_BIT, CYCLES_PER_SECOND = 20, 1e9
COMPUTE_WATTS = 1e-28 * CYCLES_PER_SECOND**3
"""Not read in the paper: kappa f^3 with a constant that is usual in such models"""
BITS_PER_NUMBER = 8
"""Not read in the paper: numbers of training data are the bytes of pixels"""


def message(weights: int) -> tuple[float, float]:
    """(seconds, joules of the client) of an upload of so many weights of 32 bits to the edge server."""
    seconds = 8 * ITEM_NBYTES * weights / UPLINK_BITS_PER_SECOND
    return seconds, TRANSMIT_WATTS * seconds


def computing(steps: int, batch: int, numbers: int) -> tuple[float, float]:
    """(seconds, joules) of local steps on batches of examples of so many numbers."""
    seconds = steps * batch * numbers * BITS_PER_NUMBER * CYCLES_PER_BIT / CYCLES_PER_SECOND
    return seconds, COMPUTE_WATTS * seconds


MNIST_WEIGHTS, MNIST_NUMBERS, BATCH = 21_840, 28 * 28, 20


def interval(local_steps: int, edge_rounds: int) -> dict[str, float]:
    """Measure -> amount between two steps of the cloud on MNIST: seconds, and joules of one client."""
    steps, upload = computing(local_steps, BATCH, MNIST_NUMBERS), message(MNIST_WEIGHTS)
    return {
        INTERVAL_SECONDS: edge_rounds * (steps[0] + upload[0]) + CLOUD_TIMES * upload[0],
        INTERVAL_JOULES: edge_rounds * (steps[1] + upload[1]),
    }


# --- rows and settings ------------------------------------------------------------------------------------------------

KAPPAS = ((60, 1), (30, 2), (15, 4), (6, 10))
"""(local steps, rounds of the edge)"""
CLOUD_STEPS = {PAPER: 100, SMALL: 20, TINY: 20}
"""Scale -> steps of the cloud; 100 in the authors' code"""
LOCAL_STEPS = {PAPER: 60, SMALL: 60, TINY: 20}
"""Scale -> kappa_1 kappa_2, local steps between two steps of the cloud"""
TARGETS = {PAPER: 0.85, SMALL: 0.85, TINY: 0.4}
WHY = {SMALL: "", TINY: "a lower target, since digits have few examples"}
UNTIL = {"time to accuracy": VIRTUAL_SECONDS.name, "joules to accuracy": ENERGY.name}
IID, NON_IID = "edge-IID", "edge-NIID"
ONE_CLASS = "one class a client and 100 steps of the cloud, as in the authors' code; the targets are ours"
EQUAL = "clients have 1,084 images of one class in place of 1,200 of mostly one; dropout is left out"
ALIKE = "edge servers have two classes in place of five"
PARTS = {
    PAPER: TablePart(changed=EQUAL, inferred=ONE_CLASS),
    SMALL: TablePart(changed=f"{EQUAL}; 20 steps of the cloud in place of 100", inferred=ONE_CLASS),
    TINY: TablePart(
        {
            "data.name": "digits",
            "data.clients": 20,
            "rounds.participants": 20,
            "model.name": "digits-cnn",
            "fleet.tiers.count": 2,
            "train.lr": 0.1,
        },
        "digits (8x8) and digits-cnn in place of MNIST; two edge servers of ten clients in place of five; rate 0.1 in "
        "place of 0.01; 20 steps of the cloud in place of 100",
        "one class a client, as in the authors' code; the targets are ours",
    ),
}
"""Scale -> its part; ten clients of ten classes in pairs are five classes for each of two edge servers"""


def _setting(edges: str, scale: str) -> PaperSetting:
    assign = "mixed" if edges == IID else "alike"
    differs = ALIKE if edges == NON_IID and scale != TINY else ""
    parts = [PARTS[scale], TablePart({"fleet.tiers.assign": assign}, differs)]
    limits = {measure: PaperLimit(TARGETS[scale], WHY[scale]) for measure in UNTIL if scale != PAPER}
    return setting_of(SCENARIO, parts, limits)


def _row(local_steps: int, edge_rounds: int) -> PaperRow:
    """The global model is evaluated after each step of the cloud, and the rate falls with each round of the edge."""

    def part(scale: str) -> TablePart:
        rounds, steps = CLOUD_STEPS[scale] * edge_rounds, LOCAL_STEPS[scale] // edge_rounds
        fewer = {"train.local_steps": steps} if steps < local_steps else {}
        changed = f"{steps} local steps in place of {local_steps}" if fewer else ""
        return TablePart({**fewer, "rounds.max": rounds, "eval.every": edge_rounds}, changed)

    kappas = {"train.local_steps": local_steps, "tiers.interval": edge_rounds}
    return PaperRow("fedavg", kappas, scaled={scale: part(scale) for scale in SCALES})


# --- the table --------------------------------------------------------------------------------------------------------


def _counted(measure: str, row: PaperRow) -> float:
    steps, rounds = row.overrides["train.local_steps"], row.overrides["tiers.interval"]
    assert isinstance(steps, int) and isinstance(rounds, int), row
    return interval(steps, rounds)[measure]


def _panels(edges: str) -> list[PaperPanel]:
    key = edges.lower()

    def panel(measure: str, column: str) -> PaperPanel:
        is_counted = measure in TABLE_AMOUNTS
        counts = partial(_counted, measure) if is_counted else None
        limit = float(CLOUD_STEPS[PAPER]) if is_counted else TARGETS[PAPER]
        name, title = f"{key}@{column}", f"MNIST, {edges}"
        return PaperPanel(name, title, key, measure, limit, {}, column=column, is_lost=not is_counted, counts=counts)

    return [
        *(panel(measure, column) for measure, column in UNTIL.items()),
        *(panel(measure, TABLE_AMOUNTS[measure].column) for measure in (INTERVAL_SECONDS, INTERVAL_JOULES)),
    ]


NOTES = (
    "The paper's table of seconds and joules until an accuracy could not be read, nor its targets: no value of it is "
    "here. Joules are those of all clients together.",
    "By the cost model a client uploads at 1 MHz x log2(1 + 0.5 W x 1e-8 / 1e-10 W) = 5.672 Mbit/s, which takes 0.1232 "
    "s and 0.0616 J for 21,840 weights, and 33.01 s and 16.51 J for the 5,852,170 of the network for CIFAR-10; an edge "
    "server needs ten times as long to the cloud. Local steps take 20 cycles a bit at 1 GHz. That a pixel has 8 bits, "
    "that computing draws 1e-28 f^3 = 0.1 W, and that downloads are free is assumed.",
    "In row 60/1, FedAvg, clients reach the cloud through their edge servers, too.",
)


FIGURES = {
    "hierfavg:2": PaperFigure(
        "HierFAVG, Table II: seconds and joules until an accuracy on MNIST",
        SOURCE,
        {f"{steps}/{rounds}": _row(steps, rounds) for steps, rounds in KAPPAS},
        {edges.lower(): {scale: _setting(edges, scale) for scale in SCALES} for edges in (IID, NON_IID)},
        tuple(panel for edges in (IID, NON_IID) for panel in _panels(edges)),
        NOTES,
        is_table=True,
    )
}
