"""What one part of a trial reads off its runs beside what all parts have: further keys, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.papers.trial.plan import TrialPlan
from scenarios.report.pages import PageTable

Figure = tuple[str, str, str]
"""(name, inline SVG, caption)"""
Figures = Sequence[Figure]
Say = Callable[[str], None]
"""Shows a line of progress."""


@dataclass(frozen=True)
class TrialAddition:
    """Functions of the result; those of a part without the runs that they need return nothing."""

    read_off: Callable[[TrialPlan, Mapping[str, Any], Say], dict[str, Any]]
    """(plan, the result so far, progress) -> further keys."""
    tables: Callable[[Mapping[str, Any]], list[PageTable]]
    figures: Callable[[Mapping[str, Any]], Figures] = lambda result: ()
    write_tables: Callable[[Mapping[str, Any], Path], None] = lambda result, folder: None
    is_alone: bool = False
    """Whether the figures that all parts have are left out."""
