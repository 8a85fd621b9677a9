"""The output of commands on stdout. Every table fits a terminal of 80 columns; on a narrower one, columns go below."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table as RichTable

from costmodel.units import format_bytes, format_flops, format_joules, format_seconds
from edge.protocol.messages import VALIDATION
from edge.protocol.plugins import display_name
from scenarios.config.errors import ReportError
from scenarios.config.quantities import scenario_text
from scenarios.report import drawn_times, labels
from scenarios.report.columns import (
    BYTES,
    COUNT,
    FLOPS,
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
from scenarios.report.tables import Table
from scenarios.run import own_method, visits
from scenarios.run.progress import percent, to_target
from scenarios.run.run_folder import RunFolder
from scenarios.run.run_records import read_scenario
from scenarios.run.visits import counted

Summary = Mapping[str, Any]
Row = tuple[str, list[str]]
"""(name, one cell per run)"""
RUNS_PER_TABLE = 4
GAP = 2
"""Columns of the terminal between two of a table"""
NOT_REACHED = "not reached"
UNKNOWN = "unknown"


def print_summary(result: Summary, page: Path | None, stream: IO[str] | None = None) -> None:
    """Print the summary of one run."""
    console = console_on(stream)
    _print_runs(console, [result], {})
    for name, value in ((result.get("evaluation") or {}).get("values") or {}).items():
        console.print(f"{name}: {UNKNOWN if value is None else format(value, '.6g')}", markup=False, highlight=False)
    # The source of the data says if they are lossy or a subset.
    for name, place in (("data", result.get("data")), ("run folder", result["run_dir"]), ("report", page)):
        if place:
            print_path(name, place, stream)


def print_comparison(result: Mapping[str, Any], page: Path, stream: IO[str] | None = None) -> None:
    """Print the summaries of a comparison side by side."""
    console = console_on(stream)
    _print_runs(console, result["runs"], result)
    if result["runs"][0].get("data"):
        print_path("data", result["runs"][0]["data"], stream)
    print_location(page, stream)


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


# --- runs -------------------------------------------------------------------------------------------------------------


def _print_runs(console: Console, runs: Sequence[Summary], comparison: Mapping[str, Any]) -> None:
    """Print a column per method, a few per table, so that no line is wider than a terminal."""
    for first in range(0, len(runs), RUNS_PER_TABLE):
        _print_group(console, runs[first : first + RUNS_PER_TABLE], comparison)
    console.print()


def _print_group(console: Console, group: Sequence[Summary], comparison: Mapping[str, Any]) -> None:
    """Print one table, or two where the terminal is too narrow for it."""
    names, rows = [method_name(run) for run in group], run_rows(group, comparison)
    needed = widths([["method", *names], *([name, *cells] for name, cells in rows)])
    if len(group) > 1 and sum(needed) + 3 * len(group) > console.width:
        for part in (group[: len(group) // 2], group[len(group) // 2 :]):
            _print_group(console, part, comparison)
        return
    table = RichTable(show_edge=False, header_style="bold", pad_edge=False)
    table.add_column("method", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for name, texts in rows:
        table.add_row(name, *texts)
    console.print()
    console.print(table)


def method_name(run: Summary) -> str:
    """The method, with lines of their own for a server optimizer that is not plain, and for a last round cut short."""
    file = Path(run["run_dir"]) / "scenario.toml"
    server = read_scenario(file)[1].get(labels.SERVER) if file.is_file() else None
    name = str(run["method"]) + (f"\nserver={server}" if server not in (None, labels.PLAIN) else "")
    return display_name(name) + (f"\nround {run['cut_round']['round']} cut" if run.get("cut_round") else "")


def run_rows(runs: Sequence[Summary], comparison: Mapping[str, Any]) -> list[Row]:
    """The rows of the table of runs; with a comparison, also accuracies at the common bytes and time."""
    target, drawn = runs[0]["target_accuracy"], _drawn(runs)
    scopes = ["-" if each is None else drawn_times.scope(len(each.by_seed)) for each in drawn]
    bases = [visits.shares(run.get("seconds_by_basis")) for run in runs]
    tiers: list[Summary] = [run.get("aggregators") or {} for run in runs]
    has_nominal = own_method.shows_nominal(str(run["method"]) for run in runs)
    rows: list[Row] = [
        ("accuracy, final", _cells(runs, "accuracy", PERCENT)),
        ("accuracy, best", _cells(runs, "best_accuracy", PERCENT)),
        ("rounds", _cells(runs, "rounds", COUNT)),
    ]
    evaluations = [run.get("evaluation") or {} for run in runs]
    for name, key in (("clients, mean", "clients_accuracy"), ("clients, worst decile", "worst_decile")):
        if any(key in values for values in evaluations):
            rows.append((name, cells(PERCENT, [values.get(key) for values in evaluations], missing="-")))
    classes = [values.get("by_device") or {} for values in evaluations]
    for device in dict.fromkeys(device for of_run in classes for device in of_run):
        means = [of_run.get(device, {}).get("mean") for of_run in classes]
        rows.append((f"clients, {device}", cells(PERCENT, means, missing="-")))
    own: list[Summary] = [each.get("accuracy") or {} for each in tiers]
    for name, key in (("aggregators, mean", "mean"), ("aggregators, lowest", "lowest")):
        if any(own):
            rows.append((name, cells(PERCENT, [each.get(key) for each in own], missing="-")))
    rows += best_round_rows(runs)
    if target is not None:
        rows += [
            (f"virtual time to {100 * target:g} %", _times(runs, drawn, "time_to_target_s", NOT_REACHED)),
            *_chances(runs, drawn),
            ("bytes to it, real", _cells(runs, "bytes_to_target", BYTES, NOT_REACHED)),
        ]
        rows += [
            (f"{heading} to it", _above_to_target(tiers, key, quantity))
            for key, heading, quantity in TO_TARGET_ABOVE
            if any(each.get(key) for each in tiers)
        ]
        if has_nominal:
            reached = [to_target(RunFolder(Path(run["run_dir"])).trail, run["target_accuracy"]) for run in runs]
            nominal = [None if point is None else point.nominal_nbytes for point in reached]
            rows.append(("bytes to it, nominal", cells(BYTES, nominal, missing=NOT_REACHED)))
    for key, amount, show in (
        ("at_common_bytes", "bytes", format_bytes),
        ("at_common_seconds", "seconds", format_seconds),
    ):
        if key in comparison:
            common = comparison[key]
            accuracies = [common["accuracy"][run["method"]] for run in runs]
            rows.append((f"accuracy at {show(common[amount])}", cells(PERCENT, accuracies, missing="-")))
    energy = []  # parts of it, the largest first; older summaries lack them
    for run in runs:
        joules = sorted((run.get("joules_by_part") or {}).items(), key=lambda part: -float(part[1]))
        shares = ", ".join(f"{name} {100 * amount / run['joules']:.0f} %" for name, amount in joules if amount)
        energy.append(shares or UNKNOWN)
    return [
        *rows,
        ("virtual time", _times(runs, drawn, "virtual_seconds", "-")),
        *([("scope of intervals", scopes)] if any(drawn) else []),
        ("bytes, real", cells(BYTES, [run["bytes_down"] + run["bytes_up"] for run in runs])),
        *([("bytes, nominal", _cells(runs, "nominal_bytes", BYTES))] if has_nominal else []),
        ("FLOPs, real", _cells(runs, "flops", FLOPS)),
        *([("FLOPs, nominal", _cells(runs, "nominal_flops", FLOPS))] if has_nominal else []),
        *([("above clients (WAN)", _listed(above_clients(tiers)))] if any(tiers) else []),
        ("energy", _cells(runs, "joules", JOULES)),
        ("energy went into", _listed(energy)),
        *([("price", _listed(map(_paid, runs)))] if any(run.get("paid") for run in runs) else []),
        ("waste", _listed(waste(runs))),
        ("bottleneck", _listed(counted(run["bottlenecks"]) for run in runs)),
        (
            "time on assumed figures",
            [UNKNOWN if shares is None else percent(shares["assumed"]) for shares in bases],
        ),
        ("wall time", _cells(runs, "wall_seconds", SECONDS)),
        ("stopped by", [str(run["stopped_by"]).replace("_", " ") for run in runs]),
    ]


def _paid(run: Summary) -> str:
    """ "0.31: data 0.3, energy 0.01; 9.3 a month of 30 runs"."""
    paid = run.get("paid")
    if not paid:
        return "-"
    month, total = paid["month"], paid["data"] + paid["energy"]
    text = f"{total:.4g}: data {paid['data']:.4g}, energy {paid['energy']:.4g}; "
    text += f"{month['price']:.4g} a month of {month['runs']:g} runs"
    if paid["plan_used"] is not None:
        text += f", {100 * paid['plan_used']:.3g} % of the plan of {paid['busiest']}"
    return text


def above_clients(tiers: Sequence[Summary]) -> Iterator[str]:
    """Bytes, joules and price of each run's messages between aggregators and what is above them; "-" without any."""
    joules = [run["joules"] + run["idle_joules"] if run else None for run in tiers]
    prices = [run["price"] if run else None for run in tiers]
    texts = [
        cells(BYTES, [run.get("wan_bytes") for run in tiers]),
        cells(JOULES, joules),
        *([[f"price {text}" for text in cells(MONEY, prices)]] if any(prices) else []),
    ]
    for run, *own in zip(tiers, *texts, strict=True):
        yield ", ".join(own) if run else "-"


def _above_to_target(tiers: Sequence[Summary], key: str, quantity: Quantity) -> list[str]:
    texts = cells(quantity, [run.get(key) for run in tiers], missing=NOT_REACHED)
    return [text if run else "-" for run, text in zip(tiers, texts, strict=True)]


TO_TARGET_ABOVE: tuple[tuple[str, str, Quantity], ...] = (
    ("wan_bytes_to_target", "WAN bytes", BYTES),
    ("price_to_target", "price", MONEY),
)
"""Key of ``aggregators`` -> heading, what it holds"""


def best_round_rows(runs: Sequence[Summary]) -> Iterator[Row]:
    """The values of runs at their best rounds, those that any of them has."""
    best = [run.get("best_round") or {} for run in runs]
    for name, key, quantity in BEST_ROUND:
        values = [of_run.get(key) if of_run.get("selected_by") == VALIDATION else None for of_run in best]
        if any(value is not None for value in values):
            yield name, cells(quantity, values, missing="-")


BEST_ROUND: tuple[tuple[str, str, Quantity], ...] = (
    ("best validation round", "rounds", COUNT),
    ("accuracy then, validation", "validation_accuracy", PERCENT),
    ("accuracy then, clients", "clients_accuracy", PERCENT),
    ("before adaptation", "before_accuracy", PERCENT),
    ("worst decile", "worst_decile", PERCENT),
)
"""Name of a row -> key of ``best_round``, what it holds."""


def _drawn(runs: Sequence[Summary]) -> list[TimesOverSeeds | None]:
    """The times of each run in draws of its uncertain figures, if its folder has them; a damaged file is a warning."""
    found: list[TimesOverSeeds | None] = []
    for run in runs:
        try:
            times = drawn_times.read(Path(run["run_dir"]), run["model_sha256"])
        except ReportError as error:
            print(f"fedbr: warning: {error}", file=sys.stderr)
            times = None
        found.append(None if times is None else TimesOverSeeds({run["seed"]: times}))
    return found


def _times(runs: Sequence[Summary], drawn: Sequence[TimesOverSeeds | None], key: str, missing: str) -> list[str]:
    """Virtual times, with their intervals where there are draws; of several runs on a line of their own."""
    around = [
        None if times is None else times.around(key, run["target_accuracy"])
        for run, times in zip(runs, drawn, strict=True)
    ]
    texts = drawn_times.with_intervals([run[key] for run in runs], around, missing)
    return texts if len(runs) == 1 else [text.replace(" (", "\n(") for text in texts]


def _chances(runs: Sequence[Summary], drawn: Sequence[TimesOverSeeds | None]) -> Iterator[Row]:
    """The probability that the fastest run reaches the target before each other, where both have draws."""
    reached = [index for index, run in enumerate(runs) if run["time_to_target_s"] is not None]
    if not reached:
        return
    first = min(reached, key=lambda index: runs[index]["time_to_target_s"])
    found = [drawn_times.chance(drawn[first], times) if index != first else None for index, times in enumerate(drawn)]
    if any(found):
        cells = ["-" if each is None else f"{100 * each.probability:.0f} %" for each in found]
        yield f"P({runs[first]['method']} is faster)", cells


def waste(runs: Sequence[Summary]) -> Iterator[str]:
    """The wasted bytes of each run and their share."""
    column = Column.of(BYTES, (run["wasted_bytes"] for run in runs))
    for run in runs:
        spent = run["bytes_down"] + run["bytes_up"]
        share = f", {percent(run['wasted_bytes'] / spent)}" if run["wasted_bytes"] else ""
        yield column.text(run["wasted_bytes"]) + share


def _cells(runs: Sequence[Summary], key: str, quantity: Quantity, missing: str = "-") -> list[str]:
    return cells(quantity, [run[key] for run in runs], missing=missing)


def _listed(cells: Iterable[str]) -> list[str]:
    """Texts with a line per item where there are several runs, so that columns stay narrow."""
    texts = list(cells)
    return texts if len(texts) == 1 else [text.replace(", ", ",\n") for text in texts]


# --- fedbr check ------------------------------------------------------------------------------------------------------


def print_check(result: Mapping[str, Any], stream: IO[str] | None = None, keys: bool = False) -> None:
    """Print what the run costs, then its blocks, the cost of each alpha and the estimate in detail.

    ``keys``: and all keys of the resolved scenario.
    """
    console, estimate = console_on(stream), result["estimate"]
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    if "costs" in result:
        rounds = f"{result['costs']['rounds']:,} round{'s' if result['costs']['rounds'] > 1 else ''}"
        rows = cost_rows(result["costs"], estimate)
        _print_columns(console, f"costs, if {_until(estimate)}", ("", "a round", rounds), rows)
        for note in cost_notes(result["costs"], estimate):
            console.print(note, **plain)
    data = estimate["data"]
    console.print(f"warning: {data['warning']}" if data["warning"] else f"data: {data['found']}", **plain)
    if data.get("get"):
        console.print(f"to get it: {data['get']}", **plain)
    for refused in estimate["refused_clients"]:
        console.print(f"warning: {refused['clients']} clients cannot take part: {refused['why']}", **plain)
    passes = ("flops_forward", "flops_weight_gradient", "flops_input_gradient")
    flops = Column.of(FLOPS, (block[key] for block in result["blocks"] for key in passes))
    blocks = (
        [
            block["name"],
            *(f"{block[name]:,}" for name in ("params", "buffers", "nbytes")),
            percent(block["share"]),
            *(flops.text(block[key]).removesuffix("FLOP") for key in passes),
        ]
        for block in result["blocks"]
    )
    _print_columns(console, "blocks", BLOCK_COLUMNS, blocks)
    console.print(BLOCK_NOTES, highlight=False, style="dim")
    if result.get("submodels"):
        parts = (
            [
                *(f"{row['rate']:g}", "-" if row["clients"] is None else f"{row['clients']:,}", f"{row['params']:,}"),
                *(f"{row['mib']:.3f}", f"{row['message_down_nbytes']:,}", format_flops(row["flops_per_example"])),
                format_bytes(row["training_nbytes"]),
            ]
            for row in result["submodels"]
        )
        _print_columns(console, "parts of the model that clients hold", PART_COLUMNS, parts)
    alphas = (
        [
            *(str(row["alpha"]), f"{row['payload_nbytes']:,}", f"{row['message_nbytes']:,}", percent(row["share"])),
            *(percent(row["nominal_share"]), f"{row['flops_ratio']:.3f}"),
            *(f"{row['ratio_3f']:.4f}", f"{row['eq2']:.4f}"),
        ]
        for row in result["alphas"]
    )
    if result["alphas"]:
        _print_columns(console, "the last alpha blocks, down to one client", ALPHA_COLUMNS, alphas)
        console.print(ALPHA_NOTES, highlight=False, style="dim")
    _print_columns(console, f"estimate, if {_until(estimate)}", (), estimate_rows(estimate))
    if keys:
        console.print(f"\n{scenario_text(result['scenario'])}", **plain)


def _until(estimate: Mapping[str, Any]) -> str:
    return "a budget ends the run" if estimate["ended_by"] else "the run lasts all its rounds"


BLOCK_COLUMNS = ("block", "parameters", "buffers", "bytes", "share", "forward", "weight", "input")
BLOCK_NOTES = "forward, weight, input: FLOPs per example of the pass and its two gradients"
ALPHA_COLUMNS = ("alpha", "payload B", "message B", "share", "alpha/M", "FLOPs", "3F", "Eq. 2")
PART_COLUMNS = ("rate", "clients", "parameters", "MiB", "message B", "FLOPs", "training")
ALPHA_NOTES = (
    "payload: the numbers alone; message: with its header, as it is charged\n"
    "FLOPs: executed, relative to a plain step; 3F: relative to three forward passes,\n"
    "as papers count; Eq. 2: FedBR's nominal cost"
)


def _print_columns(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
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


def cost_rows(costs: Mapping[str, Any], estimate: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, of a round, of all rounds), if the run lasts all of them."""

    def seconds(amount: float | None) -> str:
        return UNKNOWN if amount is None else format_seconds(amount)

    virtual = (seconds(each) for each in (costs["virtual_seconds_per_round"], estimate["virtual_seconds"]))
    one_round, whole = (text if text == UNKNOWN else f"about {text}" for text in virtual)
    yield "virtual time", one_round, whole
    yield "bytes", format_bytes(costs["bytes_per_round"]), format_bytes(estimate["bytes"])
    if estimate["joules"] is not None:
        joules = estimate["per_round"]["joules"], estimate["joules"]
        one_round, whole = (f"about {format_joules(each)}" for each in joules)
        yield "energy", one_round, whole
    yield "wall time here", seconds(costs["wall_seconds_per_round"]), seconds(costs["wall_seconds"])


def cost_notes(costs: Mapping[str, Any], estimate: Mapping[str, Any]) -> Iterator[str]:
    """The budget that ends the run, the basis of times, and what a run takes of this machine."""
    workers = f"{costs['workers']} worker{'s' if costs['workers'] > 1 else ''}"
    if estimate["ended_by"]:
        after = estimate["rounds"]
        ends = f"ends the run after {after:,} rounds" if after else "is too small for one round: run refuses it"
        if estimate["ended_by"] == "clients":
            yield f"rounds: after {after:,} no client can take part any more"
        else:
            yield f"budget: budget.{estimate['ended_by']} {ends}"
    played = estimate["rounds_played"]
    if played < estimate["rounds"]:
        varied = f"; {', '.join(estimate['varied_by'])} let rounds differ" if estimate["varied_by"] else ""
        yield f"forecast: {played:,} rounds played without training, the others at the pace of the later half{varied}"
    else:
        yield "forecast: all rounds played, without training"
    if estimate["virtual_seconds"] is None:
        yield f"virtual time: {UNKNOWN} {estimate['untimed'] or 'without the data set'}"
    if costs["wall_seconds"] is None:
        yield f"wall time: {UNKNOWN}, since no run of this kind is in --out; --measure finds it in a few rounds"
    else:
        basis = "measured just now" if costs["wall_from"] is None else f"as in {costs['wall_from']}"
        yield f"wall time: {basis}, with {workers} on {costs['device']}"
    yield f"disk: about {format_bytes(costs['disk_nbytes'])}"
    coordinator, worker = (format_bytes(costs[f"{who}_nbytes"]) for who in ("coordinator", "worker"))
    yield f"memory: about {coordinator} for the coordinator, and {worker} for each of {workers}"


def estimate_rows(estimate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The estimate of the run, with units."""
    yield "message down, one visit", _span(estimate["message_down_nbytes"])
    yield "message up, one visit", format_bytes(estimate["message_up_nbytes"])
    yield "bytes, real", format_bytes(estimate["bytes"])
    if "evaluation_visits" in estimate:
        evaluation = estimate["evaluation_visits"]
        visits = f"{evaluation['evaluations']:,} x {evaluation['clients']:,} visits"
        yield "of these, evaluations", f"{format_bytes(evaluation['bytes'])}, {visits}"
    yield "bytes, nominal", format_bytes(estimate["nominal_bytes"])
    if "wan_bytes" in estimate:
        price = f", price {estimate['price']:.4g}" if estimate["price"] else ""
        yield "bytes above aggregators", f"{format_bytes(estimate['wan_bytes'])}{price}"
    for name, key, show in (
        ("FLOPs", "flops", format_flops),
        ("virtual time", "virtual_seconds", format_seconds),
        ("energy", "joules", format_joules),
    ):
        value, unknown = estimate[key], f"{UNKNOWN} {estimate['untimed'] or 'without the data set'}"
        about = "expected, about" if key == "flops" and estimate["flops_expected"] else "about"
        yield name, unknown if value is None else f"{about} {show(value)}"
    kept = estimate["state_disk_nbytes"]
    yield "disk for client state", format_bytes(kept) if kept else "none"
    if estimate["vectors_disk_nbytes"]:
        yield "disk for vectors per client", format_bytes(estimate["vectors_disk_nbytes"])


def _span(pair: Sequence[float]) -> str:
    low, high = (format_bytes(amount) for amount in pair)
    return low if low == high else f"{low} to {high}"
