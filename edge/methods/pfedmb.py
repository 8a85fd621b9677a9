"""pFedMB, client side: the branch weights are trained first, then the branches.

Mori, Yoshiyama, Furukawa and Teranishi, Personalized Federated Learning with Multi-branch Architecture, 2022,
https://arxiv.org/abs/2211.07931. The layers are `edge.methods.branched_layers`, the server side is
`coordinator.methods.pfedmb`.

Phase A trains the client's own branch weights α with all W fixed, by plain SGD: without momentum, weight decay,
clipping or gradient corrections. Its batches come in orders of its own. Phase B trains all else with α fixed, by
ordinary steps. A gradient of the mixed weights gives both: ∂f/∂α_b = ⟨∂f/∂W, W_b⟩ and ∂f/∂W_b = α_b ∂f/∂W.

Running statistics of BatchNorm follow the batches of both phases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from edge.methods.branched_layers import BranchWeights
from edge.protocol.options.pfedmb import ALPHA, PFedMBOptions, branched_keys, mixing_flops, weighted_layers
from edge.protocol.payload import MODEL, Payload, Vector, block_of
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, ClientUpdate, Step, VisitContext, plain_loss
from edge.training.sgd import Loss

PHASE = "branch weights"
"""The random stream of phase A's batches"""


class PFedMBUpdate(ClientUpdate):
    """One visit under pFedMB; the client state is α, as it is trained."""

    options: PFedMBOptions

    capturable = False

    def __init__(self, options: PFedMBOptions) -> None:
        super().__init__(options)
        self.keeps = {"project": projected, "clip_renorm": renormalised}.get(options.alpha_param)

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start from the received W and the client's own α."""
        self.layers = branched_keys(net.layout.sizes)
        self.sent = weighted_layers(net.layout.sizes, self.options.shared_alpha)
        alpha_keys = sorted({layer.weights for layer in self.layers.values()})
        if self.options.shared_alpha and self.layers:  # kept under the key of the first layer, for all
            stored = state.get(MODEL, {})
            first = stored.get(next(iter(self.layers.values())).weights)
            state = {**state, MODEL: {**stored, **({} if first is None else dict.fromkeys(alpha_keys, first))}}
        super().begin(net, down, state, visit)
        ranges = [net.slices[layer.weights] for layer in self.layers.values()]
        places = [list(range(each.start, each.stop)) for each in ranges]
        self.places = torch.tensor(places, dtype=torch.int64, device=net.device)  # (layers, B)
        self.of_weights = [key for key in net.slices if key in net.layout.sizes and key not in alpha_keys]
        self.mixing_flops = mixing_flops(net.layout.sizes)

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """Phase A, unless it has no epoch, and phase B."""
        epochs = self.options.alpha_epochs
        if self.layers and epochs != 0:
            self._train_alpha(net, self.visit.phase(PHASE, epochs), step, self.loss)
        self._train_weights(net, batches, step, self.loss)

    def adapt(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """Both phases, each with the epochs of the adaptation; or phase B alone."""
        if self.layers and self.options.fine_tuning == "both" and self.options.alpha_epochs != 0:
            self._train_alpha(net, self.visit.phase(PHASE, None), step, plain_loss)
        self._train_weights(net, batches, step, plain_loss)

    def _train_alpha(self, net: BlockModel, batches: Batches, step: Step, loss: Loss) -> None:
        """By η_α, which follows the schedule of η_W; back onto the simplex where softmax does not keep α there."""
        rate, lr, base = self.options.alpha_lr, self.visit.lr, self.visit.train.lr
        if rate is not None:
            lr = float(rate) * lr / base if base else float(rate)
        with _learning(net, alpha=True):
            for x, y in batches():
                step.zero()
                step.backward(loss, x, y)
                slope = net.grad[self.places]  # (layers, B)
                if self.options.shared_alpha:
                    slope = slope.sum(0, keepdim=True)
                moved = net.flat[self.places] - lr * slope
                net.flat[self.places] = moved if self.keeps is None else self.keeps(moved)
                net.add_flops(self.mixing_flops)
        step.zero()

    def _train_weights(self, net: BlockModel, batches: Batches, step: Step, loss: Loss) -> None:
        only = self.of_weights if self.layers else None
        with _learning(net, alpha=False):
            for x, y in batches():
                step(loss, x, y, only)
                net.add_flops(self.mixing_flops)

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """Send α too, as the weights that they are, in a slot of its own."""
        up, state, numbers = super().end(net, visit)
        if self.layers:
            with torch.no_grad():
                weights = [Vector(layer().cpu().numpy().copy()) for layer in _branch_weights(net)]
            up = {**up, ALPHA: dict(zip(self.sent, weights, strict=False))}
        return up, state, numbers


def _branch_weights(net: BlockModel) -> list[BranchWeights]:
    return [layer for module in net.modules for layer in module.modules() if isinstance(layer, BranchWeights)]


@contextmanager
def _learning(net: BlockModel, alpha: bool) -> Iterator[None]:
    """Compute gradients of α alone, or of everything else alone."""
    if alpha:
        net.train_only({block_of(layer) for layer in branched_keys(net.layout.sizes)})
    for module in net.modules if alpha else _branch_weights(net):
        module.requires_grad_(False)
    for weights in _branch_weights(net) if alpha else ():
        weights.requires_grad_(True)
    try:
        yield
    finally:
        net.train_only()
        for module in net.modules:
            module.requires_grad_(True)


def projected(numbers: Tensor) -> Tensor:
    """The nearest points of the simplex: (layers, B) -> (layers, B).

    Duchi et al., Efficient Projections onto the l1-Ball for Learning in High Dimensions, ICML 2008, figure 1.
    """
    descending = numbers.sort(dim=1, descending=True).values
    ranks = torch.arange(1, numbers.shape[1] + 1, device=numbers.device)
    excess = (descending.cumsum(1) - 1) / ranks
    last = (descending > excess).sum(1, keepdim=True) - 1
    return (numbers - excess.gather(1, last)).clamp(min=0)


def renormalised(numbers: Tensor) -> Tensor:
    """Negative numbers as 0, and each row divided by its sum; uniform where nothing is left: (layers, B)."""
    positive = numbers.clamp(min=0)
    total = positive.sum(1, keepdim=True)
    return torch.where(total > 0, positive / total, torch.full_like(positive, 1 / numbers.shape[1]))
