"""FedBR: only the last alpha global blocks go down, and a bandit picks alpha per client (GMBS).

Zeng, Liu, Xu, Wang, Xu and Zhao, Enhanced Federated Learning with Adaptive Block-wise Regularization and Knowledge
Distillation. The client side is `edge.methods.fedbr`, the bandit `coordinator.methods.gmbs`. What the paper leaves open
is an option here; the default comes first and the alternatives after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coordinator.aggregation.server import (
    Download,
    Model,
    ServerContext,
    ServerExtension,
    ServerStrategy,
    State,
    VisitFeedback,
)
from coordinator.methods.gmbs import CHOICES, Bonus, ChoiceRow, Gmbs, Normalise, normalise, reward
from coordinator.methods.spec import (
    ChosenBlocks,
    MethodFigure,
    ObjectiveSpec,
    Options,
    PassCounts,
    ProgressColumn,
    add_frozen_suffix,
    fedavg_pass_counts,
)
from edge.protocol.messages import Update
from edge.protocol.payload import FORWARD, MODEL, PASS_TYPES, Layout, Payload, Vector
from edge.protocol.rng import keyed_generator


class FedBROptions(Options):
    """FedBR's hyperparameters and the details its paper leaves open."""

    alpha: Literal["gmbs", "random"] | int = Field(default="gmbs", title="α")
    """How many global blocks go down: chosen by GMBS, drawn at random, or fixed in 1..M-1."""
    period: int = Field(default=3, ge=0, title="τ")
    """Every period + 1 rounds the whole model goes down; 0 sends it in every round."""
    schedule: Literal["text", "equation"] = "text"
    """Whole model every tau + 1 rounds (text) or every tau rounds (what Eq. 3 charges)."""
    broadcast: Literal["participants", "everyone"] = "participants"
    """Who gets the whole model when it goes down; with everyone, the others get a download-only visit."""
    stale_after: int | None = Field(default=None, ge=0)
    """Send the whole model to a client that was absent for more rounds than this; by default never."""
    full_rounds: Literal["gmbs", "all", "silent"] = "gmbs"
    """When the whole model went down: alpha still sets the pathways; all M-1 pathways; or GMBS gets no feedback."""
    lambda1: float = Field(default=1.0, ge=0, title="λ1")
    """Weight of the pathways' cross-entropy."""
    lambda2: float = Field(default=1.0, ge=0, title="λ2")
    """Weight of the divergence between pathways and main path."""
    temperature: float = Field(default=1.0, gt=0, title="T")
    """Of both sides of the divergence."""
    hybrid_ce: bool = True
    """Whether pathways have cross-entropy terms."""
    norm: Literal["used", "all", "none"] = "used"
    """Divisor of both sums: alpha, M-1, or 1."""
    kl: Literal["hybrid-local", "local-hybrid", "symmetric"] = "hybrid-local"
    """Direction of the divergence, reference first."""
    detach: bool = False
    """Whether the divergence's pathway side is a constant."""
    kl_t2: bool = False
    """Whether the divergence is multiplied by T²."""
    memory: float = Field(default=0.5, ge=0, le=1, title="λ")
    """How much a new reward weighs in Eq. 6: 1 keeps only the latest, 0 learns nothing."""
    deviation: Literal["total-variation", "l2", "kl", "model", "constant"] = "total-variation"
    """d_k of Eq. 5: distance of label distributions, of models (relative to the participants' mean; in asynchronous
    policies to the mean of all visits so far), or 1."""
    drop: Literal["epochs", "exact", "visits", "absolute"] = "epochs"
    """Δζ_L of Eq. 5: first minus last local epoch; full-data loss before minus after; last visit minus this one;
    the absolute value of the first."""
    normalise: Normalise = "max"
    """How times are made comparable within a round; in asynchronous policies the longest so far is the measure."""
    first_round: Literal[0, 1] = 0
    """What t of Eq. 7 counts from."""
    bonus: Bonus = "printed"
    """√(ln(t+1))/(n+1) as printed, or √(ln(t+1)/(n+1))."""

    def check(self, blocks: int) -> None:
        """A fixed alpha must lie in 1..M-1."""
        if isinstance(self.alpha, int) and not 1 <= self.alpha < blocks:
            raise ValueError(
                f"method_options.alpha = {self.alpha}: must be in 1..{blocks - 1}, since the model has {blocks} blocks "
                f"(sending all of them is what period = 0 does)"
            )

    def check_asynchronous(self) -> None:
        """Without rounds there is no broadcast to everyone, and no times to normalise by but the longest so far."""
        if self.broadcast == "everyone":
            raise ValueError('method_options.broadcast = "everyone": there are no rounds to broadcast in')
        if self.normalise != "max":
            raise ValueError(f'method_options.normalise = "{self.normalise}": without rounds only "max" has a meaning')


class FedBRServer(ServerStrategy):
    """Chooses alpha per visit, sends the last alpha blocks or the whole model, and feeds the bandit."""

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        self.options = FedBROptions.model_validate(dict(setup.options))
        clients, self.blocks = len(setup.samples), len(setup.layout)
        self.gmbs = Gmbs(clients, self.blocks - 1, self.options.memory, self.options.bonus)
        self.deviations = label_deviation(setup.histogram, self.options.deviation)
        self.last_seen = np.full(clients, -1, dtype=np.int64)
        self.last_loss = np.full(clients, np.nan)
        self.since_full = np.full(clients, -1, dtype=np.int64)
        self.longest = np.zeros(2)
        self.distance = np.zeros(2)
        self._sent: dict[int, Model] = {}
        self._moved: dict[int, float] = {}
        self._values: dict[int, float] = {}

    def choose(self, client: int, round: int) -> ChosenBlocks:
        """The last alpha blocks, or everything where a whole broadcast is due."""
        due = self._is_due(client) if self.setup.asynchronous else self.is_full(round)
        full = due or self._needs_all(client, round)
        alpha = self._alpha(client, round)
        return {"alpha": self.blocks - 1 if full and self.options.full_rounds == "all" else alpha, "full": int(full)}

    def payload(self, client: int, choice: ChosenBlocks) -> Payload:
        """The last alpha blocks of the model, or all of them."""
        layout = self.setup.layout
        keys = layout.keys() if choice["full"] else layout.last(choice["alpha"])
        return self.with_extensions(client, self.select(keys))

    def possible_choices(self) -> list[ChosenBlocks]:
        """Every alpha, alone and where everything goes down."""
        fixed = self.options.alpha
        alphas = [fixed] if isinstance(fixed, int) else range(1, self.blocks)
        in_full = [self.blocks - 1] if self.options.full_rounds == "all" else alphas
        return [
            *({"alpha": alpha, "full": 0} for alpha in alphas),
            *({"alpha": alpha, "full": 1} for alpha in in_full),
        ]

    @property
    def decides_without_updates(self) -> bool:
        """Rewards follow from times and losses, unless the deviation in Eq. 5 is that of the models."""
        return self.options.deviation != "model"

    def is_full(self, round: int) -> bool:
        """Whether the whole model goes down in this round."""
        return self._span == 0 or round % self._span == 0

    @property
    def _span(self) -> int:
        return self.options.period + (1 if self.options.schedule == "text" else 0)

    def _is_due(self, client: int) -> bool:
        """Without rounds each client counts its own visits since it last got the whole model."""
        return self._span == 0 or int(self.since_full[client]) >= self._span - 1

    def _needs_all(self, client: int, round: int) -> bool:
        seen, limit = int(self.last_seen[client]), self.options.stale_after
        return seen < 0 or (limit is not None and round - seen - 1 > limit)

    def _alpha(self, client: int, round: int) -> int:
        if isinstance(self.options.alpha, int):
            return self.options.alpha
        # Without rounds a client may be visited twice between two server steps, but each time after more visits.
        turn = int(self.gmbs.n[client].sum()) if self.setup.asynchronous else round
        rng = keyed_generator(self.setup.seed, "gmbs", turn, client)
        if self.options.alpha == "random":
            return int(rng.integers(1, self.blocks))
        return self.gmbs.choose(client, round + self.options.first_round, rng)

    def download_only_clients(self, round: int, cohort: Sequence[int]) -> Sequence[int]:
        """With ``broadcast = "everyone"``, all other clients that hold data."""
        if self.options.broadcast == "participants" or not self.is_full(round):
            return ()
        taking_part = set(cohort)
        return [int(k) for k in np.flatnonzero(self.setup.samples) if int(k) not in taking_part]

    def started(self, round: int, dispatches: Sequence[Download]) -> None:
        """Count dispatched visits; a client that only listens has not been chosen for."""
        sent = dict(self.model)
        for dispatch in dispatches:
            alpha = dispatch.choice["alpha"]
            if alpha:
                if self.options.deviation == "model":  # else nobody asks, and many old models would be held
                    self._sent[dispatch.client] = sent
                values = self.gmbs.values(dispatch.client, round + self.options.first_round)
                self._values[dispatch.client] = float(values[alpha - 1])
                self.gmbs.started(dispatch.client, alpha)

    def received(self, round: int, dispatches: Sequence[Download]) -> None:
        """Who was last seen when, and who has the whole model since when."""
        for dispatch in dispatches:
            client, was_full = dispatch.client, len(dispatch.payload[MODEL]) == len(self.setup.layout.keys())
            self.last_seen[client] = round
            self.since_full[client] = 0 if was_full else self.since_full[client] + 1

    def observe(self, reply: Update) -> None:
        """How far the client's model has moved, where Eq. 5 asks for it."""
        if self.options.deviation == "model":
            self._moved[reply.client] = model_distance(reply, self._sent.pop(reply.client))

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> list[ChoiceRow]:
        """Eq. 5 and 6 for every visit that counted."""
        if not outcomes:
            return []
        deviations = self._deviations(outcomes)
        compute, communication = self._shares(outcomes)
        rows = []
        for i, outcome in enumerate(outcomes):
            client, alpha = outcome.dispatch.client, outcome.dispatch.choice["alpha"]
            full = outcome.dispatch.choice["full"]
            drop = self._drop(outcome.reply)
            gained = reward(deviations[i], drop, float(compute[i]), float(communication[i]))
            self._learn(client, alpha, full, gained, outcome.reply)
            shares = float(compute[i]), float(communication[i])
            value, deviation = self._values[client], float(deviations[i])
            rows.append(ChoiceRow(round, client, alpha, full, value, deviation, drop, *shares, gained))
        return rows

    def _learn(self, client: int, alpha: int, full: int, gained: float, reply: Update) -> None:
        if not (full and self.options.full_rounds == "silent"):
            self.gmbs.learn(client, alpha, gained)
        self.last_loss[client] = reply.numbers["loss"]

    def replay_feedback(self, outcome: VisitFeedback, learned: ChoiceRow) -> None:
        """Eq. 6 with the reward of then."""
        self._learn(learned.client, learned.alpha, learned.full, learned.reward, outcome.reply)

    def restore_in_flight(self, client: int, model: Model) -> None:
        """The model that the client's will be compared with."""
        if client in self._sent:
            self._sent[client] = model

    def _shares(self, outcomes: Sequence[VisitFeedback]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Normalised times: within the round, or, where visits end one by one, by the longest so far."""
        seconds = np.array([(o.compute_seconds, o.communication_seconds) for o in outcomes])
        if not self.setup.asynchronous:
            compute, communication = (normalise(column, self.options.normalise) for column in seconds.T)
            return compute, communication
        self.longest = np.maximum(self.longest, seconds.max(axis=0))
        shares = np.divide(seconds, self.longest, out=np.zeros_like(seconds), where=self.longest > 0)
        return shares[:, 0], shares[:, 1]

    def _drop(self, reply: Update) -> float:
        if self.options.drop != "visits":
            return float(reply.numbers["drop"])
        before = float(self.last_loss[reply.client])
        return 0.0 if np.isnan(before) else before - float(reply.numbers["loss"])

    def _deviations(self, outcomes: Sequence[VisitFeedback]) -> NDArray[np.float64]:
        if self.options.deviation != "model":
            return self.deviations[[o.dispatch.client for o in outcomes]]
        distances = np.array([self._moved.pop(o.dispatch.client) for o in outcomes])
        mean = distances.mean()
        if self.setup.asynchronous:
            self.distance += distances.sum(), len(outcomes)
            mean = self.distance[0] / self.distance[1]
        return distances / mean if mean > 0 else distances

    def state(self) -> State:
        """The bandit's memory, and when and how each client was last seen."""
        own = {"p": self.gmbs.p, "n": self.gmbs.n, "last_seen": self.last_seen, "last_loss": self.last_loss}
        own |= {"since_full": self.since_full, "longest": self.longest, "distance": self.distance}
        return super().state() | {name: array.copy() for name, array in own.items()}

    def restore(self, model: dict[str, Vector], state: State) -> None:
        super().restore(model, state)
        self.gmbs.p[:], self.gmbs.n[:] = state["p"], state["n"]
        self.last_seen[:], self.last_loss[:] = state["last_seen"], state["last_loss"]
        self.since_full[:], self.longest[:] = state["since_full"], state["longest"]
        self.distance[:] = state["distance"]


def label_deviation(histogram: NDArray[np.int64], kind: str) -> NDArray[np.float64]:
    """d_k per client from label histograms (clients, classes): how far its labels are from everyone's.

    Total variation is ½ Σ_c |p_k(c) − p(c)|, in [0, 1]; a client without examples gets 0.
    """
    if kind in ("constant", "model"):
        return np.ones(len(histogram))
    overall = histogram.sum(axis=0) / max(histogram.sum(), 1)
    counts = histogram.sum(axis=1, keepdims=True)
    own = np.where(counts > 0, histogram / np.maximum(counts, 1), overall)
    if kind == "l2":
        return np.asarray(np.sqrt(((own - overall) ** 2).sum(axis=1)))
    if kind == "kl":
        ratio = np.divide(own, overall, out=np.ones_like(own), where=own > 0)
        return np.asarray((own * np.log(ratio)).sum(axis=1))
    return np.asarray(0.5 * np.abs(own - overall).sum(axis=1))


def model_distance(reply: Update, sent: dict[str, Vector]) -> float:
    """‖x_k − θ‖₂ over what came up."""
    total = 0.0
    for key, vector in reply.payload[MODEL].items():
        total += float(np.square(vector.data - sent[key].data, dtype=np.float64).sum())
    return float(np.sqrt(total))


def passes(blocks: int, options: FedBROptions, choice: ChosenBlocks) -> PassCounts:
    """The main path and alpha pathways, the m-th with the frozen blocks after m."""
    total = fedavg_pass_counts(blocks)
    pathways_learn = options.hybrid_ce or not options.detach
    for m in range(blocks - choice["alpha"], blocks):
        add_frozen_suffix(total, m, pathways_learn)
    return total


def whole_passes(blocks: int, options: FedBROptions, choice: ChosenBlocks) -> PassCounts:
    """``drop = "exact"`` runs the local data forward before and after training."""
    total = np.zeros((blocks, PASS_TYPES))
    total[:, FORWARD] = 2.0 if options.drop == "exact" else 0.0
    return total


def kept(layout: Layout, down: tuple[str, ...]) -> tuple[str, ...]:
    """All but the last block, which arrives in every visit."""
    return layout.keys(layout.names[:-1])


FIGURE = MethodFigure(
    title="GMBS choices",
    text="Left: how many clients were given each α, the number of last blocks they download; a triangle marks a round "
    "in which the whole model went down. Right: the bandit's value of what it chose (Eq. 7) and the reward it got "
    "(Eq. 5). Bands that narrow show a preference being learned; V falling towards the reward shows exploration "
    "ending.",
    counted="alpha",
    symbol="α",
    counted_title="blocks downloaded",
    marked=("full", "full download"),
    averaged={"value": "V of the chosen α", "reward": "reward"},
    averaged_title="expected and received",
)

SPEC = ObjectiveSpec(
    name="fedbr",
    title="adaptive block-wise regularisation, GMBS",
    source="Zeng et al.",
    options=FedBROptions,
    neutral="period = 0 and lambda1 = lambda2 = 0, against FedAvg with uniform weights",
    client="edge.methods.fedbr:FedBRUpdate",
    server=FedBRServer,
    down=None,
    kept_blocks=kept,
    choices=("alpha", "full"),
    reports=("drop",),
    table=CHOICES,
    progress=ProgressColumn("alpha", lambda blocks: range(1, blocks)),
    figure=FIGURE,
    pass_counts=passes,
    once_per_visit_pass_counts=whole_passes,
    nominal_alpha=lambda blocks, options, choice: choice["alpha"],
    nominal_period=lambda options: options.period,
    weights="uniform",
    needs_individual_updates=lambda options: options.deviation == "model",
)
