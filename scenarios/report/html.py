"""The report of runs: tables, figures and one HTML file that opens offline.

An unfinished run is reported up to its last committed round, and marked. matplotlib and jinja2 are imported by the
functions that use them, so that the command line starts fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edge.protocol.better import HIGHER
from edge.protocol.files import write_text
from edge.protocol.plugins import display_name
from scenarios.config.tables import leaves
from scenarios.report import calibration, drawn_times, labels, run_reader, theme
from scenarios.report import result_tables as tables
from scenarios.report.columns import BYTES, FLOPS, SECONDS, Column
from scenarios.report.run_reader import RecordedRun, open_runs
from scenarios.report.tables import Table, csv_text
from scenarios.run import client_values, visits
from scenarios.run.plugin_sources import not_imported
from scenarios.run.progress import Limits, percent
from scenarios.run.run_finder import FoundRuns, found
from scenarios.run.score import sentence

MAX_EVENTS = 200
MOST_CRITICAL, MOST_CRITICAL_BESIDE_OTHERS = 5, 3
"""Number of critical clients shown of a single run, or of each of several."""
MOST_DRAWN = 12
"""Number of an experiment's rows in figures."""
MOST_IN_TITLE, MOST_FACTS = 4, 4
APP_KEYS = ("name", "data.clients", "seed")
"""Keys that say something of the run of a Flower app, whose model, data and rounds are its own"""
"""Number of groups named in the title, and of different values of a fact."""
NO_BREAK = "\u00a0"
"""A space at which no line is broken"""
ELSEWHERE = (
    "partition",
    "blocks",
    "calibrations",
    "bases",
    "clients_by_device",
    "aggregator_of",
    "tiers",
    "started_utc",
)
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
    runs.print_notes()
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
    follow: bool = False,
) -> Path:
    """Write the report of these run folders to ``output`` and return it.

    ``follow``: write to the target of a link, a pipe or a terminal; otherwise ``output`` is replaced.
    ReportError if a folder is not a run.
    """
    return _write(_page(title, FoundRuns(runs)), output, follow)


@dataclass(frozen=True)
class ExperimentAnswer:
    """The part of an experiment's page above the report of its runs."""

    sentence: str
    """The result in words"""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts of the setting, before those of the runs"""
    figures: Sequence[tuple[str, str, str]] = ()
    """(name, HTML of `html_figures.svg`, caption)"""
    tables: Sequence[Table] = ()
    warnings: Sequence[str] = ()


def write_experiment(
    output: Path,
    title: str,
    answer: ExperimentAnswer,
    by_group: Sequence[run_reader.RunGroup],
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
    facts = _facts([run for group in by_group for run in (*group.runs, *group.repeats)], target)
    fact_names = {*answer.facts, *(name.removesuffix("s") for name in answer.facts)}
    values = {
        **sections,
        "answer": answer,
        "facts": [*answer.facts.items(), *(fact for fact in facts if fact[0] not in fact_names)],
        "notices": [*run_reader.notices(by_group, with_unnamed=False), *note],
        "all_runs": sections["runs"],
    }
    return _write(render("report.html.j2", FILTERS, title=title, **values), output, follow=False)


def _page(title: str, runs: FoundRuns) -> str:
    opened = open_runs(runs.folders)
    compared = runs.comparison
    target = (compared and compared.target_accuracy) or opened[0].target
    values = _sections(run_reader.grouped(opened), target, compared.common if compared else {}, runs.left_out)
    return render("report.html.j2", FILTERS, title=title, answer=None, **values)


def render(template: str, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """A template of this package with these values; everything but figures is escaped."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).with_name("templates"))
    templates = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    # The text of a cell may be broken between a mean and its interval alone.
    templates.filters["breakable"] = lambda text: text.replace(" ", NO_BREAK).replace(f"{NO_BREAK}±", " ±")
    templates.filters["sentence"] = sentence
    templates.filters |= filters or {}
    return templates.get_template(template).render(**values)


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
    by_group: Sequence[run_reader.RunGroup],
    target: float | None,
    common: Limits,
    left_out: Sequence[str],
    drawn: Collection[str] | None = None,
) -> dict[str, object]:
    """The values of the template ``report.html.j2``, with the lines that labels have in figures as ``swatches``.

    ``common``: amounts at which each run is also read. Of groups with several seeds, figures and tables of single runs
    show the first. ``drawn``: labels of the groups in figures and tables of single runs; by default all.
    """
    from scenarios.report import figures, method_figures
    from scenarios.report.plot_style import ShownRuns

    figured = ShownRuns(by_group, target, drawn=drawn)
    opened = [run for group in by_group for run in (*group.runs, *group.repeats)]
    shown = [group.first for group in by_group if drawn is None or group.label in drawn]
    nominal = any(run.shows_nominal for run in opened)
    on_clients = [run for run in shown if client_values.last(run.evaluations, run.score)]
    has_seeds = run_reader.has_seeds(by_group)
    most_critical = MOST_CRITICAL if len(shown) == 1 else MOST_CRITICAL_BESIDE_OTHERS
    return {
        "runs": shown,
        "accuracy": figured.accuracy,
        "metric": figured.score.metric,
        "metric_title": figured.score.title,
        "best": "highest" if figured.score.better is HIGHER else "lowest",
        "worst": "lowest" if figured.score.better is HIGHER else "highest",
        "all_runs": opened,
        "portable": all(run.is_portable for run in opened),
        "notices": run_reader.notices(by_group),
        "left_out_folders": left_out,
        "target": target,
        "target_text": "" if target is None else figured.score.text_of_target(target),
        "bound": "at least" if figured.score.better is HIGHER else "at most",
        "nominal": nominal,
        "facts": _facts(opened, target),
        "groups": tables.over_seeds(by_group, target) if has_seeds else None,
        "differences": run_reader.differences(by_group) if len(by_group) > 1 else [],
        "group_labels": [group.label for group in by_group],
        "results": tables.results(opened if has_seeds else shown, target, common, nominal),
        "privacy": _distinct((run, run.guarantee) for run in opened),
        "carbon": _distinct((run, run.carbon and run.carbon.account) for run in opened),
        "clients": tables.over_clients(shown),
        "best_rounds": tables.best_rounds(shown),
        "devices": [table for at_best in (False, True) if (table := tables.by_device(shown, at_best))],
        "device_means": tables.device_means(
            {group.label: [tables.means_of_devices(run) for run in group.runs] for group in by_group}, figured.score
        )
        if has_seeds
        else None,
        "rates": tables.by_rate(shown),
        "phases": tables.by_phase(shown),
        "steps": tables.by_step(shown),
        "links": tables.by_link(shown),
        "of_aggregators": tables.of_aggregators(shown),
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
        "calibrations": _distinct(
            (run, {name: calibration.rows(steps) for name, steps in run.environment.calibrations.items()})
            for run in shown
        ),
        "calibration_columns": calibration.COLUMNS,
        "environments": _distinct(
            (run, [(key, str(value)) for key, value in leaves(shown_here)])
            for run in opened
            for tables_of_run in [run.environment.tables()]
            for shown_here in [{key: table for key, table in tables_of_run.items() if key not in ELSEWHERE}]
        ),
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
            label: (
                theme.themed(style["color"]),
                "none"
                if isinstance(style["linestyle"], str)
                else " ".join(f"{1.9 * length:g}" for length in style["linestyle"][1]),
            )
            for label, style in figured.styles.items()
        },
        "drawn": _drawn([group for group in by_group if drawn is None or group.label in drawn]),
    }


@dataclass(frozen=True)
class DrawnTables:
    """Times in draws of uncertain figures."""

    groups: Table
    pairs: Table | None
    """Of groups"""
    reasons: Sequence[tuple[str, str]]
    """(label of a run, why its times are not drawn)"""
    sigmas: Sequence[tuple[str, object]]


def _drawn(groups: Sequence[run_reader.RunGroup]) -> DrawnTables | None:
    """None if no run has any."""
    by_group = drawn_times.of_groups(groups)
    if not by_group:
        return None
    runs = [
        (run, group_times.by_seed[run.seed])
        for group, group_times in by_group
        for run in group.runs
        if run.seed in group_times.by_seed
    ]
    return DrawnTables(
        tables.drawn(by_group),
        tables.chances(by_group),
        [(run.label, times.reason) for run, times in runs if times.reason],
        _distinct((run, times.sigmas) for run, times in runs),
    )


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

    def several(values: Sequence[Any]) -> str:
        return display_name(", ".join(map(str, values))) if len(values) <= MOST_FACTS else f"{len(values)} different"

    known = [{key: value for key, value in leaves(run.scenario) if not run.is_app or key in APP_KEYS} for run in runs]
    values = [
        (name, list(dict.fromkeys(settings[key] for settings in known if settings.get(key) is not None)))
        for name, key in wanted
    ]
    facts = [(name, several(entries)) for name, entries in values if entries and entries != [labels.PLAIN]]
    if target is not None:
        facts.append(("target", runs[0].score.text_of_target(target)))
    sources = dict.fromkeys(run.environment.data.source for run in runs)
    if any(sources):
        facts.append(("data from", several([source for source in sources if source])))
    started = runs[0].environment.started_utc
    return facts + ([("started" if len(runs) == 1 else "first started", started)] if started else [])


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


FILTERS: dict[str, Callable[..., Any]] = {
    "bytes": partial(Column.of, BYTES),
    "flops": partial(Column.of, FLOPS),
    "percent": lambda share: "–" if share is None or math.isnan(share) else percent(share),
    "seconds": partial(Column.of, SECONDS),
    "counted": visits.counted,
}
"""Name in the template -> the text of a value, or of all amounts of a column their `Column`."""


# --- tables of runs as files ------------------------------------------------------------------------------------------


def csv_table(runs: Sequence[Path], path: Path) -> Path:
    """Write the rounds of these run folders as CSV; a missing accuracy or loss is an empty cell.

    Runs with evaluations, messages of aggregators, or numbers that methods have logged, have these written beside it:
    ``a-evaluations.csv``.
    """
    for file, rows in _run_tables(open_runs(runs), path).items():
        file.parent.mkdir(parents=True, exist_ok=True)
        head = list(rows[0]) if rows else ["run", "method", "seed", "round"]
        # Not replaced as a whole, since it may be a pipe, whose reader may have seen enough.
        with suppress(BrokenPipeError), file.open("w", encoding="utf-8", newline="") as stream:
            stream.write(csv_text(head, (row.values() for row in rows)))
    return path


def parquet_table(runs: Sequence[Path], path: Path) -> Path:
    """Write the tables of `csv_table` as Parquet."""
    import pyarrow
    import pyarrow.parquet

    for file, rows in _run_tables(open_runs(runs), path).items():
        file.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return path


RowValue = str | float | bytes | None


def _run_tables(runs: Sequence[RecordedRun], path: Path) -> dict[Path, list[dict[str, RowValue]]]:
    """File -> rows: one per run and round, with running totals of the bytes; and beside it those of other tables.

    A table of which no run has a row has no file, nor is there a place beside a pipe.
    """
    by_file: dict[Path, list[dict[str, RowValue]]] = {path: []}
    has_tiers = any(run.has_tiers for run in runs)
    for run in runs:
        head = {"run": run.folder.name, "method": run.method, "seed": run.scenario.get("seed")}
        for row, point in zip(run.rounds, run.trail, strict=True):
            totals: dict[str, float | None] = {"bytes_so_far": point.nbytes}
            totals["nominal_bytes_so_far"] = point.nominal_nbytes
            if has_tiers:
                totals |= {"wan_bytes_so_far": point.wan_nbytes, "price_so_far": point.price}
            by_file[path].append(head | row._asdict() | totals | {"group": run.group})
        others: dict[str, Sequence[Any]] = {
            "evaluations": run.evaluations,
            "aggregators": run.aggregators,
            "logged": run.logged,
        }
        for table, values in others.items() if not _is_special(path) else ():
            beside = path.with_name(f"{path.stem}-{table}{path.suffix}")
            for value in values:
                by_file.setdefault(beside, []).append(head | value._asdict())
    return by_file
