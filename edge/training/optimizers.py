"""Moves of the weights by other optimizers than SGD, on flat vectors, with the arithmetic of ``torch.optim``.

Each function has the parameters of `edge.protocol.optimizers.OptimizerRow.move`, and changes weights and state in
place. Where torch has a fused kernel it is used: one pass over memory instead of ten. Its last bits differ from those
of torch's loops (``foreach=False``), since it rounds in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad as torch_adagrad
from torch.optim.adam import adam as torch_adam
from torch.optim.adamw import adamw as torch_adamw
from torch.optim.rmsprop import rmsprop as torch_rmsprop

from edge.protocol.optimizers import AdagradOptions, AdamOptions, RMSpropOptions

State = Mapping[str, Tensor]


def adam(weights: Tensor, grad: Tensor, state: State, steps: int, lr: float, options: AdamOptions) -> None:
    """Kingma and Ba, ICLR 2015."""
    _adam(torch_adam, weights, grad, state, steps, lr, options)


def adamw(weights: Tensor, grad: Tensor, state: State, steps: int, lr: float, options: AdamOptions) -> None:
    """Loshchilov and Hutter, ICLR 2019."""
    _adam(torch_adamw, weights, grad, state, steps, lr, options)


def _adam(
    move: Callable[..., None],
    weights: Tensor,
    grad: Tensor,
    state: State,
    steps: int,
    lr: float,
    options: AdamOptions,
) -> None:
    largest = [state["max_exp_avg_sq"]] if options.amsgrad else []
    (beta1, beta2), count = options.betas, _count(weights, steps)
    move(
        [weights], [grad], [state["exp_avg"]], [state["exp_avg_sq"]], largest, [count],
        fused=True, amsgrad=options.amsgrad, beta1=beta1, beta2=beta2, lr=lr, weight_decay=options.weight_decay,
        eps=options.eps, maximize=False,
    )  # fmt: skip


def rmsprop(weights: Tensor, grad: Tensor, state: State, steps: int, lr: float, options: RMSpropOptions) -> None:
    """Tieleman and Hinton, 2012."""
    means = [state["grad_avg"]] if options.centered else []
    momenta = [state["momentum_buffer"]] if options.momentum else []
    torch_rmsprop(
        [weights], [grad], [state["square_avg"]], means, momenta, [_count(weights, steps)],
        foreach=False, lr=lr, alpha=options.alpha, eps=options.eps, weight_decay=options.weight_decay,
        momentum=options.momentum, centered=options.centered, maximize=False,
    )  # fmt: skip


def adagrad(weights: Tensor, grad: Tensor, state: State, steps: int, lr: float, options: AdagradOptions) -> None:
    """Duchi, Hazan and Singer, JMLR 2011."""
    is_fused = weights.device.type == "cpu"  # torch has it there alone
    torch_adagrad(
        [weights], [grad], [state["sum"]], [_count(weights, steps)],
        fused=is_fused, foreach=False, lr=lr, weight_decay=options.weight_decay, lr_decay=options.lr_decay,
        eps=options.eps, maximize=False,
    )  # fmt: skip


def _count(weights: Tensor, steps: int) -> Tensor:
    """Steps before this one, as torch counts them: it adds this one."""
    return torch.tensor(float(steps), device=weights.device)
