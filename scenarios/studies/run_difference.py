"""``fedbr diff``: the difference of two runs, or of two scenarios: keys, environment, results, and the first round.

Two runs of the same scenario are the same if their rounds are, to the bit: their hash chains then agree. Of runs with
other scenarios, whose chains begin with other hashes, the rows of their rounds are compared: models, times, amounts.
No module of the user's is imported to read a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coordinator.records.schema import RoundRow
from coordinator.rounds.amounts import ENERGY, ROUNDS, VIRTUAL_SECONDS
from scenarios.config import fleet_files
from scenarios.config.errors import ReportError
from scenarios.config.load import Source, load
from scenarios.config.overrides import KeyValues
from scenarios.config.tables import TomlValue, leaves
from scenarios.config.toml_source import UNNAMED
from scenarios.report import labels, terminal
from scenarios.report.columns import BYTES, FLOPS, PERCENT, SECONDS, Quantity, cells
from scenarios.report.readings import SCORE, quantity
from scenarios.report.run_reader import RecordedRun, open_runs
from scenarios.report.tables import of_texts
from scenarios.run.run_folder import RunFolder, resolved_keys
from scenarios.run.score import OF_ACCURACY
from scenarios.run.setup import on_device
from scenarios.studies.run_list import entry

ENVIRONMENT = ("python", "versions", "platform", "processor", "cores", "device", "workers", "computes")
"""Keys of a run's environment that are compared"""
RESULTS: Mapping[str, tuple[str, Quantity | None]] = {
    "accuracy": ("accuracy, final", PERCENT),
    "best_accuracy": ("accuracy, best", PERCENT),
    "metric": ("judged by", None),
    "score": ("score, final", SCORE),
    "best_score": ("score, best", SCORE),
    ROUNDS.key: (ROUNDS.heading, quantity(ROUNDS)),
    VIRTUAL_SECONDS.key: (VIRTUAL_SECONDS.heading, quantity(VIRTUAL_SECONDS)),
    "time_to_target_s": (f"{VIRTUAL_SECONDS.heading} to the target", SECONDS),
    "bytes_down": ("bytes down", BYTES),
    "bytes_up": ("bytes up", BYTES),
    "flops": ("FLOPs", FLOPS),
    ENERGY.key: (ENERGY.heading, quantity(ENERGY)),
    "wall_seconds": ("wall time", SECONDS),
    "stopped_by": ("stopped by", None),
}
"""Key of a summary -> its name in tables, and what it holds"""
PAIRS = ("keys", "environment", "results")
Pairs = Mapping[str, tuple[Any, Any]]
"""Name -> the values of A and B; None where one has none"""


@dataclass(frozen=True)
class RunDifference:
    a: str
    b: str
    keys: Pairs
    """Keys of the scenario whose values differ"""
    environment: Pairs
    """Versions, machine, device and numerics that differ; empty if not both are runs"""
    results: Pairs
    """Key of a summary -> its values; empty if not both are runs"""
    rounds: tuple[int, int] | None
    """Committed rounds, for two runs"""
    first_round: int | None
    """The first round, from 1, whose rows differ, or that only one run has; None: the same result to the bit"""
    columns: tuple[str, ...]
    """Columns of the ledger's table ``rounds`` that differ there; empty where visits alone do, or a round is missing"""
    first_model: int | None
    """The first round, from 1, after which the models differ, or that only one run has"""

    @property
    def same(self) -> bool:
        """Whether the scenarios have the same keys and, for two runs, all rounds are the same."""
        return not self.keys and self.first_round is None

    def to_dict(self) -> dict[str, object]:
        """The result that ``diff --json`` prints."""
        pairs = {name: {key: list(pair) for key, pair in getattr(self, name).items()} for name in PAIRS}
        return asdict(self) | pairs | {"same": self.same}


def difference(a: Source, b: Source) -> RunDifference:
    """The difference of two run folders, of two scenarios, or of a run and a scenario.

    ScenarioError, and ReportError for a folder that is not a run.
    """
    before_name, after_name = (side if isinstance(side, str) else UNNAMED for side in (a, b))
    runs = [_run(side) if isinstance(side, str) and Path(side).is_dir() else None for side in (a, b)]
    device = next((RunFolder(run.folder).environment.device for run in runs if run is not None), None)
    settings = []
    for side, run in zip((a, b), runs, strict=True):
        if run is None:  # beside a run, with the defaults of the device that this run was on
            loaded = load(side)
            loaded = loaded if device is None else on_device(loaded, device)
        settings.append(resolved_keys(loaded.scenario) if run is None else run.settings)
    keys = _differing(*settings)
    first, second = runs
    if first is None or second is None:
        return RunDifference(before_name, after_name, keys, {}, {}, None, None, (), None)
    keys = _known_by_content(keys, settings, [run.environment.files for run in (first, second)])
    where, columns = _first_index(first.rounds, second.rounds), list[str]()
    if where is not None and where <= min(len(first.rounds), len(second.rounds)):
        pairs = zip(first.rounds[where - 1], second.rounds[where - 1], strict=True)
        columns = [name for name, (old, new) in zip(RoundRow._fields, pairs, strict=True) if old != new]
    elif where is None:
        begins = [run.query("SELECT value FROM meta WHERE key = 'genesis'")[0]["value"] for run in (first, second)]
        if begins[0] == begins[1]:  # only then do their chains tell apart visits whose rounds are the same
            query = "SELECT chain FROM rounds ORDER BY round"
            where = _first_index(*([row["chain"] for row in run.query(query)] for run in (first, second)))
    environments = []
    for run in (first, second):
        recorded = run.environment.tables()
        known = dict(leaves({key: recorded[key] for key in ENVIRONMENT if key in recorded}))
        environments.append(known | {"data": recorded.get("data", {}).get("sha256")})
    return RunDifference(
        *(before_name, after_name, keys),
        _differing(*environments),
        {key: tuple(_result(run, key) for run in (first, second)) for key in RESULTS},
        (first.completed, second.completed),
        where,
        tuple(columns),
        _first_index([row.model_sha256 for row in first.rounds], [row.model_sha256 for row in second.rounds]),
    )


def _run(name: str) -> RecordedRun:
    run_entry = entry(Path(name))
    if run_entry is not None and run_entry.is_set:
        inside = f": name one of its runs, such as {run_entry.runs[0].folder}" if run_entry.runs else ", without a run"
        raise ReportError(f"{name} is the folder of a {run_entry.kind_text}{inside}")
    return open_runs([Path(name)])[0]


def _result(run: RecordedRun, key: str) -> Any:
    is_accuracy = run.score == OF_ACCURACY
    if key.endswith("score") and is_accuracy:
        return None  # the accuracy says it
    if run.summary is not None:
        return run.summary.get(key)
    names = ("accuracy", "best_accuracy") if is_accuracy else ("score", "best_score")
    unfinished: dict[str, TomlValue] = {names[0]: run.final(), names[1]: run.best(), "rounds": run.completed}
    unfinished |= {"metric": run.score.metric}
    unfinished |= {"virtual_seconds": run.rounds[-1].end_s if run.rounds else 0.0}
    is_summed = key not in unfinished and key in RoundRow._fields
    return run.total(key) if is_summed else unfinished.get(key)


def _differing(a: KeyValues, b: KeyValues) -> dict[str, tuple[Any, Any]]:
    """The keys whose values differ: method, server and policy first, then the fleet's."""
    return {key: (a.get(key), b.get(key)) for key in labels.differing([a, b])}


def _known_by_content(
    keys: dict[str, tuple[Any, Any]], settings: Sequence[KeyValues], files: Sequence[Mapping[str, str]]
) -> dict[str, tuple[Any, Any]]:
    """The keys that differ between runs, of which files differ in content and not in name, as in archives.

    ``files``: of each run, key -> SHA-256.
    """
    changed, found = dict[str, tuple[Any, Any]](), dict(keys)
    for key in fleet_files.KEYS:
        before, after = (hashes.get(key) for hashes in files)
        if before is None or after is None:
            continue
        if before == after:
            found.pop(key, None)
        elif key not in found:
            names = [of.get(key) for of in settings]
            changed[key] = (f"{names[0]} ({before[:8]})", f"{names[1]} ({after[:8]})")
    return found | changed


def _first_index(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    """The first place, from 1, at which the lists differ, or one has ended; None if they are equal."""
    places = (index for index in range(max(len(a), len(b))) if a[index : index + 1] != b[index : index + 1])
    first = next(places, None)
    return None if first is None else first + 1


def show(result: RunDifference) -> None:
    terminal.print_facts([("A", result.a), ("B", result.b)])
    for title, pairs in (("scenario", result.keys), ("environment", result.environment)):
        rows = [[key, *(labels.value_text(value) for value in pair)] for key, pair in pairs.items()]
        if rows:
            terminal.print_table(of_texts(title, [title, "A", "B"], rows))
    rows = []
    for key, (name, held) in RESULTS.items() if result.results else ():
        pair = result.results[key]
        if any(value is not None for value in pair):
            rows.append([name, *(map(str, pair) if held is None else cells(held, pair, missing="-"))])
    if rows:
        terminal.print_table(of_texts("results", ["result", "A", "B"], rows))
    print(f"\n{verdict(result)}")


def verdict(result: RunDifference) -> str:
    """In a sentence or two, whether they differ, and from which round on."""
    scenario = "the scenarios are the same" if not result.keys else f"the scenarios differ in {len(result.keys)} keys"
    if len(result.keys) == 1:
        scenario = f"the scenarios differ in {next(iter(result.keys))}"
    if result.rounds is None:
        return scenario
    if result.first_round is None:
        return f"{scenario}; the same result to the bit in all {result.rounds[0]} rounds"
    if result.first_round > min(result.rounds):
        return f"{scenario}; the first {min(result.rounds)} rounds are the same to the bit, and then one run has ended"
    models = "" if result.first_model is None else f", the models from round {result.first_model} on"
    what = f" ({', '.join(result.columns)})" if result.columns else " (their visits)"
    return f"{scenario}; the rounds differ from round {result.first_round} on{what}{models}"
