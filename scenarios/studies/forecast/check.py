"""``fedbr check``: a resolved scenario, its costs and why it cannot run, without training and without downloading.

Wall time is that of rounds that were measured: of an earlier run, or of a few rounds now. It is never guessed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct, to_builtins

from coordinator.aggregation.server import NEVER
from coordinator.records.kept_checkpoints import BEST, EVERY, NEWEST
from coordinator.rounds.budget import BYTES, SECONDS
from coordinator.workers.launcher import WorkerLauncher
from costmodel.fleet import fair_shares
from costmodel.units import format_bytes, format_seconds
from edge.data.decoded_cache import why_no_download
from edge.data.locate import find_data, search_paths, to_have
from edge.protocol import serialization
from edge.protocol.config import CPU, ModelProfile
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
from edge.protocol.submodels import part_profile
from scenarios.config import plugin_errors
from scenarios.config.cache import cache_folder
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.tables import TomlValue
from scenarios.run import evaluated_clients, run_problems, runner
from scenarios.run.app_folder import flower_app
from scenarios.run.host import StopFlag, choose_device, default_workers, logging_to
from scenarios.run.setup import RunInputs, Setup, on_device
from scenarios.studies.forecast.forecast import (
    Forecast,
    PlayedRounds,
    disk_files,
    forecast_of,
    median_samples,
    visits_per_round,
)
from scenarios.studies.forecast.pace import earlier_run

NEWEST_CHECKPOINTS = 2
LEDGER_NBYTES, LEDGER_VISIT_NBYTES, REPORT_NBYTES = 60_000, 300, 700_000
"""Bytes of a new ledger, of each visit in it, and of a report: measured in runs on the digits, November 2026"""
COORDINATOR_MODELS = 4
"""Copies of the models that the coordinator holds: the current ones, the next ones, an update, and a checkpoint"""
ANY = 0
"""Any client, where all are alike"""


class BlockRow(Struct, frozen=True):
    """A block of the model; FLOPs are those of an example, by pass."""

    name: str
    params: int
    buffers: int
    nbytes: int
    share: float
    """Of the model's bytes"""
    flops_forward: float
    flops_weight_gradient: float
    flops_input_gradient: float


class AlphaRow(Struct, frozen=True):
    """The last alpha blocks: their bytes, and the FLOPs of a step with alpha pathways."""

    alpha: int
    payload_nbytes: int
    message_nbytes: int
    share: float
    """Of the model's bytes"""
    nominal_share: float
    flops_ratio: float
    """Executed FLOPs, relative to a plain step, which computes no gradient for the images"""
    ratio_3f: float
    """Relative to three forward passes, as papers count"""
    eq2: float
    """FedBR's Eq. 2"""


class PartRow(Struct, frozen=True):
    """A part of the model that clients hold."""

    rate: float
    clients: int | None
    """None where it is drawn for each round"""
    params: int
    mib: float
    message_down_nbytes: int
    message_up_nbytes: int
    flops_per_example: float
    """Of a training step"""
    training_nbytes: int
    """Memory of a visit"""


@dataclass(frozen=True)
class DataSource:
    """The source of the data set, or a warning with the folders that were searched, and how to have it."""

    found: str | None
    sha256: str | None
    warning: str | None
    get: str | None


@dataclass(frozen=True)
class MachineCosts:
    """The costs of a run in short: virtual time and bytes, and wall time, disk and memory of this machine."""

    rounds: int
    virtual_seconds_per_round: float | None
    bytes_per_round: float
    wall_seconds_per_round: float | None
    wall_seconds: float | None
    wall_from: str | None
    """The earlier run whose rounds these seconds are of; None if they were measured for this, or not at all"""
    workers: int
    device: str
    disk_nbytes: int
    """Bytes of a run folder, about: checkpoints, client states, vectors of clients, ledger and report"""
    coordinator_nbytes: int
    worker_nbytes: int


@dataclass(frozen=True)
class Check:
    """The result of ``fedbr check``. Without the data set, figures that need it are None."""

    scenario: Mapping[str, TomlValue]
    blocks: list[BlockRow]
    alphas: list[AlphaRow]
    """Rows for the last alpha blocks; none for methods without an option ``alpha``"""
    submodels: list[PartRow]
    """Parts of the model that clients have, the largest first; none where all hold the whole model"""
    notes: list[str]
    estimate: Forecast
    data: DataSource
    costs: MachineCosts
    refusals: list[str]
    """Why the run cannot work, as ``key = value: reason; choice``"""

    def with_pace(self, seconds_per_round: float, workers: int) -> Check:
        """With wall times that were measured just now, with so many workers."""
        seconds = seconds_per_round * self.costs.rounds
        wall = replace(self.costs, wall_seconds_per_round=seconds_per_round, wall_seconds=seconds, wall_from=None)
        return replace(self, costs=replace(wall, workers=workers))

    def plain(self) -> dict[str, Any]:
        """The result that ``check --json`` prints."""
        result: dict[str, Any] = _listed(to_builtins(self))
        costs = result["estimate"]
        if costs["wan_bytes"] is None:
            del costs["wan_bytes"], costs["price"]
        costs["data"] = result.pop("data")
        for key in ("evaluation_visits", "co2e_grams"):
            if costs[key] is None:
                del costs[key]
        return result


def _listed(value: Any) -> Any:
    """A value with lists in place of tuples."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def run_check(loaded: Loaded, out: Path) -> Check:
    """The check of a scenario whose runs go to ``out``.

    ScenarioError for data or settings that a worker refuses, for a precision that the default device of this machine
    does not have, and for client state that exceeds the disk of ``out``.
    """
    scenario = loaded.scenario
    if loaded.method.app is not None:
        flower_app(loaded)
        raise ScenarioError(
            f"{loaded.name}: method = {scenario.method!r}: what a Flower app sends and computes is known when it runs; "
            "fedbr flower run APP with a small num-server-rounds shows it"
        )
    inputs = RunInputs(loaded, CPU)
    source = find_data(scenario.data.name, scenario.data.root, cache_folder())
    offline = scenario.model_copy(update={"data": replace(scenario.data, download=False)})
    interrupt = StopFlag()
    with (
        interrupt.watching(),
        scratch() as logs,
        logging_to(logs / "coordinator.log"),
        WorkerLauncher(instructions=scenario.train.instructions) as launcher,
        runner.probe_worker(RunInputs(replace(loaded, scenario=offline), CPU), launcher, logs, interrupt) as pool,
    ):
        description, _ = pool.describe(data=False)
        setup = Setup(inputs, description)
        check_disk(setup.with_examples, out)
        if source is not None:
            description, _ = pool.describe(data=True)
            setup = Setup(inputs, description)
            evaluated_clients.check_validation(setup)
        memory = _resident_nbytes()
    with plugin_errors.named(scenario.model_dump(), ScenarioError, loaded.name):
        resolved = on_device(loaded, choose_device("auto", [loaded])).scenario.model_dump()
        notes = [
            *inputs.files.understood(),
            *inputs.fleet_notes,
            *run_problems.notes(setup),
            *run_problems.foreseen(setup, CPU),
        ]
        played = PlayedRounds(setup)
        totals, data = forecast_of(played), data_source(setup, source)
        by_windows = not scenario.fleet.tiers.count and scenario.rounds.on_late == "stop"
        notes += [*fair_shares.doubts(setup.fleet, visits_per_round(setup), played.contention, by_windows)]
        notes += _of_deadline(loaded, totals)
        costs = _machine_costs(loaded, played, totals, out, memory)
        reasons = list(refusals(loaded, totals, data, costs))
        of_alpha = alphas(setup) if hasattr(loaded.options, "alpha") else []
        return Check(resolved, blocks(description), of_alpha, parts(played), notes, totals, data, costs, reasons)


def _of_deadline(loaded: Loaded, totals: Forecast) -> list[str]:
    """A note where a deadline is so far off that no typical visit is late."""
    rules, seconds = loaded.scenario.rounds, totals.virtual_seconds
    if rules.policy != "deadline" or seconds is None or not totals.rounds:
        return []
    typical = seconds / totals.rounds
    if typical > rules.deadline / 2:
        return []
    reason = f"a typical round takes {format_seconds(typical)}, so that the policy does as sync"
    return [f"rounds.deadline = {format_seconds(rules.deadline)}: {reason}"]


def data_source(setup: Setup, source: str | None) -> DataSource:
    """The place of the data set as a worker describes it, which has read it; ``source``: where it was found."""
    loaded, description = setup.loaded, setup.description
    if source is not None:
        return DataSource(description.data_source or source, description.data_sha256 or None, None, None)
    places = search_paths(loaded.scenario.data.root, cache_folder())
    searched = ", ".join(f"{place.label} ({place.folder})" for place in places)
    get = to_have(loaded.dataset)
    if why_no_download(loaded.dataset, loaded.scenario.data) is None:
        get = f"the first run downloads it with torchvision (data.download = true); if you have it, {get}"
    warning = f"data set {loaded.dataset.name} was not found; searched {searched}"
    return DataSource(None, description.data_sha256 or None, warning, get)


def blocks(description: ModelProfile) -> list[BlockRow]:
    """Per block: parameters, bytes and share of the model, FLOPs per example of each pass."""
    layout = description.layout
    return [
        BlockRow(
            name=block.name,
            params=block.params,
            buffers=block.buffers,
            nbytes=layout.nbytes(layout.keys([block.name])),
            share=layout.nbytes(layout.keys([block.name])) / layout.nbytes(),
            flops_forward=float(flops[FORWARD]),
            flops_weight_gradient=float(flops[WEIGHT_GRADIENT]),
            flops_input_gradient=float(flops[INNER_GRADIENT] + flops[INPUT_GRADIENT]),
        )
        for block, flops in zip(layout.blocks, description.flops, strict=True)
    ]


def alphas(setup: Setup) -> list[AlphaRow]:
    """The rows of alpha = 1..M-1."""
    layout, flops = setup.description.layout, setup.description.flops
    choice, whole_step = setup.loaded.method.objective.traffic.choices or ("alpha", "full"), step_flops(flops)
    rows = []
    for alpha in range(1, len(layout)):
        keys = layout.last(alpha)
        pathways = range(len(layout) - alpha, len(layout))
        extra = sum(float(flops[m:, [FORWARD, INNER_GRADIENT, INPUT_GRADIENT]].sum()) for m in pathways)
        forward_only = sum(float(flops[m:, FORWARD].sum()) for m in pathways)
        rows.append(
            AlphaRow(
                alpha=alpha,
                payload_nbytes=layout.nbytes(keys),
                message_nbytes=serialization.train_nbytes(setup.job.run_id, choice, {MODEL: layout.shapes(keys)}),
                share=layout.nbytes(keys) / layout.nbytes(),
                nominal_share=alpha / len(layout),
                flops_ratio=(whole_step + extra) / whole_step,
                ratio_3f=1 + 2 * forward_only / (3 * float(flops[:, FORWARD].sum())),
                eq2=1 + alpha * (alpha + 1) / (2 * len(layout)),
            )
        )
    return rows


def parts(played: PlayedRounds) -> list[PartRow]:
    """A row per rate."""
    setup, server, pricing = played.setup, played.run.server_side, played.run.run.pricing
    submodels, loaded, description = server.setup.submodels, setup.loaded, setup.description
    if submodels is None:
        return []
    rows, clients, samples = [], range(loaded.scenario.data.clients), median_samples(setup)
    for variant in submodels.variants(0):
        part = part_profile(description, variant.share)
        dispatch = server.download_of(ANY, 0, server.choose(ANY, 0), variant)
        encoded = setup.codecs.of(variant).down.lengths(dispatch.shapes)
        charged = server.charged(dispatch.shapes, NEVER)
        price = pricing.train(dispatch.choice, charged, samples, ANY, 0, encoded, variant)
        params = sum(block.params for block in part.layout.blocks)
        is_drawn = loaded.scenario.submodel.rate == "round"
        rows.append(
            PartRow(
                rate=variant.share,
                clients=None if is_drawn else sum(submodels.own_rate(each) == variant.share for each in clients),
                params=params,
                mib=params * ITEM_NBYTES / 2**20,
                message_down_nbytes=price.work.bytes_down,
                message_up_nbytes=price.work.bytes_up,
                flops_per_example=step_flops(part.flops),
                training_nbytes=setup.training_nbytes(variant.share),
            )
        )
    return rows


# --- this machine -----------------------------------------------------------------------------------------------------


def _resident_nbytes() -> tuple[int, int]:
    """Resident bytes of this process, and of the largest that it has started: a worker, with its data set if that is
    there."""
    process, children = psutil.Process(), [0]
    for child in process.children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            children.append(int(child.memory_info().rss))
    return process.memory_info().rss, max(children)


def _machine_costs(
    loaded: Loaded, played: PlayedRounds, totals: Forecast, out: Path, memory: tuple[int, int]
) -> MachineCosts:
    """Wall times are those of an earlier run in ``out``, or None; ``memory``: of coordinator and worker by now.

    ``loaded``: the scenario without the defaults of any device.
    """
    device, server = choose_device("auto", [loaded]), played.run.server_side
    earlier, rounds = earlier_run(loaded, out, device), totals.rounds
    seconds = None if earlier is None else earlier.seconds_per_round
    vectors = [vector.data for model in server.models.values() for vector in model.values()]
    models = sum(array.nbytes for array in [*vectors, *server.state().values()])
    kept = checkpoints_kept(loaded.scenario.checkpoints.keep, loaded.scenario.rounds.max) * models
    ledger = LEDGER_NBYTES + LEDGER_VISIT_NBYTES * visits_per_round(played.setup) * loaded.scenario.rounds.max
    return MachineCosts(
        rounds,
        totals.per_round.get(SECONDS),
        totals.per_round.get(BYTES, 0.0),
        seconds,
        None if seconds is None else seconds * rounds,
        None if earlier is None else str(earlier.folder),
        default_workers() if earlier is None else earlier.workers,
        device,
        disk_nbytes=kept + totals.state_disk_nbytes + totals.vectors_disk_nbytes + ledger + REPORT_NBYTES,
        coordinator_nbytes=memory[0] + COORDINATOR_MODELS * models,
        worker_nbytes=memory[1] + played.setup.training_nbytes(),
    )


def checkpoints_kept(keep: str | tuple[int, ...], rounds: int) -> int:
    """The number of checkpoints at the end of a run; all but the newest two are kept by a rule."""
    if not isinstance(keep, str):
        return NEWEST_CHECKPOINTS + len([number for number in keep if number <= rounds])
    match = EVERY.fullmatch(keep)
    return NEWEST_CHECKPOINTS + {NEWEST: 0, BEST: 1}.get(keep, rounds // int(match[1]) if match else 0)


def free_nbytes(out: Path) -> int:
    """Free bytes of the disk on which ``out`` is or will be."""
    place = out.absolute()
    while not os.path.exists(place):  # noqa: PTH110 - Path.exists raises an error for a path that is too long
        place = place.parent
    return shutil.disk_usage(place).free


def check_disk(setup: Setup, out: Path) -> None:
    """ScenarioError if client states, and the server's vectors per client, need more disk than ``out`` has."""
    free, loaded = free_nbytes(out), setup.loaded
    needs = ("client states need", "the server's vectors per client need")
    for need, (copies, nbytes) in zip(needs, disk_files(setup, setup.server_of_zeros()), strict=True):
        if copies * nbytes > free:
            raise ScenarioError(
                f"{loaded.name}: data.clients = {loaded.scenario.data.clients}: {need} "
                f"{copies:,} x {format_bytes(nbytes)} = {format_bytes(copies * nbytes)}, but --out {out} has "
                f"{format_bytes(free)} free"
            )
        free -= copies * nbytes


def refusals(loaded: Loaded, totals: Forecast, data: DataSource, costs: MachineCosts) -> Iterator[str]:
    """The reasons why the run cannot work."""
    scenario, refused = loaded.scenario, totals.refused_clients
    reason = why_no_download(loaded.dataset, scenario.data)
    if data.found is None and reason is not None:
        yield f"data.name = {scenario.data.name!r}: {data.warning}; it is not downloaded: {reason}"
    if sum(group.clients for group in refused) >= scenario.data.clients:
        yield f"fleet.devices: none of {scenario.data.clients} clients can take part: {refused[0].why}"
    need, here = costs.coordinator_nbytes + costs.worker_nbytes, psutil.virtual_memory().total
    if need > here:
        yield (
            f"train.batch = {scenario.train.batch}: the coordinator and one worker need {format_bytes(need)} of "
            f"memory, and this machine has {format_bytes(here)}; choose a smaller batch or model"
        )
