"""A GPU for these tests, which only machines that have one run; `benchmarks/gpu.py` does so among its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from edge.training.trainer import LocalTrainer
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.setup import RunInputs, Setup, on_device

DEVICE = "cuda:0"


@pytest.fixture(scope="session", autouse=True)
def gpu() -> Iterator[str]:
    """The device; skips where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU here")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield DEVICE
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])  # trainers set it for their process


@pytest.fixture(scope="session")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four clients with digits, eight steps on full batches and one on a short one."""
    path: Path = tmp_path_factory.mktemp("cuda") / "digits-on-gpu.toml"
    path.write_text(
        'method = "fedavg"\n[data]\nname = "digits"\nclients = 4\n[model]\nname = "digits-cnn"\n'
        "[train]\nlr = 0.1\nbatch = 40\nlocal_epochs = 1\nmomentum = 0.5\n"
        "[rounds]\nparticipants = 4\nmax = 3\n"
    )
    return str(path)


def trainer(scenario: str, device: str, *overrides: str) -> LocalTrainer:
    """A worker's trainer in this process."""
    loaded = on_device(load(scenario, parse_all(list(overrides))), device)
    profile, _ = LocalTrainer(RunInputs(loaded, device).job).describe(True)
    return LocalTrainer(Setup.of(loaded, profile, device).job)


class Called:
    """In place of a graph: its work is called."""

    def capture(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        self._work()
