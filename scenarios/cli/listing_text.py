"""How ``fedbr list`` and ``fedbr explain`` print rows of `scenarios.api.listing`: name, title, and details in words.

Nothing is looked up here: the rows have all that is printed.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, get_args

from rich.console import Console
from rich.text import Text

from costmodel.fleet.devices import figures
from costmodel.units import format_bytes, format_rate
from edge.protocol.config import Norm
from scenarios.config.validation import KINDS_OF_EXAMPLES

Row = Mapping[str, Any]


def show_topics(listed: Sequence[Row]) -> None:
    """Print the topics, one a line."""
    console = Console(highlight=False, markup=False)
    for row in listed:
        about = f"names for {row['key']}" if row["key"] else "all keys" if row["name"] == "keys" else "shipped files"
        console.print(f"fedbr list {row['name']:<11} {about}", soft_wrap=True)


def show(kind: str, listed: Sequence[Row], stream: IO[str] | None = None, *, assumed: bool = False) -> None:
    """Print the rows: name and title, and details below; with ``assumed``, assumed figures and their source only."""
    console = Console(file=stream or sys.stdout, highlight=False, markup=False)
    for row in listed:
        console.print(Text.assemble((row["name"], "bold"), *(["  ", row["title"]] if "title" in row else [])))
        if assumed:  # each assumed figure with its value, in the unit that its key names
            values = figures(row)
            texts: Iterable[str] = [*(f"{key} = {_figure(values[key])}" for key in row["assumed"]), _source(row)]
        else:
            texts = DETAILS.get(kind, _plugin_details)(row)
        for text in texts:
            is_indented = text.startswith(" ")  # a command or a table, whose columns stay
            for piece in [text] if is_indented else textwrap.wrap(text, console.width - 4, subsequent_indent="  "):
                console.print(f"    {piece}", soft_wrap=is_indented)
    if kind in LEGENDS and listed and not assumed:
        for piece in textwrap.wrap(LEGENDS[kind], console.width, initial_indent="  ", subsequent_indent="  "):
            console.print(piece, style="dim")


# --- methods ----------------------------------------------------------------------------------------------------------


def _method_details(row: Row) -> Iterator[str]:
    yield from (f"source: {row['source']}", f"neutral: {row['neutral']}", f"client state: {row['keeps']}")
    costs = row["costs"]  # bytes and compute relative to FedAvg
    model, extra = costs["model_bytes"], [costs[f"extra_bytes_{way}"] for way in ("down", "up")]
    down, up = (format_bytes(each) + f" ({each / model:.2f} models)" * (each > model / 2) for each in extra)
    at_most, chosen = ("at most ", ", chosen per visit") if costs["chosen_per_visit"] else ("", "")
    yield f"extra bytes: {at_most}{down} down{chosen}; {up} up"
    least, most = (f"{factor:.3f}" for factor in costs["relative_compute"])
    yield f"relative compute: {least if least == most else f'{least} to {most}'} ({costs['model']})"
    stored = {where: costs[f"stored_on_{where}"] / costs["model_numbers"] for where in ("server", "client")}
    yield "stored per client: " + ", ".join(f"{models:.3g} models on the {where}" for where, models in stored.items())
    yield f"joins: {row['joins']}" if row["joins"] else f"weights: {row['weights']}"
    yield from _option_lines(row)


def _plugin_details(row: Row) -> list[str]:
    neutral = [f"neutral: {row['neutral']}"] if "neutral" in row else []
    return [f"source: {row['source']}", *neutral, *_option_lines(row)]


def _option_lines(row: Row) -> Iterator[str]:
    for option in row["options"]:
        symbol = f" ({option['symbol']})" if option["symbol"] else ""
        bounds = f", {option['range']}" if option.get("range") else ""
        yield f"{option['name']}{symbol} = {option['default']!r}{bounds}: {option['meaning']}"


# --- the other kinds --------------------------------------------------------------------------------------------------


def _model_details(row: Row) -> list[str]:
    others = (" and others" if row["shape"] else " of any number") if row["flexible"] else ""
    size = " ".join(filter(None, [KINDS_OF_EXAMPLES[row["kind"]], "x".join(map(str, row["shape"]))])) + others
    balanced = f", or balanced:2 .. balanced:{row['units']}" if row["units"] > 1 else ""
    multiple = f" or another multiple of {row['width_multiple']}" if row["width_multiple"] > 1 else ""
    width = f", width {row['width']}{multiple}" if row["width"] else ""
    norms = " or ".join(norm for norm in get_args(Norm) if norm != row["norm"])
    return [
        f"{size}{width}; family {row['family']}",
        f"blocks: {', '.join(row['blocks'])}{balanced}",
        *([f"norm: {row['norm']}, or {norms}"] if row["norm"] else []),
        *_option_lines(row),
    ]


def _dataset_details(row: Row) -> list[str]:
    kind = "" if row["kind"] == "image" else f" {row['kind']}"
    kind += f" of a vocabulary of {row['vocabulary']}" if row["vocabulary"] else ""
    shape = "x".join(map(str, row["shape"])) + kind
    natural = ", with the author of each example" if row["natural_clients"] else ""
    return [f"{row['targets']}, {shape}{natural}; {row['source']}", f"found: {row['found'] or 'not found'}"]


def _metric_details(row: Row) -> list[str]:
    of = "a mean over examples" if row["per_example"] else "measured once per model"
    examples = f", on the {row['split']} examples" if row["split"] else ""
    return [f"{of}{examples}; {row['better']} is better", *filter(None, [", ".join(row["options"])])]


def _loss_details(row: Row) -> Iterator[str]:
    targets = {
        "class": "classes",
        "numbers": "real numbers",
        "input": "the example itself",
        "tokens": "the next tokens",
    }[row["target"]]
    yield f"targets: {targets}; runs are judged by {row['score']}"
    yield from _plugin_details(row)


def _optimizer_details(row: Row) -> Iterator[str]:
    """Its costs are those with default options."""
    kept = f"; keeps {' and '.join(row['state'])}, {4 * len(row['state'])} B a weight" if row["state"] else ""
    step = f"a step moves {row['step_bytes']} B and computes {row['step_flops']} FLOPs a weight"
    yield f"{step}{kept}; torch's default step size is {row['lr']:g}"
    yield from _plugin_details(row)


def _codec_details(row: Row) -> Iterator[str]:
    length = "of a length that follows from shapes" if row["fixed_length"] else "of a length that depends on the data"
    yield f"{row['class']}, {length}; {'un' * row['unbiased']}biased with these options"
    yield from ([f"error: {row['error']}"] if row["error"] else [])
    yield from (*_plugin_details(row), f"example: {row['example']}")


def _device_details(row: Row) -> list[str]:
    speeds = ", ".join(
        f"{name} {speed / 1e9:g}{_mark(row, f'flops_per_second.{name}')}"
        for name, speed in row["flops_per_second"].items()
    )
    modes = ", ".join(f"{factor:g}" for factor in row["modes"])
    shown = {
        "step_seconds": f"{1000 * row['step_seconds']:g} ms",
        "memory_bytes": format_bytes(row["memory_bytes"]),
        "train_watts": f"{row['train_watts']:g} W",
        "idle_watts": f"{row['idle_watts']:g} W",
        "clock_hz": f"{row['clock_hz'] / 1e9:g} GHz",
    }
    figure = {key: text + _mark(row, key) for key, text in shown.items()}
    return [
        f"GFLOP/s: {speeds}; {figure['step_seconds']} more per step",
        f"{figure['memory_bytes']}, {figure['train_watts']} training, {figure['idle_watts']} idle, "
        f"{figure['clock_hz']}",
        f"codecs: {row['codec_slowdown']:.3g}{_mark(row, 'codec_slowdown')} times as long as the reference host"
        + (f", or as measured: {', '.join(row['codecs'])}" if row["codecs"] else ""),
        f"memory: {row['memory_bytes_per_second'] / 1e9:.3g}{_mark(row, 'memory_bytes_per_second')} GB/s in steps of "
        "optimizers that move more than sgd",
        *([f"power modes: {modes}{_mark(row, 'modes')}"] if len(row["modes"]) > 1 else []),
        *(
            f"held out, {step['model']}, batch {step['batch']}: {predicted:.3g} s a step predicted, {measured:.3g} s "
            f"measured, {predicted / measured - 1:+.0%}"
            for step in row["measurements"]
            for predicted, measured in [(step["predicted_seconds"], step["measured_seconds"])]
            if not step["fitted"]
        ),
        _source(row),
    ]


def _network_details(row: Row) -> list[str]:
    shown = {
        "down_bits_per_second": format_rate(row["down_bits_per_second"]),
        "up_bits_per_second": format_rate(row["up_bits_per_second"]),
        "sigma_down": f"{row['sigma_down']:g}",
        "sigma_up": f"{row['sigma_up']:g}",
        "rtt_seconds": f"{1000 * row['rtt_seconds']:g} ms",
        **{f"{name}_watts": f"{row[f'{name}_watts']:g} W" for name in ("transmit", "receive", "base", "tail")},
        **{
            f"{name}_joules_per_bit": f"{1e6 * row[f'{name}_joules_per_bit']:.3g} W" for name in ("transmit", "receive")
        },
        "tail_seconds": f"{row['tail_seconds']:g} s",
        "loss": f"{100 * row['loss']:g} %",
        "promotion_seconds": f"{1000 * row['promotion_seconds']:g} ms",
        "promotion_watts": f"{row['promotion_watts']:g} W",
        "outages_per_hour": f"{row['outages_per_hour']:g}",
        "outage_seconds": f"{row['outage_seconds']:g} s",
    }
    figure = {key: text + _mark(row, key) for key, text in shown.items()}
    tail = f"{figure['tail_watts']} for {figure['tail_seconds']} after" if row["tail_seconds"] else "no tail"
    median = f" of {figure['outage_seconds']}" if row["outages_per_hour"] else ""
    power = f" at {figure['promotion_watts']}" if row["promotion_seconds"] else ""
    return [
        f"{figure['down_bits_per_second']} down (sigma {figure['sigma_down']}), {figure['up_bits_per_second']} up "
        f"(sigma {figure['sigma_up']}), {'goodput' if row['goodput'] else 'line rate'}; RTT {figure['rtt_seconds']}",
        f"loss {figure['loss']}; outages per hour {figure['outages_per_hour']}{median}; "
        f"promotion {figure['promotion_seconds']}{power}",
        f"{figure['transmit_watts']} to send, {figure['receive_watts']} to receive, {tail}",
        f"by rate: {figure['base_watts']} and per Mbit/s {figure['transmit_joules_per_bit']} to send, "
        f"{figure['receive_joules_per_bit']} to receive",
        _source(row),
    ]


MARKS = {"inference": "i", "derived": "~", "assumed": "*"}
"""Basis of a figure -> the sign behind it; one that was read in a source has none."""
LEGENDS = {
    "devices": "no mark: measured in training, or read in a data sheet; i: measured in inference; "
    "~: derived from measurements of another device or setting; *: assumed",
    "networks": "no mark: read in the source; ~: derived from measurements of another network or setting; *: assumed",
}
"""The marks of `MARKS`, for the end of a list."""


def _mark(row: Row, key: str) -> str:
    return next((sign for basis, sign in MARKS.items() if key in row.get(basis, ())), "")


def _figure(value: float | Sequence[float]) -> str:
    if isinstance(value, Sequence):
        return ", ".join(map(_figure, value))
    return f"{value:_}" if isinstance(value, int) else f"{value:g}"


def _source(row: Row) -> str:
    return f"source ({row['year']}): {row['source']}"


def _paragraphs(row: Row) -> list[str]:
    """The head of a scenario's file: each paragraph as one text, indented lines as they are."""
    texts = [""]
    for line in row["head"]:
        if not line or line.startswith(" ") or texts[-1].startswith(" "):
            texts.append(line)
        else:
            texts[-1] = f"{texts[-1]} {line}" if texts[-1] else line
    return [text for text in texts if text]


DETAILS: Mapping[str, Callable[[Row], Iterable[str]]] = {
    "methods": _method_details,
    "models": _model_details,
    "datasets": _dataset_details,
    "partitions": lambda row: list(filter(None, [", ".join(row["options"])])),
    "metrics": _metric_details,
    "codecs": _codec_details,
    "losses": _loss_details,
    "optimizers": _optimizer_details,
    "devices": _device_details,
    "networks": _network_details,
    "scenarios": _paragraphs,
    "keys": lambda row: [f"{row['type']}; by default {row['default']}", row["meaning"].partition(". ")[0].rstrip(".")],
}
"""Kind -> its row -> the lines below its name; any other kind has a source and options"""
