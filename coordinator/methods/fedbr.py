"""FedBR: clients download the last alpha global blocks; a bandit (GMBS) chooses alpha per client.

Zeng, Liu, Xu, Wang, Xu and Zhao, Enhanced Federated Learning with Adaptive Block-wise Regularization and Knowledge
Distillation. The client side is `edge.methods.fedbr`, the bandit `coordinator.methods.gmbs`. Details that the paper
leaves open are options, with the default first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import (
    GLOBAL,
    Download,
    Models,
    ServerContext,
    ServerExtension,
    ServerStrategy,
    State,
    VisitFeedback,
)
from coordinator.methods.compute import (
    Compute,
    ComputeContext,
    add_frozen_suffix,
    fedavg_passes,
    forward_passes,
    trained,
)
from coordinator.methods.gmbs import CHOICES, ChoiceRow, Gmbs, normalise, reward
from coordinator.methods.spec import Costs, MethodFigure, ObjectiveSpec, ProgressColumn, Records, Refusals, Traffic
from edge.protocol.messages import Choice, Update
from edge.protocol.options.fedbr import FedBROptions
from edge.protocol.payload import MODEL, Layout, Payload
from edge.protocol.rng import keyed_generator


class FedBRServer(ServerStrategy):
    """Chooses alpha per visit, sends the last alpha blocks or the whole model, and gives feedback to the bandit."""

    options: FedBROptions

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        clients, self.blocks = len(setup.samples), len(setup.layout)
        self.gmbs = Gmbs(clients, self.blocks - 1, self.options.memory, self.options.bonus)
        self.deviations = label_deviation(setup.histogram, self.options.deviation)
        self.last_seen = np.full(clients, -1, dtype=np.int64)
        self.last_loss = np.full(clients, np.nan)
        self.since_full = np.full(clients, -1, dtype=np.int64)
        self.longest = np.zeros(2)
        self.distance = np.zeros(2)
        self._moved: dict[int, float] = {}
        self._values: dict[int, float] = {}
        self._span = self.options.period + (1 if self.options.schedule == "text" else 0)
        """Rounds from one full download to the next"""

    def choose(self, client: int, round: int) -> Choice:
        """alpha, and whether the whole model is due."""
        if self.setup.asynchronous:  # each client counts its visits since its last full download
            due = self._span == 0 or int(self.since_full[client]) >= self._span - 1
        else:
            due = self.is_full(round)
        seen, limit = int(self.last_seen[client]), self.options.stale_after
        full = due or seen < 0 or (limit is not None and round - seen - 1 > limit)
        alpha = self._alpha(client, round)
        return {"alpha": self.blocks - 1 if full and self.options.full_rounds == "all" else alpha, "full": int(full)}

    def payload(self, client: int, round: int, choice: Choice) -> Payload:
        """The last alpha blocks of the model, or all of them."""
        layout = self.setup.layout
        keys = layout.keys() if choice["full"] else layout.last(choice["alpha"])
        return self.with_extensions(client, self.select(keys))

    def is_full(self, round: int) -> bool:
        """Whether clients download the whole model in this round."""
        return self._span == 0 or round % self._span == 0

    def _alpha(self, client: int, round: int) -> int:
        if isinstance(self.options.alpha, int):
            return self.options.alpha
        # In asynchronous policies a client may be visited twice between two server steps: its visits are counted.
        rng_round = int(self.gmbs.n[client].sum()) if self.setup.asynchronous else round
        rng = keyed_generator(self.setup.seed, "gmbs", rng_round, client)
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
        """Count started visits, except download-only ones."""
        for dispatch in dispatches:
            alpha = dispatch.choice["alpha"]
            if alpha:
                values = self.gmbs.values(dispatch.client, round + self.options.first_round)
                self._values[dispatch.client] = float(values[alpha - 1])
                self.gmbs.started(dispatch.client, alpha)

    def received(self, round: int, dispatches: Sequence[Download]) -> None:
        """Note the round of each client's visit, and its visits since the last full download."""
        for dispatch in dispatches:
            client, was_full = dispatch.client, len(dispatch.shapes[MODEL]) == len(self.setup.layout.keys())
            self.last_seen[client] = round
            self.since_full[client] = 0 if was_full else self.since_full[client] + 1

    def observe(self, reply: Update, start: Callable[[], Models]) -> None:
        """‖x_k − θ‖₂ over the uploaded vectors, if Eq. 5 uses it."""
        if self.options.deviation == "model":
            sent = start()[GLOBAL]
            squares = sum(
                float(np.square(vector.data - sent[key].data, dtype=np.float64).sum())
                for key, vector in reply.payload[MODEL].items()
            )
            self._moved[reply.client] = float(np.sqrt(squares))

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> list[ChoiceRow]:
        """Eq. 5 and 6 for every visit that counted."""
        if not outcomes:
            return []
        deviations = self._deviations(outcomes)
        seconds = np.array([(outcome.compute_seconds, outcome.communication_seconds) for outcome in outcomes])
        if self.setup.asynchronous:  # normalised by the longest so far
            self.longest = np.maximum(self.longest, seconds.max(axis=0))
            shares = np.divide(seconds, self.longest, out=np.zeros_like(seconds), where=self.longest > 0)
        else:  # within the round
            shares = np.stack([normalise(column, self.options.normalise) for column in seconds.T], axis=1)
        rows = []
        for i, outcome in enumerate(outcomes):
            client, alpha = outcome.dispatch.client, outcome.dispatch.choice["alpha"]
            full = outcome.dispatch.choice["full"]
            if self.options.drop != "visits":
                drop = float(outcome.reply.numbers["drop"])
            else:
                before, loss = float(self.last_loss[client]), outcome.reply.loss
                drop = 0.0 if loss is None or np.isnan(before) else before - loss
            times = float(shares[i, 0]), float(shares[i, 1])
            new_reward = reward(deviations[i], drop, *times)
            self._learn(client, alpha, full, new_reward, outcome.reply)
            value, deviation = self._values[client], float(deviations[i])
            rows.append(ChoiceRow(round, client, alpha, full, value, deviation, drop, *times, new_reward))
        return rows

    def _learn(self, client: int, alpha: int, full: int, new_reward: float, reply: Update) -> None:
        if not (full and self.options.full_rounds == "silent"):
            self.gmbs.learn(client, alpha, new_reward)
        if (loss := reply.loss) is not None:
            self.last_loss[client] = loss

    def replay_feedback(self, outcome: VisitFeedback, learned: ChoiceRow) -> None:
        """Eq. 6 with the recorded reward."""
        self._learn(learned.client, learned.alpha, learned.full, learned.reward, outcome.reply)

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
        """The bandit's state, and the last visit of each client."""
        arrays = {"p": self.gmbs.p, "n": self.gmbs.n, "last_seen": self.last_seen, "last_loss": self.last_loss}
        arrays |= {"since_full": self.since_full, "longest": self.longest, "distance": self.distance}
        return super().state() | {name: array.copy() for name, array in arrays.items()}

    def restore(self, models: Models, state: State) -> None:
        super().restore(models, state)
        self.gmbs.p[:], self.gmbs.n[:] = state["p"], state["n"]
        self.last_seen[:], self.last_loss[:] = state["last_seen"], state["last_loss"]
        self.since_full[:], self.longest[:] = state["since_full"], state["longest"]
        self.distance[:] = state["distance"]


def label_deviation(histogram: NDArray[np.int64], kind: str) -> NDArray[np.float64]:
    """d_k per client from label histograms (clients, classes): distance from the overall distribution.

    Total variation is ½ Σ_c |p_k(c) − p(c)|, in [0, 1]; a client without examples gets 0.
    """
    if kind in ("constant", "model"):
        return np.ones(len(histogram))
    overall = histogram.sum(axis=0) / max(histogram.sum(), 1)
    counts = histogram.sum(axis=1, keepdims=True)
    labels = np.where(counts > 0, histogram / np.maximum(counts, 1), overall)
    if kind == "l2":
        return np.asarray(np.sqrt(((labels - overall) ** 2).sum(axis=1)))
    if kind == "kl":
        ratio = np.divide(labels, overall, out=np.ones_like(labels), where=labels > 0)
        return np.asarray((labels * np.log(ratio)).sum(axis=1))
    return np.asarray(0.5 * np.abs(labels - overall).sum(axis=1))


def possible_choices(blocks: int, clients: int, options: FedBROptions) -> list[Choice]:
    """Every alpha, with partial and with full downloads."""
    alphas = [options.alpha] if isinstance(options.alpha, int) else range(1, blocks)
    alphas_if_full = [blocks - 1] if options.full_rounds == "all" else alphas
    return [
        *({"alpha": alpha, "full": 0} for alpha in alphas),
        *({"alpha": alpha, "full": 1} for alpha in alphas_if_full),
    ]


def compute(context: ComputeContext) -> Compute:
    """The main path and alpha pathways, the m-th with the frozen blocks after m.

    ``drop = "exact"`` runs the local examples forward before and after training.
    """
    options: FedBROptions = context.options
    blocks, total = context.blocks, fedavg_passes(context.blocks)
    pathways_learn = options.hybrid_ce or not options.detach
    for m in range(blocks - context.choice["alpha"], blocks):
        add_frozen_suffix(total, m, pathways_learn)
    return trained(context, total, once=forward_passes(blocks, 2.0 if options.drop == "exact" else 0.0))


def kept_blocks(layout: Layout, down: tuple[str, ...], options: FedBROptions) -> tuple[str, ...]:
    """All but the last block, which arrives in every visit."""
    return layout.keys(layout.names[:-1])


def refused_without_rounds(options: FedBROptions) -> str | None:
    """Without rounds there is no broadcast to everyone, and times are normalised by the longest so far."""
    if options.broadcast == "everyone":
        return 'method_options.broadcast = "everyone": there are no rounds to broadcast in'
    if options.normalise != "max":
        return f'method_options.normalise = "{options.normalise}": without rounds only "max" has a meaning'
    return None


FIGURE = MethodFigure(
    title="GMBS choices",
    text="Left: clients by α, the number of last blocks that they download; a triangle marks a round with full "
    "downloads. Right: the bandit's value of the chosen α (Eq. 7) and the reward (Eq. 5). Narrowing bands show that a "
    "preference is learned; V falling towards the reward shows that exploration ends.",
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
    weights="uniform",
    reports=("drop",),
    individual_updates=lambda options: options.deviation == "model",
    traffic=Traffic(
        down=lambda options: None,
        kept_blocks=kept_blocks,
        choices=("alpha", "full"),
        possible_choices=possible_choices,
        # Rewards follow from times and losses, unless Eq. 5 uses the deviation of models.
        decides_without_updates=lambda options: options.deviation != "model",
    ),
    costs=Costs(
        compute=compute,
        nominal_alpha=lambda blocks, options, choice: choice["alpha"],
        nominal_period=lambda options: options.period,
    ),
    records=Records(table=CHOICES, progress=ProgressColumn("alpha", lambda blocks: range(1, blocks)), figure=FIGURE),
    refusals=Refusals(
        asynchronous=refused_without_rounds,
        privacy=lambda options, train: (
            "its bandit learns from losses that clients report without noise; choose method_options.alpha = a number "
            "or random"
            if options.alpha == "gmbs"
            else None
        ),
    ),
)
