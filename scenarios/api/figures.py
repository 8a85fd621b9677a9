"""A figure of the report on its own, for notebooks and papers."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from costmodel.units import format_bytes
from edge.protocol.files import write_text
from scenarios.api.values import place
from scenarios.config.errors import ReportError
from scenarios.report import figure_files, theme
from scenarios.run.plugin_sources import not_imported

GivenAxes = TypeVar("GivenAxes")


@dataclass(frozen=True)
class DrawnFigure:
    """A figure as SVG; a notebook shows it."""

    name: str
    svg: str
    """One SVG element, as a file has it"""
    folders: tuple[Path, ...] = ()
    """Of its runs"""

    def __repr__(self) -> str:
        return f"<fedbr.DrawnFigure {self.name}: {format_bytes(len(self.svg))} of SVG, runs drawn: {len(self.folders)}>"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | PathLike[str], width: str | None = None) -> Path:
        """Write the figure to an SVG, PDF or PNG file and return its path; ReportError for a file of another kind.

        ``width``: for print, such as ``"3.3in"`` or ``"84mm"``, with text of 8 points; PDF and PNG files are as wide as
        a column by default, SVG files as the page of a report.
        """
        file = place("path", path)
        figure_files.check_path(file)
        if width is None and file.suffix == ".svg":
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, f"{self.svg}\n")
        else:
            try:
                inches = figure_files.WIDTH_INCHES if width is None else figure_files.inches(width)
            except ReportError as error:
                error.word_for_python()
                raise
            figure_files.write(self.folders, self.name, file, inches)
        return file


class RunFigures:
    """What runs have in common that can be drawn."""

    def run_folders(self) -> list[Path]:
        """The folders of the runs to draw."""
        raise NotImplementedError

    @overload
    def plot(self, figure: str = ..., ax: None = None) -> DrawnFigure: ...
    @overload
    def plot(self, figure: str, ax: GivenAxes, panel: int = 1) -> GivenAxes: ...
    @not_imported()
    def plot(self, figure: str = "curves", ax: Any = None, panel: int = 1) -> Any:
        """A figure of the report, by its name: ``curves``, ``timing``, ``bottlenecks``, ``blocks``, ``partition``, ..

        With ``ax``, axes of matplotlib or several of them, the figure's panels from number ``panel`` on (1 is the
        first) are drawn there, in the style of these axes, and ``ax`` is returned. ReportError, with the names that
        there are, for a figure that these runs have no data for.
        """
        from matplotlib.axes import Axes

        from scenarios.report import figures, html_figures, plot_style

        if not isinstance(figure, str):
            raise ReportError(f"figure = {figure!r}: must be the name of a figure, such as 'curves'")
        if isinstance(panel, bool) or not isinstance(panel, int) or panel < 1:
            raise ReportError(f"panel = {panel!r}: must be a number from 1 on")
        folders = self.run_folders()
        groups, target = figure_files.groups_of(folders)
        if ax is not None:
            axes = [ax] if isinstance(ax, Axes) else list(np.ravel(ax))
            if not all(isinstance(each, Axes) for each in axes):
                raise ReportError(f"ax = {ax!r}: must be axes of matplotlib, or a list of them")
            figures.draw_panels(axes, groups, target, figure, panel)
            return ax
        shown = plot_style.ShownRuns(groups, target)
        html = html_figures.inline(figure, lambda: figures.one(shown, figure))
        return DrawnFigure(figure, theme.standalone(html), tuple(folders))
