"""The report's tables of results, clients, best rounds and costs: columns, cells, and the best of each column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodel.units import format_bytes, format_seconds
from edge.protocol.messages import VALIDATION
from scenarios.report import client_values
from scenarios.report.best_round import of_run
from scenarios.report.columns import BYTES, COUNT, FLOPS, JOULES, MISSING, PERCENT, SECONDS, Column, Quantity, cells
from scenarios.report.run_reader import RecordedRun
from scenarios.run.progress import AMOUNTS, to_target


@dataclass(frozen=True)
class ReportColumn:
    """One column of the tables of results and of clients."""

    group: str
    name: str
    value: Callable[[RecordedRun], float | None]
    quantity: Quantity
    best: Callable[[Iterable[float]], float] | None = None
    """The value to set in bold: ``max``, ``min``, or None if runs of different length cannot be compared."""
    missing: str = MISSING


def _last(run: RecordedRun) -> client_values.OverClients:
    """The clients' accuracies at the last evaluation of a run that has some."""
    found = client_values.last(run.evaluations)
    assert found is not None
    return found


CLIENTS = (
    ReportColumn("Last evaluation", "clients", lambda run: len(_last(run).values), COUNT),
    ReportColumn("Last evaluation", "mean", lambda run: _last(run).mean, PERCENT, max),
    ReportColumn("Last evaluation", "worst decile", lambda run: _last(run).worst_decile, PERCENT, max),
    ReportColumn("Last evaluation", "spread", lambda run: _last(run).spread, PERCENT, min),
)


def best_rounds(opened: Sequence[RecordedRun]) -> dict[str, Any] | None:
    """The table of rounds that were best on validation examples; None if no run has evaluated these."""
    found = {run.label: best for run in opened if (best := of_run(run)) and best.selected_by == VALIDATION}
    if not found:
        return None

    def at_best(name: str) -> Callable[[RecordedRun], float | None]:
        return lambda run: getattr(found[run.label], name)

    columns = [
        ReportColumn("", name, at_best(key), quantity, choose)
        for name, key, quantity, choose in _BEST_ROUND
        if any(getattr(best, key) is not None for best in found.values())
    ]
    return headline([run for run in opened if run.label in found], columns)


_BEST_ROUND: tuple[tuple[str, str, Quantity, Callable[[Iterable[float]], float] | None], ...] = (
    ("round", "rounds", COUNT, None),
    ("virtual time", "virtual_seconds", SECONDS, None),
    ("bytes, real", "bytes", BYTES, None),
    ("validation", "validation_accuracy", PERCENT, max),
    ("mean", "clients_accuracy", PERCENT, max),
    ("mean before adaptation", "before_accuracy", PERCENT, max),
    ("worst decile", "worst_decile", PERCENT, max),
    ("spread", "spread", PERCENT, min),
)
"""(column, field of `BestRound`, what it holds, which one is best)"""


def headline_columns(target: float | None, comparison: Mapping[str, Any], nominal: bool) -> list[ReportColumn]:
    """The columns of the table of results, those of nominal costs only if they are asked for."""
    reaching = f"To {100 * target:g} %" if target is not None else "To the target"
    columns = [
        ReportColumn("Accuracy", "final", RecordedRun.final, PERCENT, max),
        ReportColumn("Accuracy", "best", RecordedRun.best, PERCENT, max),
        ReportColumn("Length", "rounds", lambda run: run.completed, COUNT),
    ]
    if target is not None:
        never = "not reached"
        columns += [
            ReportColumn(reaching, "virtual time", _until("time", target), SECONDS, min, never),
            ReportColumn(reaching, "bytes, real", _until("bytes", target), BYTES, min, never),
        ]
        if nominal:
            columns.append(ReportColumn(reaching, "nominal", _until("nominal", target), BYTES, min, never))
    for key, amount, show in (
        ("at_common_bytes", "bytes", format_bytes),
        ("at_common_seconds", "seconds", format_seconds),
    ):
        common = comparison.get(key)
        if common and common.get(amount) is not None:
            reached = dict(common["accuracy"])
            columns.append(ReportColumn("Accuracy at", show(common[amount]), _lookup(reached), PERCENT, max))
    work = ReportColumn("Device work", "real", lambda run: run.total("flops"), FLOPS)
    charged = ReportColumn("Device work", "nominal", lambda run: run.total("nominal_flops"), FLOPS)
    return [
        *columns,
        *([work, charged] if nominal else [replace(work, name="FLOPs")]),
        ReportColumn("Energy", "joules", lambda run: run.total("joules"), JOULES),
        ReportColumn("This machine", "wall time", RecordedRun.wall_seconds, SECONDS),
    ]


def _until(kind: str, target: float) -> Callable[[RecordedRun], float | None]:
    """The amount of one of `AMOUNTS` that a run had spent when it reached the target."""

    def amount(run: RecordedRun) -> float | None:
        point = to_target(run.trail, target)
        return None if point is None else float(getattr(point, AMOUNTS[kind]))

    return amount


def _lookup(by_method: Mapping[str, float | None]) -> Callable[[RecordedRun], float | None]:
    return lambda run: by_method.get(run.label, by_method.get(run.method))


def headline(runs: Sequence[RecordedRun], columns: Sequence[ReportColumn]) -> dict[str, Any]:
    """Groups with their widths, column names, and one row of (text, is best) cells per run.

    A cell that reads as the best does is best, too: what tells them apart is not shown.
    """
    rows: list[list[tuple[str, bool]]] = [[] for _ in runs]
    for column in columns:
        values = [column.value(run) for run in runs]
        known = [value for value in values if value is not None]
        best = column.best(known) if column.best and len(runs) > 1 and known else None
        texts = cells(column.quantity, values, missing=column.missing)
        best_text = None if best is None else texts[values.index(best)]
        for row, text in zip(rows, texts, strict=True):
            row.append((text, text == best_text))
    groups = Counter(column.group for column in columns)
    return {
        "groups": list(groups.items()),
        "names": [column.name for column in columns],
        "rows": [(run, row, run.stopped_by()) for run, row in zip(runs, rows, strict=True)],
    }


def costs(runs: Sequence[RecordedRun], nominal: bool) -> dict[str, Any]:
    """Totals per run, and per round against FedAvg's where it is among several runs; nominal ones if they are shown."""
    kinds = {kind: Column.of(each, _amounts(runs, kind, nominal)) for kind, each in _COSTS.items()}
    base = next((run for run in runs if run.method == "fedavg" and run.completed and len(runs) > 1), None)
    table = []
    for run in runs:
        row = []
        for kind, column in kinds.items():
            real, charged = _cost(run, kind)
            ratio = f"{real / charged:.3f}" if charged else MISSING
            row += [column.text(real), column.text(charged), ratio] if nominal else [column.text(real)]
        if base is not None:
            row += [_against(run, base, kind, part) for kind in kinds for part in ((0, 1) if nominal else (0,))]
        table.append((run, row))
    return {"rows": table, "base": base}


_COSTS = {"bytes": BYTES, "flops": FLOPS}


def _amounts(runs: Sequence[RecordedRun], kind: str, nominal: bool) -> list[float]:
    """The real costs of one kind, with the nominal ones if they are shown."""
    return [amount for run in runs for amount in _cost(run, kind)[: 2 if nominal else 1]]


def waste(runs: Sequence[RecordedRun]) -> list[list[tuple[str, str, float]]]:
    """For each run (wasted, total, wasted share in [0, 1]) of seconds of visits, bytes and joules."""
    columns = []
    for quantity, part, whole in _WASTE:
        pairs = [(run.total(part), sum(map(run.total, whole))) for run in runs]
        column = Column.of(quantity, [spent for _, spent in pairs])
        columns.append(
            [(column.text(wasted), column.text(spent), wasted / spent if spent else 0.0) for wasted, spent in pairs]
        )
    return [list(row) for row in zip(*columns, strict=True)]


_WASTE = (
    (SECONDS, "wasted_s", ("busy_s",)),
    (BYTES, "wasted_bytes", ("bytes_down", "bytes_up")),
    (JOULES, "wasted_joules", ("joules",)),
)
"""(what it is, what is wasted of it, columns of ``rounds`` that add up to all of it)"""


def _cost(run: RecordedRun, kind: str) -> tuple[float, float]:
    real = run.total("flops") if kind == "flops" else run.total("bytes_down") + run.total("bytes_up")
    return real, run.total(f"nominal_{kind}")


def _against(run: RecordedRun, base: RecordedRun, kind: str, part: int) -> str:
    """How much more (+) or less (−) a mean round of ``run`` cost than one of ``base``; part 0 is real, 1 nominal."""
    theirs = _cost(base, kind)[part] / base.completed
    if not theirs or not run.completed:
        return "–"
    change = 100 * (_cost(run, kind)[part] / run.completed / theirs - 1)
    return f"{change:+.1f} %".replace("-", "−") if run is not base else "0"
