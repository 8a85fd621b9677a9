"""``model.weights``: pretrained numbers that a scenario names, whose shape and hash are those of the run's model.

They are read when the scenario is, so that a run's record says which they were; the numbers stay where they are.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from edge.models import pretrained
from edge.models.registry import MODELS, model
from scenarios.config.errors import ScenarioError
from scenarios.config.tables import TomlValue, leaves, value_at

WEIGHTS, NAME, HASH = "model.weights", "model.name", "model.weights_sha256"


def named(given: Mapping[str, TomlValue], beneath: Mapping[str, TomlValue], source: str) -> dict[str, TomlValue]:
    """Dotted key -> value of what the weights say that ``given`` names; empty if it names none.

    ``given``: the tables of one file, or the overrides of a scenario; ``beneath``: what they are laid over.
    ScenarioError that names ``source``, for weights that cannot be read or are of another shape than ``given`` says.
    """
    keys = dict(leaves(given))
    weights = keys.get(WEIGHTS)
    if not isinstance(weights, str):
        return {}
    try:
        path = pretrained.located(weights)
        name = keys.get(NAME, value_at(beneath, NAME)) or _kind(path)
        row = model(str(name))
        if row.files is None:
            takers = ", ".join(each.name for each in MODELS.values() if each.files is not None)
            raise ValueError(f"{WEIGHTS}: model.name = {row.name!r} has no pretrained numbers; choose {takers}")
        width, options = importlib.import_module(row.files).options_of(path)
        found: dict[str, TomlValue] = {NAME: row.name, HASH: pretrained.sha256(path)}
    except (ValueError, KeyError, OSError) as error:
        text = f"{WEIGHTS}: {path} does not say {error}" if isinstance(error, KeyError) else str(error)
        raise ScenarioError(text, key=WEIGHTS, source=source) from None
    if width is not None:
        found["model.width"] = width
    found |= {f"model.options.{key}": value for key, value in options.items()}
    for key, value in found.items():
        if keys.get(key, value) != value:
            why = f"{key} = {keys[key]!r}: the {WEIGHTS} are of {value!r}; leave it out"
            raise ScenarioError(why, key=key, source=source)
    return found


def _kind(path: Path) -> str:
    """The model of these weights where a scenario names none."""
    about = pretrained.facts(path)
    is_llama = "llama" in (about.get("general.architecture"), about.get("model_type"))
    return "llama" if is_llama else "transformers"
