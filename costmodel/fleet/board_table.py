"""Tables of boards: a spreadsheet, saved as CSV, whose rows become the devices of a user.

A header is a name with a unit: ``memory (GB)``, ``power [W]``, ``memory_gb``, ``GFLOP/s``, or a key of a TOML row, such
as ``memory_bytes``. A cell may have a unit of its own, which goes before that of the header; without either it is
refused. A throughput is in FLOP/s, or follows from the seconds of a step of a model, whose FLOPs the caller counts.
Name, throughput, memory and power in training are needed, as in a TOML row. All else that a row lacks is assumed: it is
that of a shipped device (``like``), throughputs in its ratio of families, power of waiting in its ratio to that of
training.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from costmodel import units
from costmodel.files import read_bytes
from costmodel.fleet.csv_table import CsvTable, parse_table
from costmodel.fleet.devices import (
    BASES,
    FAMILIES_OF_ALL,
    LARGEST_NBYTES,
    MUST_BE_POSITIVE,
    Device,
    devices,
    in_ratio,
    made_row,
)

TABLES = (".csv", ".tsv", ".txt")
SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
LIKE = "raspberry-pi-4"
"""The device whose figures stand for those that a row lacks, where it names no other: a fleet's default"""
MOST_MODELS = 32
"""Models and widths of which one table may have steps: each is counted in a process of its own"""
StepFlops = Callable[[str, int | None, str], tuple[str, float]]
"""(model, width or None for its own, data set or '' for a usual one) -> (family, FLOPs of a training step of one
example); ValueError for others"""


class Measure(NamedTuple):
    """What a column with numbers measures."""

    key: str
    """Of a TOML row; `STEP` for the step of a model"""
    parse: units.Parser
    usual: str
    """The unit that a number without one was most likely meant in"""


STEP = "step"
FAMILIES = ("conv", "depthwise", "dense", "attention")
_POWER = Measure("train_watts", units.watts, "W")
_SPEED = Measure("flops_per_second.conv", units.flops_per_second, "GFLOP/s")
MEASURES: Mapping[str, Measure] = {
    "memory": Measure("memory_bytes", units.nbytes, "GB"),
    "ram": Measure("memory_bytes", units.nbytes, "GB"),
    "power": _POWER,
    "train": _POWER,
    "train_power": _POWER,
    "idle": Measure("idle_watts", units.watts, "W"),
    "idle_power": Measure("idle_watts", units.watts, "W"),
    "clock": Measure("clock_hz", units.hertz, "GHz"),
    "overhead": Measure("step_seconds", units.seconds, "ms"),
    STEP: Measure(STEP, units.seconds, "ms"),
    "speed": _SPEED,
    "throughput": _SPEED,
    **{family: Measure(f"flops_per_second.{family}", units.flops_per_second, "GFLOP/s") for family in FAMILIES},
}
"""Name in a header -> what it measures"""
BY_UNIT = (_POWER, _SPEED)
"""Measures whose columns may be called by their unit alone"""
LABELS = {
    "board": "name", "device": "name", "name": "name", "model": "model", "batch": "batch", "width": "width",
    "data": "data", "basis": "basis", "source": "source", "year": "year", "like": "like",
}  # fmt: skip
"""Name in a header -> column of texts and whole numbers"""
ALIKE = 0.8
"""Likeness of a header to a known one, from which on it is taken for a slip of the pen"""
READ = ("measured", "training", "read")
"""Words for figures that were measured in training or read in a source as their field means it"""
_HEADER = re.compile(r"(?P<name>.*?)\s*[(\[]\s*(?P<unit>[^)\]]*?)\s*[)\]]")
_NUMBER = re.compile(r"[-+]?[\d.,]+([eE][-+]?\d{1,3})?")
_FLOPS = re.compile(r"([kKmMgGtTpPeE]?)flops", re.IGNORECASE)
_SPELT = {"watts": "W", "seconds": "s", "bytes": "B", "hertz": "Hz"}


def is_table(path: Path) -> bool:
    """Whether a user's file of devices is a table, by the end of its name; others are TOML."""
    return path.suffix.lower() in (*TABLES, *SPREADSHEETS)


@dataclass(frozen=True)
class Header:
    """The columns of a table, by what they are."""

    measures: Mapping[str, tuple[str, Measure, str]] = field(default_factory=dict)
    """Key -> (header, measure, unit or '')"""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Column of `LABELS` -> header"""
    unread: tuple[str, ...] = ()
    """Headers of all others"""


def read_boards(path: Path, step_flops: StepFlops) -> dict[str, Device]:
    """The devices of a table, by name; ValueError that names file, line and column of the first error."""
    table, header = _read(path)
    counted = set[tuple[str, int | None, str]]()

    def limited(model: str, width: int | None, data: str) -> tuple[str, float]:
        counted.add((model, width, data))
        if len(counted) > MOST_MODELS:
            raise ValueError(f"more than {MOST_MODELS} models and widths in one table")
        return step_flops(model, width, data)

    columns = {heading: table.labels(heading) for heading in table.column}
    names = table.distinct(header.labels["name"])
    rows = (_Row(table, header, row, {key: texts[row] for key, texts in columns.items()}) for row in range(len(names)))
    return {name: row.device(name, limited) for name, row in zip(names, rows, strict=True)}


def unread_columns(path: Path) -> tuple[str, ...]:
    """The columns of a table that are not read, such as a price."""
    return _read(path)[1].unread


def _read(path: Path) -> tuple[CsvTable, Header]:
    raw = read_bytes(path, LARGEST_NBYTES)
    if path.suffix.lower() in SPREADSHEETS or raw.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise ValueError(f"{path}: is a spreadsheet's own file; save it as CSV")
    table = parse_table(path, raw)
    return table, _header(table)


# --- headers ----------------------------------------------------------------------------------------------------------


def _header(table: CsvTable) -> Header:
    measures: dict[str, tuple[str, Measure, str]] = {}
    labels: dict[str, str] = {}
    unread = []
    for heading in table.column:
        where = f"{table.path}, line 1, column {heading}"
        folded = _folded(heading)
        if "score" in re.split(r"[\W_]+", folded):
            raise ValueError(
                f"{where}: a benchmark's score is no speed: it adds up times of inference on a scale of its own; give "
                "GFLOP/s, or the seconds of a training step of a model"
            )
        if folded in LABELS:
            key = LABELS[folded]
            previous, labels[key] = labels.get(key), heading
        elif (found := _measured(where, heading)) is not None:
            key = found[0].key
            previous, measures[key] = (measures[key][0] if key in measures else None), (heading, *found)
        else:
            name = _folded(_HEADER.sub(r"\g<name>", heading))
            near = difflib.get_close_matches(name, [*MEASURES, *LABELS], 1, ALIKE)
            if near:
                raise ValueError(f"{where}: unknown, did you mean {near[0]!r}?")
            unread.append(heading)
            continue
        if previous is not None:
            raise ValueError(f"{where}: is the same as {previous}; keep one")
    has_speed = any(key.startswith("flops_per_second") for key in measures)
    if STEP in measures and "model" not in labels and has_speed and "step_seconds" not in measures:
        measures["step_seconds"] = measures.pop(STEP)  # as in a TOML row: the overhead
    _refuse_missing(table, measures, labels)
    return Header(measures, labels, tuple(unread))


def _refuse_missing(table: CsvTable, measures: Mapping[str, object], labels: Mapping[str, str]) -> None:
    where = f"{table.path}, line 1"
    if STEP in measures:
        for label in ("model", "batch"):
            if label not in labels:
                raise ValueError(f"{where}: column {label} is missing, of which the column of seconds is a step")
    elif not any(key.startswith("flops_per_second") for key in measures):
        raise ValueError(f"{where}: there is no throughput: a column GFLOP/s, or step (ms) with model and batch")
    for name, is_there in (
        ("name", "name" in labels),
        ("memory (GB)", "memory_bytes" in measures),
        ("watts", "train_watts" in measures),
    ):
        if not is_there:
            raise ValueError(f"{where}: column {name} is missing")


def _folded(text: str) -> str:
    return re.sub(r"[\s_-]+", "_", text.strip().lower())


def _measured(where: str, heading: str) -> tuple[Measure, str] | None:
    """What a column measures, and its unit or ''; None for any other column. ValueError for an unknown unit."""
    match = _HEADER.fullmatch(heading)
    if match and (measure := MEASURES.get(_folded(match["name"]))):
        unit = _FLOPS.sub(r"\1FLOP/s", match["unit"])
        try:
            measure.parse(f"1 {unit}")
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        return measure, unit
    folded = _folded(match["name"] if match else heading)  # what is in brackets is a remark, as in GFLOP/s (fp32)
    if folded.startswith("flops_per_second"):  # as a TOML row has it
        known = MEASURES.get(folded.removeprefix("flops_per_second").lstrip("._") or "speed")
        return None if known is None else (known, "FLOP/s")
    if folded in MEASURES:
        return MEASURES[folded], ""
    name, _, word = folded.rpartition("_")
    for known in (MEASURES[name],) if name in MEASURES else () if name else BY_UNIT:
        if unit := _unit(word, known.parse):
            return known, unit
    return None


def _unit(word: str, parse: units.Parser) -> str:
    """The unit that a word in small letters stands for at the end of a header, such as gb or watts; '' for others."""
    known = [*units.PARSERS[parse], *(units.BINARY_BYTES if parse is units.nbytes else ())]
    wanted = _SPELT.get(word, _FLOPS.sub(r"\1FLOP/s", word)).lower()
    return next((unit for unit in known if unit.lower() == wanted), "")


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """A row of a table."""

    table: CsvTable
    header: Header
    row: int
    cells: Mapping[str, str]
    """Header -> text"""

    def device(self, name: str, step_flops: StepFlops) -> Device:
        """The device that the row describes."""
        given = dict(self._given())
        for key in ("memory_bytes", "train_watts"):
            if key not in given:
                raise self._error(self.header.measures[key][0], "the cell is empty")
        step = given.pop(STEP, None)
        speeds = {key.partition(".")[2]: given.pop(key) for key in [*given] if key.startswith("flops_per_second.")}
        if step is not None:
            if speeds:
                raise self._error(self.header.measures[STEP][0], "the row has FLOP/s already; leave one of them empty")
            # Without an overhead of its own, the step's seconds have it in them.
            overhead = given.setdefault("step_seconds", 0.0)
            if overhead >= step:
                raise self._error(self.header.measures[STEP][0], f"{step:g} s are no more than the overhead")
            speeds = self._of_step(step - overhead, step_flops)
        elif not speeds:
            raise self._error(self.header.labels["name"], f"{name} has no throughput: the cells are empty")
        like = self._like()
        try:
            others = in_ratio(speeds, like, FAMILIES_OF_ALL)
        except ValueError as error:
            raise self._error(self.header.labels["name"], f"{name}: {error}") from None
        taken = {
            "step_seconds": like.step_seconds,
            "idle_watts": given["train_watts"] * like.idle_watts / like.train_watts,
            "clock_hz": like.clock_hz,
        }
        taken = {key: figure for key, figure in taken.items() if key not in given}
        keys = [*given, *(f"flops_per_second.{family}" for family in speeds)]
        source, basis = self._text("source"), self._basis()
        lists = {each: [*keys] if each == basis else [] for each in BASES}
        lists["assumed"] += [*taken, "modes", *(f"flops_per_second.{family}" for family in others)]
        of_like = ", ".join([*others, *taken])
        texts = [source or "no source is said", *([f"of {like.name}: {of_like}"] if of_like else [])]
        line = self.table.lines[self.row]
        row = {
            **given,
            **taken,
            "memory_bytes": round(given["memory_bytes"]),
            "flops_per_second": speeds | others,
            "modes": [1.0],
            "source": "; ".join(texts),
            "year": self._whole("year") or 0,
            **lists,
        }
        return made_row(Device, f"{self.table.path}, line {line}: row {name!r}", name, row)

    def _given(self) -> Iterator[tuple[str, float]]:
        """The figures of the row, by key, in SI."""
        for key, (heading, measure, unit) in self.header.measures.items():
            text = self.cells[heading]
            if not text:
                continue
            if _NUMBER.fullmatch(text):
                if not unit and text.strip("+-0.,"):
                    usual = measure.usual
                    raise self._error(
                        heading,
                        f"{text} has no unit: {usual}? write {heading} ({usual}), or {text} {usual} in the cell",
                    )
                text = f"{text} {unit}" if unit else text
            positive = key.partition(".")[0] in MUST_BE_POSITIVE or key == STEP
            yield key, self.table.number(self.row, heading, text, positive, parse=measure.parse)

    def _of_step(self, seconds: float, step_flops: StepFlops) -> dict[str, float]:
        """Throughputs that the seconds of a step give."""
        name, batch, width = self._text("model"), self._whole("batch"), self._whole("width")
        for label, value in (("model", name), ("batch", batch)):
            if not value:
                raise self._error(self.header.labels[label], "the cell is empty, but the row has seconds of a step")
        try:
            family, flops = step_flops(name, width, self._text("data"))
        except ValueError as error:
            raise self._error(self.header.labels["model"], str(error)) from None
        throughput = flops * (batch or 0) / seconds
        # A narrower or wider form of the model has a pace of its own.
        return {family: throughput} if width else {name: throughput, family: throughput}

    def _like(self) -> Device:
        name = self._text("like") or LIKE
        if name not in devices():
            raise self._error(self.header.labels["like"], f"no device {name!r} ships, {units.nearest(name, devices())}")
        return devices()[name]

    def _basis(self) -> str:
        """The list that has the row's own figures; '' if they are as a source has them."""
        word = self._text("basis").lower()
        if word and word not in (*READ, *BASES):
            raise self._error(self.header.labels["basis"], f"{word!r}: {units.nearest(word, [*READ, *BASES])}")
        if not word:
            return "" if self._text("source") else "assumed"
        return "" if word in READ else word

    def _text(self, label: str) -> str:
        """A cell of a column of `LABELS`; '' without such a column."""
        return self.cells[self.header.labels[label]] if label in self.header.labels else ""

    def _whole(self, label: str) -> int | None:
        text = self._text(label)
        if text and not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
            raise self._error(self.header.labels[label], f"{text!r} is not a whole number above 0")
        return int(text) if text else None

    def _error(self, heading: str, reason: str) -> ValueError:
        return self.table.error(self.row, heading, reason)
