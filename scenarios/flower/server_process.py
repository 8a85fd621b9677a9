"""The process of a ServerApp, a `scenarios.run.child_process.ChildProcess`: nothing in it sleeps.

It receives ``{"app", "server_app", "run_config", "seed", "messages", "writes"}`` and sends the questions that
`coordinator.rounds.app_rounds` answers, one after another; the last is ``{"do": "end"}``, or ``{"do": "error"}`` with
what the app has raised. ``time.time`` and its like give virtual time, and ``time.sleep`` lets it pass.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import signal
import time
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.protocol.app_records import EPOCH
from edge.protocol.plugins import error_text
from scenarios.run.child_process import Channel, parent_channel

if TYPE_CHECKING:
    from scenarios.flower.grid import FleetGrid

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class VirtualTime:
    """In place of the clock of this process, before Flower or an app binds any function of it."""

    def __init__(self) -> None:
        self.grid: FleetGrid | None = None
        calls: dict[str, Callable[..., object]] = {"sleep": self._sleep, "time": lambda: EPOCH + self._now()}
        calls |= {"monotonic": self._now, "perf_counter": self._now}
        for name, call in calls.items():
            setattr(time, name, call)
            if name != "sleep":
                setattr(time, f"{name}_ns", lambda call=call: round(call() * 1e9))

    def _now(self) -> float:
        return 0.0 if self.grid is None else self.grid.now

    def _sleep(self, seconds: float) -> None:
        if self.grid is not None:
            self.grid.sleep(seconds)


def main() -> None:
    # an app that computes asks nothing, and would not see that its run has been killed
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    channel = parent_channel()
    order = channel.receive()
    if order is None:
        return

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        channel.send(question)
        answer = channel.receive()
        if answer is None:  # the run has ended, or its process has
            os._exit(0)
        return answer

    try:
        _run(order, ask)
        channel.send({"do": "end"})
    except BaseException as error:  # an app may raise anything, and exit
        raised = "".join(traceback.format_exception(error))
        channel.send({"do": "error", "text": error_text(error), "traceback": raised})
    _wait(channel)


def _wait(channel: Channel) -> None:
    """End with the run, whatever threads the app has left."""
    channel.receive()
    os._exit(0)


def _run(order: dict[str, Any], ask: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    clock = VirtualTime()
    from flwr.app import Context, RecordDict
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import Strategy

    from edge.flower import wire
    from scenarios.flower.grid import FleetGrid

    grid = clock.grid = FleetGrid(ask, Path(order["messages"]), order["writes"])
    wire.identify(SUPERLINK_NODE_ID, grid.virtual_seconds)
    wire.seed_all(order["seed"], "flower server")
    setattr(Strategy, "start", _reporting(Strategy.start, ask))  # noqa: B010
    app = wire.app_object(Path(order["app"]), order["server_app"], ServerApp)
    app(grid, Context(wire.RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), dict(order["run_config"])))


def _reporting(start: Callable[..., Any], ask: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    """`Strategy.start` that also tells what the app's ``evaluate_fn`` finds, which no message carries."""

    @wraps(start)
    def reporting(*args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(start).bind(*args, **kwargs)
        evaluate = call.arguments.get("evaluate_fn")
        if evaluate is not None:

            def told(server_round: int, arrays: Any) -> Any:
                found = evaluate(server_round, arrays)
                if found is not None:
                    numbers = {k: float(v) for k, v in found.items() if isinstance(v, int | float)}
                    ask({"do": "metrics", "round": server_round, "values": numbers})
                return found

            call.arguments["evaluate_fn"] = told
        return start(*call.args, **call.kwargs)

    return reporting


if __name__ == "__main__":
    main()
