"""Real worker processes with a site that only adds: what is sent, what is survived, and that nothing is left behind."""

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from coordinator.workers import monitor
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.task import PoolError, PoolTask, Reply, Stopped, TaskGroup
from edge.protocol import messages
from edge.protocol.config import Job
from edge.protocol.payload import Payload, Vector
from tests.edge.protocol import mutations
from tests.pools import (
    AWAIT,
    FILL,
    KILL,
    KILL_ONCE,
    NORMAL,
    OVERFILL,
    RAISE,
    RAISE_ONCE,
    REUSE,
    SHORT_LAST,
    SITE,
    SLEEP,
    STOP_ONCE,
    Heard,
    Pools,
    job,
    model,
    sums,
    visit,
)


def all_end(processes: list[psutil.Process], seconds: float = 10.0) -> bool:
    """Whether these orphans end in time; one that nobody has reaped yet has ended, too."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if all(not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in processes):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("workers", [1, 8])
def test_every_task_is_answered_whatever_the_number_of_workers(pools: Pools, workers: int) -> None:
    with pools(workers) as pool:
        assert sums(pool, [visit(client) for client in range(128)]) == {n: [n, n + 1.0] for n in range(128)}
        while len(pools.of("worker_started")) < workers:
            sums(pool, [visit(0)])


def test_a_worker_describes_the_job_and_scores(pools: Pools) -> None:
    with pools() as pool:
        description, initial = pool.describe()
        assert (description.family, description.samples.tolist()) == ("toy", [3, 3])
        assert initial["model"]["b"].data.tolist() == [1.0, 2.0]
        assert pool.describe(data=False)[0].samples.tolist() == []
        scores: list[Reply] = []
        task = PoolTask(messages.Evaluate(10, 30, messages.GLOBAL, model(2.0)))
        pool.submit([task], lambda _, reply: scores.append(reply)).wait()
        assert scores == [
            messages.Score(10, messages.GLOBAL, {messages.CORRECT: (5, 20), messages.CROSS_ENTROPY: (0.5, 20)})
        ]


def test_a_killed_worker_is_replaced_and_its_task_repeated(pools: Pools, tmp_path: Path) -> None:
    """Its other tasks, which waited in its hand, too."""
    tasks = [
        visit(client, KILL_ONCE if client == 3 else NORMAL, None, tmp_path / f"{client}", flops=1.0)
        for client in range(6)
    ]
    with pools(2) as pool:
        sums(pool, [visit(9, flops=1e3)])
        assert sums(pool, tasks) == {n: [n, n + 1.0] for n in range(6)}
        deadline = time.monotonic() + 20
        while len(pools.of("worker_started")) < 3 and time.monotonic() < deadline:
            sums(pool, [visit(9)])  # a pool listens while it has work
    (death,), (repeat,) = pools.of("worker_died"), pools.of("task_repeated")
    assert death.detail == f"worker {death.worker} was ended by SIGKILL"
    assert repeat.detail == f"client 3, round 6, train: worker {death.worker} was ended by SIGKILL"
    assert len(pools.of("worker_started")) == 3


def test_workers_that_run_out_of_memory_leave_and_the_work_goes_on_with_fewer(pools: Pools, tmp_path: Path) -> None:
    with pools(3) as pool:
        deadline = time.monotonic() + 20
        while len(pools.of("worker_retired")) < 2 and time.monotonic() < deadline:  # all three must have started
            assert sums(pool, [visit(client, FILL) for client in range(12)]) == {n: [n, n + 1.0] for n in range(12)}
        # The one that is left is replaced, on its own slot.
        assert sums(pool, [visit(3, KILL_ONCE, None, tmp_path / "3")]) == {3: [3.0, 4.0]}
        assert sums(pool, [visit(0, FILL)]) == {0: [0.0, 1.0]}
    retired = pools.of("worker_retired")
    assert sorted((event.worker, event.detail.partition(" (")[0]) for event in retired) == [
        (number, f"worker {number}: OutOfMemoryError: no room beside others") for number in ("1", "2")
    ]
    ends = {event.worker: event.detail for event in pools.of("worker_died")}
    why = "was ended by SIGTERM: it had too little memory, and others remain"
    assert ends == {"0": "worker 0 was ended by SIGKILL", "1": f"worker 1 {why}", "2": f"worker 2 {why}"}
    assert [event.worker for event in pools.of("worker_started")] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("act", "last"),
    [
        (KILL, r"worker \d was ended by SIGKILL$"),
        (RAISE, r"worker 0: ValueError: that cannot be trained .*\n(.*\n)*    ValueError: that cannot be trained$"),
        (OVERFILL, "worker 0: OutOfMemoryError: no room beside others"),
    ],
)
def test_a_task_that_nobody_can_do_is_named_with_the_end_of_the_log(pools: Pools, act: int, last: str) -> None:
    with (
        pools() as pool,
        pytest.raises(PoolError, match=f"^client 1, round 6, train: given up after 3 workers; the last: {last}"),
    ):
        sums(pool, [visit(0), visit(1, act), visit(2)])


@pytest.mark.parametrize(
    ("preload", "asked", "logs", "why"),
    [
        ("tests.pools", job(13), ".", "worker 2 ended with exit code 1: FileNotFoundError: no such data set"),
        ("tests.pools", job(), "nowhere", "worker 2 did not start: {logs}/worker-2.log: No such file or directory"),
        ("no_such_module", job(), ".", "No module named 'no_such_module'"),
    ],
)
def test_workers_that_cannot_start_end_the_run(
    tmp_path: Path, short_folder: Path, preload: str, asked: Job, logs: str, why: str
) -> None:
    with (
        pytest.raises(PoolError) as error,
        WorkerLauncher((preload,)) as own,
        Pool(asked, 1, own, tmp_path / logs, lambda event: None, bool, SITE) as pool,
    ):
        pool.describe()
    said = str(error.value).splitlines()
    assert why.format(logs=tmp_path / logs) in "".join(said)
    assert preload != "tests.pools" or said[0].startswith("3 workers in a row ended before they were ready; the last: ")


@pytest.mark.parametrize("mode", [KILL, RAISE])
def test_an_order_may_go_on_without_a_task_that_nobody_can_do(mode: int, pools: Pools) -> None:
    heard: dict[int, Reply] = {}

    def hear(task: PoolTask, reply: Reply) -> None:
        assert isinstance(task.message, messages.Train)
        heard[task.message.client] = reply

    with pools(2) as pool:
        tasks = [replace(task, may_fail=True) for task in (visit(0), visit(1, mode), visit(2))]
        pool.submit(tasks, hear).wait()
        assert sums(pool, [visit(3)]) == {3: [3.0, 4.0]}
    assert heard[1] == messages.Update(1, 5, {}, {})
    assert sorted(heard) == [0, 1, 2]
    (given_up,) = pools.of("task_given_up")
    assert given_up.detail.startswith("client 1, round 6, train: given up after 3 workers; the last: ")


def test_an_exception_is_reported_and_the_worker_lives_on(pools: Pools, tmp_path: Path) -> None:
    with pools() as pool:
        assert sums(pool, [visit(0, RAISE_ONCE, None, tmp_path / "0")]) == {0: [0.0, 1.0]}
    (failed,) = pools.of("task_failed")
    assert re.fullmatch(r"ValueError: that cannot be trained \(/.*/tests/pools.py, line \d+\)", failed.detail)
    assert pools.of("worker_died") == []
    assert "Traceback" in (tmp_path / "worker-0.log").read_text()


def test_malformed_messages_of_strangers_and_under_a_taken_name_do_not_disturb_a_worker(pools: Pools) -> None:
    draw, valid = random.Random(5), [mutations.pack(message) for message in mutations.going_up()]
    began = time.monotonic()
    with pools() as pool, zmq.Context() as context, ExitStack() as crowd:
        assert sums(pool, [visit(1)]) == {1: [1.0, 2.0]}
        (socket,) = pools.folder.glob("fedbr-*/pool")
        strangers = [crowd.enter_context(context.socket(zmq.DEALER)) for _ in range(2)]
        for stranger, name in zip(strangers, ("stranger", pool._registry.alive[0].identity), strict=True):
            stranger.setsockopt(zmq.IDENTITY, name.encode())
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.connect(f"ipc://{socket}")
        for client in range(20):
            for stranger in strangers:
                for parts in (mutations.mutate(draw, draw.choice(valid)) for _ in range(20)):
                    stranger.send_multipart(parts or [b""], zmq.NOBLOCK)
            assert sums(pool, [visit(client)]) == {client: [client, client + 1.0]}
        while pool.refused < 400:
            sums(pool, [visit(1)])
        assert pool.refused == 400  # libzmq hears nothing of a peer whose name is taken
    assert (len(pools.of("worker_started")), pools.of("worker_died")) == (1, [])
    assert len(pools.of("message_refused")) <= 1 + time.monotonic() - began
    assert pools.of("message_refused")[0].worker == ""
    assert pools.of("message_refused")[0].detail.startswith("from stranger: not a worker of this pool")


def test_the_stop_flag_ends_workers_in_the_middle_of_a_task(pools: Pools) -> None:
    with pools(2) as pool, pytest.raises(Stopped):
        sums(pool, [visit(0), visit(1)])
        pools.stopped = lambda: True
        sums(pool, [visit(0, SLEEP), visit(1, SLEEP)])


def test_a_cancelled_order_is_not_heard_and_the_next_is_undisturbed(pools: Pools) -> None:
    with pools(2) as pool:
        dropped, heard = Heard(), Heard()
        order = pool.submit([visit(client) for client in range(50)], dropped)
        order.cancel()
        early = len(dropped.replies)
        later = pool.submit([visit(client) for client in range(60, 63)], heard)
        later.wait()
        order.wait()
        order.cancel()
        assert len(dropped.replies) == early < 50
        assert dict(heard.replies) == {n: [n, n + 1.0] for n in range(60, 63)}


def test_what_hears_a_reply_may_submit_more_and_leaving_the_pool_cancels_what_is_open(pools: Pools) -> None:
    more, heard, unheard = Heard(), Heard(), Heard()
    orders: list[TaskGroup] = []
    with pools(1) as pool:

        def follow_up(task: PoolTask, reply: Reply) -> None:
            heard(task, reply)
            orders.append(pool.submit([visit(heard.clients[-1] + 10)], more))

        pool.submit([visit(1), visit(2)], follow_up).wait()
        for order in orders:
            order.wait()
        assert more.clients == [11, 12]
        left = pool.submit([visit(1, SLEEP), visit(2)], unheard)
    left.cancel()
    left.wait()
    assert unheard.replies == []


def test_an_earlier_order_goes_first_and_replies_to_one_are_heard_while_another_is_waited_for(
    pools: Pools, tmp_path: Path
) -> None:
    gates, first, second, heard = (tmp_path / "gate", tmp_path / "other"), Heard(), Heard(), Heard()

    def heard_second(task: PoolTask, reply: Reply) -> None:
        second(task, reply)
        gates[0].touch()

    with pools(2) as pool:
        earlier = pool.submit([visit(1), visit(2, AWAIT, state_in=gates[0])], first)
        later = pool.submit([visit(3)], heard_second)
        earlier.wait()  # its last task ends only once the other order's reply was heard
        assert (sorted(first.clients), second.clients) == ([1, 2], [3])
        later.wait()
        assert second.replies == [(3, [3.0, 4.0])]
    with pools(1) as pool:
        tasks = [visit(1, AWAIT, state_in=gates[1]), visit(2)], [visit(3), visit(4)], [visit(5)]
        orders = [pool.submit(each, heard) for each in tasks]
        gates[1].touch()
        orders[-1].wait()
        assert heard.clients == [1, 2, 3, 4, 5]


def test_what_the_handler_of_a_reply_raises_ends_its_own_order_alone(pools: Pools, tmp_path: Path) -> None:
    gate, spoilt, healthy = tmp_path / "gate", Heard(), Heard()

    def spoil(task: PoolTask, reply: Reply) -> None:
        spoilt(task, reply)
        raise ZeroDivisionError(f"client {spoilt.clients}")

    with pools(1) as pool:
        tasks = [visit(1, AWAIT, state_in=gate), visit(2), visit(3, KILL), visit(4, KILL)]
        order = pool.submit(tasks, spoil)
        other = pool.submit([visit(7)], healthy)
        gate.touch()
        other.wait()
        assert (spoilt.clients, healthy.replies) == ([1], [(7, [7.0, 8.0])])
        with pytest.raises(ZeroDivisionError, match=r"client \[1\]"):
            order.wait()
    assert pools.of("worker_died") == []


@pytest.mark.parametrize("act", [REUSE, SHORT_LAST])
def test_vectors_of_a_reply_are_what_they_were_when_it_was_made(pools: Pools, act: int) -> None:
    received: dict[int, set[float]] = {}
    kept: list[messages.Update] = []

    def numbers(reply: messages.Update) -> set[float]:
        return {float(n) for vector in reply.payload["model"].values() for n in np.unique(vector.data)}

    def hear(task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, messages.Update)
        kept.append(reply)
        received[reply.client] = numbers(reply)

    with pools(1) as pool:
        sums(pool, [visit(0, flops=1e3)])
        pool.submit([visit(client, act, flops=1.0) for client in range(12)], hear).wait()
    assert received == {client: {float(client)} for client in range(12)}
    assert {reply.client: numbers(reply) for reply in kept} == received  # nor does the next overwrite it


def test_a_worker_that_is_suspended_loses_its_task(pools: Pools, tmp_path: Path) -> None:
    with pools(1, heartbeat_seconds=0.25) as pool:
        assert sums(pool, [visit(0, STOP_ONCE, None, tmp_path / "0")]) == {0: [0.0, 1.0]}
    assert "could not be reached" in pools.of("worker_died")[0].detail


def test_a_worker_that_hangs_is_replaced_though_its_connection_lives(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "STALL_CHECK_SECONDS", 0.2)
    monkeypatch.setattr(monitor, "STUCK_SECONDS", 0.6)
    named = r"client 0, round 6, train: given up after 3 workers; the last: worker 2 was ended by SIGTERM: it had done "
    with pytest.raises(PoolError, match=named + "nothing for 0.6 s"), pools(1) as pool:
        sums(pool, [visit(0, SLEEP)])
    assert len(pools.of("worker_died")) == 3


def test_a_killed_coordinator_leaves_nothing_behind(tmp_path: Path) -> None:
    script = f"""
import sys, tempfile
from pathlib import Path
from coordinator.workers import block_cache
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from tests import pools
say = lambda event: print(event.detail.removeprefix("pid "), flush=True)
block_cache.MEMORY = Path(tempfile.gettempdir())
with WorkerLauncher(("tests.pools",)) as launcher:
    with Pool(pools.job(), 2, launcher, Path({str(tmp_path)!r}), say, bool, pools.SITE) as pool:
        pool.submit([pools.visit(n, pools.SLEEP) for n in range(2)], print).wait()
"""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        coordinator = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": folder}, text=True
        )
        assert coordinator.stdout is not None
        with coordinator.stdout:
            workers = [psutil.Process(int(coordinator.stdout.readline())) for _ in range(2)]
        launcher = workers[0].parent()
        assert launcher is not None and list(Path(folder).iterdir()) != []
        coordinator.kill()
        coordinator.wait()
        assert all_end([launcher, *workers])
        assert list(Path(folder).iterdir()) == []


# --- what a node agent uses: groups that grow, tasks that fail alone, another socket ----------------------------------

ZERO: Payload = {"model": {"a": Vector(np.zeros(1, np.float32))}}


def halved(client: int, act: int = NORMAL, gate: Path | None = None) -> PoolTask:
    """A visit that weighs a half, and whose update is the client's number."""
    return replace(visit(client, act, ZERO, state_in=gate), weight=0.5)


def test_tasks_join_a_group_that_is_open_and_one_that_is_withdrawn_was_never_in_it(
    pools: Pools, tmp_path: Path
) -> None:
    heard: list[int] = []

    def on_reply(task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, messages.Update) and reply.payload == {}
        heard.append(reply.client)

    first, second, third = halved(2), halved(4, AWAIT, tmp_path / "gate"), halved(6)
    with pools(1) as pool:
        group = pool.submit([first], on_reply)
        group.wait()
        pool.submit([second, third], on_reply, group)
        pool.withdraw(third)
        pool.withdraw(third)  # no-op
        (tmp_path / "gate").touch()
        while (partial := group.try_collect()) is None:
            pool.turn(0.05)
    assert heard == [2, 4]
    assert partial.clients == group.tasks == 2
    assert (partial.totals["model"]["a"] * 2.0**-46).tolist() == [3.0]


def test_a_task_that_three_workers_failed_over_tells_who_cares_and_the_pool_goes_on(pools: Pools) -> None:
    failed: list[str] = []
    task = replace(halved(1, RAISE), on_failure=lambda task, reason: failed.append(f"{task.weight:g}: {reason}"))
    with pools(1) as pool:
        group = pool.submit([task], lambda task, reply: None)
        group.wait()
        assert sums(pool, [visit(3)]) == {3: [3.0, 4.0]}
    why = "worker 0: ValueError: that cannot be trained"
    told = [reason.partition(" (")[0] for reason in failed]
    assert told == [f"0.5: client 1, round 6, train: given up after 3 workers; the last: {why}"]
    assert group.tasks == 0
