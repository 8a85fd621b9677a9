"""What this machine has that a run needs: cores, memory, GPUs, versions, data sets. Looks, and changes nothing."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import psutil
from rich.console import Console
from rich.table import Table

from coordinator.pool import MAX_SOCKET_PATH_NBYTES
from costmodel.units import format_bytes
from edge.data.find import ENVIRONMENT, find_data
from edge.data.sets import DATASETS
from scenarios.host import PACKAGES, cache_folder, default_workers

GPU_MODELS = Path("/proc/driver/nvidia/gpus")
SOCKET_NAME_NBYTES = len("/fedbr-abcdefgh/pool")


def examine() -> dict[str, Any]:
    """What ``doctor --json`` prints."""
    memory, cache = psutil.virtual_memory(), cache_folder()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "cores": default_workers(),
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "gpus": gpus(),
        "platform": platform.platform(),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in ("fedbr-edge", *PACKAGES)},
        "data": {name: find_data(name, None, cache) for name in DATASETS},
        "data_folder": os.environ.get(ENVIRONMENT),
        "cache": {"folder": str(cache), "bytes": folder_nbytes(cache)},
        "free_disk_bytes": shutil.disk_usage(Path.cwd()).free,
        "open_files": {"soft": soft, "hard": hard},
        "sockets": {"folder": tempfile.gettempdir(), "problem": socket_problem(Path(tempfile.gettempdir()))},
    }


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs, as the driver tells them; device files where it tells nothing."""
    names = []
    for file in sorted(GPU_MODELS.glob("*/information")):
        found = [line.partition(":")[2].strip() for line in file.read_text().splitlines() if line.startswith("Model:")]
        names += found
    return names or sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))


def folder_nbytes(folder: Path) -> int:
    """Bytes of all files below a folder; 0 if there is none."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def socket_problem(folder: Path) -> str | None:
    """Why workers could not be reached through sockets in this folder; None if they can."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return "not writable"
    if len(os.fsencode(folder)) + SOCKET_NAME_NBYTES > MAX_SOCKET_PATH_NBYTES:
        return "its path is too long for a socket; set TMPDIR to a shorter folder"
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def show(found: Mapping[str, Any], stream: IO[str] | None = None) -> None:
    """`examine` for people."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows(found):
        table.add_row(name, text)
    Console(file=stream or sys.stdout, highlight=False, markup=False).print(table)


def rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(what, in words)"""
    yield "cores", str(found["cores"])
    yield "memory", f"{format_bytes(found['memory_bytes'])}, {format_bytes(found['memory_available_bytes'])} available"
    yield "GPUs", ", ".join(found["gpus"]) or "none"
    yield "platform", found["platform"]
    for name, number in found["versions"].items():
        yield f"  {name}", number or "not installed"
    yield "data folder", found["data_folder"] or f"${ENVIRONMENT} is not set"
    for name, place in found["data"].items():
        yield f"  {name}", place or "not found"
    yield "cache", f"{found['cache']['folder']}, {format_bytes(found['cache']['bytes'])}"
    yield "free disk here", format_bytes(found["free_disk_bytes"])
    yield "open files", f"{found['open_files']['soft']} (at most {found['open_files']['hard']})"
    yield "sockets", f"{found['sockets']['folder']}: {found['sockets']['problem'] or 'writable'}"
