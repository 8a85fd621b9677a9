"""A scenario on real devices: the exported app gives the weights of a run, and devices that fail are named."""

from __future__ import annotations

import csv
import importlib.util
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app import Error as FlowerError

from coordinator.records.store import read
from coordinator.rounds.run import RunFailed
from coordinator.workers.launcher import WorkerLauncher
from costmodel.fleet.fleet import Fleet
from costmodel.visits.work import Work
from edge.flower import device_process, device_records
from edge.flower.device_client import JOB, STATE, client_app
from edge.flower.device_records import TRAIN
from edge.protocol.messages import Update, WireError
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from scenarios.flower.device_grid import DeviceSettings
from scenarios.flower.device_server import COLUMNS, serve
from scenarios.flower.export import export
from scenarios.flower.wall_clock import MeasuredTimes, WallClock
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.setup import RunInputs
from tests.crossed import every
from tests.scenarios.flower.flower_grid import LocalGrid, nodes
from tests.scenarios.runs import check_message, never, refused

CLIENTS = 4
SMALL = (
    f"data.clients={CLIENTS}",
    *("rounds.participants=3", "rounds.max=2", "train.local_epochs=1", "stop.target_accuracy=1.0"),
)
QUANTIZED = ("codec.up.kind=quantize", "codec.up.bits=4", "codec.down.kind=quantize", "codec.down.bits=8")
RECONSTRUCTION = (
    *("train.loss=reconstruction", "train.optimizer=adam", "train.lr=0.002", "train.optimizer_state=send"),
    'stop.target={metric="rmse",below=0.01}',
)
pytestmark = pytest.mark.usefixtures("warm_workers")


def served(out: Path, grid: LocalGrid, *overrides: str, **config: Any) -> dict[str, Any]:
    """The summary of a small run on these devices."""
    settings = {key.replace("_", "-"): value for key, value in config.items()}
    loaded = load("digits", parse_all([*SMALL, *overrides]))
    return dict(serve(loaded, grid, {"out": str(out), "poll-seconds": 0.01, **settings}))


def simulated(out: Path, launcher: WorkerLauncher, *overrides: str) -> dict[str, Any]:
    """The summary of the same run on virtual devices."""
    loaded = load("digits", parse_all([*SMALL, *overrides]))
    return dict(runner.run(loaded, Host(out, 2, "cpu", "virtual"), launcher, never, True))


# --- the weights ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    every(
        2,
        [
            ("method=fedavg", "codec.up.kind=topk", "codec.of=weights", "codec.error_feedback=true"),
            ("method=fedbr", "method_options.alpha=2", "rounds.max=3", *QUANTIZED),
            ("method=fedavg+scaffold", "codec.up_slots.control.kind=fp16", *QUANTIZED),
            ("method=fedavg", *RECONSTRUCTION),
        ],
        first=1,
        is_one=True,
    ),
    ids=" ".join,
)
def test_devices_give_the_weights_of_a_run_to_the_bit(
    overrides: tuple[str, ...], tmp_path: Path, launcher: WorkerLauncher
) -> None:
    real = served(tmp_path, LocalGrid(client_app(), nodes(CLIENTS)), *overrides)
    virtual = simulated(tmp_path, launcher, *overrides)
    assert real["model_sha256"] == virtual["model_sha256"]
    assert (real["score"], real["flops"]) == (virtual["score"], virtual["flops"])


def test_the_exported_modules_are_the_app(tmp_path: Path, launcher: WorkerLauncher) -> None:
    folder = tmp_path / "app"
    written = export(load("digits", parse_all([*SMALL, "method=fedbr", "method_options.alpha=1"])), folder)
    assert sorted(path.name for path in written) == sorted(path.name for path in folder.iterdir())
    about = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert about["components"] == {"serverapp": "server_app:app", "clientapp": "client_app:app"}
    config: dict[str, Any] = about["config"]
    given = {each.name.replace("_", "-"): each.default for each in fields(DeviceSettings)}
    assert {key: config[key] for key in given} == given
    exported = load(str(folder / "scenario.toml")).scenario
    assert exported.method_options["alpha"] == 1
    # Devices have processors of their own, whatever the scenario says of this one.
    assert (load("digits").scenario.train.instructions, exported.train.instructions) == ("portable", "native")

    grid = LocalGrid(module(folder / "client_app.py").app, nodes(CLIENTS))
    out = tmp_path / "runs"
    module(folder / "server_app.py").app(grid, grid.server_context(config | {"out": str(out), "poll-seconds": 0.01}))
    (run,) = (out / "digits").iterdir()
    ((hash_of_model,),) = read(run / "ledger.sqlite", "SELECT model_sha256 FROM rounds WHERE round = 1")
    virtual = simulated(tmp_path, launcher, "method=fedbr", "method_options.alpha=1")
    assert hash_of_model == virtual["model_sha256"]


def module(file: Path) -> ModuleType:
    """A file of the app, as Flower loads it."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_run_on_devices_has_a_run_folder_and_a_file_of_its_rounds(tmp_path: Path) -> None:
    grid = LocalGrid(client_app(), nodes(CLIENTS))
    real = served(tmp_path, grid, "method=fedavg", "eval.every=2")
    folder = Path(real["run_dir"])
    with (folder / "rounds.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert tuple(first) == (*COLUMNS, "accuracy")
    assert [first["round"], second["round"]] == ["1", "2"]
    assert first["accuracy"] == ""
    assert float(second["accuracy"]) == real["accuracy"]
    assert float(first["seconds"]) + float(second["seconds"]) == pytest.approx(real["virtual_seconds"])
    visits = [message for message in grid.messages if message.metadata.message_type == TRAIN]
    assert len(visits) == 6
    down = [device_records.nbytes(message) for message in visits]
    assert (int(first["bytes_down"]), int(second["bytes_down"])) == (sum(down[:3]), sum(down[3:]))
    assert real["joules"] == 0  # nobody has measured any


# --- data that lie on the devices alone -------------------------------------------------------------------------------


def test_modules_of_the_users_own_travel_with_the_app_packages_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "board_rows.py": "from board_parts import helper\nfrom edge.models.registry import module_row\n"
        "NET = module_row('net', 'board_parts.nets:net', ['0', '1'], kind='image')\n",
        "board_parts/__init__.py": "",
        "board_parts/nets.py": "from torch import nn\n\n\ndef net(classes):\n    "
        "return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n",
        "board_parts/helper.py": "",
        "board_parts/unused.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    app = tmp_path / "app"
    written = export(load("digits", parse_all([*SMALL, "method=fedavg", "model.name=board_rows:NET"])), app)
    own = {str(file.relative_to(app)) for file in written} - {"scenario.toml", "pyproject.toml", "README.md"}
    assert own == {
        *("client_app.py", "server_app.py", "board_rows.py", "board_parts/__init__.py", "board_parts/nets.py"),
        *("board_parts/helper.py", "board_parts/unused.py"),
    }
    assert "client_app(Path(__file__).parent)" in (app / "client_app.py").read_text()
    assert (app / "board_rows.py").read_text() == (tmp_path / "board_rows.py").read_text()
    (tmp_path / "server_app.py").write_text("from board_rows import NET\n")
    with pytest.raises(ScenarioError, match="the module 'server_app' has the name of one of the app's; rename it"):
        export(load("digits", parse_all([*SMALL, "method=fedavg", "model.name=server_app:NET"])), tmp_path / "other")


# --- devices that fail ------------------------------------------------------------------------------------------------


def node_of(client: int) -> int:
    """The node of a client."""
    return next(node for node, config in nodes(CLIENTS).items() if config["partition-id"] == client)


def test_a_node_that_cannot_be_a_client_takes_no_part_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = nodes(CLIENTS)
    for number, config in enumerate(
        ({"partition-id": 4}, {}, {"partition-id": 0, "num-partitions": 9}, {"partition-id": 3, "num-partitions": 4})
    ):
        configs[2000 + number] = config
    real = served(tmp_path, LocalGrid(client_app(), configs), "method=fedavg", "rounds.max=1")
    assert real["rounds"] == 1
    which = "must be the number of this node's client"
    said = {line.removeprefix("fedbr: ") for line in capsys.readouterr().err.splitlines() if "takes no part" in line}
    size = "the scenario has data.clients = 4"
    assert said == {
        f"node 2000 takes no part: ValueError: node config: partition-id = 4 of num-partitions = 4: {size}",
        f"node 2001 takes no part: ValueError: node config: partition-id = None: {which}",
        f"node 2002 takes no part: ValueError: node config: partition-id = 0 of num-partitions = 9: {size}",
        "node 2003 takes no part: client 3 is another node's already",
    }


def failing(client: int, round: int, answer: str | FlowerError) -> Any:
    """What the node of a client does in a round: 'silent', 'restart' or an error of Flower."""

    def on_message(node: int, message: Message) -> Message | str | None:
        if (node, message.metadata.message_type, message.metadata.group_id) != (node_of(client), TRAIN, str(round)):
            return None
        return answer if isinstance(answer, str) else Message(answer, reply_to=message)

    return on_message


def test_an_error_on_a_device_ends_the_run_or_leaves_its_visit_out(tmp_path: Path) -> None:
    crash = FlowerError(8, "killed")
    with pytest.raises(RunFailed, match=r"^client 1, round 1, train: killed\n"):
        served(tmp_path, LocalGrid(client_app(), nodes(CLIENTS), failing(1, 0, crash)), "rounds.participants=4")
    grid = LocalGrid(client_app(), nodes(CLIENTS), failing(1, 0, crash))
    skipping = "rounds.participants=4", "faults.on_bad_client=skip", "rounds.max=1"
    assert served(tmp_path, grid, *skipping)["visits"]["failed"] == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (JOB, "this node has not joined the run, or was restarted since"),
        (STATE, "this node lacks the state 1-0.safetensors of client 1 .."),
    ],
)
def test_a_node_that_was_restarted_says_what_it_lacks(record: str, message: str, tmp_path: Path) -> None:
    def on_message(node: int, sent: Message) -> Message | None:
        if sent.metadata.message_type == TRAIN and sent.metadata.group_id == "1":
            state = grid.contexts[node_of(1)].state
            if record == JOB:
                state.pop(JOB, None)
            else:
                state[record] = ConfigRecord()
        return None

    grid = LocalGrid(client_app(), nodes(CLIENTS), on_message)
    with pytest.raises(RunFailed) as raised:
        served(tmp_path, grid, "method=fedavg+scaffold", "rounds.participants=4")
    expected = f"client 1, round 2, train: LostStateError: {message}"
    assert str(raised.value).startswith(expected.removesuffix(" .."))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds.policy=fedasync", "rounds.policy = 'fedasync': the exported server works in rounds; .."),
        ("method=local", "method = 'local': its clients exchange nothing with a server"),
        ("method=fedper", "method = 'fedper': models of clients stay on the devices, .."),
        ("eval.on=both", 'eval.on = "both": models of clients stay on the devices, ..'),
        ("aggregate.sum=fixed_point", 'aggregate.sum = "fixed_point": devices send their updates; ..'),
        (
            "method=fedavg split.after=conv2",
            "split.after = conv2: devices of the app train whole models; ..",
        ),
        ("fleet.tiers.count=2", "fleet.tiers: devices speak with the server directly; leave it out"),
        ("budget.bytes=1 MB", "budget: what devices spend is known when they have; .."),
        ("method_options.broadcast=everyone", 'method_options.broadcast = "everyone": only visited ..'),
    ],
)
def test_what_devices_cannot_do_is_refused_by_its_key(
    override: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_message(
        refused(capsys, "flower", "export", "digits", str(tmp_path / "app"), *_words(override)), f"digits: {message}"
    )
    assert not (tmp_path / "app").exists()


def _words(overrides: str) -> list[str]:
    """Overrides, whose values may have spaces."""
    return re.split(r" (?=[\w.]+=)", overrides)


# --- the records ------------------------------------------------------------------------------------------------------


GOOD = {"client": 0, "round": 0, "seconds": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update": None}, "update: is missing"),
        ({"update": {**GOOD, "client": -1}}, "client: -1 is no count"),
        ({"update": {**GOOD, "seconds": math.inf}}, "update: seconds: inf does not fit"),
        ({"update": {**GOOD, "round": "0"}}, "round: '0' is no count"),
        ({"numbers": {"loss": 1.0}}, "numbers: no metrics"),
        ({"frames": None, "vectors": {}}, "vectors: no arrays"),
        ({"vectors": {"model|a": np.zeros(2)}}, "vectors: model/a: (dtype('float64'), (2,)) does not fit"),
        (
            {"vectors": {"model|a": np.zeros((1, 1), np.float32)}},
            "vectors: model/a: (dtype('float32'), (1, 1)) does not fit",
        ),
        ({"vectors": {"a": np.zeros(2, np.float32)}}, "vectors: name: 'a' does not fit"),
        ({"frames": {"model|a": np.zeros(2, np.float32)}}, "frames: model/a: (dtype('float32'), (2,)) does not fit"),
        ({"error": {"kind": "OSError", "text": "full", "traceback": ""}}, "OSError: full"),
    ],
)
def test_an_answer_that_no_device_of_ours_sends_is_refused(changes: Mapping[str, Any], message: str) -> None:
    content = device_records.update_records(Update(0, 0, {"loss": 1.0}, {}), 1.0)
    for name, value in changes.items():
        if value is None:
            content.pop(name, None)
        elif name in ("vectors", "frames") and value:
            content[name] = ArrayRecord({key: Array(array) for key, array in value.items()})
        else:
            content[name] = ConfigRecord(value)
    with pytest.raises(WireError) as raised:
        device_records.read_update(content)
    assert str(raised.value) == message


def test_arrays_that_would_run_code_are_not_read() -> None:
    content = device_records.update_records(Update(0, 0, {}, {}), 1.0)
    content["vectors"] = ArrayRecord({"model|a": Array("object", (1,), "numpy.ndarray", object_array())})
    with pytest.raises(WireError, match=r"vectors: model\|a: Object arrays cannot be loaded"):
        device_records.read_update(content)


def object_array() -> bytes:
    """The file of an array of Python objects, which numpy would unpickle."""
    import io

    file = io.BytesIO()
    np.save(file, np.array([None]), allow_pickle=True)
    return file.getvalue()


# --- the clock --------------------------------------------------------------------------------------------------------


def test_the_clock_gives_measured_visits_their_times() -> None:
    loaded = load("digits", parse_all([*SMALL, "fleet.server.visit=1 s"]))
    fleet: Fleet = RunInputs(loaded).drawn_fleet
    clock = WallClock(fleet, lambda client: True, lambda: True, lambda: None)
    clock.advance(10.0)
    clock.measured = {
        0: MeasuredTimes(5.0, 2.0, 100, 50),
        1: MeasuredTimes(7.0, bytes_down=100, is_lost=True),
        2: MeasuredTimes(math.inf, bytes_down=100),
    }
    conditions = clock.conditions([0, 1, 2], 0)
    timeline = clock.solve_beside(None, np.full(3, 10.0), [Work(1, 1, 8.0)] * 3, conditions).timeline
    assert timeline.down_end.tolist() == [13.0, math.inf, math.inf]  # three seconds of both ways, then two of computing
    assert timeline.compute_end.tolist() == timeline.up_end.tolist() == [15.0, math.inf, math.inf]
    assert timeline.lost.tolist() == [math.inf, 17.0, math.inf]
    assert (timeline.bytes_down.tolist(), timeline.bytes_up.tolist()) == ([100, 100, 100], [50, 0, 0])
    assert timeline.waiting_joules(20.0, conditions).tolist() == [0.0, 0.0, 0.0]
    assert clock.fleet.links.seconds_per_visit == 0.0
    clock.advance(15.0)
    assert clock.measured == {}


# --- the process that stays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["owner", pytest.param("SIGTERM", marks=pytest.mark.long)])
def test_a_device_keeps_its_process_from_one_message_to_the_next_and_no_longer(end: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    context = Context(1, 1, {"partition-id": 7}, RecordDict(), {})
    try:
        for _ in range(2):
            answer = device_process.ask("join", device_records.join_records(b"{}"), context, owner.pid)
            assert answer["error"] is not None
        (one,) = (each for each in psutil.process_iter(["cmdline"]) if str(owner.pid) in (each.info["cmdline"] or []))
        one.send_signal(signal.SIGINT)  # as of a Ctrl-C, which is for its owner
        if end == "SIGTERM":
            one.terminate()
            one.wait(20)
    finally:
        owner.communicate(b"\n")
    one.wait(20)
    device_process.started.pop(owner.pid).wait()
    assert not (Path(tempfile.gettempdir()) / f"fedbr-device-{os.getuid()}-{owner.pid}").exists()
