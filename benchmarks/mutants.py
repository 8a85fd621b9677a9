"""How many seeded mistakes the tests find: one small change of a module at a time, against the tests beside it.

``python benchmarks/mutants.py [--tree FOLDER] [--modules a,b] [--mutants 20] [--seed 0] [--jobs 2] [--json FILE]``

Changes of code: a comparison (``<`` to ``<=``, ``==`` to ``!=``, ``in`` to ``not in``), an operator (``+`` to ``-``),
a number (n to n + 1), ``True`` to ``False``, ``min`` to ``max``, ``and`` to ``or``, a condition negated. Left alone:
types, decorators, f-strings, what is raised, asserted or logged, and ``strict`` of ``zip``. Which changes are
made follows from the seed and the text of each, so that code that stays the same keeps its mutants wherever it moves.

Mutants are made in temporary copies of the tree's tracked files. Each is tested in a process forked from one that has
imported the libraries, until its first failure; a mutant that takes much longer than the tests without it counts as
killed. Survivors are printed with file and line: holes of the tests, or changes that make no difference.

All took 9 minutes on two cores, and 43 with ``--jobs 1`` beside much other work. Exit code 1 if the tests fail without
a mutant.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import copy
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

MODULES = {
    "coordinator/aggregation/update_checks.py": ("coordinator/aggregation/test_update_checks.py",),
    "coordinator/methods/fedbr.py": ("methods/test_fedbr.py",),
    "coordinator/records/store.py": ("coordinator/records/test_store.py", "coordinator/records/test_audit.py"),
    "coordinator/rounds/asynchronous.py": ("coordinator/rounds/test_asynchronous.py",),
    "coordinator/rounds/budget.py": ("coordinator/rounds/test_budget.py",),
    "coordinator/rounds/run.py": ("coordinator/rounds/test_overlap.py", "coordinator/rounds/test_policies.py"),
    "coordinator/rounds/selection.py": ("coordinator/rounds/test_selection.py",),
    "coordinator/rounds/synchronous.py": ("coordinator/rounds/test_policies.py",),
    "coordinator/workers/assignment.py": ("coordinator/workers/test_scheduler.py",),
    "coordinator/workers/block_cache.py": ("coordinator/workers/test_block_cache.py",),
    "coordinator/workers/scheduler.py": (
        *("coordinator/workers/test_scheduler.py", "coordinator/workers/test_wrong_answers.py"),
    ),
    "coordinator/workers/task.py": ("coordinator/workers/test_rejected_messages.py",),
    "costmodel/fleet/availability.py": ("costmodel/fleet/test_availability.py",),
    "costmodel/network/fair_link.py": ("costmodel/network/test_fair_link.py",),
    "costmodel/network/water_filling.py": ("costmodel/network/test_fair_link.py",),
    "costmodel/visits/accounting.py": (
        *("costmodel/visits/test_timeline.py", "costmodel/fleet/test_dynamics.py"),
        "costmodel/visits/test_live_visit.py",
    ),
    "costmodel/visits/live_visit.py": ("costmodel/visits/test_live_visit.py", "costmodel/test_clock.py"),
    "edge/data/partition.py": ("edge/data/test_partition.py",),
    "edge/protocol/serialization.py": (
        *("edge/protocol/test_serialization.py", "edge/protocol/test_reference_decoder.py"),
    ),
    "edge/protocol/messages.py": ("edge/protocol/test_serialization.py", "edge/protocol/test_batches.py"),
    "edge/protocol/fixed_point.py": ("edge/protocol/test_fixed_point.py",),
    "edge/training/block_model.py": ("edge/training/test_block_model.py", "edge/models/test_models.py"),
    "edge/training/pathways.py": ("edge/training/test_pathways.py",),
}
"""Modules -> the tests beside them, below ``tests/``."""
PRELOADED = (
    *("hypothesis", "msgspec", "numpy", "psutil", "pyarrow.parquet", "pydantic", "pytest", "safetensors.numpy"),
    *("scipy.optimize", "scipy.stats", "simpy", "sklearn.datasets", "torch", "torch.func", "torchvision", "zmq"),
)
PYTEST = (
    *("-x", "-q", "-m", "not long", "-p", "no:cacheprovider", "-o", "timeout=0"),
    *("-W", "ignore:Module already imported"),
    "--hypothesis-profile=ci",  # without chance and without a database of examples
)
SLOWER, PATIENCE_SECONDS = 4.0, 10.0
"""A mutant may take so many times the seconds of the tests without it, and so many seconds more."""
MOST_BYTES = 8 << 30
"""Of data that a mutant may allocate."""

FORK = multiprocessing.get_context("fork")
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
COLUMNS = ("mutants", "killed", "timed_out", "seconds")
ROW = "{:48} {:>7} {:>6} {:>9} {:>7}"

Place = ast.expr | ast.stmt
SWAPPED: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.LShift, ast.RShift), (ast.BitAnd, ast.BitOr)),
)
OPERATORS = dict(SWAPPED) | {after: before for before, after in SWAPPED}
OPERATORS |= {ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitXor: ast.BitAnd}
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
LOGS = ("log.", "logger.", "logging.", "warnings.")


@dataclass(frozen=True)
class Mutant:
    """A change of one expression of a module."""

    module: str
    line: int
    span: tuple[int, int]
    """Of the expression: bytes of the file."""
    before: str
    after: str
    replacement: str
    text: str
    """The line where it begins."""

    def source(self, original: bytes) -> bytes:
        """The module with this change."""
        begin, end = self.span
        return original[:begin] + self.replacement.encode() + original[end:]

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.change}"

    @property
    def change(self) -> str:
        """In words: what becomes what, and where."""
        return f"{self.before} -> {self.after} in: {self.text}"


# --- which mutants there are ------------------------------------------------------------------------------------------


def chosen(module: str, source: bytes, count: int, seed: int) -> list[Mutant]:
    """At most ``count`` mutants of a module, by line; those that have the least hashes of seed and text."""
    seen: Counter[str] = Counter()
    ranked = []
    for mutant in mutants(module, source):
        seen[mutant.change] += 1
        key = f"{seed}: {mutant.change}: {seen[mutant.change]}"
        ranked.append((hashlib.sha256(key.encode()).digest(), mutant))
    ranked.sort(key=lambda pair: pair[0])
    return sorted((mutant for _, mutant in ranked[:count]), key=lambda mutant: (mutant.span, mutant.after))


def mutants(module: str, source: bytes) -> Iterator[Mutant]:
    """Every change that could be made of a module, in its order."""
    lines = source.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    for node in code(ast.parse(source)):
        for place, changed in changes(node):
            assert place.end_lineno is not None
            assert place.end_col_offset is not None
            span = starts[place.lineno - 1] + place.col_offset, starts[place.end_lineno - 1] + place.end_col_offset
            after = ast.unparse(changed)
            replacement = f"({after})" if isinstance(changed, ast.expr) else after
            text = lines[place.lineno - 1].decode().strip()
            yield Mutant(module, place.lineno, span, ast.unparse(place), after, replacement, text)


def code(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, without those that say nothing of what the product does."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not is_left_alone(child, name):
                yield child
                yield from code(child)


def is_left_alone(node: ast.AST, field: str) -> bool:
    """Whether nothing is to be changed in a node, which is in this field of another."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.keyword(arg="strict"):
            return True
        case ast.Expr(value=ast.Call(func=called)):
            return ast.unparse(called).lstrip("_").startswith(LOGS)
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Compare(left=ast.Name(id="__name__"))):
            return True
        case ast.BinOp(left=ast.Constant(value=str())) | ast.BinOp(right=ast.Constant(value=str())):
            return True
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return is_type(left) or is_type(right)
    return field in ("annotation", "returns", "decorator_list", "bases")


def is_type(node: ast.expr) -> bool:
    """Whether an operand of ``|`` is by its name a type, or None."""
    text = ast.unparse(node).split(".")[-1]
    return hasattr(builtins, text) or (text[0].isupper() and not text.isupper())


def changes(node: ast.AST) -> Iterator[tuple[Place, Place]]:
    """(what is replaced, by what) for each change that begins at a node."""
    match node:
        case ast.Compare(ops=operators):
            for index, operator in enumerate(operators):
                other = OPERATORS[type(operator)]()
                yield node, with_fields(node, ops=[*operators[:index], other, *operators[index + 1 :]])
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) | ast.AugAssign(op=operator):
            if type(operator) in OPERATORS:
                yield node, with_fields(node, op=OPERATORS[type(operator)]())
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, ast.Constant(value + 1 if value + 1 != value else 2 * value)
        case ast.Call(func=ast.Name(id=name) as called) if name in EXTREMES:
            yield called, ast.Name(EXTREMES[name])
        case ast.Call(func=ast.Attribute(attr=name) as called) if name in EXTREMES:
            yield called, with_fields(called, attr=EXTREMES[name])
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield from negations(test)
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield from negations(test)


def negations(test: ast.expr) -> Iterator[tuple[Place, Place]]:
    """A condition and its opposite; none where that is the same as another change."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield test, operand
        case ast.Constant():
            return
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn() | ast.Is() | ast.IsNot()]):
            return
        case _:
            yield test, ast.UnaryOp(ast.Not(), test)


def with_fields(node: Place, **fields: Any) -> Place:
    """A node like another but for these fields."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


# --- whether tests find them ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a run of tests ended; ``code`` is pytest's exit code, None: stopped at the time limit."""

    code: int | None
    seconds: float
    output: str


def tested(folder: Path, tests: Sequence[str], limit: float | None, *, keeps_bytecode: bool = False) -> Outcome:
    """Run tests of the copy in ``folder`` until the first fails, with an empty cache and temporary folder.

    Nothing that they have started in their process group goes on after ``limit`` seconds.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="t") as scratch:
        began, names = time.monotonic(), [f"tests/{name}" for name in tests]
        process = FORK.Process(target=run_pytest, args=(folder, names, scratch, keeps_bytecode))
        process.start()
        assert process.pid is not None
        process.join(limit)
        code, seconds = process.exitcode, time.monotonic() - began
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return Outcome(code, seconds, Path(scratch, "output").read_text(errors="replace"))


def run_pytest(folder: Path, tests: list[str], scratch: str, keeps_bytecode: bool) -> NoReturn:
    """What the forked process does; it ends without the exit handlers of its parent."""
    code = 3  # pytest's own, for an internal error
    try:
        os.setsid()
        with Path(scratch, "output").open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(folder)
        os.environ.update(TMPDIR=scratch, XDG_CACHE_HOME=f"{scratch}/cache", PYTHONPATH=str(folder))
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        tempfile.tempdir, sys.path[0], sys.dont_write_bytecode = scratch, str(folder), not keeps_bytecode
        code = int(importlib.import_module("pytest").main([*PYTEST, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def judged(task: tuple[Path, Mutant, float]) -> Outcome:
    """What the tests make of a mutant, within a time limit; each process changes a copy of the first copy, its own."""
    first, mutant, limit_seconds = task
    own = first.parent / f"copy-{os.getpid()}"
    if not own.exists():
        shutil.copytree(first, own, symlinks=True)
    path = own / mutant.module
    path.write_bytes(mutant.source(path.read_bytes()))
    try:
        return tested(own, MODULES[mutant.module], limit_seconds)
    finally:
        shutil.copy2(first / mutant.module, path)  # with its time, so that its bytecode is valid again


def copied(tree: Path, folder: Path) -> None:
    """The files of a checkout that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=tree, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (tree / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, folder / name)


# --- the report -------------------------------------------------------------------------------------------------------


def report(module: str, judgements: Sequence[tuple[Mutant, Outcome]]) -> dict[str, Any]:
    """Print a module's row and its survivors."""
    survivors = [mutant for mutant, outcome in judgements if outcome.code == 0]
    row = {
        "mutants": len(judgements),
        "killed": len(judgements) - len(survivors),
        "timed_out": sum(outcome.code is None for _, outcome in judgements),
        "seconds": round(sum(outcome.seconds for _, outcome in judgements), 1),
    }
    print(ROW.format(module, *row.values()), *(f"    {mutant}" for mutant in survivors), sep="\n", flush=True)
    return row | {"survivors": [asdict(mutant) for mutant in survivors]}


def measured(modules: Sequence[str], first: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rows by module; SystemExit if the tests fail without a mutant."""
    limits = {}
    for module in modules:
        outcome = tested(first, MODULES[module], None, keeps_bytecode=True)
        if outcome.code != 0:
            raise SystemExit(f"{outcome.output}\nThe tests of {module} fail without a mutant: nothing can be measured.")
        limits[module] = SLOWER * outcome.seconds + PATIENCE_SECONDS
        print(f"{module}: its tests take {outcome.seconds:.1f} s", file=sys.stderr, flush=True)
    picked = {
        module: chosen(module, (first / module).read_bytes(), options.mutants, options.seed) for module in modules
    }
    tasks = [(first, mutant, limits[module]) for module in modules for mutant in picked[module]]
    print(ROW.format("", "mutants", "killed", "timed out", "seconds"))
    with ProcessPoolExecutor(options.jobs, FORK) as pool:
        outcomes = pool.map(judged, tasks)
        return {module: report(module, [(mutant, next(outcomes)) for mutant in picked[module]]) for module in modules}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parent.parent, help="another checkout")
    parser.add_argument("--modules", help="paths or file names without .py, by default all twenty")
    parser.add_argument("--mutants", type=int, default=20, help="of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    options = parser.parse_args()
    asked = options.modules.split(",") if options.modules else list(MODULES)
    modules = [module for module in MODULES if {module, Path(module).stem} & set(asked)]
    if len(modules) < len(asked):
        parser.error(
            f"of {options.modules} only {', '.join(modules) or 'nothing'} is known; there are {' '.join(MODULES)}"
        )
    gone = [name for module in modules for name in (module, *(f"tests/{test}" for test in MODULES[module]))]
    gone = [name for name in gone if not (options.tree / name).exists()]
    if gone:
        parser.error(f"{options.tree} has no {', '.join(gone)}: MODULES has to be changed")
    os.environ |= THREADS
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as base:
        first = Path(base, "first")
        copied(options.tree, first)
        rows = measured(modules, first, options)
    total = {key: round(sum(row[key] for row in rows.values()), 1) for key in COLUMNS}
    print(ROW.format("all", *total.values()))
    if options.json:
        result = {"seed": options.seed, "total": total, "modules": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
