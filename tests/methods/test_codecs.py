"""Codecs join every method, policy and sum: a run's result depends neither on its workers nor on interruptions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.rounds.policy import POLICIES, PolicyName, RoundPolicy
from edge.protocol import client_state
from edge.protocol.config import TrainConfig
from edge.protocol.payload import MODEL, vectors
from tests.crossed import crossed, every
from tests.ledgers import virtual_rows
from tests.toy import Run, broken_off, federation, model_sha256, play, resumed, state_file, store, unsteady_world

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3)
FOUR_BITS = {"kind": "quantize", "bits": 4, "bucket": 512}
CODECS: Mapping[str, Mapping[str, Any]] = {
    "quantize": {"up": (FOUR_BITS,)},
    "topk, with residuals": {"up": ({"kind": "topk", "ratio": 0.05},), "error_feedback": True},
    "weights, in bf16": {"up": ({"kind": "bf16"},), "of": "weights"},
    "powersgd, with residuals": {"up": ({"kind": "powersgd", "rank": 2},), "error_feedback": True},
    "both ways": {
        "up": ({"kind": "randk", "ratio": 0.2}, {"kind": "fp16"}),
        "down": ({"kind": "quantize", "bits": 8},),
    },
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "fedbr": {"period": 3},
    "fedbr+scaffold": {"period": 3},
    "ifca": {},
    "fedfomo": {},
    "fedamp": {},
    "pfedmb": {"branches": 2},
    "fedper": {"layers": 1},
    "fedgkd": {},
}


def start(folder: Path, method: str, codec: Mapping[str, Any], **how: Any) -> Run:
    return play(folder, method, **{"train": BRIEF, "codec": codec, "rounds": 3, **METHODS[method], **how})


@pytest.mark.parametrize(("method", "codec"), crossed(tuple(METHODS), tuple(CODECS.values())))
def test_the_frames_that_travel_are_charged_and_order_and_workers_change_nothing(
    method: str, codec: Mapping[str, Any], tmp_path: Path
) -> None:
    run = start(tmp_path / "one", method, codec)
    assert run.rows("SELECT SUM(bytes_up) FROM visits") == [(run.workers.bytes_up,)]
    by_block = "SELECT SUM(nbytes) FROM transfers WHERE direction = 'up'"
    assert run.rows(by_block) == [(run.workers.bytes_up,)]
    assert run.workers.bytes_up < start(tmp_path / "plain", method, {}).workers.bytes_up
    shuffled = start(tmp_path / "three", method, codec, shuffle=2, sites=3)
    assert shuffled.workers.trained != run.workers.trained
    assert model_sha256(shuffled.federation) == model_sha256(run.federation)
    assert store(shuffled.federation).ledger.chain == store(run.federation).ledger.chain


@pytest.mark.parametrize(
    ("name", "method", "policy"),
    crossed(("topk, with residuals", "both ways", "powersgd, with residuals"), ("fedavg", "fedbr"), tuple(POLICIES)),
)
def test_resumed_after_any_round_it_ends_as_if_it_had_not_stopped(
    name: str, method: str, policy: PolicyName, tmp_path: Path
) -> None:
    how = unsteady_world(policy) | {"rounds": 4, "eval_every": 2, "codec": CODECS[name]}
    whole, folder = play(tmp_path / "whole", method, **how), tmp_path / "broken off"
    for after in (1, 2):
        broken_off(folder, method, after, **how, again=after > 1)
    again = resumed(folder, method, **how)
    assert np.array_equal(again.model, whole.model)
    assert virtual_rows(folder) == virtual_rows(tmp_path / "whole")


def test_what_encoding_took_from_updates_stays_with_the_client(tmp_path: Path) -> None:
    """Residuals of two rounds telescope: decoded changes and the last residual add up to what training changed."""
    codec = CODECS["topk, with residuals"]
    run = start(tmp_path, "fedavg", codec, clients=1, participants=1, rounds=1)
    state = client_state.read(state_file(run.federation, 0))
    plain = start(tmp_path / "plain", "fedavg", {}, clients=1, participants=1, rounds=1)
    residual = np.concatenate([vector.data for _, _, vector in vectors(state)])
    assert np.abs(run.model + residual - plain.model).max() < 1e-6
    assert np.count_nonzero(run.model - run.start) <= 0.05 * len(residual) < np.count_nonzero(residual)


def test_downloads_are_charged_as_differences_from_what_a_client_holds(tmp_path: Path) -> None:
    """A first download is raw; later ones have eight bits a number, whoever was visited in between."""
    codec = {"down": ({"kind": "quantize", "bits": 8, "bucket": 512},)}
    run = start(tmp_path, "fedavg", codec, participants=2, rounds=6)
    raw = sum(4 * size for size in run.federation.up_shapes[MODEL].values())
    encoded = sum(size + 4 * -(-size // 512) for size in run.federation.up_shapes[MODEL].values())
    rows = "SELECT client, SUM(nbytes) FROM transfers WHERE direction = 'down' AND key != 'header' GROUP BY visit"
    seen: set[int] = set()
    for client, nbytes in run.rows(rows):
        assert nbytes == (encoded if client in seen else raw)
        seen.add(client)
    assert len(run.rows(rows)) == 12


TWO_BITS = {"kind": "quantize", "bits": 2}
AGGREGATORS = {"aggregators": {"count": 2}, "schedule": {"interval": 2}, "rounds": 4}
BELOW_OTHERS = {"aggregators": {"count": 4, "above": {"count": 2}}, "schedule": {"interval": (1, 2)}, "rounds": 4}


@pytest.mark.parametrize(
    ("method", "how"),
    every(
        2,
        [
            *(("fedavg", {"rules": RoundPolicy(policy, deadline=10.0, buffer=2)}) for policy in POLICIES),
            *((method, how) for method in ("fedavg", "fedbr") for how in ({"sum": "fixed_point"}, AGGREGATORS)),
            ("fedavg", BELOW_OTHERS),
            ("fedavg", {"server": "fedavgm"}),
            ("fedavg+scaffold", {}),
            ("fedavg+feddyn", {}),
            ("fednova", {}),
            ("ifca", {}),
            ("fedper", {"layers": 1}),
        ],
    ),
)
def test_what_downloads_lose_is_no_part_of_an_update(method: str, how: Mapping[str, Any], tmp_path: Path) -> None:
    """Clients that learn nothing leave the server's model as it is, however coarse their copies of it are."""
    still = TrainConfig(lr=1e-9, batch=32, local_steps=1)
    both = {"up": (FOUR_BITS,), "down": (TWO_BITS,), "down_slots": {"cluster0": (TWO_BITS,), "cluster1": (TWO_BITS,)}}
    for of in ("weights", "update"):
        codec = both if of == "update" else {**both, "up": (), "of": of}
        known = {"rounds": 3, "participants": 3, "codec": codec, **METHODS.get(method, {}), **how, "train": still}
        before = federation(tmp_path / f"{of}, before", method, **known)
        store(before).ledger.close()
        after = play(tmp_path / of, method, **known).federation.server.models
        for name, model in before.server.models.items():
            for key, vector in model.items():
                assert np.abs(after[name][key].data - vector.data).max() < 1e-6


# --- lengths that depend on numbers -----------------------------------------------------------------------------------

SHORTENED = {"up": ({"kind": "topk", "ratio": 0.05}, FOUR_BITS, {"kind": "elias"}), "error_feedback": True}


@pytest.mark.parametrize("policy", every(4, POLICIES))
def test_with_an_entropy_coder_the_clock_has_the_real_lengths(policy: PolicyName, tmp_path: Path) -> None:
    how = unsteady_world(policy) | {"rounds": 6, "codec": SHORTENED}
    whole, folder = play(tmp_path / "whole", "fedavg", **how), tmp_path / "broken off"
    sent = whole.rows("SELECT visit, bytes_up FROM visits WHERE kind = 'train' ORDER BY visit")
    assert len({nbytes for _, nbytes in sent}) > 4
    by_block = "SELECT visit, SUM(nbytes) FROM transfers JOIN visits USING (visit) WHERE direction = 'up'"
    assert whole.rows(f"{by_block} AND kind = 'train' GROUP BY visit ORDER BY visit") == sent
    broken_off(folder, "fedavg", 4, **how)
    again = resumed(folder, "fedavg", **how)
    assert np.array_equal(again.model, whole.model)
    assert virtual_rows(folder) == virtual_rows(tmp_path / "whole")
    shuffled = play(tmp_path / "three", "fedavg", **how, sites=3, shuffle=2)
    assert store(shuffled.federation).ledger.chain == store(whole.federation).ledger.chain


@pytest.mark.parametrize("policy", ["over_select", "deadline"])
def test_a_visit_that_does_not_count_is_trained_and_leaves_its_client_as_it_was(
    policy: PolicyName, tmp_path: Path
) -> None:
    run = play(tmp_path, "fedavg", **unsteady_world(policy) | {"codec": SHORTENED, "rounds": 5})
    wasted = run.rows("SELECT up_payload, down_payload FROM visits WHERE kind != 'train'")
    assert wasted and all(up and not down for up, down in wasted)  # what it would have sent, for replays
    files = {path.name for path in (tmp_path / "state").glob("*")}
    assert files <= {file for (file,) in run.rows("SELECT file FROM states")}
    counted = run.rows("SELECT client, round FROM visits WHERE kind = 'train'")
    assert set(run.rows("SELECT client, round FROM states")) <= set(counted)
