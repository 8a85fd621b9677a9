"""What ``fedbr check`` prints: costs, blocks, the cost of each alpha, and the estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from rich.console import Console

from costmodel.units import format_bytes, format_flops, format_joules, format_seconds
from scenarios.config.quantities import scenario_text
from scenarios.report.columns import FLOPS, Column
from scenarios.report.narrow import column_groups, widths
from scenarios.report.terminal import GAP, UNKNOWN, aligned, console_on, shown
from scenarios.run.progress import percent


def print_check(result: Mapping[str, Any], stream: IO[str] | None = None, keys: bool = False) -> None:
    """Print what the run costs, then its blocks, the cost of each alpha and the estimate in detail.

    ``keys``: and all keys of the resolved scenario.
    """
    console = console_on(stream)
    if "costs" in result:
        rounds = f"{result['costs']['rounds']:,} round{'s' if result['costs']['rounds'] > 1 else ''}"
        rows = cost_rows(result["costs"], result["estimate"])
        _print_columns(console, "costs, at most", ("", "a round", rounds), rows)
        for note in cost_notes(result["costs"], result["estimate"]):
            console.print(note, markup=False, highlight=False, soft_wrap=True)
    _print_warnings(console, result["estimate"])
    _print_columns(console, "blocks", BLOCK_COLUMNS, _blocks(result["blocks"]))
    console.print(BLOCK_NOTES, highlight=False, style="dim")
    alphas = (
        [
            *(str(row["alpha"]), f"{row['payload_nbytes']:,}", f"{row['message_nbytes']:,}", percent(row["share"])),
            *(
                percent(row["nominal_share"]),
                f"{row['flops_ratio']:.3f}",
                f"{row['ratio_3f']:.4f}",
                f"{row['eq2']:.4f}",
            ),
        ]
        for row in result["alphas"]
    )
    _print_columns(console, "the last alpha blocks, down to one client", ALPHA_COLUMNS, alphas)
    console.print(ALPHA_NOTES, highlight=False, style="dim")
    until = "a budget ends the run" if result["estimate"]["ended_by"] else "the run lasts all its rounds"
    _print_columns(console, f"estimate, if {until}", (), estimate_rows(result["estimate"]))
    if keys:
        console.print(f"\n{scenario_text(result['scenario'])}", markup=False, highlight=False, soft_wrap=True)


def _print_warnings(console: Console, estimate: Mapping[str, Any]) -> None:
    """Print where the data are, and which clients cannot take part."""
    data = estimate["data"]
    text = f"warning: {data['warning']}" if data["warning"] else f"data: {data['found']}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    if data.get("get"):
        console.print(f"to get it: {data['get']}", markup=False, highlight=False, soft_wrap=True)
    for refused in estimate["refused_clients"]:
        text = f"warning: {refused['clients']} clients cannot take part: {refused['why']}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


BLOCK_COLUMNS = ("block", "parameters", "buffers", "bytes", "share", "forward", "weight", "input")
BLOCK_NOTES = "forward, weight, input: FLOPs per example of the pass and its two gradients"
ALPHA_COLUMNS = ("alpha", "payload B", "message B", "share", "alpha/M", "FLOPs", "3F", "Eq. 2")
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
        style: dict[str, Any] = {"title": f"\n{title}", "title_justify": "left", "title_style": "bold"}
        console.print(aligned(header, chosen, fits=fits, **style))


def _blocks(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    passes = ("flops_forward", "flops_weight_gradient", "flops_input_gradient")
    column = Column.of(FLOPS, (row[key] for row in rows for key in passes))
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("params", "buffers", "nbytes")]
        flops = [column.text(row[key]).removesuffix("FLOP") for key in passes]
        yield [row["name"], *counts, percent(row["share"]), *flops]


def cost_rows(costs: Mapping[str, Any], estimate: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, of a round, of all rounds), if the run lasts all of them."""
    each, total = costs["virtual_seconds_per_round"], estimate["virtual_seconds"]
    yield "virtual time", shown(each, format_seconds, UNKNOWN), shown(total, format_seconds, UNKNOWN)
    yield "bytes", _span(costs["bytes_per_round"]), _span(estimate["bytes"])
    if estimate["joules"] is not None:
        yield "energy", format_joules(estimate["per_round"]["joules"][1]), format_joules(estimate["joules"])
    each, total = costs["wall_seconds_per_round"], costs["wall_seconds"]
    yield "wall time here", shown(each, format_seconds, UNKNOWN), shown(total, format_seconds, UNKNOWN)


def cost_notes(costs: Mapping[str, Any], estimate: Mapping[str, Any]) -> Iterator[str]:
    """The budget that ends the run, the basis of times, and what a run takes of this machine."""
    workers = f"{costs['workers']} worker{'s' if costs['workers'] > 1 else ''}"
    if estimate["ended_by"]:
        fewest, most = estimate["rounds"]
        after = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        yield f"budget: budget.{estimate['ended_by']} ends the run after about {after} rounds"
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
    yield "bytes, real", _span(estimate["bytes"])
    if "evaluation_visits" in estimate:
        evaluation = estimate["evaluation_visits"]
        visits = f"{evaluation['evaluations']:,} x {evaluation['clients']:,} visits"
        yield "of these, evaluations", f"{format_bytes(evaluation['bytes'])}, {visits}"
    yield "bytes, nominal", f"at most {format_bytes(estimate['nominal_bytes'])}"
    for name, key, show in (
        ("FLOPs", "flops", format_flops),
        ("virtual time", "virtual_seconds", format_seconds),
        ("energy", "joules", format_joules),
    ):
        value, unknown = estimate[key], f"{UNKNOWN} {estimate['untimed'] or 'without the data set'}"
        about = "at most about" if key != "flops" or not estimate["flops_expected"] else "expected, about"
        yield name, unknown if value is None else f"{about} {show(value)}"
    kept = estimate["state_disk_nbytes"]
    yield "disk for client state", format_bytes(kept) if kept else "none"
    if estimate["vectors_disk_nbytes"]:
        yield "disk for vectors per client", format_bytes(estimate["vectors_disk_nbytes"])


def _span(pair: Sequence[float]) -> str:
    low, high = (format_bytes(amount) for amount in pair)
    return low if low == high else f"{low} to {high}"
