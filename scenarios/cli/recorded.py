"""The commands on runs that there are: report, audit, replay."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.api.requests import AuditRequest, MeasureRequest
from scenarios.cli.help_page import PlainCommand
from scenarios.cli.options import Json, Output, emit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scenarios.config.tables import TomlValue


class ReportCommand(PlainCommand):
    """The command ``report``, whose options for tables may be written without a path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments as given, with a path for each option that has none; ScenarioError for an empty one.

        An empty path would be the current folder, which nobody means by an empty variable of a shell.
        """
        from scenarios.config.errors import ScenarioError

        if "" in args:
            raise ScenarioError("report '': an argument is empty; name a folder, or . for the current one")
        return super().parse_args(ctx, with_default_paths(args))


TABLE_OPTIONS = ("--csv", "--parquet")
BESIDE_THE_REPORT = "."


def with_default_paths(words: Sequence[str]) -> list[str]:
    """The words of a command line, with `BESIDE_THE_REPORT` after a `TABLE_OPTIONS` that no path follows.

    A path is the next word, unless that is an option or a folder, which is to be reported.
    """
    filled = []
    for word, following in zip(words, [*words, "-"][1:], strict=True):
        filled.append(word)
        if word in TABLE_OPTIONS and (following.startswith("-") or Path(following).is_dir()):
            filled.append(BESIDE_THE_REPORT)
    return filled


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...", help="runs, comparisons, sweeps, studies, or folders that hold any of them"
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="the HTML file; runs.html by default for several runs; with --pack the archive",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="[PATH]",
            help="also write a row per round (counted from 0) as CSV, and evaluations beside it; "
            "by default rounds.csv beside the report",
        ),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="[PATH]", help="the same as Parquet; rounds.parquet by default")
    ] = None,
    figure: Annotated[
        str | None, typer.Option("--figure", metavar="NAME", help="write one figure of the report instead: curves, ..")
    ] = None,
    pdf: Annotated[
        Path | None, typer.Option("--pdf", help="file of the figure, also .svg or .png; NAME.pdf by default")
    ] = None,
    width: Annotated[str | None, typer.Option("--width", help="of the figure: 3.3in (by default), 84mm, 252pt")] = None,
    panel: Annotated[
        int | None, typer.Option("--panel", min=1, help="one panel of the figure alone; 1 is the first")
    ] = None,
    pack: Annotated[
        bool,
        typer.Option(
            "--pack",
            help="write an archive of one run or run set for readers, with its report and a README that says how to "
            "repeat it; by default SCENARIO-RUN.tar.gz in the current folder",
        ),
    ] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="an archive with checkpoints, which resume needs")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the report of any runs as one HTML file.

    Runs are grouped by what differs in their scenarios. No file of an archive has the path of a home folder, and the
    same run gives the same bytes.
    """
    from scenarios.config.errors import ReportError, ScenarioError
    from scenarios.report import figure_files
    from scenarios.report import html as reports
    from scenarios.run.run_finder import found

    if pack:
        others = {"--csv": csv, "--parquet": parquet, "--figure": figure, "--pdf": pdf, "--width": width}
        for option in (name for name, value in {**others, "--panel": panel}.items() if value is not None):
            raise ScenarioError(f"{option}: does not go with --pack")
        if len(folders) > 1:
            raise ScenarioError(f"{folders[1]}: an archive holds one run or run set; pack each by itself")
        _pack(folders[0], output, checkpoints, as_json)
        return
    for option, is_given in (("--checkpoints", checkpoints), ("--json", as_json)):
        if is_given:
            raise ScenarioError(f"{option}: is for an archive: add --pack")
    alone = {"--pdf": pdf, "--width": width, "--panel": panel}
    beside = {"--output": output, "--csv": csv, "--parquet": parquet}
    for option, value in (alone if figure is None else beside).items():
        if value is not None:
            why = "of one figure: name it with --figure" if figure is None else "of a whole report: leave out --figure"
            raise ScenarioError(f"{option} {value}: is {why}")
    try:
        if figure is None:
            print(reports.from_folders(folders, output, csv, parquet))
            return
        inches = figure_files.WIDTH_INCHES if width is None else figure_files.inches(width)
        path = pdf or Path(f"{figure}.pdf")
        figure_files.write(found(folders).folders, figure, path, inches, panel)
        print(path)
    except OSError as error:
        raise ReportError(f"cannot write {error.filename}: {error.strerror}") from None


def _pack(folder: Path, file: Path | None, checkpoints: bool, as_json: bool) -> None:
    """Write the archive of a run or run set, and say how large it is."""
    from costmodel.units import format_bytes
    from scenarios.studies import archive

    result = archive.pack(folder, file, checkpoints)
    text = f"{result['archive']}: {len(result['files'])} files, {format_bytes(result['bytes'])}"
    emit(result, as_json, lambda: print(text))
    for note in result["notes"]:
        print(f"fedbr: note: {note}", file=sys.stderr)


def audit(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="run folders, comparisons, sweeps, or folders of these")
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="also write an HTML page")] = None,
    as_json: Json = False,
    *,
    request: AuditRequest,
) -> None:
    """Show what runs cost: bytes, seconds and joules.

    Bytes are shown from those that papers count to those on the wire.

    A run with codecs is compared with its twin without, seed by seed, where both have reached the same accuracy;
    another run with the first of method=fedavg, or with --twin.
    """
    from scenarios.config.errors import ReportError
    from scenarios.studies import audit as study

    audited = study.audit(folders, request.target, request.twin)
    result = audited.result()
    try:
        page = None if output is None else study.write_page(audited, result, output)
    except OSError as error:
        raise ReportError(f"cannot write {error.filename}: {error.strerror}") from None
    emit(result, as_json, lambda: study.show(result, page))


def replay(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="a run folder; with --draws also several, comparisons or sweeps")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|KEY=VALUE]...",
            help='for example fleet.server.down="10 Mbit/s"; with --measure options of metrics, '
            "eval.metric_options.hessian.pairs=distinct",
        ),
    ] = None,
    draws: Annotated[
        int | None, typer.Option("--draws", help="draws of uncertain figures, for intervals; 100 are enough for most")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="of the draws; 0 by default")] = None,
    sigma: Annotated[
        list[str] | None, typer.Option("--sigma", metavar="BASIS=SIGMA", help="of the figures of a basis: assumed=0.5")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--measure",
            metavar="METRICS",
            help="measure the models of a stored checkpoint instead: names (fedbr list metrics), separated by commas",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-o", "--output", help="the JSON file of --measure; by default RUN/measure.json")
    ] = None,
    *,
    request: MeasureRequest,
    output: Output,
) -> None:
    """Compute a run's times on another fleet; measure its models.

    Times and energy of another fleet or link are computed without training. With --draws, compute intervals of the
    times under the uncertainty of devices, links and single visits, and for several methods the probability that one is
    faster. Runs that differ in their seed alone are pooled, and methods are compared seed by seed; with one seed, all
    figures are given its training. Without KEY=VALUE they are kept in RUN/uncertainty.json, for the report; nothing
    else is written.

    With --measure, measure metrics of the global model, and of clients' models: by default the local models after the
    visit that would follow, or, for methods without a global model, those that evaluations use. Nothing is charged, and
    no ledger is written.
    """
    from scenarios.config.errors import ScenarioError
    from scenarios.config.overrides import parsed
    from scenarios.studies import replay as study

    # Keys have no slash, and a run folder's path may have "=".
    settings = [word for word in words or [] if "=" in word and "/" not in word.partition("=")[0]]
    overrides = parsed(settings)
    folders = [folder, *(Path(word) for word in words or [] if word not in settings)]
    of_draws = {"--draws": draws, "--seed": seed, "--sigma": sigma or None}
    of_measurement = {"--output": file, "--round": request.round, "--clients": request.clients}
    of_measurement |= {"--workers": request.workers, "--device": None if request.device == "auto" else request.device}
    for option, value in (of_measurement if metrics is None else of_draws).items():
        if value is not None:
            why = "is for measurements: add --measure METRICS" if metrics is None else "does not go with --measure"
            raise ScenarioError(f"{option}: {why}")
    if metrics is not None:
        if len(folders) > 1:
            raise ScenarioError(f"{folders[1]}: does not go with --measure, which measures one run")
        _measure(folder, metrics, overrides, file, request, output)
        return
    if draws is not None:
        from scenarios.studies import uncertainty

        sigmas, allow_code = uncertainty.sigmas(sigma or []), request.allow_code
        drawn = uncertainty.replay_in_draws(folders, overrides, uncertainty.Draws(draws, seed or 0, sigmas), allow_code)
        kept: list[Path] = []
        try:
            kept = drawn.keep()
        except OSError as error:  # the result must be printed all the same
            print(f"fedbr: warning: the draws are not kept for reports: {error}", file=sys.stderr)
        emit(drawn.result(), output.as_json, lambda: uncertainty.show(drawn, kept))
        return
    if seed is not None or sigma:
        raise ScenarioError("--seed and --sigma are those of draws: add --draws 100")
    if len(folders) > 1:
        raise ScenarioError(f"{folders[1]}: only with --draws several runs are replayed, for example --draws 100")
    result = study.replay(folder, overrides, request.allow_code)
    emit(result, output.as_json, lambda: study.show(result))


def _measure(
    folder: Path,
    metrics: str,
    options: Mapping[str, TomlValue],
    file: Path | None,
    request: MeasureRequest,
    output: Output,
) -> None:
    """Measure metrics of a stored checkpoint's models, and write their values to a file."""
    from scenarios.config.errors import ScenarioError
    from scenarios.run import folder_files
    from scenarios.studies import measure as study

    if not metrics:
        raise ScenarioError("--measure: name metrics, for example hessian (fedbr list metrics)")
    path = file or folder / folder_files.MEASURED
    tell = study.progress_lines(output.tell)
    result = output.caller().measure(folder, metrics, options, request, tell)
    study.write(result, path)
    emit(result, output.as_json, lambda: study.show(result, path))
