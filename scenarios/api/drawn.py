"""A figure of the report on its own, for notebooks and papers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path

from edge.protocol.files import write_text
from edge.protocol.spelling import nearest
from scenarios.api.values import place
from scenarios.config.errors import ReportError
from scenarios.report.run_reader import RecordedRun, open_runs
from scenarios.run.plugin_sources import not_imported


@dataclass(frozen=True)
class DrawnFigure:
    """A figure as SVG; a notebook shows it."""

    name: str
    svg: str
    """One SVG element, as a file has it"""

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the figure to an SVG file and return its path; ReportError for a path of another kind."""
        file = place("path", path)
        if file.suffix != ".svg":
            raise ReportError(f"{file}: figures are SVG files: {file.with_suffix('.svg')}")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, f"{self.svg}\n")
        return file


def figure(folders: Sequence[Path], name: str) -> DrawnFigure:
    """The figure of this name in the report of these runs; ReportError for one that the report does not have."""
    from scenarios.report import plot_style

    if not isinstance(name, str):
        raise ReportError(f"figure = {name!r}: must be the name of a figure, such as 'curves'")
    drawn = _drawn(tuple(folders), tuple(map(state, open_runs(folders))))
    if name not in drawn:
        raise ReportError(
            f"figure {name!r}, {nearest(name, sorted(drawn))}; these runs have data for: {', '.join(drawn)}"
        )
    return DrawnFigure(name, plot_style.standalone(drawn[name]))


def state(run: RecordedRun) -> tuple[Hashable, ...]:
    """What differs if a run goes on, or if another one has taken its folder's name or place.

    Its last row has the hash of the model.
    """
    return run.folder.resolve(), len(run.rounds), run.completed, run.rounds[-1] if run.rounds else None


@lru_cache(maxsize=2)
@not_imported()
def _drawn(folders: tuple[Path, ...], states: tuple[tuple[Hashable, ...], ...]) -> dict[str, str]:
    """All figures of the report, which are drawn together; ``states`` of the runs, which may still be running."""
    from scenarios.report import figures
    from scenarios.report.groups import grouped
    from scenarios.report.plot_style import ShownRuns

    runs = open_runs(folders)
    target = (runs[0].scenario.get("stop") or {}).get("target_accuracy")
    return figures.draw(ShownRuns(grouped(runs), target))
