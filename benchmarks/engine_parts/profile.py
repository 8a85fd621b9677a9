"""What the steps of a visit allocate: ``python -m benchmarks.engine_parts.profile [TOML, STEPS]``.

A visit of the product runs under torch's profiler, which sees every block of memory that torch asks for and gives
back. Each is charged to the phase that it falls into: the batch, the forward pass with the loss, the backward pass, or
what is left of the step (gradients set to zero, the move). Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.engine_parts.steps import Product
from edge.protocol.messages import Train
from edge.training.batches import LocalBatches
from edge.training.sgd import Sgd

BATCHES = (10, 20, 40)
CLIENTS = 50
WARM_UP_VISITS = 3
PHASES = ("batch", "forward", "backward", "update")
MARK = "fedbr "
MIB = 1 << 20


def marked(original: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """The same function, seen by the profiler as a phase."""

    def call(*arguments: Any, **named: Any) -> Any:
        with record_function(MARK + phase):
            return original(*arguments, **named)

    return call


def marked_batches(batches: LocalBatches) -> Iterator[Any]:
    """The same batches, the making of each seen as a phase."""
    made = original_batches(batches)
    while True:
        with record_function(MARK + "batch"):
            batch = next(made, None)
        if batch is None:
            return
        yield batch


original_batches = LocalBatches.__call__
original_step = Sgd.__call__


def marked_step(step: Sgd, loss: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """The same step: its loss is a phase, and so is what lies around it."""
    with record_function(MARK + "update"):
        original_step(step, marked(loss, "forward"), *arguments, **named)


def visit(product: Product, client: int) -> None:
    """One visit to one client, whose update goes nowhere."""
    task = Train(client, 0, product.loaded.scenario.train.lr, {}, product.payload)
    product.site.train(task, None, None)


def trace(work: Callable[[], object]) -> list[dict[str, Any]]:
    """The profiler's events of some work, in order of time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sorted((event for event in events if "ts" in event), key=lambda event: float(event["ts"]))


def allocations(events: list[dict[str, Any]], steps: int) -> dict[str, float]:
    """Phase -> blocks of memory that torch asked for, per step; what is outside of steps is left out."""
    spans = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]), str(event["name"]).removeprefix(MARK))
        for event in events
        if str(event["name"]).startswith(MARK) and event.get("cat") == "user_annotation"
    )
    starts, found = [start for start, _, _ in spans], Counter[str]()
    for event in memory_events(events):
        if event["args"]["Bytes"] > 0:
            now = float(event["ts"])
            # The innermost phase is the one that began last: look back until one has not ended.
            for start, end, phase in reversed(spans[: bisect_right(starts, now)]):
                if start <= now <= end:
                    found[phase] += 1
                    break
    return {phase: found[phase] / steps for phase in PHASES}


def memory_events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that say that memory was taken or given back."""
    return [event for event in events if event["name"] == "[memory]"]


def held_bytes(events: list[dict[str, Any]]) -> int:
    """What torch took and did not give back."""
    return sum(int(event["args"]["Bytes"]) for event in memory_events(events))


def by_batch(toml: str, steps: int) -> Iterator[dict[str, Any]]:
    """Allocations per step at several batch sizes."""
    for batch in BATCHES:
        product = Product(toml, (f"train.batch={batch}",), steps)
        for _ in range(WARM_UP_VISITS):
            visit(product, 0)
        yield {"batch": batch, "allocations": allocations(trace(lambda p=product: visit(p, 0)), steps)}  # type: ignore[misc]


def main(text: str) -> None:
    toml, steps = json.loads(text)
    torch.set_num_threads(1)
    resident = resident_mib(toml, steps)  # before the profiler takes memory of its own
    with ExitStack() as stack:
        for owner, name, value in (
            (LocalBatches, "__call__", marked_batches),
            (Sgd, "__call__", marked_step),
            (torch.autograd, "backward", marked(torch.autograd.backward, "backward")),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        found = list(by_batch(toml, steps))
    product = Product(toml, (), steps)
    taken = [held_bytes(trace(lambda k=client: visit(product, k))) for client in range(CLIENTS)]  # type: ignore[misc]
    held = [taken[0], sum(taken)]
    print(json.dumps({"by_batch": found, "clients": CLIENTS, "held": held, "resident_mib": resident}))


def resident_mib(toml: str, steps: int) -> list[float]:
    """Memory of this process after the first clients and after all."""
    product, process, found = Product(toml, (), steps), psutil.Process(), []
    for client in range(CLIENTS):
        visit(product, client)
        if client in (WARM_UP_VISITS, CLIENTS - 1):
            found.append(process.memory_info().rss / MIB)
    return found


if __name__ == "__main__":
    main(sys.argv[1])
