"""The typical visits of a run that has not begun, and their prices: of ``check``, durations and the costs of methods.

A typical client has the median number of examples, and a typical round is one after every warm-up. Nothing here is
timed or trained.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coordinator.aggregation.server import Download, ServerStrategy, payload_shapes
from coordinator.records.schema import Lengths
from coordinator.rounds.visit import VisitPrice, VisitPricing
from costmodel.visits.work import Work
from edge.protocol.config import Job, ModelProfile
from edge.protocol.payload import Vector, initial_slot
from edge.protocol.rng import keyed_generator
from edge.protocol.variant import PLAIN, Variant
from scenarios.config.load import Loaded
from scenarios.run import evaluated_clients
from scenarios.run.setup import Setup

DEVICE = "cpu"
"""Blocks and FLOPs are the same on every device."""
NO_FILE = "no-file"
ANY = 0
"""Any client, where all are alike."""


@dataclass(frozen=True)
class PricedVisit:
    price: VisitPrice
    payload_down: int
    payload_up: int


@dataclass(frozen=True)
class EvaluationVisits:
    """The visits of one evaluation that is charged, of all clients with examples."""

    clients: list[int]
    work: Work
    """The work of the visit of a typical client that has not trained yet"""
    evaluations: int
    """In a run of ``rounds.max`` rounds"""
    bytes_down_later: int = 0
    """Downloaded by a client that has trained, and may have its model"""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole run, down and up together; the most."""
        return (self.work.bytes_down + self.work.bytes_up) * len(self.clients) * self.evaluations

    @property
    def flops(self) -> float:
        """FLOPs of the whole run."""
        return self.work.flops * len(self.clients) * self.evaluations


NO_EVALUATION_VISITS = EvaluationVisits([], Work(0, 0, 0.0), 0)
"""Where evaluations are not charged."""


def server_of_zeros(setup: Setup, visited: bool = False) -> ServerStrategy:
    """The server side with models of zeros; without the data set, each client has one example.

    ``visited``: the server stores vectors of all clients, and `ANY` has received a download. There are no files with
    these vectors, so that shapes alone can be read.
    """
    clients, description = setup.scenario.data.clients, setup.description
    if not len(description.samples):
        description = replace(
            description,
            samples=np.ones(clients, np.int64),
            histogram=np.zeros((clients, description.classes), np.int64),
        )
        setup = Setup(setup.inputs, description)
    zeros = {key: Vector(np.zeros(size, np.float32)) for key, size in description.layout.sizes.items()}
    models = setup.loaded.method.objective.model.initial_models(setup.loaded.options)
    server = setup.server({initial_slot(index): zeros for index in range(models)})
    if visited:
        server.received(0, [server.download(ANY, 0)])
        server.store.restore({(client, slot): NO_FILE for client in range(clients) for slot in server.store_shapes()})
    return server


@dataclass
class TypicalVisits:
    """The visits of a run, from a worker's description of its model and data."""

    setup: Setup
    visited: bool = False
    """Whether clients have been visited before"""

    @classmethod
    def of(cls, loaded: Loaded, description: ModelProfile, visited: bool = False) -> TypicalVisits:
        """The visits of a scenario whose model and data are described."""
        return cls(Setup.of(loaded, description, DEVICE), visited)

    @property
    def loaded(self) -> Loaded:
        return self.setup.loaded

    @property
    def description(self) -> ModelProfile:
        return self.setup.description

    @cached_property
    def job(self) -> Job:
        return replace(self.setup.job, train=self.setup.job.train.of_typical_visit())

    @cached_property
    def server(self) -> ServerStrategy:
        """As of `server_of_zeros`; never stepped."""
        return server_of_zeros(self.setup, self.visited)

    @cached_property
    def _pricing(self) -> VisitPricing:
        return self.setup.pricing(self.job, self.server.up_shapes())

    @property
    def is_fixed_length(self) -> bool:
        """Whether the lengths of uploads follow from shapes; else they are bounds."""
        return self._pricing.is_fixed_length

    @property
    def per_round(self) -> int:
        rules = self.loaded.scenario.rounds
        if rules.is_asynchronous:
            return rules.visits_per_round
        return min(rules.cohort, self.loaded.scenario.data.clients)

    @property
    def cut_at_end(self) -> int:
        """The most visits that an asynchronous policy has in flight when its last update arrives and the run ends.

        They do not count, but their bytes and FLOPs until then do. 0 for policies with a barrier.
        """
        scenario = self.loaded.scenario
        return min(scenario.rounds.cohort, scenario.data.clients) - 1 if scenario.rounds.is_asynchronous else 0

    @cached_property
    def cohort(self) -> list[int]:
        """The clients whose visits are under way together in a typical round."""
        scenario = self.loaded.scenario
        rng = keyed_generator(scenario.seed, "cohort", 0)
        count = min(scenario.rounds.cohort, scenario.data.clients)
        return sorted(rng.choice(scenario.data.clients, size=count, replace=False).tolist())

    def training(self, samples: int | None = None, rng_round: int | None = None) -> list[PricedVisit]:
        """All visits that are possible for a client with so many examples, by default the median.

        ``rng_round``: the key of their random streams, by default that of a typical round.
        """
        if samples is None:
            samples = self.median_samples
        if rng_round is None:
            rng_round = self.loaded.scenario.rounds.max - 1  # after every warm-up
        return [
            self._price(dispatch, samples, rng_round, encoded)
            for dispatch in self._downloads
            for encoded in self._encoded(dispatch)
        ]

    def price_of(self, variant: Variant) -> PricedVisit:
        """The visit of a typical client of this variant, which holds a version, if downloads are encoded."""
        dispatch = self.server.download_of(ANY, 0, self.server.choose(ANY, 0), variant)
        return self._price(dispatch, self.median_samples, 0, self._encoded(dispatch)[0])

    def _price(self, dispatch: Download, samples: int, rng_round: int, encoded: Lengths) -> PricedVisit:
        choice, down, variant = dispatch.choice, dispatch.shapes, dispatch.variant
        price = self._pricing.train(choice, down, samples, ANY, rng_round, encoded, variant)
        return PricedVisit(price, payload_nbytes(price.down), payload_nbytes(price.up))

    def _encoded(self, dispatch: Download) -> list[Lengths]:
        """Bytes of the frames of a download, where the client holds a version, and where it does not."""
        lengths = self.setup.codecs.of(dispatch.variant).down.lengths(dispatch.shapes)
        return [lengths, {}] if lengths and self.setup.codecs.config.of == "update" else [lengths]

    @property
    def median_samples(self) -> int:
        """Training examples of a typical client; 0 without the data set."""
        samples = self.description.samples
        return int(np.median(samples[samples > 0])) if len(samples) else 0

    @cached_property
    def _downloads(self) -> list[Download]:
        """The downloads that a visit of a typical round may have."""
        server, last, loaded = self.server, self.loaded.scenario.rounds.max - 1, self.loaded
        possible = loaded.method.objective.traffic.possible_choices
        choices = possible(len(server.setup.layout), loaded.scenario.data.clients, loaded.options)
        choices = choices or [server.choose(ANY, last)]
        variants = [PLAIN] if server.setup.submodels is None else server.setup.submodels.variants(last)
        return [server.download_of(ANY, last, choice, variant) for choice in choices for variant in variants]

    @cached_property
    def download_only(self) -> tuple[list[int], VisitPrice]:
        """(clients, price of each) of the download-only visits of a round in which all that may only download do so.

        That is round 0, for methods that have such rounds.
        """
        return list(self.server.download_only_clients(0, self.cohort)), self._pricing.download_only()

    def evaluation(self) -> EvaluationVisits:
        """The visits of an evaluation that is charged; none if evaluations are not.

        A typical client has the medians of examples and of training examples; without the data set all clients have
        some.
        """
        loaded, description = self.loaded, self.description
        config, clients = loaded.scenario.eval, list(range(loaded.scenario.data.clients))
        if not config.charged:
            return NO_EVALUATION_VISITS
        median, samples = 0, 0
        if len(description.samples):
            evaluated_clients.evaluation_scope(self.setup)  # refuses a split without examples
            examples = evaluated_clients.examples_of_clients(self.setup)
            clients = np.flatnonzero(examples).tolist()
            median, samples = (int(np.median(counts[clients])) for counts in (examples, description.samples))
        shapes = payload_shapes(self.server.evaluation_model(ANY))
        later = shapes
        with suppress(OSError):  # a model that takes the client's vectors, of which there are no files
            visited = server_of_zeros(self.setup, visited=True)
            later = payload_shapes(visited.evaluation_model(ANY))
        pricing = self._pricing.of_visit(self.server.evaluation_variant(ANY))
        first, kept = (pricing.evaluation(download, median, samples).work for download in (shapes, later))
        evaluations = math.ceil(loaded.scenario.rounds.max / config.every)
        return EvaluationVisits(clients, first, evaluations, min(first.bytes_down, kept.bytes_down))


def payload_nbytes(lengths: Lengths) -> int:
    return sum(nbytes for by_key in lengths.values() for nbytes in by_key.values())
