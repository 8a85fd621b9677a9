"""The figures of a run's tiers: a tree of server, aggregators and clients, with the bytes of each of its links, and the
accuracies of aggregators' own models.

Aggregators beyond `MOST_LEAVES` are drawn in groups of those with like traffic. Of a group of seeds, the first run is
shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from costmodel.units import format_bytes
from scenarios.config.tables import leaves
from scenarios.report import plot_style, theme
from scenarios.report.plot_style import ShownRuns
from scenarios.report.run_reader import RecordedRun
from scenarios.report.theme import AXIS, INK, MUTED
from scenarios.run import aggregators, client_values, visits

MOST_LEAVES = 12
"""Rows of a tree: aggregators of the lowest tier, or groups of them"""
MOST_TREES = 6
"""Runs that are drawn when there are several"""
LEAF_PIXELS, FRAME_PIXELS = 46, 90
"""Height of a row, and of what is above and below all of them"""
WIDEST_PIXELS, THINNEST_PIXELS = 14.0, 0.8
"""Width of the lines, down and up together, of the link with most bytes, and of one with few"""


@dataclass(frozen=True)
class TreeNode:
    """A node that the figure draws, with the bytes of its link to what is above it."""

    name: str
    down: int = 0
    up: int = 0
    below: Sequence[TreeNode] = ()

    @property
    def leaves(self) -> int:
        """Rows that it takes."""
        return sum(node.leaves for node in self.below) or 1


def count_above(run: RecordedRun) -> int:
    """The number of aggregators in the tier above the lowest, or 1 where that is the server: number k is below number
    k modulo this (`costmodel.tiers.parents`)."""
    return max(1, dict(leaves(run.scenario)).get("fleet.tiers.above.count") or 1)


def tree(run: RecordedRun) -> TreeNode:
    """The server of a run with tiers, with all below it; clients' bytes are those of their visits.

    They are at the aggregator that a client belongs to, also where it had moved to another (``fleet.tiers.on_loss``),
    which the ledger does not say.
    """
    aggregator_of = run.environment.aggregator_of
    between = aggregators.by_aggregator(run.query)
    top = max(tier for tier, _ in between)
    clients = Counter(aggregator_of)
    below: dict[tuple[int, int], dict[str, int]] = {}  # of the clients of each aggregator
    for row in run.query(visits.BYTES_OF_CLIENTS):
        if 0 <= row["client"] < len(aggregator_of):
            own = below.setdefault((0, aggregator_of[row["client"]]), {"down": 0, "up": 0})
            own["down"] += row["down"]
            own["up"] += row["up"]
    above = count_above(run)
    lowest = sorted(clients.keys() | {number for tier, number in between if tier == 0})

    def linked(
        links: Mapping[tuple[int, int], Mapping[str, int]], tier: int, members: Sequence[int]
    ) -> tuple[int, int]:
        own = [links.get((tier, number), {}) for number in members]
        return sum(each.get("down", 0) for each in own), sum(each.get("up", 0) for each in own)

    def nodes(tier: int, members: Sequence[int], most: int) -> list[TreeNode]:
        """At most so many nodes for these aggregators."""
        groups = grouped(members, [sum(linked(between, tier, [number])) for number in members], most)
        return [node(tier, group, most // len(groups)) for group in groups]

    def node(tier: int, members: Sequence[int], most: int) -> TreeNode:
        if tier:
            chosen = set(members)
            inner = nodes(tier - 1, [number for number in lowest if number % above in chosen], most)
        else:
            count = sum(clients[number] for number in members)
            name = f"{count:,} client{'' if count == 1 else 's'}"
            inner = [TreeNode(name, *linked(below, 0, members))] if clients else []
        name = f"no. {members[0]}" if len(members) == 1 else f"{len(members):,} together"
        return TreeNode(name, *linked(between, tier, members), inner)

    highest = sorted({number % above for number in lowest}) if top else lowest
    return TreeNode("server", below=nodes(top, highest, MOST_LEAVES))


def grouped(members: Sequence[int], nbytes: Sequence[int], most: int) -> list[list[int]]:
    """The members by number, each alone; of more than ``most``, so many groups of equal size, those with most bytes
    first."""
    if len(members) <= most:
        return [[member] for member in members]
    order = sorted(range(len(members)), key=lambda place: (-nbytes[place], members[place]))
    ends = [len(order) * group // most for group in range(most + 1)]
    return [[members[place] for place in order[begin:end]] for begin, end in pairwise(ends)]


def tiers(shown: ShownRuns) -> Figure | None:
    """The tree of each run that has tiers, of at most `MOST_TREES`: the server on the left, clients on the right."""
    found = [(run, tree(run)) for run in shown.runs if run.links][:MOST_TREES]

    def draw(axes: Axes, run: RecordedRun, root: TreeNode) -> str:
        placed = list(_placed(root, 0.0, 0))
        most = max((node.down + node.up for node, *_ in placed), default=0) or 1
        levels = max(level for _, level, _, _ in placed)
        lines: dict[str, list[tuple[Any, float]]] = {"down": [], "up": []}
        for node, level, y, rows in placed:
            if rows:
                axes.plot([level, level], [rows[0], rows[-1]], color=AXIS, linewidth=1.2, label="_trunk", zorder=1)
            axes.plot([level], [y], "o", color=INK, markersize=5, label="_node", zorder=4)
            if level == 0:
                continue
            widths = [
                max(THINNEST_PIXELS, WIDEST_PIXELS * nbytes / most) if nbytes else 0.0
                for nbytes in (node.down, node.up)
            ]
            shift = (sum(widths) / 2 - widths[0] / 2) / LEAF_PIXELS, (widths[1] / 2 - sum(widths) / 2) / LEAF_PIXELS
            for direction, width, by in zip(lines, widths, shift, strict=True):
                lines[direction].append(([(level - 1, y - by), (level, y - by)], width))
            if not node.down + node.up:
                axes.plot([level - 1, level], [y, y], color=AXIS, linewidth=1.2, linestyle=(0, (1, 2)), label="_none")
            texts = ((node.name, INK, 1, "bottom"), (format_bytes(node.down + node.up), MUTED, -1, "top"))
            for text, colour, side, place in texts:
                offset = side * (sum(widths) / 2 + 2)
                axes.annotate(
                    text, (level - 0.5, y), (0, offset), textcoords="offset points", ha="center", va=place,
                    color=colour, fontsize=10.5,
                )  # fmt: skip
        for direction, colour in (("down", theme.DOWN), ("up", theme.UP)):
            segments, widths = [each for each, _ in lines[direction]], [width for _, width in lines[direction]]
            axes.add_collection(LineCollection(segments, linewidths=widths, colors=colour, capstyle="butt", zorder=2))
            axes.add_artist(Rectangle((0, 0), 0, 0, color=colour, label=direction))  # seen in the legend alone
        tiers_shown = max(link.tier for link in run.links) + 1
        names = ["server", *(f"tier {tier}" for tier in reversed(range(tiers_shown))), "clients"]
        axes.set_xticks(range(levels + 1), names[: levels + 1])
        axes.set_yticks([])
        axes.set(xlim=(-0.12, levels + 0.12), ylim=(root.leaves - 0.5, -0.5))
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)
        return run.label

    height = FRAME_PIXELS + LEAF_PIXELS * max((root.leaves for _, root in found), default=0)
    return plot_style.panel_each(shown, found, 2, height, draw, "", with_legend=True)


def aggregator_values(shown: ShownRuns) -> Figure | None:
    """By round, the score of the server's model, and the mean of aggregators' own with the band that they span."""
    found = [(run, own) for run in shown.runs if (own := client_values.of_aggregators(run.evaluations, run.score))]
    if not found:
        return None
    figure, (axes,) = shown.panels(1, 1, 330)
    for run, own in found:
        colour, marker = shown.styles[run.label]["color"], "o" if len(own) < 3 else ""
        of_server = client_values.of_global(run.evaluations, run.rounds, run.score)
        rounds = [min(round + 1, run.completed) for round in own]
        low, high = ([of.values[end] / shown.scale for of in own.values()] for end in (0, -1))
        axes.fill_between(rounds, low, high, color=colour, alpha=0.18, lw=0)
        means = [of.mean / shown.scale for of in own.values()]
        axes.plot(rounds, means, color=colour, linestyle=(0, (4, 2)), marker=marker)
        at = [min(round + 1, run.completed) for round in of_server]
        values = [value / shown.scale for value in of_server.values()]
        axes.plot(at, values, label=run.label, **shown.styles[run.label])
    plot_style.over_rounds(axes, title="Server, and aggregators (dashed: their mean)", ylabel=shown.score_label)
    plot_style.legend(figure, axes)
    return figure


def _placed(node: TreeNode, first: float, level: int) -> Iterator[tuple[TreeNode, int, float, list[float]]]:
    """(node, level, y, y of the nodes below it) of all nodes, from the row ``first`` on."""
    below: list[tuple[TreeNode, int, float, list[float]]] = []
    rows: list[float] = []
    for child in node.below:
        own = list(_placed(child, first, level + 1))
        rows.append(own[0][2])
        below += own
        first += child.leaves
    yield node, level, math.fsum((rows[0], rows[-1])) / 2 if rows else first, rows
    yield from below
