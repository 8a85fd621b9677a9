"""``fedbr check``: a resolved scenario and the estimate of its costs, without training and without downloading."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.rounds.budget import BYTES, BYTES_DOWN, BYTES_UP, FLEET_RULES, SECONDS
from coordinator.rounds.visit import VisitPrice
from coordinator.workers.launcher import WorkerLauncher
from costmodel.clock import Clock
from costmodel.fleet.availability import Always
from costmodel.fleet.fleet import Fleet
from costmodel.units import format_bytes
from costmodel.visits.work import Work
from edge.data.decoded_cache import why_no_download
from edge.data.locate import find_data, search_paths, to_have
from edge.protocol import codec
from edge.protocol.config import ModelProfile
from edge.protocol.payload import (
    FORWARD,
    INNER_GRADIENT,
    INPUT_GRADIENT,
    ITEM_NBYTES,
    MODEL,
    WEIGHT_GRADIENT,
    step_flops,
)
from edge.protocol.scratch import scratch
from scenarios.config import plugin_errors
from scenarios.config.cache import cache_folder
from scenarios.config.load import Loaded, ScenarioError
from scenarios.run import builder, evaluated_clients, run_warnings, runner
from scenarios.run.host import StopFlag, choose_device, logging_to, time_limit
from scenarios.studies.forecast import run_costs
from scenarios.studies.forecast.typical_visits import (
    DEVICE,
    EvaluationVisits,
    PricedVisit,
    TypicalVisits,
    payload_nbytes,
)

BYTE_RULES = (BYTES, BYTES_DOWN, BYTES_UP)
PATIENCE_SECONDS = 5.0
"""Limit of the computation of one round's virtual time, which takes hours for fleets that are large enough, or whose
clients leave and return often enough."""


def run_check(loaded: Loaded, out: Path) -> dict[str, Any]:
    """The result of ``check --json``. Without the data set, it has a warning, and None for figures that need the data.

    ``refusals`` are the reasons why the run cannot work. ScenarioError for data or settings that a worker refuses, and
    for client state that exceeds the disk of ``out``.
    """
    scenario = loaded.scenario
    source = find_data(scenario.data.name, scenario.data.root, cache_folder())
    offline = scenario.model_copy(update={"data": replace(scenario.data, download=False)})
    interrupt = StopFlag()
    with (
        interrupt.watching(),
        scratch() as logs,
        logging_to(logs / "coordinator.log"),
        WorkerLauncher() as launcher,
        runner.probe_worker(replace(loaded, scenario=offline), DEVICE, launcher, logs, interrupt) as pool,
    ):
        description, _ = pool.describe(data=False)
        check_disk(loaded, description, out)
        if source is not None:
            description, _ = pool.describe(data=True)
            evaluated_clients.check_validation(loaded, description)
        memory = run_costs.measured_memory()
    with plugin_errors.named(loaded.scenario.model_dump(), ScenarioError, loaded.name):
        result = check(loaded, description, source)
        result["costs"] = run_costs.costs(loaded, description, result["estimate"], out, memory)
        result["refusals"] = list(run_costs.refusals(loaded, result["estimate"], result["costs"]))
        return result


def check(loaded: Loaded, description: ModelProfile, source: str | None) -> dict[str, Any]:
    """Scenario, blocks, alphas and estimate, from a worker's description.

    ScenarioError for a precision that the default device of this machine does not have.
    """
    return {
        "scenario": builder.on_device(loaded, choose_device("auto")).scenario.model_dump(),
        "blocks": blocks(description),
        "alphas": alphas(loaded, description),
        "notes": [
            *loaded.notes,
            *builder.fleet_notes(loaded),
            *evaluated_clients.left_out_notes(loaded, description),
            *builder.method_notes(loaded, description),
            *run_warnings.partition_notes(description),
            *run_warnings.foreseen(loaded, description, "cpu"),
        ],
        "estimate": estimate(loaded, description) | {"data": data(loaded, description, source)},
    }


def data(loaded: Loaded, description: ModelProfile, source: str | None) -> dict[str, Any]:
    """The source of the data set, or a warning with the folders that were searched, and ``get``: how to have it."""
    warning = get = None
    if source is None:
        places = search_paths(loaded.scenario.data.root, cache_folder())
        searched = ", ".join(f"{place.label} ({place.folder})" for place in places)
        warning = f"data set {loaded.dataset.name} was not found; searched {searched}"
        get = to_have(loaded.dataset)
        if why_no_download(loaded.dataset, loaded.scenario.data) is None:
            get = f"the first run downloads it with torchvision (data.download = true); if you have it, {get}"
    # A worker has read the set, so its description says more than the path.
    source = source and (description.data_source or source)
    return {"found": source, "sha256": description.data_sha256 or None, "warning": warning, "get": get}


def free_nbytes(out: Path) -> int:
    """Free bytes of the disk on which ``out`` is or will be."""
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


def check_disk(loaded: Loaded, description: ModelProfile, out: Path) -> None:
    """ScenarioError if client states, and the server's vectors per client, need more disk than ``out`` has."""
    visits, free = TypicalVisits(loaded, description), free_nbytes(out)
    needs = (
        ("client states need", state_copies(visits), state_nbytes(visits)),
        ("the server's vectors per client need", vectors_copies(visits), vectors_nbytes(visits)),
    )
    for need, copies, nbytes in needs:
        if copies * nbytes > free:
            raise ScenarioError(
                f"{loaded.name}: data.clients = {loaded.scenario.data.clients}: {need} "
                f"{copies:,} x {format_bytes(nbytes)} = {format_bytes(copies * nbytes)}, but --out {out} has "
                f"{format_bytes(free)} free"
            )
        free -= copies * nbytes


def state_copies(visits: TypicalVisits) -> int:
    """The number of client states on disk: one per client, and a second one per client of a round until its commit.

    If client states hold only blocks of the model, all download-only visits of a round share one file.
    """
    download_only_clients, scenario = len(visits.download_only.clients), visits.loaded.scenario
    is_shared = not any(part.has_client_state for part in visits.loaded.method.parts)
    uncommitted = min(download_only_clients, 1) if is_shared else download_only_clients
    return scenario.data.clients + scenario.rounds.participants + uncommitted


def vectors_nbytes(visits: TypicalVisits) -> int:
    """The bytes of the vectors that the server stores of one client."""
    return payload_nbytes(visits.server.store_shapes())


def vectors_copies(visits: TypicalVisits) -> int:
    """The number of files with such vectors: one per client, those that a round replaces, and those that the round
    before has replaced, which the older of two checkpoints needs."""
    return visits.loaded.scenario.data.clients + 2 * visits.per_round


def state_nbytes(visits: TypicalVisits) -> int:
    """The bytes of one client state."""
    loaded, layout = visits.loaded, visits.description.layout
    return layout.nbytes(visits.job.kept_blocks) + ITEM_NBYTES * loaded.method.state_numbers(loaded.options, layout)


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
    """The bytes of the last alpha blocks, and the FLOPs of a step with alpha pathways, for alpha = 1..M-1.

    ``flops_ratio`` is that of executed FLOPs to a plain step (which computes no gradient for the images); ``ratio_3f``
    is relative to three forward passes, as papers count; ``eq2`` is FedBR's Eq. 2.
    """
    layout, flops = description.layout, description.flops
    plain = step_flops(flops)
    run_id = TypicalVisits(loaded, description).job.run_id
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
    """The costs of a run of ``rounds.max`` rounds, or until its budgets end it: bytes, FLOPs, virtual seconds, joules.

    ``rounds`` are the (fewest, most) of them, and ``ended_by`` is the rule of the budget that ends or may end the run
    before ``rounds.max``, or None; ``per_round`` has the costs of a typical round.

    A pair is for the (cheapest, most expensive) visit, for methods that choose per visit; all else is for the most
    expensive, and for rounds in which all clients that may only download do so. FLOPs, seconds and joules are those of
    a typical round, whose clients all have the median number of examples and are all available; without the data set
    they are None. Seconds and joules are also None, with the reason in ``untimed``, if their computation takes longer
    than `PATIENCE_SECONDS`. ``flops_expected``: the method's compute plan is an expectation. Evaluations that are
    charged are included, with all clients that have examples (in the lower bound of bytes, as if all had trained
    before), and ``evaluation_visits`` has their part. Bytes (the upper bound) and FLOPs include whole visits for those
    that an asynchronous policy has in flight at the end. Messages of late visits that go on (``rounds.on_late``) are
    not included, nor are visits that asynchronous policies start in place of lost ones.
    """
    visits = TypicalVisits(loaded, description)
    evaluation, priced = visits.evaluation(), visits.training()
    cheapest, dearest = min(priced, key=_costs), max(priced, key=_costs)
    result: dict[str, Any] = {
        **_bytes(visits, cheapest, dearest, evaluation),
        "state_disk_nbytes": state_nbytes(visits) * state_copies(visits),
        "vectors_disk_nbytes": vectors_nbytes(visits) * vectors_copies(visits),
        "flops": None,
        "flops_expected": not dearest.price.exact,
        "virtual_seconds": None,
        "joules": None,
        "untimed": None,
    }
    if evaluation.evaluations:
        result["evaluation_visits"] = evaluation.report
    drawn = builder.with_operations(loaded, builder.fleet(loaded), description)
    result["refused_clients"] = _refused_clients(loaded, drawn, description)
    if len(description.samples):
        trained = visits.per_round * loaded.scenario.rounds.max + visits.cut_at_end
        result["flops"] = dearest.price.work.flops * trained + evaluation.flops
        try:
            with time_limit(PATIENCE_SECONDS):
                result |= _timed(visits, drawn, dearest.price, evaluation)
        except TimeoutError:
            result["untimed"] = f"not computed within {PATIENCE_SECONDS:g} s: a round has too many events"
    return result | _within_budgets(visits, result)


SCALED = (*BYTE_RULES, "nominal_bytes", "flops", "virtual_seconds", "joules")
"""Amounts of an estimate that grow with the rounds"""


def _within_budgets(visits: TypicalVisits, totals: Mapping[str, Any]) -> dict[str, Any]:
    """What budgets change in the totals of ``rounds.max`` rounds that cost the same.

    Clients with budgets of their own end the run after ``fewest`` rounds if one of them takes part in every round, and
    after ``highest`` if they take turns.
    """
    scenario, limit = visits.loaded.scenario, visits.loaded.scenario.rounds.max
    per_round = {name: _pair(totals[name], limit) for name in SCALED if totals[name] is not None}
    spans: dict[str, tuple[float, float]] = {}
    for rule in (SECONDS, *FLEET_RULES):
        least, most = per_round.get(rule, (0.0, 0.0))
        budget, own = (getattr(limits, rule) for limits in (scenario.budget, scenario.budget.client))
        if budget is not None and least:
            spans[rule] = budget / most, budget / least
        if own is not None and least:
            # A visit takes a round's seconds at most, and its share of the other amounts.
            clients = 1 if rule == SECONDS else visits.per_round
            turns = scenario.data.clients / visits.per_round
            spans[f"client.{rule}"] = own * clients / most, own * clients / least * turns
    fewest, highest = (min([limit, *(math.floor(span[side] + 1e-9) for span in spans.values())]) for side in (0, 1))
    ended_by = min(spans, key=lambda rule: spans[rule][0]) if fewest < limit else None
    found: dict[str, Any] = {
        "rounds": [fewest, highest],
        "ended_by": ended_by,
        "per_round": {name: list(amounts) for name, amounts in per_round.items()},
    }
    if ended_by is None:
        return found
    cut = 1 if ended_by == SECONDS else 0  # it is charged up to the cut
    for name, (least, most) in per_round.items():
        budget = getattr(scenario.budget, name, None) or math.inf
        ends = [min(amount, budget) for amount in (least * (highest + cut), most * (fewest + cut))]
        found[name] = sorted(map(round, ends)) if name in BYTE_RULES else min(most * (highest + cut), budget)
    return found


def _pair(total: Any, rounds: int) -> tuple[float, float]:
    """(least, most) a round."""
    least, most = total if isinstance(total, list) else (total, total)
    return least / rounds, most / rounds


def _bytes(
    visits: TypicalVisits, cheapest: PricedVisit, dearest: PricedVisit, evaluation: EvaluationVisits
) -> dict[str, Any]:
    """The bytes of one visit, and of all."""
    clients, rounds = visits.per_round, visits.loaded.scenario.rounds.max
    low, high, download = cheapest.price, dearest.price, visits.download_only.price
    downloads = len(visits.download_only.clients)
    evaluations = len(evaluation.clients) * evaluation.evaluations
    down = [
        low.work.bytes_down * clients * rounds + evaluation.bytes_down_later * evaluations,
        (high.work.bytes_down * clients + download.work.bytes_down * downloads) * rounds
        + high.work.bytes_down * visits.cut_at_end
        + evaluation.work.bytes_down * evaluations,
    ]
    up = [
        price.work.bytes_up * (clients * rounds + cut) + evaluation.work.bytes_up * evaluations
        for price, cut in ((low, 0), (high, visits.cut_at_end))
    ]
    return {
        "message_down_nbytes": [low.work.bytes_down, high.work.bytes_down],
        "message_up_nbytes": high.work.bytes_up,
        "payload_down_nbytes": [cheapest.payload_down, dearest.payload_down],
        "payload_up_nbytes": dearest.payload_up,
        "bytes": [sum(ends) for ends in zip(down, up, strict=True)],
        "bytes_down": down,
        "bytes_up": up,
        "nominal_bytes": (high.nominal_bytes * clients + download.nominal_bytes * downloads) * rounds,
    }


def _refused_clients(loaded: Loaded, drawn: Fleet, description: ModelProfile) -> list[dict[str, Any]]:
    """The clients that cannot take part, by reason, the most frequent one first."""
    reasons = Counter(builder.refused(loaded, drawn, description).values())
    return [{"clients": count, "why": reason} for reason, count in reasons.most_common()]


def _costs(visit: PricedVisit) -> tuple[int, float]:
    return visit.price.work.bytes_down, visit.price.work.flops


def _timed(visits: TypicalVisits, drawn: Fleet, price: VisitPrice, evaluation: EvaluationVisits) -> dict[str, Any]:
    # A round selects available clients: one that is away at t = 0 says nothing of it.
    clock = Clock(replace(drawn, behaviour=replace(drawn.behaviour, availability=Always())))
    cohort, downloads = visits.cohort, visits.download_only
    clients = [*cohort, *downloads.clients]
    works = [price.work] * len(cohort) + [downloads.price.work] * len(downloads.clients)
    seconds, joules = _together(clock, clients, works)
    rounds, rounds_of_cohort = visits.loaded.scenario.rounds.max, visits.per_round / len(cohort)
    totals = {
        "virtual_seconds": seconds * rounds * rounds_of_cohort,
        "joules": joules * rounds * rounds_of_cohort,
    }
    if evaluation.evaluations:
        seconds, joules = _together(clock, evaluation.clients, [evaluation.work] * len(evaluation.clients))
        totals["virtual_seconds"] += seconds * evaluation.evaluations
        totals["joules"] += joules * evaluation.evaluations
    return totals


def _together(clock: Clock, clients: Sequence[int], works: Sequence[Work]) -> tuple[float, float]:
    """(virtual seconds, joules) of visits that begin together."""
    conditions = clock.conditions(clients, 0)
    timeline = clock.solve(np.zeros(len(clients)), works, conditions)
    end = float(timeline.end.max())
    return end, float((timeline.joules_spent + timeline.waiting_joules(end, conditions)).sum())
