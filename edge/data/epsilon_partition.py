"""FedBR's epsilon-level partition (Section V): equal sizes and a class mix set by epsilon.

* epsilon = 0: independent and identically distributed, for any number of classes.
* 10 classes: epsilon tenths of a client's examples are of one dominant class, the rest spread evenly over the others.
  epsilon = 1 is therefore identically distributed again.
* 100 classes: a client lacks 10 * epsilon classes and holds the others evenly.

The mix is kept exactly. Where the classes are not of equal size, or the clients do not fill the cycle of classes,
all clients are made equally smaller and the examples that nobody can take are left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.data.partition import Indices, cut

CLASS_COUNTS = (10, 100)
# A share times a number of examples that misses a whole number by less than this is that whole number.
ROUNDING = 1e-9


def mixes(clients: int, classes: int, epsilon: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(clients, classes) shares of each class in a client's examples; rows sum to 1.

    Dominant class: client k mod 10. Missing classes: the complement of a cyclic window over a permutation drawn from
    ``rng``; windows follow each other, so that any two classes are held by equally many clients, give or take one.
    Every tenth client the windows move on by one place, so that they do not repeat.
    """
    assert classes in CLASS_COUNTS, classes
    assert 1 <= epsilon <= 9, epsilon
    k = np.arange(clients)
    if classes == 10:
        mix = np.full((clients, classes), (10 - epsilon) / 90)
        mix[k, k % classes] = epsilon / 10
        return mix
    held = 100 - 10 * epsilon
    order = rng.permutation(classes)
    places = (k * held + k // 10)[:, np.newaxis] + np.arange(held)  # (clients, held classes)
    mix = np.zeros((clients, classes))
    mix[k[:, np.newaxis], order[places % classes]] = 1 / held
    return mix


def deal(labels: Indices, mix: NDArray[np.float64], rng: np.random.Generator) -> list[Indices]:
    """Give every client the same number of examples in its mix: the largest number that the classes allow."""
    available = np.bincount(labels, minlength=mix.shape[1])
    demand = mix.sum(axis=0)
    wanted = demand > 0
    each = int(min(len(labels) // len(mix), np.min(available[wanted] / demand[wanted]) + ROUNDING))
    cuts = np.zeros((mix.shape[1], len(mix) + 1), dtype=np.int64)
    cuts[:, 1:] = np.cumsum(whole_counts(available, mix, each), axis=0).T
    return cut(labels, cuts, rng)


def whole_counts(available: Indices, mix: NDArray[np.float64], each: int) -> Indices:
    """(clients, classes) whole numbers within 1 of ``mix * each``, rows summing to ``each``, columns <= ``available``.

    Fractions are cut off; who then takes one example more of which class is a flow from clients to classes. The
    fractions themselves are such a flow, so that one in whole numbers exists and the largest one is complete.
    """
    # Imported where it is needed: the cache spares all processes but one this call.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    exact = mix * each
    counts = np.floor(exact + ROUNDING).astype(np.int64)
    lacks, spare = each - counts.sum(axis=1), available - counts.sum(axis=0)
    clients, classes = mix.shape
    who, what = np.nonzero(exact - counts > ROUNDING)
    # Nodes: the source 0, then the clients, then the classes, then the sink.
    client_nodes, class_nodes, sink = 1 + np.arange(clients), 1 + clients + np.arange(classes), 1 + clients + classes
    tails = np.concatenate([np.zeros(clients, dtype=np.int64), client_nodes[who], class_nodes])
    heads = np.concatenate([client_nodes, class_nodes[what], np.full(classes, sink)])
    room = np.concatenate([lacks, np.ones(len(who), dtype=np.int64), spare]).astype(np.int32)
    flow = maximum_flow(coo_array((room, (tails, heads)), shape=(sink + 1, sink + 1)).tocsr(), 0, sink)
    assert flow.flow_value == lacks.sum(), (flow.flow_value, lacks.sum())
    extra: Indices = flow.flow[1 : 1 + clients, 1 + clients : sink].toarray()
    return counts + extra
