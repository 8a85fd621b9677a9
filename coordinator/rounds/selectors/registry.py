"""The registry of client selectors, under the names that scenarios use as ``rounds.selection``.

A selector of your own needs no entry: a scenario names its row as ``my_package.my_selector:ROW``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.rounds.selection import ClientSelector
from coordinator.rounds.selectors.oort import Oort, OortOptions
from coordinator.rounds.selectors.poisson import Poisson
from coordinator.rounds.selectors.power_of_choice import PowerOfChoice, PowerOfChoiceOptions
from edge.protocol.plugins import OptionsRow, PluginOptions, find


@dataclass(frozen=True)
class SelectionRow(OptionsRow):
    """One client selector."""

    make: Callable[[Any], ClientSelector]
    """options -> selector"""


SELECTIONS: dict[str, SelectionRow] = {
    row.name: row
    for row in (
        SelectionRow(
            "uniform",
            "all clients alike, without replacement",
            "McMahan et al., AISTATS 2017",
            PluginOptions,
            lambda options: ClientSelector(),
        ),
        SelectionRow(
            "poisson",
            "each client for itself, so that cohorts may be empty",
            "McMahan et al., ICLR 2018",
            PluginOptions,
            lambda options: Poisson(),
        ),
        SelectionRow(
            "power-of-choice",
            "of some clients drawn by size, those with the largest last loss",
            "Cho, Wang and Joshi, AISTATS 2022",
            PowerOfChoiceOptions,
            PowerOfChoice,
        ),
        SelectionRow(
            "oort",
            "many examples, large losses and short visits; and some never visited",
            "Lai et al., OSDI 2021",
            OortOptions,
            Oort,
        ),
    )
}


def selection(name: str) -> SelectionRow:
    """The row of a shipped name or of ``module:ROW``; ValueError with the nearest name."""
    return find(name, SELECTIONS, SelectionRow, "client selection")


def selector(name: str, options: Mapping[str, Any]) -> ClientSelector:
    """A new selector; ValueError for an unknown name or invalid options."""
    row = selection(name)
    return row.make(row.options.model_validate(options))
