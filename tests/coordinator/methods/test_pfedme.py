"""pFedMe's server side: the mix by β, the price of K steps per minibatch, and who has a personal model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.methods.pfedme import PFedMeServer, compute
from coordinator.rounds.policy import RoundPolicy
from edge.methods.pfedme import PERSONAL
from edge.protocol import client_state
from edge.protocol.config import ModelConfig, Norm, TrainConfig
from edge.protocol.options.pfedme import PFedMeOptions
from edge.protocol.payload import BUFFERS
from tests.toy import one_example, play, state_file

BRIEF = TrainConfig(lr=0.05, batch=32, local_steps=2)


@pytest.mark.parametrize("norm", [None, "batch"])
@pytest.mark.parametrize("still", [{"lam": 0}, {"beta": 0}], ids=str)
def test_the_global_model_never_moves_without_pull_or_mix(
    still: dict[str, float], norm: Norm | None, tmp_path: Path
) -> None:
    """Neither its parameters nor its running statistics."""
    model = ModelConfig("digits-cnn", width=2, norm=norm)
    run = play(tmp_path, "pfedme", train=BRIEF, rounds=1, model=model, **still)
    assert np.array_equal(run.model, run.start)
    state = client_state.read(state_file(run.federation, 0))
    assert list(state) == [PERSONAL]
    personal = np.concatenate([vector.data for vector in state[PERSONAL].values()])
    assert not np.array_equal(personal, run.start)


def test_beta_is_the_part_of_the_way_to_the_mean(tmp_path: Path) -> None:
    whole, double = (
        play(tmp_path / str(beta), "pfedme", train=BRIEF, rounds=1, outer_lr=0.05, beta=beta) for beta in (1.0, 2.0)
    )
    way = whole.model.astype(np.float64) - whole.start
    assert np.abs(way).max() > 1e-3
    assert np.abs(double.model - (double.start + 2 * way)).max() < 1e-7


def test_running_statistics_are_mixed_by_beta_but_never_beyond_the_mean(tmp_path: Path) -> None:
    model = ModelConfig("digits-cnn", width=2, norm="batch")
    whole, half, beyond = (
        play(tmp_path / str(beta), "pfedme", train=BRIEF, rounds=1, model=model, beta=beta) for beta in (1.0, 0.5, 2.0)
    )
    start, mean, between, most = (
        np.concatenate([vector.data for key, vector in named.items() if key.endswith(BUFFERS)]).astype(np.float64)
        for named in (
            whole.federation.server.setup.initial_models[0],
            *(run.federation.server.model for run in (whole, half, beyond)),
        )
    )
    assert np.abs(mean - start).max() > 1e-3
    assert np.abs(between - (start + mean) / 2).max() < 1e-7
    assert np.array_equal(most, mean)


def test_k_steps_per_minibatch_are_charged_and_stored_one_by_one() -> None:
    plan = compute(one_example(2, np.ones((2, 4)), PFedMeOptions(inner_steps=3)))
    # forward, weight gradient, inner gradient, input gradient; none of the input of the first block
    assert plan.passes.tolist() == [[3, 3, 3, 0], [3, 3, 3, 3]]
    assert plan.steps == 3
    assert plan.stored_forwards.tolist() == [1, 1]


def test_a_personal_model_is_not_sent_to_be_evaluated(tmp_path: Path) -> None:
    run = play(tmp_path, "pfedme", train=BRIEF, participants=1, evaluation={"charged": True})
    trained = dict(run.rows("SELECT client, MIN(round) FROM visits WHERE kind = 'train' GROUP BY client"))
    sent = run.rows("SELECT round, client, bytes_down FROM visits WHERE kind = 'evaluate'")
    model = run.federation.description.layout.nbytes()
    assert {(nbytes > model, trained.get(client, 2) <= round) for round, client, nbytes in sent} == {
        (True, False),
        (False, True),
    }


def test_a_resumed_server_knows_who_has_a_personal_model(tmp_path: Path) -> None:
    run = play(tmp_path, "pfedme", train=BRIEF, participants=1, rounds=1)
    before = run.federation.server
    assert isinstance(before, PFedMeServer)
    after = PFedMeServer(before.setup)
    assert not after.is_personal.any()
    after.restore(before.models, before.state())
    ((client,),) = run.rows("SELECT client FROM visits")
    assert np.flatnonzero(after.is_personal).tolist() == [client]


def test_in_asynchronous_policies_beta_moves_along_what_the_policy_mixes(tmp_path: Path) -> None:
    """The first step of FedAsync, with the same clients: mixing and β are factors of one way."""
    runs = [
        play(
            tmp_path / str(beta),
            "pfedme",
            train=BRIEF,
            rules=RoundPolicy("fedasync"),
            participants=1,
            rounds=1,
            beta=beta,
        )
        for beta in (1.0, 0.5)
    ]
    whole, half = (run.model.astype(np.float64) - run.start for run in runs)
    assert np.abs(whole).max() > 1e-4
    assert np.abs(half - whole / 2).max() < 1e-7
