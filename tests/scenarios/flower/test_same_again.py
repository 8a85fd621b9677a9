"""Runs of apps again: killed and resumed, replayed on another fleet, beside other methods, and from objects."""

from __future__ import annotations

import json
import sqlite3
import sys
from importlib import import_module
from pathlib import Path

import pytest

from edge.protocol import app_records
from scenarios.api import flower
from scenarios.cli.main import run_command
from scenarios.config.errors import ScenarioError
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.studies.replay import prepared, replay
from scenarios.studies.replayed_run import OtherVisits
from tests.crossed import every
from tests.ledgers import chain
from tests.scenarios.flower.apps import CLIENT, SERVER, Apps, write_app
from tests.scenarios.runs import committed, killed, never, opened

TWO = "method_options.run_config.rounds=2"
COMPUTE = "(msg: Message, context: Context):\n    torch.ones(8, 8) @ torch.ones(8, 8)"
COUNTED = "import torch\n" + CLIENT.replace("(msg: Message, context: Context):", COMPUTE)
"""An app whose computing is counted FLOPs, not seconds of this host"""
COMMITTED = ("coordinator.records.store:Ledger.commit", "after", 1)


def test_a_killed_run_plays_its_app_again_to_the_same_chain(apps: Apps) -> None:
    whole = Path(apps.play(TWO, "data.clients=3", client=COUNTED, run_id="whole")["run_dir"])
    words = ["run", "digits", f"method=flower:{apps.folder / 'app'}", TWO, "data.clients=3"]
    words += [
        "fleet.jitter=0.0",
        "fleet.devices={raspberry-pi-4=1}",
        "fleet.networks={lte=1}",
        "stop.target_accuracy=1.0",
    ]
    killed(COMMITTED, *words, "--workers", "2", "--quiet", "--out", str(apps.folder), "--run-id", "cut")
    folder = apps.folder / "digits" / "cut"
    assert committed(folder) == 1
    replies = sorted((folder / app_records.FOLDER).glob("*.reply"))
    before = {file: file.stat().st_mtime_ns for file in replies}

    loaded, device = opened(folder, allow_code=True)
    assert runner.resume(loaded, Host(folder.parent, 2, device), folder, apps.launcher, never)["rounds"] == 2
    assert chain(folder) == chain(whole)
    assert len(before) == 6 and {file: file.stat().st_mtime_ns for file in replies} == before


def test_an_app_that_draws_from_elsewhere_is_found_out_by_its_recorded_replies(apps: Apps) -> None:
    server = SERVER.replace("import numpy as np", "import os\nimport numpy as np").replace(
        "np.zeros(10)", "np.frombuffer(os.urandom(8), np.uint8)"
    )
    folder = Path(apps.play("data.clients=2", server=server)["run_dir"])
    with pytest.raises(OtherVisits, match=r"round 1, client 0, train, message 0: the app has sent another message"):
        prepared(folder, allow_code=True).play(prepared(folder, allow_code=True).fleet)


def test_a_replay_has_other_times_and_the_same_bytes(apps: Apps) -> None:
    folder = Path(apps.play("data.clients=2")["run_dir"])
    again = replay(folder, {"fleet.server.up": "10 kbit/s"}, allow_code=True)
    before, after = again.virtual_seconds
    assert after > 2 * before
    assert again.rounds == 1 and again.other_end is None
    assert replay(folder, allow_code=True).virtual_seconds == [before, before]


def test_a_changed_app_is_not_replayed_and_not_resumed(apps: Apps) -> None:
    folder = Path(apps.play("data.clients=2")["run_dir"])
    file = apps.folder / "app" / "probe" / "client_app.py"
    file.write_text(CLIENT + "\n# another\n")
    with pytest.raises(ScenarioError, match="the app has changed since the run"):
        replay(folder, allow_code=True)


@pytest.mark.parametrize(
    "command", every(3, [("replay",), ("resume",), ("diff", "--again")], is_one=True), ids=" ".join
)
def test_an_app_that_a_run_names_runs_only_if_its_user_says_so(
    apps: Apps, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    folder = Path(apps.play("data.clients=2")["run_dir"])
    app = apps.folder / "app"
    (app / "probe" / "__init__.py").write_text("raise SystemExit('it was run')\n")
    with sqlite3.connect(folder / "ledger.sqlite") as ledger:
        ledger.execute("DELETE FROM meta WHERE key = 'summary'")
    assert run_command([*command, str(folder)]) == 2
    assert f"the Flower app {app}, which the run names, runs only if you trust the run" in capsys.readouterr().err


def test_verify_and_reports_take_runs_of_apps(apps: Apps, capsys: pytest.CaptureFixture[str]) -> None:
    folder = apps.play("data.clients=2")["run_dir"]
    assert run_command(["report", folder, "-o", str(apps.folder / "page.html")]) == 0
    page = (apps.folder / "page.html").read_text()
    assert "flower:app" in page and "digits-cnn" not in page.partition("<h2")[0]
    capsys.readouterr()
    assert run_command(["ls", str(apps.folder), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["entries"]
    assert (entry["method"], entry["state"]) == (f"flower:{apps.folder / 'app'}", "finished")


def test_objects_of_a_module_are_an_app_with_its_projects_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_app(tmp_path / "app")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    server_app, client_app = (import_module(f"probe.{side}_app").app for side in ("server", "client"))
    try:
        folder = flower._folder_of(server_app, client_app, {"rounds": 3, "more": "x"})
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "probe"]:
            del sys.modules[name]
    loaded = flower.of_app(folder, "digits", {}, {})
    from scenarios.run.app_folder import flower_app

    app = flower_app(loaded)
    assert (app.name, app.run_config) == ("probe", {"rounds": 3, "more": "x"})
    assert "from probe.server_app import app as app" in (folder / "given_server_app.py").read_text()
    with pytest.raises(ScenarioError, match="is no attribute of an imported module"):
        flower._folder_of(object(), client_app, {})
