"""Values that papers print in tables, from one CSV file per paper, as panels; and columns that are no accuracies.

A row of a file: table, dataset, setting, row, metric, value, deviation. Metrics are ``acc@500R``, in percent after so
many rounds; ``best@500R``, in percent in the best validation round of at most so many; ``rounds@47%``, rounds to a
target; and `PRINTED_AMOUNTS`, in their units. ``1000+`` is a lower bound: 1000 rounds did not reach the target.

Some amounts are counted for a method on the paper's model, at every scale, and need no run (`PaperPanel.counts`).
Others are read in the folder of a run; those of Hessians from what ``fedbr replay --measure`` has left there.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path

from coordinator.records.store import read
from scenarios.papers.spec import BEST, PaperPanel
from scenarios.run.folder_files import MEASURED
from scenarios.run.run_folder import RunFolder

FORWARD_MACS, TRAINING_MACS = "forward MACs per example", "MACs of a training step per example"
STORED_WEIGHTS, STORED_PARAMETERS = "stored weights", "stored parameters"
WALL_SECONDS, VIRTUAL_SECONDS = "wall-clock seconds per round", "virtual seconds per round"
EIGENVALUE, TRACE = "top Hessian eigenvalue", "Hessian trace"
HESSIAN_NORM, HESSIAN_DIRECTION = "difference of clients' Hessian norms", "cosine of clients' Hessians"
HESSIANS = (EIGENVALUE, TRACE, HESSIAN_NORM, HESSIAN_DIRECTION)
HIGHEST = "highest accuracy"
SQUARED_ERROR = "mean squared error of pixels in the last 100 rounds"
UPLOADED, UPLOADED_MESSAGES = "uploaded vectors", "uploaded messages, with headers"
FACTOR = "uploads as float32 numbers over uploaded vectors"
HELD_WEIGHTS, HELD_NBYTES = "parameters of a client's model", "bytes of a client's model"
HELD_FLOPS = "FLOPs of a client's forward pass per example, as printed"
HELD_PRODUCTS = "FLOPs of a client's forward pass per example, two per multiply-accumulate"
INTERVAL_SECONDS = "seconds between two steps of the cloud, by the paper's cost model"
INTERVAL_JOULES = "joules of a client between two steps of the cloud, by the paper's cost model"
ADAPTER_UPLOAD = "bytes of an upload, by the testbed's format"
NANO_STEP, PHONE_STEP = "seconds a step on a Jetson Nano", "seconds a step on a phone"
SPLIT_UP, SPLIT_DOWN = "bytes of activations, all steps of a visit", "bytes of gradients, all steps of a visit"
MODEL_UPLOAD = "bytes of a model"
ROUND_SECONDS, NANO_WAITS = "seconds a round, by the devices' rows", "share of a round for which a Jetson Nano waits"


def wall_seconds(folder: Path) -> float | None:
    """Measured seconds per round of a run, of all its rounds, with their evaluations."""
    rows = read(folder / "ledger.sqlite", "SELECT value FROM meta WHERE key = 'summary'")
    points = RunFolder(folder).trail
    return float(json.loads(rows[0]["value"])["wall_seconds"]) / points[-1].rounds if rows and points else None


def virtual_seconds(folder: Path) -> float | None:
    """Seconds per round of a run on the virtual clock."""
    points = RunFolder(folder).trail
    return points[-1].virtual_seconds / points[-1].rounds if points else None


def hessian(name: str, folder: Path) -> float | None:
    """A value of the last measurement of a run's Hessians: of its global model, or over its clients.

    None if it has not been measured.
    """
    file = folder / MEASURED
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    value = {**found["models"].get("global", {}), **found["over_clients"]}.get(f"hessian/{name}")
    return None if value is None else float(value)


def highest_accuracy(folder: Path) -> float | None:
    """The best of a run's evaluations."""
    return RunFolder(folder).trail.best


LAST = 100
BORDERED = 32 * 32 / (28 * 28)
"""Pixels with the border that `edge.models.emnist_autoencoder` gives back without an error, over those without"""


def squared_error(folder: Path) -> float | None:
    """The mean over the evaluations of the last `LAST` rounds of a run that is judged by its RMSE."""
    points = RunFolder(folder).trail
    last = [point.score for point in points if point.score is not None and point.rounds > points[-1].rounds - LAST]
    return BORDERED * sum(score**2 for score in last) / len(last) if last else None


UPLOADS = """
    WITH sizes AS (SELECT payload, SUM(nbytes) AS nbytes FROM payload_shapes GROUP BY payload)
    SELECT COUNT(*) AS visits, SUM(bytes_up) AS messages, SUM(nbytes) AS vectors
    FROM visits JOIN sizes ON payload = up_payload"""


def uploads(name: str, folder: Path) -> float | None:
    """Bytes of all uploads that counted: of whole ``messages``, or of their ``vectors``."""
    (row,) = read(folder / "ledger.sqlite", UPLOADS)
    return None if row[name] is None else float(row[name])


def factor(folder: Path) -> float | None:
    """How many times longer the vectors of uploads would be as float32 numbers; each update has the whole model."""
    (row,) = read(folder / "ledger.sqlite", UPLOADS)
    blocks = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["blocks"]
    return row["visits"] * sum(block["nbytes"] for block in blocks) / row["vectors"] if row["visits"] else None


@dataclass(frozen=True)
class TableAmount:
    """A column of a table that is no accuracy."""

    column: str
    """Heading, with its unit"""
    read: Callable[[Path], float | None] | None = None
    """Run folder -> the amount; None for one that is counted"""
    unit: float = 1.0
    """The amount is shown in multiples of it"""
    digits: int = 4
    """Significant digits of ours"""


TABLE_AMOUNTS: Mapping[str, TableAmount] = {
    FORWARD_MACS: TableAmount("MFLOPs forward", unit=1e6),
    TRAINING_MACS: TableAmount("MFLOPs of all passes", unit=1e6),
    STORED_WEIGHTS: TableAmount("Param (M)", unit=1e6),
    STORED_PARAMETERS: TableAmount("all parameters (M)", unit=1e6),
    WALL_SECONDS: TableAmount("time (s)", wall_seconds),
    VIRTUAL_SECONDS: TableAmount("virtual time (s)", virtual_seconds),
    EIGENVALUE: TableAmount("lambda_max", partial(hessian, "eigenvalue")),
    TRACE: TableAmount("H_T", partial(hessian, "trace")),
    HESSIAN_NORM: TableAmount("H_N", partial(hessian, "H_N")),
    HESSIAN_DIRECTION: TableAmount("H_D", partial(hessian, "H_D")),
    SQUARED_ERROR: TableAmount("MSE x 1000", squared_error, unit=1e-3),
    HIGHEST: TableAmount("highest %", highest_accuracy, unit=0.01),
    UPLOADED: TableAmount("MB up", partial(uploads, "vectors"), unit=1e6),
    UPLOADED_MESSAGES: TableAmount("MB up with headers", partial(uploads, "messages"), unit=1e6),
    FACTOR: TableAmount("factor", factor),
    HELD_WEIGHTS: TableAmount("parameters (K)", unit=1e3, digits=7),
    HELD_FLOPS: TableAmount("MFLOPs", unit=1e6, digits=5),
    HELD_PRODUCTS: TableAmount("MFLOPs of products", unit=1e6, digits=5),
    HELD_NBYTES: TableAmount("MiB", unit=2**20),
    ADAPTER_UPLOAD: TableAmount("B up", digits=7),
    SPLIT_UP: TableAmount("B up", digits=8),
    SPLIT_DOWN: TableAmount("B down", digits=8),
    MODEL_UPLOAD: TableAmount("B a model", digits=6),
    NANO_STEP: TableAmount("s a step, Nano"),
    PHONE_STEP: TableAmount("s a step, phone"),
    ROUND_SECONDS: TableAmount("s a round"),
    NANO_WAITS: TableAmount("a Nano waits %", unit=0.01, digits=3),
    INTERVAL_SECONDS: TableAmount("s a cloud step"),
    INTERVAL_JOULES: TableAmount("J a client and cloud step"),
}
"""Measure -> how it is read and shown; FedAlign and pFedMB call one multiply-accumulate a FLOP"""


# --- printed values ---------------------------------------------------------------------------------------------------

FILES = Path(__file__).parent
MEASURES = {"acc": "accuracy at rounds", "best": BEST, "rounds": "rounds to accuracy"}
"""Metric -> measure"""
PRINTED_AMOUNTS = {
    "lambda_max": (EIGENVALUE, 1.0),
    "H_T": (TRACE, 1.0),
    "H_N": (HESSIAN_NORM, 1.0),
    "H_D": (HESSIAN_DIRECTION, 1.0),
    "MFLOPs": (FORWARD_MACS, 1e6),
    "GFLOPs": (FORWARD_MACS, 1e9),
    "params(M)": (STORED_WEIGHTS, 1e6),
    "seconds": (WALL_SECONDS, 1.0),
    "highest": (HIGHEST, 0.01),
    "MSE(x1000)": (SQUARED_ERROR, 1e-3),
    "uploaded(MB)": (UPLOADED, 1e6),
    "factor": (FACTOR, 1.0),
    "weights(K)": (HELD_WEIGHTS, 1e3),
    "FLOPs(M)": (HELD_FLOPS, 1e6),
    "space(MiB)": (HELD_NBYTES, 2**20),
}
"""Metric -> (measure, unit in which the file has it)"""


@dataclass(frozen=True)
class Printed:
    """One printed value; accuracies, targets and deviations are fractions."""

    dataset: str
    setting: str
    row: str
    metric: str
    value: float
    is_bound: bool
    deviation: float | None

    @property
    def key(self) -> str:
        """Key of its setting: ``CIFAR-100``, ``Dir(0.3) 100 clients 5% VGG-9`` is ``cifar100-dir0.3-100-vgg-9``."""
        words = re.sub(r" clients \d+%", "", self.setting)
        return f"{self.dataset.replace('-', '')} {words}".lower().translate(str.maketrans(" ", "-", "()"))


def printed(paper: str, table: str) -> list[Printed]:
    """The values of one table, in the order of the file, whose lines that begin with # name its source."""
    with (FILES / f"{paper}.csv").open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        rows = [row for row in csv.DictReader(lines) if row["table"] == table]
    found = []
    for row in rows:
        metric, deviation = row["metric"], row["deviation"]
        # What values of the file are divided by; in decimal, so that 32.03 % is 0.3203.
        unit = Decimal(1 if metric.startswith("rounds@") else 100)
        if metric in PRINTED_AMOUNTS:
            unit = 1 / Decimal(str(PRINTED_AMOUNTS[metric][1]))
        value = float(Decimal(row["value"].removesuffix("+")) / unit)
        own = float(Decimal(deviation) / unit) if deviation else None
        is_bound = row["value"].endswith("+")
        found.append(Printed(row["dataset"], row["setting"], row["row"], metric, value, is_bound, own))
    return found


def panels(values: list[Printed], rounds: float = 0.0) -> Iterator[PaperPanel]:
    """One panel per setting and metric, in the order of the values.

    ``rounds``: of the runs that amounts are measured in.
    """
    for key in dict.fromkeys(value.key for value in values):
        of_setting = [value for value in values if value.key == key]
        for metric in dict.fromkeys(value.metric for value in of_setting):
            of_metric = [value for value in of_setting if value.metric == metric]
            yield _panel(metric, of_metric, rounds)


def _panel(metric: str, values: list[Printed], rounds: float) -> PaperPanel:
    """The panel of one metric; ``rounds``: of the runs that an amount is measured in."""
    kind, _, at = metric.partition("@")
    first = values[0]
    if metric in PRINTED_AMOUNTS:
        measure, limit, column = PRINTED_AMOUNTS[metric][0], rounds, TABLE_AMOUNTS[PRINTED_AMOUNTS[metric][0]].column
    else:
        measure, column = MEASURES[kind], "best round" if kind == "best" else at.replace("%", " %")
        limit = float(at.removesuffix("%")) / 100 if kind == "rounds" else float(at.removesuffix("R"))
    return PaperPanel(
        name=f"{first.key}@{at or metric}",
        title=f"{first.dataset}, {first.setting}",
        setting=first.key,
        measure=measure,
        limit=limit,
        published={value.row: value.value for value in values},
        beyond=frozenset(value.row for value in values if value.is_bound),
        deviations={value.row: value.deviation for value in values if value.deviation is not None},
        column=column,
    )
