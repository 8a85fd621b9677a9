"""Figures of rounds and visits of single runs: times, timelines, staleness, participation, and a recorded link.

Times are virtual seconds. Of a group with several seeds, the first is shown.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from coordinator.records.schema import COUNTED, AggregatorRow, RoundRow
from costmodel.arrays import Doubles
from costmodel.fleet.fleet import Fleet
from costmodel.network.bandwidth import DOWN, UP, Replay, Samples
from costmodel.network.tcp import WIRE_FACTOR
from costmodel.units import SECONDS
from scenarios.config import fleet_files
from scenarios.config.schema import Scenario
from scenarios.report import plot_style, theme, tier_figures
from scenarios.report.plot_style import ShownRuns
from scenarios.report.run_reader import RecordedRun
from scenarios.report.theme import INK, MUTED, LineStyle
from scenarios.run import visits
from scenarios.run.setup import drawn_fleet
from scenarios.run.visits import Participation

MAX_STALENESS_BARS, MOST_BARS = 40, 40
DASHED: LineStyle = {"color": INK, "linewidth": 1.3, "linestyle": (0, (4, 2))}
PHASES = (("download", theme.DOWN), ("compute", theme.COMPUTING), ("upload", theme.UP))
STEPS = ("steps of the cut", theme.STEPS)
"""What goes back and forth while a model that is cut is trained, drawn behind the device's computing"""
# Per round: the critical visit, and how long the others that counted had waited by the end of the round, or of that
# visit, which may be later (`coordinator.rounds.asynchronous_tiers`).
CRITICAL = """SELECT r.round, r.start_s AS round_start_s, r.end_s, r.critical, c.visit,
    c.start_s, c.down_end_s, c.compute_end_s, c.up_end_s, AVG(MAX(r.end_s, c.up_end_s) - o.up_end_s) AS others_wait_s
    FROM rounds r JOIN visits c ON c.round = r.round AND c.client = r.critical
    LEFT JOIN visits o ON o.round = r.round AND o.client != r.critical AND o.kind = 'train'
    GROUP BY r.round ORDER BY r.round"""


ARRIVED = "SELECT tier, aggregator, direction, start_s, end_s FROM aggregators WHERE end_s IS NOT NULL ORDER BY start_s"
PARTS = (
    ("WAN down", theme.SHARED),
    ("waiting for clients", theme.NOBODY),
    *PHASES[:2],
    STEPS,
    PHASES[-1],
    ("WAN up", theme.MUTED),
)


def parts(run: RecordedRun, rows: Sequence[Any]) -> Doubles:
    """(rounds, `PARTS`) Seconds of the critical visit of each round, and of the messages between its aggregator and the
    server before and after it in the round. ``rows``: of the query `CRITICAL`."""
    keys = ("round_start_s", "start_s", "down_end_s", "compute_end_s", "up_end_s")
    waits, download, computing, upload = np.diff([[row[key] for key in keys] for row in rows], axis=1).T
    of_steps = run.seconds_of_steps
    steps = np.minimum([of_steps.get(row["visit"], 0.0) for row in rows], computing)
    phases = download, computing - steps, steps, upload
    messages: dict[tuple[int, int, str], list[Any]] = {}
    for row in run.query(ARRIVED) if run.has_tiers else ():
        messages.setdefault((row["tier"], row["aggregator"], row["direction"]), []).append(row)
    aggregator_of, above = run.environment.aggregator_of, tier_figures.count_above(run)
    wan = np.zeros((2, len(rows)))
    for place, row in enumerate(rows):
        if messages and row["critical"] < len(aggregator_of):
            lowest = aggregator_of[row["critical"]]
            spans = ("down", row["round_start_s"], row["start_s"]), ("up", row["up_end_s"], row["end_s"])
            for index, (direction, begin, end) in enumerate(spans):
                for tier, number in enumerate((lowest, lowest % above)):
                    arrivals = messages.get((tier, number, direction), ())
                    times = [(message["start_s"], message["end_s"]) for message in arrivals]
                    wan[index, place] += sum(max(0.0, min(end, to) - max(begin, since)) for since, to in times)
    return np.column_stack([wan[0], np.clip(waits - wan[0], 0.0, None), *phases, wan[1]])


def timing(shown: ShownRuns) -> Figure | None:
    """Virtual time of each round: the phases of its critical visit, what came before and after it, and the others' mean
    waiting time."""
    pairs = [(run, rows) for run in shown.runs if not run.is_asynchronous and (rows := run.query(CRITICAL))]
    scale, unit = plot_style.unit(
        (np.array([row.end_s - row.start_s for row in run.rounds]) for run, _ in pairs), SECONDS
    )
    spans = {run.label: parts(run, rows) for run, rows in pairs}
    # Parts that only some runs have; a nanosecond is the rounding of absolute times.
    used = [
        name in dict(PHASES) or any((of[:, i] > 1e-9).any() for of in spans.values())
        for i, (name, _) in enumerate(PARTS)
    ]

    def draw(axes: Axes, run: RecordedRun, rows: Sequence[Any]) -> str:
        rounds = [row["round"] + 1 for row in rows]
        layers = [(name, colour, of / scale) for (name, colour), of in zip(PARTS, spans[run.label].T, strict=True)]
        plot_style.stack(axes, rounds, list(compress(layers, used)))
        waits = [np.nan if row["others_wait_s"] is None else row["others_wait_s"] / scale for row in rows]
        axes.plot(rounds, waits, **DASHED, label="mean waiting time of the others")
        axes.set_xlabel("round")
        return run.label

    return plot_style.panel_each(
        shown, pairs, 2, 270, draw, f"virtual time ({unit})", with_legend=True, is_from_zero=True, sharey=True
    )


def staleness(shown: ShownRuns) -> Figure | None:
    """Staleness of the updates of asynchronous runs, in server steps."""
    pairs = [(run, counts) for run in shown.runs if run.is_asynchronous and (counts := visits.staleness(run.query))]
    oldest = max((max(counts) for _, counts in pairs), default=0)
    step = oldest // MAX_STALENESS_BARS + 1
    edges = np.arange(0, oldest + step + 1, step) - 0.5

    def draw(axes: Axes, run: RecordedRun, counts: Mapping[int, int]) -> str:
        ages, numbers = np.array(list(counts.items())).T
        heights, _ = np.histogram(ages, edges, weights=numbers)
        axes.bar(edges[:-1] + step / 2, heights, 0.9 * step, color=shown.styles[run.label]["color"])
        mean = float(np.average(ages, weights=numbers))
        axes.axvline(mean, **DASHED)
        axes.set(xlabel="server steps", xlim=(edges[0], edges[-1]))
        axes.tick_params(labelbottom=True)
        _count(axes)
        return f"{run.label}: mean {mean:.1f}"

    return plot_style.panel_each(shown, pairs, 2, 230, draw, "updates", sharex=True)


def _count(axes: Axes) -> None:
    """Whole numbers on both axes, as of a histogram."""
    axes.grid(False, axis="x")
    axes.xaxis.set_major_locator(plot_style.whole())
    axes.yaxis.set_major_locator(plot_style.whole())


def participation(shown: ShownRuns) -> Figure | None:
    """A histogram per run: clients by the number of their visits that counted; those without any are grey."""
    pairs = [
        (run, counts)
        for run in shown.runs
        if (counts := visits.participation(run.query, run.scenario)).clients and (counts.counted or counts.wasted)
    ]

    def draw(axes: Axes, run: RecordedRun, counts: Participation) -> str:
        numbers = counts.histogram()
        width = max(numbers) // MOST_BARS + 1
        bins: Counter[int] = Counter()
        for number, clients in numbers.items():
            if number:
                bins[(number - 1) // width] += clients
        centres = [1 + width * place + (width - 1) / 2 for place in bins]
        if numbers.get(0):
            axes.bar([0], [numbers[0]], 0.9, color=theme.NOBODY, label="none")
        label, colour = f"{width} wide" if width > 1 else "clients", shown.styles[run.label]["color"]
        axes.bar(centres, list(bins.values()), 0.9 * width, color=colour, label=label)
        axes.set_xlabel("visits that counted")
        _count(axes)
        return f"{run.label}: {counts.never} of {counts.clients} never visited"

    return plot_style.panel_each(shown, pairs, 3, 230, draw, "clients")


def client_staleness(shown: ShownRuns) -> Figure | None:
    """A mark per client of each asynchronous run: its mean staleness against the mean length of its visits."""
    pairs = [
        (run, rows) for run in shown.runs if run.is_asynchronous and (rows := run.query(visits.STALENESS_OF_CLIENTS))
    ]
    scale, unit = plot_style.unit((np.array([row["seconds"] for row in rows], float) for _, rows in pairs), SECONDS)

    def draw(axes: Axes, run: RecordedRun, rows: Sequence[Any]) -> str:
        seconds, ages = [row["seconds"] / scale for row in rows], [row["staleness"] for row in rows]
        axes.scatter(seconds, ages, s=24, alpha=0.75, color=shown.styles[run.label]["color"], linewidths=0)
        axes.set(xlabel=f"mean length of a visit ({unit})", xlim=(0, None), ylim=(0, None))
        return run.label

    return plot_style.panel_each(shown, pairs, 2, 260, draw, "mean staleness (server steps)")


# --- the timeline of a round ----------------------------------------------------------------------------------------

MOST_CLIENTS = 40
"""Visits that are drawn of one round: the longest"""
MOST_AGGREGATORS = 16
"""Aggregators whose messages are drawn of one round: those that took longest"""
MOST_RUNS = 6
"""Runs that are drawn when there are several"""
LONG_ROUND_PIXELS = 15
PALE = 0.3
HATCHED: dict[str, Any] = {"facecolor": "none", "edgecolor": MUTED, "linewidth": 0, "hatch": "////"}
"""A visit that did not count, over its pale phases: colour alone would not tell it, or not print"""
BAR_HEIGHT = 0.72
MEDIAN = "median length"
WAITS = "waiting for others"
WASTED = "did not count"
LOST = "message that was lost"
VISITS_OF_ROUND = (
    "SELECT visit, client, kind, start_s, down_end_s, compute_end_s, up_end_s FROM visits WHERE round = ? "
    "ORDER BY visit"
)
MESSAGES_OF_ROUND = (
    f"SELECT {', '.join(AggregatorRow._fields)} FROM aggregators WHERE round = ? "
    "ORDER BY tier DESC, aggregator, start_s"
)


@dataclass(frozen=True)
class TimelineRow:
    """One visit; times in seconds from the round's start."""

    client: str
    """Its number, or name"""
    counted: bool
    start: float
    down_end: float
    device_end: float
    """Until which the device computes, if what it exchanges meanwhile comes after that"""
    compute_end: float
    up_end: float
    waited: float
    """Seconds from its end to the round's end; 0 if it did not count, or nobody waits"""


@dataclass(frozen=True)
class RoundTimeline:
    """The visits of one round."""

    round: int
    """From 1"""
    seconds: float
    rows: Sequence[TimelineRow]
    """In the order in which visits began; at most `MOST_CLIENTS`"""
    visits: int
    """Before that cut"""
    messages: Sequence[AggregatorRow] = ()
    """Between aggregators and what is above them, in seconds from the round's start: those of at most
    `MOST_AGGREGATORS`, by aggregator, the highest tier first"""
    aggregators: int = 0
    """Before that cut"""

    @property
    def places(self) -> dict[tuple[int, int], int]:
        """(tier, aggregator) -> its row, above those of clients."""
        keys = dict.fromkeys((row.tier, row.aggregator) for row in self.messages)
        return {key: place for place, key in enumerate(keys)}


def chosen_rounds(rows: Sequence[RoundRow]) -> dict[int, str]:
    """Round as the ledger numbers it -> why it is shown: the first, one of median length, the slowest.

    Rounds without length are left out, and of rounds of equal length the first is taken.
    """
    lengths = {row.round: row.end_s - row.start_s for row in rows if row.end_s > row.start_s}
    if not lengths:
        return {}
    reasons: dict[int, list[str]] = {next(iter(lengths)): ["first"]}
    for reason, wanted in ((MEDIAN, statistics.median_low(lengths.values())), ("slowest", max(lengths.values()))):
        round = next(round for round, length in lengths.items() if length == wanted)
        reasons.setdefault(round, []).append(reason)
    return {round: ", ".join(texts) for round, texts in reasons.items()}


def timeline(run: RecordedRun, round: int) -> RoundTimeline:
    """The visits that ended in a round, as the ledger numbers it."""
    row = next(row for row in run.rounds if row.round == round)
    seconds, visits = row.end_s - row.start_s, []
    for visit, client, kind, *times in run.query(VISITS_OF_ROUND, [round]):
        start, down_end, compute_end, up_end = (float(time) - row.start_s for time in times)
        waited = max(0.0, seconds - up_end) if kind in COUNTED and not run.is_asynchronous else 0.0
        device_end = max(compute_end - run.seconds_of_steps.get(visit, 0.0), min(down_end, compute_end))
        ends = start, down_end, device_end, compute_end, up_end, waited
        visits.append(TimelineRow(run.client_name(client), kind in COUNTED, *ends))
    longest = sorted(visits, key=lambda visit: visit.start - visit.up_end)[:MOST_CLIENTS]
    kept = [visit for visit in visits if visit in longest]
    taken: dict[tuple[int, int], float] = {}  # seconds of each aggregator's messages
    messages = []
    for message in map(AggregatorRow._make, run.query(MESSAGES_OF_ROUND, [round]) if run.has_tiers else ()):
        begin, end = message.start_s - row.start_s, None if message.end_s is None else message.end_s - row.start_s
        key = message.tier, message.aggregator
        taken[key] = taken.get(key, 0.0) + (0.0 if end is None else end - begin)
        messages.append(message._replace(start_s=begin, end_s=end))
    slowest = sorted(taken, key=lambda key: -taken[key])[:MOST_AGGREGATORS]
    shown = [message for message in messages if (message.tier, message.aggregator) in slowest]
    return RoundTimeline(round + 1, seconds, kept, len(visits), shown, len(taken))


def timelines(runs: Sequence[RecordedRun]) -> list[tuple[str, RoundTimeline]]:
    """(title, timeline): up to three rounds of a single run, or one of median length of each of several runs."""
    chosen = [(run, chosen_rounds(run.rounds)) for run in runs[:MOST_RUNS]]
    if len(runs) == 1:
        pairs = [(reason, run, round) for run, rounds in chosen for round, reason in rounds.items()]
    else:
        pairs = [
            (run.label, run, round) for run, rounds in chosen for round, reason in rounds.items() if MEDIAN in reason
        ]
    charts = [(reason, timeline(run, round)) for reason, run, round in pairs]
    return [(f"{reason}: round {chart.round}", chart) for reason, chart in charts if chart.rows]


def round_timeline(shown: ShownRuns) -> Figure | None:
    """A panel per timeline: a row per aggregator that has messages in it, then a row per client."""
    charts = timelines(shown.runs)
    ends = np.array([max(chart.seconds, *(row.up_end for row in chart.rows)) for _, chart in charts])
    scale, unit = plot_style.unit([ends], SECONDS)
    is_lost = any(row.end_s is None for _, chart in charts for row in chart.messages)
    has_steps = any(row.device_end < row.compute_end for _, chart in charts for row in chart.rows)

    def draw(axes: Axes, title: str, chart: RoundTimeline) -> str:
        rows = chart.places
        places = len(rows) + np.arange(len(chart.rows))
        times = np.array(
            [
                (row.start, row.down_end, row.device_end, row.compute_end, row.up_end, row.up_end + row.waited)
                for row in chart.rows
            ]
        )
        begins, widths = times[:, :-1] / scale, np.diff(times, axis=1).clip(0.0) / scale  # (clients, phases)
        for index, (name, colour) in enumerate((*PHASES[:2], STEPS, PHASES[-1], (WAITS, theme.NOBODY))):
            if (name, colour) == STEPS and not has_steps:
                continue
            bars = axes.barh(places, widths[:, index], BAR_HEIGHT, begins[:, index], color=colour, label=name)
            for bar, row in zip(bars, chart.rows, strict=True):
                bar.set_alpha(None if row.counted else PALE)
        for place, row in zip(places, chart.rows, strict=True):
            if not row.counted:
                begin, length = row.start / scale, (row.up_end - row.start) / scale
                axes.add_patch(Rectangle((begin, place - BAR_HEIGHT / 2), length, BAR_HEIGHT, **HATCHED))
        for direction, (name, colour) in (("down", PHASES[0]), ("up", PHASES[-1])):
            messages = [row for row in chart.messages if row.direction == direction and row.end_s is not None]
            lengths = [(row.end_s - row.start_s) / scale for row in messages if row.end_s is not None]
            at = [rows[row.tier, row.aggregator] for row in messages]
            axes.barh(
                at, lengths, BAR_HEIGHT, [row.start_s / scale for row in messages], color=colour, label=f"_{name}"
            )
        lost = [(row.start_s / scale, rows[row.tier, row.aggregator]) for row in chart.messages if row.end_s is None]
        if is_lost:
            axes.plot(*np.array(lost).reshape(-1, 2).T, "x", color=INK, label=LOST)
        axes.axvline(chart.seconds / scale, color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
        names = [f"tier {tier}, {aggregator}" for tier, aggregator in rows]
        axes.set_yticks(range(len(rows) + len(chart.rows)), [*names, *(row.client for row in chart.rows)])
        axes.set_ylim(len(rows) + len(chart.rows) - 0.4, -0.6)
        begins_at = [*(row.start for row in chart.rows), *(row.start_s for row in chart.messages)]
        axes.set_xlim(min(0.0, *begins_at) / scale, None)
        plot_style.bars(axes)
        axes.set_xlabel(f"virtual time in the round ({unit})")
        cut = f", the longest {len(chart.rows)} of {chart.visits} visits" if chart.visits > len(chart.rows) else ""
        cut += f", {len(rows)} of {chart.aggregators} aggregators" if chart.aggregators > len(rows) else ""
        if chart is charts[0][1] and any(not row.counted for _, other in charts for row in other.rows):
            axes.add_artist(Rectangle((0, 0), 0, 0, label=WASTED, **HATCHED))  # seen in the legend alone
        return title + cut

    height = 110 + LONG_ROUND_PIXELS * max((len(chart.places) + len(chart.rows) for _, chart in charts), default=0)
    label = "aggregator, client" if any(chart.messages for _, chart in charts) else "client"
    return plot_style.panel_each(shown, charts, 3, height, draw, label, with_legend=True)


# --- a recorded link ------------------------------------------------------------------------------------------------

LINK_COLOURS = ("#0072b2", "#d55e00")
RATES = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
MOST_STEPS = 1_000
"""Changes that are all drawn; of more, the means over so many equal parts of the run"""
MOST_CHANGES = 1_000_000
"""Changes within a run that are looked at"""
BUSIEST = "SELECT client FROM visits WHERE bytes_down > 0 GROUP BY client ORDER BY COUNT(*) DESC, client LIMIT 1"
VISITS_OF_CLIENT = (
    "SELECT start_s, down_end_s, compute_end_s, up_end_s, bytes_down, bytes_up FROM visits WHERE client = ?"
)


def recorded_link(shown: ShownRuns) -> Figure | None:
    """Down and up: the recorded rate of the client with most visits, and bytes over seconds of each of its messages."""
    for run in shown.runs:
        fleet, busiest = _fleet(run), run.query(BUSIEST)
        if fleet is not None and busiest:
            return _draw_link(shown, run, fleet, int(busiest[0]["client"]))
    return None


def _fleet(run: RecordedRun) -> Fleet | None:
    """The fleet of a run with recorded links; None without them, or if their files are not those of the run."""
    fleet, data = run.scenario.get("fleet") or {}, run.scenario.get("data") or {}
    if fleet.get("trace") is None and (fleet.get("bandwidth") or {}).get("kind") != "trace":
        return None
    kept = {key: data[key] for key in ("clients", "root") if key in data}
    tables = {"seed": run.scenario.get("seed", 0), "data": kept, "fleet": fleet}
    fleet_files.beside(tables, run.folder, is_recorded=True)
    try:
        files = fleet_files.read_inputs(scenario := Scenario.model_validate(tables))
        if any(run.environment.files.get(key) != sha256 for key, sha256 in files.sha256.items()):
            return None
        built = drawn_fleet(scenario, ("conv",), files)
    except (ValueError, OSError):  # whatever is wrong with the scenario or its files
        return None
    return built if isinstance(built.behaviour.variation, Replay | Samples) else None


def _draw_link(shown: ShownRuns, run: RecordedRun, fleet: Fleet, client: int) -> Figure | None:
    end = max(row.end_s for row in run.rounds)
    recorded = [series for direction in (DOWN, UP) if (series := _rates(fleet, client, direction, end)) is not None]
    if len(recorded) < 2:
        return None
    seconds, second_unit = plot_style.unit([np.array([end])], SECONDS)
    scale, rate_unit = plot_style.unit((rates for _, rates in recorded), RATES)
    figure, panels = shown.panels(2, 2, 260, sharex=True)
    messages = run.query(VISITS_OF_CLIENT, [client])
    for direction, (axes, (edges, rates)) in enumerate(zip(panels, recorded, strict=True)):
        axes.stairs(rates / scale, edges / seconds, baseline=None, color=LINK_COLOURS[direction], label="recorded")
        keys = (("start_s", "down_end_s", "bytes_down"), ("compute_end_s", "up_end_s", "bytes_up"))[direction]
        arrived = [
            (begin, end, 8 * nbytes / (end - begin))
            for begin, end, nbytes in ([row[key] for key in keys] for row in messages)
            if begin is not None and end is not None and begin < end < np.inf and nbytes
        ]
        begin, arrival, got = np.array(arrived, float).reshape(-1, 3).T
        axes.hlines(got / scale, begin / seconds, arrival / seconds, color=INK, lw=2.6, label="got by a message")
        axes.set(
            title=f"Client {run.client_name(client)}, {('down', 'up')[direction]}",
            xlabel=f"virtual time ({second_unit})",
        )
        axes.set_ylim(0, 1.08 * axes.dataLim.y1)
    panels[0].set_ylabel(f"rate ({rate_unit})")
    plot_style.legend(figure, panels[0])
    return figure


def _rates(fleet: Fleet, client: int, direction: int, end: float) -> tuple[Doubles, Doubles] | None:
    """(edges in seconds, bit/s between them) of the client's recorded link, without headers, from 0 to ``end``."""
    nominal = float((fleet.down, fleet.up)[direction][client]) / WIRE_FACTOR
    edges, rates = [0.0], list[float]()
    while edges[-1] < end:
        if len(rates) == MOST_CHANGES:
            return None
        factor, until = fleet.behaviour.variation.factor(client, direction, edges[-1])
        rates.append(nominal * factor)
        edges.append(min(until, end))
    if len(rates) <= MOST_STEPS:
        return (np.array(edges), np.array(rates)) if rates else None
    bits = np.concatenate(([0.0], np.cumsum(np.array(rates) * np.diff(edges))))
    fewer = np.linspace(edges[0], edges[-1], MOST_STEPS + 1)
    return fewer, np.diff(np.interp(fewer, edges, bits)) / np.diff(fewer)
