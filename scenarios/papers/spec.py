"""Published figures and tables as plain data: methods, settings, measures and printed values.

Amounts are in SI: accuracies in [0, 1], seconds, bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coordinator.rounds.amounts import BYTES, ENERGY, ROUNDS, VIRTUAL_SECONDS
from scenarios.config.overrides import KeyValues
from scenarios.experiment.experiment import ExperimentRow
from scenarios.experiment.grid import row_of
from scenarios.run.progress import Trail

PAPER, SMALL, TINY = "paper", "small", "tiny"
SCALES = (TINY, SMALL, PAPER)

BEST = "accuracy in the best round"
VALIDATION = "validation accuracy in the best round"
BEST_MEASURES = (BEST, VALIDATION)
"""The best round is that with the best validation accuracy; the limit is the most rounds."""
ACCURACY_AT = {f"accuracy at {amount.kind}": amount for amount in (VIRTUAL_SECONDS, BYTES, ROUNDS)}
ACCURACY_AT |= dict.fromkeys(BEST_MEASURES, ROUNDS)
TO_ACCURACY = {f"{amount.kind} to accuracy": amount for amount in (VIRTUAL_SECONDS, BYTES, ROUNDS, ENERGY)}
"""Both: measure -> its amount"""


def scale_text(scale: str) -> str:
    """``tiny (scaled)``."""
    return scale if scale == PAPER else f"{scale} (scaled)"


# --- moving averages of accuracy, from which FedMLB's tables are read -------------------------------------------------
# e_r = momentum e_{r-1} + (1 - momentum) a_r. The paper does not print how it begins. "corrected" begins with e_0 = 0
# and divides by 1 - momentum^r, so that e_1 = a_1 and no round weighs more than the next; "first" begins with
# e_1 = a_1, which then weighs more than all others for a while. After 100 rounds they differ by less than 3e-5 of their
# value.

CORRECTED, FIRST = "corrected", "first"
STARTS = (CORRECTED, FIRST)


@dataclass(frozen=True)
class Smoothing:
    """How accuracies are averaged over rounds."""

    momentum: float = 0.9
    """The weight of the previous average, in [0, 1); 0 is no average."""
    start: str = CORRECTED
    """One of `STARTS`."""

    @property
    def text(self) -> str:
        how = "bias-corrected" if self.start == CORRECTED else "beginning with the first accuracy"
        return f"moving average of momentum {self.momentum:g}, {how}"


def ema(values: Sequence[float], how: Smoothing) -> list[float]:
    """The average after each value."""
    averages: list[float] = []
    average = values[0] if values and how.start == FIRST else 0.0
    for count, value in enumerate(values, start=1):
        average = how.momentum * average + (1 - how.momentum) * value
        averages.append(average if how.start == FIRST else average / (1 - how.momentum**count))
    return averages


def smoothed(points: Trail, how: Smoothing) -> Trail:
    """The curve with averages in place of accuracies; rounds without an evaluation are skipped."""
    averages = iter(ema([point.score for point in points if point.score is not None], how))
    shown, best = [], 0.0
    for point in points:
        accuracy = None if point.score is None else next(averages)
        best = max(best, accuracy or 0.0)
        shown.append(replace(point, score=accuracy, best=best))
    return Trail(shown)


# --- figures and tables -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaperLimit:
    """A budget or target that replaces the paper's at a smaller scale."""

    amount: float
    why: str
    """The reason for it, in words."""


@dataclass(frozen=True)
class TablePart:
    """The overrides for one word of a setting, or for one row, at one scale."""

    overrides: KeyValues = field(default_factory=dict)
    changed: str = ""
    inferred: str = ""


@dataclass(frozen=True)
class PaperRow:
    """One row of a figure, for every setting and scale."""

    method: str
    """Empty if the paper's method is unknown."""
    overrides: KeyValues = field(default_factory=dict)
    """At every scale; they take precedence over the setting's."""
    each: tuple[KeyValues, ...] = ({},)
    """Further overrides of each run, for a row that is the mean over several runs."""
    note: str = ""
    """Unprinted or inferred settings, in words; the reason where the method is empty."""
    scaled: Mapping[str, TablePart] = field(default_factory=dict)
    """Scale -> further overrides of this row alone, and the differences from the paper, in words."""

    def at(self, scale: str) -> TablePart:
        """The row's part at a scale, with all overrides but those of `each`."""
        part = self.scaled.get(scale, TablePart())
        return replace(part, overrides={**self.overrides, **part.overrides})

    def words(self, scale: str) -> str:
        """The row's note at a scale: its settings that the paper does not print, and its differences from the paper."""
        return "; ".join(text for text in (self.note, self.at(scale).changed) if text)

    def variants(self, scale: str) -> tuple[ExperimentRow, ...]:
        """The runs of the row, each once per seed; none if the paper's method is unknown."""
        if not self.method:
            return ()
        return tuple(row_of(self.method, {**self.at(scale).overrides, **further}) for further in self.each)


@dataclass(frozen=True)
class PaperSetting:
    """The scenario for one setting of a paper at one scale."""

    scenario: str
    overrides: KeyValues
    limits: Mapping[str, PaperLimit]
    """Panel or measure -> the budget or target here; other panels keep the paper's."""
    changed: str
    """The differences from the paper, in words; empty if there are none."""
    inferred: str = ""
    """Settings that the paper leaves open, and their values here, in words."""
    of_methods: Mapping[str, KeyValues] = field(default_factory=dict)
    """Method -> further overrides of its rows."""

    def of_method(self, method: str) -> KeyValues:
        """All overrides for the rows of a method."""
        return {**self.overrides, **self.of_methods.get(method, {})}

    def is_as(self, other: PaperSetting) -> bool:
        """Whether both have the same runs."""
        return (self.scenario, self.overrides) == (other.scenario, other.overrides)

    def limit(self, panel: PaperPanel) -> float:
        """The panel's budget or target here."""
        own = self.limits.get(panel.name, self.limits.get(panel.measure))
        return panel.limit if own is None else own.amount

    def why(self, panel: PaperPanel) -> str:
        """The reason for the panel's limit; empty if it is the paper's."""
        own = self.limits.get(panel.name, self.limits.get(panel.measure))
        return "" if own is None else own.why


def setting_of(scenario: str, parts: Sequence[TablePart], limits: Mapping[str, PaperLimit]) -> PaperSetting:
    """The setting whose words are these parts, in the order of their overrides."""
    overrides = {key: value for part in parts for key, value in part.overrides.items()}
    changed = "; ".join(part.changed for part in parts if part.changed)
    inferred = "; ".join(part.inferred for part in parts if part.inferred)
    return PaperSetting(scenario, overrides, limits, changed, inferred)


@dataclass(frozen=True)
class PaperPanel:
    """One measure in one setting, for every row of the figure."""

    name: str
    title: str
    setting: str
    """A key of `PaperFigure.settings`."""
    measure: str
    """One of `ACCURACY_AT`, `TO_ACCURACY` and `scenarios.papers.published.TABLE_AMOUNTS`."""
    limit: float
    """The budget, in bytes, virtual seconds or rounds; or the target accuracy; of an amount, the rounds of its runs."""
    published: Mapping[str, float]
    """Row -> printed value; rows that are only drawn are missing."""
    beyond: frozenset[str] = frozenset()
    """Rows whose published amount is a lower bound, at which the target was not yet reached."""
    deviations: Mapping[str, float] = field(default_factory=dict)
    """Row -> printed deviation."""
    column: str = ""
    """Heading of the panel's column in a table."""
    is_lost: bool = False
    """Whether the paper prints values for its rows that are missing here: its text has lost them."""
    counts: Callable[[PaperRow], float] | None = None
    """Row -> the amount, for one that is counted for the paper's method and model, whatever the scale."""


@dataclass(frozen=True)
class PaperFigure:
    """A published figure or table."""

    title: str
    source: str
    rows: Mapping[str, PaperRow]
    """Name in the paper -> row."""
    settings: Mapping[str, Mapping[str, PaperSetting]]
    """Setting -> scale -> its scenario."""
    panels: tuple[PaperPanel, ...]
    notes: tuple[str, ...] = ()
    """Remarks on the published values."""
    smoothing: Smoothing | None = None
    """How the paper averages accuracies over rounds before they are read; None if it says nothing."""
    is_table: bool = False
    """Whether a setting's panels are the columns of one table; otherwise each panel has its own."""
    hessians: Mapping[str, TablePart] = field(default_factory=dict)
    """Scale -> options of ``metrics``, which are measured of each finished run; empty: of none."""
    metrics: tuple[str, ...] = ("hessian",)
    """Names of these metrics; of ``loss-surface`` the report has a picture, of each row's first run."""
    draws_methods: bool = False
    """Whether the report has the figures of what the methods chose, of each row's first run."""
