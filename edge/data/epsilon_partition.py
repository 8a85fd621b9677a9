"""FedBR's epsilon-level partition (Section V): equal sizes and a class mix set by epsilon.

* epsilon = 0: independent and identically distributed, for any number of classes.
* 10 classes: epsilon tenths of a client's examples are of one dominant class, the rest spread evenly over the others.
  epsilon = 1 is therefore identically distributed again.
* 100 classes: a client lacks 10 * epsilon classes and has the others evenly.

The mix is exact. Where the classes are not of equal size, or the clients do not fill the cycle of classes, all clients
get equally fewer examples, and the remaining examples are left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.data.partition import ROUNDING, Indices, cut

CLASS_COUNTS = (10, 100)


def mixes(clients: int, classes: int, epsilon: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(clients, classes) fractions of each class in a client's examples; rows sum to 1.

    Dominant class of client k: k mod 10. Missing classes: the complement of a cyclic window over a permutation drawn
    from ``rng``; windows follow each other, so any two classes have equally many clients, plus or minus one. After
    every tenth client the windows shift by one place, so that they do not repeat.
    """
    assert classes in CLASS_COUNTS, classes
    assert 1 <= epsilon <= 9, epsilon
    k = np.arange(clients)
    if classes == 10:
        mix = np.full((clients, classes), (10 - epsilon) / 90)
        mix[k, k % classes] = epsilon / 10
        return mix
    present = 100 - 10 * epsilon
    order = rng.permutation(classes)
    places = (k * present + k // 10)[:, np.newaxis] + np.arange(present)  # (clients, classes present)
    mix = np.zeros((clients, classes))
    mix[k[:, np.newaxis], order[places % classes]] = 1 / present
    return mix


def deal(labels: Indices, mix: NDArray[np.float64], rng: np.random.Generator) -> list[Indices]:
    """Give every client the same number of examples in its mix: the largest number that the classes allow."""
    available = np.bincount(labels, minlength=mix.shape[1])
    demand = mix.sum(axis=0)
    used = demand > 0
    per_client = int(min(len(labels) // len(mix), np.min(available[used] / demand[used]) + ROUNDING))
    cuts = np.zeros((mix.shape[1], len(mix) + 1), dtype=np.int64)
    cuts[:, 1:] = np.cumsum(whole_counts(available, mix, per_client), axis=0).T
    return cut(labels, cuts, rng)


def whole_counts(available: Indices, mix: NDArray[np.float64], per_client: int) -> Indices:
    """(clients, classes) whole numbers within 1 of ``mix * per_client``; columns sum to at most ``available``.

    Rows sum to ``per_client``. Fractions are cut off; the assignment of the remaining examples, one at most for a
    client and class, is a flow from clients to classes. The fractions themselves are such a flow, so a flow in whole
    numbers exists, and the maximum flow is complete.
    """
    # Imported here, since only the process that fills the cache calls it.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    exact = mix * per_client
    counts = np.floor(exact + ROUNDING).astype(np.int64)
    lacks, spare = per_client - counts.sum(axis=1), available - counts.sum(axis=0)
    clients, classes = mix.shape
    edge_clients, edge_classes = np.nonzero(exact - counts > ROUNDING)
    # Nodes: the source 0, then the clients, then the classes, then the sink.
    client_nodes, class_nodes, sink = 1 + np.arange(clients), 1 + clients + np.arange(classes), 1 + clients + classes
    tails = np.concatenate([np.zeros(clients, dtype=np.int64), client_nodes[edge_clients], class_nodes])
    heads = np.concatenate([client_nodes, class_nodes[edge_classes], np.full(classes, sink)])
    capacity = np.concatenate([lacks, np.ones(len(edge_clients), dtype=np.int64), spare]).astype(np.int32)
    flow = maximum_flow(coo_array((capacity, (tails, heads)), shape=(sink + 1, sink + 1)).tocsr(), 0, sink)
    assert flow.flow_value == lacks.sum(), (flow.flow_value, lacks.sum())
    extra: Indices = flow.flow[1 : 1 + clients, 1 + clients : sink].toarray()
    return counts + extra
