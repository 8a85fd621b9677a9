"""Apps that cannot run: one clear line with the app's own place, exit 2 or 3, and nothing left running."""

from __future__ import annotations

import importlib.util
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from scenarios.cli import main
from scenarios.run.session import Session
from tests.remains import Watch
from tests.scenarios.flower.apps import CLIENT, PROJECT, SERVER, STILL, Apps, write_app
from tests.scenarios.runs import check_message, fedbr

USAGE, FAILED = 2, 3
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
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert set(psutil.Process().children(recursive=True)) <= before
    return code, captured.err.splitlines()[0].removeprefix("fedbr: ").replace(str(app), "APP")


LEGACY_SERVER = """
from flwr.server import ServerApp, ServerAppComponents, ServerConfig

def server_fn(context):
    return ServerAppComponents(config=ServerConfig(num_rounds=1))

app = ServerApp(server_fn=server_fn)
"""
LEGACY_CLIENT = """
from flwr.client import ClientApp, NumPyClient

class Client(NumPyClient):
    def get_parameters(self, config):
        return []

app = ClientApp(client_fn=lambda context: Client().to_client())
"""
START = 'FedAvg().start(grid=grid, initial_arrays=ArrayRecord([np.zeros(10)]), num_rounds=context.run_config["rounds"])'
"""The body of a server side's main function."""
REPLY = 'return Message(RecordDict({"arrays": msg.content["arrays"], "metrics": metrics}), reply_to=msg)'
COMPONENTS = "tool.flwr.app.components"
CONVERT = "; an app of Flower's interface before 1.20 (server_fn, client_fn, NumPyClient) is converted: .."
VAIN = (
    "round 1: the ServerApp waits in vain, at {} s of virtual time with no message under way; the fleet has 3 clients "
    "(data.clients), and a strategy waits for its min_available_nodes"
)
CLIENT_RAISED = "round 1, client 0, train, message 1: the ClientApp has raised "
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
        ("[project]\nname = 'probe'", (), f"APP/pyproject.toml: no Flower app: it lacks {COMPONENTS}.clientapp"),
        (
            f"[project]\nname = 'probe'\n[{COMPONENTS}]\nclientapp = 'probe.client_app:app'",
            (),
            f"APP/pyproject.toml: no Flower app: it lacks {COMPONENTS}.serverapp",
        ),
        (PROJECT.replace('name = "probe"', ""), (), "APP/pyproject.toml: no Flower app: it lacks project.name"),
        (
            PROJECT.replace("probe.client_app:app", "probe.client_app"),
            (),
            f"APP/pyproject.toml: {COMPONENTS}.clientapp = 'probe.client_app': must be module:attribute",
        ),
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
            named("probe.client_app:app", "probe.clients:app"),
            f"{CLIENT_RAISED}ValueError: cannot load 'probe.clients:app': ModuleNotFoundError: No module named "
            "'probe.clients'",
        ),
        (
            named("probe.server_app:app", "probe.servers:app"),
            f"{SERVER_RAISED}ValueError: cannot load 'probe.servers:app': ModuleNotFoundError: No module named "
            "'probe.servers'",
        ),
        (
            named("probe.client_app:app", "probe.client_app:application"),
            f"{CLIENT_RAISED}ValueError: cannot load 'probe.client_app:application': ValueError: Unable to load "
            "attribute application from module probe.client_app",
        ),
        (
            named("probe.server_app:app", "probe.client_app:app"),
            f"{SERVER_RAISED}ValueError: probe.client_app:app is a ClientApp instead of a ServerApp",
        ),
        (
            named("probe.client_app:app", "probe.server_app:app"),
            f"{CLIENT_RAISED}ValueError: probe.server_app:app is a ServerApp instead of a ClientApp",
        ),
        (
            client("app = ClientApp()", "app = ClientApp("),
            f"{CLIENT_RAISED}ValueError: cannot load 'probe.client_app:app': SyntaxError: '(' was never closed "
            "(APP/probe/client_app.py, line 5)",
        ),
        (
            client("app = ClientApp()", "import nothing_of_the_kind"),
            f"{CLIENT_RAISED}ValueError: cannot load 'probe.client_app:app': ModuleNotFoundError: No module named "
            "'nothing_of_the_kind' (APP/probe/client_app.py, line 5)",
        ),
        (
            client(REPLY, "return msg.content['nothing']"),
            f"{CLIENT_RAISED}KeyError: 'nothing' (APP/probe/client_app.py, line 10)",
        ),
        (
            client(REPLY, "return 3"),
            f"{CLIENT_RAISED}TypeError: the ClientApp has returned a int instead of a Message",
        ),
        (client(REPLY, "raise SystemExit(7)"), f"{CLIENT_RAISED}SystemExit: 7 (APP/probe/client_app.py, line 10)"),
        (
            client(REPLY, "import os; os._exit(7)"),
            "client 0, message 1, train: given up after 3 workers; the last: worker 2 ended with exit code 7",
        ),
        (
            client("@app.evaluate()", "@app.query()"),
            "round 1, client 0, evaluate, message 3: the ClientApp has raised ValueError: No evaluate function "
            "registered with name 'default'",
        ),
        (
            server("context.run_config['no-such-key']"),
            f"{SERVER_RAISED}KeyError: 'no-such-key' (APP/probe/server_app.py, line 11)",
        ),
        (
            server("import sys; sys.exit('no data')"),
            f"{SERVER_RAISED}SystemExit: no data (APP/probe/server_app.py, line 11)",
        ),
        (server("import os; os._exit(4)"), "the ServerApp's process has ended; its output is in OUT/server-app.log"),
        (
            server("import os; os.kill(os.getpid(), 9)"),
            "the ServerApp's process has ended; its output is in OUT/server-app.log",
        ),
        (
            server("grid.push_messages(['hello'])"),
            f"{SERVER_RAISED}TypeError: the ServerApp has pushed a str instead of a Message "
            "(APP/probe/server_app.py, line 11)",
        ),
        (
            server(PUSH.format(5, "'train'")),
            f"{SERVER_RAISED}ValueError: the ServerApp has pushed a message to 5, which is no node's id "
            "(APP/probe/server_app.py, line 11)",
        ),
        (server(PUSH.format(NODE, "'paint'")), f"{SERVER_RAISED}ValueError: Invalid message type: 'paint'. .."),
        (server(START.replace("FedAvg()", "FedAvg(min_available_nodes=4)")), VAIN.format(499)),
        (server("while len(grid.get_node_ids()) < 4: pass"), VAIN.format(0)),
        (
            server(
                "import threading; threading.Thread(target=threading.Event().wait).start(); raise ValueError('late')"
            ),
            f"{SERVER_RAISED}ValueError: late (APP/probe/server_app.py, line 11)",
        ),
        (
            (CLIENT, LEGACY_SERVER, PROJECT),
            f"{SERVER_RAISED}ValueError: probe.server_app:app has no function with @app.main(){CONVERT}",
        ),
        (
            (LEGACY_CLIENT, SERVER, PROJECT),
            f"{CLIENT_RAISED}ValueError: probe.client_app:app has a client_fn{CONVERT}",
        ),
    ],
)
def test_an_app_that_fails_names_its_own_place(
    command: Apps, capsys: pytest.CaptureFixture[str], tmp_path: Path, parts: tuple[str, str, str], message: str
) -> None:
    code, text = failed(command, capsys, write_app(tmp_path / "app", *parts))
    assert code == FAILED
    check_message(text.replace(str(command.folder / "digits" / "bad" / "logs"), "OUT"), message)


def test_nothing_is_left_of_a_run_that_is_killed_while_its_server_computes(
    flower: None, tmp_path: Path, watch: Watch
) -> None:
    mark = tmp_path / "computes"
    busy = f"open({str(mark)!r}, 'w').close(); [None for _ in iter(int, 1)]"
    app = write_app(tmp_path / "app", *server(f"{START}; {busy}"))
    words = fedbr("run", "digits", f"method=flower:{app}", *WORDS, "--out", str(tmp_path), "--workers", "1", "--quiet")
    with subprocess.Popen(words, env=watch.environment) as process:
        while not mark.exists() and process.poll() is None:
            time.sleep(0.05)
        process.kill()
    assert mark.exists()
    # torch's optimizers bring torch's compiler, which makes a folder for what it compiles
    assert [each for each in watch.remains() if "torchinductor" not in each] == []


def test_without_flower_the_extra_is_named(
    command: Apps, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "flwr" else found(name, *more))
    code, text = failed(command, capsys, write_app(tmp_path / "app"))
    assert (code, text) == (USAGE, "method = 'flower:APP': needs Flower: pip install 'fedbr-edge[flower]'")
