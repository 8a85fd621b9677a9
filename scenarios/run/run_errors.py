"""Errors that end a run, in words for its user: with the run folder, or as an error of the scenario that caused them.

Only words are made here; `scenarios.run.runner` decides what is left of the run.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from coordinator.records.schema import HostEvent
from coordinator.rounds.run import RunFailed
from coordinator.workers.task import PoolError
from scenarios.config.error_messages import known_keys
from scenarios.config.errors import ScenarioError
from scenarios.config.load import Loaded
from scenarios.config.schema import Scenario
from scenarios.run.folder_files import HeldFolder

USERS_ERRORS = ("DataError", "PartitionError", "CacheError")
"""Errors of workers that the user's data, and no defect, cause"""


@contextlib.contextmanager
def named(folder: Path, held: HeldFolder | None = None) -> Iterator[None]:
    """Turn errors that end the run into RunFailed, which names the run folder and the file of an OSError.

    If the folder is no longer where it was (``held``), the error says that instead of what followed from it.
    """
    try:
        yield
    except (PoolError, RunFailed, OSError, sqlite3.Error) as error:
        if held is not None:
            held.check()
        raise RunFailed(f"{in_words(error, folder)}\nrun folder: {folder}") from error


def in_words(error: Exception, folder: Path) -> str:
    """The message of an error, with the file that it concerns."""
    if isinstance(error, sqlite3.Error):  # a run opens no other database
        return f"{folder / 'ledger.sqlite'}: {error}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, PoolError) and _users_error(first := str(error).partition("\n")[0]):
        return first  # the worker's log has no more to say
    return str(error)


def _users_error(text: str) -> str:
    """An error of data, or one that begins with a key of the scenario, out of a worker's report; '' for any other."""
    error = re.search(r"(?:^|: )(\w+Error): (\S*)(.*)", text, re.DOTALL)
    is_users = error is not None and (error[1] in USERS_ERRORS or error[2].rstrip(":") in known_keys(Scenario))
    return f"{error[2]}{error[3]}" if error is not None and is_users else ""


def user_error_hook(loaded: Loaded) -> Callable[[HostEvent], None]:
    """A handler of a pool's events that raises ScenarioError for the first error of the user's.

    Such an error is one of data, or begins with a key of the scenario; it would recur in every worker.
    """

    def on_event(event: HostEvent) -> None:
        if event.kind in ("task_failed", "worker_died") and (error := _users_error(event.detail)):
            raise ScenarioError(f"{loaded.name}: {error}")

    return on_event
