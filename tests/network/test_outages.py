"""Uploads that an outage interrupts: the sender tries again when its backed-off timer ends.

The timer is a round trip, the frames that wait before the shaper included, and 200 ms: what the shaper holds back is
not known to the model, and so moves the tries by up to a factor of two.

Seen on Linux 6.18 with cubic, 10 MB of upload: outages of 3, 10 and 30 s took 15.1, 28.2 and 47.1 s. The model is 4.0,
4.1 and 7.3 % short; without the timer it would be 11 to 27 %.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from costmodel.network.senders import Path
from costmodel.network.tcp import wire_bits
from costmodel.network.transfers import transfer_batch
from tests.network.lab import Lab
from tests.network.measure import error_percent, upload

pytestmark = pytest.mark.timeout(900)

RATE, RTT, PAYLOAD = 8e6, 0.06, 10_000_000
BEGIN_SECONDS = 4.0
"""From the begin of the upload to the outage"""
OUTAGE_SECONDS = (3.0, 10.0, 30.0)
REPETITIONS = 3
BAR_PERCENT = 10.0


def test_an_upload_goes_on_at_the_first_try_after_an_outage(
    make_lab: Callable[..., Lab], show: Callable[[str], None], cell: Callable[[float, float], None]
) -> None:
    show(f"\n10 MB over 8 Mbit/s and 60 ms, an outage after {BEGIN_SECONDS:g} s")
    off = []
    with make_lab(RTT, (RATE,)) as lab:
        for seconds in OUTAGE_SECONDS:
            runs = [_interrupted(lab, seconds) for _ in range(REPETITIONS)]
            measured, nbytes = float(np.median([run[0] for run in runs])), runs[0][1]
            predicted = _predicted(nbytes, seconds)
            cell(predicted, measured)
            error = float(error_percent(predicted, measured))
            idle = float(error_percent(wire_bits(float(nbytes)) / RATE + seconds, measured))
            show(
                f"outage of {seconds:4.0f} s: {measured:5.1f} s, model {error:+.1f} %, without the timer {idle:+.1f} %"
            )
            off.append(error)
    assert max(map(abs, off)) <= BAR_PERCENT


def _interrupted(lab: Lab, seconds: float) -> tuple[float, int]:
    """(seconds of an upload, its bytes), with an outage."""

    def break_link() -> None:
        # `upload` waits for the connection to be idle first.
        time.sleep(2.0 + BEGIN_SECONDS)
        lab.outage(True)
        time.sleep(seconds)
        lab.outage(False)

    breaker = threading.Thread(target=break_link)
    breaker.start()
    sent = upload(lab, [PAYLOAD])
    breaker.join()
    return float(sent.seconds[0]), sent.nbytes[0]


def _predicted(nbytes: int, seconds: float) -> float:
    end = BEGIN_SECONDS + seconds

    def varying(flow: int, now: float) -> tuple[float, float]:
        return (RATE, BEGIN_SECONDS) if now < BEGIN_SECONDS else (0.0, end) if now < end else (RATE, math.inf)

    times = transfer_batch(
        [0.0],
        [wire_bits(float(nbytes))],
        None,
        math.inf,
        paths=[Path(RTT)],
        varying=varying,
        outage=lambda flow, now: BEGIN_SECONDS <= now < end,
    )
    return float(times.finish[0]) + RTT / 2
