"""The registry of methods; names join with ``+`` (``fedmlb+fedprox``).

A method of your own needs no entry: a scenario names its spec as ``my_package.my_method:SPEC``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.aggregation.block_exchange import EVERYTHING, NOTHING, exchanged_keys
from coordinator.aggregation.server import ServerExtension, ServerStrategy
from coordinator.methods import (
    calibrated,
    central,
    depthfl,
    fedalign,
    fedamp,
    fedavg,
    fedavg_fitnet,
    fedavg_kd,
    fedbr,
    feddyn,
    fedfomo,
    fedgkd,
    fedmlb,
    fednova,
    fedntd,
    fedper,
    fedprox,
    fedrolex,
    fjord,
    flexlora,
    flora,
    flower_app,
    gradaug,
    heterofl,
    ifca,
    local,
    mixup,
    moon,
    pfedmb,
    pfedme,
    scaffold,
    stochdepth,
)
from coordinator.methods.spec import CorrectionSpec, MethodPart, ObjectiveSpec
from edge.protocol.config import TrainConfig
from edge.protocol.options.base import Options, joined
from edge.protocol.payload import Layout
from edge.protocol.plugins import FLOWER_APP, find

OBJECTIVES: dict[str, ObjectiveSpec] = {
    spec.name: spec
    for spec in (
        fedavg.SPEC,
        fedmlb.SPEC,
        fedbr.SPEC,
        fedavg_kd.SPEC,
        fedavg_fitnet.SPEC,
        fedntd.SPEC,
        fedgkd.SPEC,
        fednova.SPEC,
        local.SPEC,
        fedper.SPEC,
        pfedme.SPEC,
        ifca.SPEC,
        fedfomo.SPEC,
        fedamp.SPEC,
        pfedmb.SPEC,
        moon.SPEC,
        mixup.SPEC,
        stochdepth.SPEC,
        gradaug.SPEC,
        fedalign.SPEC,
        heterofl.SPEC,
        fedrolex.SPEC,
        fjord.SPEC,
        depthfl.SPEC,
        flexlora.SPEC,
        flora.SPEC,
        central.SPEC,
    )
}
CORRECTIONS: dict[str, CorrectionSpec] = {
    spec.name: spec for spec in (fedprox.SPEC, scaffold.SPEC, feddyn.SPEC, calibrated.SPEC)
}
DECISIONS = ("choose", "payload", "download_only_clients")
"""What a server side decides about downloads"""


@dataclass(frozen=True)
class Method:
    """An objective and the corrections that join it."""

    name: str
    """Canonical, whatever the spelling in the scenario; `resolve` accepts it"""
    objective: ObjectiveSpec
    corrections: tuple[CorrectionSpec, ...]

    @property
    def app(self) -> str | None:
        """The folder of the Flower app that the method is; None for all others."""
        return self.name.removeprefix(FLOWER_APP) if self.objective is flower_app.SPEC else None

    @property
    def parts(self) -> tuple[MethodPart, ...]:
        """The objective, then the corrections."""
        return (self.objective, *self.corrections)

    @property
    def keeps_slots(self) -> bool:
        """Whether clients keep slots of the method between visits, beside blocks of the model."""
        return any(part.client_state is not None for part in self.parts)

    def state_numbers(self, options: Options, layout: Layout) -> int:
        """Numbers that a client keeps in slots of the method between visits, beside blocks of the model."""
        return sum(part.client_state(layout, options) for part in self.parts if part.client_state is not None)

    @property
    def options(self) -> type[Options]:
        """One class with the options of all parts."""
        return joined(part.options for part in self.parts)

    def check(self, options: Options, blocks: int) -> None:
        """Raise ValueError, naming the key, for options that are invalid for this number of blocks."""
        for part in self.parts:
            part.options.check(options, blocks)

    def check_corrections(self, options: Options) -> None:
        """Raise ValueError if a correction needs one global model, and with these options there is not one."""
        models = self.objective.model.initial_models(options) if self.objective.evaluation.has_global_model else "none"
        for correction in self.corrections:
            if models != 1 and correction.server is not None:
                raise ValueError(
                    f"method = {self.name!r}: {correction.name} corrects one global model, but {self.objective.name} "
                    f"has {models}"
                )

    def check_asynchronous(self, options: Options, single_updates: bool) -> None:
        """Raise ValueError, naming the key, for options that are invalid in asynchronous policies.

        ``single_updates``: whether each server step has one update, as with fedasync.
        """
        refusals = [part.refusals.asynchronous(options) for part in self.parts]
        refusals += [part.refusals.single_updates(options) for part in self.parts if single_updates]
        for reason in filter(None, refusals):
            raise ValueError(reason)

    @property
    def charges_otherwise(self) -> bool:
        """Whether downloads are charged for other vectors than workers get."""
        return _overrides(self.objective.server, ("charged",))

    def needs_individual_updates(self, options: Options) -> str | None:
        """The part that needs single updates beyond their weighted mean, with the option that is why; or None."""
        objective = self.objective
        if _overrides(objective.server, ("accumulate", "weight", "targets")):
            return objective.name
        if objective.individual_updates(options):
            for name, field in objective.options.model_fields.items():
                if not objective.individual_updates(options.model_copy(update={name: field.default})):
                    return f"{objective.name} with {name} = {json.dumps(getattr(options, name))}"
            return objective.name
        for correction in self.corrections:
            if correction.individual_updates(options) or _overrides(correction.server, ("accumulate",)):
                return correction.name
        return None

    def refuses_privacy(self, options: Options, train: TrainConfig, is_central: bool) -> str | None:
        """Why clients have no differential privacy with this method, or None; ``is_central``: noise is on sums."""
        for part in self.parts:
            reason = part.refusals.privacy
            if reason is not None and (why := reason(options, train)) is not None:
                return f"{part.name}: {why}"
            if reason is None and is_central and part.individual_updates(options):
                return f"{part.name}: its server side needs single updates, and noise is on their sum alone"
        if not is_central:
            return None
        objective = self.objective
        if objective.refusals.privacy is None and _overrides(objective.server, ("accumulate", "weight", "targets")):
            return f"{objective.name}: its server side needs single updates, and noise is on their sum alone"
        if objective.model.initial_models(options) > 1:
            return f"{objective.name}: has several models, and noise is on the sum of one"
        return None

    def decides_without_updates(self, options: Options) -> bool:
        """Whether a finished run can be replayed on another fleet, without training (`Traffic`)."""
        declared = self.objective.traffic.decides_without_updates
        return declared(options) if declared else not _overrides(self.objective.server, DECISIONS)

    def travels(
        self, options: Options, layout: Layout, down: str | None, up: str | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(keys down, keys up) of the method, unless the scenario overrides them. ValueError names the key."""
        own = self.objective.traffic.down(options)
        if down is not None and own is None:
            raise ValueError(f"travels.down = {down!r}: {self.name} chooses the download of each visit")
        texts = {"travels.down": down or own or EVERYTHING, "travels.up": up or self.objective.traffic.up(options)}
        keys: dict[str, tuple[str, ...]] = {}
        for key, text in texts.items():
            if not self.objective.traffic.contacts_server and text != NOTHING:
                raise ValueError(f"{key} = {text!r}: {self.name} exchanges nothing; choose {NOTHING!r}")
            try:
                keys[key] = exchanged_keys(text, layout)
            except ValueError as error:
                raise ValueError(f"{key} = {error}") from None
        return keys["travels.down"], keys["travels.up"]

    def check_whole(self, options: Options, layout: Layout, down: str | None, up: str | None) -> None:
        """Raise ValueError if blocks are not sent and a part of the method needs the whole model."""
        reason = next(filter(None, (part.refusals.partial_models(options) for part in self.parts)), None)
        if reason is None:
            return
        if self.objective.traffic.down(options) is None:
            raise ValueError(f"method = {self.name!r}: {reason}; {self.objective.name} may send a part of it")
        for way, keys in zip(("down", "up"), self.travels(options, layout, down, up), strict=True):
            missing = [name for name in layout.names if name not in keys]
            if missing:
                raise ValueError(f"method = {self.name!r}: {reason}; {', '.join(missing)} does not go {way}")

    @property
    def reports(self) -> tuple[str, ...]:
        """Names of the numbers in an update."""
        names = [name for part in self.parts for name in part.reports]
        return ("loss", "samples", "steps", "flops", *names)


def _overrides(server_side: type[ServerStrategy] | type[ServerExtension] | None, names: Sequence[str]) -> bool:
    """Whether a server side has a method of its own under one of these names, whatever its spec says."""
    if server_side is None:
        return False
    base = ServerExtension if issubclass(server_side, ServerExtension) else ServerStrategy
    return any(getattr(server_side, name) is not getattr(base, name) for name in names)


def resolve(name: str) -> Method:
    """The method of this name; ValueError with the nearest known name."""
    if name.startswith(FLOWER_APP):
        return Method(name, flower_app.SPEC, ())
    spellings = [part.strip() for part in name.split("+")]
    if "+" in name and not all(spellings):
        raise ValueError(f"{name!r}: a name is missing beside '+'; write one on both sides, as in fedmlb+fedprox")
    shipped: dict[str, ObjectiveSpec | CorrectionSpec] = {**OBJECTIVES, **CORRECTIONS}
    parts = [find(part, shipped, (ObjectiveSpec, CorrectionSpec), "method") for part in spellings]
    objectives = [part for part in parts if isinstance(part, ObjectiveSpec)]
    corrections = tuple(part for part in parts if isinstance(part, CorrectionSpec))
    if len(objectives) > 1:
        raise ValueError(
            f"{name!r} joins two objectives, {objectives[0].name} and {objectives[1].name}; only one can lead"
        )
    if len({correction.name for correction in corrections}) < len(corrections):
        raise ValueError(f"{name!r} names a correction twice")
    for part, partner in itertools.permutations(parts, 2):
        if partner.name in part.refusals.corrections:
            raise ValueError(f"{name!r}: {part.refusals.corrections[partner.name]}")
    stepping = [part.name for part in parts if part.refusals.server_optimizers is not None]
    if len(stepping) > 1:
        raise ValueError(f"{name!r}: {' and '.join(stepping)} each make a server step of their own; only one can")
    for part, partner in itertools.combinations(parts, 2):
        shared = sorted(set(part.options.model_fields) & set(partner.options.model_fields))
        if shared:
            raise ValueError(f"{name!r}: {part.name} and {partner.name} both have an option {shared[0]!r}")
    # One name per method: the objective, then the corrections in order; FedAvg is left out beside corrections.
    both = zip(spellings, parts, strict=True)
    names = {part.name if part in shipped.values() else text: part for text, part in both}
    leading = [name for name, part in names.items() if isinstance(part, ObjectiveSpec)]
    joining = [name for name, part in names.items() if isinstance(part, CorrectionSpec)]
    canonical = "+".join(joining if joining and leading == ["fedavg"] else leading + joining)
    return Method(canonical, objectives[0] if objectives else fedavg.SPEC, corrections)
