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


def test_the_oldest_states_go_first_and_a_file_stays_while_a_task_needs_it(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, 100)
    for client in (1, 2, 3):
        path = written(files, 40)
        files.keep(client, f"state-{client}", path)
        files.release(path)
    assert names(tmp_path) == {"2.safetensors", "3.safetensors"}
    assert files.held(1, "state-1") is None and files.held(2, "state-3") is None
    needed = files.held(2, "state-2")
    files.keep(4, "state-4", written(files, 40))
    assert files.held(2, "state-2") is None and "2.safetensors" in names(tmp_path)
    files.release(needed)
    assert names(tmp_path) == {"3.safetensors", "4.safetensors"}


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
