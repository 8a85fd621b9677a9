"""Rounds of a Flower app, with a ServerApp that is a few lines of this file and replies that were recorded.

Every message has `DOWN` bytes and every reply `UP`; all times are powers of 2, or sums of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from msgspec.msgpack import Encoder

from coordinator.records.schema import RoundRow
from coordinator.rounds.app_rounds import AppRounds, EndedAppRound
from coordinator.rounds.budget import LARGEST_INTEGER, Budget, RunLimits
from coordinator.rounds.run import RunFailed
from costmodel.clock import Clock
from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.links import Links
from costmodel.visits.work import Work
from edge.protocol.app_records import AppReply, reply_file, write_reply
from edge.protocol.options.flower_app import FlowerAppOptions
from tests.toy import clockwork

DOWN, UP, FLOPS = 1000, 500, 1e6
SHA256 = "0" * 64
MOST_MESSAGES = 24
QUICK, SLOW = (0.25, 0.5, 0.25), (1.0, 2.0, 1.0)
"""Seconds of download, computing and upload"""
EXPIRED, LOST = 3, 5
"""Flower's codes of errors"""

Answer = dict[str, Any]
App = Callable[[], Generator[Answer, Answer, None]]
"""A ServerApp: yields questions, and is sent the answers"""


def push(*clients: int, kind: str = "train", ttl: float = 3600.0) -> Answer:
    """A message to each of these clients."""
    message = {"kind": kind, "ttl": ttl, "nbytes": DOWN, "sha256": SHA256}
    return {"do": "push", "messages": [{"client": client, **message} for client in clients]}


def receive(*numbers: int, timeout: float | None = None) -> Answer:
    """Wait for all replies to these messages."""
    return {"do": "wait", "numbers": list(numbers), "timeout": timeout, "all": True}


def poll(*numbers: int) -> Answer:
    """Replies to these messages that are there."""
    return {"do": "wait", "numbers": list(numbers), "timeout": None, "all": False}


def sleep(seconds: float) -> Answer:
    """Let time pass."""
    return {"do": "sleep", "seconds": seconds}


def numbers(answer: Answer) -> list[int]:
    """Those of the messages whose replies came."""
    return [reply["number"] for reply in answer["replies"]]


def codes(answer: Answer) -> list[int | None]:
    """Those of the errors that came, None for a reply."""
    return [reply.get("code") for reply in answer["replies"]]


@dataclass
class Script:
    """A ServerApp that is a generator."""

    steps: Generator[Answer, Answer, None]
    last: Answer | None = None

    def question(self) -> Answer:
        try:
            return self.steps.send(self.last)  # type: ignore[arg-type]  # None at first
        except StopIteration:
            return {"do": "end"}

    def answer(self, answer: Answer) -> None:
        self.last = answer


@dataclass
class Commits:
    """Rounds in memory."""

    commits: list[EndedAppRound] = field(default_factory=list)

    def commit(self, ended: EndedAppRound) -> None:
        self.commits.append(ended)


@dataclass
class Played:
    """A run that has ended."""

    rounds: AppRounds
    stopped_by: str
    commits: list[EndedAppRound]

    @property
    def rows(self) -> list[RoundRow]:
        return [commit.row for commit in self.commits]

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Virtual seconds of each round."""
        return [(row.start_s, row.end_s) for row in self.rows]

    @property
    def visits(self) -> list[tuple[int, int, str, float, float]]:
        """(round, client, kind, start, end of the upload) of each visit, in order of their ends."""
        return [
            (commit.row.round, *visit)
            for commit in self.commits
            for visit in zip(
                *(commit.record.visits[name] for name in ("client", "kind", "start_s", "up_end_s")), strict=True
            )
        ]


def reply(**values: Any) -> AppReply:
    """A recorded reply to any message."""
    plain = AppReply(SHA256, b"reply", b"context", UP, SHA256, FLOPS, 0.0, 1, 10, {})
    return structs.replace(plain, **values)


def play(
    folder: Path,
    app: App,
    seconds: Sequence[tuple[float, float, float]] = (QUICK, SLOW),
    *,
    replies: dict[int, AppReply] | None = None,
    encoded: dict[int, bytes] | None = None,
    links: Links | None = None,
    behaviour: ClientDynamics | None = None,
    limits: RunLimits | None = None,
    target: float | None = None,
    workers: Any = None,
    on_failure: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Played:
    """Run an app against recorded replies on a fleet of `clockwork`; ``workers``: of a run that is resumed."""
    for number in range(MOST_MESSAGES):
        write_reply(reply_file(folder, number), (replies or {}).get(number, reply()))
    for number, content in (encoded or {}).items():
        reply_file(folder, number).write_bytes(content)
    works = [Work(DOWN, UP, FLOPS, 1)] * len(seconds)
    fleet = clockwork(works, seconds, links or Links(), behaviour or ClientDynamics())
    recorder = Commits()
    rounds = AppRounds(
        options=FlowerAppOptions(**options),
        clients=len(seconds),
        clock=Clock(fleet),
        server=Script(app()),
        workers=workers,
        folder=folder,
        recorder=recorder,
        budget=Budget(limits or RunLimits(), LARGEST_INTEGER, target),
        on_round=lambda ended: None,
        check_stop=lambda: None,
        on_failure=on_failure,
    )
    return Played(rounds, rounds.run(), recorder.commits)


def away(*of_clients: list[tuple[float, float]]) -> ClientDynamics:
    """The times in which each client is there."""
    return ClientDynamics(RecordedIntervals(of_clients, None))


def test_a_round_lasts_until_the_slowest_reply_and_ends_with_the_next_message_to_train(tmp_path: Path) -> None:
    seen = []

    def app() -> Generator[Answer, Answer, None]:
        for first in (0, 2):
            yield push(0, 1)
            answer = yield receive(first, first + 1)
            seen.append((numbers(answer), answer["now"]))

    played = play(tmp_path, app)
    assert played.stopped_by == "app"
    assert seen == [([0, 1], 4.0), ([2, 3], 8.0)]
    assert played.spans == [(0.0, 4.0), (4.0, 8.0)]
    assert played.visits == [
        (0, 0, "train", 0.0, 1.0),
        (0, 1, "train", 0.0, 4.0),
        (1, 0, "train", 4.0, 5.0),
        (1, 1, "train", 4.0, 8.0),
    ]
    assert [(row.bytes_down, row.bytes_up, row.participants, row.critical) for row in played.rows] == [
        (2 * DOWN, 2 * UP, 2, 1)
    ] * 2


def test_evaluation_belongs_to_the_round_whose_model_it_scores(tmp_path: Path) -> None:
    def app() -> Generator[Answer, Answer, None]:
        for first in (0, 4):
            yield push(0, 1)
            yield receive(first, first + 1)
            yield push(0, 1, kind="evaluate")
            yield receive(first + 2, first + 3)

    scored = {2: reply(metrics={"eval_acc": 0.5, "loss": 2.0}, examples=30)}
    scored[3] = reply(metrics={"eval_acc": 0.75, "loss": 1.0}, examples=10)
    played = play(tmp_path, app, replies=scored)
    assert played.spans == [(0.0, 8.0), (8.0, 16.0)]
    assert (played.rows[0].accuracy, played.rows[0].test_loss) == ((30 * 0.5 + 10 * 0.75) / 40, (30 * 2 + 10) / 40)
    assert played.rows[1].accuracy is None
    assert [visit[2] for visit in played.visits[:4]] == ["train", "train", "evaluate", "evaluate"]


def test_the_server_handles_the_replies_of_a_round(tmp_path: Path) -> None:
    def app() -> Generator[Answer, Answer, None]:
        yield push(0, 1)
        yield receive(0, 1)

    # 2 x 500 bytes at 500 bytes/s, and 0.5 s for each reply
    played = play(tmp_path, app, links=Links(aggregate_bytes_per_second=float(UP), seconds_per_visit=0.5))
    assert played.spans == [(0.0, 4.0 + 2.0 + 1.0)]


def test_an_asynchronous_app_steps_with_each_reply(tmp_path: Path) -> None:
    seen = []

    def app() -> Generator[Answer, Answer, None]:
        yield push(0, 1)
        waiting, client_of = {0, 1}, {0: 0, 1: 1}
        for number in range(2, 7):
            while not (ready := numbers(answer := (yield poll(*sorted(waiting))))):
                yield sleep(0.5)
            seen.append((answer["now"], ready))
            for each in ready:
                waiting.remove(each)
                client_of[number] = client_of[each]
                waiting.add(number)
                yield push(client_of[each])
                break

    # client 0 answers every second; client 1 after 4 s, together with the fourth of client 0
    played = play(tmp_path, app)
    assert seen[:4] == [(1.0, [0]), (2.0, [2]), (3.0, [3]), (4.0, [1, 4])]
    assert played.spans[:3] == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    assert [visit[:3] for visit in played.visits[:3]] == [(0, 0, "train"), (1, 0, "train"), (2, 0, "train")]


def test_a_reply_after_the_timeout_is_late_and_the_node_has_its_context(tmp_path: Path) -> None:
    seen = []

    def app() -> Generator[Answer, Answer, None]:
        yield push(0, 1)
        answer = yield receive(0, 1, timeout=2.0)
        seen.append((numbers(answer), answer["now"]))
        yield push(0, 1)
        answer = yield receive(2, 3, timeout=16.0)
        seen.append((numbers(answer), answer["now"]))

    played = play(tmp_path, app)
    # client 1 begins with its second message when it has answered the first
    assert seen == [([0], 2.0), ([2, 3], 8.0)]
    assert played.visits == [
        (0, 0, "train", 0.0, 1.0),
        (1, 0, "train", 2.0, 3.0),
        (1, 1, "late", 0.0, 4.0),
        (1, 1, "train", 4.0, 8.0),
    ]
    assert played.rows[1].wasted_bytes == DOWN + UP
    assert played.rounds.contexts == {0: reply_file(tmp_path, 2), 1: reply_file(tmp_path, 3)}


def test_a_message_that_expires_gives_an_error_and_its_reply_is_late(tmp_path: Path) -> None:
    seen = []

    def app() -> Generator[Answer, Answer, None]:
        yield push(0, 1, ttl=2.0)
        answer = yield receive(0, 1)
        seen.append((numbers(answer), codes(answer), answer["now"]))
        yield sleep(8.0)

    played = play(tmp_path, app)
    assert seen == [([0, 1], [None, EXPIRED], 2.0)]
    assert [visit[2] for visit in played.visits] == ["train", "late"]


def test_a_lost_client_is_an_error_after_the_heartbeat(tmp_path: Path) -> None:
    seen = []

    def app() -> Generator[Answer, Answer, None]:
        yield push(0, 1)
        answer = yield receive(0, 1)
        seen.append((codes(answer), answer["now"]))
        seen.append((yield {"do": "nodes"})["clients"])

    # client 1 leaves at 3 s, while it uploads
    played = play(tmp_path, app, behaviour=away([(0.0, 1000.0)], [(0.0, 3.0), (500.0, 1000.0)]), heartbeat=32.0)
    assert seen == [([None, LOST], 35.0), [0]]
    assert [visit[:3] for visit in played.visits] == [(0, 0, "train"), (0, 1, "lost")]


@pytest.mark.parametrize(
    ("limits", "rule", "visits"),
    [
        (RunLimits(bytes=4 * (DOWN + UP) + DOWN), "bytes", ["train"] * 4),
        (RunLimits(bytes_up=3 * UP), "bytes_up", ["train"] * 3),
        (RunLimits(flops=2 * FLOPS), "flops", ["train"] * 2),
        (RunLimits(virtual_seconds=6.0), "virtual_seconds", ["train"] * 3 + ["cut"]),
    ],
)
def test_a_budget_ends_the_run(tmp_path: Path, limits: RunLimits, rule: str, visits: list[str]) -> None:
    def app() -> Generator[Answer, Answer, None]:
        for first in range(0, 8, 2):
            yield push(0, 1)
            yield receive(first, first + 1)

    played = play(tmp_path, app, limits=limits)
    assert played.stopped_by == rule
    assert [visit[2] for visit in played.visits] == visits
    spent = sum(row.bytes_up for row in played.rows)
    assert limits.bytes_up is None or spent <= limits.bytes_up
    assert limits.virtual_seconds is None or played.spans[-1] == (4.0, 6.0)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [{"do": "nodes"}, sleep(1.0)] * 2000,
            "round 1: the ServerApp waits in vain, at 500 s of virtual time with no message under way; the fleet has 2 "
            "clients (data.clients), and a strategy waits for its min_available_nodes",
        ),
        ([push(7)], "round 1: the app has sent a message to a node that the fleet has not"),
        ([{"do": "error", "text": "ValueError: no"}], "round 1: the ServerApp has raised ValueError: no"),
    ],
)
def test_an_app_that_fails_is_refused_in_words(tmp_path: Path, steps: list[Answer], message: str) -> None:
    def app() -> Generator[Answer, Answer, None]:
        yield from (step for step in steps)

    with pytest.raises(RunFailed) as failed:
        play(tmp_path, app)
    assert str(failed.value) == message


EXAMPLES = "has returned a reply whose metrics.num-examples is -1: must be from 0 to 9007199254740992"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (reply(refused=EXAMPLES), f"the ClientApp {EXAMPLES}"),
        (reply(examples=-1), "FOLDER/000001.reply: Expected `int` >= 0 - at `$.examples`"),
    ],
)
@pytest.mark.parametrize("workers", [None, object()], ids=["replayed", "resumed"])
def test_a_refused_reply_is_named_by_its_client_and_asked_for_again_when_the_run_is_resumed(
    tmp_path: Path, bad: AppReply, message: str, workers: object
) -> None:
    def app() -> Generator[Answer, Answer, None]:
        yield push(0, 1)
        yield receive(0, 1)

    encoded = Encoder().encode(bad)
    with pytest.raises(RunFailed) as failed:
        play(tmp_path, app, encoded={1: encoded}, workers=workers)
    text = message.replace("FOLDER", str(tmp_path))
    assert str(failed.value) == f"round 1, client 1, train, message 1: {text}"
    assert reply_file(tmp_path, 1).exists() == (workers is None)
    assert reply_file(tmp_path, 0).exists()


def test_an_error_of_a_client_is_a_visit_that_failed_and_the_run_goes_on(tmp_path: Path) -> None:
    seen: list[Answer] = []
    told: list[str] = []

    def app() -> Generator[Answer, Answer, None]:
        for first in (0, 4):
            yield push(0, 1)
            seen.append((yield receive(first, first + 1)))
            yield push(0, 1, kind="evaluate")
            seen.append((yield receive(first + 2, first + 3)))

    raised = {n: reply(error="KeyError: 'lr'", metrics={}, context=b"kept") for n in (1, 2, 5)}
    scored = {n: reply(metrics={"acc": 0.5}) for n in (3, 6, 7)}
    played = play(tmp_path, app, replies=raised | scored, workers=object(), on_failure=told.append)
    # the reply itself is the error, and lies in its file
    assert [codes(answer) for answer in seen] == [[None, None]] * 4
    assert [visit[:3] for visit in played.visits] == [
        (0, 0, "train"), (0, 1, "failed"), (0, 0, "unscored"), (0, 1, "evaluate"),
        (1, 0, "train"), (1, 1, "failed"), (1, 0, "evaluate"), (1, 1, "evaluate"),
    ]  # fmt: skip
    assert [(row.participants, row.accuracy) for row in played.rows] == [(1, 0.5), (1, 0.5)]
    assert (played.rounds.failed, played.rounds.failures) == (
        3,
        {"KeyError: 'lr'": "round 1, client 1, train, message 1"},
    )
    assert told == []  # they were recorded before


def test_another_message_than_the_recorded_reply_answers_is_refused(tmp_path: Path) -> None:
    def app() -> Generator[Answer, Answer, None]:
        yield push(0)
        yield receive(0)

    with pytest.raises(RunFailed, match=r"round 1, client 0, train, message 0: the app has sent another message than"):
        play(tmp_path, app, replies={0: reply(request="1" * 64)})
