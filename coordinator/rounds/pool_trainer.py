"""Training by the worker pool: tasks from visits, and validation of updates.

The trainer of every run that trains (`coordinator.rounds.ports.Trainer`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from msgspec import structs

from coordinator.aggregation.download_codec import DownloadCodec
from coordinator.aggregation.held_versions import SENT
from coordinator.aggregation.server import GLOBAL, Models, ServerStrategy
from coordinator.aggregation.update_checks import (
    InvalidUpdate,
    Reach,
    UpdateChecks,
    state_bases,
    sums_too_far,
    too_far,
    unusable,
    validate,
)
from coordinator.methods.registry import Method
from coordinator.records.client_states import ClientStates
from coordinator.records.schema import FAILED, Lengths
from coordinator.rounds.reorder_buffer import ReorderBuffer
from coordinator.rounds.run import RunFailed
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import PoolTask, Reply, TaskGroup, UpdateValidator, Workers
from edge.protocol import messages
from edge.protocol.codecs.update_codec import REFERENCE
from edge.protocol.config import Job, ModelProfile
from edge.protocol.fixed_point import add_weighted, not_summable, sizes
from edge.protocol.messages import WireError
from edge.protocol.payload import (
    ITEM_NBYTES,
    MODEL,
    Floats,
    Payload,
    Shapes,
    Vector,
    arrivals,
    frame_nbytes,
    shapes,
    vectors,
)
from edge.protocol.plugins import error_text
from edge.protocol.variant import Variant

INEXACT = 10.0
"""Largest factor between the FLOPs that a worker counts and those of a compute plan that is not exact"""
SPARE_REPLIES = 2
"""Updates that a reorder buffer holds in memory, beyond one per worker"""
MOST_REACHES = 1024
"""Kinds of visits whose `Reach` is kept."""
REORDER_NBYTES = 1 << 26
"""Bytes of short updates that it holds in memory in any case: workers send these in batches"""


class PoolTrainer:
    """Trains the visits of one run. ``states`` is None if clients have no state."""

    def __init__(
        self,
        job: Job,
        method: Method,
        description: ModelProfile,
        server: ServerStrategy,
        workers: Workers,
        folder: Path,
        checks: UpdateChecks,
        states: ClientStates | None,
        downloads: DownloadCodec,
    ) -> None:
        self.codecs, self.held = downloads.codecs, downloads.held
        self._downloads: dict[int, tuple[int, Payload]] = {}
        """client -> (number, download) of its last visit that was trained, in runs with codecs"""
        self._encoded: dict[int, tuple[int, Lengths]] = {}
        """client -> (number of the visit, bytes of the frames) of its last update"""
        self.job, self.method, self.description, self.server = job, method, description, server
        self.workers, self.folder, self.checks, self.states = workers, folder, checks, states
        self._reports = frozenset(job.reports)
        self._together = 0
        """Steps of all visits that train a server part together"""
        self._reaches: dict[tuple[float, int], Reach] = {}  # of visits with this step size and so many steps

    def _kept_shapes(self, variant: Variant, up: Shapes) -> Shapes | None:
        """Shapes of the vectors that clients keep between visits of this variant; None if the method does not tell."""
        if self.method.keeps_slots:
            return None
        layout = self.description.layout
        shapes = {MODEL: layout.shapes(self.job.kept_blocks)} if self.job.kept_blocks else {}
        if references := self.codecs.up.references(self.job.kept_blocks):
            shapes[f"{REFERENCE}{MODEL}"] = layout.shapes(references)
        return shapes | self.codecs.of(variant).up.client_state(up)

    def reorder_buffer(self) -> ReorderBuffer:
        """A reorder buffer whose overflow goes to a file of the run folder."""
        nbytes = ITEM_NBYTES * sum(size for sizes in self.server.up_shapes().values() for size in sizes.values())
        return ReorderBuffer(max(self.workers.size + SPARE_REPLIES, REORDER_NBYTES // max(nbytes, 1)), self.folder)

    def submit(
        self,
        visits: Sequence[PlannedVisit],
        on_update: Callable[[messages.Update], None],
        weights: Mapping[int, float] | None = None,
        order: Sequence[int] = (),
    ) -> TaskGroup:
        """Submit one task per visit, the longest first."""
        self._together = len(order)
        together = arrivals(order) if order else {}

        def on_reply(task: PoolTask, reply: Reply) -> None:
            assert isinstance(reply, messages.Update)
            on_update(reply)

        longest_first = sorted(visits, key=lambda visit: (-visit.work.flops, visit.client))
        tasks = [self._task(visit, (weights or {}).get(visit.client, 0.0), together) for visit in longest_first]
        return self.workers.submit(tasks, on_reply)

    def begun(self, visit: PlannedVisit) -> PlannedVisit:
        """The visit with the models that it starts from; its download begins to be built in the background."""
        visit = replace(visit, start=self.server.start_model(visit.client))
        later = visit.dispatch.later
        if later is None:
            return visit
        building = replace(later, build=self.workers.build(later.build).result)
        return replace(visit, dispatch=replace(visit.dispatch, later=building))

    def note_download(self, visit: PlannedVisit, payload: Payload) -> None:
        """Remember what a visit that was trained has downloaded."""
        self._downloads[visit.client] = visit.number, payload

    def downloaded(self, visit: PlannedVisit) -> Payload:
        """The vectors that a visit has downloaded which counts; to be called once."""
        number, payload = self._downloads.pop(visit.client, (None, {}))
        payload = payload if number == visit.number else visit.dispatch.payload
        if self.codecs.down.is_used and self.job.kept_blocks and MODEL in payload:
            model = self.start(visit).get(GLOBAL, {})
            kept = {key: model[key] for key in payload[MODEL] if key in model and key in self.job.kept_blocks}
            payload = payload | {SENT: kept}
        return payload

    def train_first(self, visits: Sequence[PlannedVisit]) -> ReorderBuffer:
        """Train these visits now."""
        received = self.reorder_buffer()
        try:
            self.submit(visits, received.add).wait()
        except BaseException:
            received.close()
            raise
        return received

    def encoded(self, visit: PlannedVisit) -> Lengths:
        """Bytes of the frames of the update of a visit that has been trained; bounds if no worker could train it."""
        number, lengths = self._encoded.get(visit.client, (None, {}))
        return lengths if number == visit.number else visit.price.up

    def start(self, visit: PlannedVisit) -> Models:
        """The models that a visit started from, as far as it had them; no step of the server lies between its start and
        this call."""
        models = self.server.start_model(visit.client) if visit.start is None else visit.start
        return self.server.parts_of(models, visit.dispatch.variant)

    def _download(self, visit: PlannedVisit, build: Callable[[], Payload]) -> Payload:
        whose = self.server.setup.visit_name(visit.client, visit.rng_round)
        try:
            payload = build()
        except Exception as error:  # a user's server side may raise anything
            raise RunFailed(f"{whose}: its download cannot be built: {error_text(error)}") from error
        if shapes(payload) != visit.down:
            raise RunFailed(
                f"{whose}: download of shapes {shapes(payload)}, but its LaterPayload foresees {visit.down}"
            )
        return payload

    def _task(self, visit: PlannedVisit, weight: float, together: Payload) -> PoolTask:
        dispatch, states, reach = visit.dispatch, self.states, self.reach(visit)
        up, kept = self._shapes(dispatch.variant)
        build = None if dispatch.later is None else partial(self._download, visit, dispatch.later.build)
        return PoolTask(
            messages.Train(
                visit.client,
                visit.rng_round,
                visit.lr,
                dispatch.choice,
                dispatch.payload | together,
                dispatch.variant,
            ),
            None if states is None else states.newest(visit.client),
            None if states is None else str(states.path(visit.state_name)),
            "visit" if self.server.setup.asynchronous else "round",
            0.0 if together else visit.work.flops,  # the first one trains all
            weight,
            VisitValidator(
                # an update that the pool rejects ends its worker; a run that tolerates bad updates validates it itself
                up=up if self.checks.on_bad_update == "stop" else None,
                client_state_shapes=kept,
                reports=self._reports,
                trainer=self,
                visit=visit,
                reach=reach,
            ),
            may_fail=self.checks.on_bad_client == "skip",
            build=build,
        )

    def reach(self, visit: PlannedVisit) -> Reach:
        """How far this visit can move the model."""
        steps = max(visit.work.steps, self._together)
        key = visit.lr, steps
        if key not in self._reaches:
            if len(self._reaches) >= MOST_REACHES:  # step sizes may be as many as rounds
                self._reaches.clear()
            layout = self.description.layout
            moved = visit.lr * self.job.train.step_sum(steps)
            self._reaches[key] = Reach(self._initial_norm, layout.nbytes() // ITEM_NBYTES, moved)
        return self._reaches[key]

    def _shapes(self, variant: Variant) -> tuple[Shapes, Shapes | None]:
        """(of the upload, of the client state) of a visit of this variant."""
        shape = variant.shape
        if shape not in self._shapes_of:
            up = self.server.part_up_shapes(variant)
            self._shapes_of[shape] = up, self._kept_shapes(variant, up)
        return self._shapes_of[shape]

    @cached_property
    def _shapes_of(self) -> dict[Variant, tuple[Shapes, Shapes | None]]:
        return {}

    @cached_property
    def _initial_norm(self) -> float:
        return max(
            math.sqrt(sum(float(np.square(vector.data.astype(np.float64)).sum()) for vector in model.values()))
            for model in self.server.setup.initial_models
        )

    def validate(self, update: messages.Update, visit: PlannedVisit) -> tuple[str, messages.Update]:
        """As `coordinator.aggregation.update_checks.validate`, with a check of FLOPs; RunFailed if the run ends."""
        update = structs.replace(update, variant=visit.dispatch.variant)
        try:
            kind, validated = validate(self.checks, self.server, update, visit, self.start(visit), self.reach(visit))
        except InvalidUpdate as error:
            raise RunFailed(f"update rejected: {error}") from None
        if kind != FAILED and (problem := self.wrong_flops(update, visit)):
            raise RunFailed(problem)
        return kind, validated

    def decoded(self, task: PoolTask, update: messages.Update, visit: PlannedVisit) -> messages.Update:
        """An update with its vectors decoded, as if its visit had started from the server's own model.

        What a codec lost on the way down is no part of the client's change. WireError names the task.
        """
        server = self.server

        def reference(slot: str, key: str) -> Floats | None:
            downloaded = slots.get(slot)
            if downloaded is None:
                return None
            vector = task.payload.get(downloaded, {}).get(key)
            if vector is None and slot == MODEL:
                vector = self.held.of(visit.client).get((slot, key), server.setup.initial_models[0].get(key))
            return None if vector is None else vector.data

        client, number, variant = visit.client, visit.rng_round, visit.dispatch.variant
        codec, (up, _) = self.codecs.of(variant).up, self._shapes(variant)
        try:
            slots = {} if self.job.codec.of == "weights" else server.reference_slots(update)
            payload = codec.decode(client, number, update.payload, update.encoded, reference, up)
            for slot, key, start, downloaded in self._changed_downwards(update, visit, task.payload):
                vector = payload.get(slot, {}).get(key)
                if vector is not None and vector.data.size == start.size:
                    with np.errstate(over="ignore", invalid="ignore"):  # checked as all updates are
                        payload[slot][key] = Vector(start + (vector.data - downloaded))
        except ValueError as error:
            raise WireError(f"{task.name}: {error}") from None
        self._encoded[client] = visit.number, frame_nbytes(update.encoded)
        return structs.replace(update, payload=payload, encoded={})

    def _changed_downwards(
        self, update: messages.Update, visit: PlannedVisit, payload: Payload
    ) -> Iterator[tuple[str, str, Floats, Floats]]:
        """(slot, key, the server's numbers, the client's) of the vectors of an update whose visit started from others
        than the server's, since a codec encoded them on the way down: in the download ``payload``, or in the last one
        with a block that this visit has not downloaded."""
        if not self.codecs.down.is_used:
            return
        start, slots = self.start(visit), self.server.reference_slots(update)
        for slot, name in self.server.targets(update).items():
            for key, vector in payload.get(slots[slot], {}).items():
                reference = start.get(name, {}).get(key)
                is_encoded = self.codecs.down.codec(slots[slot], key, vector.data.size) is not None
                if is_encoded and reference is not None and reference.version != vector.version:
                    yield slot, key, reference.data, vector.data
            if slots[slot] == MODEL:
                held = self.held.of(visit.client)
                for (place, key), reference in held.items():
                    if (
                        place == SENT
                        and key not in payload.get(MODEL, {})
                        and reference.version != held[MODEL, key].version
                    ):
                        yield slot, key, reference.data, held[MODEL, key].data

    def wrong_flops(self, update: messages.Update, visit: PlannedVisit) -> str | None:
        """Why the FLOPs that a worker has counted are not those of the visit's plan, or None."""
        counted, predicted = update.numbers["flops"], visit.work.flops + visit.price.server_flops
        if self.job.is_untrained:
            return None
        if visit.price.exact and math.isclose(counted, predicted, rel_tol=1e-9):
            return None
        # A worker's count of a plan that is an expectation differs by chance; a count without bounds could be anything.
        if not visit.price.exact and predicted / INEXACT <= counted <= predicted * INEXACT and 0 < counted < math.inf:
            return None
        whose = self.server.setup.visit_name(update.client, update.round)
        return (
            f"{whose}: executed {counted:.6g} FLOPs, but the spec of {self.method.name} predicts {predicted:.6g}; "
            "correct the passes (or further_flops) that its field compute gives"
        )

    def accept_partial(self, totals: messages.Totals, visits: Sequence[PlannedVisit]) -> None:
        """Validate and accumulate the partial sums of these visits; RunFailed if they are invalid."""
        secure = self.server.setup.secure
        if secure is not None:
            totals = secure.means(totals, [*self.server.partial_weights([visit.client for visit in visits]).values()])
        reach = max((self.reach(visit) for visit in visits), key=lambda reach: reach.scale)
        expected, got = self.server.up_shapes(), sizes(totals)
        if got != expected:
            problem: str | None = f"shapes {got} instead of {expected}"
        else:
            problem = self._add_what_downloads_lost(totals, visits) or sums_too_far(
                self.checks, totals, 1.0, self.server.start_model(visits[0].client), reach
            )
        if problem is not None:
            raise RunFailed(f"updates rejected: round {visits[0].round + 1}: {problem}")
        self.server.accumulate_sums(totals, [visit.client for visit in visits])

    def _add_what_downloads_lost(self, totals: messages.Totals, visits: Sequence[PlannedVisit]) -> str | None:
        """Let sums be of updates as if their visits had started from the server's own model, as `decoded` has them.

        Workers do not know that model. Returns why it cannot be done, or None.
        """
        weights = self.server.aggregation_weights([visit.client for visit in visits])
        for visit in visits:
            _, payload = self._downloads.get(visit.client, (None, {}))
            update = messages.Update(visit.client, visit.rng_round, {}, {}, variant=visit.dispatch.variant)
            for slot, key, start, downloaded in self._changed_downwards(update, visit, payload):
                if key not in totals.get(slot, {}):
                    continue
                lost = start - downloaded
                if (problem := not_summable(lost)) is not None:
                    return f"client {visit.client}: what its download lost of {slot}/{key} {problem}"
                add_weighted(totals[slot][key], lost, weights[visit.client])
        return None


@dataclass(frozen=True, kw_only=True)
class VisitValidator(UpdateValidator):
    """Checks the replies to the task of one visit by the rules of its run."""

    trainer: PoolTrainer
    visit: PlannedVisit
    reach: Reach

    def check(
        self, task: PoolTask, reply: Reply, state: messages.ClientState | None, is_remote: bool, is_doubted: bool
    ) -> tuple[Reply, str]:
        """Also decodes the update's vectors."""
        if isinstance(reply, messages.Update):
            reply = structs.replace(reply, variant=self.visit.dispatch.variant)
        if isinstance(reply, messages.Update) and self.trainer.codecs.config.is_used:
            self.trainer.note_download(self.visit, task.payload)
            if not task.is_in_partial_sum(reply):
                reply = self.trainer.decoded(task, reply, self.visit)
        return super().check(task, reply, state, is_remote, is_doubted)

    def examine(self, task: PoolTask, reply: Reply, state: Payload) -> tuple[Reply, str | None]:
        """Finds an update and a client state that cannot be used, and FLOPs that the visit cannot have taken."""
        assert isinstance(reply, messages.Update)
        trainer, visit = self.trainer, self.visit
        whose = f"{trainer.server.setup.visit_name(visit.client, visit.rng_round)}: client state"
        start = trainer.start(visit)
        problem = unusable(trainer.checks, trainer.server, reply, start, self.reach)
        reply = structs.replace(reply, problem=problem or "")
        for slot, key, vector in vectors(state):
            if (wrong := not_summable(vector.data, math.inf)) is not None:
                return reply, f"{whose}: {slot}/{key} {wrong}"
        far = too_far(trainer.checks, whose, state, state_bases(start), self.reach)
        return reply, problem or far or trainer.wrong_flops(reply, visit)

    def refuse_sums(self, task: PoolTask, totals: messages.Totals, weight: float, is_remote: bool) -> None:
        """Also for sums of a remote worker that are too far from the model."""
        super().refuse_sums(task, totals, weight, is_remote)
        trainer = self.trainer
        if not is_remote or trainer.server.setup.secure is not None:  # whose integers mean nothing before all are there
            return
        problem = sums_too_far(trainer.checks, totals, weight, trainer.start(self.visit), self.reach)
        if problem is not None:
            raise messages.WireError(problem)
