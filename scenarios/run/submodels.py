"""Which part of the model each client of a run has, as the table ``submodel`` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from coordinator.aggregation.submodels import Submodels
from coordinator.rounds.visit import VisitPricing
from costmodel.clock import Clock
from costmodel.fleet import model_demand
from costmodel.fleet.availability import Always
from costmodel.network.links import Links
from edge.protocol.config import ModelProfile, SubmodelPlan
from edge.protocol.payload import MODEL
from edge.protocol.rng import keyed_generator
from edge.protocol.submodels import RATE, SliceMap, part_profile
from scenarios.config.load import Loaded, ScenarioError
from scenarios.run import builder


def plan(loaded: Loaded, profile: ModelProfile | None) -> SubmodelPlan | None:
    """What workers must know of parts; None where all clients hold the whole model."""
    rules = loaded.method.objective.submodels
    if rules is None:
        return None
    return SubmodelPlan(
        loaded.scenario.submodel.levels,
        rules.is_scaled(loaded.options),
        rules.is_static(loaded.options),
        rules.rolls,
        rules.has_own_statistics(loaded.options),
        {} if profile is None else profile.axes,
        () if profile is None else _rows(profile),
        () if profile is None else tuple(rate for rate in trained(loaded, profile) if rate != 1),
    )


def used(loaded: Loaded, description: ModelProfile) -> list[float]:
    """The rates that visits of the run may have, the largest first."""
    config, own = loaded.scenario.submodel, rates(loaded, description)[1]
    if config.rate == "round":
        return [*config.levels]
    return sorted({own(client) for client in range(loaded.scenario.data.clients)}, reverse=True)


def trained(loaded: Loaded, description: ModelProfile) -> list[float]:
    """The rates of all parts that the run trains, the largest first."""
    rules, rates = loaded.method.objective.submodels, used(loaded, description)
    if rules is None or not rules.trains_narrower:
        return rates
    return [rate for rate in loaded.scenario.submodel.levels if rate <= rates[0]]


def _rows(profile: ModelProfile) -> tuple[tuple[tuple[float, float, float, float], ...], ...]:
    each = profile.flops_by_rate.values()
    return tuple(tuple((f, w, n, i) for f, w, n, i in rows.tolist()) for rows in each)


def of_run(loaded: Loaded, description: ModelProfile) -> Submodels | None:
    """The parts of the run's clients; None where all hold the whole model."""
    rules = loaded.method.objective.submodels
    if rules is None:
        return None
    rate, own = rates(loaded, description)
    held = description.histogram > 0 if rules.masks_classes(loaded.options) else None
    return Submodels(description.axes, rate, own, used(loaded, description), rules.rolls, held)


def differ(recorded: Loaded, loaded: Loaded, description: ModelProfile) -> bool:
    """Whether clients have other parts in the second scenario, whose fleet may be another."""
    clients = range(recorded.scenario.data.clients)
    own, others = (rates(each, description)[1] for each in (recorded, loaded))
    return any(own(client) != others(client) for client in clients)


def rates(loaded: Loaded, description: ModelProfile) -> tuple[Callable[[int, int], float], Callable[[int], float]]:
    """((client, round) -> rate of a visit, client -> the largest rate that it has). ScenarioError names the key."""
    config, clients, seed = loaded.scenario.submodel, loaded.scenario.data.clients, loaded.scenario.seed
    levels, rate = config.levels, config.rate
    if isinstance(rate, float | int):
        fixed = np.full(clients, float(rate))
    elif isinstance(rate, dict):
        drawn = builder.fleet(loaded)
        names = [device.name for device in drawn.devices]
        missing = [name for name in names if name not in rate]
        if missing:
            raise ScenarioError(f"{loaded.name}: submodel.rate: no rate for the device {missing[0]!r} of the fleet")
        fixed = np.array([rate[name] for name in names])[drawn.device_of]
    elif rate == "memory":
        fixed = _by_device(loaded, description)
    elif rate == "deadline":
        fixed = _in_time(loaded, description)
    else:
        shares = np.array(config.shares or [1.0] * len(config.rates))
        shares = shares / shares.sum()
        if rate == "round":

            def drawn_rate(client: int, round: int) -> float:
                return float(keyed_generator(seed, "submodel", round, client).choice(config.rates, p=shares))

            return drawn_rate, lambda client: levels[0]
        # Shares are kept as closely as whole clients allow; who has which rate is drawn.
        ends = np.round(np.cumsum(shares) * clients).astype(int)
        order = keyed_generator(seed, "submodels").permutation(clients)
        fixed = np.empty(clients)
        fixed[order] = np.array(config.rates)[np.searchsorted(ends, np.arange(clients), side="right")]
    each = fixed.tolist()
    return (lambda client, round: each[client]), each.__getitem__


def fitting(loaded: Loaded, description: ModelProfile) -> Callable[[float], tuple[float, ...]]:
    """memory of a device, bytes -> rates of parts that it can train, the largest first."""
    batch = loaded.scenario.train.batch

    @cache
    def needed(rate: float) -> int:
        part = part_profile(description, rate)
        demand = builder.training_memory(loaded, part)
        return model_demand.training_nbytes(*demand, batch, builder.kept_by_codec(loaded, part))

    return lambda memory: tuple(
        rate for rate in loaded.scenario.submodel.levels if model_demand.fits(needed(rate), memory)
    )


def _in_time(loaded: Loaded, description: ModelProfile) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(clients,) the largest rate at which a visit in round 0, without contention, ends within the deadline; the least
    where none does."""
    config, clients = loaded.scenario.submodel, loaded.scenario.data.clients
    deadline = config.deadline or loaded.scenario.rounds.deadline
    job = builder.job(loaded, None, "cpu", Path())
    down, up = builder.travels(loaded, description.layout)
    pricing = VisitPricing(job, loaded.method, loaded.options, description, {MODEL: description.layout.shapes(up)})
    drawn = builder.with_operations(loaded, builder.fleet(loaded), description)
    clock = Clock(replace(drawn, links=Links(), behaviour=replace(drawn.behaviour, availability=Always())))
    samples = description.samples.tolist() or [loaded.scenario.train.batch] * clients
    chosen = np.full(clients, config.levels[-1])
    for rate in reversed(config.levels):
        choice = {RATE: rate}
        part = pricing.of_visit(choice)
        shapes = {MODEL: SliceMap(description.axes, rate).of(description.layout.shapes(down))}
        works = [part.train(choice, shapes, samples[client], client, 0).work for client in range(clients)]
        conditions = clock.fleet.of_parts(clock.conditions(range(clients), 0), [rate] * clients)
        ends = clock.solve(np.zeros(clients), works, conditions).up_end
        chosen[ends <= deadline] = rate
    return chosen


def _by_device(loaded: Loaded, description: ModelProfile) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(clients,) the largest rate that fits the client's device; the least where none does, which is refused later."""
    drawn, fits = builder.fleet(loaded), fitting(loaded, description)
    least = loaded.scenario.submodel.levels[-1]
    by_device = [next(iter(fits(device.memory_bytes)), least) for device in drawn.devices]
    return np.array(by_device)[drawn.device_of]
