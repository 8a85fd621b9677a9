"""Errors in a user's plug-ins as one message: which plug-in, where in it, and for which client and round.

A user's row may raise anything, and may give what nothing can use. Each place that runs such rows is therefore in a
`named` block; without a row of the user's in the scenario, an unexpected error stays what it is. Never reads a source.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import FrameType

from coordinator.records.round_record import RoundRecord
from coordinator.rounds.run import RunFailed
from coordinator.workers.task import PoolError, Stopped
from edge.protocol.plugins import OUR_FOLDERS, is_users
from scenarios.config.errors import ScenarioError
from scenarios.config.plugin_points import own_rows
from scenarios.config.tables import TomlValue

OUR_ERRORS = (RunFailed, PoolError, Stopped, ScenarioError)

_log = logging.getLogger("fedbr.plugins")


@contextmanager
def named(tables: Mapping[str, TomlValue], kind: type[Exception], name: str = "") -> Iterator[None]:
    """Turn an error of the user's rows in these tables of a scenario into a ``kind``, which names row and place.

    ``name``: of the scenario, for the message. Errors of the disk stay what they are, unless the row raised them.
    """
    try:
        yield
    except OUR_ERRORS:
        raise
    except (Exception, SystemExit) as error:
        rows = own_rows(tables)
        text = described(error, rows)
        if text is None:
            raise
        if logging.getLogger("fedbr").handlers:  # of a run; else logging would print the traceback
            _log.error("%s", text, exc_info=error)
        raise kind(f"{name}: {text}" if name else text) from error


def described(error: BaseException, rows: Sequence[tuple[str, str]]) -> str | None:
    """The message for an error, by the (key, name) of the user's rows; None for an error that is not theirs."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    lines = dict(walk_tb(error.__traceback__))
    own = [frame for frame in frames if _is_users(frame, rows)]
    if not rows or (isinstance(error, OSError | sqlite3.Error) and not (own and own[-1] is frames[-1])):
        return None
    if own:
        where = f"{own[0].f_code.co_name} ({own[-1].f_code.co_filename}, line {lines[own[-1]]})"
    else:  # in our code: a row gave something that this place cannot use
        ours = [frame for frame in frames if frame.f_code.co_filename.startswith(OUR_FOLDERS)][-1]
        place = f"{Path(ours.f_code.co_filename).name}, line {lines[ours]}"
        where = f"it gives what {ours.f_code.co_name} ({place}) cannot use"
    # The rows of the modules that the error passed through, or all, if that says nothing.
    modules = {str(frame.f_globals.get("__name__", "")) for frame in own}
    certain = [(key, name) for key, name in rows if name.partition(":")[0] in modules]
    culprits = ", ".join(f"{key} = {name!r}" for key, name in certain or rows)
    what = f"{type(error).__name__}: {error}"
    return ", ".join([f"{culprits}: {where}", *_subject(frames)]) + f": {what}"


def _is_users(frame: FrameType, rows: Sequence[tuple[str, str]]) -> bool:
    """Whether it is of the user's code: also of a package that was installed, if a row is in it."""
    tops = {name.partition(":")[0].partition(".")[0] for _, name in rows}
    is_named = str(frame.f_globals.get("__name__", "")).partition(".")[0] in tops
    return is_users(frame) or (is_named and not frame.f_code.co_filename.startswith(OUR_FOLDERS))


def _subject(frames: Sequence[FrameType]) -> Iterator[str]:
    """The client and the round, as far as the call that failed was for one."""
    values = [(key, value) for frame in reversed(frames) for key, value in frame.f_locals.items()]
    clients = [client for key, value in values if (client := _client(key, value)) is not None]
    holders = [held for _, value in values for held in (value, getattr(value, "record", None))]
    rounds = [held.round for held in holders if isinstance(held, RoundRecord)]
    yield from (f"client {client}" for client in clients[:1])
    yield from (f"round {round + 1}" for round in rounds[:1])


def _client(key: str, value: object) -> int | None:
    if key not in ("client", "visit", "reply", "update", "dispatch"):
        return None
    client = value if key == "client" else getattr(value, "client", None)
    return client if isinstance(client, int) else None
