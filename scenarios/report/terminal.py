"""The output of commands on stdout. Every table fits a terminal of 80 columns; on a narrower one, columns go below."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table as RichTable

from coordinator.rounds.amounts import ENERGY, PRICE, WAN_BYTES
from costmodel.fleet.carbon import Intensity
from edge.protocol.messages import VALIDATION
from edge.protocol.plugins import display_name
from scenarios.config.errors import ReportError
from scenarios.report import drawn_times, labels
from scenarios.report.columns import (
    BYTES,
    COUNT,
    FLOPS,
    GRAMS,
    JOULES,
    MONEY,
    PERCENT,
    SECONDS,
    Column,
    Quantity,
    cells,
    column_groups,
    fitting,
    widths,
)
from scenarios.report.drawn_times import TimesOverSeeds
from scenarios.report.readings import quantity, quantity_of
from scenarios.report.tables import Table
from scenarios.run import own_method, visits
from scenarios.run.progress import percent
from scenarios.run.run_folder import RunFolder
from scenarios.run.run_records import AggregatorsRecord, CarbonSummaryRecord, SummaryRecord, read_scenario
from scenarios.run.score import RunScore, named_score
from scenarios.run.visits import counted

Summary = Mapping[str, object]
"""As ``run --json`` prints it; `SummaryRecord` has its fields"""
Row = tuple[str, list[str]]
"""(name, one cell per run)"""
GAP = 2
"""Columns of the terminal between two of a table"""
NOT_REACHED = "not reached"
UNKNOWN = "unknown"


def print_summary(result: Summary, page: Path | None, stream: IO[str] | None = None) -> None:
    """Print the summary of one run."""
    console = console_on(stream)
    run = SummaryRecord.model_validate(result)
    table = RichTable(show_edge=False, header_style="bold", pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column(method_name(run), justify="right")
    for name, (text,) in _rows([run]):
        table.add_row(name, text)
    console.print("", table, "", sep="\n", end="")
    for name, value in (run.evaluation.values if run.evaluation else {}).items():
        console.print(f"{name}: {UNKNOWN if value is None else format(value, '.6g')}", markup=False, highlight=False)
    if run.carbon is not None:
        console.print(_intensity(run.carbon).account, style="dim", markup=False, highlight=False)
    if run.privacy is not None:
        console.print(f"epsilon: {run.privacy.guarantee}", style="dim", markup=False, highlight=False)
    # The source of the data says if they are lossy or a subset.
    for name, place in (("data", run.data), ("run folder", run.run_dir), ("report", page)):
        if place:
            print_path(name, place, stream)


def console_on(stream: IO[str] | None) -> Console:
    return Console(file=stream or sys.stdout)


def print_facts(rows: Iterable[tuple[str, str]], stream: IO[str] | None = None, width: int | None = None) -> None:
    """Print (name, text) pairs; long texts are wrapped under themselves, at ``width`` columns if that is given."""
    table = RichTable.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(file=stream or sys.stdout, highlight=False, markup=False)
    console.print(table, width=console.width if width is None else min(console.width, width))


def print_table(table: Table, columns: int = 5, stream: IO[str] | None = None) -> None:
    """Print a table to stdout, or to ``stream``: the first column and ``columns`` - 1 others at a time, to fit a
    terminal of 80; a table with dispensable columns is printed whole, without those that there is no room for."""
    console = console_on(stream)
    order = sorted((column.dispensable, index) for index, column in enumerate(table.columns) if column.dispensable)
    if order:
        kept = fitting(widths([table.header, *table.texts]), console.width, GAP, [index for _, index in order])
        table, columns = table.chosen(kept), max(2, len(kept))
    needed = widths([table.header, *table.texts])
    for first in range(1, len(table.columns), columns - 1):
        chosen = [0, *range(first, min(first + columns - 1, len(table.columns)))]
        for group in column_groups([needed[index] for index in chosen], console.width, GAP):
            shown = [chosen[index] for index in group]
            console.print(f"\n{table.title}", style="bold", markup=False, highlight=False, soft_wrap=True)
            rows = ([row[index] for index in shown] for row in table.texts)
            header = [table.header[index] for index in shown]
            left = [place for place, index in enumerate(shown) if table.columns[index].is_left]
            console.print(aligned(header, rows, left=left, pad_edge=False, header_style="bold"))
    for note in table.notes:
        console.print(note, style="dim", markup=False, highlight=False)


def aligned(
    columns: Sequence[str], rows: Iterable[Sequence[str]], fits: bool = True, left: Sequence[int] = (), **style: Any
) -> RichTable:
    """A table without borders, all columns but the first and those of ``left`` aligned to the right.

    ``fits``: no cell is wrapped; ``style`` goes to rich.
    """
    table = RichTable(box=None, show_header=bool(columns), **style)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index and index not in left else "left", no_wrap=fits)
    for row in rows:
        table.add_row(*row)
    return table


def print_location(page: Path, stream: IO[str] | None = None) -> None:
    """Print where a study's report is, or its folder where there is no report."""
    print_path("report" if page.suffix == ".html" else "folder", page, stream)


def print_path(name: str, path: Path | str, stream: IO[str] | None = None) -> None:
    """Print where a file is, on one line however long."""
    console_on(stream).print(f"{name}: {path}", markup=False, highlight=False, soft_wrap=True)


def print_columns(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table below a title; columns that the terminal has no room for stand in another table below."""
    cells = [list(row) for row in rows]
    if not cells:
        return
    needed = widths([list(columns), *cells] if columns else cells)
    for group in column_groups(needed, console.width - GAP, GAP):
        header = [columns[index] for index in group] if columns else []
        chosen = ([row[index] for index in group] for row in cells)
        fits = sum(needed[index] + GAP for index in group) <= console.width
        console.print(f"\n{title}", style="bold", markup=False, highlight=False)
        console.print(aligned(header, chosen, fits=fits))


# --- runs -------------------------------------------------------------------------------------------------------------


def method_name(run: SummaryRecord) -> str:
    """The method, with lines of their own for a server optimizer that is not plain, and for a last round cut short."""
    file = Path(run.run_dir) / "scenario.toml"
    server = read_scenario(file)[1].get(labels.SERVER) if file.is_file() else None
    name = run.method + (f"\nserver={server}" if server not in (None, labels.PLAIN) else "")
    return display_name(name) + (f"\nround {run.cut_round.round} cut" if run.cut_round else "")


def run_rows(runs: Sequence[Summary]) -> list[Row]:
    """The rows of the table of runs."""
    return _rows([SummaryRecord.model_validate(run) for run in runs])


def _rows(runs: Sequence[SummaryRecord]) -> list[Row]:
    score, drawn = judged_by(runs), _drawn(runs)
    held = quantity_of(score)
    target = runs[0].target_accuracy if runs[0].target is None else runs[0].target
    scopes = ["-" if each is None else drawn_times.scope(len(each.by_seed)) for each in drawn]
    bases = [visits.shares(run.seconds_by_basis) for run in runs]
    tiers = [run.aggregators for run in runs]
    has_nominal = own_method.shows_nominal(run.method for run in runs)
    rows: list[Row] = [
        (f"{score.metric}, final", _scores(score, [_either(run.score, run.accuracy) for run in runs])),
        (f"{score.metric}, best", _scores(score, [_either(run.best_score, run.best_accuracy) for run in runs])),
        # Forecasts without a model.
        *(
            (f"{score.metric}, {name}", _scores(score, [run.baselines.get(name, {}).get(score.metric) for run in runs]))
            for name in dict.fromkeys(name for run in runs for name in run.baselines)
        ),
        ("rounds", _cells(runs, "rounds", COUNT)),
    ]
    evaluations = [run.evaluation for run in runs]
    for name, key in (("clients, mean", "clients_score"), ("clients, worst decile", "worst_decile")):
        scores = [getattr(each, key, None) for each in evaluations]
        if any(value is not None for value in scores):
            rows.append((name, cells(held, scores, missing="-")))
    kinds = [each.by_device if each else {} for each in evaluations]
    for device in dict.fromkeys(device for of_run in kinds for device in of_run):
        means = [of_run[device].mean if device in of_run else None for of_run in kinds]
        rows.append((f"clients, {device}", cells(held, means, missing="-")))
    own = [each.accuracy or each.score if each else None for each in tiers]
    for name, key in (("aggregators, mean", "mean"), ("aggregators, lowest", "lowest")):
        if any(own):
            rows.append((name, cells(held, [getattr(each, key, None) for each in own], missing="-")))
    rows += best_round_rows(runs, score)
    if target is not None:
        rows += _to_target(runs, score.text_of_target(target), drawn, has_nominal)
    energy = []  # parts of it, the largest first; older summaries lack them
    for run in runs:
        joules = sorted(run.joules_by_part.items(), key=lambda part: -part[1])
        shares = ", ".join(f"{name} {100 * amount / run.joules:.0f} %" for name, amount in joules if amount)
        energy.append(shares or UNKNOWN)
    return [
        *rows,
        ("virtual time", _times(runs, drawn, "virtual_seconds", "-")),
        *([("scope of intervals", scopes)] if any(drawn) else []),
        ("bytes, real", cells(BYTES, [run.bytes_down + run.bytes_up for run in runs])),
        *([("bytes, nominal", _cells(runs, "nominal_bytes", BYTES))] if has_nominal else []),
        ("FLOPs, real", _cells(runs, "flops", FLOPS)),
        *([("FLOPs, nominal", _cells(runs, "nominal_flops", FLOPS))] if has_nominal else []),
        *([("above clients (WAN)", _listed(above_clients(tiers)))] if any(tiers) else []),
        ("energy", _cells(runs, ENERGY.key, JOULES)),
        ("energy went into", _listed(energy)),
        *([("price", _listed(map(_paid, runs)))] if any(run.paid for run in runs) else []),
        *([("CO2e", _listed(map(_co2e, runs)))] if any(run.carbon for run in runs) else []),
        *([("epsilon", [_epsilon(run) for run in runs])] if any(run.privacy for run in runs) else []),
        *([("server's device", _listed(map(_servers_device, runs)))] if any(run.steps for run in runs) else []),
        ("waste", _listed(waste(runs))),
        ("bottleneck", _listed(counted(run.bottlenecks) for run in runs)),
        (
            "time on assumed figures",
            [UNKNOWN if shares is None else percent(shares["assumed"]) for shares in bases],
        ),
        ("wall time", _cells(runs, "wall_seconds", SECONDS)),
        ("stopped by", [run.stopped_by.replace("_", " ") for run in runs]),
    ]


def judged_by(runs: Sequence[SummaryRecord]) -> RunScore:
    """The metric by which these runs are judged; of several, one with values that are comparable by name alone."""
    metrics = {run.metric for run in runs}
    if len(metrics) > 1:
        return RunScore("score", is_share=False)
    (metric,) = metrics
    return named_score(metric)


def _either(value: float | None, otherwise: float | None) -> float | None:
    return otherwise if value is None else value


def _scores(score: RunScore, values: Sequence[float | None]) -> list[str]:
    if score.is_share:
        return cells(PERCENT, values, missing="-")
    return ["-" if value is None else score.text(value) for value in values]


def _to_target(
    runs: Sequence[SummaryRecord], target: str, drawn: Sequence[TimesOverSeeds | None], has_nominal: bool
) -> Iterator[Row]:
    """The amounts until the target."""
    tiers = [run.aggregators for run in runs]
    yield f"virtual time to {target}", _times(runs, drawn, "time_to_target_s", NOT_REACHED)
    yield from _chances(runs, drawn)
    yield "bytes to it, real", _cells(runs, "bytes_to_target", BYTES, NOT_REACHED)
    for key, heading, held in TO_TARGET_ABOVE:
        amounts = [getattr(each, key, None) for each in tiers]
        if any(amounts):
            texts = cells(held, amounts, missing=NOT_REACHED)
            yield f"{heading} to it", [text if run else "-" for run, text in zip(tiers, texts, strict=True)]
    if has_nominal:
        reached = [RunFolder(Path(run.run_dir)).trail.until(_either(run.target, run.target_accuracy)) for run in runs]
        nominal = [None if point is None else point.nominal_nbytes for point in reached]
        yield "bytes to it, nominal", cells(BYTES, nominal, missing=NOT_REACHED)


def _paid(run: SummaryRecord) -> str:
    """ "0.31: data 0.3, energy 0.01; 9.3 a month of 30 runs"."""
    paid = run.paid
    if not paid:
        return "-"
    month, total = paid.month, paid.data + paid.energy
    text = f"{total:.4g}: data {paid.data:.4g}, energy {paid.energy:.4g}; "
    text += f"{month['price']:.4g} a month of {month['runs']:g} runs"
    if paid.plan_used is not None:
        text += f", {100 * paid.plan_used:.3g} % of the plan of {paid.busiest}"
    return text


def _co2e(run: SummaryRecord) -> str:
    """ "12.1 mg: 132 J at 329.65 g/kWh, DE 2025"."""
    carbon = run.carbon
    if carbon is None:
        return "-"
    own = _intensity(carbon)
    grams, joules = (cells(held, [amount])[0] for held, amount in ((GRAMS, carbon.co2e_grams), (JOULES, carbon.joules)))
    return f"{grams}: {joules} at {own.text}"


def _epsilon(run: SummaryRecord) -> str:
    """ "4.01", and of clients that differ "1.2 to 4.01, median 3.1"."""
    spent = run.privacy
    if spent is None:
        return "-"
    if spent.epsilon is None:
        return "infinite"
    clients = spent.epsilon_of_clients
    if not clients:
        return f"{spent.epsilon:.4g}"
    return f"{clients['lowest']:.3g} to {clients['highest']:.4g}, median {clients['median']:.3g}"


def _intensity(carbon: CarbonSummaryRecord) -> Intensity:
    return Intensity(carbon.grams_per_kwh, carbon.zone, carbon.year, carbon.source, carbon.counts)


def above_clients(tiers: Sequence[AggregatorsRecord | None]) -> Iterator[str]:
    """Bytes, joules and price of each run's messages between aggregators and what is above them; "-" without any."""
    joules = [run.joules + run.idle_joules if run else None for run in tiers]
    prices = [run.price if run else None for run in tiers]
    texts = [
        cells(BYTES, [run.wan_bytes if run else None for run in tiers]),
        cells(JOULES, joules),
        *([[f"price {text}" for text in cells(MONEY, prices)]] if any(prices) else []),
    ]
    for run, *own in zip(tiers, *texts, strict=True):
        yield ", ".join(own) if run else "-"


TO_TARGET_ABOVE: tuple[tuple[str, str, Quantity], ...] = tuple(
    (f"{amount.key}_to_target", amount.heading, quantity(amount)) for amount in (WAN_BYTES, PRICE)
)
"""Field of ``aggregators`` -> heading, what it holds"""


def best_round_rows(runs: Sequence[SummaryRecord], score: RunScore) -> Iterator[Row]:
    """The values of runs at their best rounds, those that any of them has."""
    best = [run.best_round for run in runs]
    for form, key in BEST_ROUND:
        name, held = form.format(score.metric), COUNT if key == "rounds" else quantity_of(score)
        values = [getattr(each, key) if each and each.selected_by == VALIDATION else None for each in best]
        if any(value is not None for value in values):
            yield name, cells(held, values, missing="-")


BEST_ROUND: tuple[tuple[str, str], ...] = (
    ("best validation round", "rounds"),
    ("{} then, validation", "validation_score"),
    ("{} then, clients", "clients_score"),
    ("before adaptation", "before_score"),
    ("worst decile", "worst_decile"),
)
"""Name of a row, with the metric in it -> key of ``best_round``"""


def _drawn(runs: Sequence[SummaryRecord]) -> list[TimesOverSeeds | None]:
    """The times of each run in draws of its uncertain figures, if its folder has them; a damaged file is a warning."""
    found: list[TimesOverSeeds | None] = []
    for run in runs:
        try:
            times = drawn_times.read(Path(run.run_dir), run.model_sha256)
        except ReportError as error:
            print(f"fedbr: warning: {error}", file=sys.stderr)
            times = None
        found.append(None if times is None else TimesOverSeeds({run.seed: times}))
    return found


def _times(runs: Sequence[SummaryRecord], drawn: Sequence[TimesOverSeeds | None], key: str, missing: str) -> list[str]:
    """Virtual times, with their intervals where there are draws; of several runs on a line of their own."""
    around = [
        None if times is None else times.around(key, _either(run.target, run.target_accuracy))
        for run, times in zip(runs, drawn, strict=True)
    ]
    texts = drawn_times.with_intervals([getattr(run, key) for run in runs], around, missing)
    return texts if len(runs) == 1 else [text.replace(" (", "\n(") for text in texts]


def _chances(runs: Sequence[SummaryRecord], drawn: Sequence[TimesOverSeeds | None]) -> Iterator[Row]:
    """The probability that the fastest run reaches the target before each other, where both have draws."""
    reached = {index: run.time_to_target_s for index, run in enumerate(runs) if run.time_to_target_s is not None}
    if not reached:
        return
    first = min(reached, key=lambda index: reached[index])
    found = [drawn_times.chance(drawn[first], times) if index != first else None for index, times in enumerate(drawn)]
    if any(found):
        cells = ["-" if each is None else f"{100 * each.probability:.0f} %" for each in found]
        yield f"P({runs[first].method} is faster)", cells


def _servers_device(run: SummaryRecord) -> str:
    """Its load, and for how long visits of a model that is cut have waited for it."""
    if not run.steps:
        return "-"
    return f"busy {percent(run.steps['load'])} of the time, waited for {cells(SECONDS, [run.steps['queue']])[0]}"


def waste(runs: Sequence[SummaryRecord]) -> Iterator[str]:
    """The wasted bytes of each run and their share."""
    column = Column.of(BYTES, (run.wasted_bytes for run in runs))
    for run in runs:
        spent = run.bytes_down + run.bytes_up
        share = f", {percent(run.wasted_bytes / spent)}" if run.wasted_bytes else ""
        yield column.text(run.wasted_bytes) + share


def _cells(runs: Sequence[SummaryRecord], key: str, quantity: Quantity, missing: str = "-") -> list[str]:
    return cells(quantity, [getattr(run, key) for run in runs], missing=missing)


def _listed(cells: Iterable[str]) -> list[str]:
    """Texts with a line per item where there are several runs, so that columns stay narrow."""
    texts = list(cells)
    return texts if len(texts) == 1 else [text.replace(", ", ",\n") for text in texts]
