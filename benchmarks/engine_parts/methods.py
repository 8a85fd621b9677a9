"""Steps of FedMLB and FedBR beside a plain formulation, and beside their FLOPs: part D of ``benchmarks/engine.py``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.engine_parts.tools import AS_WORKER, BF16, Asked, Federation, Line, answer, command, ratio, why_no_bf16

REPEATS = {16: 9, 64: 4}
"""Width -> cycles through all kinds of step, beside one for warming up"""
EXAMPLES = 80
TOLERANCE = 1e-3
"""How far the product may be from the plain formulation, relatively to how far it has moved. Rounding makes it 4e-7 at
width 16 and 3e-4 at width 64 after three steps; leaving out one pathway of five would make it 0.06 and 0.12."""
WITHIN = 0.15
"""How far the cost of FedBR may be from the ratio of its FLOPs, relatively"""


def steps(part: str, asked: Asked) -> Iterator[Line]:
    """Part D."""
    for width, repeats in REPEATS.items():
        if not (asked.quick and width > min(REPEATS)):
            yield from _of_width(part, asked, width, 1 if asked.quick else repeats)


def _of_width(part: str, asked: Asked, width: int, repeats: int) -> Iterator[Line]:
    toml = Federation(1, EXAMPLES, 1, 1, "resnet18", width).written(asked.folder, f"{part}-{width}")
    refusal = why_no_bf16(toml)
    request = {"toml": str(toml), "repeats": repeats, "bf16": "" if refusal else BF16}
    found = answer(command("steps", json.dumps(request)), **AS_WORKER)
    asked.details[f"{part}-{width}"] = found
    name, seconds = f"width {width}", found["seconds"]
    off = ", ".join(f"{value:.1e} ({layout})" for layout, value in found["off"].items())
    least = min(found["off"].values())
    what = f"{name}: FedMLB = plain after 3 steps, in its layout"
    yield Line(part, what, f"off by {off}", least, f"< {TOLERANCE:.0e}", least < TOLERANCE)
    yield Line(part, f"{name}: FedAvg step", f"{1000 * found['medians']['fedavg']:.1f} ms", found["medians"]["fedavg"])
    yield ratio(part, f"{name}: FedMLB / plain", _over(seconds, "fedmlb", "fedmlb plain"), 1.0)
    yield ratio(part, f"{name}: FedMLB / plain, channels_last", _over(seconds, "fedmlb", "fedmlb plain channels_last"))
    if refusal:
        yield Line(part, f"{name}: bf16", f"not measured: {refusal}")
    else:
        yield ratio(part, f"{name}: FedMLB bf16 / plain fp32", _over(seconds, "fedmlb bf16", "fedmlb plain"), 0.65)
    yield from _fedbr(part, name, found, not refusal)


def _fedbr(part: str, name: str, found: dict[str, Any], bf16: bool) -> Iterator[Line]:
    seconds = found["seconds"]
    for alpha, flops in found["flops"].items():
        yield ratio(
            part, f"{name}: FedBR alpha {alpha} / plain", _over(seconds, f"fedbr {alpha}", f"fedbr {alpha} plain")
        )
        if bf16:
            value = _over(seconds, f"fedbr {alpha} bf16", f"fedbr {alpha} plain")
            yield ratio(part, f"{name}: FedBR alpha {alpha} bf16 / plain fp32", value)
        cost = _over(seconds, f"fedbr {alpha}", "fedavg")
        yield Line(
            part,
            f"{name}: FedBR alpha {alpha} / FedAvg (by FLOPs {flops:.2f})",
            f"{cost:.2f}",
            cost,
            f"within {WITHIN:.0%}",
            abs(cost / flops - 1) <= WITHIN,
        )


def _over(seconds: dict[str, Sequence[float]], ours: str, theirs: str) -> float:
    """Median of the ratios of one cycle each."""
    return statistics.median(a / b for a, b in zip(seconds[ours], seconds[theirs], strict=True))
