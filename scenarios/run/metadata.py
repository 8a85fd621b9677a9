"""A run's own account for people and other tools: its environment when it begins, and its summary when it has ended."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np
import psutil
from msgspec import Struct, to_builtins

from coordinator.privacy.accountant import VisitCounts
from coordinator.records.schema import RoundRow
from coordinator.rounds.amounts import ENERGY
from coordinator.rounds.run import RunTotals
from costmodel.fleet import carbon
from costmodel.fleet.carbon import LEFT_OUT, Intensity
from costmodel.fleet.recorded_clients import gateway_of
from edge.protocol.home import abbreviated
from edge.protocol.losses import LOSSES
from edge.runtime.numerics import processor
from scenarios.config.validation import evaluated
from scenarios.run import aggregators, client_values, evaluated_clients, own_method, progress, visits
from scenarios.run.client_values import BestRound, ByDevice
from scenarios.run.environment import (
    BlockRecord,
    CarbonRecord,
    DataSetRecord,
    Environment,
    PartitionRecord,
    ScoreRecord,
    StepRecord,
    TierRecord,
    computing_parts,
)
from scenarios.run.host import PACKAGES, Host, default_workers
from scenarios.run.plugin_sources import SourceFile
from scenarios.run.run_folder import RunFolder
from scenarios.run.run_summary import CarbonSummary, RunSummary
from scenarios.run.score import OF_ACCURACY, score_of
from scenarios.run.setup import RunInputs, Setup


def environment(
    setup: Setup,
    host: Host,
    refused: Mapping[int, str],
    stop_at_target: bool,
    sources: Mapping[str, SourceFile],
) -> Environment:
    """The environment of a run that begins here. ``refused``: client -> why it cannot take part."""
    loaded, profile, inputs = setup.loaded, setup.description, setup.inputs
    calibrations = {
        device.name: [StepRecord(**asdict(step)) for step in device.measurements]
        for device in sorted(inputs.drawn_fleet.devices, key=lambda device: device.name)
        if device.measurements
    }
    by_device: dict[str, list[int]] = {}
    if evaluated(loaded.method, loaded.scenario) != "global":
        fleet = inputs.drawn_fleet
        by_device = {row.name: np.flatnonzero(fleet.device_of == i).tolist() for i, row in enumerate(fleet.devices)}
    has_tiers = bool(loaded.scenario.fleet.tiers.count)
    intensity = carbon.intensity(loaded.scenario.fleet.carbon)
    concerns = {
        "files": inputs.file_hashes,
        "clients_by_device": by_device if len(by_device) > 1 else {},
        "aggregator_of": has_tiers and setup.aggregator_of.tolist(),
        "tiers": [
            TierRecord(devices=tier.device_names(range(len(tier))), networks=tier.network_names(range(len(tier))))
            for tier in (inputs.tier_clock().fleets if has_tiers else ())
        ],
        "carbon": intensity and CarbonRecord(**asdict(intensity)),
        **own_method.record(loaded.method),
        "score": None if loaded.scenario.train.loss in LOSSES else ScoreRecord(**vars(score_of(loaded.scenario.train))),
        "sources": dict(sources),
    }
    return Environment(
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        python=sys.version.split()[0],
        versions={name: version(name) for name in ("fedbr-edge", *PACKAGES)},
        platform=platform.platform(),
        cores=default_workers(),
        memory_bytes=psutil.virtual_memory().total,
        workers=host.workers,
        device=host.device,
        computes=computing_parts(host.device, loaded.scenario.train.instructions),
        processor=processor(),
        data=DataSetRecord(
            name=loaded.dataset.name,
            sha256=profile.data_sha256,
            source=abbreviated(profile.data_source),
            test_examples=profile.test_count,
        ),
        partition=PartitionRecord(
            clients=len(profile.samples),
            classes=profile.classes,
            histogram=profile.histogram.tolist(),
            validation=profile.validation_samples.tolist(),
            test=profile.test_samples.tolist(),
            client_names=list(profile.client_names),
            class_names=list(profile.class_names),
        ),
        blocks=[
            BlockRecord(
                name=block.name,
                params=block.params,
                buffers=block.buffers,
                nbytes=profile.layout.nbytes(profile.layout.keys([block.name])),
                flops_forward=float(forward),
                flops_weight_gradient=float(weight),
                flops_input_gradient=float(inner + inputs),
            )
            for block, (forward, weight, inner, inputs) in zip(profile.layout.blocks, profile.flops, strict=True)
        ],
        calibrations=calibrations,
        bases=visits.row_bases(loaded.scenario, inputs.files, inputs.families),
        refused_clients={str(client): reason for client, reason in refused.items()},
        stops_at_target=stop_at_target,
        asynchronous=loaded.scenario.rounds.is_asynchronous,
        **{key: value for key, value in concerns.items() if value},
    )


def summary(
    recorded: RunFolder,
    began: Environment,
    setup: Setup,
    committed: RunTotals,
    stopped_by: str,
    wall_seconds: float,
) -> RunSummary:
    """The summary of a run. ``began``: the environment that the run began with."""
    loaded = setup.loaded
    rows, values, trail, query = recorded.rounds, recorded.evaluations, recorded.trail, recorded.query
    score = score_of(loaded.scenario.train)
    best = client_values.best_round(rows, values, committed.rounds, score)
    by_device = client_values.by_device(values, began.clients_by_device, score)
    of_clients = client_values.summary(values, by_device, score)
    target = loaded.scenario.stop.goal
    reached = trail.until(target)
    return RunSummary(
        run_dir=str(recorded.folder),
        method=loaded.scenario.method,
        seed=loaded.scenario.seed,
        data=abbreviated(setup.description.data_source),
        rounds=committed.rounds,
        accuracy=trail.final if score == OF_ACCURACY else None,
        best_accuracy=trail.best if score == OF_ACCURACY else None,
        metric=score.metric,
        score=trail.final,
        best_score=trail.best,
        baselines={each.name: {"rmse": each.rmse, "mae": each.mae} for each in setup.description.baselines},
        evaluation=None if of_clients is None else score.named(to_builtins(of_clients)),
        clients_left_out=evaluated_clients.left_out(setup),
        method_notes=setup.method_notes,
        best_round=None if best is None else score.named(_best(best, by_device)),
        virtual_seconds=committed.virtual_seconds,
        bytes_down=sum(row.bytes_down for row in rows),
        bytes_up=sum(row.bytes_up for row in rows),
        nominal_bytes=sum(row.nominal_bytes for row in rows),
        flops=sum(row.flops for row in rows),
        nominal_flops=sum(row.nominal_flops for row in rows),
        joules=sum(row.joules for row in rows),
        wasted_bytes=sum(row.wasted_bytes for row in rows),
        wasted_joules=sum(row.wasted_joules for row in rows),
        joules_by_part=visits.energy(query),
        aggregators=aggregators.summary(
            recorded.links,
            reached,
            client_values.of_aggregators(values, score),
            client_values.of_global(values, rows, score),
            score,
        ),
        paid=to_builtins(_paid(recorded, setup.inputs)),
        carbon=None if began.carbon is None else _carbon(began.carbon.intensity, trail),
        privacy=to_builtins(_privacy(recorded, setup, began)),
        phases={
            row["kind"]: {name: row[name] for name in row.keys() if name != "kind"}  # noqa: SIM118 - no mapping
            for row in visits.by_phase(query)
        },
        steps=visits.by_step(recorded.steps, rows[-1].end_s if rows else 0.0),
        wasted_seconds=sum(row.wasted_s for row in rows),
        bottlenecks={name: bottleneck.rounds for name, bottleneck in visits.bottlenecks(query).items()},
        visits=visits.by_kind(query),
        seconds_by_basis=visits.seconds_by_basis(query, began),
        target_accuracy=loaded.scenario.stop.target_accuracy,
        target=target,
        time_to_target_s=None if reached is None else reached.virtual_seconds,
        bytes_to_target=None if reached is None else reached.nbytes,
        # A row after the last round is a round that was cut, or a score that came late.
        rounds_to_target=None if reached is None else min(reached.rounds, committed.rounds),
        stopped_by=stopped_by,
        cut_round=to_builtins(cut_round(rows)),
        wall_seconds=wall_seconds,
        model_sha256=committed.model_sha256,
    )


def _best(best: BestRound, by_device: ByDevice) -> dict[str, object]:
    kinds = client_values.device_summary(client_values.at_round(by_device, best.round))
    return asdict(best) | ({} if kinds is None else {"by_device": to_builtins(kinds)})


class Paid(Struct, frozen=True):
    """Costs of a run whose clients' bytes or joules have a price."""

    data: float
    energy: float
    bytes_by_gateway: dict[str, float]
    busiest: str
    """The gateway, or without any the client, with the most bytes"""
    plan_used: float | None
    """The share of a data plan that it uses in a month"""
    month: dict[str, float]


def _paid(recorded: RunFolder, inputs: RunInputs) -> Paid | None:
    """The costs; None where nothing has a price."""
    fleet, prices = inputs.scenario.fleet, inputs.scenario.fleet.price
    if not (prices.are_known or prices.plan is not None):
        return None
    clients = inputs.scenario.data.clients
    names, behind = tuple(map(str, range(clients))), np.arange(clients)
    if fleet.gateways.count:
        names, behind = inputs.files.gateway_names, gateway_of(clients, fleet, inputs.files)
    nbytes = np.zeros(len(names))
    for row in recorded.query(visits.BYTES_OF_CLIENTS):
        nbytes[behind[row["client"]]] += row["down"] + row["up"]
    joules = sum(row.joules for row in recorded.rounds)
    month = prices.month(nbytes.tolist(), joules)
    busiest = int(nbytes.argmax())
    return Paid(
        data=prices.of(float(nbytes.sum()), 0.0),
        energy=prices.of(0.0, joules),
        bytes_by_gateway=dict(zip(names, nbytes.tolist(), strict=True)) if fleet.gateways.count else {},
        busiest=names[busiest],
        plan_used=None if prices.plan is None else month["runs"] * float(nbytes[busiest]) / prices.plan,
        month=month,
    )


class PrivacySpent(Struct, frozen=True):
    """The differential privacy that a run has spent."""

    epsilon: float | None
    """Of the client with the largest, where clients differ; None without noise"""
    delta: float
    guarantee: str
    """The meaning of epsilon in words"""
    epsilon_of_clients: dict[str, float]
    """``lowest``, ``median`` and ``highest``; empty where all clients have the same, or it is infinite"""


def _privacy(recorded: RunFolder, setup: Setup, began: Environment) -> PrivacySpent | None:
    """The run's spending; None without differential privacy."""
    accountant = setup.accountant([int(client) for client in began.refused_clients])
    if accountant is None:
        return None
    begun, counted, steps = np.zeros((3, len(setup.description.samples)), np.int64)
    for row in recorded.query(visits.TAKEN_PART):
        begun[row["client"]], counted[row["client"]], steps[row["client"]] = row["begun"], row["counted"], row["steps"]
    rows = recorded.rounds
    done = VisitCounts(len(rows), begun, counted, steps)
    held = setup.description.samples > 0
    by_client, epsilon = accountant.by_client(done)[held], rows[-1].epsilon if rows else 0.0
    differ = not accountant.follows_from_rounds and bool(np.isfinite(by_client).all()) and len(by_client) > 0
    shares = {"lowest": 0.0, "median": 0.5, "highest": 1.0} if differ else {}
    spread = {name: float(np.quantile(by_client, share)) for name, share in shares.items()}
    return PrivacySpent(epsilon, accountant.delta, accountant.guarantee, spread)


def _carbon(intensity: Intensity, trail: progress.Trail) -> CarbonSummary:
    joules = ENERGY.total(trail)
    return CarbonSummary(
        co2e_grams=intensity.co2e_grams(joules),
        joules=joules,
        grams_per_kwh=intensity.grams_per_kwh,
        zone=intensity.zone,
        year=intensity.year,
        source=intensity.source,
        counts=intensity.counts,
        leaves_out=LEFT_OUT,
    )


class CutRound(Struct, frozen=True):
    """A round that a budget cut, and whose clients still made a step."""

    round: int
    """From 1"""
    participants: int
    accuracy: float | None
    cut_by: str


def cut_round(rows: Sequence[RoundRow]) -> CutRound | None:
    """The last round, if a budget cut it and its clients still made a step.

    The accuracy of such a model is that of fewer clients than in the rounds before (``rounds.min_fraction``).
    """
    last = rows[-1] if rows else None
    if last is None or not progress.is_cut_step(last):
        return None
    return CutRound(last.round + 1, last.participants, last.accuracy, last.cut_by)
