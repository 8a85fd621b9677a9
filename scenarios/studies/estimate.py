"""What a scenario is and what it will cost, without training and without downloading."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.aggregation.server import ServerStrategy
from coordinator.rounds.visit import VisitPrice, VisitPricing
from coordinator.workers.launcher import WorkerLauncher
from costmodel.clock import Clock
from costmodel.fleet.fleet import Fleet
from costmodel.units import format_bytes
from edge.data.locate import find_data, search_paths
from edge.protocol import codec
from edge.protocol.config import ModelProfile
from edge.protocol.payload import (
    FORWARD,
    INNER_GRADIENT,
    INPUT_GRADIENT,
    ITEM_NBYTES,
    MODEL,
    WEIGHT_GRADIENT,
    Shapes,
    Vector,
    shapes,
)
from edge.protocol.rng import keyed_generator
from edge.protocol.scratch import scratch
from scenarios import builder, runner
from scenarios.cache import cache_folder
from scenarios.config.load import Loaded, ScenarioError
from scenarios.host import StopFlag, choose_device, logging_to, time_limit

PATIENCE_SECONDS = 5.0
"""What the virtual time of one round may take to reckon: a fleet can be so large, or come and go so often, that it
takes hours."""
DEVICE = "cpu"
"""Blocks and FLOPs are the same on every device."""
ANY = 0
"""A client, where they are all alike."""


@dataclass(frozen=True)
class PricedVisit:
    """One visit: what it weighs and works."""

    price: VisitPrice
    payload_down: int
    payload_up: int


@dataclass(frozen=True)
class DownloadOnlyVisits:
    """What a round adds in which all who may only download do."""

    clients: list[int]
    price: VisitPrice
    """Of one client."""


def run_check(loaded: Loaded, out: Path) -> dict[str, Any]:
    """What ``check --json`` prints; a data set that is found nowhere is told, and what needs it is None.

    ScenarioError for data or settings that a worker refuses, and for kept state that the disk of ``out`` cannot hold.
    """
    scenario = loaded.scenario
    found = find_data(loaded.dataset.name, scenario.data.root, cache_folder())
    at_home = scenario.model_copy(update={"data": replace(scenario.data, download=False)})
    interrupt = StopFlag()
    with (
        interrupt.watching(),
        scratch() as logs,
        logging_to(logs / "coordinator.log"),
        WorkerLauncher() as launcher,
        runner.probe_worker(replace(loaded, scenario=at_home), DEVICE, launcher, logs, interrupt) as pool,
    ):
        description, _ = pool.describe(data=False)
        refuse_what_cannot_fit(loaded, description, out)
        if found is not None:
            description, _ = pool.describe(data=True)
    return check(loaded, description, found)


def check(loaded: Loaded, description: ModelProfile, found: str | None) -> dict[str, Any]:
    """Scenario, blocks, alphas and estimate, from a worker's description.

    ScenarioError for a precision that the device which a run here would choose does not have.
    """
    return {
        "scenario": builder.on_device(loaded, choose_device("auto")).scenario.model_dump(),
        "blocks": blocks(description),
        "alphas": alphas(loaded, description),
        "estimate": estimate(loaded, description) | {"data": data(loaded, description, found)},
    }


def data(loaded: Loaded, description: ModelProfile, found: str | None) -> dict[str, Any]:
    """Where the data set is, or where it was looked for in vain."""
    looked = search_paths(loaded.scenario.data.root, cache_folder())
    warning = None
    if found is None:
        where = ", ".join(f"{place.label} ({place.folder})" for place in looked)
        warning = f"data set {loaded.dataset.name} was found nowhere; looked in {where}"
    # A worker has looked into the set, and knows more of it than where it is.
    found = found and (description.data_source or found)
    return {"found": found, "sha256": description.data_sha256 or None, "warning": warning}


def free_nbytes(out: Path) -> int:
    """Free bytes of the disk on which ``out`` is, or will be made."""
    place = out.absolute()
    while not is_there(place):
        place = place.parent
    return shutil.disk_usage(place).free


def is_there(place: Path) -> bool:
    """Whether a path exists; one that is too long for the system does not."""
    try:
        return place.exists()
    except OSError:
        return False


def refuse_what_cannot_fit(loaded: Loaded, description: ModelProfile, out: Path) -> None:
    """ScenarioError where the clients' kept state needs more disk than ``out`` has."""
    copies, each = kept_copies(loaded, description), kept_nbytes(loaded, description)
    free = free_nbytes(out)
    if copies * each > free:
        raise ScenarioError(
            f"{loaded.name}: data.clients = {loaded.scenario.data.clients}: the state that clients keep needs "
            f"{copies:,} x {format_bytes(each)} = {format_bytes(copies * each)}, but --out {out} has "
            f"{format_bytes(free)} free"
        )


def kept_copies(loaded: Loaded, description: ModelProfile) -> int:
    """One state per client, and a second one per client of the round until it is committed.

    Where clients keep nothing but blocks of the model, all that only listened share one file.
    """
    listeners = len(download_only(loaded, description).clients)
    shared = not any(part.has_client_state for part in loaded.method.parts)
    new = loaded.scenario.rounds.participants + (min(listeners, 1) if shared else listeners)
    return loaded.scenario.data.clients + new


def kept_nbytes(loaded: Loaded, description: ModelProfile) -> int:
    """What one client keeps between its visits; vectors of a client side's own are taken to weigh a model."""
    own = sum(part.has_client_state for part in loaded.method.parts)
    kept = builder.job(loaded, description, DEVICE, Path()).kept_blocks
    return description.layout.nbytes(kept) + own * description.layout.nbytes()


def blocks(description: ModelProfile) -> list[dict[str, Any]]:
    """Per block: parameters, bytes and share of the model, FLOPs per example of each pass."""
    layout, whole = description.layout, description.layout.nbytes()
    return [
        {
            "name": block.name,
            "params": block.params,
            "buffers": block.buffers,
            "nbytes": layout.nbytes(layout.keys([block.name])),
            "share": layout.nbytes(layout.keys([block.name])) / whole,
            "flops_forward": float(flops[FORWARD]),
            "flops_weight_gradient": float(flops[WEIGHT_GRADIENT]),
            "flops_input_gradient": float(flops[INNER_GRADIENT] + flops[INPUT_GRADIENT]),
        }
        for block, flops in zip(layout.blocks, description.flops, strict=True)
    ]


def alphas(loaded: Loaded, description: ModelProfile) -> list[dict[str, Any]]:
    """What sending the last alpha blocks weighs, and training with alpha pathways costs, alpha = 1..M-1.

    ``flops_ratio`` is what is really executed, relative to a plain step (which computes no gradient for the images);
    ``ratio_3f`` is relative to three forward passes, as papers count; ``eq2`` is FedBR's Eq. 2.
    """
    layout, flops = description.layout, description.flops
    plain = flops.sum() - flops[0, INPUT_GRADIENT]
    run_id = builder.job(loaded, description, DEVICE, Path()).run_id
    choice = loaded.method.objective.choices or ("alpha", "full")
    rows = []
    for alpha in range(1, len(layout)):
        keys = layout.last(alpha)
        pathways = range(len(layout) - alpha, len(layout))
        extra = sum(float(flops[m:, [FORWARD, INNER_GRADIENT, INPUT_GRADIENT]].sum()) for m in pathways)
        forward_only = sum(float(flops[m:, FORWARD].sum()) for m in pathways)
        rows.append(
            {
                "alpha": alpha,
                "payload_nbytes": layout.nbytes(keys),
                "message_nbytes": codec.train_nbytes(run_id, choice, {MODEL: layout.shapes(keys)}),
                "share": layout.nbytes(keys) / layout.nbytes(),
                "nominal_share": alpha / len(layout),
                "flops_ratio": (plain + extra) / plain,
                "ratio_3f": 1 + 2 * forward_only / (3 * float(flops[:, FORWARD].sum())),
                "eq2": 1 + alpha * (alpha + 1) / (2 * len(layout)),
            }
        )
    return rows


def estimate(loaded: Loaded, description: ModelProfile) -> dict[str, Any]:
    """What the run will cost if it lasts ``rounds.max``: real bytes, FLOPs, virtual seconds, joules, disk.

    A pair is (cheapest, dearest) visit, for methods that choose per visit; all else is of the dearest, with all who
    may only listen doing so in every round. FLOPs, seconds and joules are those of a typical round, whose clients all
    hold the median of examples and are all there; they are None where the data set is missing. Seconds and joules are
    None too, and ``untimed`` says why, where they take longer to reckon than `PATIENCE_SECONDS`.
    """
    scenario = loaded.scenario
    clients, rounds = _visits(loaded), scenario.rounds.max
    visits = _priced(loaded, description, server(loaded, description))
    listeners = download_only(loaded, description)
    known = len(description.samples) > 0
    cheapest, dearest = min(visits, key=_dearness), max(visits, key=_dearness)
    low, high, heard = cheapest.price, dearest.price, listeners.price
    least, most = ((price.work.bytes_down + price.work.bytes_up) * clients for price in (low, high))
    result: dict[str, Any] = {
        "message_down_nbytes": [low.work.bytes_down, high.work.bytes_down],
        "message_up_nbytes": high.work.bytes_up,
        "payload_down_nbytes": [cheapest.payload_down, dearest.payload_down],
        "payload_up_nbytes": dearest.payload_up,
        "bytes": [least * rounds, (most + heard.work.bytes_down * len(listeners.clients)) * rounds],
        "nominal_bytes": (high.nominal_bytes * clients + heard.nominal_bytes * len(listeners.clients)) * rounds,
        "state_disk_nbytes": kept_nbytes(loaded, description) * kept_copies(loaded, description),
        "flops": None,
        "virtual_seconds": None,
        "joules": None,
        "untimed": None,
    }
    drawn = builder.fleet(loaded)
    out = builder.refused(loaded, drawn, description)
    result["refused_clients"] = [{"clients": count, "why": why} for why, count in Counter(out.values()).most_common()]
    if known:
        result["flops"] = high.work.flops * clients * rounds
        try:
            with time_limit(PATIENCE_SECONDS):
                result |= _timed(loaded, drawn, high, listeners, rounds)
        except TimeoutError:
            result["untimed"] = f"not reckoned within {PATIENCE_SECONDS:g} s: a round has too many events"
    return result


def server(loaded: Loaded, description: ModelProfile) -> ServerStrategy:
    """The server side with a model of zeros; where the data set is missing, each client holds one example."""
    if not len(description.samples):
        clients = loaded.scenario.data.clients
        description = replace(
            description,
            samples=np.ones(clients, np.int64),
            histogram=np.zeros((clients, description.classes), np.int64),
        )
    zeros = {key: Vector(np.zeros(size, np.float32)) for key, size in description.layout.sizes.items()}
    return builder.server(loaded, description, {MODEL: zeros})


def _visits(loaded: Loaded) -> int:
    """Training visits of a round."""
    rules = loaded.scenario.rounds
    if rules.is_asynchronous:
        return rules.visits_per_round
    return min(rules.cohort, loaded.scenario.data.clients)


def _cohort(loaded: Loaded) -> list[int]:
    """The clients that are at work together in a typical round."""
    scenario = loaded.scenario
    rng = keyed_generator(scenario.seed, "cohort", 0)
    count = min(scenario.rounds.cohort, scenario.data.clients)
    return sorted(rng.choice(scenario.data.clients, size=count, replace=False).tolist())


def download_only(loaded: Loaded, description: ModelProfile) -> DownloadOnlyVisits:
    """Who only downloads in a round that sends the whole model to all, as round 0 does where any does."""
    server_side = server(loaded, description)
    clients = list(server_side.download_only_clients(0, _cohort(loaded)))
    return DownloadOnlyVisits(clients, _pricing(loaded, description, server_side).download_only())


def _dearness(visit: PricedVisit) -> tuple[int, float]:
    return visit.price.work.bytes_down, visit.price.work.flops


def _pricing(loaded: Loaded, description: ModelProfile, server_side: ServerStrategy) -> VisitPricing:
    asked = builder.job(loaded, description, DEVICE, Path())
    return VisitPricing(asked, loaded.method, loaded.options, description, server_side.up_shapes())


def _priced(loaded: Loaded, description: ModelProfile, server_side: ServerStrategy) -> list[PricedVisit]:
    """All visits that a client with the median of examples may get."""
    pricing, samples = _pricing(loaded, description, server_side), description.samples
    held = int(np.median(samples[samples > 0])) if len(samples) else 0
    last = loaded.scenario.rounds.max - 1  # what does not begin at once has begun
    choices = server_side.possible_choices() or [server_side.download(ANY, last).choice]
    up = _payload_nbytes(server_side.up_shapes())
    visits = []
    for choice in choices:
        down = shapes(server_side.payload(ANY, choice))
        visits.append(PricedVisit(pricing.train(choice, down, held), _payload_nbytes(down), up))
    return visits


def _payload_nbytes(sizes: Shapes) -> int:
    return ITEM_NBYTES * sum(size for named in sizes.values() for size in named.values())


def _timed(
    loaded: Loaded, drawn: Fleet, price: VisitPrice, listeners: DownloadOnlyVisits, rounds: int
) -> dict[str, Any]:
    clock, cohort = Clock(drawn), _cohort(loaded)
    clients = [*cohort, *listeners.clients]
    conditions = clock.conditions(clients, 0)
    works = [price.work] * len(cohort) + [listeners.price.work] * len(listeners.clients)
    timeline = clock.solve(np.zeros(len(clients)), works, conditions)
    end, share = float(timeline.end.max()), _visits(loaded) / len(cohort)
    joules = float((timeline.joules_spent + timeline.waiting_joules(end, conditions)).sum())
    return {
        "virtual_seconds": end * rounds * share,
        "joules": joules * rounds * share,
    }
