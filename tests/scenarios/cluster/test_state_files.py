"""Client states on a node agent's machine: how long their files stay."""

from __future__ import annotations

from pathlib import Path

from scenarios.cluster.state_files import SWEEP_FILES, StateFiles


def written(files: StateFiles, nbytes: int) -> str:
    """The file that a task has left."""
    path = files.new()
    Path(path).write_bytes(bytes(nbytes))
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_worker_writes_after_its_task_was_cancelled_does_not_pile_up(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, 100)
    kept = written(files, 40)
    files.keep(1, "state", kept)
    cancelled = files.new()
    files.release(cancelled)
    Path(cancelled).write_bytes(b"late")
    (tmp_path / "9.safetensors.77.part").write_bytes(b"on its way")
    for _ in range(SWEEP_FILES):
        files.release(files.new())
    assert names(tmp_path) == {"1.safetensors", "9.safetensors.77.part"}
