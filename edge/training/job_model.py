"""The model of a job, as its method changes it: its blocks, and its profile before round 0. Never an example.

Nothing is measured here: the counts of `edge.training.counts` are kept in files of the cache.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edge.data.atomic_cache import CacheError, build_once, text_once, warn_cache_unusable
from edge.data.registry import DataSet
from edge.models import pretrained
from edge.models.registry import ModelRow, model
from edge.protocol.config import Job, ModelConfig, ModelProfile, TensorAxes, TrainConfig
from edge.protocol.operations import KINDS
from edge.protocol.options.base import Options
from edge.protocol.payload import BUFFERS, ITEM_NBYTES, PASS_TYPES, Payload, initial_slot
from edge.protocol.rng import keyed_generator
from edge.protocol.serialization import unpacked_text
from edge.protocol.submodels import SliceMap, depths, kept_channels
from edge.training.adapters import adapted, is_frozen, rank_axes, share_base
from edge.training.block_model import BlockModel, named_tensors
from edge.training.blocks import Block, method_blocks
from edge.training.counts import (
    Flops,
    ModelCounts,
    count_blocks,
    empty_examples,
    is_without_memory,
    modules_without_memory,
    output_shapes,
    subnetwork_flops,
)
from edge.training.criterion import criterion
from edge.training.exits import depth_axes, shortened
from edge.training.metrics.registry import metric_row
from edge.training.narrowed import add_statistics, model_axes, narrowed, share_numbers
from edge.training.own_state import named_modules
from edge.training.slimmable import Slimmable, resized

MOST_PARAMETERS = 300_000_000
"""Largest model: 1.2 GB, of which a worker holds several copies."""
BASE_FILE = "base.f32"
"""Numbers of all frozen parameters, in their order"""
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def model_outputs(train: TrainConfig, dataset: DataSet) -> int:
    """The outputs of a model: classes, tokens but for padding, those of a loss for each real target, or as many as an
    example has numbers."""
    row, options = train.loss_row
    if row.target == "tokens":
        return dataset.inputs - 1
    if row.target == "class":
        return dataset.classes
    return (math.prod(dataset.shape) if row.target == "input" else dataset.numbers) * row.outputs(options)


class JobModel:
    """The model of one job on the examples of one data set."""

    def __init__(self, job: Job, dataset: DataSet) -> None:
        self.job, self.classes = job, dataset.classes
        self.dataset = replace(dataset, classes=model_outputs(job.train, dataset))
        """As the model sees it: its classes are the model's outputs"""
        self.row, self.cache = model(job.model.name), Path(job.cache)
        self.memory_format = MEMORY_FORMATS[job.train.memory_format or "contiguous"]
        self.own_modules = named_modules(_named(job, self.row))
        """The user's modules that the job names"""

    @cached_property
    def description(self) -> ModelProfile:
        """The model as it has been described before the run; ValueError for a job without it."""
        return unpacked_text(self.job.description)

    def blocks(self, config: ModelConfig | None = None, rank: int | None = None) -> list[Block]:
        """Its blocks, initialised from torch's current random state; ``config``: of a variant of the model; ``rank``:
        of its adapters, if it is not the job's."""
        config, weights = config or self.job.model, None if is_without_memory() else self._weights
        continues = self.dataset.targets.continues
        blocks = method_blocks(config, self.dataset.classes, self.dataset.inputs, self._wrapper, continues, weights)
        if self.job.adapter.kind is not None:
            blocks = adapted(blocks, self.job.adapter if rank is None else self.job.adapter.of_rank(rank))
        plan = self.job.submodels
        if plan is not None and plan.has_own_statistics:
            add_statistics(blocks, plan.rates)
        return blocks

    @cached_property
    def _weights(self) -> Path | None:
        """The numbers of ``model.weights`` in the cache; ValueError for others than those of the run."""
        config = self.job.model
        if config.weights is None:
            return None
        assert self.row.files is not None
        path = pretrained.located(config.weights)
        content = pretrained.sha256(path)
        if config.weights_sha256 not in (None, content):
            raise ValueError(
                f"model.weights = {config.weights!r}: {path} has the hash {content}, and the run's weights have "
                f"{config.weights_sha256}; copy these here"
            )
        numbers_of = importlib.import_module(self.row.files).numbers_of
        return pretrained.flat_file(path, content, self.row.name, numbers_of, self.cache)

    @property
    def _wrapper(self) -> tuple[str, Options] | None:
        """The method's ``wrap_model`` and its options."""
        return None if self.job.wrap_model is None else (self.job.wrap_model, self.job.options)

    def made(self, device: torch.device) -> BlockModel:
        """The model, initialised from the job's seed; ValueError for one that is too large for any worker."""
        parameters = sum(p.numel() for module in modules_without_memory(self.blocks) for p in module.parameters())
        if parameters > MOST_PARAMETERS:
            raise ValueError(
                f"model.name = {self.row.name!r}: of width {self.job.model.width} it has {parameters:,} parameters; "
                f"the most is {MOST_PARAMETERS:,}"
            )
        net = BlockModel(
            seeded(self.job.seed, self.blocks), device, self.memory_format, self.job.by_layer, bool(self.own_modules)
        )
        net.frozen_statistics = self.job.train.frozen_statistics
        net.criterion = criterion(self.job.train)
        if self.job.adapter.kind is not None and device.type == "cpu":
            self._share_base(net)
        return net

    def _share_base(self, net: BlockModel) -> None:
        """Let all workers of a machine map one file with the numbers of the base, in place of copies of their own.

        Nothing ever writes to them. Where the cache cannot be written, the copy stays.
        """
        base = [each for module in net.modules for each in module.parameters() if is_frozen(each)]
        facts = [asdict(self.job.model), asdict(self.job.adapter), self.job.seed, self.dataset.classes]
        facts += [self.dataset.inputs, torch.__version__]
        name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
        numbers = sum(each.numel() for each in base)
        if not numbers or self.own_modules or self.job.model.weights is not None:
            return  # a user's module may change without its name; and weights are mapped already

        def fill(folder: Path) -> None:
            with (folder / BASE_FILE).open("wb") as file:
                for each in base:
                    file.write(each.detach().contiguous().numpy().tobytes())

        try:
            path = build_once(self.cache / "bases" / name, fill) / BASE_FILE
        except CacheError as error:
            warn_cache_unusable(error)
            return
        storage = torch.UntypedStorage.from_file(str(path), False, numbers * ITEM_NBYTES)
        mapped = torch.empty(0, dtype=torch.float32).set_(storage)  # type: ignore[arg-type]
        for each, piece in zip(base, torch.split(mapped, [each.numel() for each in base]), strict=True):
            each.data = piece.view(each.shape)

    def part_blocks(self, net: BlockModel, axes: TensorAxes, rate: float) -> list[Block]:
        """The blocks of the part of a rate of the model ``net``."""
        assert self.job.submodels is not None
        if self.job.submodels.by == "depth":
            return shortened(self.blocks(), len(SliceMap(axes, rate).layout(net.layout)))
        if self.job.submodels.by == "rank":
            return self.blocks(rank=kept_channels(self.job.adapter.rank, rate))
        keys = [net.layout.keys([name]) for name in net.layout.names]
        parameters = [[key for key in block_keys if not key.endswith(BUFFERS) and key in axes] for block_keys in keys]
        return narrowed(self.blocks(), axes, parameters, rate, self.job.submodels.is_scaled)

    def part(self, net: BlockModel, rate: float) -> BlockModel:
        """The part of a rate; its numbers are those of the next download."""
        make = partial(self.part_blocks, net, self.description.axes, rate)
        part = BlockModel(make, net.device, self.memory_format, self.job.by_layer, bool(self.own_modules))
        share_base(part.modules, net.modules)
        part.frozen_statistics = self.job.train.frozen_statistics
        part.criterion = net.criterion
        return part

    def narrower(self, net: BlockModel, part: BlockModel, rate: float) -> list[nn.Module]:
        """The modules of the part of a rate, over the numbers of ``part``, a wider part of the model ``net``."""
        blocks = self.part_blocks(net, self.description.axes, rate)
        modules = [module.to(net.device) for _, module in blocks]
        share_numbers(modules, part.modules, rate)
        return modules

    def initial(self, net: BlockModel, draw: int) -> Payload:
        """All initial models of one independent draw, 0, 1, .. (`initial_slot`).

        The first of draw 0 is ``net`` as it is now.
        """
        payload = {}
        for index in range(self.job.initial_models):
            number = draw * self.job.initial_models + index
            make = seeded(self.job.seed, self.blocks, number)
            model = BlockModel(make, net.device, net.memory_format, net.by_layer) if number else net
            payload[initial_slot(index)] = model.dump(net.layout.sizes)
        return payload

    # --- counts -------------------------------------------------------------------------------------------------------

    def profile(self, net: BlockModel) -> ModelProfile:
        """Its profile without the data: FLOPs, activations, variants and residual units."""
        adapter = [] if self.job.adapter.kind is None else [asdict(self.job.adapter)]
        counts = cached_counts(self.job.model, self.blocks, self.dataset, self.cache, self._wrapper, adapter)
        empty = np.zeros(0, dtype=np.int64)
        return ModelProfile(
            layout=net.layout,
            family=self.row.family,
            flops=counts.flops,
            activations=counts.activations,
            data_sha256="",
            data_source="",
            classes=self.classes,
            test_count=0,
            samples=empty,
            histogram=np.zeros((0, self.classes), dtype=np.int64),
            test_samples=empty,
            variants=np.array([*self.variant_flops.values()]).reshape(-1, PASS_TYPES),
            operations=counts.operations,
            cuts=counts.outputs,
            label_words=self._label_words,
            frozen=np.array([net.frozen_numbers(index) for index in range(len(net))] if adapter else [], np.int64),
            tensors=net.tensors,
            outputs=output_shapes(self.blocks, self.dataset) if self.job.variants else np.zeros((0, 3)),
            unit_blocks=counts.unit_blocks,
            unit_flops=counts.unit_flops,
            **self._parts(net),
        )

    @property
    def _label_words(self) -> int:
        """`ModelProfile.label_words` under ``train.loss``."""
        shape, numbers = self.dataset.shape, self.dataset.numbers
        words = {"class": 2, "tokens": 2 * (shape[0] - 1), "numbers": numbers, "input": math.prod(shape)}
        return words[self.job.train.loss_row[0].target]

    def _parts(self, net: BlockModel) -> dict[str, Any]:
        """The fields of the profile that are of parts; ValueError for a model without parts."""
        plan = self.job.submodels
        if plan is None:
            return {}
        try:
            if plan.by == "width":
                axes = model_axes(net, self.blocks, self.dataset)
            elif plan.by == "rank":
                tensors = named_tensors(net.layout, net.modules, net.by_layer)
                axes = rank_axes(tensors, self.job.adapter.keys(net.layout))
            else:
                axes = depth_axes(net)
                if depths(axes) == 1 and plan.rates != (1.0,):
                    raise ValueError("no block has an exit but the last")
            more = [plan.is_scaled, *([asdict(self.job.adapter)] if plan.by == "rank" else [])]
            by_rate = [
                cached_counts(
                    self.job.model,
                    partial(self.part_blocks, net, axes, rate),
                    self.dataset,
                    self.cache,
                    self._wrapper,
                    [rate, *more],
                )
                for rate in plan.rates
            ]
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"model.name = {self.job.model.name!r}: has no sub-models: {error}") from error
        # Parts may have fewer blocks: those that they have not count 0.
        flops, activations = np.zeros((len(by_rate), len(net), PASS_TYPES)), np.zeros((len(by_rate), len(net)))
        for place, counts in enumerate(by_rate):
            flops[place, : len(counts.flops)], activations[place, : len(counts.flops)] = counts[:2]
        return {
            "axes": axes,
            "rates": plan.rates,
            "part_flops": flops.reshape(-1, PASS_TYPES),
            "part_activations": activations.ravel(),
            "part_operations": np.concatenate([counts.operations for counts in by_rate]),
        }

    @cached_property
    def variant_flops(self) -> dict[tuple[float, float], Flops]:
        """FLOPs per example of the variants of the model that the method declares.

        Those of a model with slimmable layers are its sub-networks'; else those of a model of that width.
        """
        variants = self.job.variants
        if not variants:
            return {}
        layers = (layer for module in modules_without_memory(self.blocks) for layer in module.modules())
        if not any(isinstance(layer, Slimmable) for layer in layers):
            return {variant: self._flops_at(*variant) for variant in variants}
        flexible = self.row.flexible
        path = cached_path(self.job.model, self.dataset, self.cache, self._wrapper, [variants, flexible])

        def counted() -> str:
            return json.dumps(subnetwork_flops(self.blocks, self.dataset, flexible, variants).tolist())

        try:
            flops = np.array(json.loads(text_once(path, counted)))
        except ValueError as error:
            raise ValueError(f"model.name = {self.row.name!r}: {error}") from None
        return dict(zip(variants, flops, strict=True))

    def _flops_at(self, factor: float, share: float) -> Flops:
        """``share``: of the images' height. ValueError for a variant that the model or the data set does not have."""
        row = self.row
        if self.dataset.kind != "image":
            raise ValueError(
                f"data.name = {self.dataset.name!r}: the method needs images, at {share:g} of their height"
            )
        channels, rows, columns = self.dataset.shape
        height, across = resized((rows, columns), share)
        width = row.width if self.job.model.width is None else self.job.model.width
        if height != rows and not row.flexible:
            raise ValueError(f"model.name = {row.name!r}: the method needs one that takes images of height {height}")
        if factor != 1 and width is None:
            raise ValueError(f"model.name = {row.name!r}: the method needs one that has a width")
        if width is not None:
            width = max(1, round(width * factor / row.width_multiple)) * row.width_multiple
        config = replace(self.job.model, width=width)
        images = replace(self.dataset, shape=(channels, height, across))
        return cached_counts(config, lambda: self.blocks(config), images, self.cache, self._wrapper).flops


def _named(job: Job, row: ModelRow) -> list[str]:
    """The ``module:NAME`` of all that a job names and its workers call in visits and evaluations."""
    rows = [metric_row(name).measure for name in job.metrics]
    stages = [str(stage.get("kind")) for chain in (job.codec.up, *job.codec.up_slots.values()) for stage in chain]
    client_sides = [job.objective, *job.corrections, *job.options_types, *filter(None, [job.wrap_model])]
    return [*client_sides, job.model.name, row.stages, *job.metrics, *rows, *stages]


def seeded(seed: int, make: Callable[[], list[Block]], index: int = 0) -> Callable[[], list[Block]]:
    """``make`` with torch's random state set from (seed, init), and restored afterwards.

    ``index``: of further, independent initialisations, 1, 2, .. Torch's default initialisation draws from the global
    state; this is the only place that sets it.
    """
    key = (index,) if index else ()

    def build() -> list[Block]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(keyed_generator(seed, "init", *key).integers(2**62)))
            return make()

    return build


def check_single_examples(
    make: Callable[[], list[Block]], dataset: DataSet, job: Job, samples: NDArray[np.int64]
) -> None:
    """ValueError if a client trains on batches of one example, of which the model cannot have batch statistics.

    ``samples``: (clients,), the training examples of each.
    """
    train = job.train
    epoch = replace(train, local_epochs=1, local_steps=None)

    def has_single(held: int) -> bool:
        plans = [train.plan(held), *([epoch.plan(held)] if job.adapt_epochs else [])]
        has_short = held % train.batch == 1 and not train.drop_last
        is_reached = any(0 < plan.epoch_steps <= plan.steps for plan in plans)
        return (has_short and is_reached) or (train.batch == 1 and held > 0)

    client, held = next(((client, held) for client, held in enumerate(samples.tolist()) if has_single(held)), (0, 0))
    if not held:
        return
    try:
        x = empty_examples(dataset.shape, dataset.kind, examples=1)
        for module in modules_without_memory(make):
            x = module(x)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            f"train.batch = {train.batch}: client {client} has {held} examples, one of them in a batch of its own, and "
            "batch statistics need two numbers per channel; choose another batch, train.drop_last = true, or "
            "model.norm = group"
        ) from None


# --- counts in files --------------------------------------------------------------------------------------------------


def cached_counts(
    config: ModelConfig,
    make: Callable[[], list[Block]],
    dataset: DataSet,
    cache: Path,
    wrapper: tuple[str, Options] | None = None,
    more: Sequence[Any] = (),
) -> ModelCounts:
    """The counts of a model, which are kept in `cached_path`."""
    path = cached_path(config, dataset, cache, wrapper, more)

    def counted() -> str:
        counts = count_blocks(make, dataset.shape, dataset.kind, is_wrapped=wrapper is not None)
        return json.dumps([count.tolist() for count in counts])

    flops, activations, operations, blocks, units, pooled, outputs = map(np.array, json.loads(text_once(path, counted)))
    unit_blocks, unit_flops = blocks.astype(np.int64), units.astype(np.float64).reshape(-1, PASS_TYPES)
    return ModelCounts(flops, activations, operations, unit_blocks, unit_flops, pooled, outputs.astype(np.int64))


def cached_path(
    config: ModelConfig,
    dataset: DataSet,
    cache: Path,
    wrapper: tuple[str, Options] | None = None,
    more: Sequence[Any] = (),
) -> Path:
    """The file of counts of a model on a data set.

    Its name is the model's configuration, the source of its module and of those of its package that it imports from,
    the examples' shape, the classes, torch's version and the kinds of operations; beyond shipped models of images, what
    else the counts depend on; with a ``wrapper`` (``module:function``, options) of the model's blocks also its name,
    options and sources; and ``more`` facts.
    """
    row = model(config.name)
    built_by = importlib.import_module(row.stages.partition(":")[0])
    facts = [
        asdict(config),
        _sources(built_by, built_by.__package__),
        dataset.shape,
        dataset.classes,
        torch.__version__,
        KINDS,
    ]
    if row.children or dataset.kind != "image":
        facts += [dataset.kind, dataset.vocabulary, row.width, row.blocks, row.children]
    if dataset.targets.continues:
        facts.append(dataset.target)
    if wrapper is not None:
        function, options = wrapper
        module = importlib.import_module(function.partition(":")[0])
        facts += [function, options.model_dump(), _sources(module, module.__name__.partition(".")[0])]
    name = hashlib.sha256(json.dumps([*facts, *more]).encode()).hexdigest()[:32]
    return cache / "flops" / "v8" / f"{name}.json"


def _sources(module: ModuleType, package: str | None) -> list[str]:
    """The source of a module, and of those below a package that it imports functions or classes from."""
    imported = {str(getattr(value, "__module__", "")) for value in vars(module).values()}
    beside = {name for name in imported if package and name.startswith(f"{package}.")}
    return [inspect.getsource(sys.modules[name]) for name in sorted(beside | {module.__name__})]
