"""The files of a run that remote workers can request, if they lack them: found here, and sent by the worker pool.

These are the decoded data set of this machine's cache, the file of a partition, and the copies of the user's modules in
the run folder (`scenarios.run.plugin_sources`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from edge.data.decoded_cache import decoded_files
from edge.data.json_partition import content
from edge.data.registry import DataError
from edge.protocol.config import MAX_FILE_NAME, Job, ShippedFile
from edge.protocol.files import opened
from edge.protocol.home import expanded
from scenarios.config.errors import ScenarioError
from scenarios.run import plugin_sources

MOST_FILES = 2000
"""Limit of what a job can list: its message has at most 1 MiB."""

_log = logging.getLogger("fedbr.runner")


def find(job: Job, folder: Path) -> dict[ShippedFile, Path]:
    """The files of a run, which has described its data, and where they are; ``folder``: of the run.

    ScenarioError for files that cannot be read, or are too many.
    """
    try:
        files = dict([*_data(job), *_partition(job), *_sources(folder)])
    except OSError as error:
        raise ScenarioError(f"--listen: {error.filename}: cannot be read: {error.strerror}") from None
    except DataError as error:
        raise ScenarioError(f"--listen: {error}") from None
    if len(files) > MOST_FILES:
        raise ScenarioError(
            f"--listen: the scenario names modules of {len(files)} files; remote workers can get at most {MOST_FILES}"
        )
    too_long = [file.name for file in files if len(file.name) > MAX_FILE_NAME]
    if too_long:
        raise ScenarioError(f"--listen: {too_long[0]}: longer than {MAX_FILE_NAME} characters; choose a shorter name")
    nbytes = sum(file.nbytes for file in files)
    _log.info("remote workers can get %d files, %.1f MB in all", len(files), nbytes / 1e6)
    return files


def _data(job: Job) -> Iterator[tuple[ShippedFile, Path]]:
    for name, (path, sha256) in decoded_files(job.data, Path(job.cache), job.data_sha256).items():
        yield ShippedFile("data", name, sha256, path.stat().st_size), path


def _partition(job: Job) -> Iterator[tuple[ShippedFile, Path]]:
    if job.data.partition.file is not None:
        path = expanded(job.data.partition.file).resolve()
        raw = content(path)
        yield ShippedFile("partition", "partition.json", hashlib.sha256(raw).hexdigest(), len(raw)), path


def _sources(folder: Path) -> Iterator[tuple[ShippedFile, Path]]:
    for path, recorded in plugin_sources.copies(folder).items():
        with opened(path) as file:
            raw = file.read()
        digest = hashlib.sha256(raw).hexdigest()
        if digest != recorded:  # others have code here that this machine does not run
            raise ScenarioError(f"--listen: {path} is not the module that the run began with; restore it")
        name = str(path.relative_to(folder / plugin_sources.FOLDER))
        yield ShippedFile("source", name, digest, len(raw)), path
