"""Costs of training on a GPU, in one call of at most nine minutes: ``python benchmarks/gpu.py --out FOLDER``.

``make install`` prepares a machine that has Python 3.11 or 3.12 and a package index; then ``.venv/bin/python`` runs
this. Where another Python has the packages of pyproject.toml already, that one does, from the root of the repository.
Data need not be there: examples are random, or scikit-learn's.

tests     the tests that need a GPU, and those of the code around it (pytest)
workers   1, 2, 4 and 8 workers on one GPU: seconds per visit, memory of each
graphs    steps as they are, and replayed from CUDA graphs
precision fp32, tf32 and bf16, in both memory formats
pathways  FedMLB's pathways one after the other, and as one sweep
cohort    a cohort as one batched model (torch.func), and its clients one after the other

Each part has its own limit; one that fails is reported, and the others go on. Exits with 1 if one failed. Prints the
tables as Markdown; ``--out`` gets them as gpu.md and gpu.json, and gpu-tests.log if tests failed.
``--device cpu --quick`` tries it in small without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

try:
    from benchmarks.engine_parts.tools import CORES, cpu_name, why_no_bf16
    from benchmarks.gpu_parts.children import ended, module, rows_of
    from benchmarks.gpu_parts.report import NO_GPU, Row, markdown
    from benchmarks.gpu_parts.workloads import IMAGES, Workload
    from edge.protocol.config import CPU
    from edge.runtime.gpu_memory import driver_table
except ModuleNotFoundError as missing:
    sys.exit(f"{missing}; run `make install`, and then .venv/bin/python benchmarks/gpu.py")

T = TypeVar("T")
TOTAL_SECONDS = 530.0
"""No child begins or goes on later, so that the tables are written within nine minutes."""
TESTS = (
    "tests/cuda",
    "tests/edge/runtime/test_gpu_share.py",
    "tests/edge/runtime/test_gpu_memory.py",
    "tests/edge/training/test_cuda_graphs.py",
    "tests/scenarios/config/test_device_defaults.py",
)
CONTIGUOUS, CHANNELS_LAST = "train.memory_format=contiguous", "train.memory_format=channels_last"
MAIN_FORM = "fp32, contiguous"
FEDAVG = "FedAvg"


@dataclass(frozen=True)
class Call:
    """How the parts are to work."""

    device: str
    quick: bool
    folder: Path
    """For scenarios; removed at the end."""
    out: Path | None = None
    """For what stays"""

    @property
    def cycles(self) -> int:
        """Most turns through variants."""
        return 2 if self.quick else 15

    @property
    def has_gpu(self) -> bool:
        """Whether it is one that is measured."""
        return self.device != CPU


@dataclass(frozen=True)
class Part:
    """One table."""

    head: str
    """What its columns mean"""
    limit_seconds: float
    measure: Callable[[Call, float], Iterator[Row]]
    """(call, seconds that it has) -> rows"""


def tests(call: Call, seconds: float) -> Iterator[Row]:
    """The CUDA part of the suite."""
    if not call.has_gpu:
        yield Row("tests", note=NO_GPU)
        return
    words = [sys.executable, "-m", "pytest", "-q", "-rfEs", "--tb=short", "-p", "no:cacheprovider", *TESTS]
    started = time.monotonic()
    code, output = ended(words, seconds)
    lines = [each for each in output.splitlines() if each.strip()]
    for line in lines:
        if line.startswith(("FAILED", "ERROR", "SKIPPED")):
            yield Row(line.split(" - ")[0], note=line.partition(" - ")[2], failed=not line.startswith("SKIPPED"))
    verdict = "ended after its limit" if code is None else (lines or ["no output"])[-1].strip("= ")
    yield Row("all", (time.monotonic() - started,), note=verdict, failed=code != 0)
    if code != 0 and call.out is not None:
        (call.out / "gpu-tests.log").write_text(output)


def workers(call: Call, seconds: float) -> Iterator[Row]:
    """More and more workers."""
    small = Workload("digits-cnn", "digits", 8 if call.quick else 32, 0, 10)
    large = Workload("resnet18", IMAGES, 2 if call.quick else 16, 20 if call.quick else 100, 1 if call.quick else 5)
    counts = (1, 2) if call.quick else (1, 2, 4, 8)
    works = [small] if call.quick else [small, large]
    for work, share in shares(works, seconds):
        request = {
            "toml": work.written(call.folder, "workers"),
            "device": call.device,
            "counts": counts,
            "rounds": 2 if call.quick else 5,
            "clients": work.clients,
            "name": work.name,
            "seconds": share,
        }
        yield from rows_of(work.name, module("workers", request), share)


def graphs(call: Call, seconds: float) -> Iterator[Row]:
    """Captured steps."""
    if not call.has_gpu:
        yield Row("CUDA graphs", note=NO_GPU)
        return
    plain = [CONTIGUOUS, "train.precision=fp32"]
    forms = {"plain": plain, "graphs": [*plain, "train.graphs=true"]}
    works = (Workload("digits-cnn", "digits", 10, 0, 50), _images("cnn"), _images("resnet18"))
    for work, share in shares(works, seconds):
        yield from _in_variants(call, "graphs", work, forms, dict.fromkeys(forms, "plain"), share)


def precision(call: Call, seconds: float) -> Iterator[Row]:
    """Precisions in both memory formats."""
    work = _images("resnet18", 8 if call.quick else None, 2 if call.quick else 20)
    names = ["fp32", "tf32", "bf16"]
    if not call.has_gpu:
        names.remove("tf32")
        yield Row("tf32", note=NO_GPU)
    formats = {"contiguous": CONTIGUOUS, "channels_last": CHANNELS_LAST}
    forms = {
        f"{name}, {layout}": [f"train.precision={name}", override]
        for name in names
        for layout, override in formats.items()
    }
    if not call.has_gpu and (refusal := why_no_bf16(Path(work.written(call.folder, "precision")))):
        yield Row("bf16", note=f"not measured: {refusal}")
        forms = {name: overrides for name, overrides in forms.items() if not name.startswith("bf16")}
    works = [work] if call.quick else [work, _images("cnn")]
    for each, share in shares(works, seconds):
        yield from _in_variants(call, "precision", each, forms, dict.fromkeys(forms, MAIN_FORM), share)


def pathways(call: Call, seconds: float) -> Iterator[Row]:
    """Both forms of FedMLB's pathways, beside FedAvg."""
    forms = {FEDAVG: ["train.precision=fp32"]}
    bases = {}
    for name in ("fp32",) if call.quick else ("fp32", "bf16"):
        for form in ("each", "sweep"):
            what = f"FedMLB, {form}, {name}"
            forms[what] = ["method=fedmlb", f"train.precision={name}", f"train.pathways={form}"]
            bases[what] = f"FedMLB, each, {name}" if form == "sweep" else FEDAVG
    works = [_images("resnet18", 8, 2)] if call.quick else [_images("resnet18"), _images("cnn")]
    forms = {name: [CONTIGUOUS, *overrides] for name, overrides in forms.items()}
    for work, share in shares(works, seconds):
        yield from _in_variants(call, "pathways", work, forms, bases, share)


def cohort(call: Call, seconds: float) -> Iterator[Row]:
    """Clients together and one by one."""
    digits = [Workload("digits-cnn", "digits", clients, 0, 10, batch=16) for clients in (4, 16, 64)]
    rows = [Workload("mlp", "breast-cancer", clients, 0, 10, batch=10) for clients in (8, 32)]
    images = [Workload("cnn", IMAGES, clients, 100, 10) for clients in (8, 64)]
    for works, share in shares([digits[:1], rows[:1]] if call.quick else [digits, rows, images], seconds):
        request = {
            "tomls": {work.clients: work.written(call.folder, "cohort") for work in works},
            "device": call.device,
            "name": works[0].name,
            "seconds": share,
            "cycles": call.cycles,
        }
        yield from rows_of(works[0].name, module("cohort", request), share)


def shares(works: Sequence[T], seconds: float) -> Iterator[tuple[T, float]]:
    """Each with its seconds: an equal part of those that the earlier ones have left."""
    until = time.monotonic() + seconds
    for number, work in enumerate(works):
        yield work, (until - time.monotonic()) / (len(works) - number)


def _images(model: str, width: int | None = None, steps: int = 20) -> Workload:
    """One client with random images."""
    return Workload(model, IMAGES, 1, 20 * steps, steps, width=width)


def _in_variants(
    call: Call, part: str, work: Workload, forms: dict[str, list[str]], bases: dict[str, str], seconds: float
) -> Iterator[Row]:
    request: dict[str, Any] = {
        "toml": work.written(call.folder, part),
        "device": call.device,
        "steps": work.steps,
        "variants": forms,
        "bases": {name: base for name, base in bases.items() if name != base},
        "seconds": seconds,
        "cycles": call.cycles,
        "prefix": f"{work.name}: ",
        "same": [name for name in forms if name != FEDAVG],
    }
    yield from rows_of(work.name, module("visits", request), seconds)


STEP = "Seconds of a step, in visits with their batches, download and upload; memory of a visit beside what is there."
PARTS = {
    "tests": Part("The tests that need a GPU, and those of the code around it.", 80, tests),
    "workers": Part("Seconds of a visit: those of a round per client of it. Memory of one worker.", 150, workers),
    "graphs": Part(STEP, 75, graphs),
    "precision": Part(STEP, 75, precision),
    "pathways": Part(STEP, 75, pathways),
    "cohort": Part("Seconds of a client's visit; memory of the cohort's visits.", 75, cohort),
}


def chosen_parts(text: str) -> list[str]:
    """``tests,graphs`` as a list; argparse's error for any other name."""
    chosen = text.split(",")
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: must be some of {','.join(PARTS)}")
    return chosen


def machine(device: str) -> dict[str, Any]:
    """What the figures were measured on."""
    gpus = driver_table("--query-gpu=name,driver_version,memory.total").strip().splitlines()
    versions = {}
    for name in ("torch", "numpy", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "device": device,
        "gpus": gpus,
        "cpu": cpu_name(),
        "cores": CORES,
        "python": platform.python_version(),
        "versions": versions,
        "load_before": os.getloadavg()[0],
    }


def measure(names: list[str], call: Call) -> dict[str, list[Row]]:
    """The rows of these parts, within `TOTAL_SECONDS`; each part is reported on stderr as it ends."""
    began, found = time.monotonic(), dict[str, list[Row]]()
    for name in names:
        left = TOTAL_SECONDS - (time.monotonic() - began)
        seconds = min(PARTS[name].limit_seconds, left)
        if seconds < 1:
            found[name] = [Row(name, note="not measured: the time was up", failed=True)]
            continue
        started = time.monotonic()
        found[name] = list(PARTS[name].measure(call, seconds))
        failures = sum(row.failed for row in found[name])
        print(f"{name}: {time.monotonic() - started:.0f} s, {failures} failures", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.py", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu to try the script (default: cuda:0)")
    parser.add_argument("--parts", type=chosen_parts, default=list(PARTS), metavar="A,B,..", help="by default all")
    parser.add_argument("--quick", action="store_true", help="everything small, to try the script; figures mean little")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write gpu.md and gpu.json there")
    arguments = parser.parse_args()
    about = machine(arguments.device)
    if arguments.device != CPU and not about["gpus"]:
        parser.error(f"--device {arguments.device}: nvidia-smi shows no GPU; --device cpu --quick tries the script")
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedbr-gpu-") as name:
        os.environ["XDG_CACHE_HOME"] = str(Path(name) / "cache")  # of children alone; removed with the folder
        found = measure(arguments.parts, Call(arguments.device, arguments.quick, Path(name), arguments.out))
    head = "; ".join(f"{key}: {value}" for key, value in about.items())
    tables = [markdown(part, PARTS[part].head, rows) for part, rows in found.items()]
    text = "\n".join(["# On a GPU" if arguments.device != CPU else "# Without a GPU", "", head, "", *tables])
    print(text)
    if arguments.out is not None:
        (arguments.out / "gpu.md").write_text(text)
        parts = {part: [row.plain for row in rows] for part, rows in found.items()}
        (arguments.out / "gpu.json").write_text(json.dumps({"machine": about, "parts": parts}, indent=1))
    return 1 if any(row.failed for rows in found.values() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
