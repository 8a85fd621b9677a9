"""Steps of GradAug and FedAlign beside a plain formulation and their FLOPs: part G of ``benchmarks/engine.py``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator

from benchmarks.engine_parts.tools import AS_WORKER, Asked, Federation, Line, answer, command, ratio

WIDTH, EXAMPLES, REPEATS = 16, 60, 15
METHODS = {"gradaug": "GradAug", "fedalign": "FedAlign"}
TOLERANCE = 1e-3
"""How far the product may be from the plain formulation, relatively to how far it has moved in three steps."""
WITHIN = 0.2
"""How far the cost may be from the ratio of FLOPs, relatively"""


def steps(part: str, asked: Asked) -> Iterator[Line]:
    """Part G."""
    toml = Federation(1, EXAMPLES, 1, 1, "resnet18", WIDTH).written(asked.folder, part)
    request = {"toml": str(toml), "repeats": 1 if asked.quick else REPEATS}
    found = answer(command("slim_steps", json.dumps(request)), **AS_WORKER)
    asked.details[part] = found
    seconds = found["seconds"]
    for method, name in METHODS.items():
        off = min(found["off"][method].values())
        what = f"{name} = plain after 3 steps, in its layout"
        yield Line(part, what, f"off by {off:.1e}", off, f"< {TOLERANCE:.0e}", off < TOLERANCE)
        for layout, bar in (("contiguous", 1.0), ("channels_last", None)):
            value = _over(seconds[method], seconds[f"{method} {layout}"])
            yield ratio(part, f"{name} / plain, {layout}", value, bar)
        cost, flops = _over(seconds[method], seconds["fedavg"]), found["flops"][method]
        is_near = abs(cost / flops - 1) <= WITHIN
        what = f"{name} / FedAvg (by FLOPs {flops:.2f})"
        yield Line(part, what, f"{cost:.2f}", cost, f"within {WITHIN:.0%}", is_near)


def _over(ours: list[float], theirs: list[float]) -> float:
    """Median of the ratios of one cycle each."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
