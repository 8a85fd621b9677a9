"""The report of runs: tables, figures and one HTML file that opens offline.

An unfinished run is reported up to its last committed round, and marked. matplotlib and jinja2 are imported by the
functions that use them, so that the command line starts fast.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edge.protocol.files import write_text
from edge.protocol.plugins import display_name
from scenarios.config.errors import worded
from scenarios.config.tables import leaves
from scenarios.report import drawn_times, groups, labels, method_style
from scenarios.report import result_tables as tables
from scenarios.report.columns import BYTES, FLOPS, SECONDS, Column
from scenarios.report.run_reader import RecordedRun, open_runs
from scenarios.report.run_tables import csv_table, parquet_table
from scenarios.report.tables import Table
from scenarios.run import client_values, visits
from scenarios.run.plugin_sources import not_imported
from scenarios.run.progress import percent
from scenarios.run.run_finder import FoundRuns, found

MAX_EVENTS = 200
MOST_CRITICAL, MOST_CRITICAL_BESIDE_OTHERS = 5, 3
"""Number of critical clients shown of a single run, or of each of several."""
MOST_DRAWN = 12
"""Number of an experiment's rows in figures."""
MOST_IN_TITLE, MOST_FACTS = 4, 4
"""Number of groups named in the title, and of different values of a fact."""
NO_BREAK = "\u00a0"
"""A space at which no line is broken"""
ELSEWHERE = ("partition", "blocks", "calibrations", "bases", "started_utc")
"""Parts of the environment that have their own sections."""


def from_folder(
    folder: Path, output: Path | None = None, csv_path: Path | None = None, parquet_path: Path | None = None
) -> Path:
    """Write the report of one folder, as `from_folders` does."""
    return from_folders([folder], output, csv_path, parquet_path)


BESIDE = Path()
"""In place of the path of a table: beside the report, as ``rounds.csv`` or ``rounds.parquet``."""
JOINED = "runs.html"
"""The default name of a report of several runs; a study's own ``report.html`` beside it stays."""


@not_imported()
def from_folders(
    folders: Sequence[Path],
    output: Path | None = None,
    csv_path: Path | None = None,
    parquet_path: Path | None = None,
) -> Path:
    """Write the report of runs, comparisons, studies, or folders of these, and its tables to the given paths.

    By default ``report.html`` in the folder of one run or comparison, and `JOINED` in another folder, or beside the
    first of several. ReportError as `found` raises it.
    """
    runs = found(folders)
    for reason in runs.left_out:
        print(f"fedbr: warning: left out: {reason}", file=sys.stderr)
    for parts in runs.unfinished:
        print(f"fedbr: note: {worded(parts)}", file=sys.stderr)
    place = _place(folders, runs)
    beside = output.parent if output is not None and not _is_special(output) else place.parent
    if csv_path is not None:
        csv_table(runs.folders, beside / "rounds.csv" if csv_path == BESIDE else csv_path)
    if parquet_path is not None:
        parquet_table(runs.folders, beside / "rounds.parquet" if parquet_path == BESIDE else parquet_path)
    return _write(_page(_title(folders, runs), runs), output or place, follow=output is not None)


def _place(folders: Sequence[Path], runs: FoundRuns) -> Path:
    """Where the report is written by default."""
    if len(folders) > 1:
        return folders[0].resolve().parent / JOINED
    is_whole = runs.comparison is not None or list(runs.folders) == list(folders)
    return folders[0] / ("report.html" if is_whole else JOINED)


def _title(folders: Sequence[Path], runs: FoundRuns) -> str:
    """The scenario, which names the folder above a run or comparison, and the labels of the groups."""
    names = list(dict.fromkeys(run.group for run in open_runs(runs.folders)))
    between = "; " if any(", " in name for name in names) else ", "
    rest = len(names) - MOST_IN_TITLE
    shown = between.join(names[:MOST_IN_TITLE]) + (f" and {rest} more" if rest > 0 else "")
    whole = runs.folders[0] if runs.comparison is None else folders[0]
    return f"{f'{len(runs.folders)} runs' if runs.several else whole.resolve().parent.name}: {shown}"


@not_imported()
def build(
    runs: Sequence[Path],
    output: Path,
    title: str,
    comparison: Mapping[str, Any] | None = None,
    follow: bool = False,
) -> Path:
    """Write the report of these run folders to ``output`` and return it.

    ``comparison`` is the result of `compare`: ``target_accuracy``, ``at_common_bytes`` and ``at_common_seconds``.
    ``follow``: write to the target of a link, a pipe or a terminal; otherwise ``output`` is replaced.
    ReportError if a folder is not a run.
    """
    return _write(_page(title, FoundRuns(runs, comparison)), output, follow)


@dataclass(frozen=True)
class ExperimentAnswer:
    """What stands on the page of an experiment above the report of its runs."""

    sentence: str
    """The result in words"""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Of the setting, before those of the runs"""
    figures: Sequence[tuple[str, str, str]] = ()
    """(name, HTML of `plot_style.svg`, caption)"""
    tables: Sequence[Table] = ()
    warnings: Sequence[str] = ()


def write_experiment(
    output: Path,
    title: str,
    answer: ExperimentAnswer,
    by_group: Sequence[groups.RunGroup],
    target: float | None = None,
    drawn: Collection[str] = (),
) -> Path:
    """Write the page of an experiment to ``output`` and return it: the answer, and the report of its runs.

    ``drawn``: labels of the groups in figures and in tables of single runs; by default the first `MOST_DRAWN`.
    """
    if not by_group:
        return _write(render("study.html.j2", title=title, answer=answer), output, follow=False)
    kept = set(drawn) or {group.label for group in by_group[:MOST_DRAWN]}
    left = len(by_group) - len(kept)
    note = [f"Figures and tables of single runs show {len(kept)} of {len(by_group)} rows."] if left > 0 else []
    sections = _sections(by_group, target, {}, (), kept)
    named = {*answer.facts, *(name.removesuffix("s") for name in answer.facts)}
    values = {
        **sections,
        "answer": answer,
        "facts": [*answer.facts.items(), *(fact for fact in sections["facts"] if fact[0] not in named)],
        "notices": [*groups.notices(by_group, with_unnamed=False), *note],
        "all_runs": sections["runs"],
    }
    return _write(render("report.html.j2", FILTERS, title=title, **values), output, follow=False)


def _page(title: str, runs: FoundRuns) -> str:
    opened, comparison = open_runs(runs.folders), runs.comparison or {}
    target = comparison.get("target_accuracy") or opened[0].scenario.get("stop", {}).get("target_accuracy")
    values = _sections(groups.grouped(opened), target, comparison, runs.left_out)
    return render("report.html.j2", FILTERS, title=title, answer=None, **values)


def render(template: str, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """A template of this package with these values; everything but figures is escaped."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    templates = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    templates.filters |= {"breakable": _breakable, **(filters or {})}
    return templates.get_template(template).render(**values)


def _breakable(text: str) -> str:
    """The text of a cell, which may be broken between a mean and its interval alone."""
    return text.replace(" ", NO_BREAK).replace(f"{NO_BREAK}±", " ±")


def _write(page: str, output: Path, follow: bool) -> Path:
    if follow and _is_special(output):
        with suppress(BrokenPipeError):  # whoever reads the pipe has seen enough
            output.write_text(page, encoding="utf-8")
        return output
    place = output.resolve() if follow else output
    if follow:
        place.parent.mkdir(parents=True, exist_ok=True)
    write_text(place, page)
    return output


def _is_special(path: Path) -> bool:
    """Whether a path is a pipe or a terminal."""
    return path.exists() and not path.is_file()


def _sections(
    by_group: Sequence[groups.RunGroup],
    target: float | None,
    comparison: Mapping[str, Any],
    left_out: Sequence[str],
    drawn: Collection[str] | None = None,
) -> dict[str, Any]:
    """The values of the template ``report.html.j2``, with the lines that labels have in figures as ``swatches``.

    Of groups with several seeds, figures and tables of single runs show the first. ``drawn``: labels of the groups in
    figures and tables of single runs; by default all.
    """
    from scenarios.report import figures, method_figures, theme
    from scenarios.report.plot_style import ShownRuns

    figured = ShownRuns(by_group, target, drawn=drawn)
    opened = [run for group in by_group for run in (*group.runs, *group.repeats)]
    shown = [group.first for group in by_group if drawn is None or group.label in drawn]
    nominal = any(run.shows_nominal for run in opened)
    on_clients = [run for run in shown if client_values.last(run.evaluations)]
    has_seeds = groups.has_seeds(by_group)
    most_critical = MOST_CRITICAL if len(shown) == 1 else MOST_CRITICAL_BESIDE_OTHERS
    return {
        "runs": shown,
        "all_runs": opened,
        "portable": all(run.is_portable for run in opened),
        "notices": groups.notices(by_group),
        "left_out_folders": left_out,
        "target": target,
        "nominal": nominal,
        "facts": _facts(opened, target),
        "groups": tables.over_seeds(by_group, target) if has_seeds else None,
        "differences": groups.differences(by_group) if len(by_group) > 1 else [],
        "group_labels": [group.label for group in by_group],
        "results": tables.results(opened if has_seeds else shown, target, comparison, nominal),
        "clients": tables.over_clients(shown),
        "best_rounds": tables.best_rounds(shown),
        "left_out": [(run.label, run.left_out) for run in on_clients if run.left_out],
        "warnings": [(run.label, text) for run in opened for text in (run.summary or {}).get("warnings", [])],
        "critical": [(run, visits.critical_clients(run.query, most_critical)) for run in shown],
        "most_critical": most_critical,
        "kinds": tables.kinds_of_visits(shown),
        "waste": [
            (run.label, visits.by_kind(run.query), row) for run, row in zip(shown, tables.waste(shown), strict=True)
        ],
        "bases": tables.bases(shown),
        "faulty": tables.faulty(shown),
        "costs": tables.costs(shown, nominal),
        "traffic": [(run.label, run.traffic()) for run in shown],
        "participants": tables.participants(shown),
        "energy": tables.energy(by_group, "group" if has_seeds else "method"),
        "energy_clients": [(run.label, tables.energy_of_clients(run)) for run in shown],
        "most_energy_clients": visits.MOST_CLIENTS,
        "partitions": _distinct((run, run.environment.partition) for run in shown if run.histogram),
        "blocks": _distinct((run, run.environment.blocks) for run in shown),
        "calibrations": _distinct((run, run.environment.calibrations) for run in shown),
        "environments": _distinct((run, _environment(run)) for run in opened),
        "events": [
            (
                run.label,
                run.query("SELECT COUNT(*) AS n FROM host_events")[0]["n"],
                run.query("SELECT kind, worker, detail, wall_s FROM host_events LIMIT ?", [MAX_EVENTS]),
            )
            for run in opened
        ],
        "figures": figures.draw(figured),
        "method_figures": method_figures.figures_of(figured.runs),
        "swatches": {
            label: (theme.themed(style["color"]), method_style.dash_array(style["linestyle"]))
            for label, style in figured.styles.items()
        },
        "drawn": _drawn(shown),
    }


def _drawn(opened: Sequence[RecordedRun]) -> dict[str, Any] | None:
    """Times in draws of uncertain figures: a table of runs, and one of pairs of runs; None if no run has any."""
    found = drawn_times.of_runs(opened)
    if not found:
        return None
    return {
        "runs": tables.drawn(found),
        "pairs": tables.chances(found),
        "reasons": [(run.label, times.reason) for run, times in found if times.reason],
        "sigmas": _distinct((run, times.sigmas) for run, times in found),
    }


def _facts(runs: Sequence[RecordedRun], target: float | None) -> list[tuple[str, str]]:
    """The setting in a few words, from the runs' scenarios; missing keys are left out."""
    wanted = (
        ("scenario", "name"),
        ("data", "data.name"),
        ("model", "model.name"),
        ("clients", "data.clients"),
        ("a round", "rounds.participants"),
        ("policy", "rounds.policy"),
        ("server optimizer", labels.SERVER),
        ("seed", "seed"),
    )
    known = [dict(leaves(run.scenario)) for run in runs]
    values = [
        (name, list(dict.fromkeys(each[key] for each in known if each.get(key) is not None))) for name, key in wanted
    ]
    facts = [(name, _several(found)) for name, found in values if found and found != [labels.PLAIN]]
    if target is not None:
        facts.append(("target", f"{100 * target:g} %"))
    sources = dict.fromkeys(run.environment.data.source for run in runs)
    if any(sources):
        facts.append(("data from", _several([source for source in sources if source])))
    started = runs[0].environment.started_utc
    return facts + ([("started" if len(runs) == 1 else "first started", started)] if started else [])


def _several(values: Sequence[Any]) -> str:
    """A few different values, or how many there are."""
    return display_name(", ".join(map(str, values))) if len(values) <= MOST_FACTS else f"{len(values)} different"


def _environment(run: RecordedRun) -> list[tuple[str, str]]:
    shown = {key: value for key, value in run.environment.tables().items() if key not in ELSEWHERE}
    return [(key, str(value)) for key, value in leaves(shown)]


def _distinct(pairs: Iterable[tuple[RecordedRun, Any]]) -> list[tuple[str, Any]]:
    """(labels of the runs that share it, value) for each distinct value that is not empty."""
    groups: list[tuple[list[str], Any]] = []
    for run, thing in pairs:
        if not thing:
            continue
        labels = next((labels for labels, known in groups if known == thing), None)
        if labels is None:
            groups.append(([run.label], thing))
        else:
            labels.append(run.label)
    return [(", ".join(labels), thing) for labels, thing in groups]


def _percent_or_dash(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else percent(value)


FILTERS: dict[str, Callable[..., Any]] = {
    "bytes": partial(Column.of, BYTES),
    "flops": partial(Column.of, FLOPS),
    "percent": _percent_or_dash,
    "seconds": partial(Column.of, SECONDS),
    "counted": visits.counted,
}
"""Name in the template -> the text of a value, or of all amounts of a column their `Column`."""
