"""Steps with portable numerics beside steps with this processor's own kernels: part H of ``benchmarks/engine.py``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.engine_parts.tools import Asked, Federation, Helper, Line, command, ratio
from coordinator.workers.launcher import environment
from edge.protocol.portable import NATIVE, PORTABLE, Instructions
from edge.runtime.numerics import lacking

WARM_UP, CYCLES = 2, 15
EXAMPLES = 200
STEPS = {"digits": 20, "small CNN": 10, "ResNet-18 of width 16": 2, "ResNet-18 of width 64": 1}
"""Model -> steps of one visit"""
BOTH: tuple[Instructions, ...] = (NATIVE, PORTABLE)


def steps(part: str, asked: Asked) -> Iterator[Line]:
    """Part H."""
    if lacks := lacking():
        yield Line(part, "portable numerics", f"not measured: {lacks}")
        return
    scenarios = {
        "digits": "digits",
        "small CNN": str(Federation(1, EXAMPLES, 1, 1).written(asked.folder, f"{part}-cnn")),
        **{
            f"ResNet-18 of width {width}": str(
                Federation(1, EXAMPLES, 1, 1, "resnet18", width).written(asked.folder, f"{part}-{width}")
            )
            for width in (16, 64)
        },
    }
    models = json.dumps({name: (scenarios[name], count) for name, count in STEPS.items()})
    with ExitStack() as open_helpers:
        helpers = {
            each: open_helpers.enter_context(Helper(command("portable_steps", each, models), environment(each)))
            for each in BOTH
        }
        for name in STEPS:
            seconds = _in_turns(helpers, name, 1 if asked.quick else CYCLES)
            asked.details[f"{part}-{name}"] = seconds
            for each in BOTH:
                median = statistics.median(seconds[each])
                yield Line(part, f"{name}: {each}, CPU", f"{1000 * median:.2f} ms", median)
            ratios = [ours / theirs for ours, theirs in zip(seconds[PORTABLE], seconds[NATIVE], strict=True)]
            yield ratio(part, f"{name}: portable / native", statistics.median(ratios))


def _in_turns(helpers: dict[Instructions, Helper], model: str, cycles: int) -> dict[str, list[float]]:
    """Instructions -> the median step of each cycle, in CPU seconds; the order turns from cycle to cycle."""
    seconds: dict[str, list[float]] = {each: [] for each in BOTH}
    for cycle in range(WARM_UP + cycles):
        for each in BOTH[:: -1 if cycle % 2 else 1]:
            taken = statistics.median(helpers[each].ask(model))
            if cycle >= WARM_UP:
                seconds[each].append(taken)
    return seconds
