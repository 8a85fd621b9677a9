"""``fedbr`` in a process that harms itself, or its disk, when one named function is called for the n-th time.

``python -m tests.scenarios.meddler HARM MODULE:FUNCTION before|after N WORD...``, where HARM is ``kill``,
``interrupt`` (as by Ctrl-C), ``fill=FOLDER`` (until nothing more fits on its disk), ``seal=FOLDER`` (a disk that can
only be read is mounted over it), or, for a run that is at work in it, ``move=FOLDER`` (to ``FOLDER-moved``),
``remove=FOLDER``, or ``replace=FOLDER`` (moved, and a copy takes its place).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def harm(what: str) -> None:
    kind, _, folder = what.partition("=")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "interrupt":
        signal.raise_signal(signal.SIGINT)
    elif kind == "fill":
        fill(Path(folder))
    elif kind == "remove":
        shutil.rmtree(folder)
    elif kind in ("move", "replace"):
        Path(folder).rename(f"{folder}-moved")
        if kind == "replace":
            shutil.copytree(f"{folder}-moved", folder)
    else:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", folder], check=True)


def fill(folder: Path) -> None:
    try:
        with (folder / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    except OSError:
        pass


def meddle(what: str, named: str, when: str, number: int) -> None:
    module, _, name = named.partition(":")
    *path, last = name.split(".")
    place: Any = import_module(module)
    for part in path:
        place = getattr(place, part)
    real, calls = getattr(place, last), 0

    def meddled(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        is_now = calls == number
        if is_now and when == "before":
            harm(what)
        result = real(*args, **options)
        if is_now and when == "after":
            harm(what)
        return result

    setattr(place, last, meddled)


if __name__ == "__main__":
    from scenarios.cli.main import main

    what, named, when, number, *words = sys.argv[1:]
    meddle(what, named, when, int(number))
    sys.argv = ["fedbr", *words]
    main()
