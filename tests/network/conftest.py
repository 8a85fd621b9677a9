"""The networks for these tests, where they can be had; `make test-network` asks for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from scenarios.studies.measured import tau
from tests.network.lab import Lab, UnavailableError, require_kernel


@pytest.fixture(scope="module")
def make_lab() -> Iterator[Callable[..., Lab]]:
    """`Lab`, entered; all are taken down after the file's last test. Skips with the reason where none can be had."""
    if "FEDBR_NETWORK" not in os.environ:
        pytest.skip("takes minutes and makes network namespaces: run `make test-network`")
    with ExitStack() as undo:

        def make(*args: object, **kwargs: object) -> Lab:
            try:
                return undo.enter_context(Lab(*args, **kwargs))  # type: ignore[arg-type]
            except UnavailableError as missing:
                pytest.skip(str(missing))

        try:
            require_kernel()
        except UnavailableError as missing:
            pytest.skip(str(missing))
        yield make


@pytest.fixture(scope="session")
def predicted_and_measured(show: Callable[[str], None]) -> Iterator[dict[str, list[tuple[float, float]]]]:
    """File of tests -> seconds of each of its cells; at the end it prints whether they are in the measured order."""
    cells: dict[str, list[tuple[float, float]]] = {}
    yield cells
    every = [pair for pairs in cells.values() for pair in pairs]
    for name, pairs in {**cells, "all": every}.items():
        order = tau([real for _, real in pairs], [guess for guess, _ in pairs])
        text = "-" if order is None else f"{order:.3f}"
        show(f"\n{name}: Kendall's tau of {len(pairs)} cells, as predicted and as measured: {text}")


@pytest.fixture(scope="module")
def cell(
    request: pytest.FixtureRequest, predicted_and_measured: dict[str, list[tuple[float, float]]]
) -> Callable[[float, float], None]:
    """Keeps the predicted and measured seconds of a cell, for the order of all."""
    name = request.module.__name__.rpartition(".")[2]

    def keep(predicted: float, measured: float) -> None:
        predicted_and_measured.setdefault(name, []).append((predicted, measured))

    return keep


@pytest.fixture(scope="session")
def show(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Prints past pytest's capture: the tables are what these tests are run for."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def write(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(text, flush=True)

    return write
