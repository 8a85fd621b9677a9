"""FedBR Edge for Python: federated learning on heterogeneous fleets, with a virtual clock and all bytes counted.

    import fedbr

    run = fedbr.run("digits", method="fedbr", **{"train.lr": 0.05})
    run = fedbr.run("digits", model=Net, data=(x, y))  # the things themselves in the place of names
    run.accuracy                      # of the last evaluation, in [0, 1]
    run.rounds.to_pandas()            # the ledger's tables: rounds, visits, transfers, evaluations, choices
    run.plot("curves")                # a figure of the report
    run.model()                       # the global model as a torch module

Every name below does its work in the package ``scenarios.api``, which is imported at the first use of a name, so that
``import fedbr`` takes no time. torch is imported by `Run.model` and `Run.test_set` alone. `main` is the entry point of
the command ``fedbr``: it ends without a traceback at any time, whatever the current folder holds.

A process has one module of a name, and this product has four packages at the top level (`_PACKAGES`). With another
module of such a name, ``import fedbr`` or the first use of a name here says so: an ImportError if that is imported
already, a warning if it could be (docs/decisions/0014).
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = [
    "Callback",
    "CommittedRound",
    "DataError",
    "DrawnFigure",
    "MLflow",
    "ReportError",
    "Run",
    "RunCollection",
    "RunDifference",
    "RunEntry",
    "RunFailed",
    "RunList",
    "ScenarioError",
    "TensorBoard",
    "__version__",
    "audit",
    "check",
    "compare",
    "dataset",
    "decide",
    "diff",
    "explain",
    "flower",
    "list",
    "ls",
    "measure",
    "open",
    "replay",
    "report",
    "reproduce",
    "resume",
    "run",
    "stress",
    "sweep",
]

_PACKAGES = ("coordinator", "costmodel", "edge", "scenarios")
_WAY_OUT = "rename it, or use fedbr in a process of its own, such as the command fedbr"


def _refuse_others() -> None:
    """ImportError if this process has imported another module under the name of a package of ours."""
    for name in _PACKAGES:
        if name in sys.modules:
            from pathlib import Path

            module = sys.modules[name]
            place = getattr(module, "__file__", None) or ", ".join(getattr(module, "__path__", ["nowhere"]))
            if Path(place).resolve() != Path(__file__).resolve().parents[1] / name / "__init__.py":
                other = f"this process has imported another module of that name, {place}"
                raise ImportError(f"fedbr has a package {name!r}, and {other}: {_WAY_OUT}")


def _warn_of_others() -> None:
    """Warn of modules that ``import`` would have found under the names of our packages, and will not any more."""
    from pathlib import Path
    from warnings import warn

    for folder in dict.fromkeys(Path(entry or ".").resolve() for entry in sys.path):
        for name in _PACKAGES if folder != Path(__file__).resolve().parents[1] else ():
            for module in (folder / f"{name}.py", folder / name / "__init__.py"):
                if module.is_file():
                    text = f"{module} has the name of a package of fedbr, and 'import {name}' gives that from now on"
                    warn(f"{text}: {_WAY_OUT}", RuntimeWarning, stacklevel=3)


_refuse_others()
_HOMES = {
    **dict.fromkeys(
        ("RunList", "check", "diff", "explain", "list", "ls", "measure", "replay", "resume", "run", "stress"),
        "scenarios.api.calls",
    ),
    **dict.fromkeys(
        ("RunCollection", "audit", "compare", "decide", "open", "report", "reproduce", "sweep"),
        "scenarios.api.experiments",
    ),
    **dict.fromkeys(("Callback", "CommittedRound"), "scenarios.api.callbacks"),
    "DataError": "edge.data.registry",
    "dataset": "edge.data.arrays",
    "DrawnFigure": "scenarios.api.figures",
    "flower": "scenarios.api.flower",
    "MLflow": "scenarios.api.mlflow",
    "ReportError": "scenarios.config.errors",
    "Run": "scenarios.api.run",
    "RunDifference": "scenarios.studies.run_difference",
    "RunEntry": "scenarios.studies.run_list",
    "RunFailed": "coordinator.rounds.run",
    "ScenarioError": "scenarios.config.errors",
    "TensorBoard": "scenarios.api.tensorboard",
}
"""Name -> the module that has it"""
_SUCCESSORS = {
    "budget": 'sweep(.., at={"bytes": "1 MB,2 MB"})',
    "check_plugin": "check(plugin=ROW)",
    "tune": 'sweep(.., judge="validation")',
    "verify": "diff(run, again=True)",
}
"""Earlier name -> the call that is in its place"""
_OTHER_NAMES = {"list": "list_rows", "open": "open_folder"}
_MODULES = {"flower"}
"""Names that are modules themselves"""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedbr-edge")
    if name in _SUCCESSORS:
        raise AttributeError(f"fedbr.{name} is now fedbr.{_SUCCESSORS[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedbr' has no attribute {name!r}")
    _refuse_others()
    if "scenarios" not in sys.modules:
        _warn_of_others()
    _load_packages().add_current_folder()
    try:
        module = import_module(_HOMES[name])
        found = module if name in _MODULES else getattr(module, _OTHER_NAMES.get(name, name))
        globals()[name] = found
    except ModuleNotFoundError as error:
        extra = name.lower()
        if name not in ("MLflow", "TensorBoard") or error.name is None or error.name.split(".")[0] != extra:
            raise
        raise ImportError(f"fedbr.{name} needs {extra}: pip install 'fedbr-edge[{extra}]'") from error
    return found


def __dir__() -> list[str]:
    return __all__


_STOPPED = 4
"""Exit code of a command that its user stops, as in `scenarios.cli.options`"""


def main() -> None:
    """Run a command line; exit codes as of `scenarios.cli.main`."""
    try:
        _load_packages()
        from scenarios.cli.main import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        print("fedbr: stopped", file=sys.stderr)
        sys.exit(_STOPPED)


def _load_packages() -> ModuleType:
    """`scenarios.config.search_path`, which searches users' folders last, even if one has a module of our names."""
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    try:
        from scenarios.config import search_path
    finally:
        del sys.path[0]
    search_path.protect()
    return search_path
