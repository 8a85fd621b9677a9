"""The check of a scenario, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from rich.console import Console

from coordinator.rounds.budget import JOULES
from costmodel.units import format_bytes, format_flops, format_grams, format_joules, format_seconds
from scenarios.config.quantities import scenario_text
from scenarios.report.columns import FLOPS, Column
from scenarios.report.terminal import UNKNOWN, console_on, print_columns
from scenarios.run.progress import percent
from scenarios.studies.forecast.check import BlockRow, Check, MachineCosts
from scenarios.studies.forecast.forecast import Forecast


def print_check(found: Check, stream: IO[str] | None = None, keys: bool = False) -> None:
    """Print what the run costs, then its blocks, the cost of each alpha and the estimate in detail.

    ``keys``: and all keys of the resolved scenario.
    """
    console, estimate, data = console_on(stream), found.estimate, found.data
    rounds = f"{found.costs.rounds:,} round{'s' if found.costs.rounds > 1 else ''}"
    rows = cost_rows(found.costs, estimate)
    print_columns(console, f"costs, if {_until(estimate)}", ("", "a round", rounds), rows)
    for note in cost_notes(found.costs, estimate):
        _print_line(console, note)
    _print_line(console, f"warning: {data.warning}" if data.warning else f"data: {data.found}")
    if data.get:
        _print_line(console, f"to get it: {data.get}")
    for refused in estimate.refused_clients:
        _print_line(console, f"warning: {refused.clients} clients cannot take part: {refused.why}")
    _print_blocks(console, found.blocks)
    if found.submodels:
        parts = (
            [
                *(f"{row.rate:g}", "-" if row.clients is None else f"{row.clients:,}", f"{row.params:,}"),
                *(f"{row.mib:.3f}", f"{row.message_down_nbytes:,}", format_flops(row.flops_per_example)),
                format_bytes(row.training_nbytes),
            ]
            for row in found.submodels
        )
        print_columns(console, "parts of the model that clients hold", PART_COLUMNS, parts)
    if found.alphas:
        alphas = (
            [
                *(str(row.alpha), f"{row.payload_nbytes:,}", f"{row.message_nbytes:,}", percent(row.share)),
                *(percent(row.nominal_share), f"{row.flops_ratio:.3f}", f"{row.ratio_3f:.4f}", f"{row.eq2:.4f}"),
            ]
            for row in found.alphas
        )
        print_columns(console, "the last alpha blocks, down to one client", ALPHA_COLUMNS, alphas)
        console.print(ALPHA_NOTES, highlight=False, style="dim")
    print_columns(console, f"estimate, if {_until(estimate)}", (), estimate_rows(estimate))
    if keys:
        _print_line(console, f"\n{scenario_text(found.scenario)}")


def _print_line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _print_blocks(console: Console, blocks: Sequence[BlockRow]) -> None:
    passes = [(row.flops_forward, row.flops_weight_gradient, row.flops_input_gradient) for row in blocks]
    column = Column.of(FLOPS, (flops for of_block in passes for flops in of_block))
    rows = (
        [
            *(row.name, f"{row.params:,}", f"{row.buffers:,}", f"{row.nbytes:,}", percent(row.share)),
            *(column.text(flops).removesuffix("FLOP") for flops in of_block),
        ]
        for row, of_block in zip(blocks, passes, strict=True)
    )
    print_columns(console, "blocks", BLOCK_COLUMNS, rows)
    console.print(BLOCK_NOTES, highlight=False, style="dim")


def _until(estimate: Forecast) -> str:
    return "a budget ends the run" if estimate.ended_by else "the run lasts all its rounds"


BLOCK_COLUMNS = ("block", "parameters", "buffers", "bytes", "share", "forward", "weight", "input")
BLOCK_NOTES = "forward, weight, input: FLOPs per example of the pass and its two gradients"
ALPHA_COLUMNS = ("alpha", "payload B", "message B", "share", "alpha/M", "FLOPs", "3F", "Eq. 2")
PART_COLUMNS = ("rate", "clients", "parameters", "MiB", "message B", "FLOPs", "training")
ALPHA_NOTES = (
    "payload: the numbers alone; message: with its header, as it is charged\n"
    "FLOPs: executed, relative to a plain step; 3F: relative to three forward passes,\n"
    "as papers count; Eq. 2: FedBR's nominal cost"
)


def cost_rows(costs: MachineCosts, estimate: Forecast) -> Iterator[tuple[str, str, str]]:
    """(name, of a round, of all rounds), if the run lasts all of them."""

    def seconds(amount: float | None) -> str:
        return UNKNOWN if amount is None else format_seconds(amount)

    virtual = (seconds(each) for each in (costs.virtual_seconds_per_round, estimate.virtual_seconds))
    one_round, whole = (text if text == UNKNOWN else f"about {text}" for text in virtual)
    yield "virtual time", one_round, whole
    yield "bytes", format_bytes(costs.bytes_per_round), format_bytes(estimate.bytes)
    if estimate.joules is not None:
        joules = estimate.per_round[JOULES], estimate.joules
        one_round, whole = (f"about {format_joules(each)}" for each in joules)
        yield "energy", one_round, whole
        if estimate.co2e_grams:
            grams = estimate.co2e_grams * joules[0] / joules[1], estimate.co2e_grams
            one_round, whole = (f"about {format_grams(each)}" for each in grams)
            yield "CO2e", one_round, whole
    yield "wall time here", seconds(costs.wall_seconds_per_round), seconds(costs.wall_seconds)


def cost_notes(costs: MachineCosts, estimate: Forecast) -> Iterator[str]:
    """The budget that ends the run, the basis of times, and what a run takes of this machine."""
    workers = f"{costs.workers} worker{'s' if costs.workers > 1 else ''}"
    if estimate.ended_by:
        after = estimate.rounds
        ends = f"ends the run after {after:,} rounds" if after else "is too small for one round: run refuses it"
        if estimate.ended_by == "clients":
            yield f"rounds: after {after:,} no client can take part any more"
        else:
            yield f"budget: budget.{estimate.ended_by} {ends}"
    if estimate.guarantee is not None:
        yield f"epsilon: {estimate.guarantee}"
    played = estimate.rounds_played
    if played < estimate.rounds:
        varied = f"; {', '.join(estimate.varied_by)} let rounds differ" if estimate.varied_by else ""
        yield f"forecast: {played:,} rounds played without training, the others at the pace of the later half{varied}"
    else:
        yield "forecast: all rounds played, without training"
    if estimate.virtual_seconds is None:
        yield f"virtual time: {UNKNOWN} {estimate.untimed or 'without the data set'}"
    if costs.wall_seconds is None:
        yield f"wall time: {UNKNOWN}, since no run of this kind is in --out; --measure finds it in a few rounds"
    else:
        basis = "measured just now" if costs.wall_from is None else f"as in {costs.wall_from}"
        yield f"wall time: {basis}, with {workers} on {costs.device}"
    yield f"disk: about {format_bytes(costs.disk_nbytes)}"
    coordinator, worker = format_bytes(costs.coordinator_nbytes), format_bytes(costs.worker_nbytes)
    yield f"memory: about {coordinator} for the coordinator, and {worker} for each of {workers}"


def estimate_rows(estimate: Forecast) -> Iterator[tuple[str, str]]:
    """The estimate of the run, with units."""
    yield "message down, one visit", _span(estimate.message_down_nbytes)
    yield "message up, one visit", format_bytes(estimate.message_up_nbytes)
    if (steps := estimate.exchange) is not None:
        sizes = f"{format_bytes(steps.bytes_down)} down, {format_bytes(steps.bytes_up)} up"
        yield "of these, in steps", f"{steps.trips:,} round trips, {sizes}"
        device, server = format_flops(steps.device_flops), format_flops(steps.server_flops)
        yield "FLOPs, one visit", f"{device} on the device, {server} at the server"
    yield "bytes, real", format_bytes(estimate.bytes)
    if (evaluation := estimate.evaluation_visits) is not None:
        visits = f"{evaluation.evaluations:,} x {evaluation.clients:,} visits"
        yield "of these, evaluations", f"{format_bytes(evaluation.bytes)}, {visits}"
    yield "bytes, nominal", format_bytes(estimate.nominal_bytes)
    if estimate.wan_bytes is not None:
        price = f", price {estimate.price:.4g}" if estimate.price else ""
        yield "bytes above aggregators", f"{format_bytes(estimate.wan_bytes)}{price}"
    unknown = f"{UNKNOWN} {estimate.untimed or 'without the data set'}"
    about = "expected, about" if estimate.flops_expected else "about"
    yield "FLOPs", unknown if estimate.flops is None else f"{about} {format_flops(estimate.flops)}"
    seconds, joules = estimate.virtual_seconds, estimate.joules
    yield "virtual time", unknown if seconds is None else f"about {format_seconds(seconds)}"
    yield "energy", unknown if joules is None else f"about {format_joules(joules)}"
    if estimate.co2e_grams is not None:
        yield "CO2e", f"about {format_grams(estimate.co2e_grams)}"
    if estimate.guarantee is not None:
        spent = "infinite" if estimate.epsilon is None else f"about {estimate.epsilon:.4g}"
        yield "epsilon", f"{spent} after {estimate.rounds:,} rounds"
    kept = estimate.state_disk_nbytes
    yield "disk for client state", format_bytes(kept) if kept else "none"
    if estimate.vectors_disk_nbytes:
        yield "disk for vectors per client", format_bytes(estimate.vectors_disk_nbytes)


def _span(pair: Sequence[float]) -> str:
    low, high = (format_bytes(amount) for amount in pair)
    return low if low == high else f"{low} to {high}"
