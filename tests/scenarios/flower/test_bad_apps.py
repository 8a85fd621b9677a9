"""Apps that cannot run: one clear line with the app's own place, exit 2 or 3, and nothing left running."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from scenarios.cli import main
from scenarios.run.session import Session
from tests.crossed import every
from tests.scenarios.flower.apps import CLIENT, PROJECT, SERVER, STILL, Apps, said, write_app
from tests.scenarios.runs import check_message

FINISHED, USAGE, FAILED = 0, 2, 3
WORDS = ("data.clients=3", "method_options.heartbeat=5", *STILL)


@pytest.fixture
def command(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> Apps:
    """Command lines have the warm workers, too."""
    monkeypatch.setattr(Session, "_launcher", lambda session, runs: nullcontext(apps.launcher))
    return apps


def failed(apps: Apps, capsys: pytest.CaptureFixture[str], app: Path, *words: str) -> tuple[int, str]:
    """(exit code, first line of the error) of a command line; nothing that it started is left."""
    before = set(psutil.Process().children(recursive=True))
    out = ("--out", str(apps.folder), "--run-id", "bad", "--workers", "1", "--quiet")
    code = main.run_command(["run", "digits", f"method=flower:{app}", *WORDS, *words, *out])
    captured = capsys.readouterr()
    assert (captured.out == "") == (code != FINISHED)
    assert "Traceback" not in captured.err
    assert set(psutil.Process().children(recursive=True)) <= before
    return code, captured.err.splitlines()[0].removeprefix("fedbr: ").replace(str(app), "APP")


LEGACY_SERVER = """
from flwr.server import ServerApp, ServerAppComponents, ServerConfig

def server_fn(context):
    return ServerAppComponents(config=ServerConfig(num_rounds=1))

app = ServerApp(server_fn=server_fn)
"""
START = 'FedAvg().start(grid=grid, initial_arrays=ArrayRecord([np.zeros(10)]), num_rounds=context.run_config["rounds"])'
"""The body of a server side's main function."""
REPLY = 'return Message(RecordDict({"arrays": msg.content["arrays"], "metrics": metrics}), reply_to=msg)'
CONVERT = "; an app of Flower's interface before 1.20 (server_fn, client_fn, NumPyClient) is converted: .."
VAIN = (
    "round 1: the ServerApp waits in vain, at {} s of virtual time with no message under way; the fleet has 3 clients "
    "(data.clients), and a strategy waits for its min_available_nodes"
)
CLIENT_APP = "round 1, client 0, train, message 1: the ClientApp "
SERVER_RAISED = "round 1: the ServerApp has raised "
PUSH = "from flwr.app import Message, RecordDict; grid.push_messages([Message(RecordDict(), {}, {})])"
NODE = "next(iter(grid.get_node_ids()))"


def client(old: str, new: str) -> tuple[str, str, str]:
    """(client side, server side, project) of an app with another client side."""
    assert CLIENT.count(old) == 1, old
    return CLIENT.replace(old, new), SERVER, PROJECT


def server(statement: str) -> tuple[str, str, str]:
    """Likewise, with another body of the server side."""
    assert SERVER.count(START) == 1
    return CLIENT, SERVER.replace(START, statement), PROJECT


def named(component: str, reference: str) -> tuple[str, str, str]:
    """Likewise, whose project names something else."""
    assert PROJECT.count(component) == 1
    return CLIENT, SERVER, PROJECT.replace(component, reference)


@pytest.mark.parametrize(
    ("project", "words", "message"),
    [
        (
            None,
            (),
            "APP/pyproject.toml: No such file or directory; a Flower app is a folder with a pyproject.toml that has "
            "[tool.flwr.app]; a script that calls start_simulation is to be made one (docs/flower-apps.md)",
        ),
        ("[project", (), "APP/pyproject.toml: Expected ']' at the end of a table declaration .."),
        (
            PROJECT + "\n[tool.flwr.app.config.x]\ny = [1, 2]",
            (),
            "APP/pyproject.toml: tool.flwr.app.config.x.y: Flower takes a text, a number, true or false",
        ),
        (
            PROJECT,
            ("method_options.run_config.round=3",),
            "method_options.run_config.round: APP/pyproject.toml has no such key; did you mean 'rounds'?",
        ),
    ],
)
def test_a_folder_that_is_no_app_is_refused(
    command: Apps,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    project: str | None,
    words: tuple[str, ...],
    message: str,
) -> None:
    app = write_app(tmp_path / "app", project=project or "")
    if project is None:
        (app / "pyproject.toml").unlink()
    code, text = failed(command, capsys, app, *words)
    assert code == USAGE
    check_message(text, message)
    assert not (command.folder / "digits" / "bad").exists()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            named("probe.server_app:app", "probe.client_app:app"),
            f"{SERVER_RAISED}LoadError: probe.client_app:app is a ClientApp instead of a ServerApp",
        ),
        (
            client(REPLY, "return 3"),
            f"{CLIENT_APP}has returned a int instead of a Message",
        ),
        (
            client(REPLY, "import os; os._exit(7)"),
            "client 0, message 1, train: given up after 3 workers; the last: worker 2 ended with exit code 7",
        ),
        (
            server("import sys; sys.exit('no data')"),
            f"{SERVER_RAISED}SystemExit: no data (APP/probe/server_app.py, line 11)",
        ),
        (
            server("import os; os.kill(os.getpid(), 9)"),
            "the ServerApp's process has ended; its output is in OUT/server-app.log",
        ),
        (server(PUSH.format(NODE, "'paint'")), f"{SERVER_RAISED}ValueError: Invalid message type: 'paint'. .."),
        (
            server("import time; time.sleep(1e12)"),
            f"{SERVER_RAISED}OverflowError: 1e+12 s more are beyond 1e+11 s of virtual time (APP/probe/server_app.py, "
            "line 11)",
        ),
        (server(START.replace("FedAvg()", "FedAvg(min_available_nodes=4)")), VAIN.format(500)),
        (
            server(
                "import threading; threading.Thread(target=threading.Event().wait).start(); raise ValueError('late')"
            ),
            f"{SERVER_RAISED}ValueError: late (APP/probe/server_app.py, line 11)",
        ),
        (
            (CLIENT, LEGACY_SERVER, PROJECT),
            f"{SERVER_RAISED}OldInterfaceError: probe.server_app:app has no function with @app.main(){CONVERT}",
        ),
    ],
)
def test_an_app_that_fails_names_its_own_place(
    command: Apps,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts: tuple[str, str, str],
    message: str,
) -> None:
    monkeypatch.setattr("coordinator.rounds.app_rounds.MOST_WAITS_FOR_NODES", 3_000)
    code, text = failed(command, capsys, write_app(tmp_path / "app", *parts))
    assert code == FAILED
    check_message(text.replace(str(command.folder / "digits" / "bad" / "logs"), "OUT"), message)


ASK = """
import json
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    content = RecordDict({"arrays": ArrayRecord([np.zeros(10)])})
    for reply in grid.send_and_receive([Message(content, node, "train") for node in grid.get_node_ids()]):
        print("said", json.dumps([reply.error.code, reply.error.reason] if reply.has_error() else None))
"""
NOT_LOADED, RAISED, CRASHED = 1, 2, 8
"""Flower's codes"""


@pytest.mark.parametrize(
    ("parts", "error", "reason", "text"),
    every(
        2,
        [
            (
                named("probe.client_app:app", "probe.clients:app"),
                RAISED,
                "<class 'ModuleNotFoundError'>:<'No module named 'probe.clients''>",
                "LoadError: cannot load 'probe.clients:app': ModuleNotFoundError: No module named 'probe.clients'",
            ),
            (
                named("probe.client_app:app", "probe.client_app:application"),
                NOT_LOADED,
                "An exception was raised when attempting to load `ClientApp`",
                "LoadError: cannot load 'probe.client_app:application': Unable to load attribute application from "
                "module probe.client_app",
            ),
            (
                client("app = ClientApp()", "app = ClientApp("),
                RAISED,
                "<class 'SyntaxError'>:<''(' was never closed (client_app.py, line 5)'>",
                "LoadError: cannot load 'probe.client_app:app': SyntaxError: '(' was never closed "
                "(APP/probe/client_app.py, line 5)",
            ),
            (
                client(REPLY, "return msg.content['nothing']"),
                RAISED,
                "<class 'KeyError'>:<''nothing''>",
                "KeyError: 'nothing' (APP/probe/client_app.py, line 10)",
            ),
            (
                client("@app.train()", "@app.query()"),
                RAISED,
                "<class 'ValueError'>:<'No train function registered with name 'default''>",
                "ValueError: No train function registered with name 'default'",
            ),
            (
                client(REPLY, "raise SystemExit(7)"),
                CRASHED,
                "ClientApp stopped responding.",
                "SystemExit: 7 (APP/probe/client_app.py, line 10)",
            ),
            (
                client(REPLY, "from flwr.app import Error; return Message(Error(6, 'no noise'), reply_to=msg)"),
                6,
                "no noise",
                "error 6: no noise",
            ),
        ],
    ),
)
def test_an_app_gets_flowers_error_in_place_of_a_reply_that_its_client_raises(
    apps: Apps, tmp_path: Path, parts: tuple[str, str, str], error: int, reason: str, text: str
) -> None:
    client_side, _, project = parts
    app = write_app(tmp_path / "app", client_side, ASK, project)
    result = apps.run(app, "data.clients=2")
    assert said(result) == [[error, reason]] * 2
    assert result["warnings"][0].replace(str(app), "APP") == (
        f"the ClientApp answered 2 of 2 messages with an error; the first: round 1, client 0, train, message 0: {text}"
    )
    logs = "".join(file.read_text() for file in (Path(result["run_dir"]) / "logs").glob("worker-*.log"))
    assert ("Traceback" in logs) == (error != 6)


def test_without_flower_the_extra_is_named(
    command: Apps, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "flwr" else found(name, *more))
    code, text = failed(command, capsys, write_app(tmp_path / "app"))
    assert (code, text) == (USAGE, "method = 'flower:APP': needs Flower: pip install 'fedbr-edge[flower]'")
