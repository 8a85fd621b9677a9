"""Command lines as users of other tools write them: each refusal names the key, option or command that is meant."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from scenarios.cli import main
from tests.scenarios.runs import refused

OVERRIDE = "an override reads KEY=VALUE, for example train.lr=0.05; values of a list are separated by commas without"
SGD = "local training is SGD (train.lr, train.momentum); the server's optimizer is the key server"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run digits lr=0.1", "command line: unknown key lr, did you mean 'train.lr'?"),
        ("sweep digits lr=0.1,0.2", "command line: unknown key lr, did you mean 'train.lr'?"),
        ("run digits mu=0.1", "command line: unknown key mu, did you mean 'method_options.mu'?"),
        ("run digits train.optimizer=adam", f"command line: unknown key train.optimizer: {SGD}"),
        ("run digits n_workers=5", "command line: unknown key n_workers: no key of a scenario; use --workers"),
        ("run digits device=cuda", "command line: unknown key device: no key of a scenario; use --device"),
        ("run digits --method fedavg", "Error: No such option: --method; keys of a scenario are written method=fedavg"),
        ("run digits --rounds 5", "Error: No such option: --rounds; keys of a scenario are written rounds.max=5"),
        ("check digits --lr=0.1", "Error: No such option: --lr; keys of a scenario are written train.lr=0.1"),
        (
            "sweep digits --batch-size 8,16",
            "Error: No such option: --batch-size; keys of a scenario are written train.batch=8,16",
        ),
        (
            "compare digits --methods fedavg,fedbr",
            "Error: No such option: --methods; keys of a scenario are written method=fedavg,fedbr",
        ),
        ("run digits --foo", "Error: No such option: --foo (Possible options: --for, --on, --out)"),
        (
            "run digits method=fedavg,fedprox",
            "command line: method = 'fedavg,fedprox': a run takes one; compare and sweep take several, as "
            "method=fedavg,fedprox",
        ),
        (
            "check digits train.lr=0.1,0.2",
            "command line: train.lr = '0.1,0.2': a run takes one; sweep takes several, as train.lr=0.1,0.2",
        ),
        ("compare digits method=fedavg fedprox", f"'fedprox': {OVERRIDE} spaces"),
        ("sweep digits train.lr=0.1, 0.2", "command line: train.lr: write values separated by commas, for example "
         "train.lr=0.05,0.1"),
        ("run digits rounds.max=2 rounds.max=3", "command line: rounds.max: is given twice; a key has one value"),
        ("run digits rounds={max=2} rounds.max=3", "command line: rounds.max: is given twice; a key has one value"),
        ("sweep digits rounds.max=2 rounds.max=3", "command line: rounds.max: is given twice; a key has one value"),
        ("check digits seed=2 --seed 3", "command line: seed: is given twice; a key has one value"),
        ("check-plugin my_row", "'my_row': write MODULE:NAME, the module and its row, such as my_method:SPEC"),
        ("check-plugin a.py:main", "cannot load 'a.py:main': is a file; write MODULE:NAME, a:main"),
        (
            "check-plugin coordinator.methods.fedmlb:SPEK",
            "cannot load 'coordinator.methods.fedmlb:SPEK': AttributeError: coordinator.methods.fedmlb has no 'SPEK'; "
            "did you mean 'SPEC'?",
        ),
    ],
)  # fmt: skip
def test_a_wrong_use_is_answered_with_what_is_meant(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *shlex.split(line.replace("={max=2}", "='{max=2}'"))) == message


def test_a_folder_is_no_scenario_and_that_of_a_run_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "run", str(tmp_path)) == f"{tmp_path}: is a folder; name a scenario or a TOML file"
    for name in ("scenario.toml", "ledger.sqlite"):
        (tmp_path / name).touch()
    message = f"{tmp_path}: is a run folder; to go on with its run: fedbr resume {tmp_path}"
    assert refused(capsys, "run", str(tmp_path)) == message


def test_shares_that_look_like_counts_are_noted_with_the_clients_that_they_give(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for given, note in (
        ("{raspberry-pi-4=12}", "raspberry-pi-4 10"),
        ("{raspberry-pi-4=3,jetson-nano=1}", "raspberry-pi-4 8, jetson-nano 2"),
        ("{raspberry-pi-4=8,jetson-nano=2}", ""),  # as many as there are clients
        ("{raspberry-pi-4=60,jetson-nano=40}", ""),  # percent
        ("{raspberry-pi-4=1,jetson-nano=1}", ""),
    ):
        assert main.run_command(["check", "digits", f"fleet.devices={given}", "--json"]) == 0
        text = f"fedbr: note: fleet.devices: shares are normalised, and data.clients = 10: {note}\n"
        assert capsys.readouterr().err == (text if note else "")
