"""Malformed messages against the decoder, a pool and a worker, a few thousand of them; `make fuzz` sends more."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec import msgpack

from edge.protocol import messages, serialization
from tests.edge.protocol.mutations import BOMBS, RUN, going_up, mutate, one_of_each, pack, run_of
from tests.fuzz import (
    Outcome,
    fuzz_codecs,
    fuzz_decoder,
    fuzz_host,
    fuzz_pool,
    fuzz_port,
    fuzz_remote_worker,
    fuzz_worker,
    read,
)

MESSAGES = 1000
MOST_GROWN_BYTES = 50_000_000


@pytest.mark.parametrize("fuzz", [fuzz_decoder, fuzz_pool, fuzz_host, fuzz_worker, fuzz_remote_worker])
def test_malformed_messages_are_refused_and_honest_work_goes_on(fuzz: Callable[[int, int], Outcome]) -> None:
    count = (
        MESSAGES if fuzz is not fuzz_host else MESSAGES // 4
    )  # each ends a remote worker, and the next shakes hands anew
    outcome = fuzz(count, 5)
    assert outcome.sent >= count
    assert outcome.refused > count / 2
    assert len(outcome.reasons) > 50
    assert outcome.lines <= outcome.seconds + 2 * (1 + outcome.sent // 1000)  # one a second, and the first of each pool
    assert outcome.grown_bytes < MOST_GROWN_BYTES


def test_malformed_frames_of_codecs_are_refused() -> None:
    outcome = fuzz_codecs(2 * MESSAGES, 5)
    assert outcome.refused > MESSAGES / 4
    assert len(outcome.reasons) > 20
    assert outcome.grown_bytes < MOST_GROWN_BYTES


def test_handshakes_that_go_wrong_are_refused_and_honest_work_goes_on() -> None:
    outcome = fuzz_port(MESSAGES, 5)
    assert outcome.sent == MESSAGES
    assert outcome.refused > MESSAGES / 4
    assert len(outcome.reasons) == 4
    assert outcome.grown_bytes < MOST_GROWN_BYTES


def test_the_same_seed_gives_the_same_mutations() -> None:
    def mutations() -> list[list[bytes]]:
        draw = random.Random(3)
        return [mutate(draw, pack(message)) for message in one_of_each()]

    assert mutations() == mutations()
    assert RUN.encode() in b"".join(b"".join(parts) for parts in mutations())


def test_valid_messages_pass_as_they_are() -> None:
    for message in one_of_each():
        read(pack(message), None, run_of(message))


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_a_bomb_is_no_message_wherever_it_stands(bomb: bytes) -> None:
    parts = pack(going_up()[3])
    for index in (0, 1):
        tree = msgpack.decode(parts[index])
        for place in range(len(tree)):
            raw = msgpack.encode([*tree[:place], "(bomb)", *tree[place + 1 :]])
            changed = [*parts[:index], raw.replace(msgpack.encode("(bomb)"), bomb), *parts[index + 1 :]]
            with pytest.raises(messages.WireError):
                read(changed, None)
    with pytest.raises(messages.WireError):
        serialization.Envelope.parse(bomb)
