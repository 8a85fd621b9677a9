"""Memory of a process and all that descend from it, watched while it works. Peaks are of sums, never sums of peaks."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.engine_parts.tools import PROCESS_SECONDS, ROOT, parsed

SECONDS = 0.2
"""Between two looks"""
MOST_SHARE = 0.05
"""Of one core, that looking may take: the kernel walks the pages of every process"""
MIB = 1 << 20


@dataclass
class Peak:
    """The largest sums over processes, in bytes."""

    pss: int = 0
    """Proportional set size: a page that n processes share counts 1/n in each"""
    anonymous: int = 0
    """Of it, what is not a mapped file such as the data set or a library"""


def watched(words: Sequence[str], **environment: str) -> tuple[Any, Peak]:
    """`tools.answer`, and the peak of the process and its descendants."""
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak, is_over = Peak(), threading.Event()
    watcher = threading.Thread(target=watch, args=(process.pid, peak, is_over))
    watcher.start()
    try:
        out, complaints = process.communicate(timeout=PROCESS_SECONDS)
    finally:
        is_over.set()
        watcher.join()
        process.kill()
        process.wait()
    return parsed(words, process.returncode, out, complaints), peak


def watch(pid: int, peak: Peak, is_over: threading.Event) -> None:
    """Note the peak of a process and its descendants until ``is_over``."""
    pause = SECONDS
    while not is_over.wait(pause):
        started = time.thread_time()
        now = [_rollup(each) for each in (pid, *_descendants(pid))]
        peak.pss = max(peak.pss, sum(one.pss for one in now))
        peak.anonymous = max(peak.anonymous, sum(one.anonymous for one in now))
        pause = max(SECONDS, (time.thread_time() - started) / MOST_SHARE)


def _descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _rollup(pid: int) -> Peak:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return Peak()  # it has just ended
    kib = {words[0].rstrip(":"): int(words[1]) for words in map(str.split, lines)}
    return Peak(1024 * kib["Pss"], 1024 * (kib["Pss_Anon"] + kib["Pss_Shmem"]))
