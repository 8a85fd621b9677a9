"""Fetches the files of a run that this machine lacks: the user's modules, the decoded data set, the partition's file.

    CACHE/received/source/HASH/       the modules, in the folders of their packages; HASH is that of names and contents
    CACHE/received/data/HASH/         a decoded data set; HASH is `edge.data.registry.Data.sha256`
    CACHE/received/partition/HASH/    the file of a partition

A folder is whole or absent. While it is filled it has another name (``.HASH.partial``) and a lock, so that two workers
of one machine receive it once; a transfer that was broken off is continued. `edge.runtime.file_parts` has the transfer.

The modules are code, which the processes that train import and run: the owner of a worker that joins a run trusts it.
They are searched after all folders of this machine, and refused where this machine has other modules of these names.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from edge.data.content import META, check_content, received_folder
from edge.data.decoded_cache import is_there
from edge.data.registry import DataError
from edge.protocol.allowed import expect_allowed
from edge.protocol.config import Job, ShippedFile
from edge.runtime.file_parts import CHECK_SECONDS, PARTIAL, PartReceiver, PartSource, TransferError
from edge.runtime.log import log


def fetch_files(
    source: PartSource,
    job: Job,
    takes_sources: bool = True,
    say: Callable[[str], None] = log,
    check: Callable[[], None] = lambda: None,
) -> Job:
    """Fetch what this machine lacks of a run's files; returns the job with their places.

    ``job``: with the data folder and the cache of this machine, which are searched first. ``takes_sources``: whether
    the run's modules may be fetched, and imported here. ``check``: called before each part, and each second
    without one, to raise an error other than OSError where the connection is lost.

    Called after the welcome, and before any process is started: the folder of the modules is appended to this process's
    import path, which is that of the processes that it starts (`coordinator.workers.launcher.environment`). Pings that
    come meanwhile need no answer; one more comes after the last part.

    TransferError: for a file that came wrong, cannot be written, is refused, or differs from this machine's own.
    RunEndedError: the run has ended, or has dismissed this worker.
    """
    cache, receiver = Path(job.cache), PartReceiver(source, say, check)
    sources, data, partition = (
        [file for file in job.shipped if file.kind == kind] for kind in ("source", "data", "partition")
    )
    folder = received_folder(cache, "source", _hash_of(sources))
    _forget_sources(folder)
    for file in sources:
        expect_allowed(_top(file))  # by which a command searches its current folder, too
    lacking = _lacking(sources, folder, is_exact=bool(job.fingerprint))
    if lacking:
        if not takes_sources:
            raise TransferError(
                f"--no-sources: the run needs {lacking[0].name}, which this machine lacks; install it here, or join "
                "without --no-sources"
            )
        _fetch(receiver, folder, sources, "the run's modules", say, check)
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        importlib.invalidate_caches()
    sha256 = job.data_sha256
    if data and not is_there(job.data, cache, sha256):
        _fetch(receiver, received_folder(cache, "data", sha256), data, f"data set {job.data.name}", say, check, sha256)
    if partition:
        folder = received_folder(cache, "partition", _hash_of(partition))
        _fetch(receiver, folder, partition, "partition", say, check)
        own = replace(job.data.partition, file=str(folder / partition[0].name))
        job = replace(job, data=replace(job.data, partition=own))
    elif job.data.partition.file is not None:  # no path of the run's is opened here
        raise TransferError("the run names the file of its partition, and does not send it")
    return replace(job, shipped=())


def _fetch(
    receiver: PartReceiver,
    folder: Path,
    files: Sequence[ShippedFile],
    what: str,
    say: Callable[[str], None],
    check: Callable[[], None],
    content: str = "",
) -> None:
    """Have these files in a folder. ``content``: hash of the decoded data that they are."""
    partial = folder.with_name(f".{folder.name}{PARTIAL}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock"), what, say, check):
            is_whole = (folder / META).is_file() if content else all(_is_same(folder, file) for file in files)
            if is_whole:
                return
            if folder.exists():  # somebody has changed it
                shutil.rmtree(folder)
            receiver.fill(partial, files, what)
            if content:
                try:
                    check_content(partial, content)
                except DataError as error:
                    shutil.rmtree(partial)
                    raise TransferError(f"{what}: what the run has sent was removed: {error}") from None
            partial.rename(folder)
    except OSError as error:
        raise TransferError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error


@contextmanager
def _locked(file: Path, what: str, say: Callable[[str], None], check: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file, and remove it afterwards; the kernel releases it if its process is killed."""
    lock, has_said = FileLock(file, fallback_to_soft=False), False
    while not lock.is_locked:
        try:
            lock.acquire(timeout=CHECK_SECONDS)
        except Timeout:
            if not has_said:
                say(f"{what}: another worker of this machine receives it")
            has_said = True
            check()
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        lock.release()


def _hash_of(files: Sequence[ShippedFile]) -> str:
    """A hash of the names and contents of files."""
    return hashlib.sha256(json.dumps([[file.name, file.sha256] for file in files]).encode()).hexdigest()


def _is_same(folder: Path, file: ShippedFile) -> bool:
    """Whether the folder has the file, readable and with the run's content."""
    try:
        return hashlib.sha256((folder / file.name).read_bytes()).hexdigest() == file.sha256
    except OSError:
        return False


def _lacking(files: Sequence[ShippedFile], folder: Path, is_exact: bool) -> list[ShippedFile]:
    """The run's modules that this machine does not have by itself, outside of ``folder``.

    TransferError for a package of which it has other contents, if ``is_exact``, or only a part: Python would import
    that package from there.
    """
    entries = [Path(entry or ".") for entry in sys.path if Path(entry) != folder]
    here = {file: next((entry for entry in entries if (entry / file.name).is_file()), None) for file in files}
    found = {_top(file) for file, entry in here.items() if entry is not None}
    for file, entry in here.items():
        if entry is not None and is_exact and not _is_same(entry, file):
            raise TransferError(
                f"{entry / file.name}: differs from the run's module of this name; remove it from the import path of "
                "this worker, or install the run's version"
            )
        if entry is None and _top(file) in found:
            raise TransferError(
                f"{file.name}: this machine has other modules of {_top(file)}, but lacks this one; remove them from "
                "the import path of this worker, or install the run's version"
            )
    return [file for file, entry in here.items() if entry is None]


def _top(file: ShippedFile) -> str:
    """The top-level module or package of a module's file."""
    return file.name.partition("/")[0].partition(".")[0]


def _forget_sources(keep: Path) -> None:
    """Forget the modules of another run that this process served before."""
    others = {entry for entry in sys.path if Path(entry).parent == keep.parent and Path(entry) != keep}
    sys.path[:] = [entry for entry in sys.path if entry not in others]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and any(Path(file).is_relative_to(entry) for entry in others):
            del sys.modules[name]
