"""The registry of published figures and tables, and what each of their cells needs and prints."""

from __future__ import annotations

from typing import Any

from edge.protocol.spelling import nearest
from scenarios.config.errors import ScenarioError
from scenarios.papers import fedalign, fedbr, fedmlb, pfedmb
from scenarios.papers.cells import changed, described
from scenarios.papers.spec import PaperFigure, TablePart

FIGURES: dict[str, PaperFigure] = {
    **fedbr.FIGURES,
    **fedmlb.FIGURES,
    **pfedmb.FIGURES,
    **fedalign.FIGURES,
}


def named(name: str) -> PaperFigure:
    """A figure of the registry; ScenarioError with the nearest for an unknown one."""
    if name not in FIGURES:
        raise ScenarioError(f"no published figure {name!r}: {nearest(name, FIGURES)}")
    return FIGURES[name]


def catalogue(name: str | None = None) -> list[dict[str, Any]]:
    """Every cell of one figure, or of all: its setting at each scale and its printed value."""
    wanted = FIGURES if name is None else {name: named(name)}
    return [
        {
            "name": key,
            "panel": panel.name,
            "title": panel.title,
            **described(panel, label, row),
            "scales": {
                scale: {
                    "scenario": setting.scenario,
                    "overrides": [*setting.of_method(row.method), *part.overrides],
                    "limit": setting.limit(panel),
                    "changed": "; ".join([*changed(setting, panel), *([part.changed] if part.changed else [])]),
                }
                for scale, setting in figure.settings[panel.setting].items()
                for part in [row.scaled.get(scale, TablePart())]
            },
        }
        for key, figure in wanted.items()
        for panel in figure.panels
        for label, row in figure.rows.items()
    ]
