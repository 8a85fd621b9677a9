"""Processes of ``benchmarks/gpu.py``, each with a limit: their lines so far are kept where one fails or is too slow.

A child prints one JSON object per line, a `Row`'s fields, as soon as it knows them. All else that it prints is shown if
it fails. At its limit it is ended with all processes of its session, which are its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.report import Row, row

ROOT = Path(__file__).parent.parent.parent
LAST_LINES = 3
"""Of a failed child's output, in its row"""


def module(name: str, request: dict[str, Any]) -> list[str]:
    """A module of this folder as a process, with its request."""
    return [sys.executable, "-m", f"benchmarks.gpu_parts.{name}", json.dumps(request)]


def rows_of(what: str, words: Sequence[str], limit_seconds: float) -> Iterator[Row]:
    """The rows that a child prints; a last one that says why, if it fails or reaches its limit."""
    code, output = ended(words, limit_seconds)
    lines = output.splitlines()
    found = [each for each in map(parsed, lines) if each is not None]
    yield from found
    if code is None:
        yield Row(what, note=f"ended after its limit of {limit_seconds:.0f} s", failed=True)
    elif code:
        said = " / ".join([each for each in lines if each.strip() and parsed(each) is None][-LAST_LINES:])
        yield Row(what, note=f"ended with {code}: {said}", failed=True)


def parsed(text: str) -> Row | None:
    """The row on a line, or None for any other line."""
    if not text.startswith('{"what"'):
        return None
    with contextlib.suppress(ValueError, TypeError):
        return row(json.loads(text))
    return None


def tell(found: Row) -> None:
    """In a child: print a row."""
    print(json.dumps(asdict(found)), flush=True)


def ended(words: Sequence[str], limit_seconds: float) -> tuple[int | None, str]:
    """(exit code, or None at the limit; stdout and stderr) of a child in a session of its own."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        child = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | None = child.wait(max(1.0, limit_seconds))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # workers of a child that has ended are gone, or end now
            child.wait()
        output.seek(0)
        return code, output.read()
