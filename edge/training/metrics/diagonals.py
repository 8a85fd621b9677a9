"""Differences between the clients' Hessians: H_N and H_D of their diagonals. Never torch.

Mendieta et al., Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning, CVPR 2022,
https://arxiv.org/abs/2111.14213: H_N is the mean of (|D_k| - |D_j|)^2 over pairs of clients, H_D that of the cosine of
D_k and D_j. The paper has D_k = diag(H_k) and pairs of clients; its code has one number per tensor of parameters, the
tensor's part in the trace, and all pairs, those of a client with itself included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge.protocol.payload import Floats

Pairs = Literal["all", "distinct"]
NORMS, DIRECTIONS = "H_N", "H_D"
"""Names of both values"""
Diagonals = NDArray[np.floating[Any]]


def compared(diagonals: Diagonals, pairs: Pairs = "all") -> dict[str, float]:
    """H_N (>= 0) and H_D (in [-1, 1]) of diagonals (clients, entries); none without a pair of clients.

    ``all``: the mean over the whole matrix of clients; ``distinct``: over pairs of different clients. The cosine with a
    diagonal of zeros is 0.
    """
    clients, wide = len(diagonals), np.asarray(diagonals, np.float64)
    counted = np.ones((clients, clients), bool) if pairs == "all" else ~np.eye(clients, dtype=bool)
    if not counted.any():
        return {}
    norms = np.linalg.norm(wide, axis=1)
    directions = wide / np.where(norms > 0, norms, 1)[:, None]
    cosines = np.clip(directions @ directions.T, -1, 1)
    differences = np.square(norms[:, None] - norms[None, :])
    return {NORMS: float(differences[counted].mean()), DIRECTIONS: float(cosines[counted].mean())}


def over_clients(
    values: Mapping[int, Mapping[str, float]], options: Any, vectors: Mapping[int, Mapping[str, Floats]]
) -> dict[str, float]:
    """H_N and H_D of clients' values and vectors of the metric ``hessian``: of their vectors ``diagonal``, or of the
    traces of tensors, which are the parts ``0``, ``1``, .. of their values.

    Clients without either, or whose numbers are not all finite, are left out; none without a pair of clients.
    """
    if options.diag == "per_parameter":
        diagonals = [own["diagonal"] for own in vectors.values() if np.isfinite(own["diagonal"]).all()]
    else:
        traces = [{name: part for name, part in own.items() if name.isdigit()} for own in values.values()]
        names = set().union(*traces)  # values that are not finite are missing
        diagonals = [np.array([*own.values()]) for own in traces if own and own.keys() == names]
    return compared(np.stack(diagonals), options.pairs) if diagonals else {}
