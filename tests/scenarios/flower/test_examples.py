"""The apps that ship: plain Flower code, which learns on a modelled fleet, alike with any number of workers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.crossed import every
from tests.ledgers import chain
from tests.scenarios.flower.apps import EXAMPLES, Apps

APPS = sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))
OURS = {"fedbr", "scenarios", "coordinator", "edge", "costmodel"}
MOST_LINES = 40
"""Of a client side"""
ROUNDS, BRIEF = "method_options.run_config.num-server-rounds=", "data.clients=4"


@pytest.mark.parametrize("name", APPS)
def test_an_example_has_nothing_of_ours(name: str) -> None:
    (client,) = (EXAMPLES / name).glob("*/client_app.py")
    assert len(client.read_text().splitlines()) < MOST_LINES
    for file in (EXAMPLES / name).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not OURS & {module.partition(".")[0] for module in imported}, file


@pytest.mark.parametrize(
    ("name", "accuracy"),
    every(2, [("digits", 0.6), ("fedadam", 0.7), ("local-dp", 0.8), ("scikit-learn", 0.9)]),
)
def test_an_example_learns_in_three_rounds(apps: Apps, name: str, accuracy: float) -> None:
    result = apps.run(EXAMPLES / name, ROUNDS + "3")
    assert (result["rounds"], result["stopped_by"]) == (3, "app")
    assert result["accuracy"] > accuracy
    assert result["virtual_seconds"] > 0
    assert (result["flops"] > 0, len(result["warnings"])) == (True, 1 if name == "scikit-learn" else 0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["digits", "local-dp"])
def test_one_and_three_workers_give_one_chain(apps: Apps, name: str) -> None:
    chains = [
        chain(Path(apps.run(EXAMPLES / name, ROUNDS + "2", BRIEF, workers=workers, run_id=run_id)["run_dir"]))
        for workers, run_id in ((1, "one"), (3, "three"))
    ]
    assert chains[0] == chains[1]
