"""Updates that workers add up themselves: the same model to the bit, whoever does the work and whoever dies over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from coordinator.aggregation.server import ServerExtension, ServerStrategy
from coordinator.methods.registry import CORRECTIONS, OBJECTIVES, Method, resolve
from coordinator.records.store import read
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.run import FederatedRun, RunFailed
from coordinator.rounds.synchronous import run_synchronous
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.task import PoolTask, Reply, ReplyHandler, TaskGroup
from edge.protocol import messages
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.fixed_point import sum_vector
from edge.protocol.messages import Totals, Update
from edge.protocol.payload import MODEL, Vector
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from tests.pools import BLOCK_NBYTES, NORMAL, TRAINER, Pools
from tests.pools import visit as pools_visit
from tests.toy import build_now, direct, federation, model_sha256, play, set_workers, store

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=4)
WILD = TrainConfig(lr=1e6, weight_decay=1e6, batch=32, local_steps=4)
UNEVEN = PartitionConfig("dirichlet-unbalanced", alpha=0.5, min_samples=1)


def visit(
    client: int, act: int = NORMAL, state_out: Path | None = None, share: float = 0.125, round: int = 5
) -> PoolTask:
    """As `tests.pools.visit`, of which so large a share goes into the sums."""
    task = pools_visit(client, act, state_out=state_out)
    assert isinstance(task.message, messages.Train)
    return replace(task, message=structs.replace(task.message, round=round), weight=share)


class Clients:
    """What hears replies: whose they were, and that they brought no vectors."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def __call__(self, task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, Update) and reply.payload == {}
        self.heard.append(reply.client)


def means(totals: Totals) -> dict[str, set[float]]:
    return {key: set(sum_vector(total).tolist()) for key, total in totals[MODEL].items()}


MEANS = {"a": {3.5}, "b": {4.5}}
"""Of clients 0 to 7, an eighth each."""


# --- what passes between processes ------------------------------------------------------------------------------------


def test_the_socket_carries_two_models_per_worker_however_many_clients_there_are(pools: Pools) -> None:
    model = 2 * BLOCK_NBYTES
    with pools(2) as pool:
        pool.submit([visit(client, share=0.0) for client in range(16)], lambda task, reply: None).wait()
        whole = pool.physical_bytes[1]
        order = pool.submit([visit(client, share=0.0625) for client in range(16)], Clients())
        order.wait()
        order.collect()
        summed = pool.physical_bytes[1] - whole
    assert 16 * model < whole < 16.1 * model
    assert 2 * model < summed < 4.1 * model  # one worker may have done it all: an int64 is as long as two float32


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_killed_before_their_sums_were_collected_are_made_up_for(pools: Pools, workers: int) -> None:
    clients = Clients()
    with pools(workers) as pool:
        order = pool.submit([visit(client) for client in range(8)], clients)
        order.wait()
        pools.kill()
        assert means(order.collect()) == MEANS
    assert sorted(clients.heard) == list(range(8))
    details = [event.detail for event in pools.of("task_repeated")]
    lost = [int(detail.split()[0]) for detail in details if "visits whose updates" in detail]
    assert sum(lost) == 8


# --- real clients on real workers -------------------------------------------------------------------------------------


class Killing:
    """Workers all of which are killed once, after so many replies."""

    def __init__(self, pools: Pools, pool: Pool, after: int) -> None:
        self.pools, self.pool, self.after, self.size = pools, pool, after, pool.size

    build = staticmethod(build_now)

    def submit(self, tasks: Sequence[PoolTask], heard: ReplyHandler) -> TaskGroup:
        def hear(task: PoolTask, reply: Reply) -> None:
            heard(task, reply)
            self.after -= isinstance(reply, Update)
            if self.after == 0:
                self.after = -1
                self.pools.kill()

        return self.pool.submit(tasks, hear)


@pytest.fixture
def trained(launcher: WorkerLauncher, tmp_path: Path, short_folder: Path) -> Callable[..., str]:
    """Runs of real clients; each gives the hash of its model, which must be the same for all."""

    def trained(name: str, workers: int = 0, shuffle: int | None = None, kill_after: int = -1) -> str:
        how: dict[str, Any] = {"clients": 8, "rounds": 2, "train": BRIEF, "partition": UNEVEN, "sum": "fixed_point"}
        run = federation(tmp_path / name, shuffle=shuffle, **how)
        with ExitStack() as stack:
            stack.callback(store(run).ledger.close)
            if workers:
                pools = Pools(launcher, tmp_path / name, short_folder)
                pool = stack.enter_context(pools(workers, run.job, TRAINER))
                set_workers(run, Killing(pools, pool, kill_after))
            run_synchronous(run)
        if kill_after > 0:
            assert any("visits whose updates it had added up" in event.detail for event in pools.of("task_repeated"))
        return model_sha256(run)

    return trained


def test_the_model_is_the_same_whoever_adds_up_in_whatever_order_and_whoever_is_killed_over_it(
    trained: Callable[..., str],
) -> None:
    models = {trained(f"shuffled {shuffle}", shuffle=shuffle) for shuffle in (None, 1, 2)}
    models |= {trained("real", workers=3), trained("one", 1, kill_after=5), trained("two", 2, kill_after=5)}
    assert len(models) == 1


def chain(summary: dict[str, Any]) -> list[str]:
    rows = read(Path(summary["run_dir"]) / "ledger.sqlite", "SELECT chain FROM rounds ORDER BY round")
    return [row["chain"] for row in rows]


# --- beside client_order ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "weights"), [("fedavg", "uniform"), ("fedmlb+fedprox", "size"), ("fedbr", "size")])
def test_the_model_is_that_of_client_order_within_1e_6(tmp_path: Path, method: str, weights: str) -> None:
    how: dict[str, Any] = {"rounds": 2, "train": BRIEF, "partition": UNEVEN, "weights": weights}
    exact, plain = (play(tmp_path / sum, method, sum=sum, **how) for sum in ("fixed_point", "client_order"))
    assert np.abs(exact.model - plain.model).max() < 1e-6 < 1e-3 < np.abs(exact.model - exact.start).max()


@pytest.mark.parametrize("rules", [RoundPolicy("over_select", over_select=2.0), RoundPolicy("deadline", deadline=1.0)])
def test_the_shares_are_those_of_the_visits_that_count(tmp_path: Path, rules: RoundPolicy) -> None:
    how: dict[str, Any] = {"clients": 8, "participants": 4, "rounds": 1, "train": BRIEF, "rules": rules}
    if rules.policy == "deadline":
        how |= {"participants": 8, "seconds": [(0.125, n / 8, 0.125) for n in range(1, 9)]}
    exact, plain = (play(tmp_path / sum, sum=sum, **how) for sum in ("fixed_point", "client_order"))
    counted, begun = exact.rows("SELECT SUM(kind = 'train'), COUNT(*) FROM visits")[0]
    assert 0 < counted < begun
    assert np.abs(exact.model - plain.model).max() < 1e-6 < 1e-3 < np.abs(exact.model - exact.start).max()


# --- updates that cannot be added up ----------------------------------------------------------------------------------


def spoilt(folder: Path, spoil: Callable[[Update], Update], **how: Any) -> FederatedRun:
    """A run in which updates are changed before they leave the client."""
    run = federation(folder, rounds=1, train=BRIEF, sum="fixed_point", **how)
    site = direct(run).site
    train = site.train
    site.train = lambda *asked: spoil(train(*asked))  # type: ignore[method-assign]
    return run


def failure(run: FederatedRun) -> str:
    try:
        with pytest.raises(RunFailed) as failed:
            run_synchronous(run)
    finally:
        store(run).ledger.close()
    return str(failed.value)


def with_number(client: int, number: float) -> Callable[[Update], Update]:
    """Puts a number into the head of one client."""

    def spoil(update: Update) -> Update:
        if update.client != client:
            return update
        head = update.payload[MODEL]["head"].data.copy()
        head[3] = number
        return structs.replace(update, payload={MODEL: {**update.payload[MODEL], "head": Vector(head)}})

    return spoil


def test_training_that_diverges_is_refused_in_the_same_words_as_in_client_order(tmp_path: Path) -> None:
    words = set()
    for sum in ("fixed_point", "client_order"):
        with pytest.raises(RunFailed) as failed:
            play(tmp_path / sum, rounds=1, train=WILD, sum=sum, shuffle=1)
        words.add(str(failed.value))
    (same,) = words
    assert same.startswith("update rejected: client 0, round 1: ")
    assert same.endswith("(training diverged?)")


def test_a_number_that_is_not_finite_is_named_with_its_client(tmp_path: Path) -> None:
    words = failure(spoilt(tmp_path, with_number(3, np.nan), shuffle=0))
    assert words == "update rejected: client 3, round 1: model/head is not finite (training diverged?)"


def test_a_number_at_the_limit_is_refused_and_the_largest_below_it_is_not(tmp_path: Path) -> None:
    words = failure(spoilt(tmp_path / "at", with_number(2, -32768.0)))
    assert words == (
        "update rejected: client 2, round 1: model/head is too large for aggregate.sum = fixed_point "
        "(32768; numbers must be below 32768; training diverged?)"
    )
    run = spoilt(tmp_path / "below", with_number(2, 32767.998), weights="uniform")
    run_synchronous(run)
    store(run).ledger.close()
    assert run.server.model["head"].data[3] == pytest.approx(32767.998 / 4, abs=1)


# --- who cannot use it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("method=fedbr", "method_options.deviation=model"),
            'fedbr with deviation = "model" needs individual updates',
        ),
        (("rounds.policy=fedbuff",), "rounds.policy = fedbuff discounts updates one by one"),
    ],
)
def test_what_needs_single_updates_is_refused_by_name(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("digits", parse_all(["aggregate.sum=fixed_point", *overrides]))
    assert str(refused.value) == f'command line: aggregate.sum = "fixed_point": {message}'
    assert load("digits", parse_all(overrides)).scenario.aggregate.sum == "client_order"


def own(
    server_side: type[ServerStrategy] | type[ServerExtension] | None, base: type[ServerStrategy] | type[ServerExtension]
) -> set[str]:
    """What a server side overrides of what sees single replies."""
    names = [name for name in ("accumulate", "observe", "weight") if hasattr(base, name)]
    return (
        set()
        if server_side is None
        else {name for name in names if getattr(server_side, name) is not getattr(base, name)}
    )


class Robust(ServerStrategy):
    """Has its own way with replies, and a row that does not say so."""

    def accumulate(self, reply: Update) -> None:
        raise NotImplementedError


class Watching(ServerExtension):
    def accumulate(self, reply: Update) -> None:
        raise NotImplementedError


def test_a_server_side_that_accumulates_by_itself_is_found_out_whatever_its_spec_says() -> None:
    fedavg, fedprox = OBJECTIVES["fedavg"], CORRECTIONS["fedprox"]
    robust = Method("robust", replace(fedavg, name="robust", server=Robust), ())
    watched = Method("watched", fedavg, (fedprox, replace(fedprox, name="watching", server=Watching)))
    assert robust.needs_individual_updates(fedavg.options()) == "robust"
    assert watched.needs_individual_updates(fedavg.options()) == "watching"
    for name in ("fedavg", "fedprox", "fedmlb", "fedbr"):
        method = resolve(name)
        assert method.needs_individual_updates(method.options()) is None
