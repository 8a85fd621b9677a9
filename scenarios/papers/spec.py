"""What a published figure or table is to `reproduce`: plain rows of what was measured, where, and what was printed.

Nothing here runs anything. Amounts are in SI: accuracies in [0, 1], seconds, bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from scenarios.papers.moving_average import Smoothing

PAPER, SMALL, TINY = "paper", "small", "tiny"
SCALES = (TINY, SMALL, PAPER)

ACCURACY_AT = {"accuracy at time": "time", "accuracy at bytes": "bytes", "accuracy at rounds": "rounds"}
TO_ACCURACY = {"time to accuracy": "time", "bytes to accuracy": "bytes", "rounds to accuracy": "rounds"}
"""Both: a measure -> the amount that it is about, as `trail.AMOUNTS` names it."""


@dataclass(frozen=True)
class PaperLimit:
    """A budget or target that stands for the paper's at another scale."""

    amount: float
    why: str
    """How it was come by, in words."""


@dataclass(frozen=True)
class PaperVariant:
    """One run of a row: a method, and what it asks of the scenario beside that."""

    method: str
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For folders: ``fedmlb``, ``fedavg-server-fedadam-lr-0.01``."""
        said = (override.partition("=") for override in self.overrides)
        words = [f"{key.rpartition('.')[2]} {value}".lower() for key, _, value in said]
        return "-".join([self.method, *(re.sub(r"[^a-z0-9.]+", "-", word).strip("-") for word in words)])


@dataclass(frozen=True)
class PaperRow:
    """What stands for one row of a figure, in every setting and at every scale."""

    method: str
    """Empty where it is not known what the paper ran."""
    overrides: tuple[str, ...] = ()
    """KEY=VALUE that make the row; they win over the setting's."""
    each: tuple[tuple[str, ...], ...] = ((),)
    """Further overrides of each of its runs, for a row that is the mean over several."""
    note: str = ""
    """What of it is not printed in the paper or inferred, in words; all there is to say where the method is empty."""

    def variants(self) -> tuple[PaperVariant, ...]:
        """The runs that the row is read off, once per seed; none where it is not known what the paper ran."""
        if not self.method:
            return ()
        return tuple(PaperVariant(self.method, (*self.overrides, *further)) for further in self.each)


@dataclass(frozen=True)
class PaperSetting:
    """A scenario that stands for one setting of a paper."""

    scenario: str
    overrides: tuple[str, ...]
    limits: Mapping[str, PaperLimit]
    """Panel or measure -> the budget or target here; panels that are named by neither keep the paper's."""
    changed: str
    """What is not as in the paper, in words for the reader of a number; empty where nothing is."""
    inferred: str = ""
    """What is not printed in the paper, or can be read in several ways, and how it is taken here."""

    def limit(self, panel: PaperPanel) -> float:
        """The panel's budget or target here."""
        own = self._own(panel)
        return panel.limit if own is None else own.amount

    def why(self, panel: PaperPanel) -> str:
        """How the panel's limit was come by; empty where it is the paper's."""
        own = self._own(panel)
        return "" if own is None else own.why

    def _own(self, panel: PaperPanel) -> PaperLimit | None:
        return self.limits.get(panel.name, self.limits.get(panel.measure))


@dataclass(frozen=True)
class PaperPanel:
    """One measure in one setting, for every row of the figure."""

    name: str
    title: str
    setting: str
    """A key of `PaperFigure.settings`."""
    measure: str
    """One of `ACCURACY_AT` and `TO_ACCURACY`."""
    limit: float
    """The budget, in bytes, virtual seconds or rounds; or the target accuracy."""
    published: Mapping[str, float]
    """Row -> what the paper prints; a row that is not named here is drawn but not printed."""
    beyond: frozenset[str] = frozenset()
    """Rows whose published amount is a bound: so much did not suffice to reach the target."""
    deviations: Mapping[str, float] = field(default_factory=dict)
    """Row -> the deviation that the paper prints beside its mean."""
    column: str = ""
    """Heading of the measure's column where a setting's panels are the columns of one table."""


@dataclass(frozen=True)
class PaperFigure:
    """A published figure or table."""

    title: str
    source: str
    rows: Mapping[str, PaperRow]
    """Row, as the paper writes it -> what stands for it."""
    settings: Mapping[str, Mapping[str, PaperSetting]]
    """Setting -> scale -> what stands for it."""
    panels: tuple[PaperPanel, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know of the published values."""
    smoothing: Smoothing | None = None
    """How the paper averages accuracies over rounds before it reads anything off them; None where it does not say."""
    is_table: bool = False
    """Whether a setting's panels are the columns of one table, as the paper prints them; if not, each stands alone."""
