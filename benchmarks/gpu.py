"""Costs of training on a GPU, in one call of at most nine minutes: ``python benchmarks/gpu.py --out gpu.json``.

``make install`` prepares a machine that has Python 3.11 or 3.12 and a package index; then ``.venv/bin/python`` runs
this. Where another Python has the packages of pyproject.toml already, that one does, from the root of the repository.
Data need not be there: examples are random, or scikit-learn's.

tests     the tests that need a GPU, and those of the code around it (pytest)
workers   1, 2, 4 and 8 workers on one GPU: seconds of a visit (those of a round per client of it), memory of each
graphs    steps as they are, and replayed from CUDA graphs
precision fp32, tf32 and bf16, in both memory formats, as they are and replayed from CUDA graphs
pathways  FedMLB's pathways one after the other, and as one sweep

A visit is the whole work of a worker for one client: download, batches, steps, upload; the memory is that of a visit
beside what is there before. Each part has its own limit; one that fails is reported, and the others go on. Exits with 1
if one failed. ``--device cpu --quick`` tries it in small without a GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parent.parent))

try:
    from benchmarks.harness import (
        MIB,
        Line,
        Options,
        Part,
        Turns,
        answer,
        call_repeatedly,
        failure,
        lines_of,
        main,
        module,
        run_for,
        why_no_bf16,
    )
    from benchmarks.product import Federation, Request, differences
    from edge.protocol.config import CPU
    from edge.runtime.gpu_memory import free_nbytes
except ModuleNotFoundError as missing:
    sys.exit(f"{missing}; run `make install`, and then .venv/bin/python benchmarks/gpu.py")

T = TypeVar("T")
TOTAL_SECONDS = 530.0
"""No child begins or goes on later, so that the table is written within nine minutes."""
NO_GPU = "not measured: no GPU"
TESTS = (
    *("tests/cuda", "tests/edge/runtime/test_gpus.py"),
    *("tests/edge/training/test_cuda_graphs.py", "tests/scenarios/config/test_device_defaults.py"),
)
CONTIGUOUS, CHANNELS_LAST = "train.memory_format=contiguous", "train.memory_format=channels_last"
LAUNCHED, REPLAYED = "train.graphs=false", "train.graphs=true"
FEDAVG = "FedAvg"
LOOK_SECONDS = 0.5
"""Between two readings of the GPU's memory; each starts a process."""


def limit(options: Options, seconds: float) -> float:
    """Seconds that a part has."""
    return min(seconds, options.deadline - time.monotonic())


def shares(items: Sequence[T], seconds: float) -> Iterator[tuple[T, float]]:
    """Each with its seconds: an equal part of those that the earlier ones have left."""
    until = time.monotonic() + seconds
    for number, item in enumerate(items):
        yield item, (until - time.monotonic()) / (len(items) - number)


def images(model: str, steps: int = 20, width: int | None = None, clients: int = 1) -> Federation:
    """Clients with random images for so many full batches."""
    return Federation(clients, 20 * steps, clients, visit(steps), model, width)


def visit(steps: int) -> str:
    """The keys of [train] for visits of so many full batches."""
    return f"local_steps = {steps}\ndrop_last = true"


def tests(options: Options) -> Iterator[Line]:
    """The CUDA part of the suite."""
    if options.device == CPU:
        yield Line("tests", NO_GPU)
        return
    words = [sys.executable, "-m", "pytest", "-q", "-rfEs", "--tb=short", "-p", "no:cacheprovider", *TESTS]
    code, text = run_for(words, limit(options, 80))
    options.details["tests"] = text
    lines = [each for each in text.splitlines() if each.strip()]
    for line in lines:
        if line.startswith(("FAILED", "ERROR", "SKIPPED")):
            yield Line(*line.partition(" - ")[::2], met=None if line.startswith("SKIPPED") else False)
    verdict = "ended after its limit" if code is None else (lines or ["no output"])[-1].strip("= ")
    yield Line("all", verdict, met=code == 0)


# --- workers ----------------------------------------------------------------------------------------------------------


def workers(options: Options) -> Iterator[Line]:
    """More and more workers."""
    quick, counts = options.quick, (1, 2) if options.quick else (1, 2, 4, 8)
    small = Federation(8 if quick else 32, 0, 8 if quick else 32, visit(10), "digits-cnn", data="digits")
    federations = [small] if quick else [small, images("resnet18", 5, clients=16)]
    for federation, seconds in shares(federations, limit(options, 150)):
        until = time.monotonic() + seconds
        toml = federation.write(options.folder, "workers")
        turns = Turns({})
        for count in counts:
            what = f"{federation.name}, {count} {'worker' if count == 1 else 'workers'}"
            if time.monotonic() > until:
                yield failure(what, "the time was up")
                continue
            request = Request(toml, (), count, 3 if quick else 6, options.device, memory=options.device == CPU)
            try:
                with gpu_growth(options.device) as growth:
                    run = answer(
                        module("product", json.dumps(asdict(request))), limit_seconds=max(1.0, until - time.monotonic())
                    )
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                yield failure(what, str(error))
                continue
            turns.seconds[what] = [each / federation.clients for each in differences(run["rounds"], "seconds")]
            notes = [f"{run['memory']['pss'] / MIB:.0f} MiB of all processes (PSS)"] if run["memory"] else []
            if growth:
                reports = [detail.partition(" on ")[2] for kind, detail in run["events"] if kind == "worker_memory"]
                notes = [f"{max(growth) / count / MIB:.0f} MiB each", *(reports[:1] or ["no report of memory"])]
            yield turns.line(what, next(iter(turns.seconds)), *notes)


@contextmanager
def gpu_growth(device: str) -> Iterator[list[int]]:
    """Bytes by which the GPU's use, as the driver counts it, has grown since the beginning of the block."""
    growth, before = list[int](), None if device == CPU else free_nbytes(device)

    def look() -> None:
        if before and (now := free_nbytes(device)):
            growth.append(before[0] - now[0])

    with call_repeatedly(look, LOOK_SECONDS) if before else nullcontext():
        yield growth


# --- variants of a visit ----------------------------------------------------------------------------------------------


def in_variants(
    options: Options,
    federations: Sequence[Federation],
    variants: Mapping[str, Sequence[str]],
    bases: Mapping[str, str],
    most_seconds: float = 75,
) -> Iterator[Line]:
    """Visits of one client under each variant's overrides; ``bases``: variant -> the one that it is relative to."""
    for federation, seconds in shares(federations, limit(options, most_seconds)):
        request = {
            "scenario": federation.write(options.folder, "visits"),
            "device": options.device,
            "variants": variants,
            "bases": bases,
            "seconds": seconds,
            "cycles": options.cycles(15),
            "same": [name for name in variants if name != FEDAVG],
        }
        words = module("engine_parts.steps", "visits", json.dumps(request))
        for line in lines_of(federation.name, words, seconds):
            yield replace(line, what=f"{federation.name}: {line.what}")


def graphs(options: Options) -> Iterator[Line]:
    """Captured steps."""
    if options.device == CPU:
        yield Line("CUDA graphs", NO_GPU)
        return
    plain = [CONTIGUOUS, "train.precision=fp32", LAUNCHED]
    digits = Federation(10, 0, 10, visit(50), "digits-cnn", data="digits")
    variants = {"plain": plain, "graphs": [*plain[:-1], REPLAYED]}
    yield from in_variants(options, (digits, images("cnn"), images("resnet18")), variants, {"graphs": "plain"})


def precision(options: Options) -> Iterator[Line]:
    """Precisions in both memory formats."""
    work = images("resnet18", 2, 8) if options.quick else images("resnet18")
    names = ["fp32", "tf32", "bf16"]
    if options.device == CPU:
        names.remove("tf32")
        yield Line("tf32", NO_GPU)
        if refusal := why_no_bf16(work.write(options.folder, "precision")):
            names.remove("bf16")
            yield Line("bf16", f"not measured: {refusal}")
    forms = {"": LAUNCHED} if options.device == CPU else {"": LAUNCHED, ", graphs": REPLAYED}
    variants = {
        f"{name}, {layout.partition('=')[2]}{form}": [f"train.precision={name}", layout, graphs]
        for form, graphs in forms.items()
        for name in names
        for layout in (CONTIGUOUS, CHANNELS_LAST)
    }
    first, *others = variants
    works = [work] if options.quick else [work, images("cnn")]
    yield from in_variants(options, works, variants, dict.fromkeys(others, first), 110)


def pathways(options: Options) -> Iterator[Line]:
    """Both forms of FedMLB's pathways, beside FedAvg."""
    variants, bases = {FEDAVG: [CONTIGUOUS, "train.precision=fp32"]}, dict[str, str]()
    for name in ("fp32",) if options.quick else ("fp32", "bf16"):
        each, sweep = (f"FedMLB, {form}, {name}" for form in ("each", "sweep"))
        for what in (each, sweep):
            form = what.split(", ")[1]
            variants[what] = [CONTIGUOUS, "method=fedmlb", f"train.precision={name}", f"train.pathways={form}"]
        bases |= {each: FEDAVG, sweep: each}
    works = [images("resnet18", 2, 8)] if options.quick else [images("resnet18"), images("cnn")]
    yield from in_variants(options, works, variants, bases)


PARTS: dict[str, Part] = {
    "tests": tests,
    "workers": workers,
    "graphs": graphs,
    "precision": precision,
    "pathways": pathways,
}

if __name__ == "__main__":
    sys.exit(main(__doc__, PARTS, device="cuda:0", total_seconds=TOTAL_SECONDS, empty_cache=True))
