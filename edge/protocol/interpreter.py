"""Other processes of this product: ``python -P -m edge.protocol.interpreter MODULE WORD...`` runs a module as its main
one, with the search path of the process that starts it.

That path joins after the interpreter has started. Python imports ``sitecustomize`` and ``usercustomize`` at its start,
from every folder that it searches then, and a user's folders may hold such files, or modules named like those of the
standard library: nothing in them may run, or stand in for another module, because a scenario lies beside it. So
``PYTHONPATH`` has this product's own folder and what the user's own ``PYTHONPATH`` names by its whole path, and all
else is in `SEARCHED`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE = "edge.protocol.interpreter"
SEARCHED = "FEDBR_SEARCHED"
"""The variable with the search path, a list in JSON"""


def command(module: str, *words: str) -> list[str]:
    """The command line of a process that runs ``module`` on the search path of its environment (`variables`)."""
    return [sys.executable, "-P", "-m", MODULE, module, *words]


def variables(searched: Sequence[str]) -> dict[str, str]:
    """The variables of the environment by which a process of `command` searches these folders, in their order."""
    path = [str(Path(entry).absolute()) for entry in searched]
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(entry).is_absolute()]
    kept = dict.fromkeys([str(ROOT), *(entry for entry in named if entry in searched)])
    return {"PYTHONPATH": os.pathsep.join(kept), SEARCHED: json.dumps(path)}


def join(environment: Mapping[str, str] = os.environ) -> None:
    """Search the folders that an environment of `variables` names before all others; nothing without one."""
    path = json.loads(environment.get(SEARCHED, "[]"))
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]


if __name__ == "__main__":
    join()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
