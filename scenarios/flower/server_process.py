"""The process of a ServerApp, a `scenarios.run.child_process.ChildProcess`, and its keeper.

The keeper forks it, copies what it prints into its log, and ends it when the run ends, with whatever it has started.
Nothing sleeps in the app's process. It receives ``{"app", "server_app", "run_config", "seed", "messages", "writes"}``
and sends the questions that `coordinator.rounds.app_rounds` answers, one after another; the last is ``{"do": "end"}``,
or ``{"do": "error"}`` with what the app has raised, and the numbers of odd replies. ``time.time`` and its like give
virtual time, and ``time.sleep`` lets it pass. Processes that the app forks have the time of this host, and no Grid.
"""

from __future__ import annotations

import inspect
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from edge.protocol.app_records import EPOCH, MAX_ERROR
from edge.protocol.plugins import as_text, error_text
from edge.runtime import descendants
from edge.runtime.bounded_log import BoundedLog
from scenarios.run.child_process import Channel, parent_channel

if TYPE_CHECKING:
    from scenarios.flower.grid import FleetGrid

_STDIN, _STDOUT, _STDERR = 0, 1, 2
GRACE_SECONDS = 1.0
"""From the end of the run to SIGKILL: an app that waits ends at once, and one that computes has nothing to finish"""
MAX_TRACEBACK = 100_000
"""Characters of the end of a traceback"""


class VirtualTime:
    """In place of the clock of this process, before Flower or an app binds any function of it."""

    def __init__(self) -> None:
        self.grid: FleetGrid | None = None
        self._real_sleep = time.sleep
        self._reals = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
        self._is_forked = False
        calls: dict[str, Callable[..., object]] = {name: self._clock(name) for name in self._reals}
        for name, call in calls.items():
            setattr(time, name, call)
            setattr(time, f"{name}_ns", lambda call=call: round(call() * 1e9))
        setattr(time, "sleep", self._sleep)  # noqa: B010

    def follow(self, grid: FleetGrid) -> None:
        """Give the time of a run in this process, and that of this host in those that it forks."""
        self.grid = grid
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        self._is_forked = True

    def _clock(self, name: str) -> Callable[[], float]:
        real, since = self._reals[name], EPOCH if name == "time" else 0.0

        def read() -> float:
            return float(real()) if self._is_forked else since + (0.0 if self.grid is None else self.grid.now)

        return read

    def _sleep(self, seconds: float) -> None:
        if self._is_forked:
            self._real_sleep(seconds)
            return
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            self._real_sleep(seconds)  # which raises Python's own error
        elif self.grid is not None:
            self.grid.sleep(seconds)


def main() -> None:
    descendants.adopt()
    printed, output = os.pipe()
    keeper, app = os.getpid(), os.fork()
    if app:
        os.close(output)
        _keep(app, BoundedLog(printed, os.dup(_STDOUT)))
    os.close(printed)
    # an app that computes asks nothing, and would not see that its run has been killed
    descendants.end_with_parent(keeper)
    for descriptor in (_STDOUT, _STDERR):
        os.dup2(output, descriptor)
    _serve(parent_channel())


def _keep(app: int, log: BoundedLog) -> NoReturn:
    """Wait for the end of the app's process, or of the run, and leave nothing behind."""
    process = os.pidfd_open(app)
    poll = select.poll()
    for descriptor, events in ((process, select.POLLIN), (log.output, select.POLLIN), (_STDIN, select.POLLRDHUP)):
        poll.register(descriptor, events)
    ends_at = math.inf
    while (now := time.monotonic()) < ends_at:
        ready = dict(poll.poll(None if ends_at == math.inf else 1000 * (ends_at - now)))
        if log.output in ready and not log.copy() and ready[log.output] & select.POLLHUP:
            poll.unregister(log.output)
        if _STDIN in ready:  # the run has closed its end, or its process has ended
            poll.unregister(_STDIN)
            ends_at = now + GRACE_SECONDS
        if process in ready:
            break
    with suppress(ProcessLookupError):
        os.kill(app, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(app, 0)[1])
    descendants.end_children()
    log.close()
    os._exit(status if status >= 0 else 128 - status)


def _serve(channel: Channel) -> None:
    order = channel.receive()
    if order is None:
        return
    turn, process = threading.Lock(), os.getpid()

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        if os.getpid() != process:
            raise RuntimeError("a process that the ServerApp has forked has no Grid")
        with turn:  # an app may have threads
            channel.send(question)
            answer = channel.receive()
        if answer is None:  # the run has ended, or its process has
            os._exit(0)
        return answer

    grid: FleetGrid | None = None
    try:
        clock = VirtualTime()
        from scenarios.flower.grid import FleetGrid

        grid = FleetGrid(ask, Path(order["messages"]), order["writes"])
        clock.follow(grid)
        _run(order, grid, ask)
        channel.send({"do": "end"})
    except BaseException as error:  # an app may raise anything, and exit
        if os.getpid() != process:
            os._exit(1)
        text, raised = error_text(error)[:MAX_ERROR], _traceback(error)
        odd, words = list[int](), ""
        with suppress(OSError, ValueError):  # of a reply that was removed or damaged
            odd, words = (odd, words) if grid is None else grid.odd_replies(error)
        channel.send({"do": "error", "text": text + words, "traceback": raised[-MAX_TRACEBACK:], "odd": odd})
    if os.getpid() != process:
        os._exit(0)
    _wait(channel)


def _wait(channel: Channel) -> None:
    """End with the run, whatever threads the app has left."""
    with suppress(OSError, ValueError):  # an app may have closed it
        sys.stdout.flush()
    channel.receive()
    os._exit(0)


def _traceback(error: BaseException) -> str:
    try:
        return as_text("".join(traceback.format_exception(error)))
    except Exception:  # of an error whose text cannot be had
        return as_text("".join(traceback.format_tb(error.__traceback__)))


def _run(order: dict[str, Any], grid: FleetGrid, ask: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    from flwr.app import Context, RecordDict
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import Strategy

    from edge.flower import wire

    wire.identify(SUPERLINK_NODE_ID, grid.virtual_seconds)
    wire.seed_all(order["seed"], "flower server")
    setattr(Strategy, "start", _reporting(Strategy.start, ask))  # noqa: B010
    app = wire.app_object(Path(order["app"]), order["server_app"], ServerApp)
    app(grid, Context(wire.RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), dict(order["run_config"])))


def _reporting(start: Callable[..., Any], ask: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """`Strategy.start` that also tells what the app's ``evaluate_fn`` finds, which no message carries."""
    from edge.flower.wire import numbers

    @wraps(start)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(start).bind(*args, **kwargs)
        evaluate = call.arguments.get("evaluate_fn")
        if evaluate is not None:

            def evaluated(server_round: int, arrays: Any) -> Any:
                metrics = evaluate(server_round, arrays)
                if isinstance(metrics, Mapping):
                    ask({"do": "metrics", "round": server_round, "values": numbers(metrics)})
                return metrics

            call.arguments["evaluate_fn"] = evaluated
        return start(*call.args, **call.kwargs)

    return reporting


if __name__ == "__main__":
    main()
