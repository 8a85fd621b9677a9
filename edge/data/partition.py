"""Partitions of examples among clients as pure functions, with all draws from their generator.

A kind of partition is a function of the arguments of `edge.data.partition_registry.PartitionRow.split`, and gives one
sorted int64 array of example indices per client; kinds whose test set is split by what the training set got have one of
the arguments of ``split_test`` as well. `partition_registry` lists all, and `partitioning` splits both sets by the kind
of a configuration. `hold_out` splits each client's examples once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from edge.data.registry import PartitionError, Split
from edge.protocol.rng import keyed_generator

Indices = NDArray[np.int64]
Parts = Sequence[Indices]
"""The examples of each client"""
Ids = NDArray[Any] | None
"""(examples,) natural clients; None if the set has none"""
Options = Mapping[str, Any]

FLOOR = 1e-12
ROUNDING = 1e-9
"""A product of fraction and number of examples that is nearer than this to a whole number counts as whole."""
MOST_NUMBERS = 50_000_000
"""Limit of draws for unbalanced partitions that are rejected: about ten seconds of work."""
EPSILON_CLASSES = (10, 100)
"""Numbers of classes that FedBR's epsilon level is defined for"""
LEAST_WEIGHT, LARGEST_WEIGHT = 0.3, 0.7
"""Bounds of a client's weight in a class of its own, in pFedMB's paper."""


def iid(labels: Indices, ids: Ids, clients: int, classes: int, rng: Generator, options: Options) -> Parts:
    """A random split into equal parts of ``len(labels) // clients``; the remainder is left out."""
    size, order = len(labels) // clients, rng.permutation(len(labels))
    return [np.sort(order[k * size : (k + 1) * size]) for k in range(clients)]


# --- Dirichlet --------------------------------------------------------------------------------------------------------


def dirichlet(labels: Indices, ids: Ids, clients: int, classes: int, rng: Generator, options: Options) -> Parts:
    """Balanced Dirichlet partition of FedMLB: every client gets ``len(labels) // clients`` examples.

    Client by client, a class mix pi ~ Dir(alpha) weighs the remaining examples, and the client draws by weight without
    replacement. So the mixes of later clients drift towards that of the remaining examples.

    The floor under the weights keeps every example possible: when the classes of a client's mix are used up, it draws
    from the others uniformly.
    """
    size = len(labels) // clients
    remaining = np.arange(len(labels), dtype=np.int64)
    parts = []
    for _ in range(clients):
        weights = np.maximum(rng.dirichlet(np.full(classes, options["alpha"])), FLOOR)
        taken = np.zeros(len(remaining), dtype=bool)
        taken[draw_by_weight(weights[labels[remaining]], size, rng)] = True
        parts.append(remaining[taken])
        remaining = remaining[~taken]
    return parts


def draw_by_weight(weights: NDArray[np.float64], count: int, rng: Generator) -> Indices:
    """Positions of ``count`` draws by weight without replacement, unordered.

    The smallest of Exp(1) / weight are distributed as one weighted draw after another (Efraimidis and Spirakis, 2006)
    and found in one pass.
    """
    if count == 0:
        return np.empty(0, dtype=np.int64)
    return np.argpartition(rng.standard_exponential(len(weights)) / weights, count - 1)[:count]


def unbalanced(labels: Indices, ids: Ids, clients: int, classes: int, rng: Generator, options: Options) -> Parts:
    """Unbalanced Dirichlet partition of FedAlign, FedML and MOON: sizes differ.

    Each class is cut among the clients by p ~ Dir(alpha); a client with ``len(labels) / clients`` examples or more
    gets no further ones. Drawn again while a client has fewer than ``min_samples``; PartitionError after
    ``max_tries``, or earlier if these were more than `MOST_NUMBERS` random numbers.
    """
    min_samples, per_class = options["min_samples"], np.bincount(labels, minlength=classes)
    best, max_tries = 0, min(options["max_tries"], MOST_NUMBERS // (clients * classes) + 1)
    for _ in range(max_tries if min_samples * clients <= len(labels) else 0):
        cuts = _unbalanced_cuts(per_class, clients, options["alpha"], rng)
        if cuts is None:
            continue
        smallest = int(np.diff(cuts).sum(axis=0).min())
        if smallest >= min_samples:
            return cut(labels, cuts, rng)
        best = max(best, smallest)
    raise PartitionError(
        f"data.partition.kind = dirichlet-unbalanced: {len(labels)} examples among {clients} clients gave no split "
        f"with {min_samples} examples for each in {max_tries} draws (the smallest client held {best} at best); "
        "raise data.partition.alpha, or lower data.partition.min_samples or data.clients"
    )


def _unbalanced_cuts(per_class: Indices, clients: int, alpha: float, rng: Generator) -> Indices | None:
    """(classes, clients + 1) positions at which each class is cut; None if no client can take a class."""
    equal_size = per_class.sum() / clients
    sizes = np.zeros(clients, dtype=np.int64)
    cuts = np.zeros((len(per_class), clients + 1), dtype=np.int64)
    for label, count in enumerate(per_class):
        fractions = rng.dirichlet(np.full(clients, alpha)) * (sizes < equal_size)
        total = fractions.sum()
        if count and not total > 0:
            return None
        if count:
            cuts[label, 1:] = np.cumsum(fractions / total) * count
            cuts[label, -1] = count
        sizes += np.diff(cuts[label])
    return cuts


# --- FedBR's epsilon level --------------------------------------------------------------------------------------------


def epsilon(labels: Indices, ids: Ids, clients: int, classes: int, rng: Generator, options: Options) -> Parts:
    """FedBR's epsilon-level partition (Section V): equal sizes and a class mix set by epsilon.

    * epsilon = 0: independent and identically distributed, for any number of classes.
    * 10 classes: epsilon tenths of a client's examples are of one dominant class, the rest spread evenly over the
      others. epsilon = 1 is therefore identically distributed again.
    * 100 classes: a client lacks 10 * epsilon classes and has the others evenly.

    The mix is exact. Where the classes are not of equal size, or the clients do not fill the cycle of classes, all
    clients get equally fewer examples, and the remaining examples are left out.
    """
    if options["epsilon"] == 0:
        return iid(labels, ids, clients, classes, rng, options)
    return deal_mixes(labels, mixes(clients, classes, options["epsilon"], rng), rng)


def epsilon_test(train: Split, parts: Parts, test: Split, classes: int, rng: Generator, options: Options) -> Parts:
    """The mixes of the training set: the first that its generator drew."""
    if options["epsilon"] == 0:
        return iid(test.y, None, len(parts), classes, rng, options)
    again = keyed_generator(options["seed"], "partition")
    return deal_mixes(test.y, mixes(len(parts), classes, options["epsilon"], again), rng)


def mixes(clients: int, classes: int, epsilon: int, rng: Generator) -> NDArray[np.float64]:
    """(clients, classes) fractions of each class in a client's examples; rows sum to 1.

    Dominant class of client k: k mod 10. Missing classes: the complement of a cyclic window over a permutation drawn
    from ``rng``; windows follow each other, so any two classes have equally many clients, plus or minus one. After
    every tenth client the windows shift by one place, so that they do not repeat.
    """
    assert classes in EPSILON_CLASSES, classes
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


def deal_mixes(labels: Indices, mix: NDArray[np.float64], rng: Generator) -> Parts:
    """Give every client the same number of examples in its mix: the largest number that the classes allow."""
    available = np.bincount(labels, minlength=mix.shape[1])
    demand = mix.sum(axis=0)
    used = demand > 0
    per_client = int(min(len(labels) // len(mix), np.min(available[used] / demand[used]) + ROUNDING))
    return cut(labels, _cuts(whole_counts(available, mix, per_client)), rng)


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


# --- pFedMB's choices of classes. Never draws until something fits: every draw is used. -------------------------------


def some_classes(labels: Indices, ids: Ids, clients: int, classes: int, rng: Generator, options: Options) -> Parts:
    """pFedMB's "random 2 classes": equally many examples of each of its classes to every client.

    They are as many as the class with the fewest examples per client allows; the other examples are left out.
    """
    return deal_equally(labels, balanced_choice(clients, classes, options["classes_per_client"], rng), rng)


def balanced_choice(clients: int, classes: int, per_client: int, rng: Generator) -> NDArray[np.bool_]:
    """(clients, classes): whether a client has a class. Each has ``per_client``, at most ``classes``.

    Each class goes to ``clients * per_client / classes`` clients, rounded down, and one more for as many classes, drawn
    at random, as the remainder says. Client by client, classes are drawn by the number of their places left. A class
    with a place for every client left is taken by each of them, so that no client lacks a class in the end.
    """
    places = np.full(classes, clients * per_client // classes)
    places[rng.permutation(classes)[: clients * per_client % classes]] += 1
    chosen = np.zeros((clients, classes), dtype=bool)
    for client in range(clients):
        open_classes = np.flatnonzero(places)
        left = places[open_classes]
        drawn = draw_by_weight(np.where(left == clients - client, np.inf, left), per_client, rng)
        chosen[client, open_classes[drawn]] = True
        places -= chosen[client]
    return chosen


def deal_equally(labels: Indices, chosen: NDArray[np.bool_], rng: Generator) -> Parts:
    """As many examples of each of its classes to every client as the scarcest class allows."""
    holders, sizes = chosen.sum(axis=0), np.bincount(labels, minlength=chosen.shape[1])
    used = holders > 0
    return cut(labels, _cuts(chosen * (sizes[used] // holders[used]).min()), rng)


def class_shares(labels: Indices, ids: Ids, clients: int, classes: int, rng: Generator, options: Options) -> Parts:
    """pFedMB's "random 20 classes with different sizes": each class is cut among its clients by weight."""
    return deal_by_weight(labels, draw_weights(clients, classes, options["classes_per_client"], rng), rng)


def class_shares_test(train: Split, parts: Parts, test: Split, classes: int, rng: Generator, options: Options) -> Parts:
    """By the weights of the training set: the first that its generator drew."""
    again = keyed_generator(options["seed"], "partition")
    return deal_by_weight(test.y, draw_weights(len(parts), classes, options["classes_per_client"], again), rng)


def draw_weights(clients: int, classes: int, per_client: int, rng: Generator) -> NDArray[np.float64]:
    """(clients, classes): the weight of each client in each of its ``per_client`` random classes, 0 in the others."""
    drawn = np.zeros((clients, classes))
    chosen = rng.random((clients, classes)).argsort(axis=1)[:, :per_client]
    np.put_along_axis(drawn, chosen, rng.uniform(LEAST_WEIGHT, LARGEST_WEIGHT, chosen.shape), axis=1)
    return drawn


def deal_by_weight(labels: Indices, drawn: NDArray[np.float64], rng: Generator) -> Parts:
    """Cut each class among its clients by weight; a class that no client has is left out.

    A class is cut at floor(cumulative fraction * its size), so that other sets can be cut at the same fractions.
    """
    sizes, cumulative = np.bincount(labels, minlength=drawn.shape[1]), np.cumsum(drawn, axis=0).T  # (classes, clients)
    totals = cumulative[:, -1:]
    fractions = np.divide(cumulative, totals, out=np.zeros_like(cumulative), where=totals > 0)
    cuts = np.zeros((drawn.shape[1], drawn.shape[0] + 1), dtype=np.int64)
    cuts[:, 1:] = fractions * sizes[:, np.newaxis] + ROUNDING
    return cut(labels, cuts, rng)


def pairs(labels: Indices, ids: Ids, clients: int, classes: int, rng: Generator, options: Options) -> Parts:
    """pFedMB's pairs: clients 2g and 2g + 1 halve classes 2g and 2g + 1; as many clients as classes, an even number.

    Of an odd number of examples, the larger half is client 2g's in class 2g, and client 2g + 1's in class 2g + 1.
    """
    counts = np.zeros((clients, classes), dtype=np.int64)
    for label, size in enumerate(np.bincount(labels, minlength=classes)):
        own, other = label, label ^ 1  # the other client of the pair
        counts[own, label], counts[other, label] = size - size // 2, size // 2
    return cut(labels, _cuts(counts), rng)


# --- natural clients --------------------------------------------------------------------------------------------------


def natural(labels: Indices, ids: Ids, clients: int, classes: int, rng: Generator, options: Options) -> Parts:
    """The examples of the first natural clients."""
    assert ids is not None
    return [np.flatnonzero(ids == client) for client in np.unique(ids)[:clients]]


def natural_test(train: Split, parts: Parts, test: Split, classes: int, rng: Generator, options: Options) -> Parts:
    """The test examples of the natural clients of the training set."""
    assert train.ids is not None
    return [np.flatnonzero(test.ids == client) for client in np.unique(train.ids)[: len(parts)]]


# --- what kinds have in common ----------------------------------------------------------------------------------------


def cut(labels: Indices, cuts: Indices, rng: Generator) -> list[Indices]:
    """Shuffle each class and give client k its positions ``cuts[class, k]`` to ``cuts[class, k + 1]``."""
    clients = cuts.shape[1] - 1
    client_of = np.full(len(labels), clients)  # examples without a client come last
    for label, positions in enumerate(cuts):
        members = rng.permutation(np.flatnonzero(labels == label))
        client_of[members[positions[0] : positions[-1]]] = np.repeat(np.arange(clients), np.diff(positions))
    order = np.argsort(client_of, kind="stable")
    return np.split(order, np.cumsum(np.bincount(client_of, minlength=clients)[:clients]))[:clients]


def _cuts(counts: Indices) -> Indices:
    """(classes, clients + 1) positions at which each class is cut, for counts (clients, classes)."""
    return np.pad(np.cumsum(counts, axis=0).T, ((0, 0), (1, 0)))


def mirrored(train: Split, parts: Parts, test: Split, classes: int, rng: Generator, options: Options) -> Parts:
    """The class proportions of each client's training examples; every test example has a client."""
    return mirror(histogram(train.labels, parts, classes), test.labels, rng)


def mirrored_in_part(train: Split, parts: Parts, test: Split, classes: int, rng: Generator, options: Options) -> Parts:
    """The same; of each class, as large a part is left out as of the training set."""
    return mirror(
        histogram(train.labels, parts, classes), test.labels, rng, np.bincount(train.labels, minlength=classes)
    )


def mirror(counts: Indices, labels: Indices, rng: Generator, available: Indices | None = None) -> list[Indices]:
    """Split another set in the class proportions of a first one.

    ``counts``: (clients, classes) examples in the first set. Each class is cut at floor(cumulative fraction * its
    size), so that a client's local test examples mirror its training examples. ``available``: (classes,) examples of
    the first set, if clients do not hold all of it; as large a part of the other set is then left out.
    """
    sizes = np.bincount(labels, minlength=counts.shape[1])
    cumulative = np.cumsum(counts, axis=0).T  # (classes, clients)
    totals = np.maximum(cumulative[:, -1:] if available is None else available[:, np.newaxis], 1)
    cuts = np.zeros((counts.shape[1], counts.shape[0] + 1), dtype=np.int64)
    cuts[:, 1:] = cumulative * sizes[:, np.newaxis] // totals
    return cut(labels, cuts, rng)


def check_parts(
    where: str, parts: Sequence[Any], count: int, names: Sequence[str | int] | None = None
) -> list[Indices]:
    """Parts that a user has given, as sorted int64 arrays; PartitionError unless they are distinct ones of ``count``.

    The text of the error begins with ``where`` and names the client, by number or as ``names`` says. Examples without
    a client are left out.
    """
    names = range(len(parts)) if names is None else names
    client_of = np.full(count, -1, dtype=np.int64)
    checked: list[Indices] = []
    for place, (client, part) in enumerate(zip(names, parts, strict=False)):
        indices = np.asarray(part)
        if indices.size == 0:
            checked.append(np.empty(0, dtype=np.int64))
            continue
        # Python's integers of more than 64 bits make an array of objects.
        is_whole = indices.dtype.kind in "iu" or all(type(index) is int for index in indices.flat)
        if indices.ndim != 1 or not is_whole:
            raise PartitionError(f"{where}: client {client} must hold a list of whole numbers, not {indices.dtype}")
        if indices.min() < 0 or indices.max() >= count:
            wrong = indices.min() if indices.min() < 0 else indices.max()
            raise PartitionError(f"{where}: client {client} holds example {wrong}, the data has 0..{count - 1}")
        indices = np.sort(indices.astype(np.int64))
        twice = indices[1:][indices[1:] == indices[:-1]]
        if twice.size:
            raise PartitionError(f"{where}: client {client} holds example {twice[0]} twice")
        taken = indices[client_of[indices] >= 0]
        if taken.size:
            other = names[client_of[taken[0]]]
            raise PartitionError(f"{where}: client {client} and client {other} both hold example {taken[0]}")
        client_of[indices] = place
        checked.append(indices)
    return checked


def hold_out(
    parts: Parts,
    fraction: float,
    seed: int,
    labels: Indices | None = None,
    overlap: int | None = None,
) -> tuple[list[Indices], list[Indices]]:
    """(remaining, held out): ``fraction`` of each client's examples, rounded down, drawn by a generator of its own.

    A client with examples keeps at least one. ``labels``: of all examples, to hold out the client's classes in
    proportion, each rounded up or down. ``overlap``: to hold out neighbours, a stretch of each class at a drawn place,
    beside which so many on either side are in neither, unless nothing else of the class would remain.
    """
    if fraction == 0:
        return list(parts), [indices[:0] for indices in parts]
    remaining, held = [], []
    for client, indices in enumerate(parts):
        count = min(int(fraction * len(indices) + ROUNDING), max(len(indices) - 1, 0))
        kept, out = np.arange(len(indices)), np.empty(0, np.int64)
        if count:
            rng = keyed_generator(seed, "validation", client=client)
            if labels is not None and overlap is not None:
                kept, out = _stretches(labels[indices], count, overlap, rng)
            else:
                order = rng.permutation(kept) if labels is None else _stratified(labels[indices], count, rng)
                kept, out = order[count:], order[:count]
        held.append(np.sort(indices[out]))
        remaining.append(np.sort(indices[kept]))
    return remaining, held


def hold_out_last(
    parts: Parts, fraction: float, series: Indices | None, overlap: int
) -> tuple[list[Indices], list[Indices]]:
    """(remaining, held out) of windows in order of time: the last ``fraction`` of each series, rounded down, of those
    that a client has; the ``overlap`` before them are in neither. ``series``: of all examples; None: a client has one.

    PartitionError for a client with nothing that remains.
    """
    remaining, held = [], []
    for client, indices in enumerate(parts):
        whose = np.zeros(len(indices), np.int64) if series is None else series[indices]
        kept, out = [indices[:0]], [indices[:0]]
        for one in np.unique(whose):
            own = indices[whose == one]
            count = int(fraction * len(own) + ROUNDING)
            kept.append(own[: len(own) - count - overlap] if count else own)
            out.append(own[len(own) - count :])
        remaining.append(np.sort(np.concatenate(kept)))
        held.append(np.sort(np.concatenate(out)))
        if len(indices) and not len(remaining[-1]):
            raise PartitionError(
                f"data.validation = {fraction:g}: client {client} has {len(indices)} training windows, of which the "
                f"last {len(held[-1])} are held out, and all others have values in common with these; lower it, "
                "shorten data.series.window and horizon, or leave the client out"
            )
    return remaining, held


def _stretches(labels: Indices, count: int, overlap: int, rng: Generator) -> tuple[Indices, Indices]:
    """(places that remain, places of a stretch of each class) of one client's examples, as of `hold_out`."""
    is_held, is_kept = np.zeros(len(labels), bool), np.ones(len(labels), bool)
    sizes = np.bincount(labels)
    lengths = _held_by_class(sizes, count, rng.permutation(len(sizes)))
    firsts = rng.integers(0, sizes - lengths, endpoint=True)
    for label in np.flatnonzero(lengths):
        places, first, end = np.flatnonzero(labels == label), firsts[label], firsts[label] + lengths[label]
        is_held[places[first:end]] = True
        near = places[max(0, first - overlap) : end + overlap]
        is_kept[near if len(near) < len(places) else places[first:end]] = False
    return np.flatnonzero(is_kept), np.flatnonzero(is_held)


def _held_by_class(sizes: Indices, count: int, ties: Indices) -> Indices:
    """(classes,) The count in proportion; the largest remainders are rounded up, equal ones by ``ties``."""
    held, remainders = np.divmod(sizes * count, sizes.sum())
    held[np.lexsort((ties, -remainders))[: count - held.sum()]] += 1
    return held


def _stratified(labels: Indices, count: int, rng: Generator) -> Indices:
    """A random order of the examples whose first ``count``, fewer than all, have the classes in proportion.

    The largest remainders are rounded up, equal ones in random order.
    """
    sizes = np.bincount(labels)
    held = _held_by_class(sizes, count, rng.permutation(len(sizes)))
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    places = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of each example in its class
    is_held = places < np.repeat(held, sizes)
    return np.concatenate([order[is_held], order[~is_held]])


def histogram(labels: Indices, parts: Parts, classes: int) -> Indices:
    """(clients, classes): the number of examples of each class and client."""
    return np.array([np.bincount(labels[indices], minlength=classes) for indices in parts], dtype=np.int64)
