"""The loop for one full link and constant caps: the general loop's results, to the bit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.network.senders import Path
from costmodel.network.transfers import TransferTimes, transfer_batch

NAMES = ("finish", "sent", "contention_seconds", "paused", "own_seconds", "access_seconds", "server_seconds")


def _both(rng: np.random.Generator, flows: int, *, coarse: bool, cut: bool) -> tuple[TransferTimes, TransferTimes]:
    """A random batch: as it is, and with caps that could vary but do not, which the general loop solves."""
    # Coarse numbers make flows start, end and be cut at the same instants.
    start = rng.integers(0, 4, flows) / 4.0 if coarse else 3.0 * rng.random(flows)
    bits = rng.choice([1e5, 4e5, 2e6], flows) if coarse else rng.lognormal(13.0, 1.0, flows)
    cap = rng.choice([1e6, 2e6, 8e6], flows) if coarse else rng.lognormal(14.0, 1.0, flows)
    rtt = rng.choice([0.0, 0.03, 0.25], flows)
    until = np.where(rng.random(flows) < 0.3, start + rng.integers(1, 9, flows) / 4.0, math.inf) if cut else math.inf
    capacity = float(rng.choice([0.05, 0.3, 0.9])) * float(cap.sum())
    caps = cap.tolist()
    quick = transfer_batch(start, bits, cap, capacity, until, rtt=rtt)
    general = transfer_batch(
        start, bits, None, capacity, until, rtt=rtt, varying=lambda flow, _: (caps[flow], math.inf)
    )
    return quick, general


@settings(max_examples=80, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), flows=st.integers(1, 60), coarse=st.booleans(), cut=st.booleans())
def test_it_agrees_with_the_general_loop_to_the_bit(seed: int, flows: int, coarse: bool, cut: bool) -> None:
    quick, general = _both(np.random.default_rng(seed), flows, coarse=coarse, cut=cut)

    for name in NAMES:
        assert np.array_equal(getattr(quick, name), getattr(general, name)), name


@pytest.mark.parametrize("seed", range(8))
def test_it_agrees_where_messages_are_cut_at_the_instant_at_which_they_would_go_on(seed: int) -> None:
    # A message that is gone by then must not divide the time of the others: sums of two parts round differently.
    quick, general = _both(np.random.default_rng(seed), 300, coarse=seed % 2 == 0, cut=True)
    assert all(np.array_equal(getattr(quick, name), getattr(general, name)) for name in NAMES)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), flows=st.integers(1, 60), coarse=st.booleans(), lossy=st.booleans())
def test_links_that_share_nothing_agree_with_each_alone_and_with_the_general_loop_to_the_bit(
    seed: int, flows: int, coarse: bool, lossy: bool
) -> None:
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 4, flows) / 4.0 if coarse else 3.0 * rng.random(flows)
    bits = rng.choice([1e5, 4e5, 2e6], flows) if coarse else rng.lognormal(13.0, 1.0, flows)
    cap, until = rng.choice([1e6, 2e6, 8e6], flows), np.where(rng.random(flows) < 0.2, start + 1.25, math.inf)
    rtt, site = rng.choice([0.0, 0.03, 0.25], flows), rng.integers(0, 4, flows)
    rates, caps = (3e6, math.inf, 1e6, 9e6), cap.tolist()
    paths = [Path(each, each > 0, 0.01 if lossy else 0.0, seed=seed + flow) for flow, each in enumerate(rtt.tolist())]
    more: dict[str, Any] = {"until": until, "access_link": site, "access_capacity": rates, "paths": paths}

    quick = transfer_batch(start, bits, cap, math.inf, **more)
    general = transfer_batch(start, bits, None, math.inf, **more, varying=lambda flow, _: (caps[flow], math.inf))
    for name in NAMES:
        assert np.array_equal(getattr(quick, name), getattr(general, name)), name
    for number, rate in enumerate(rates):
        on = site == number
        alone = transfer_batch(
            start[on], bits[on], cap[on], rate, until[on], paths=[paths[flow] for flow in np.flatnonzero(on).tolist()]
        )
        # What is the server's link to the flows of one is an access link to those of all.
        alone = replace(alone, access_seconds=alone.server_seconds, server_seconds=alone.access_seconds)
        for name in NAMES:
            assert np.array_equal(getattr(quick, name)[on], getattr(alone, name)), (name, number)
