"""``fedbr report --pack``: a run or run set as one archive, with a README and no path of its author's home.

What is in it: scenario with the files that it names, environment, ledger, summary, report, what was measured, the
copies of a user's own modules, the sources of a Flower app, and of a run set its tables. Logs and data sets are left
out, but for the examples of ``data.file``, and checkpoints unless they are asked for. The same run gives the same
bytes: files are sorted, and are dated when the run began. Nothing is written into the folders.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from coordinator.records import foreign
from coordinator.records.names import PLACES, is_valid
from coordinator.rounds.amounts import BYTES, ENERGY, VIRTUAL_SECONDS
from costmodel.fleet.devices import devices
from costmodel.units import format_bytes
from edge.protocol import app_records
from edge.protocol.files import opened
from edge.protocol.home import abbreviated, contained, expanded
from edge.protocol.portable import PORTABLE
from edge.protocol.scratch import scratch
from edge.protocol.spelling import FLOWER_APP
from scenarios.config import fleet_files
from scenarios.config.errors import ReportError, ScenarioError, one_paragraph
from scenarios.config.fleet_files import INPUTS
from scenarios.config.tables import set_value, value_at
from scenarios.config.toml_writer import toml_text
from scenarios.report import drawn_times, html, terminal
from scenarios.report.run_reader import RecordedRun, open_runs
from scenarios.run import app_folder, folder_files, input_files, plugin_sources
from scenarios.run.folder_files import run_lock
from scenarios.run.progress import percent
from scenarios.run.run_folder import ENVIRONMENT, LEDGER, SCENARIO, RunFolder
from scenarios.run.run_records import PRINTED
from scenarios.studies.removal import FIGURES, OF_SETS
from scenarios.studies.run_list import MARKS, RunEntry, entry

UTF_8 = "utf-8"
README, SUMMARY, REPORT = "README.md", "summary.json", "report.html"
MEASURED = (folder_files.MEASURED, drawn_times.FILE)
FIRST_DATE = 315_532_800.0
"""The date of files of a run that does not say when it began: the first of 1980, before which some formats have no
dates"""
APP = "app"
"""Folder of the source files of a Flower app"""
MOST_ROWS = 100
"""Runs of a run set that its README lists"""


def pack(folder: Path, output: Path | None = None, checkpoints: bool = False) -> dict[str, Any]:
    """Write the archive of a run or run set, by default ``<scenario>-<run id>.tar.gz`` in the current folder.

    It holds one folder, ``<scenario>/<run id>``. Returns what ``report --pack --json`` prints: ``archive``, ``bytes``,
    ``files`` and ``notes`` of what a reader will miss, or its author should know. ScenarioError for a folder that
    is no run or run set, has committed nothing, or is running; OSError.
    """
    packed = entry(folder) if folder.is_dir() else None
    if packed is None:
        raise ScenarioError(one_paragraph(f"{folder}: is no run, and no folder of a run set"))
    runs = [run for run in (packed.runs if packed.is_set else (packed,)) if run.rounds]
    name = folder.resolve().name
    output = output or Path(f"{packed.scenario}-{name}.tar.gz")
    if output.is_dir():
        raise ScenarioError(f"{output}: is a folder; name the archive, such as {output / f'{name}.tar.gz'}")
    if not runs:
        raise ScenarioError(one_paragraph(f"{folder}: no round has been committed, so there is nothing to pack"))
    notes = [f"{run.folder.name} has not committed a round, and is left out" for run in packed.runs if not run.rounds]
    with ExitStack() as held, scratch() as place:
        for source in dict.fromkeys((packed.folder, *(run.folder for run in runs))):
            held.enter_context(run_lock(source))
        top = place / packed.scenario / name
        for run in runs:
            inside = top / run.folder.name if packed.is_set else top
            notes += _stage_run(run, inside, checkpoints, with_report=not packed.is_set)
        if packed.is_set:
            notes += _stage_set(packed, top)
        (top / README).write_text(_readme(packed, runs, top), UTF_8)
        files = sorted(path for path in place.rglob("*") if path.is_file())
        for path in files:
            if path.suffix not in (".safetensors", ".sqlite") and contained(path.read_bytes().decode(UTF_8, "replace")):
                notes.append(f"{path.relative_to(top)} has the path of your home folder")
        date = FIRST_DATE
        with suppress(ValueError):
            began = RunFolder(runs[0].folder).environment.started_utc
            date = max(FIRST_DATE, datetime.fromisoformat(began).timestamp())
        part = output.with_name(f"{output.name}.part")
        try:
            with (
                part.open("wb") as raw,
                gzip.GzipFile("", "wb", fileobj=raw, mtime=date) as zipped,
                tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                for path in files:
                    member = tarfile.TarInfo(str(path.relative_to(place)))
                    member.size, member.mtime, member.mode = path.stat().st_size, int(date), 0o644
                    with path.open("rb") as file:
                        archive.addfile(member, file)
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)
        names = [str(path.relative_to(place)) for path in files]
    return {"archive": str(output), "bytes": output.stat().st_size, "files": names, "notes": notes}


# --- the files of a run -----------------------------------------------------------------------------------------------


def _stage_run(run: RunEntry, place: Path, checkpoints: bool, with_report: bool) -> Iterator[str]:
    """Write a run's files into a folder; notes."""
    folder = run.folder
    folder_files.check(folder)
    place.mkdir(parents=True)
    yield from _stage_inputs(folder, place)
    yield from _stage_app(folder, place)
    yield from _stage_examples(folder, place)
    for name in (ENVIRONMENT, *(name for name in MEASURED if (folder / name).exists())):
        _copy_text(folder / name, place / name)
    if (described := folder / folder_files.DESCRIPTION).exists():
        _copy(described, place / described.name)
    with (
        closing(foreign.connect(folder / LEDGER)) as before,
        closing(sqlite3.connect(place / LEDGER, isolation_level=None)) as after,
    ):  # a copy without a log beside it, in which no text of this machine has a path of a home
        foreign.check_schema(before)
        before.backup(after)
        foreign.check_schema(after)
        after.create_function("abbreviated", 1, lambda text: abbreviated(text) if isinstance(text, str) else text)
        after.execute("PRAGMA journal_mode=DELETE")
        after.execute("UPDATE host_events SET detail = abbreviated(detail)")
        after.execute("UPDATE meta SET value = abbreviated(value)")
        after.execute("VACUUM")  # pages that are free may still hold what they did
    (recorded,) = open_runs([folder])
    if recorded.summary is not None:
        (place / SUMMARY).write_text(json.dumps(_relative(recorded.summary), indent=1), UTF_8)
    else:
        yield f"{folder.name} has not ended"
    for copy in plugin_sources.copies(folder):
        if copy.is_file() and not any(parent.is_symlink() for parent in (copy, *copy.parents)):
            _copy(copy, place / copy.relative_to(folder))
    for sub in (*PLACES, app_records.FOLDER) if checkpoints else ():
        for path in sorted((folder / sub).iterdir()) if (folder / sub).is_dir() else ():
            is_reply = sub == app_records.FOLDER and path.suffix == ".reply"
            if is_reply or (sub in PLACES and is_valid(sub, path.name)):
                _copy(path, place / sub / path.name)
    if with_report:
        yield from _stage_report(folder, place)
    elif (folder / REPORT).is_file():
        _copy_text(folder / REPORT, place / REPORT)


def _stage_inputs(folder: Path, place: Path) -> Iterator[str]:
    """The scenario with the files that it names, beside it in the folder `INPUTS`; notes on those that are not there.

    They are the run's copies; files of which it has none are taken from where they are.
    """
    recorded = RunFolder(folder)
    tables, found, before = dict(recorded.scenario), dict(recorded.scenario), recorded.environment.files
    fleet_files.beside(found, folder, is_recorded=True)
    root, has_copies = value_at(found, "data.root"), False
    for key in recorded.file_names:
        try:
            paths = fleet_files.with_those_beside(key, str(value_at(found, key)), None if root is None else str(root))
        except ScenarioError as error:
            yield f"{key}: is left out: {error}"
            continue
        names = [key, *(f"{key}, {path.name}" for path in paths[1:])]
        if any(fleet_files.sha256(key, path) != before.get(entry) for entry, path in zip(names, paths, strict=True)):
            yield f"{key}: is left out: {paths[0]} has changed since the run"
            continue
        for path in paths:
            _copy(path, place / INPUTS / key / path.name)
        set_value(tables, key, f"{INPUTS}/{key}/{paths[0].name}")
        has_copies = True
    if has_copies:
        (place / SCENARIO).write_text(abbreviated(toml_text(tables)), UTF_8)
    else:
        _copy_text(folder / SCENARIO, place / SCENARIO)
    measured = recorded.environment.calibrations.keys() - devices().keys()  # everybody has the devices that ship
    for name in sorted(measured) if "fleet.device_file" not in recorded.file_names else ():
        yield (
            f"fleet.devices: {name} was calibrated on this machine, and its figures are left out; those of a run with "
            f"fleet.device_file = {fleet_files.calibrated(name) or f'{name}.toml'} are not"
        )


def _stage_app(folder: Path, place: Path) -> Iterator[str]:
    """The source files of the Flower app that a run names; a note if they are not those of the run any more."""
    recorded = RunFolder(folder)
    if not recorded.method.startswith(FLOWER_APP):
        return
    app = expanded(recorded.method.removeprefix(FLOWER_APP))
    try:
        if app_folder.sources_sha256(app) != recorded.app_sha256():
            yield f"method: is left out: the Flower app {app} has changed since the run, or is not there"
            return
    except OSError as error:
        yield f"method: is left out: {error.filename}: {error.strerror}"
        return
    for path in app_folder.source_files(app):
        copy = place / APP / path.relative_to(app)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(app_folder.content(path))  # that which a link leads to, as in the hash


def _stage_examples(folder: Path, place: Path) -> Iterator[str]:
    """The examples of the file that a scenario names as its data; a note on them."""
    examples, named = folder / fleet_files.ARRAYS, value_at(dict(RunFolder(folder).scenario), fleet_files.DATA_FILE)
    if named is None or not examples.is_dir():
        return
    files = sorted(path for path in examples.iterdir() if path.is_file() and not path.is_symlink())
    nbytes = sum(path.stat().st_size for path in files)
    if nbytes > input_files.MOST_NBYTES:
        yield f"{fleet_files.DATA_FILE}: is left out: its examples are {format_bytes(nbytes)}"
        return
    for path in files:
        _copy(path, place / fleet_files.ARRAYS / path.name)
    yield f"{fleet_files.ARRAYS} has all examples of {fleet_files.DATA_FILE}, {format_bytes(nbytes)}"


def _stage_report(folder: Path, place: Path, name: str = REPORT) -> Iterator[str]:
    """The report that there is; otherwise one that is drawn now."""
    if (folder / name).is_file():
        _copy_text(folder / name, place / name)
        return
    try:
        html.from_folder(folder, place / name)
        (place / name).write_text(abbreviated((place / name).read_text(UTF_8)), UTF_8)
    except ReportError as error:
        yield f"there is no report: {error}"


def _copy_text(source: Path, target: Path) -> None:
    with opened(source) as file:
        target.write_text(abbreviated(file.read().decode(UTF_8)), UTF_8)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with opened(source) as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy)


def _relative(result: Any) -> Any:
    """A result with the names of run folders in place of their paths, so that a reader's own are never meant."""
    if isinstance(result, Mapping):
        paths = {key: Path(str(result[key])).name for key in ("run_dir",) if key in result}
        return {key: _relative(value) for key, value in result.items()} | paths
    if isinstance(result, list | tuple):
        return [_relative(item) for item in result]
    return abbreviated(result) if isinstance(result, str) else result


# --- the files of a run set -------------------------------------------------------------------------------------------


def _stage_set(packed: RunEntry, place: Path) -> Iterator[str]:
    folder = packed.folder
    for path in sorted(folder.iterdir()):
        if path.name in MARKS or (path.suffix == ".json" and OF_SETS.fullmatch(path.name)):
            with opened(path) as file:
                result = _relative(json.loads(file.read()))
            result |= {"folder": "."} if "folder" in result else {}
            (place / path.name).write_text(json.dumps(result, indent=1), UTF_8)
        elif OF_SETS.fullmatch(path.name) and path.suffix in (".csv", ".md", ".tex", ".html"):
            _copy_text(path, place / path.name)
    figures = folder / FIGURES
    for path in sorted(figures.glob("*.svg")) if figures.is_dir() and not figures.is_symlink() else ():
        (place / FIGURES).mkdir(exist_ok=True)
        _copy_text(path, place / FIGURES / path.name)
    if not list(place.glob("*.html")):
        yield from _stage_report(folder, place, REPORT if (folder / "compare.json").exists() else html.JOINED)


# --- README -----------------------------------------------------------------------------------------------------------


def _data_text(run: RecordedRun, names: Sequence[str], scenario: str) -> str:
    """The sentences on a run's data: what a reader has of them, and what not.

    ``names``: of what is packed; ``scenario``: of its file.
    """
    if APP in names:
        return (
            f"The sources of its Flower app are in `{APP}`. Read them first, since they are run. Then copy that folder "
            f'to another place, and name the copy in `{scenario}`: `method = "flower:PLACE"`. The data that it reads '
            "are not packed; replies of its clients, from which `replay` computes, are with `--checkpoints`."
        )
    data, arrays = run.environment.data, fleet_files.ARRAYS
    if arrays in names:
        where = f"Its examples are in `{arrays}`."
    elif (run.folder / arrays).is_dir():
        author = f"the author's run has them in `{arrays}`, a folder that belongs beside `{scenario}`."
        where = f"Its arrays are not packed: {author}"
    else:
        where = (
            "Data sets are never packed: this one must be where `fedbr` looks for it (`data.root`, `$FEDBR_DATA`), or "
            "can fetch it."
        )
    return f"Data: {_escaped(data.name)}, {_escaped(data.source)} (SHA-256 {_escaped(data.sha256)}). {where}"


def _readme(packed: RunEntry, runs: Sequence[RunEntry], place: Path) -> str:
    """``runs``: those that are packed; ``place``: the folder of the archive."""
    recorded = open_runs([run.folder for run in runs])
    run, heading, what, scenario, one = recorded[0], f"{packed.scenario}: {recorded[0].method}", "a run", SCENARIO, "."
    shown = recorded[:MOST_ROWS]
    accuracies = ["" if (accuracy := member.final()) is None else percent(accuracy) for member in shown]
    names = [path.name for path in place.iterdir()]
    if packed.is_set:
        names = [path.name for path in packed.folder.iterdir()]
        names += [plugin_sources.FOLDER] if (run.folder / plugin_sources.FOLDER).is_dir() else []
        names += [name for name in (APP, fleet_files.ARRAYS) if (place / run.folder.name / name).is_dir()]
        heading = f"{packed.scenario}: {packed.kind_text}"
        what = f"a {packed.kind_text} of {len(runs)} runs, each in a folder of its own"
        scenario, one = f"{run.folder.name}/{SCENARIO}", run.folder.name
        table = _table(
            ["run", "method", "seed", "rounds", "accuracy, final", "virtual time", "bytes", "energy"],
            [
                [
                    member.folder.name,
                    member.method,
                    str(member.scenario.get("seed", "")),
                    str(member.completed),
                    accuracy,
                    VIRTUAL_SECONDS.shown(VIRTUAL_SECONDS.total(member.trail)),
                    BYTES.shown(BYTES.total(member.trail)),
                    ENERGY.shown(ENERGY.total(member.trail)),
                ]
                for member, accuracy in zip(shown, accuracies, strict=True)
            ],
        )
        if len(recorded) > MOST_ROWS:
            table += f"\nThe first {MOST_ROWS} of {len(recorded)} runs.\n"
    elif run.summary is None or PRINTED - run.summary.keys():
        rows = [["rounds", str(run.completed)], ["accuracy, final", accuracies[0]], ["state", packed.state_text]]
        table = _table(["result", run.label], rows)
    else:
        summary = {**run.summary, "run_dir": str(packed.folder)}
        rows = [[name, texts[0]] for name, texts in terminal.run_rows([summary])]
        table = _table(["result", run.label], rows)
    made = run.environment
    parts = (*made.versions.items(), ("python", made.python), ("processor", made.processor))
    pages = [f"`{name}`" for name in sorted(names) if name.endswith(".html")]
    bits = (
        "The training is portable: every processor with AVX2 gives the same bits."
        if made.computes.get("instructions") == PORTABLE
        else "The same kind of processor and the same versions give the same bits; elsewhere numbers differ slightly."
    )
    advice = (
        f"Modules of its author are in `{plugin_sources.FOLDER}`. Read them first, since they are run. Then copy that "
        "folder to another place, and name the copy in `PYTHONPATH`."
    )
    return "\n".join(
        [
            f"# {_escaped(heading)}\n",
            f"This folder holds {what}, made by FedBR Edge {made.versions.get('fedbr-edge', '')}: federated learning,",
            "simulated with real training, a virtual clock and all bytes counted.\n",
            table,
            "## To look at it\n",
            f"    fedbr report {'.' if one == '.' else '. -o all.html'}",
            "    fedbr ls . --all\n",
            *([f"{', '.join(pages)}: to be opened in a browser, without a network.\n"] if pages else []),
            "`ledger.sqlite` has every round, visit and byte; `environment.json` machine, data and model.\n",
            "## To run it again\n",
            f"    fedbr run {scenario}",
            f"    fedbr diff --again {one}",
            f'    fedbr replay {one} fleet.server.up="1 Mbit/s"\n',
            "`diff --again` repeats a run, and names a round that differs; `replay` computes times on other links.",
            bits,
            f"{_data_text(run, names, scenario)}\n",
            *([f"{advice}\n"] if plugin_sources.FOLDER in names else []),
            _table(["made with", ""], [[name, value] for name, value in parts if value]),
        ]
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def _escaped(text: str) -> str:
    """A text in Markdown, on one line."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", one_paragraph(abbreviated(text.replace("\n", ", "))))
