"""All methods, one row each; names join with ``+`` (``fedmlb+fedprox``).

A method of your own needs no entry here: name it ``my_package.my_method:ROW`` in a scenario.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import create_model

from coordinator.aggregation.block_exchange import exchanged_keys
from coordinator.aggregation.server import ServerExtension, ServerStrategy
from coordinator.methods import (
    fedavg,
    fedavg_fitnet,
    fedavg_kd,
    fedbr,
    feddyn,
    fedgkd,
    fedmlb,
    fednova,
    fedntd,
    fedprox,
    scaffold,
)
from coordinator.methods.spec import CorrectionSpec, ObjectiveSpec, Options
from edge.protocol.payload import Layout
from edge.protocol.spelling import nearest

OBJECTIVES: dict[str, ObjectiveSpec] = {
    row.name: row
    for row in (
        fedavg.SPEC,
        fedmlb.SPEC,
        fedbr.SPEC,
        fedavg_kd.SPEC,
        fedavg_fitnet.SPEC,
        fedntd.SPEC,
        fedgkd.SPEC,
        fednova.SPEC,
    )
}
CORRECTIONS: dict[str, CorrectionSpec] = {row.name: row for row in (fedprox.SPEC, scaffold.SPEC, feddyn.SPEC)}


@dataclass(frozen=True)
class Method:
    """An objective with the corrections that join it."""

    name: str
    """The same however a scenario intervals it, and understood by `resolve`."""
    objective: ObjectiveSpec
    corrections: tuple[CorrectionSpec, ...]

    @property
    def parts(self) -> tuple[ObjectiveSpec | CorrectionSpec, ...]:
        """The objective, then the corrections."""
        return (self.objective, *self.corrections)

    @property
    def keeps_slots(self) -> bool:
        """Whether clients keep vectors of its own between visits, beside blocks of the model."""
        return any(part.has_client_state for part in self.parts)

    @property
    def options(self) -> type[Options]:
        """One record with the options of all parts."""
        parts = [part.options for part in self.parts]
        return parts[0] if len(parts) == 1 else create_model("MethodOptions", __base__=tuple(parts))

    def check(self, options: Options, blocks: int) -> None:
        """Raise ValueError, naming the key, for options that a model of so many blocks does not allow."""
        for part in self.parts:
            part.options.check(options, blocks)

    def check_asynchronous(self, options: Options) -> None:
        """Raise ValueError, naming the key, for options that asynchronous rounds do not allow."""
        for part in self.parts:
            part.options.check_asynchronous(options)

    def needs_individual_updates(self, options: Options) -> str | None:
        """Which part of it looks into single updates, beyond their weighted mean, and the option that makes it."""
        row = self.objective
        if _overrides_accumulate(row.server):
            return row.name
        if row.needs_individual_updates(options):
            return row.name + _why_single(row, options)
        parts = [one for one in self.corrections if one.needs_individual_updates or _overrides_accumulate(one.server)]
        return parts[0].name if parts else None

    def options_of(self, options: Options, part: ObjectiveSpec | CorrectionSpec) -> dict[str, Any]:
        """The options that belong to one part, and those of others that it reads."""
        everything = options.model_dump()
        names = [*part.options.model_fields, *(part.reads if isinstance(part, ObjectiveSpec) else ())]
        return {name: everything[name] for name in names if name in everything}

    def travels(self, layout: Layout, down: str | None, up: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(keys down, keys up) as the method says, or as the scenario overrides it. ValueError names the key."""
        if down is not None and self.objective.down is None:
            raise ValueError(f"travels.down = {down!r}: {self.name} chooses what goes down for each visit")
        return (
            _keys("travels.down", down or self.objective.down or "everything", layout),
            _keys("travels.up", up or self.objective.up, layout),
        )

    def check_whole(self, options: Options, layout: Layout, down: str | None, up: str | None) -> None:
        """Raise ValueError where the model travels in parts, and a correction needs the whole of it."""
        reasons = [
            why for why in (correction.needs_full_model(options) for correction in self.corrections) if why is not None
        ]
        if not reasons:
            return
        if self.objective.down is None:
            raise ValueError(f"method = {self.name!r}: {reasons[0]}; {self.objective.name} may send a part of it")
        for way, travelling in zip(("down", "up"), self.travels(layout, down, up), strict=True):
            lacking = [name for name in layout.names if name not in travelling]
            if lacking:
                raise ValueError(f"method = {self.name!r}: {reasons[0]}; {', '.join(lacking)} does not go {way}")

    @property
    def reports(self) -> tuple[str, ...]:
        """Names of the numbers that ride up."""
        own = [name for part in self.parts for name in part.reports]
        return ("loss", "samples", "steps", "flops", *own)


def _overrides_accumulate(server_side: type[ServerStrategy] | type[ServerExtension] | None) -> bool:
    """Whether a server side has its own way with replies, whatever its row says."""
    if server_side is None:
        return False
    if issubclass(server_side, ServerExtension):
        return server_side.accumulate is not ServerExtension.accumulate
    return server_side.accumulate is not ServerStrategy.accumulate or server_side.weight is not ServerStrategy.weight


def _why_single(row: ObjectiveSpec, options: Options) -> str:
    """The option without which a method would not look into single updates; nothing if there is none."""
    for name, field in row.options.model_fields.items():
        if not row.needs_individual_updates(options.model_copy(update={name: field.default})):
            return f" with {name} = {json.dumps(getattr(options, name))}"
    return ""


def _keys(key: str, text: str, layout: Layout) -> tuple[str, ...]:
    try:
        return exchanged_keys(text, layout)
    except ValueError as error:
        raise ValueError(f"{key} = {error}") from None


def resolve(name: str) -> Method:
    """The method that a scenario names. ValueError with the nearest known name."""
    spelled = [part.strip() for part in name.split("+")]
    parts = [_part(part) for part in spelled]
    objectives = [part for part in parts if isinstance(part, ObjectiveSpec)]
    corrections = tuple(part for part in parts if isinstance(part, CorrectionSpec))
    if len(objectives) > 1:
        raise ValueError(
            f"{name!r} joins two objectives, {objectives[0].name} and {objectives[1].name}; only one can lead"
        )
    if len({correction.name for correction in corrections}) < len(corrections):
        raise ValueError(f"{name!r} names a correction twice")
    _check_combination(name, parts)
    return Method(_canonical(spelled, parts), objectives[0] if objectives else fedavg.SPEC, corrections)


def _check_combination(name: str, parts: Sequence[ObjectiveSpec | CorrectionSpec]) -> None:
    for one, other in itertools.permutations(parts, 2):
        if isinstance(one, CorrectionSpec) and other.name in one.incompatible:
            raise ValueError(f"{name!r}: {one.incompatible[other.name]}")
    stepping = [part.name for part in parts if part.server_optimizers is not None]
    if len(stepping) > 1:
        raise ValueError(f"{name!r}: {' and '.join(stepping)} each make a server step of their own; only one can")
    for one, other in itertools.combinations(parts, 2):
        shared = sorted(set(one.options.model_fields) & set(other.options.model_fields))
        if shared:
            raise ValueError(f"{name!r}: {one.name} and {other.name} both have an option {shared[0]!r}")


def _canonical(spelled: Sequence[str], parts: Sequence[ObjectiveSpec | CorrectionSpec]) -> str:
    """One name per method: the objective, then the corrections as given; FedAvg goes without saying beside these."""
    names = {
        part.name if part in (OBJECTIVES | CORRECTIONS).values() else text: part
        for text, part in zip(spelled, parts, strict=True)
    }
    leading = [name for name, part in names.items() if isinstance(part, ObjectiveSpec)]
    joining = [name for name, part in names.items() if isinstance(part, CorrectionSpec)]
    return "+".join(joining if joining and leading == ["fedavg"] else leading + joining)


def _part(name: str) -> ObjectiveSpec | CorrectionSpec:
    if ":" in name:
        return _load_user_spec(name)
    known: Mapping[str, ObjectiveSpec | CorrectionSpec] = {**OBJECTIVES, **CORRECTIONS}
    if name not in known:
        raise ValueError(f"no method {name!r}; {nearest(name, known)}")
    return known[name]


def _load_user_spec(name: str) -> ObjectiveSpec | CorrectionSpec:
    module, _, attribute = name.partition(":")
    try:
        row = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of the user's own may raise anything
        raise ValueError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}") from None
    if not isinstance(row, ObjectiveSpec | CorrectionSpec):
        raise ValueError(f"{name!r} is not a method row")
    return row
