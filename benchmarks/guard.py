"""Records what a refactoring must not change, and compares.

``python benchmarks/guard.py write FILE.json [--parts methods,servers,codecs,tiers,..]``
``python benchmarks/guard.py compare FILE.json [--parts ...] [--results-only]``

methods   short runs of the scenario ``digits``: one per row of ``fedbr list methods``, and one of three parts joined;
          synchronous, with the server optimizer ``plain``, updates summed in client order, and 2 worker processes
servers   fedavg with every other server optimizer
policies  fedavg in every other round policy, and fedbr in the two asynchronous ones
sums      fedavg with ``aggregate.sum = "fixed_point"``
codecs    chains of every class upwards, downwards, by slot and behind each other, and levels by round and client
tiers     aggregators: in two levels, every other round, by seconds, asynchronous, drawn, with codecs and SCAFFOLD
submodels heterofl, fedrolex, fjord and depthfl, whose rates are clients' or drawn, or follow from memory or a deadline
charged   evaluations on clients that take their time, of global models, own ones and parts
budgets   runs that a budget ends between two rounds or within one, on each kind of amount, and by client
fleet     clients that come and go, crash, and share access links whose bandwidth varies: synchronous, and fedbuff
workers   fedbr with 1 and with 3 worker processes
killed    a SIGKILL of the coordinator after its first rounds, then ``fedbr resume``: synchronous, and fedbuff
commands  virtual facts of ``decide``, ``audit``, ``stress``, ``replay``, ``replay --measure`` and ``diff --again``
check     the whole of ``fedbr check NAME --json`` for every shipped scenario, without the place of its data; resident
          memory is not compared

Of a run it records the summary that ``--json`` prints, without wall-clock seconds and paths; a digest of each virtual
column of the ledger, of ``evaluations`` one of its values without their names; and, apart from these results, the last
hash of the chain, which ``--results-only`` leaves out, as it does hashes of files. The cache is empty at first, so that
nothing which was computed before is read; data sets are those of $FEDBR_DATA, and scenarios whose data are not there
are recorded as skipped, with the reason.

It uses the commands and the ledger's tables only, so that it works on either side of a rename. Both sides need the
same machine, libraries and data sets. ``compare`` exits with 1 and names the first differences; both exit with 1 if a
command fails. Of CPU time, codecs, tiers, charged and budgets take 4 minutes together, submodels and commands 5 (4 min
5 s and 4 min 34 s on two cores that did other work as well), and all others 3.5.
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
TABLES = {
    "rounds": "round",
    "visits": "visit",
    "transfers": "visit, direction, slot, key",
    "payload_shapes": "rowid",
    "conditions": "visit",
    "logged": "rowid",
    "aggregators": "round, tier, aggregator, direction, start_s",
    "states": "round, client",
    "client_vectors": "round, client, slot",
    "checkpoints": "round",
    **dict.fromkeys(("choices", "ifca", "pfedmb", "fedfomo", "fedamp"), "rowid"),
}
"""Tables and views with virtual columns -> the order of their rows."""
HOST_KEYS = re.compile(
    r"data|folder|report|device|workers|.*_dir|wall_.*|.*_wall_seconds|cpu_seconds|seconds_per_round|.*peak_bytes.*"
    r"|memory.*|disk.*|(visits|nbytes)_per_second|machine_change|source_change|setup_seconds|.*_cpu_seconds.*"
    r"|clock_share|growth_.*|worker_p.*|resident_nbytes|descriptors|nbytes_sent|nbytes_received"
)
"""Keys of what commands print that say where, how fast and on which machine."""
HASHES = (" > chain", " > column files", " > column file", " > column sha256")
"""Hashes of chains and files, and the names of these."""
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
FOUR_BITS = 'codec.up={kind="quantize",bits=4}'
CODECS: dict[str, tuple[str, ...]] = {
    "up": ('codec.up=[{kind="topk",ratio=0.2},{kind="fp16"}]',),
    "up, without feedback": ("codec.up.kind=topk", "codec.up.ratio=0.2", "codec.error_feedback=false"),
    "up, rotating": ('codec.up=[{kind="randk",ratio=0.2},{kind="quantize"}]', "codec.min_values=1000"),
    "up, powersgd": ("codec.up.kind=powersgd",),
    "up, sign": ("codec.up.kind=sign", "rounds.policy=over_select"),
    "up, fedbuff": (FOUR_BITS, *POLICIES["fedbuff"]),
    "down": ('codec.down=[{kind="topk",ratio=0.5}]',),
    "both, weights": (FOUR_BITS, "codec.down.kind=bf16", "codec.of=weights"),
    "elias": ('codec.up=[{kind="quantize",levels=3,norm="l2"},{kind="elias"}]',),
    "zstd": ('codec.up=[{kind="ternary"},{kind="zstd"}]', "codec.down.kind=fp16"),
    "levels": (FOUR_BITS, "codec.levels.by_round=true", "codec.levels.by_client=true"),
    "slots, scaffold": (
        *(FOUR_BITS, "codec.down.kind=fp16", 'codec.up_slots={control={kind="quantize",bits=8}}'),
        'codec.down_slots={control={kind="fp16"}}',
    ),
}
ONE_TIER = "fleet.tiers={count=3,price=2}"
TIERS: dict[str, tuple[str, ...]] = {
    "each round": (ONE_TIER, "server=fedadam"),
    "interval": (ONE_TIER, "tiers.interval=2", "eval.aggregators=true", "eval.on=both"),
    "seconds": (ONE_TIER, "tiers.interval=1 s"),
    "two levels": ("fleet.tiers={count=4,price=2,above={count=2,price=1}}", "tiers.interval=[2,2]", FOUR_BITS),
    "drawn": (ONE_TIER, "tiers.participants=2", "codec.wan.kind=fp16", "fleet.tiers.assign=mixed"),
    "away": (
        *(ONE_TIER, "fleet.tiers.on_loss=move", "fleet.tiers.availability.kind=renewal"),
        *("fleet.tiers.availability.on=1 s", "fleet.tiers.availability.off=1 s"),
    ),
    "asynchronous": (ONE_TIER, "fleet.server={down=inf,up=inf}", "tiers.upwards=asynchronous", "codec.wan.kind=bf16"),
    "interval, fedbr": (ONE_TIER, "tiers.interval=2", "aggregate.sum=fixed_point"),
    "interval, scaffold": (ONE_TIER, "tiers.interval=2"),
}
RATES: dict[str, tuple[str, ...]] = {
    "client": ("submodel.rate=client", "eval.on=both"),
    "round": ("submodel.rate=round", FOUR_BITS),
    "memory": ("submodel.rate=memory", "rounds.policy=over_select"),
    "deadline": ("submodel.rate=deadline", *POLICIES["deadline"]),
}
CHARGED, BOTH = "eval.charged=true", "eval.on=both"
EVALUATED: dict[str, tuple[str, ...]] = {
    "fedavg": (
        BOTH,
        "data.validation=0.2",
        "eval.select=validation",
        'eval.metrics=["accuracy","loss","class-accuracy"]',
    ),
    "fedbr": (BOTH, "rounds.policy=over_select", "fleet.crashes_per_hour=600"),
    "fedper": ("eval.adapt.epochs=1", "eval.on=clients"),
    "ifca": (*POLICIES["deadline"], "eval.on=clients"),
    "fjord": (
        BOTH,
        "submodel.rate=round",
    ),
    "heterofl": (BOTH, "submodel.rate=client", "model.norm=batch"),
    "depthfl": (BOTH, "submodel.rate=client", "budget.virtual_seconds=2 s"),
}
WITHIN = "rounds.min_fraction=0.2"
BUDGETS: dict[str, tuple[str, ...]] = {
    "bytes": ("budget.bytes=1500 kB",),
    "bytes, within": ("budget.bytes=1500 kB", WITHIN),
    "bytes, within, elias": ('codec.up=[{kind="quantize"},{kind="elias"}]', "budget.bytes_up=90 kB", WITHIN),
    "seconds": ("budget.virtual_seconds=1500 ms",),
    "seconds, within": ("budget.virtual_seconds=1700 ms", WITHIN),
    "joules, within": ("budget.joules=36 J", WITHIN),
    "client budgets": ("budget.client.bytes=250 kB", WITHIN),
    "charged": ("budget.bytes=2900 kB", WITHIN, CHARGED, BOTH),
    "fedbuff": ("budget.bytes=1500 kB", *POLICIES["fedbuff"]),
    "wan_bytes": (ONE_TIER, "tiers.interval=2", "budget.wan_bytes=1 MB"),
    "price": (ONE_TIER, "fleet.server={down=inf,up=inf}", "tiers.upwards=asynchronous", "budget.price=0.001"),
    "seconds, tiers": (ONE_TIER, "budget.virtual_seconds=1500 ms", WITHIN),
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
    return ["run", "digits", *values, "--workers", str(workers), "--no-report"]


# --- the parts: name -> command ---------------------------------------------------------------------------------------

Commands = Iterator[tuple[str, *tuple[list[str], ...]]]
"""(name, command), or with the run before it that the command reads"""


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


def submodels() -> Commands:
    for method in ("heterofl", "fedrolex", "fjord", "depthfl"):
        for rate, keys in RATES.items():
            yield f"{method}, {rate}", words(*keys, method=method)


def commands() -> Commands:
    grid = ["decide", "digits", *SHORT, "rounds.max=4", "--draws", "2", "--seeds", "2", "--no-report"]
    two = "method=fedavg,fedprox"
    yield "decide", [*grid, two, 'codec.up=none,{kind="quantize",bits=4}', "--target", "0.5", "--budget", "bytes=2 MB"]
    yield "decide, tiers", [*grid, two, ONE_TIER, "tiers.interval=1,2", "--budget", "price=0.001"]
    yield "decide, parts", [*grid, "method=heterofl", "submodel.rate=client,0.5", "--budget", "joules=40 J"]
    scale = ["--clients", "200", "--participants", "20", "--rounds", "3", "--workers", "1"]
    stress = ["stress", "digits", *scale]
    yield "stress", [*stress, "method=fedbr"]
    yield "stress, fedbuff", [*stress, "method=fedavg", "rounds.policy=fedbuff"]
    yield "stress, tiers", [*stress, "method=fedavg", ONE_TIER]
    tiers = words(*TIERS["two levels"])
    slots = words(*CODECS["slots, scaffold"], method="fedavg+scaffold")
    yield "audit", words(*CODECS["elias"]), ["audit", "RUN"]
    yield "audit, charged", words(CHARGED, BOTH), ["audit", "RUN"]
    yield "replay", slots, ["replay", "RUN", "fleet.server.up=2 Mbit/s"]
    yield "replay, tiers", tiers, ["replay", "RUN", "fleet.scale.links=0.5"]
    yield "replay, draws", words(*BUDGETS["bytes, within"]), ["replay", "RUN", "--draws", "3"]
    yield "verify", slots, ["diff", "--again", "RUN", "--workers", "2"]
    yield "verify, tiers", tiers, ["diff", "--again", "RUN", "--workers", "2"]
    yield "measure", words(), ["replay", "RUN", "--measure", "accuracy,class-accuracy", "--workers", "2"]
    parts = words(*RATES["client"], method="fjord")
    yield "measure, parts", parts, ["replay", "RUN", "--measure", "accuracy", "--clients", "evaluated"]


PARTS: dict[str, Callable[[], Commands]] = {
    "methods": methods,
    "servers": lambda: (
        (row["name"], words(f"server={row['name']}")) for row in fedbr("list", "servers") if row["name"] != "plain"
    ),
    "policies": policies,
    "sums": lambda: iter([("fixed_point", words("aggregate.sum=fixed_point"))]),
    "codecs": lambda: (
        (name, words(*keys, method="fedavg+scaffold" if "scaffold" in name else "fedavg"))
        for name, keys in CODECS.items()
    ),
    "tiers": lambda: (
        (
            name,
            words(*keys, method={"fedbr": "fedbr", "scaffold": "fedavg+scaffold"}.get(name.split(", ")[-1], "fedavg")),
        )
        for name, keys in TIERS.items()
    ),
    "submodels": submodels,
    "charged": lambda: ((method, words(CHARGED, *keys, method=method)) for method, keys in EVALUATED.items()),
    "budgets": lambda: ((name, words(*keys, rounds=6)) for name, keys in BUDGETS.items()),
    "fleet": lambda: iter([("sync", words(*FLEET)), ("fedbuff", words(*FLEET, *POLICIES["fedbuff"]))]),
    "workers": lambda: ((f"{count}", words(method="fedbr", workers=count)) for count in (1, 3)),
    "killed": lambda: iter(
        [("sync, fedbr", words(method="fedbr", rounds=12)), ("fedbuff", words(*POLICIES["fedbuff"], rounds=12))]
    ),
    "commands": commands,
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
        summary = virtual(summary)
        with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
            tables = {table: columns(ledger, table, order) for table, order in TABLES.items()}
            tables["evaluations"] = values(ledger)
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


def values(ledger: sqlite3.Connection) -> dict[str, Any]:
    """The number of evaluated values, and a digest of them; whose each is may be said in its name or in columns."""
    try:
        rows = ledger.execute("SELECT round, client, value, count FROM evaluations").fetchall()
    except sqlite3.OperationalError:  # a ledger has this table from its first value on
        rows = []
    text = "\n".join(sorted(json.dumps(row) for row in rows))
    return {"rows": len(rows), "values": hashlib.sha256(text.encode()).hexdigest()[:16]}


def virtual(value: Any) -> Any:
    """What a command prints, without what is this host's."""
    if isinstance(value, dict):
        return {key: virtual(inner) for key, inner in value.items() if not HOST_KEYS.fullmatch(key)}
    if isinstance(value, list):
        return [virtual(inner) for inner in value]
    return re.sub(rf"\S*{TEMPORARY}", "guard", value) if isinstance(value, str) else value


def printed(*steps: list[str]) -> dict[str, Any]:
    """What the last of these commands prints of the run that the one before it makes, if there is one."""
    with tempfile.TemporaryDirectory(prefix="guard-") as out:
        for step in steps[:-1]:
            fedbr(*step, "--out", out, "--run-id", "run")
        command = [word.replace("RUN", str(Path(out, "digits", "run"))) for word in steps[-1]]
        where = ("--out", out, "--run-id", "decision", "--workers", "2") if command[0] == "decide" else ()
        said: dict[str, Any] = virtual(fedbr(*command, *where))
    return said


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
            for name, *steps in PARTS[part]():
                began = time.monotonic()
                try:
                    if part == "check":
                        entry = forecast(*steps)
                    elif part == "commands":
                        entry = printed(*steps)
                    else:
                        entry = run(*steps, to_be_killed=part == "killed")
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
    left_out = (*RESIDENT_KEYS, *(HASHES if results_only else ()))
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
