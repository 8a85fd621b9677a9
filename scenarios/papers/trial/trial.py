"""One part of FedBR's trial as an experiment: means over seeds, differences from FedAvg, and an analysis of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.rounds.amounts import BYTES, ENERGY, NOMINAL_BYTES, VIRTUAL_SECONDS
from scenarios.config.overrides import words
from scenarios.experiment.experiment import Experiment, ExperimentPage, ExperimentRow, Result
from scenarios.experiment.run_set import missing_note
from scenarios.experiment.statistics import paired
from scenarios.papers.trial.variants import CALIBRATED, TrialPart
from scenarios.report import bands, run_reader, terminal
from scenarios.report.columns import PERCENT, POINTS
from scenarios.report.readings import ACCURACY, AMOUNTS, quantity, until
from scenarios.report.tables import Cell, Number, Table, TableColumn, csv_text
from scenarios.run.progress import Trail, final, spread

KIND = "trial"
Figure = tuple[str, str, str]
"""(name, inline SVG, caption)"""
Say = Callable[[str], None]
"""Shows a line of progress."""
Row = Mapping[str, Any]
"""One of the result's ``variants``"""
SHOWN = ((VIRTUAL_SECONDS, "time"), (BYTES, "bytes"), (NOMINAL_BYTES, "nominal"), (ENERGY, "energy"))
"""Amounts until a target, with their headings"""
READ_AS = "mean ± half the 95 % interval (Student's t over seeds); differences are paired over seeds, in points"
COMPARED = "from FedAvg: of the same norm, and calibrated where the variant is"


@dataclass(frozen=True)
class TrialRow(ExperimentRow):
    """One variant on one skew."""

    variant: str
    skew: str
    reference: str
    """Name of the row of FedAvg that it is compared with"""


@dataclass(frozen=True)
class PartAnalysis:
    """What one part reads off its runs beside what all parts have; without the runs that it needs it has nothing."""

    result: Callable[[Trial, Result, Say], dict[str, Any]]
    """(part, the result so far, progress) -> further keys"""
    tables: Callable[[Result], list[Table]]
    figures: Callable[[Result], Sequence[Figure]] = lambda result: ()
    files: Callable[[Result], Mapping[str, str]] = lambda result: {}
    """Name -> text of further files"""
    is_alone: bool = False
    """Whether the figures that all parts have are left out"""


NOTHING = PartAnalysis(lambda trial, result, say: {}, lambda result: [])


@dataclass(frozen=True)
class Trial(Experiment):
    """One part of a trial: its result, tables, figures and page are named after the part."""

    rows: tuple[TrialRow, ...]
    name: str = ""
    part: TrialPart | None = None
    target: float = 0.0
    """The one of `targets` that figures show"""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Variant or skew -> why this scenario does not have it"""
    analysis: PartAnalysis = NOTHING
    say: Say = lambda text: None
    """Shows the progress of what follows the runs"""

    @property
    def result_file(self) -> str:
        """``PART.json``."""
        return f"{self.name}.json"

    @property
    def page_file(self) -> str:
        """``PART.html``."""
        return f"{self.name}.html"

    def result(self, done: Result) -> dict[str, Any]:
        """``variants``, a row each, and the keys of the part's analysis."""
        curves = self.trails(done["runs"])
        result = {
            "part": self.name,
            "scenario": self.run_set.name,
            "seeds": list(self.seeds),
            "target": self.target,
            "targets": list(self.targets),
            "left_out": dict(self.left_out),
            "variants": [self._row(row, curves) for row in self.rows if row.name in curves],
            **done,
        }
        return result | self.analysis.result(self, result, self.say)

    def _row(self, row: TrialRow, curves: Mapping[str, Mapping[int, Trail]]) -> dict[str, Any]:
        own = curves[row.name]
        return {
            "name": row.name,
            "variant": row.variant,
            "skew": row.skew,
            "method": row.method,
            "overrides": words(row.settings),
            "seeds": list(own),
            "accuracy": ACCURACY.over_seeds(own.values()),
            "reference": row.reference,
            "difference": None if row.reference == row.name else difference(own, curves.get(row.reference, {})),
            "to_target": [to_target(list(own.values()), target) for target in self.targets],
        }

    def page(self, result: Result) -> ExperimentPage:
        """The figures and tables of the analysis, which answer the part's question, first."""
        assert self.part is not None
        return ExperimentPage(
            f"{self.run_set.name}: {self.part.title}",
            f"{self.part.question} Each variant ran once per seed, to the scenario's last round. Bytes are counted on "
            "the messages, down and up, of all clients; time and energy are the simulated fleet's.",
            {"scenario": self.run_set.name, "part": self.name, "seeds": ", ".join(map(str, result["seeds"]))},
            [*self.analysis.figures(result), *(() if self.analysis.is_alone else self._figures(result))],
            self._tables(result, result["targets"]),
            figure_folder="figures",
        )

    def show(self, result: Result, page: Path) -> None:
        """Print the tables, of the one target that figures show."""
        for table in self._tables(result, [result["target"]]):
            terminal.print_table(table, columns=4)  # names of variants are long
        terminal.print_location(page)

    def files(self, result: Result, folder: Path) -> dict[str, str]:
        """``PART.csv``, a row per variant, ``PART-targets.csv``, and those of the analysis."""
        return {**csv_files(result), **self.analysis.files(result)}

    def _tables(self, result: Result, targets: Sequence[float]) -> list[Table]:
        return [*self.analysis.tables(result), *accuracies(result), *to_targets(result, targets)]

    def _figures(self, result: Result) -> Iterator[Figure]:
        from scenarios.papers.trial import figures

        if any(row["difference"] for row in result["variants"]):
            name = f"{self.name}-accuracy"
            caption = (
                "Final test accuracy and its difference from FedAvg, paired over seeds. Dots are means, bars 95 % "
                "intervals (Student's t over seeds), ticks single seeds."
            )
            yield name, figures.accuracies(by_skew(result), name), caption
        yield from self._to_target(result)
        yield from self._curves(result)

    def _to_target(self, result: Result) -> Iterator[Figure]:
        """Virtual time and bytes until the target, a figure per skew in which some seed reached it."""
        from scenarios.report.figures import one
        from scenarios.report.html_figures import inline
        from scenarios.report.plot_style import ShownRuns

        folders = {run["name"]: Path(run["run_dir"]) for run in result["runs"]}
        skews = by_skew(result)
        for skew, rows in skews.items():
            if not any(at_target(row, result["target"])["reached"] for row in rows):
                continue
            of_variant = {
                row["variant"]: [folders[f"{row['name']}-seed{seed}"] for seed in row["seeds"]] for row in rows
            }
            shown = ShownRuns(run_reader.of_rows(of_variant), result["target"])
            name = f"{self.name}-to-target" + (f"-{skew.replace('.', '-')}" if len(skews) > 1 else "")
            caption = (
                f"{skew}: spent until {percent_of(result['target'])}, mean over seeds with its 95 % interval; "
                "a variant without a bar missed it in some seed."
            )
            yield name, inline(name, partial(one, shown, "to_target")), caption

    def _curves(self, result: Result) -> Iterator[Figure]:
        """Accuracy against bytes and time, a figure per skew."""
        assert self.part is not None
        trails, chosen = self.trails(result["runs"]), self.part.curves
        for skew in dict.fromkeys(row.skew for row in self.rows):
            shown = [
                row
                for row in self.rows
                if row.skew == skew
                and row.name in trails
                and (chosen is None or row.variant.replace(CALIBRATED, "") in chosen)
            ]
            drawn = [
                bands.band(row.method, kind, list(trails[row.name].values()), label=row.variant)
                for kind in ("bytes", "time")
                for row in shown
            ]
            if drawn:
                name = f"{self.name}-curves-{skew.replace('.', '-')}"
                caption = f"{skew}: test accuracy when last evaluated, mean over seeds; bands are one sample deviation."
                yield name, bands.draw(drawn, {}, name), caption


def difference(own: Mapping[int, Trail], reference: Mapping[int, Trail]) -> dict[str, Any] | None:
    """The final accuracy minus that of the reference, paired over seeds."""
    return paired(*({seed: final(points) for seed, points in trails.items()} for trails in (own, reference)))


def to_target(runs: Sequence[Trail], target: float) -> dict[str, Any]:
    """What was spent until a target: means over the seeds if all ``reached`` it, else None; ``values`` by seed."""
    values = {key: [until(amount, target).value(points) for points in runs] for key, amount in AMOUNTS.items()}
    return {
        "target": target,
        "reached": sum(value is not None for value in values["rounds"]),
        **{key: spread(spent)["mean"] for key, spent in values.items()},
        "values": values,
    }


# --- tables and files -------------------------------------------------------------------------------------------------


def accuracies(result: Result) -> list[Table]:
    """A table per skew: the final accuracy, and its difference from FedAvg's."""
    left_out = [f"left out: {name}: {reason}" for name, reason in result["left_out"].items()]
    notes = [READ_AS, COMPARED, *left_out, *missing_note(result)]
    seeds = ", ".join(map(str, result["seeds"]))
    return [
        compared(
            f"{skew}: final accuracy, seeds {seeds}",
            "from FedAvg",
            {row["variant"]: (row["accuracy"], row["difference"]) for row in rows},
            notes,
        )
        for skew, rows in by_skew(result).items()
    ]


def by_skew(result: Result) -> dict[str, list[Row]]:
    """Skew -> its variants."""
    found: dict[str, list[Row]] = {}
    for row in result["variants"]:
        found.setdefault(row["skew"], []).append(row)
    return found


def compared(title: str, heading: str, rows: Mapping[str, tuple[Row, Row | None]], notes: Sequence[str]) -> Table:
    """Names with an accuracy, as ``41.9 ± 1.2 %``, and a difference, as ``-3.1 ± 0.8 pp``, if there is one."""
    columns = [
        TableColumn(""),
        TableColumn("accuracy", PERCENT, missing="-"),
        TableColumn(heading, POINTS, missing="", sign="+"),
    ]
    cells: list[list[Cell]] = [
        [name, Number.mean(accuracy), None if difference is None else Number.mean(difference)]
        for name, (accuracy, difference) in rows.items()
    ]
    return Table(title, columns, cells, notes)


def percent_of(share: float) -> str:
    """``30 %``."""
    return f"{100 * share:g} %"


def to_targets(result: Result, targets: Sequence[float]) -> Iterator[Table]:
    """A table per skew and target that some run reached: what was spent until then, or how many seeds reached it."""
    columns = [TableColumn(""), *(TableColumn(name, quantity(each), missing="") for each, name in SHOWN)]
    for skew, rows in by_skew(result).items():
        for target in targets:
            cells: list[list[Cell]] = []
            for row in rows:
                until = at_target(row, target)
                count = len(row["seeds"])
                short: list[Cell] = [f"{until['reached']} of {count} seeds"]
                cells.append(
                    [row["variant"], *([until[each.key] for each, _ in SHOWN] if until["reached"] == count else short)]
                )
            if any(at_target(row, target)["reached"] for row in rows):
                yield Table(f"{skew}: until {100 * target:g} % were reached, mean over seeds", columns, cells)


def at_target(row: Row, target: float) -> Row:
    """What a variant spent until a target."""
    return next(dict(until) for until in row["to_target"] if until["target"] == target)


def csv_files(result: Result) -> dict[str, str]:
    """``PART.csv``, a row per variant, and ``PART-targets.csv``, a row per variant, target and seed."""
    head = ["name", "skew", "variant", "seeds", "accuracy", "half_width", "reference", "difference", "difference_half"]
    rows = (
        [
            *(row["name"], row["skew"], row["variant"], len(row["seeds"])),
            *(row["accuracy"]["mean"], row["accuracy"]["half_width"], row["reference"]),
            *((row["difference"] or {}).get(key) for key in ("mean", "half_width")),
        ]
        for row in result["variants"]
    )
    targets = (
        [row["name"], seed, until["target"], *(until["values"][key][index] for key in AMOUNTS)]
        for row in result["variants"]
        for until in row["to_target"]
        for index, seed in enumerate(row["seeds"])
    )
    return {
        f"{result['part']}.csv": csv_text(head, rows),
        f"{result['part']}-targets.csv": csv_text(["name", "seed", "target", *AMOUNTS], targets),
    }
