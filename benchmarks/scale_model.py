"""Where one coordinator ends: the cost of a round, fitted to measured rounds, and the figure of docs/evidence/scale.md.

A round's CPU time at the coordinator is

    a + b visits + c machines + d (bytes sent and received)

fitted by least squares with no negative coefficient. Bytes per machine are one model down and one partial sum up, with
eight bytes per parameter; what visits add is in the fit of the bytes per visit. A round of k visits of t seconds per
worker then takes

    the larger of (k t, b visits) + the larger of (a + c machines + d bytes, the bytes' time on the coordinator's link)

since visits are handled while others train, but the model goes down before the first visit begins, and sums go up after
the last has ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

SUM_FACTOR = 2
"""Bytes of a partial sum, int64, to those of a model, float32."""
RATES = np.geomspace(1e8, 1e11, 40)
MOST = 100_000


@dataclass(frozen=True)
class Row:
    """The median round of a setting."""

    link: str
    agents: int
    width: int
    visits: int
    seconds: float
    perfect: float
    cpu_seconds: float
    nbytes_sent: float
    nbytes_received: float
    rss: float
    model_nbytes: int
    """Bytes that a client is charged for its download: the model, and some hundred bytes."""

    def __str__(self) -> str:
        return (
            f"| {self.link} | {self.model_nbytes / 1e3:,.0f} kB | {self.agents} | {self.visits} | {self.seconds:.3f} s "
            f"| {self.perfect / self.seconds:.1%} | {self.nbytes_sent / 1e6:.2f} MB "
            f"| {self.nbytes_received / 1e6:.2f} MB | {self.cpu_seconds / self.visits * 1e3:.3f} ms "
            f"| {self.rss / 1e6:,.0f} MB |"
        )


@dataclass(frozen=True)
class CoordinatorCost:
    """CPU seconds of a round: constant, per visit, per machine, per byte; and bytes per visit."""

    constant: float
    per_visit: float
    per_machine: float
    per_byte: float
    nbytes_per_visit: float

    def nbytes(self, machines: int, visits: int, model_nbytes: int) -> float:
        """Bytes that the coordinator sends and receives in a round."""
        return machines * (1 + SUM_FACTOR) * model_nbytes + visits * self.nbytes_per_visit

    def cpu_seconds(self, machines: int, visits: int, model_nbytes: int) -> float:
        """CPU time of a round."""
        nbytes = self.nbytes(machines, visits, model_nbytes)
        return self.constant + self.per_visit * visits + self.per_machine * machines + self.per_byte * nbytes

    def efficiency(
        self, machines: int, workers: int, visits_each: int, visit_seconds: float, model_nbytes: int, rate: float
    ) -> float:
        """Perfect time of a round over its time; ``rate``: of the coordinator's link, in bit/s each way."""
        visits = machines * workers * visits_each
        perfect, of_visits = visits_each * visit_seconds, self.per_visit * visits
        link = machines * (1 + SUM_FACTOR) * model_nbytes * 8 / rate
        others = self.cpu_seconds(machines, visits, model_nbytes) - of_visits
        return perfect / (max(perfect, of_visits) + max(others, link))

    def most_machines(
        self, workers: int, visits_each: int, visit_seconds: float, model_nbytes: int, rate: float, least: float = 0.9
    ) -> int:
        """Machines up to which the efficiency is at least ``least``."""
        low, high = 0, 1
        while self.efficiency(high, workers, visits_each, visit_seconds, model_nbytes, rate) >= least:
            low, high = high, 2 * high
            if high > 1 << 20:
                return low
        while high - low > 1:
            middle = (low + high) // 2
            enough = self.efficiency(middle, workers, visits_each, visit_seconds, model_nbytes, rate) >= least
            low, high = (middle, high) if enough else (low, middle)
        return low


def fit(rows: Sequence[Row]) -> tuple[CoordinatorCost, float]:
    """The cost, and the largest relative error of the fit's CPU time. Each round counts the same, whatever its size."""
    visits = np.array([each.visits for each in rows], float)
    models = np.array([each.agents * (1 + SUM_FACTOR) * each.model_nbytes for each in rows], float)
    nbytes = np.array([each.nbytes_sent + each.nbytes_received for each in rows])
    cpu = np.array([each.cpu_seconds for each in rows])
    columns = np.stack([np.ones(len(rows)), visits, [each.agents for each in rows], nbytes], axis=1)
    scale = columns.max(axis=0)
    solved, _ = nnls(columns / scale / cpu[:, None], np.ones(len(rows)))
    constant, per_visit, per_machine, per_byte = solved / scale
    nbytes_per_visit = max(0.0, float(np.median((nbytes - models) / visits)))
    predicted = columns @ (solved / scale)
    worst = float(np.abs(predicted / cpu - 1.0).max())
    assert math.isfinite(worst)
    return CoordinatorCost(constant, per_visit, per_machine, per_byte, nbytes_per_visit), worst


def draw(rows: Sequence[Row], cost: CoordinatorCost, models: Mapping[str, int], workers: int, path: Path) -> None:
    """Measured rounds beside perfect ones, and how many machines one coordinator can serve.

    ``models``: name -> bytes.
    """
    from matplotlib.figure import Figure

    figure = Figure((9.6, 3.8), layout="constrained")
    axes, limits = figure.subplots(1, 2)
    for link, style in zip(dict.fromkeys(row.link for row in rows), ("-", "--"), strict=False):
        for colour, nbytes in enumerate(sorted({row.model_nbytes for row in rows if row.link == link})):
            chosen = [row for row in rows if row.link == link and row.model_nbytes == nbytes]
            axes.plot(
                [row.agents for row in chosen],
                [100 * row.perfect / row.seconds for row in chosen],
                style,
                marker="o",
                color=f"C{colour}",
                label=f"{link}, {nbytes / 1e3:,.0f} kB",
            )
    axes.set(xlabel="machines of four workers", ylabel="time of a perfect round, %", ylim=(0, 105), xscale="log")
    ticks = sorted({row.agents for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(fontsize=7)
    axes.set_title("Measured rounds of ten visits of 0.1 s a worker", fontsize=9)
    for colour, (name, nbytes) in enumerate(models.items()):
        for seconds, style in ((1.0, "-"), (10.0, "--")):
            most = [min(MOST, cost.most_machines(workers, 4, seconds, nbytes, rate)) for rate in RATES]
            limits.plot(RATES / 1e9, most, style, color=f"C{colour}", label=f"{name}, visits of {seconds:g} s")
    limits.set(xlabel="link of the coordinator, Gbit/s", ylabel=f"machines of {workers} workers", xscale="log")
    limits.set_yscale("log")
    limits.legend(fontsize=7)
    limits.set_title("Model: most machines at 90 % of a perfect round", fontsize=9)
    figure.savefig(path, dpi=150)
