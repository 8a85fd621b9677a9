"""Types of ``fedbr.flower``, written by ``python -m tests.python_stub``."""

from collections.abc import Mapping
from typing import Any, Unpack

from scenarios.api import values
from scenarios.api.callbacks import Callbacks
from scenarios.api.calling import Folder
from scenarios.api.flower import export as export
from scenarios.api.keys import KeysButFleet
from scenarios.api.run import Run as Run
from scenarios.config.tables import TomlValue

def run(
    app: Folder | Any,
    client_app: Any = None,
    *,
    fleet: values.Scenario = "digits",
    run_config: Mapping[str, TomlValue] | None = None,
    out: Folder = "runs",
    run_id: str | None = None,
    allow_code: bool = False,
    on: str | None = None,
    time_limit: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    on_round: Callbacks = (),
    **overrides: Unpack[KeysButFleet],
) -> Run:
    """Run a Flower app, unchanged, on the clock of a fleet.

    ``app``: its folder; or a ServerApp, with the ``client_app`` beside it, both of which a module must define that can
    be imported. ``fleet``: the scenario whose fleet, budgets and number of clients are taken. ``run_config``: values in
    place of those of the app. Errors as of `fedbr.run`.

    Args:
        out: folder for run folders
        run_id: name of the run folder
        allow_code: run modules and apps that a scenario outside of the current folder brings with it
        on: a Ray cluster whose nodes do the work: one that is started here, or that runs; ``workers`` is per node: ray,
            auto, HOST:PORT or ray://HOST:PORT
        time_limit: stop at a round's end after so long, to go on later: "2 h"
        workers: worker processes; by default one per core, on GPUs by memory
        device: cpu, cuda (all GPUs), cuda:N or auto
        progress: None shows it in a notebook and on a terminal, True everywhere
        on_round: callbacks, `fedbr.Callback`, or functions of a `fedbr.CommittedRound`
    """
