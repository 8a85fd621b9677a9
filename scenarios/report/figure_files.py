"""One figure of the report as a file for a paper: PDF, SVG or PNG of a given width, with text of `FONT_POINTS`.

matplotlib is imported by the functions that use it, so that the command line starts fast.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.protocol.files import write_bytes
from scenarios.config.errors import Argument, ReportError
from scenarios.report.run_reader import RunGroup, grouped, open_runs
from scenarios.run.plugin_sources import not_imported

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT_POINTS = 8
"""Of labels and ticks, whatever the width: the size of captions in most papers"""
DRAWN_POINTS = 12
"""The same as figures are drawn, before they are scaled"""
WIDTH_INCHES = 3.3
"""Of a column in most papers"""
UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}
"""Unit of a width -> inches; a point is TeX's, in which \\columnwidth is printed"""
LEAST_INCHES, MOST_INCHES = 1.0, 40.0
SUFFIXES = (".pdf", ".svg", ".png")
DOTS_PER_INCH = 300
"""Of PNG files"""


def inches(text: str) -> float:
    """A width such as ``3.3in``, ``84 mm`` or ``252pt``; ReportError for any other text."""
    given = Argument("width", repr(text))
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)\s*", text)
    if match is None or match[2] not in UNITS:
        raise ReportError(given, f": must be a number with one of {', '.join(UNITS)}, such as 3.3in or 84mm")
    width = float(match[1]) * UNITS[match[2]]
    if not LEAST_INCHES <= width <= MOST_INCHES:
        raise ReportError(given, f": must be from {LEAST_INCHES:g}in to {MOST_INCHES:g}in")
    return width


def check_path(path: Path) -> None:
    """ReportError for a file that is of none of `SUFFIXES`."""
    if path.suffix not in SUFFIXES:
        kinds = ", ".join(SUFFIXES)
        raise ReportError(f"{path}: a figure is written as one of {kinds}: {path.with_suffix(SUFFIXES[0])}")


def groups_of(folders: Sequence[Path]) -> tuple[list[RunGroup], float | None]:
    """The runs of these folders as groups, and the target of the first."""
    runs = open_runs(folders)
    return grouped(runs), runs[0].target


@not_imported()
def write(
    folders: Sequence[Path], name: str, path: Path, width: float = WIDTH_INCHES, panel: int | None = None
) -> None:
    """Write a figure of these runs, ``width`` inches wide, or one panel of it (1 is the first).

    ReportError for a figure that the runs have no data for, and for a file of another kind; OSError.
    """
    import matplotlib
    from matplotlib.figure import Figure

    from scenarios.report import figures, plot_style

    check_path(path)
    groups, target = groups_of(folders)
    scale = FONT_POINTS / DRAWN_POINTS
    pixels = width * plot_style.PIXELS_PER_INCH / scale
    with matplotlib.rc_context({**plot_style.STYLE, "pdf.fonttype": 42, "legend.fontsize": 11}):
        if panel is None:
            figure = figures.one(plot_style.ShownRuns(groups, target), name)
        else:
            figure = Figure(figsize=(pixels / plot_style.PIXELS_PER_INCH, 330 / plot_style.PIXELS_PER_INCH))
            axes = figure.subplots()
            figures.draw_panels([axes], groups, target, name, panel)
            if (inside := axes.get_legend()) is not None:
                inside.remove()
                plot_style.legend(figure, axes)
        plot_style.make_compact(figure, pixels)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, _content(figure, path.suffix, scale))


def _content(figure: Figure, suffix: str, scale: float) -> bytes:
    """The figure as a file of this kind, as large as it is drawn times ``scale``; equal bytes for equal figures."""
    import matplotlib

    file = io.BytesIO()
    if suffix == ".png":
        dots = DOTS_PER_INCH * scale
        figure.savefig(
            file,
            format="png",
            dpi=dots,
            pil_kwargs={"dpi": (DOTS_PER_INCH, DOTS_PER_INCH)},
            metadata={"Software": None},
        )
        return file.getvalue()
    if suffix == ".svg":
        with matplotlib.rc_context({"svg.hashsalt": "figure"}):
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        return re.sub(
            rb'(width|height)="([0-9.]+)pt"',
            lambda found: b'%s="%.6gpt"' % (found[1], scale * float(found[2])),
            file.getvalue(),
            count=2,
        )
    # matplotlib has no scale of a whole PDF page: the page is made smaller, and all that is drawn on it.
    from matplotlib.backends import backend_pdf

    figure.set_dpi(72)
    width, height = figure.get_size_inches()
    pdf: Any = backend_pdf  # without types
    page = pdf.PdfFile(file, metadata={"CreationDate": None, "Creator": None, "Producer": None})
    page.newPage(scale * width, scale * height)
    page.output(scale, 0, 0, scale, 0, 0, pdf.Op.concat_matrix)
    on_page = pdf.RendererPdf(page, DOTS_PER_INCH, height, width)
    renderer = pdf.MixedModeRenderer(figure, width, height, DOTS_PER_INCH, on_page)
    figure.draw(renderer)
    renderer.finalize()
    page.finalize()
    page.close()
    return file.getvalue()
