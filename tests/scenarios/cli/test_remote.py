"""``fedbr keys`` and ``fedbr worker`` beside ``fedbr run --listen``: real processes, and what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Literal

import psutil
import pytest
import zmq

from coordinator.methods.registry import Method
from coordinator.records.store import has_rounds, read
from coordinator.rounds.run import FederatedRun, RoundFinished
from coordinator.rounds.synchronous import run_synchronous
from coordinator.workers.instructions import Instruction, SendTask
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.sockets import RemoteAccess
from edge.protocol import codec, messages
from edge.protocol.config import ComponentConfig, DataConfig, Job, ModelConfig, TrainConfig
from edge.runtime.keys import make, read_pair, read_public
from edge.runtime.numerics import fingerprint
from edge.runtime.remote_worker import JoinError, localized_job, open_runner
from scenarios.cli import main
from tests import warm
from tests.scenarios.runs import fedbr, refused
from tests.toy import federation, objective, set_workers, store

TINY = ["digits", "method=fedavg", "train.local_epochs=1", "rounds.max=2"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Key pairs of a run, of alice and of eve."""
    for name in ("run", "alice", "eve"):
        make(name, tmp_path)
    return tmp_path


@dataclass
class RemoteWorker:
    """A process of ``fedbr worker``, and what it says."""

    process: subprocess.Popen[bytes] | warm.WarmProcess
    said: IO[str]


@contextlib.contextmanager
def worker(folder: Path, port: int, name: str = "alice", *more: str, cold: bool = False) -> Iterator[RemoteWorker]:
    """``fedbr worker`` with this name's key; ``cold``: executed, as by a shell."""
    keys = ["--keys", str(folder / f"{name}.key"), "--server", str(folder / "run.pub")]
    words = ["worker", "--connect", f"tcp://127.0.0.1:{port}", *keys, *more]
    reading, writing = os.pipe()
    with os.fdopen(reading) as said:
        process = subprocess.Popen(fedbr(*words), stderr=writing) if cold else warm.start(words, 1, writing)
        os.close(writing)
        try:
            yield RemoteWorker(process, said)
        finally:
            process.kill()
            process.wait()


def ended(worker: RemoteWorker) -> tuple[int, list[str]]:
    """Exit code, and what it said."""
    lines = worker.said.read().splitlines()
    return worker.process.wait(), [line.removeprefix("fedbr worker: ") for line in lines]


def listening(folder: Path, port: int, run_id: str) -> list[str]:
    """Words of a run that listens for alice."""
    keys = ["--keys", str(folder / "run.key"), "--allow", str(folder / "alice.pub")]
    where = ["--listen", f"tcp://127.0.0.1:{port}", *keys, "--out", str(folder / "runs"), "--run-id", run_id, "--json"]
    return ["run", *TINY, *where]


def model_sha256(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert main.run_command(words) == 0
    return str(json.loads(capsys.readouterr().out)["model_sha256"])


def outcome(run: Path) -> dict[str, list[tuple[object, ...]]]:
    """All that a run's folder says of what came of it: the chain of hashes, bytes, and what each client has kept."""
    asked = {
        "rounds": "SELECT round, model_sha256, chain, bytes_down, bytes_up FROM rounds ORDER BY round",
        "states": "SELECT client, file, sha256 FROM states ORDER BY client",
    }
    told = {name: [tuple(row) for row in read(run / "ledger.sqlite", text)] for name, text in asked.items()}
    files = sorted((run / "state").iterdir())
    told["files"] = [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    return told


@pytest.mark.usefixtures("warm_workers")
def test_a_worker_of_another_process_gives_the_same_models_and_client_states_to_the_bit(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten clients five are visited in each of three rounds, so that some come with what they kept before."""
    (folder / "tmp").mkdir()
    asked, port = ["method=fedbr+scaffold", "rounds.max=3"], free_port()
    here = ["--workers", "1", "--out", str(folder / "runs"), "--run-id", "alone", "--json"]
    alone = model_sha256(capsys, ["run", *TINY, *asked, *here])
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    with worker(folder, port, cold=True) as alice, worker(folder, port, "eve") as eve:
        # Nobody works here, so that each number has been made by the remote worker.
        assert model_sha256(capsys, [*listening(folder, port, "remote_worker"), *asked, "--workers", "0"]) == alone
        status, said = ended(alice)
        assert (status, said[0][:11], said[1:]) == (0, "joined run ", ["the run has ended"])
        why = "the run does not know this key: its public half must be named in --allow there"
        assert ended(eve) == (3, [f"tcp://127.0.0.1:{port}: {why}"])
    runs = folder / "runs" / "digits"
    assert outcome(runs / "remote_worker") == outcome(runs / "alone")
    assert len(outcome(runs / "remote_worker")["states"]) > 5
    assert list((folder / "tmp").iterdir()) == []
    query = "SELECT kind FROM host_events WHERE kind IN ('worker_joined', 'worker_started', 'listening')"
    rows = read(runs / "remote_worker" / "ledger.sqlite", query)
    assert [row["kind"] for row in rows] == ["listening", "worker_joined"]


WITHOUT_HEAD: dict[str, Any] = dict.fromkeys(("down", "up"), lambda options: "without:head")
PRIVATE_HEAD = objective("private-head", **WITHOUT_HEAD, evaluated="clients")
"""What a client keeps is read for its scores, too."""


def pool_for(run: FederatedRun, folder: Path, workers: int, launcher: WorkerLauncher) -> Pool:
    """A pool that listens for alice."""
    asked = replace(run.job, data_sha256=run.description.data_sha256)
    own = read_pair(folder / "run.key")
    remote_access = RemoteAccess(
        f"tcp://127.0.0.1:{free_port()}", own.public, own.secret, [read_public(folder / "alice.pub").decode()]
    )
    return Pool(asked, workers, launcher, folder, store(run).ledger.event, bool, remote_access=remote_access)


def until_ready(pool: Pool, workers: int, remote_workers: Sequence[RemoteWorker]) -> None:
    while len(pool._scheduler._assigned) < workers:
        assert [worker.process.poll() for worker in remote_workers] == [None] * len(remote_workers)
        pool.submit([], lambda task, reply: None)
        time.sleep(0.01)


def port_of(pool: Pool) -> int:
    assert pool.remote_access is not None
    return int(pool.remote_access.endpoint.rpartition(":")[2])


@pytest.mark.parametrize(
    ("sum", "method"),
    [("client_order", PRIVATE_HEAD), ("fixed_point", "fedavg"), ("fixed_point", PRIVATE_HEAD)],
    ids=lambda value: getattr(value, "name", value),
)
def test_one_of_ours_and_a_remote_worker_side_by_side_change_nothing(
    folder: Path, sum: Literal["client_order", "fixed_point"], method: str | Method, trainers: WorkerLauncher
) -> None:
    run = federation(folder / "alone", method, clients=6, sum=sum)
    run_synchronous(run)
    store(run).ledger.close()
    answered = dict[int, int]()
    run = federation(folder / "both", method, clients=6, sum=sum)
    with pool_for(run, folder, 1, trainers) as pool:
        scheduler = pool._scheduler
        with worker(folder, port_of(pool)) as alice:
            until_ready(pool, 2, [alice])
            first_hands = scheduler._assign_tasks
            scheduler._assign_tasks = lambda workers: _counted(first_hands(workers), answered)  # type: ignore[method-assign]
            set_workers(run, pool)
            run_synchronous(run)
            pool.__exit__(None, None, None)
            assert ended(alice)[0] == 0
    store(run).ledger.close()
    assert outcome(folder / "both") == outcome(folder / "alone")
    assert min(answered[0], answered[1]) >= 2  # both have worked


def test_a_remote_worker_that_is_killed_in_the_middle_takes_nothing_with_it_that_clients_keep(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trainers: WorkerLauncher
) -> None:
    """After the first round, when it has what clients kept in hand; the other goes on alone."""
    (folder / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))  # of the remote workers: who is killed clears nothing away
    run = federation(folder / "alone", "scaffold", clients=6, rounds=4)
    run_synchronous(run)
    store(run).ledger.close()
    killed: list[RemoteWorker] = []

    def kill(progress: RoundFinished) -> None:
        if progress.rounds == 1:
            killed[0].process.kill()

    run = federation(folder / "both", "scaffold", clients=6, rounds=4, on_round=kill)
    with (
        pool_for(run, folder, 0, trainers) as pool,
        worker(folder, port_of(pool)) as alice,
        worker(folder, port_of(pool)) as bob,
    ):
        killed.append(alice)
        until_ready(pool, 2, [alice, bob])
        set_workers(run, pool)
        run_synchronous(run)
        pool.__exit__(None, None, None)
        assert (ended(alice)[0], ended(bob)[0]) == (-signal.SIGKILL, 0)
    store(run).ledger.close()
    assert outcome(folder / "both") == outcome(folder / "alone")
    gone = read(folder / "both" / "ledger.sqlite", "SELECT detail FROM host_events WHERE kind = 'worker_died'")
    assert [row["detail"].partition(", ")[0] for row in gone][:1] in (["worker 0"], ["worker 1"])


def _counted(sent: list[Instruction], by_worker: dict[int, int]) -> list[Instruction]:
    for one in sent:
        if isinstance(one, SendTask):
            by_worker[one.worker] = by_worker.get(one.worker, 0) + 1
    return sent


def test_a_worker_that_loses_its_run_or_finds_none_ends_with_3(folder: Path) -> None:
    port = free_port()
    with worker(folder, port, "alice", "--wait", "0.5") as early:
        why = "no answer within 0.5 s: the run has ended, or has not begun to listen"
        assert ended(early) == (3, [f"tcp://127.0.0.1:{port}: {why}"])
    with warm.start([*listening(folder, port, "lost"), "--workers", "0", "rounds.max=10000"]) as run:
        until_listening(port)
        with worker(folder, port, "alice", "--wait", "5") as alice:
            joined = alice.said.readline()
            run.kill()
            assert joined.startswith("fedbr worker: joined run ")
            gone = f"tcp://127.0.0.1:{port}: the coordinator is gone"
            assert ended(alice) == (3, [f"{gone}; trying again for 5 s", gone])


def until_listening(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.usefixtures("warm_workers")
def test_a_worker_whose_run_is_killed_and_taken_up_again_joins_it_again(folder: Path) -> None:
    port = free_port()
    words = [*listening(folder, port, "again"), "--workers", "0", "rounds.max=20", "stop.target_accuracy=1.0"]
    ledger = folder / "runs" / "digits" / "again" / "ledger.sqlite"
    with worker(folder, port) as alice:
        with warm.start(words):
            deadline = time.monotonic() + 60
            while not (ledger.exists() and has_rounds(ledger)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        resume = ["resume", str(ledger.parent), *words[words.index("--listen") : words.index("--out")], "--json"]
        assert main.run_command([*resume, "--workers", "0"]) == 0
        status, said = ended(alice)
    gone = f"tcp://127.0.0.1:{port}: the coordinator is gone; trying again for 60 s"
    assert (status, said[1], said[3]) == (0, gone, "the run has ended")
    assert said[0] == said[2]
    assert said[0].startswith("joined run ")


def test_what_a_run_on_another_machine_says_does_not_reach_the_terminal_as_control_characters(folder: Path) -> None:
    pair, port = read_pair(folder / "run.key"), free_port()
    with (
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as router,
        worker(folder, port, "alice", "--device", "cpu") as alice,
    ):
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.CURVE_SERVER, True)
        router.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
        router.bind(f"tcp://127.0.0.1:{port}")
        identity = router.recv_multipart()[0]

        def say(message: messages.Message, run_id: str) -> None:
            encoded = codec.encode(message, run_id)
            envelope = codec.Envelope(identity.decode()).pack()
            router.send_multipart([identity, envelope, encoded.header, *encoded.frames])

        say(messages.Welcome(job(device="\x1b]0;a title\x07")), messages.NO_RUN)
        router.recv_multipart()  # its refusal
        say(messages.Shutdown(), "run-1")
        assert ended(alice) == (
            3,
            [
                "joined run run-1",
                f"tcp://127.0.0.1:{port}: --device cpu: the run computes on \\x1b]0;a title\\x07, and other devices "
                "are not bit-identical",
            ],
        )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_is_stopped_ends_with_4(folder: Path, how: signal.Signals) -> None:
    with worker(folder, free_port(), cold=True) as alice:
        status = psutil.Process(alice.process.pid)
        deadline = time.monotonic() + 30
        # until it has begun to wait
        while "edge.runtime.remote_worker" not in status.cmdline() or status.num_threads() < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(alice.process.pid, how)
        assert ended(alice) == (4, ["stopped"])


def test_a_listening_run_without_keys_or_a_list_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listen = ["run", "digits", "method=fedavg", "--listen", "tcp://127.0.0.1:5599"]
    own, public = str(folder / "run.key"), str(folder / "alice.pub")
    for given in ([], ["--keys", own], ["--allow", public], ["--keys", own, "--allow", ""]):
        assert refused(capsys, *listen, *given).startswith(
            "--listen tcp://127.0.0.1:5599: needs --keys NAME.key and --allow A.pub,B.pub, since remote"
        )
    for endpoint in ("ipc:///tmp/x", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:65536", "host:5599"):
        where = ["run", "digits", "--listen", endpoint, "--keys", own, "--allow", public]
        assert refused(capsys, *where) == f"--listen {endpoint}: must be tcp://HOST:PORT"
    assert refused(capsys, *listen, "--keys", public, "--allow", public).startswith(f"{public}: not a key pair")
    assert refused(capsys, *listen, "--keys", own, "--allow", f"{public},{own}").startswith(f"{own}: not a public key")
    assert refused(capsys, "run", "digits", "--keys", own).startswith("--keys: needs --listen")
    assert refused(capsys, "run", "digits", "--workers", "0").startswith("--workers 0: the run would have no workers")


def test_the_command_keys_makes_a_pair_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["keys", "alice", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{tmp_path / 'alice.key'}  private: keep it on this machine"
    assert (tmp_path / "alice.key").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "alice.key").read_bytes()
    assert "there is a key alice already" in refused(capsys, "keys", "alice", "--out", str(tmp_path))
    assert (tmp_path / "alice.key").read_bytes() == before


# --- what a remote worker makes sure of before it serves --------------------------------------------------------------


def job(**other: object) -> Job:
    objective = ComponentConfig("edge.training.client_update:ClientUpdate")
    plain: dict[str, object] = {"objective": objective, "data_sha256": "", "device": "cpu"}
    fields = plain | other
    data = DataConfig("digits", root="/nowhere", download=False)
    return Job("run-1", 0, cache="/nowhere", model=ModelConfig("digits-cnn"), data=data, train=TrainConfig(), **fields)  # type: ignore[arg-type]


def test_a_remote_worker_uses_folders_of_its_own_and_serves_on_the_same_type_of_device_alone() -> None:
    here = localized_job(job(), "auto", None, "/cache")
    assert (here.device, here.data.root, here.cache, here.worker_slot, here.workers) == ("cpu", None, "/cache", 0, 1)
    assert localized_job(job(device="cuda:3"), "auto", "/data", "/cache").device == "cuda"
    assert localized_job(job(device="cuda:3"), "cuda:1", "/data", "/cache").data.root == "/data"
    with pytest.raises(JoinError, match="--device cpu: the run computes on cuda:0, and other devices are not"):
        localized_job(job(device="cuda:0"), "cpu", None, "/cache")


def test_a_remote_worker_with_other_libraries_other_data_or_without_the_method_does_not_serve(tmp_path: Path) -> None:
    run = job(device="cpu", fingerprint=fingerprint("cpu") | {"torch": "2.0.1"})
    why = f"torch {version('torch')} instead of 2.0.1; fedbr run --any-machine allows it"
    with pytest.raises(JoinError) as error:
        open_runner(run, run)
    assert str(error.value) == f"not bit-identical to the run's machine: {why}"
    other = job(data_sha256="0123456789abcdef" * 4)
    with pytest.raises(
        JoinError, match=r"data set digits: this worker's is [0-9a-f]{16}, the run's is 0123456789abcde"
    ):
        open_runner(other, localized_job(other, "auto", None, str(tmp_path)))
    unknown = job(objective=ComponentConfig("nobodys.module:Half"))
    with pytest.raises(ModuleNotFoundError, match="nobodys"):
        open_runner(unknown, localized_job(unknown, "auto", None, str(tmp_path)))
