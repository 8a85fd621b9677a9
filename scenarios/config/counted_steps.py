"""FLOPs of a training step of a shipped model, for tables of boards that have its seconds.

They are counted in a process of their own (`edge.profile.step_flops`), since torch stays out of this one, and kept in
the user's cache for as long as the code of models stays as it is.
"""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

from coordinator.workers.launcher import environment, how_ended, quote
from edge.data.atomic_cache import text_once
from edge.data.registry import DATASETS
from edge.models.registry import MODELS
from edge.protocol import interpreter
from edge.protocol.spelling import nearest
from scenarios.config.cache import cache_folder

STEPS = "steps"
"""Folder of the user cache for the counts"""
COUNTED_BY = ("models/*.py", "training/counts.py", "training/blocks.py", "data/registry.py")
"""Sources on which the counts depend, below ``edge``"""


@cache
def step_flops(model: str, width: int | None, data: str) -> tuple[str, float]:
    """(family of a model, FLOPs of its training step of one example of a data set).

    ``width``: None for the model's own; ``data``: '' for the first data set with the most channels among those whose
    images have the size that the model is made for. ValueError for a model, width or data set that cannot be counted.
    """
    if model not in MODELS:
        raise ValueError(f"no model {model!r} ships, {nearest(model, MODELS)}")
    row = MODELS[model]
    try:
        row.check_width(width)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("model.")) from None
    if not data:
        sized = {name: images for name, images in DATASETS.items() if row.shape and images.shape[1:] == row.shape}
        if not sized:
            raise ValueError(f"{model} takes examples of any size: name a data set in a column data")
        data = max(sized, key=lambda name: sized[name].shape[0])
    if data not in DATASETS:
        raise ValueError(f"no data set {data!r} ships, {nearest(data, DATASETS)}")
    if not (DATASETS[data].kind == row.kind and (row.flexible or DATASETS[data].shape[1:] == row.shape)):
        raise ValueError(f"{model} does not take the examples of {data}")
    path = cache_folder() / STEPS / f"{model}-{width or 0}-{data}-{_digest()}.txt"
    return row.family, float(text_once(path, lambda: _counted(model, width or 0, data)))


@cache
def _digest() -> str:
    edge = Path(interpreter.__file__).parents[1]
    files = sorted(file for pattern in COUNTED_BY for file in edge.glob(pattern))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _counted(model: str, width: int, data: str) -> str:
    command = interpreter.command("edge.profile.step_flops", model, str(width), data)
    process = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if process.returncode:
        raise ValueError(f"the process that counts its FLOPs {how_ended(process.returncode)}{quote(process.stderr)}")
    return process.stdout.decode().strip()
