"""The functions of ``fedbr.flower``: scenarios as apps of Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenarios.api import values
from scenarios.api.calls import Folder, calling
from scenarios.api.values import Scenario, place
from scenarios.config.errors import PYTHON
from scenarios.config.load import load


def export(scenario: Scenario, folder: Folder, **overrides: Any) -> Path:
    """Write a scenario as a Flower app that runs on real devices, into a new folder, and return that.

    ``scenario`` and ``overrides``: as of `fedbr.run`, but without objects and modules of your own. ScenarioError for a
    scenario that devices cannot run, and for a folder that is there already.
    """
    from scenarios.flower import export as app

    with calling():
        target = place("folder", folder)
        app.export(load(values.named(scenario), values.overrides(overrides), origin=PYTHON), target)
        return target
