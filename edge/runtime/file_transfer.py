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
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from edge.data.content import META, check_content, received_folder
from edge.data.decoded_cache import is_there
from edge.data.registry import DataError
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
    fetcher = _Fetcher(PartReceiver(source, say, check), job, say, check)
    fetcher.fetch_sources(takes_sources)
    fetcher.fetch_data()
    return replace(fetcher.job_with_partition(), shipped=())


@dataclass(frozen=True)
class _Fetcher:
    receiver: PartReceiver
    job: Job
    say: Callable[[str], None]
    check: Callable[[], None]

    def fetch_sources(self, is_allowed: bool) -> None:
        """Have the user's modules on the import path."""
        files = self._files("source")
        folder = received_folder(self._cache, "source", _hash_of(files))
        _forget_sources(folder)
        lacking = _lacking(files, folder, is_exact=bool(self.job.fingerprint))
        if not lacking:
            return
        if not is_allowed:
            raise TransferError(
                f"--no-sources: the run needs {lacking[0].name}, which this machine lacks; install it here, or join "
                "without --no-sources"
            )
        self._fetch(folder, files, "the run's modules")
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        importlib.invalidate_caches()

    def fetch_data(self) -> None:
        """Have the decoded data set in the cache, unless `edge.data.decoded_cache.open_data` finds it anyway."""
        files, sha256 = self._files("data"), self.job.data_sha256
        if not files or is_there(self.job.data, self._cache, sha256):
            return
        self._fetch(received_folder(self._cache, "data", sha256), files, f"data set {self.job.data.name}", sha256)

    def job_with_partition(self) -> Job:
        """The job with the place of the partition's file here."""
        files = self._files("partition")
        if not files and self.job.data.partition.file is not None:  # no path of the run's is opened here
            raise TransferError("the run names the file of its partition, and does not send it")
        if not files:
            return self.job
        folder = received_folder(self._cache, "partition", _hash_of(files))
        self._fetch(folder, files, "partition")
        partition = replace(self.job.data.partition, file=str(folder / files[0].name))
        return replace(self.job, data=replace(self.job.data, partition=partition))

    @property
    def _cache(self) -> Path:
        return Path(self.job.cache)

    def _files(self, kind: str) -> list[ShippedFile]:
        return [file for file in self.job.shipped if file.kind == kind]

    def _fetch(self, folder: Path, files: Sequence[ShippedFile], what: str, content: str = "") -> None:
        """Have these files in a folder. ``content``: hash of the decoded data that they are."""
        partial = folder.with_name(f".{folder.name}{PARTIAL}")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(folder.with_name(f".{folder.name}.lock"), what):
                if (folder / META).is_file() if content else _is_whole(folder, files):
                    return
                if folder.exists():  # somebody has changed it
                    shutil.rmtree(folder)
                self.receiver.fill(partial, files, what)
                if content:
                    _check_content(partial, content, what)
                partial.rename(folder)
        except OSError as error:
            raise TransferError(f"{error.filename or folder}: cannot be written: {error.strerror}") from error

    @contextmanager
    def _locked(self, file: Path, what: str) -> Iterator[None]:
        """Hold a lock file, and remove it afterwards; the kernel releases it if its process is killed."""
        lock, has_said = FileLock(file, fallback_to_soft=False), False
        while not lock.is_locked:
            try:
                lock.acquire(timeout=CHECK_SECONDS)
            except Timeout:
                if not has_said:
                    self.say(f"{what}: another worker of this machine receives it")
                has_said = True
                self.check()
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
            lock.release()


def _hash_of(files: Sequence[ShippedFile]) -> str:
    """A hash of the names and contents of files."""
    return hashlib.sha256(json.dumps([[file.name, file.sha256] for file in files]).encode()).hexdigest()


def _is_whole(folder: Path, files: Sequence[ShippedFile]) -> bool:
    return all(_sha256(folder / file.name) == file.sha256 for file in files)


def _sha256(file: Path) -> str | None:
    """The hash of a file; None for one that is not there or cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def _check_content(folder: Path, sha256: str, what: str) -> None:
    try:
        check_content(folder, sha256)
    except DataError as error:
        shutil.rmtree(folder)
        raise TransferError(f"{what}: what the run has sent was removed: {error}") from None


def _lacking(files: Sequence[ShippedFile], folder: Path, is_exact: bool) -> list[ShippedFile]:
    """The run's modules that this machine does not have by itself, outside of ``folder``.

    TransferError for a package of which it has other contents, if ``is_exact``, or only a part: Python would import
    that package from there.
    """
    entries = [Path(entry or ".") for entry in sys.path if Path(entry) != folder]
    here = {file: next((entry for entry in entries if (entry / file.name).is_file()), None) for file in files}
    found = {_top(file) for file, entry in here.items() if entry is not None}
    for file, entry in here.items():
        if entry is not None and is_exact and _sha256(entry / file.name) != file.sha256:
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
