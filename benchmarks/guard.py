"""Records what a refactoring must not change, and compares.

``python benchmarks/guard.py write FILE.json [--parts methods,servers,policies,sums,fleet,workers,killed,check]``
``python benchmarks/guard.py compare FILE.json [--parts ...] [--results-only]``

methods   short runs of the scenario ``digits``: one per row of ``fedbr list methods``, and one of three parts joined;
          synchronous, with the server optimizer ``plain``, updates summed in client order, and 2 worker processes
servers   fedavg with every other server optimizer
policies  fedavg in every other round policy, and fedbr in the two asynchronous ones
sums      fedavg with ``aggregate.sum = "fixed_point"``
fleet     clients that come and go, crash, and share access links whose bandwidth varies: synchronous, and fedbuff
workers   fedbr with 1 and with 3 worker processes
killed    a SIGKILL of the coordinator after its first rounds, then ``fedbr resume``: synchronous, and fedbuff
check     the whole of ``fedbr check NAME --json`` for every shipped scenario, without the place of its data; resident
          memory is not compared

Of a run it records the summary that ``--json`` prints, without wall-clock seconds and paths; a digest of each virtual
column of the ledger; and, apart from these results, the last hash of the chain, which ``--results-only`` leaves out.
The cache is empty at first, so that nothing which was computed before is read; data sets are those of $FEDBR_DATA, and
scenarios whose data are not there are recorded as skipped, with the reason.

It uses the commands and the ledger's tables only, so that it works on either side of a rename. Both sides need the
same machine, libraries and data sets. ``compare`` exits with 1 and names the first differences; both exit with 1 if a
command fails. All parts take 3.5 minutes of CPU time: 5 min 45 s on two cores that did other work as well.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parent.parent
FEDBR = (sys.executable, "-m", "scenarios.cli.main")
SHORT = ("train.local_epochs=1", "stop.target_accuracy=1.0")
TABLES = {"rounds": "round", "visits": "visit", "transfers": "visit, direction, slot, key", "choices": "rowid"}
"""Tables and views with virtual columns -> the order of their rows."""
HOST_KEYS = ("run_dir", "data", "wall_seconds")
"""Keys of a run's summary that say where and how long it ran."""
RESIDENT_KEYS = (" > coordinator_nbytes", " > worker_nbytes")
"""Forecasts of memory contain the resident memory of the process that makes them."""
MOST_NAMED = 20
LIMIT_SECONDS, TEMPORARY = 120.0, r"guard-(cache-)?\w+"
OPTIONS = {
    "fedbr": ("period=2",),  # whole model, two rounds of blocks, whole model
    "fedgkd": ("buffer=2",),  # the oldest of its models is dropped
    "fedprox": ("mu=0.1",),
}
"""Options of methods whose defaults would hardly show in four rounds."""
POLICIES: dict[str, tuple[str, ...]] = {
    "over_select": ("rounds.policy=over_select",),
    "deadline": ("rounds.policy=deadline", "rounds.deadline=350 ms"),  # some clients of digits are slower
    "fedasync": ("rounds.policy=fedasync",),
    "fedbuff": ("rounds.policy=fedbuff", "rounds.buffer=3"),
}
FLEET = (
    *("fleet.gateways.count=2", "fleet.gateways.down=2 Mbit/s", "fleet.gateways.up=2 Mbit/s"),
    *("fleet.bandwidth.kind=ou", "fleet.bandwidth.tau=1 s", "fleet.bandwidth.step=100 ms"),
    *("fleet.availability.kind=renewal", "fleet.availability.on=2 s", "fleet.availability.off=1 s"),
    "fleet.crashes_per_hour=600",
)


class CommandFailedError(Exception):
    """A command of ``fedbr`` failed: which, with its exit code and its last words."""


def fedbr(*words: str) -> Any:
    """What a command prints as JSON."""
    done = subprocess.run([*FEDBR, *words, "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandFailedError(f"fedbr {' '.join(words)}: exit {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def words(*overrides: str, method: str = "fedavg", rounds: int = 4, workers: int = 2) -> list[str]:
    """The command of a short run."""
    options = [f"method_options.{option}" for part in method.split("+") for option in OPTIONS.get(part, ())]
    values = [f"method={method}", f"rounds.max={rounds}", *options, *SHORT, *overrides]
    return ["run", "digits", *values, "--workers", str(workers)]


# --- the parts: name -> command ---------------------------------------------------------------------------------------

Commands = Iterator[tuple[str, list[str]]]


def methods() -> Commands:
    for row in fedbr("list", "methods"):
        method = row["name"] if row["joins"] is None else f"fedavg+{row['name']}"
        yield method, words(method=method)
    yield "fedmlb+fedprox+feddyn", words(method="fedmlb+fedprox+feddyn")


def policies() -> Commands:
    for policy, keys in POLICIES.items():
        yield policy, words(*keys)
    for policy in ("fedasync", "fedbuff"):
        yield f"{policy}, fedbr", words(*POLICIES[policy], method="fedbr")


PARTS: dict[str, Callable[[], Commands]] = {
    "methods": methods,
    "servers": lambda: (
        (row["name"], words(f"server={row['name']}")) for row in fedbr("list", "servers") if row["name"] != "plain"
    ),
    "policies": policies,
    "sums": lambda: iter([("fixed_point", words("aggregate.sum=fixed_point"))]),
    "fleet": lambda: iter([("sync", words(*FLEET)), ("fedbuff", words(*FLEET, *POLICIES["fedbuff"]))]),
    "workers": lambda: ((f"{count}", words(method="fedbr", workers=count)) for count in (1, 3)),
    "killed": lambda: iter(
        [("sync, fedbr", words(method="fedbr", rounds=12)), ("fedbuff", words(*POLICIES["fedbuff"], rounds=12))]
    ),
    "check": lambda: ((row["name"], ["check", row["name"]]) for row in fedbr("list", "scenarios")),
}


# --- what is recorded -------------------------------------------------------------------------------------------------


def run(command: list[str], *, to_be_killed: bool) -> dict[str, Any]:
    """The results of a run, and apart from them the last hash of its chain."""
    with tempfile.TemporaryDirectory(prefix="guard-") as out:
        folder = Path(out, "digits", "run")
        command = [*command, "--out", out, "--run-id", folder.name]
        if to_be_killed:
            kill_after_a_round(command, folder / "ledger.sqlite")
            summary = fedbr("resume", str(folder), "--workers", "2")
        else:
            summary = fedbr(*command)
        summary = {key: value for key, value in summary.items() if key not in HOST_KEYS}
        with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
            tables = {table: columns(ledger, table, order) for table, order in TABLES.items()}
            (chain,) = ledger.execute("SELECT chain FROM rounds ORDER BY round DESC LIMIT 1").fetchone()
    return {"results": {"summary": summary, **tables}, "chain": chain}


def columns(ledger: sqlite3.Connection, table: str, order: str) -> dict[str, Any]:
    """The number of rows of a table, and a digest of each of its virtual columns; ``order`` is the rows' order.

    An empty table is as good as none: tables of methods are there in their runs alone.
    """
    try:
        cursor = ledger.execute(f"SELECT * FROM {table} ORDER BY {order}")
    except sqlite3.OperationalError as error:
        return {"rows": 0 if "no such table" in str(error) else str(error)}
    rows = cursor.fetchall()
    digests: dict[str, Any] = {"rows": len(rows)}
    if not rows:
        return digests
    for index, (name, *_) in enumerate(cursor.description):
        if name != "chain":
            text = json.dumps([row[index] for row in rows])
            digests[f"column {name}"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digests


def kill_after_a_round(command: list[str], ledger: Path) -> None:
    """Run a command, and end its coordinator by SIGKILL as soon as a round of its ledger is committed."""
    deadline = time.monotonic() + LIMIT_SECONDS
    with subprocess.Popen([*FEDBR, *command, "--quiet"], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and time.monotonic() < deadline and not committed(ledger):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    if process.returncode != -signal.SIGKILL or not committed(ledger):
        raise CommandFailedError(f"fedbr {' '.join(command)}: not killed between two rounds")


def committed(ledger: Path) -> int:
    """The number of rounds in a ledger that another process may be about to create."""
    if not ledger.exists():  # connecting would create it
        return 0
    with contextlib.closing(sqlite3.connect(ledger)) as connection, contextlib.suppress(sqlite3.OperationalError):
        return int(connection.execute("SELECT COUNT(*) FROM rounds").fetchone()[0])
    return 0


def forecast(command: list[str]) -> dict[str, Any]:
    """What ``fedbr check`` says, or why it lacks the data."""
    with tempfile.TemporaryDirectory(prefix="guard-") as out:
        said: dict[str, Any] = fedbr(*command, "--out", out)
    data = said["estimate"]["data"]
    # Where it was found is a path of this machine.
    return said if data.pop("found") else {"skipped": re.sub(TEMPORARY, "guard", data["warning"])}


def record(parts: list[str]) -> dict[str, dict[str, Any]]:
    """All parts, by part and name; of a command that fails, the reason.

    They are made with an empty cache: FLOPs, partitions and decoded data are computed anew.
    """
    everything: dict[str, dict[str, Any]] = {part: {} for part in parts}
    with tempfile.TemporaryDirectory(prefix="guard-cache-") as cache, mock.patch.dict(os.environ, XDG_CACHE_HOME=cache):
        for part, entries in everything.items():
            for name, command in PARTS[part]():
                began = time.monotonic()
                try:
                    entry = forecast(command) if part == "check" else run(command, to_be_killed=part == "killed")
                except CommandFailedError as error:
                    entry = {"failed": re.sub(TEMPORARY, "guard", str(error))}
                entries[name] = entry
                reason = "".join(f", {key}: {entry[key]}" for key in ("failed", "skipped") if key in entry)
                print(f"{part} {name}: {time.monotonic() - began:.1f} s{reason}", file=sys.stderr, flush=True)
    return everything


# --- comparing --------------------------------------------------------------------------------------------------------


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of all that objects and lists hold."""
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(inner, f"{path} > {key}" if path else str(key))
    else:
        yield path, value


def differences(before: dict[str, Any], after: dict[str, Any], *, results_only: bool) -> list[str]:
    """One line per value that is not the same; what was not there before is no difference.

    ``results_only``: hashes of chains, and of the files that are committed with rounds, are left out.
    """
    was, now = dict(flat(before)), dict(flat(after))
    left_out = (*RESIDENT_KEYS, *((" > chain", " > column files") if results_only else ()))
    pairs = [(path, was[path], now.get(path, "absent")) for path in was if not path.endswith(left_out)]
    return [f"{path}: {after!r} instead of {before!r}" for path, before, after in pairs if before != after]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["write", "compare"])
    parser.add_argument("file", type=Path, metavar="FILE.json")
    parser.add_argument("--parts", metavar=",".join(PARTS), help="by default all, or all that the file has")
    parser.add_argument("--results-only", action="store_true", help="compare no hashes of chains and files")
    options = parser.parse_args()
    before = json.loads(options.file.read_text()) if options.action == "compare" else None
    parts = options.parts.split(",") if options.parts else list(before or PARTS)
    unknown = [part for part in parts if part not in (before or PARTS) or part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(before or PARTS)}")
    after = record(parts)
    failed = [f"{part} {name} failed" for part in parts for name, entry in after[part].items() if "failed" in entry]
    if before is None:
        options.file.write_text(json.dumps(after, indent=1) + "\n")
        print("\n".join([*failed, f"{options.file} written"]))
        return 1 if failed else 0
    lines = differences({part: before[part] for part in parts}, after, results_only=options.results_only)
    print("\n".join([*lines[:MOST_NAMED], f"differences: {len(lines)}"]))
    return 1 if failed or lines else 0


if __name__ == "__main__":
    sys.exit(main())
