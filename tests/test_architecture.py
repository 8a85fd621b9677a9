"""The folders are the machines: who may import what, and what each process may load."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("coordinator", "costmodel", "edge", "scenarios")
MAY_IMPORT = {
    "costmodel": {"costmodel"},
    "edge": {"edge"},
    "coordinator": {"coordinator", "costmodel", "edge"},
    "scenarios": set(OURS),
}
ONLY_IN = {
    "torch": ("edge/",),
    "torchvision": ("edge/",),
    "flwr": ("edge/flower/", "scenarios/flower/"),
    "simpy": ("costmodel/",),
    "zmq": ("edge/runtime/", "coordinator/workers/"),
}


def names(packages: Sequence[str] = OURS) -> list[str]:
    return [str(path.relative_to(ROOT)) for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


@functools.cache
def parsed(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text())


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def imported_by(name: str) -> frozenset[str]:
    return frozenset(imports(parsed(name)))


def test_a_file_imports_only_what_its_room_may() -> None:
    for name in names():
        room = name.split("/")[0]
        for imported in imported_by(name):
            top = imported.split(".")[0]
            message = f"{name} imports {imported}"
            assert top not in OURS or top in MAY_IMPORT[room], message
            if (room == "coordinator" or name.startswith("edge/protocol/")) and top == "edge":
                assert imported.startswith("edge.protocol"), message
            if name.startswith("coordinator/workers/"):
                assert not imported.startswith(("coordinator.methods", "coordinator.rounds")), message
            assert top not in ONLY_IN or name.startswith(ONLY_IN[top]), message


def test_no_file_imports_itself_through_others_not_even_for_types() -> None:
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names()}
    graph = {}
    for name in names():
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        named = {full if full in modules else full.rpartition(".")[0] for full in imported_by(name)}
        graph[module] = (named & modules) - {module}
    TopologicalSorter(graph).prepare()  # raises CycleError


LAYERS = ("config", "run", "flower", "report", "experiment", "cluster", "studies", "papers", "api", "cli")
"""Packages of scenarios: each imports those before it."""


def test_packages_of_scenarios_import_downward_only() -> None:
    found: dict[str, set[str]] = {}
    for name in names(["scenarios"]):
        if name.count("/") < 2:
            continue
        _, package, _ = name.split("/", 2)
        others = {full.split(".")[1] for full in imported_by(name) if full.startswith("scenarios.")}
        if above := {other for other in others if LAYERS.index(other) > LAYERS.index(package)}:
            found[name.removeprefix("scenarios/")] = above
    assert found == {}


def test_the_python_interface_is_imported_by_the_commands_alone() -> None:
    users = {name for name in names() if any(full.startswith(("scenarios.api", "fedbr")) for full in imported_by(name))}
    assert {name for name in users if not name.startswith(("scenarios/api/", "scenarios/cli/"))} == set()


def test_no_test_imports_anothers() -> None:
    found = {name: [full for full in imported_by(name) if ".test_" in full] for name in names(["tests"])}
    assert {name: full for name, full in found.items() if full} == {}


def test_a_class_name_means_one_class() -> None:
    nodes = (node for name in names() for node in ast.walk(parsed(name)))
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, times in classes.items() if times > 1] == []


# --- causes of coupling -----------------------------------------------------------------------------------------------


def test_a_run_is_prepared_once_and_not_by_functions_of_scenario_and_description() -> None:
    """`scenarios.run.setup.Setup` is both, and keeps what follows from them."""
    found = []
    for name in names(["scenarios"]):
        for node in ast.walk(parsed(name)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                kinds = {ast.unparse(each.annotation) for each in arguments if each.annotation is not None}
                if {"Loaded", "ModelProfile"} <= {kind.removesuffix(" | None") for kind in kinds}:
                    found.append(f"{name}: {node.name}")
    assert found == ["scenarios/run/setup.py: of"]


def callers(called: str) -> list[str]:
    """The files that call a function or class of this name, once for each call."""
    return [
        name
        for name in names()
        for node in ast.walk(parsed(name))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == called
    ]


def test_the_codecs_of_a_run_are_made_once_on_each_side() -> None:
    own = "edge/protocol/codecs/"
    assert [name for name in callers("Codecs") if not name.startswith(own)] == [
        "edge/training/trainer.py",
        "scenarios/run/setup.py",
    ]
    for part in ("UpdateCodec", "VectorCodecs"):
        assert [name for name in callers(part) if not name.startswith(own)] == []


def test_the_files_of_a_fleet_are_read_once() -> None:
    assert callers("read_inputs") == [
        "scenarios/config/fleet_files.py",  # of costmodel.fleet.inputs
        "scenarios/report/round_figures.py",  # of a recorded run, whose method is not loaded
        "scenarios/run/setup.py",
    ]


def test_how_a_visit_differs_is_no_key_among_its_methods_choices() -> None:
    """`edge.protocol.variant.Variant` has rate, window and levels; bytes and texts alone have them by name."""
    fields = {"rate", "window", "codec levels"}
    for name in names():
        for node in ast.walk(parsed(name)):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("choice"):
                key = node.slice.value if isinstance(node.slice, ast.Constant) else None
                assert key not in fields, f"{name}:{node.lineno}"
        assert not {"edge.protocol.submodels.WINDOW", "edge.protocol.codecs.update_codec.LEVELS"} & imported_by(name)


def test_modules_take_amounts_from_their_rows() -> None:
    """`coordinator.rounds.amounts` has a row for each; the ledger's columns and budgets' keys are theirs by name."""
    of_the_ledger = "coordinator/records/"
    naming = [
        name
        for name in names()
        if not name.startswith((of_the_ledger, "tests/"))
        and any(isinstance(node, ast.Constant) and node.value == "joules" for node in ast.walk(parsed(name)))
    ]
    assert naming == [
        "coordinator/rounds/amounts.py",
        "coordinator/rounds/budget.py",
        "scenarios/config/quantities.py",  # of units: joules and watt-hours
    ]


MOST_UNTYPED = 100
"""Tables of any values in scenarios: rows of lists, scenarios and results as Python's users have them, and messages"""


def test_results_have_types() -> None:
    untyped = re.compile(r"\b(?:dict|Mapping)\[str, Any\]")
    found = {name: len(untyped.findall((ROOT / name).read_text())) for name in names(["scenarios"])}
    assert sum(found.values()) <= MOST_UNTYPED, {name: count for name, count in found.items() if count}


UNPICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve"}
"""Modules whose files can run code when they are read."""
TORCH_LOADERS = ("torch.load", "torch.serialization.load", "torch.hub.load_state_dict_from_url")


def dangers(tree: ast.Module) -> Iterator[str]:
    """Where a file might run code that it reads: modules that unpickle, and loaders that are not told not to."""
    yield from (name for name in imports(tree) if name.split(".")[0] in UNPICKLERS or name in TORCH_LOADERS)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, given = ast.unparse(node.func), {each.arg: ast.unparse(each.value) for each in node.keywords}
        is_loose = called in TORCH_LOADERS and given.get("weights_only") != "True"
        if is_loose or given.get("allow_pickle", "False") != "False":
            yield ast.unparse(node)


def test_nothing_that_is_read_can_run_code() -> None:
    assert {name: found for name in names() if (found := list(dangers(parsed(name))))} == {}


@pytest.mark.parametrize(
    ("code", "danger"),
    [
        ("import pickle", "pickle"),
        ("from joblib import load", "joblib.load"),
        ("from torch import load", "torch.load"),
        ("torch.load(path)", "torch.load(path)"),
        ("torch.load(path, weights_only=False)", "torch.load(path, weights_only=False)"),
        ("np.load(path, allow_pickle=True)", "np.load(path, allow_pickle=True)"),
    ],
)
def test_what_can_run_code_is_found(code: str, danger: str) -> None:
    assert danger in list(dangers(ast.parse(code)))


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("coordinator.workers.pool", ("torch", "simpy")),
        ("coordinator.workers.launcher, coordinator.workers.task", ("torch", "zmq")),
        ("coordinator.rounds.synchronous, coordinator.rounds.run, coordinator.methods", ("torch", "simpy", "zmq")),
        ("scenarios.cli.main", ("torch", "simpy", "matplotlib")),
        ("scenarios.config.load", ("torch",)),
        ("scenarios.config.plugin_points", ("numpy", "pydantic")),
        ("edge.protocol.messages, edge.protocol.serialization", ("torch", "zmq")),
        ("costmodel.clock", ("torch", "zmq")),
    ],
)
def test_a_process_loads_only_what_it_needs(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_the_top_level_holds_the_four_packages() -> None:
    assert {"coordinator", "edge", "costmodel", "scenarios", "tests", "pyproject.toml"} <= {
        p.name for p in ROOT.iterdir()
    }
