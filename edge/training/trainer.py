"""The tasks of one worker: describe the model and the data, train a client, evaluate. Never a socket.

One model instance serves all clients; before each it is reset, as is what a user's code has left in the process
(`edge.training.own_state`), so that no result depends on the worker. Data and partition are memory-mapped files that
all workers share. Client state is a file per visit, named by the coordinator.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import replace as replace_fields
from numpy.typing import NDArray
from torch import Tensor

from edge.data.augment import fitted, profile_for
from edge.data.decoded_cache import found_row, open_data
from edge.data.own_series import baselines
from edge.data.partitioning import ClientIndices, cached_partition, client_names
from edge.data.registry import Data, DataError, Split
from edge.data.targets import TargetScale, fitted_scale, unscaled
from edge.models.user_module import check_module
from edge.protocol import client_state
from edge.protocol.codecs.codecs import Codecs
from edge.protocol.codecs.update_codec import REFERENCE, References
from edge.protocol.config import BOARDS, EvalSplit, Job, ModelProfile, TrainConfig
from edge.protocol.logged import joined
from edge.protocol.messages import BEFORE, GLOBAL, LOCAL_MODEL, Evaluate, Score, Train, Update
from edge.protocol.options.base import Options
from edge.protocol.payload import (
    BUFFERS,
    MERGED,
    MODEL,
    EncodedVectors,
    Floats,
    Payload,
    Shapes,
    Vector,
    order_of_steps,
    shapes,
    vectors,
)
from edge.protocol.plugins import definition_place, error_text, is_own
from edge.protocol.privacy import clipped, with_noise
from edge.protocol.rng import keyed_generator
from edge.protocol.submodels import slice_map
from edge.protocol.variant import Variant
from edge.protocol.wire import MOST_LETTERS, printable
from edge.training.batches import Indices, Loader, LocalBatches, PoissonBatches
from edge.training.block_model import BlockModel
from edge.training.blocks import load_dotted
from edge.training.client_update import (
    Batch,
    Batches,
    BegunVisit,
    ClientUpdate,
    GradientCorrection,
    NarrowerPart,
    Step,
    VisitContext,
)
from edge.training.cuda_graphs import StepFactory, cuda_graphs
from edge.training.cuts import StepMessages
from edge.training.job_model import JobModel, check_single_examples
from edge.training.kernel_tape import kernel_tapes
from edge.training.metrics.job_metrics import JobMetrics, Values
from edge.training.metrics.metric import ModelInputs
from edge.training.own_state import OwnState, seed_process
from edge.training.private_step import PrivateBackward, make_private
from edge.training.sgd import Sgd, local_step
from edge.training.splitfed import SplitFedV2

MOST_STATISTICS = 32
"""Models whose static statistics a worker keeps"""


class Part(NamedTuple):
    """The model of a visit, whole or a part of a rate."""

    net: BlockModel
    stepper: StepFactory
    flops: NDArray[np.float64]
    """(blocks, 4): FLOPs per example"""


class LocalTrainer:
    """The model, data and settings of one run, for one worker process that serves any client."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.train.threads)
        if job.device.startswith("cuda"):
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts, which is later
            torch.use_deterministic_algorithms(True, warn_only=True)
            # Results of most kernels, which write all of them, would be filled with NaN before.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self.job = job
        self.device = torch.device(job.device)
        # A run on a GPU may be measured on a CPU.
        self.has_graphs = bool(job.train.graphs) and self.device.type == "cuda"
        if self.has_graphs:
            # For all of this process: steps are captured where they run, which cannot be the default stream.
            torch.cuda.set_stream(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        self.dataset = found_row(job.data, Path(job.cache), job.data_sha256)
        self.model = JobModel(job, self.dataset)
        self.profile = profile_for(self.dataset, job.data.augment)

    def _allow_tf32(self, allowed: bool) -> None:
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed

    @cached_property
    def data(self) -> Data:
        """The decoded data set."""
        return open_data(self.job.data, Path(self.job.cache), self.job.data_sha256)

    @cached_property
    def client_indices(self) -> ClientIndices:
        """Indices of each client's examples."""
        return cached_partition(self.job.data, self.data, Path(self.job.cache))

    @cached_property
    def train_set(self) -> Loader:
        """Training examples as tensors."""
        return self._loader(self.data.train)

    @cached_property
    def test_set(self) -> Loader:
        """Test examples as tensors."""
        # An evaluation reads all of it, a visit only its client's examples.
        return self._loader(self.data.test, resident=self.device.type == "cuda")

    @cached_property
    def evaluated_indices(self) -> Indices:
        """Indices of the global test examples that an evaluation uses, in ascending order."""
        count = len(self.data.test.y)
        scored = self.job.scored(count)
        if self.job.eval_subset is None:
            return np.arange(scored)
        return np.sort(keyed_generator(self.job.seed, "eval").permutation(count)[:scored])

    def _loader(self, split: Split, resident: bool = False) -> Loader:
        profile = fitted(self.profile, self.data.train)
        target, memory_format = self.job.train.loss_row[0].target, self.model.memory_format
        return Loader(split, profile, self.device, memory_format, resident, self._target_scale, target)

    @cached_property
    def _target_scale(self) -> TargetScale | None:
        row, data = self.job.train.loss_row[0], self.data
        if row.target != "numbers":
            return None
        if not row.is_scaled:
            return unscaled(data.row.numbers)
        return fitted_scale(data.row, data.train, data.names.clients)

    @cached_property
    def net(self) -> BlockModel:
        """The one model of this worker; ValueError for one that is too large for any."""
        net = self.model.made(self.device)
        # A client without state has its private blocks as they were initialised.
        self.unvisited: Payload = {MODEL: net.dump(self.job.kept_blocks)}
        return net

    _together: tuple[tuple[object, ...], SplitFedV2] | None = None
    """The last visits that were trained together, and what they were trained from"""
    _downloaded: Mapping[str, Vector]
    """The model's vectors that the last visit has downloaded"""
    _references: References
    """From the last visit, as are the shapes of its update"""
    _sent: Shapes

    @cached_property
    def stepper(self) -> StepFactory:
        """Makes the training steps of visits that have the whole model."""
        return self._stepper(self.net)

    @cached_property
    def _parts(self) -> dict[float, Part]:
        return {}

    def part(self, variant: Variant) -> Part:
        """The model of a visit of this variant: whole, or of its rate."""
        rate, plan = variant.share, self.job.submodels
        if plan is None or rate == 1:
            return Part(self.net, self.stepper, self.model.description.flops)
        if rate not in self._parts:
            net, flops = self.model.part(self.net, rate), self.model.description.flops_by_rate[rate]
            self._parts[rate] = Part(net, self._stepper(net), flops[: len(net)])
        return self._parts[rate]

    def narrower(self, variant: Variant) -> dict[float, NarrowerPart]:
        """The narrower networks within the model of a visit of this variant, the largest first."""
        share, plan = variant.share, self.job.submodels
        if plan is None:
            return {}
        if share not in self._narrower:
            rates = sorted((rate for rate in plan.rates if rate < share), reverse=True)
            self._narrower[share] = {
                rate: NarrowerPart(
                    self.model.narrower(self.net, self.part(variant).net, rate),
                    self.model.description.flops_by_rate[rate],
                )
                for rate in rates
            }
        return self._narrower[share]

    @cached_property
    def _narrower(self) -> dict[float, dict[float, NarrowerPart]]:
        return {}

    def _stepper(self, net: BlockModel) -> StepFactory:
        job = self.job
        # A user's own layers may depend on more than a tape repeats.
        is_plain = job.wrap_model is None and job.privacy.unit != "example" and job.cut is None
        is_taped = self.device.type == "cpu" and is_plain and not is_own(job.model.name) and self.model.row.is_replayed
        tapes = kernel_tapes() if is_taped else None
        has_graphs = self.has_graphs and job.cut is None
        return StepFactory(net, job.train, cuda_graphs() if has_graphs else None, tapes)

    @cached_property
    def _own_state(self) -> OwnState:
        """The state of the user's modules before any of their functions is called here."""
        return OwnState(self.model.own_modules)

    def _reset(self, net: BlockModel, task: Train | Evaluate) -> None:
        """Forget the tasks before: nothing that they left in the model or in this process may reach this one."""
        self._own_state.restore()
        torch.set_num_threads(self.job.train.threads)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        purpose = "process" if isinstance(task, Train) else f"process: evaluation from {task.start}"
        seed_process(int(keyed_generator(self.job.seed, purpose, task.round, task.client).integers(2**62)))
        net.reset()
        net.cuts = {}
        net.merge(task.payload.get(MERGED, {}))
        if self.model.own_modules:  # a metric of the user's own may keep something
            self.__dict__.pop("metrics", None)

    def describe(self, data: bool) -> tuple[ModelProfile, Payload]:
        """Blocks, FLOPs, activations and initial vectors; with ``data``, also the examples of each client."""
        _ = self._own_state
        _ = self.metrics  # so that a user's own that cannot be loaded is refused before the first round
        self._check_client_side(self.job.objective, ClientUpdate)
        for correction in self.job.corrections:
            self._check_client_side(correction, GradientCorrection)
        net = self.net
        check_module(self.job.model, self.model.dataset)
        description, draws = self.model.profile(net), partial(self.model.initial, net)
        if not data:
            return description, draws(0)
        clients = self.client_indices
        _ = self._target_scale  # so that targets that nothing can be learned of are refused before the first round
        if self.job.data.partition.kind == BOARDS and not len(self.data.test.y):
            raise DataError(f"data set {self.data.row.name}: the server has no test examples to evaluate models on")
        description = replace(
            description,
            data_sha256=self.data.sha256,
            data_source=self.data.source,
            test_count=len(self.data.test.y),
            samples=np.array([*map(len, clients.train)], np.int64),
            histogram=np.stack([self.class_counts(indices) for indices in clients.train]),
            test_samples=np.array([*map(len, clients.test)], np.int64),
            validation_samples=np.array([*map(len, clients.validation)], np.int64),
            client_names=_short(client_names(self.job.data, self.data)),
            class_names=_short(self.data.names.classes),
            data_notes=_short(self.data.notes),
            baselines=tuple(baselines(self.data.row, self.data.test)),
        )
        check_single_examples(self.model.blocks, self.dataset, self.job, description.samples)

        def local_examples() -> Iterator[Batches]:
            """The training examples of each client that has any."""
            for indices in clients.train:
                if len(indices):
                    yield partial(self.train_set.in_order, indices, self.job.eval_batch)

        return description, self._objective().choose_initial(net, draws, local_examples)

    def _check_client_side(self, name: str, kind: type) -> None:
        """ValueError that names the key, for a client side that no visit could use."""
        try:
            made = load_dotted(name)(self._options)
        except Exception as error:  # a user's client side may raise anything
            raise ValueError(f"method: cannot make the client side {name!r}: {error_text(error)}") from error
        if not isinstance(made, kind):
            raise ValueError(f"method: the client side {name!r} is no {kind.__name__}")
        lacking = vars(kind(self.job.options)).keys() - vars(made).keys()
        if lacking:
            raise ValueError(
                f"method: the client side {name!r}: __init__{definition_place(type(made).__init__)} does not set "
                f"{', '.join(sorted(lacking))}; begin it with super().__init__(options)"
            )

    @property
    def _options(self) -> Options:
        """The options of the method for one visit, whose client side may change them."""
        return self.job.options.model_copy(deep=True) if self.model.own_modules else self.job.options

    def _objective(self) -> ClientUpdate:
        objective: ClientUpdate = load_dotted(self.job.objective)(self._options)
        return MeasuredVisit(objective) if self.job.is_measured else objective

    def class_counts(self, indices: Indices) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """(classes,) of these training examples."""
        return np.bincount(self.data.train.labels[indices], minlength=self.data.row.classes).astype(np.int64)

    def train(self, task: Train, state_in: str | None, state_out: str | None) -> Update:
        """One visit: begin, train, end. The client's state is read from ``state_in`` and written to ``state_out``.

        The vectors of the update may be views of the model, and are unchanged until the next task begins.
        """
        part, job, state = self.part(task.variant), self.job, self._client_state(state_in)
        net, order = part.net, order_of_steps(task.payload)
        self._allow_tf32(job.train.precision == "tf32")
        if order is None:
            begun = self._begin(task, state)
            begun.objective.train(net, self._batches(task), begun.step)
        else:
            begun = self._trained_together(task, order)
        visit, objective, corrections = begun.visit, begun.objective, begun.corrections
        up, keep, numbers = objective.end(net, visit)
        for correction in corrections:
            more_up, more_keep, more_numbers = correction.end(net, visit)
            up, keep, numbers = up | more_up, keep | more_keep, numbers | more_numbers
        self._downloaded = task.payload.get(MODEL, {})
        if job.privacy.is_local:
            up = up | {MODEL: self._with_noise(task, up[MODEL])}
        encoded: EncodedVectors = {}
        if job.codec.is_used and not job.is_measured:
            self._sent, self._references = shapes(up), self._known_to_both(objective, task, state)
            number, references = task.round, self._references
            self._visit_codec = self.codecs.of(task.variant).up
            up, encoded, more_keep = self._visit_codec.encode(task.client, number, up, references, state)
            keep = keep | more_keep | self._downloaded_last(task, state)
            if any(type(correction).encoded is not GradientCorrection.encoded for correction in corrections):
                decoded = self._changed_by_codec(task.client, number, up, encoded)
                for correction in corrections:
                    keep = keep | correction.encoded(net, visit, decoded)
        if state_out is not None:
            client_state.write(state_out, keep)
        plan = visit.plan
        flops = float((net.executed * part.flops).sum()) + net.further_flops
        counted = {"samples": float(plan.samples), "steps": float(plan.steps), "flops": flops}
        _check_numbers(numbers, counted, job.reports, objective)
        numbers |= counted
        logged = joined(part.take_logged() for part in (objective, *corrections))
        return Update(task.client, task.round, {name: numbers[name] for name in job.reports}, up, logged, encoded)

    def _begin(self, task: Train, state: Payload) -> BegunVisit:
        """Let a visit begin: the model is at its starting point."""
        part, job = self.part(task.variant), self.job
        net = part.net
        self._reset(net, task)
        visit, objective = self._visit(task), self._objective()
        corrections: list[GradientCorrection] = [load_dotted(name)(self._options) for name in job.corrections]
        net.executed[:], net.further_flops = 0, 0.0
        net.train_only()
        net.train_mode(True)
        objective.begin(net, _protected(task.payload), _protected(state), visit)
        _check_loaded(net, objective, "begin")
        for correction in corrections:
            correction.begin(net, task.payload, state, visit)
        if job.cut is not None:
            rng = keyed_generator(job.seed, "messages of steps", task.round, task.client)
            net.cuts = StepMessages(job.cut, self.codecs.steps, rng).ways(net.layout.names)
        step = part.stepper.begin(visit, objective, corrections)
        if job.privacy.unit == "example":
            assert isinstance(step, Sgd)
            rng = keyed_generator(job.seed, "privacy noise: steps", task.round, task.client)
            step = make_private(step, PrivateBackward(net, job.privacy, job.train.batch, rng, objective.losses))
        return BegunVisit(visit, objective, corrections, step)

    def _trained_together(self, task: Train, order: Vector) -> BegunVisit:
        """The visit at its end, after the training of all whose steps are in ``order``; these are trained once."""
        cut, net = self.job.cut, self.part(task.variant).net
        assert cut is not None
        key = task.round, task.lr, order.version, *(vector.version for vector in task.payload[MODEL].values())
        if self._together is None or self._together[0] != key:

            def of(client: int) -> Train:
                return replace_fields(task, client=client)

            together = SplitFedV2(net, cut.fronts(net.layout.names), lambda client: self._begin(of(client), {}))
            try:
                together.train(order.data.astype(int).tolist(), lambda client: self._batches(of(client)))
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # a user's method may raise anything
                kind = type(error).__name__
                raise ValueError(f"a step of client {together.at}: {kind}: {error_text(error)}") from error
            self._together = key, together
        else:
            self._reset(net, task)
            net.train_only()
            net.train_mode(True)
        return self._together[1].end(task.client)

    @cached_property
    def codecs(self) -> Codecs:
        """The codecs of the run."""
        description = self.model.description
        return Codecs(self.job.codec, self.job.seed, description.tensors, description.axes)

    def decoded(self, update: Update) -> Update:
        """The update of the last visit with the vectors that its receiver decodes."""
        client, number = update.client, update.round
        more = update.payload, update.encoded, self._references, self._sent
        return replace_fields(update, payload=self._visit_codec.decode(client, number, *more), encoded={})

    def _with_noise(self, task: Train, model: Mapping[str, Vector]) -> dict[str, Vector]:
        """A visit's model, clipped and with the client's own noise (``privacy.where = "client"``)."""
        privacy = self.job.privacy
        within, _ = clipped(model, self._downloaded, privacy.clip)
        rng = keyed_generator(self.job.seed, "privacy noise", task.round, task.client)
        return with_noise(within, privacy.noise * privacy.clip, rng)

    def clipped(self, update: Update) -> Update:
        """The update of the last visit as a worker adds it up: clipped where the sum will have noise."""
        privacy = self.job.privacy
        if not privacy.is_central:
            return update
        model, _ = clipped(update.payload[MODEL], self._downloaded, privacy.clip)
        return replace_fields(update, payload=update.payload | {MODEL: model})

    def _changed_by_codec(self, client: int, number: int, raw: Payload, frames: EncodedVectors) -> Payload:
        """As of `GradientCorrection.encoded`."""
        visit, shapes = self._visit_codec, self._sent
        back = visit.decode(client, number, raw, frames, self._references, shapes)
        fed_back = {(slot, key) for slot, key, _, codec in visit.codecs.encoded(shapes) if visit.feeds_back(codec)}
        return {
            slot: {key: back[slot][key] for key in by_key if slot == MODEL or (slot, key) not in fed_back}
            for slot, by_key in frames.items()
        }

    def _known_to_both(self, objective: ClientUpdate, task: Train, state: Payload) -> References:
        """The versions of vectors that the server knows, too: downloaded in this visit, or in an earlier one."""
        if self.job.codec.of == "weights":
            return lambda slot, key: None
        earlier = state.get(f"{REFERENCE}{MODEL}", {})

        def reference(slot: str, key: str) -> Floats | None:
            downloaded = objective.reference_slots.get(slot)
            if downloaded is None:
                return None
            vector = task.payload.get(downloaded, {}).get(key)
            if vector is None and slot == MODEL:
                vector = earlier.get(key, self.unvisited[MODEL].get(key))
            return None if vector is None else vector.data

        return reference

    def _downloaded_last(self, task: Train, state: Payload) -> Payload:
        """The last downloaded versions of blocks that not every visit downloads, which later updates differ from."""
        slot, keys = f"{REFERENCE}{MODEL}", self.codecs.up.references(self.job.kept_blocks)
        sources = (task.payload.get(MODEL, {}), state.get(slot, {}), self.unvisited[MODEL])
        last = {key: next(source[key] for source in sources if key in source) for key in keys}
        return {slot: last} if last else {}

    def _client_state(self, state_in: str | None) -> Payload:
        return self.unvisited if state_in is None else client_state.read(state_in)

    def _visit(self, task: Train | Evaluate) -> VisitContext:
        indices, job = self.client_indices.train[task.client], self.job
        train = self._train_of(task)
        plan, held = train.plan(len(indices)), self.part(task.variant).net.layout.sizes
        return VisitContext(
            client=task.client,
            round=task.round,
            seed=job.seed,
            lr=task.lr,
            step_sum=train.step_sum(plan.steps),
            choice=task.choice,
            variant=task.variant,
            plan=plan,
            up=tuple(key for key in job.up if key in held),
            keep=tuple(key for key in job.kept_blocks if key in held),
            local=lambda: self.train_set.in_order(indices, job.eval_batch),
            device=self.device,
            pathways=job.train.pathways or "each",
            train=train,
            class_counts=self.class_counts(indices),
            variants=self.model.variant_flops,
            narrower=partial(self.narrower, task.variant),
            flexible=self.model.row.flexible,
            unit_flops=self.model.description.unit_flops,
            validation=lambda: self.train_set.in_order(self.client_indices.validation[task.client], job.eval_batch),
            phase=lambda purpose, epochs: self._batches(task).phase(purpose, epochs),
        )

    def _train_of(self, task: Train | Evaluate) -> TrainConfig:
        train, seed = self.job.train, self.job.seed
        return train.of_visit(seed, task.round, task.client) if isinstance(task, Train) else train

    def _batches(self, task: Train | Evaluate) -> LocalBatches:
        """The batches of a visit, or of the adaptation before an evaluation."""
        key, indices = (self.job.seed, task.round, task.client), self.client_indices.train[task.client]
        if isinstance(task, Train):
            kind = PoissonBatches if self.job.privacy.unit == "example" else LocalBatches
            return kind(self.train_set, indices, self._train_of(task), key)
        # Draws of its own, so that no adaptation is like the training of a visit.
        train = replace(self.job.train, local_epochs=self.job.adapt_epochs, local_steps=None)
        return LocalBatches(self.train_set, indices, train, key, ("adapt", "adapt: augment"))

    def evaluate(self, task: Evaluate, state_in: str | None) -> Score:
        """Score the global model on the test set, or a client's own model on its own examples.

        In both cases on examples ``start`` to ``stop``, in float32 whatever the precision of training.
        """
        net = self.part(task.variant).net
        before: Values = {}
        self._allow_tf32(False)
        self._reset(net, task)
        net.train_mode(False)
        if task.client == GLOBAL:
            net.load(task.payload[MODEL])
        else:
            before = self._load_client_model(net, task, state_in)
        self._settle(net, task, task.variant.share)
        values = self.metrics.on_examples(net, self._chosen(task))
        values |= before
        if task.client == GLOBAL:
            values |= self._on_parts(task)
        if task.start == 0:  # what is measured once per model is measured in its first task
            split = self.job.eval_select
            if split is not None and task.client != GLOBAL:
                # The split that selects the best round.
                loader, indices = self._evaluated(task.client, split)
                values |= self.metrics.score_and_loss(net, loader.in_order(indices, self.job.eval_batch), split)
            values |= self._on_model(net, task)
        takes_vectors = self.job.collects_vectors and task.start == 0
        return Score(task.start, task.client, values, self.metrics.vectors() if takes_vectors else {})

    def _settle(self, net: BlockModel, task: Evaluate, rate: float) -> None:
        """Set running statistics for an evaluation; ValueError for a global model that has none.

        Static ones are the same for all evaluations of these vectors, and computed once.
        """
        plan = self.job.submodels
        if plan is None or not plan.is_static:
            # Deep blocks of a model of several depths may wait for the first visit that has them, and fronts for the
            # first that counts where a shared server part has learned from others.
            is_shared = self.job.cut is not None and self.job.cut.is_shared
            if task.client == GLOBAL and (plan is None or plan.by == "width") and not is_shared:
                net.check_statistics(self.job.up)
            return
        buffers = [key for key in net.layout.sizes if key.endswith(BUFFERS)]
        if not buffers:
            return
        vectors = task.payload.get(MODEL) or task.payload[LOCAL_MODEL]
        versions = tuple(vector.version for vector in vectors.values())
        of = rate, versions
        if of not in self._static:
            if len(self._static) >= MOST_STATISTICS:
                self._static.clear()
            indices = np.concatenate(self.client_indices.train)
            net.collect_statistics(self.train_set.in_order(indices, self.job.eval_batch))
            self._static[of] = net.dump(buffers)
        net.load(self._static[of])

    @cached_property
    def _static(self) -> dict[tuple[float, tuple[bytes, ...]], dict[str, Vector]]:
        return {}

    def _on_parts(self, task: Evaluate) -> Values:
        """Accuracy and loss of the narrower parts of the global model."""
        plan, values = self.job.submodels, Values()
        if plan is None:
            return values
        for rate in plan.evaluated:
            variant = replace_fields(task.variant, rate=rate)
            slices, net = slice_map(self.model.description.axes, variant), self.part(variant).net
            net.reset()
            net.train_mode(False)
            net.load(slices.taken(task.payload[MODEL]))
            net.merge(task.payload.get(MERGED, {}))
            self._settle(net, task, rate)
            values |= self.metrics.score_and_loss(net, self._chosen(task), rate=rate)
        return values

    def _chosen(self, task: Evaluate) -> Iterator[Batch]:
        """The examples of a task."""
        loader, indices = self._evaluated(task.client, task.split)
        return loader.in_order(indices[task.start : task.stop], self.job.eval_batch)

    @cached_property
    def metrics(self) -> JobMetrics:
        """The metrics of every evaluation."""
        return JobMetrics(self.job.metrics, self.job.metric_options, self.job.train)

    def _load_client_model(self, net: BlockModel, task: Evaluate, state_in: str | None) -> Values:
        """Load the model that a client would use, adapted to its training examples if the job says so.

        Returns its values before the adaptation, if the job asks for them.
        """
        objective = self._objective()
        visit = self._visit(task)
        if self.job.adapt_epochs and self.job.adapt_lr is not None:
            visit = replace(visit, lr=self.job.adapt_lr)
        objective.prepare_score(net, _protected(task.payload), _protected(self._client_state(state_in)), visit)
        _check_loaded(net, objective, "prepare_score")
        before: Values = {}
        if self.job.adapt_before:
            net.train_mode(False)
            before = self.metrics.score_and_loss(net, self._chosen(task), BEFORE)
        if self.job.adapt_epochs:
            batches = self._batches(task)
            self._allow_tf32(batches.config.precision == "tf32")
            net.train_only()
            net.train_mode(True)
            steps = batches.config.plan(len(batches.indices)).steps
            objective.adapt(net, batches, local_step(net, batches.config, visit.lr, planned=steps))
            self._allow_tf32(False)
        net.train_mode(False)
        return before

    def _on_model(self, net: BlockModel, task: Evaluate) -> Values:
        """Metrics of the whole model."""

        def batches(split: EvalSplit | None, inputs: ModelInputs) -> Batches:
            client = GLOBAL if inputs.of_all else task.client
            loader, indices = self._evaluated(client, split or task.split)
            if inputs.most is not None and len(indices) > inputs.most:
                # The same in every round, in their order.
                order = keyed_generator(self.job.seed, "metric examples", 0, client).permutation(len(indices))
                indices = indices[np.sort(order[: inputs.most])]
            return lambda: loader.in_order(indices, inputs.batch or self.job.eval_batch)

        def rng(purpose: str, is_shared: bool) -> np.random.Generator:
            return keyed_generator(self.job.seed, purpose, task.round, GLOBAL if is_shared else task.client)

        return self.metrics.on_model(net, batches, rng)

    def _evaluated(self, client: int, split: EvalSplit) -> tuple[Loader, Indices]:
        """Loader and indices of a client's examples, or of all examples in use."""
        if client == GLOBAL:
            if split == "test":
                return self.test_set, self.evaluated_indices
            return self.train_set, np.sort(np.concatenate(self.client_indices.train))
        if split == "test":
            return self.test_set, self.client_indices.test[client]
        indices = self.client_indices.validation if split == "validation" else self.client_indices.train
        return self.train_set, indices[client]


def _short(texts: Sequence[str]) -> tuple[str, ...]:
    """Names and notes as a description may have them."""
    return tuple(printable(text, MOST_LETTERS)[:MOST_LETTERS] for text in texts)


def _protected(payload: Payload) -> Payload:
    """The vectors as a client side gets them: its own mapping, of numbers that it cannot change for later visits."""
    for _, _, vector in vectors(payload):
        vector.data.flags.writeable = False
    return {slot: dict(model) for slot, model in payload.items()}


def _check_loaded(net: BlockModel, objective: ClientUpdate, name: str) -> None:
    """ValueError for a method that leaves numbers in the model that nothing has loaded in this visit."""
    if not (unloaded := net.unloaded()):
        return
    kind = type(objective.own if isinstance(objective, MeasuredVisit) else objective)
    if name == "prepare_score" and kind.prepare_score is ClientUpdate.prepare_score:
        name = "begin"
    raise ValueError(
        f"method: {name} of {kind.__qualname__}{definition_place(getattr(kind, name))} has not loaded the "
        f"model's {', '.join(unloaded)}; call super().{name}(net, down, state, visit) first, or load them with net.load"
    )


def _check_numbers(
    numbers: Mapping[str, float],
    counted: Mapping[str, float],
    reports: Sequence[str],
    objective: ClientUpdate,
) -> None:
    """ValueError for numbers of ``end`` that would be dropped or are ``counted`` here, and if a declared one lacks."""
    kind = type(objective.own if isinstance(objective, MeasuredVisit) else objective)
    about = f"method: end of {kind.__qualname__}{definition_place(kind.end)}"
    if extra := sorted(numbers.keys() - (set(reports) - counted.keys())):
        if extra[0] in counted:
            raise ValueError(f"{about} gives the number {extra[0]!r}, which is counted for every method; rename it")
        raise ValueError(
            f"{about} gives the number {extra[0]!r}, which its spec does not name; add reports=({extra[0]!r},), or "
            f"record it with self.log({extra[0]!r}, ..)"
        )
    if lacking := [name for name in reports if name not in numbers and name not in counted]:
        raise ValueError(f"{about} does not give the number {lacking[0]!r}, which its spec names in reports")


class NodeTrainer(LocalTrainer):
    """The trainer of workers on another machine than the run's, where a user's own module may be missing.

    It cannot be made without the modules of its method, so that the machine leaves before it works.
    """

    def __init__(self, job: Job) -> None:
        """ImportError for a module that is missing."""
        super().__init__(job)
        for name in (job.objective, *job.corrections, *job.options_types):
            load_dotted(name)


class MeasuredVisit(ClientUpdate):
    """The method's client side up to the end of training, whose local model is measured afterwards.

    It trains exactly as the method's own, whatever that uploads; it uploads the whole model, and nothing of it enters a
    run.
    """

    def __init__(self, objective: ClientUpdate) -> None:
        super().__init__(objective.options)
        self.own = objective

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """As the method's."""
        self.own.begin(net, down, state, visit)

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """As the method's."""
        return self.own.loss(net, x, y)

    def correct(self, net: BlockModel) -> None:
        """As the method's."""
        self.own.correct(net)

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """As the method's."""
        self.own.train(net, batches, step)

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """The local model whole; no client state, no numbers."""
        return {LOCAL_MODEL: net.views(net.layout.sizes)}, {}, {}

    def prepare_score(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Load the local model of a visit before."""
        net.load(down[LOCAL_MODEL])
