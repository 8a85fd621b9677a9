"""The losses of a run: in training, as a mean over visits, and of the global model on the test set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from scenarios.report import plot_style
from scenarios.report.group_figures import Styles, against_rounds, by_round
from scenarios.report.groups import RunGroup

LOSSES = {"train_loss": "Training loss of clients", "test_loss": "Test loss"}
"""Column of ``rounds`` -> title"""


def losses(groups: Sequence[RunGroup], styles: Styles) -> Figure | None:
    """Training and test loss against rounds, one line per group; a loss that no run has is left out."""
    known = {
        column: [group for group in groups if all(by_round(run, column) for run in group.runs)] for column in LOSSES
    }
    known = {column: having for column, having in known.items() if having}
    if not known:
        return None
    figure, panels = plot_style.panels(len(known), len(known), 320)
    for axes, (column, having) in zip(panels, known.items(), strict=True):
        against_rounds(axes, having, styles, partial(by_round, column=column))
        axes.set(title=LOSSES[column], ylabel="cross-entropy (nats)")
    plot_style.legend(figure, max(panels, key=lambda axes: len(axes.get_lines())))
    return figure
