"""The texts of a run folder, which may come from anyone: read within limits, and refused if no run writes such values.

Only what commands rely on is described here; other keys may hold any JSON, but no text that a terminal obeys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from coordinator.rounds.amounts import BYTES, VIRTUAL_SECONDS, Amount
from costmodel.files import parse_toml, read_bytes
from edge.protocol.bounds import MOST_INTEGER, MOST_NUMBER, NOT_IN_LINES

MOST_NBYTES = 1 << 27
"""Of one file; an environment has a few bytes for each class of each client"""
MOST_TABLES, MOST_LEVELS = 4_000_000, 32
"""Lists and tables of one file, and how deep they may lie in each other"""
Count = Annotated[int, Field(ge=0, le=MOST_INTEGER)]
Number = Annotated[float, Field(ge=-MOST_NUMBER, le=MOST_NUMBER, allow_inf_nan=False)]


class Record(BaseModel):
    """Keys that are there must have these types; None where a run may write null."""

    model_config = ConfigDict(extra="allow", strict=True)


AnyKind = TypeVar("AnyKind", bound=Record)


class _Goal(Record):
    target_accuracy: Number | None = None


class _Rounds(Record):
    policy: str = ""
    participants: Count | str | None = None


class _Data(Record):
    name: str = ""
    clients: Count | None = None


class _Model(Record):
    name: str = ""


class _Eval(Record):
    split: str = ""


class _Tier(Record):
    count: Count = 0


class _Tiers(_Tier):
    above: _Tier = _Tier()


class _Fleet(Record):
    tiers: _Tiers = _Tiers()


class ScenarioRecord(Record):
    """``scenario.toml``, without resolving it."""

    name: str = ""
    method: str = ""
    server: str = ""
    seed: Count = 0
    data: _Data = _Data()
    model: _Model = _Model()
    rounds: _Rounds = _Rounds()
    stop: _Goal = _Goal()
    eval: _Eval = _Eval()
    fleet: _Fleet = _Fleet()


class _OfDevice(Record):
    clients: Count
    mean: Number
    worst_decile: Number
    spread: Number


def _of_score(name: str) -> Any:
    """A figure of the score, which runs that are judged by their accuracy name after it."""
    return Field(None, validation_alias=AliasChoices(f"{name}_score", f"{name}_accuracy"))


class _Evaluation(Record):
    clients_score: Number | None = _of_score("clients")
    worst_decile: Number | None = None
    spread: Number | None = None
    by_device: dict[str, _OfDevice] = {}
    values: dict[str, Number | None] = {}


class _Best(Record):
    round: Count = 0
    rounds: Count = 0
    selected_by: str = ""
    accuracy: Number | None = None
    validation_score: Number | None = _of_score("validation")
    clients_score: Number | None = _of_score("clients")
    before_score: Number | None = _of_score("before")
    worst_decile: Number | None = None
    by_device: dict[str, _OfDevice] = {}


class _CutRound(Record):
    round: Count
    participants: Count
    accuracy: Number | None = None
    cut_by: str


class _Link(Record):
    tier: Count
    direction: str
    messages: Count
    nbytes: Count


class _AggregatorAccuracy(Record):
    rounds: Count
    server: Number | None = None
    mean: Number
    lowest: Number
    highest: Number
    spread: Number


class AggregatorsRecord(Record):
    wan_bytes: Count
    joules: Number
    idle_joules: Number
    price: Number
    contention_seconds: Number = 0
    wan_bytes_to_target: Count | None = None
    joules_to_target: Number | None = None
    price_to_target: Number | None = None
    accuracy: _AggregatorAccuracy | None = None
    score: _AggregatorAccuracy | None = None
    links: list[_Link] = []


class PaidRecord(Record):
    data: Number
    energy: Number
    bytes_by_gateway: dict[str, Number] = {}
    busiest: str = ""
    plan_used: Number | None = None
    month: dict[str, Number]


class CarbonSummaryRecord(Record):
    co2e_grams: Number
    joules: Number
    grams_per_kwh: Number
    zone: str | None = None
    year: Count | None = None
    source: str
    counts: str = ""
    leaves_out: str


class PrivacyRecord(Record):
    epsilon: Number | None = None
    delta: Number
    guarantee: str
    epsilon_of_clients: dict[str, Number] = {}


class SummaryRecord(Record):
    """How a run ended, in its ledger's table ``meta``, and as ``run --json`` prints it."""

    run_dir: str = ""
    """Not in the ledger"""
    method: str = ""
    seed: Count = 0
    rounds: Count
    accuracy: Number | None = None
    best_accuracy: Number | None = None
    metric: str = "accuracy"
    score: Number | None = None
    best_score: Number | None = None
    baselines: dict[str, dict[str, Number]] = {}
    evaluation: _Evaluation | None = None
    best_round: _Best | None = None
    cut_round: _CutRound | None = None
    virtual_seconds: Number = 0
    bytes_down: Count = 0
    bytes_up: Count = 0
    nominal_bytes: Number = 0
    flops: Number = 0
    nominal_flops: Number = 0
    joules: Number = 0
    joules_by_part: dict[str, Number] = {}
    aggregators: AggregatorsRecord | None = None
    paid: PaidRecord | None = None
    carbon: CarbonSummaryRecord | None = None
    privacy: PrivacyRecord | None = None
    phases: dict[str, dict[str, Number]] = {}
    steps: dict[str, Number] = {}
    wasted_bytes: Count = 0
    wasted_joules: Number = 0
    wasted_seconds: Number = 0
    bottlenecks: dict[str, Count] = {}
    visits: dict[str, Count] = {}
    seconds_by_basis: dict[str, Number] | None = None
    target_accuracy: Number | None = None
    target: Number | None = None
    time_to_target_s: Number | None = None
    bytes_to_target: Count | None = None
    rounds_to_target: Count | None = None
    stopped_by: str
    wall_seconds: Number | None = None
    model_sha256: str = ""
    data: str = ""
    warnings: list[str] = []
    method_notes: list[str] = []


PRINTED = frozenset(SummaryRecord.model_fields) - {
    *(
        "run_dir",
        "baselines",
        "evaluation",
        "best_round",
        "seconds_by_basis",
        "data",
        "warnings",
        "method_notes",
        "rounds_to_target",
    ),
    *("wasted_joules", "wasted_seconds", "visits", "aggregators", "carbon", "privacy", "phases", "steps"),
}
"""Keys without which a summary cannot be printed"""


class CommonBytes(Record):
    bytes: Number = 0


class CommonSeconds(Record):
    seconds: Number = 0


class _ComparedRun(Record):
    run_dir: str


class ComparisonRecord(Record):
    """``compare.json``; the most bytes and seconds that all of its runs have."""

    runs: list[_ComparedRun]
    target_accuracy: Number | None = None
    at_common_bytes: CommonBytes | None = None
    at_common_seconds: CommonSeconds | None = None

    @property
    def common(self) -> dict[Amount, float]:
        """Amount -> the most of it that all runs have."""
        limits: dict[Amount, float] = {}
        if self.at_common_bytes is not None:
            limits[BYTES] = self.at_common_bytes.bytes
        if self.at_common_seconds is not None:
            limits[VIRTUAL_SECONDS] = self.at_common_seconds.seconds
        return limits


TOO_DEEP = f"lists and tables lie more than {MOST_LEVELS} deep in each other"


def read_json(path: Path, kind: type[Record] = Record) -> dict[str, Any]:
    """The tables of a JSON file; ValueError with the reason if it is no regular file, too large, or of other types."""
    try:
        return parsed(read_bytes(path, MOST_NBYTES), kind)
    except ValueError as error:
        raise ValueError(str(error).removeprefix(f"{path}: ")) from None


def parsed(text: str | bytes, kind: type[Record]) -> dict[str, Any]:
    """The tables of a JSON text. ValueError as of `read_json`."""
    signs = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, signs)) > MOST_TABLES:  # type: ignore[arg-type]  # both are of the text's type
        raise ValueError(f"more than {MOST_TABLES:,} lists and tables")
    try:
        tables = json.loads(text)
        checked(tables, kind)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    return dict(tables)


def read_scenario(path: Path) -> tuple[str, dict[str, Any]]:
    """(text, tables) of a run's ``scenario.toml``, without files that it may extend. ValueError as of `read_json`."""
    try:
        text = read_bytes(path, MOST_NBYTES).decode()
        return text, scenario_tables(text)
    except ValueError as error:
        raise ValueError(str(error).removeprefix(f"{path}: ")) from None


def scenario_tables(text: str) -> dict[str, Any]:
    """The tables of a ``scenario.toml``. ValueError as of `read_json`."""
    if len(text.encode()) > MOST_NBYTES:
        raise ValueError(f"is larger than {MOST_NBYTES:,} bytes")
    try:
        tables = parse_toml(text)
        checked(tables, ScenarioRecord)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    return dict(tables)


def checked(tables: Any, kind: type[AnyKind]) -> AnyKind:
    """The tables as a record; ValueError, with the key, for values that no run writes."""
    _check_texts(tables, "", 0)
    try:
        return kind.model_validate(tables)
    except ValidationError as error:
        first = error.errors()[0]
        why = "must be a table" if first["type"] == "model_type" else first["msg"]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {why}".removeprefix(": ")) from None


def _check_texts(value: Any, key: str, level: int) -> None:
    """ValueError for a text that a terminal obeys, an integer that is no float, and levels beyond the limit."""
    if level > MOST_LEVELS:
        raise ValueError(TOO_DEEP)
    if isinstance(value, str):
        if NOT_IN_LINES.search(value):
            raise ValueError(f"{key}: has control characters")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            _check_texts(name, key or repr(name), level)
            _check_texts(inner, f"{key}.{name}" if key else name, level + 1)
    elif isinstance(value, list):
        for inner in value:
            if not isinstance(inner, float):
                _check_texts(inner, key, level + 1)
    elif isinstance(value, int) and abs(value) > 1 << 63:
        raise ValueError(f"{key}: is a number that no run writes")
