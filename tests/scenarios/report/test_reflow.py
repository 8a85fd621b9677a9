"""Long labels in the wide and in the narrow layout of a figure."""

from __future__ import annotations

from matplotlib.figure import Figure

from scenarios.report import plot_style, reflow

LONG = "fedavg, server=fedadam, fedbuff, raspberry-pi-5 0.5 + jetson-nano 0.5"


def bars(*labels: str) -> Figure:
    """Two panels with a bar per label, as of a report."""
    figure, panels = plot_style.panels(2, 2, 90 + 44 * len(labels), sharey=True)
    for axes in panels:
        axes.barh(range(len(labels)), [1.0] * len(labels), label=LONG)
    panels[0].set_yticks(range(len(labels)), reflow.wide_ticks(labels))
    plot_style.legend(figure, panels[0])
    return figure


def test_long_labels_at_ticks_leave_room_for_both_layouts() -> None:
    # A warning of matplotlib's, that axes collapsed to nothing, is an error here.
    import matplotlib

    with matplotlib.rc_context(plot_style.STYLE):
        figure = bars(LONG, "fedbr")
        assert [text.get_text().count("\n") for text in figure.axes[0].get_yticklabels()] == [1, 0]
        plot_style.svg(figure, "bars")
    width, height = figure.get_size_inches() * plot_style.PIXELS_PER_INCH
    assert round(width) == reflow.NARROW_PIXELS
    for axes in figure.axes:
        texts = [text.get_text() for text in axes.get_yticklabels()]
        assert max(len(line) for text in texts for line in text.split("\n")) <= reflow.TICK_LETTERS
        assert " ".join(texts[0].split("\n")).replace("- ", "-") == LONG
        assert axes.get_position().width * width > reflow.NARROW_PIXELS / 3
        lines = 1 + texts[0].count("\n")
        assert axes.get_position().height * height / len(texts) > lines * reflow.TICK_LINE_PIXELS


def test_a_long_label_of_a_legend_stays_inside_a_narrow_figure() -> None:
    import matplotlib

    with matplotlib.rc_context(plot_style.STYLE):
        figure = bars("fedavg")
        plot_style.svg(figure, "bars")
        box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_rows_are_as_high_as_their_labels_and_titles_as_wide_as_their_panels() -> None:
    ticks = reflow.wide_ticks([LONG, f"{LONG} {LONG}"])
    assert [text.count("\n") for text in ticks] == [1, 3]
    assert (reflow.row_pixels(ticks[:1], 34), reflow.row_pixels(ticks, 34)) == (34, 4 * reflow.TICK_LINE_PIXELS)
    assert [reflow.wide_title(LONG, columns).count("\n") for columns in (1, 2, 3)] == [0, 0, 1]
