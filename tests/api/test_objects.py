"""Classes, functions, rows and arrays in the place of names: what is written of them, and what is refused.

Most tests execute the text of a script in a module that stands in for ``__main__``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fedbr
from coordinator.workers.launcher import WorkerLauncher
from edge.data.registry import dataset
from edge.protocol.plugins import display_name
from scenarios.api.objects import as_names, axis_names
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.session import Session
from tests import warm

ROOT = Path(__file__).parents[2]
Script = Callable[[str], dict[str, Any]]

NET = """
import torch
from torch import nn

HIDDEN = 16
UNUSED = open


def size(factor=1):
    return HIDDEN * factor  # a comment


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Net(nn.Module):
    def __init__(self, classes, features, width=8):
        super().__init__()
        self.inner = nn.Linear(features, size())
        self.norm = nn.LayerNorm(HIDDEN)
        self.act = Swish()
        self.head = nn.Linear(HIDDEN, classes)

    def forward(self, x):
        return self.head(self.act(self.norm(self.inner(x))))


UNUSED_TOO = Net(2, 3)
"""
NET_MODULE = """\
from torch import nn
import torch


HIDDEN = 16


class Net(nn.Module):

    def __init__(self, classes, features, width=8):
        super().__init__()
        self.inner = nn.Linear(features, size())
        self.norm = nn.LayerNorm(HIDDEN)
        self.act = Swish()
        self.head = nn.Linear(HIDDEN, classes)

    def forward(self, x):
        return self.head(self.act(self.norm(self.inner(x))))


class Swish(nn.Module):

    def forward(self, x):
        return x * torch.sigmoid(x)


def size(factor=1):
    return HIDDEN * factor
"""
METHOD = """
from pydantic import Field
from coordinator.methods.spec import CorrectionSpec, ObjectiveSpec
from edge.protocol.options.base import Options
from edge.training.client_update import ClientUpdate, GradientCorrection


class Pull(Options):
    mu: float = Field(default=0.5, ge=0)


class Update(ClientUpdate):
    pass


class Anchor(GradientCorrection):
    pass


SPEC = ObjectiveSpec("my-method", "a title", "a source", Pull, "mu = 0", client=Update)
NAMED = ObjectiveSpec("named", "a title", "a source", Options, "none", client="__main__:Update")
CORRECTION = CorrectionSpec("anchor", "a title", "a source", Options, "none", Anchor)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Executes a text as the script that runs, with a cache of its own, and returns its names."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    count = 0

    def execute(text: str) -> dict[str, Any]:
        nonlocal count
        count += 1
        file = tmp_path / f"script{count}.py"
        file.write_text(text)
        main = ModuleType("__main__")
        main.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "__main__", main)
        exec(compile(text, str(file), "exec"), vars(main))
        return vars(main)

    return execute


def module_text(tmp_path: Path, module: str) -> str:
    return (tmp_path / "cache" / "fedbr-edge" / "objects" / f"{module}.py").read_text()


def pair(examples: int = 40, classes: int = 4) -> tuple[Any, Any]:
    """Six features of each example, and classes in turn."""
    y = np.arange(examples) % classes
    return np.random.default_rng(0).normal(size=(classes, 6))[y], y


def test_a_module_has_what_a_class_uses_and_nothing_else(script: Script, tmp_path: Path) -> None:
    named = as_names({"model": script(NET)["Net"], "data": pair()}, "digits")
    row, _, attribute = named["model.name"].partition(":")
    made = import_module(row).ROW
    assert (attribute, made.name, made.kind, made.width) == ("ROW", "Net", "features", 8)
    assert made.children == (("inner", "norm", "act"), ("head",))  # a block begins with weights of two dimensions
    assert module_text(tmp_path, made.stages.partition(":")[0]) == NET_MODULE
    assert "torch" not in module_text(tmp_path, row)


def test_a_model_is_made_for_the_file_of_data_that_a_run_or_a_scenario_names(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "t.csv"
    file.write_text("label,a,b\n" + "".join(f"{place % 2},{place},1\n" for place in range(10)))
    net = script(NET)["Net"]
    for given, scenario in (
        ({"model": net, "data.file": str(file)}, "digits"),
        ({"model": net}, {"extends": "digits", "data": {"file": str(file)}}),
    ):
        row = as_names(given, scenario)["model.name"].partition(":")[0]
        assert import_module(row).ROW.kind == "features"


def test_a_name_depends_on_the_code_alone(script: Script) -> None:
    def name(text: str) -> str:
        return str(as_names({"model": script(text)["Net"]}, "digits")["model.name"])

    other = (
        NET.replace("HIDDEN = 16\n", "")
        .replace("  # a comment", "")
        .replace("\n\n\nclass Net", "\nHIDDEN = 16\nclass Net")
    )
    assert name("# moved\n\n" + other) == name(NET)
    assert name(NET.replace("HIDDEN = 16", "HIDDEN = 17")) != name(NET)
    assert name(NET.replace("UNUSED = open", "UNUSED = print")) == name(NET)


def test_a_method_names_its_client_side_and_both_are_found(script: Script, tmp_path: Path) -> None:
    main = script(METHOD)
    named = as_names({"method": main["SPEC"]})["method"]
    loaded = load("digits", parse_all([f"method={named}", "method_options.mu=0.25"]))
    client, _, attribute = loaded.method.objective.client.partition(":")
    assert (display_name(named), attribute, loaded.options.model_dump()) == ("my_method", "Update", {"mu": 0.25})
    assert issubclass(import_module(client).Update, import_module("edge.training.client_update").ClientUpdate)
    assert "client_update" not in module_text(tmp_path, named.partition(":")[0])
    assert as_names({"method": main["NAMED"]})["method"].startswith("named_")
    assert load("digits", as_names({"method": main["NAMED"]})).method.objective.client == f"{client}:Update"
    joined = as_names({"method": ("fedmlb", main["CORRECTION"], main["Anchor"])})["method"]
    assert [display_name(part) for part in joined.split("+")] == ["fedmlb", "anchor", "Anchor"]


@pytest.mark.parametrize(
    ("key", "definition"),
    [
        ("method", "from edge.training.client_update import ClientUpdate\nclass Mine(ClientUpdate): pass"),
        ("server", "from coordinator.aggregation.optimizers import ServerOptimizer\nclass Mine(ServerOptimizer): pass"),
        ("data.partition.kind", "import numpy as np\ndef Mine(labels, ids, clients, classes, rng, options): return []"),
        ("train.lr_schedule", "def Mine(at, options): return at.lr"),
        ("rounds.selection", "from coordinator.rounds.selection import ClientSelector as C\nclass Mine(C): pass"),
        ("rounds.policy", "from coordinator.rounds.policy import SynchronousPolicy as P\nclass Mine(P): pass"),
        ("rounds.policy", "from coordinator.rounds.policy import AsynchronousPolicy as P\nclass Mine(P): pass"),
        ("train.lr_schedule", "Mine = lambda at, options: at.lr"),
        ("train.lr_schedule", "from tests.api.test_objects import importable as Mine"),
        (
            "train.lr_schedule",
            "from edge.protocol.plugins import PluginOptions\nfrom edge.protocol.lr_schedules import LrSchedule\n"
            "RATES = {'a': (1, 0.5)}\nMine = LrSchedule('Mine', '', '', PluginOptions, lambda at, o: RATES['a'][1])",
        ),
    ],
)  # fmt: skip
def test_each_plug_in_point_takes_the_thing_itself(key: str, definition: str, script: Script) -> None:
    table, _, last = key.rpartition(".")
    value = script(definition)["Mine"]
    nested = as_names({table: {last: value}} if table else {key: value})
    named = nested[table][last] if table and "." not in table else as_names({key: value})[key]
    assert display_name(named) == ("importable" if "tests.api" in definition else "Mine")
    load("digits", {"method": "fedavg", key: named})


STAGE = """
from pydantic import Field
from edge.protocol.codecs.codec import CodecRow
from edge.protocol.codecs.sign import Sign
from edge.protocol.plugins import PluginOptions


class Mine(Sign): pass


class Options(PluginOptions):
    amount: float = Field(default=1, ge=0)


ROW = CodecRow("with-options", "", "", Options, Mine, costs_like="sign")
"""


def test_stages_of_codecs_are_classes_and_rows_alone_in_lists_and_by_slot(script: Script) -> None:
    main = script(STAGE)
    row, stage = main["ROW"], main["Mine"]
    codec = as_names(
        {
            "codec": {
                "up": stage,
                "down": [{"kind": "topk", "ratio": 0.5}, {"kind": row, "amount": 3}],
                "up_slots": {"control": stage, "kind": {"kind": "fp16"}},
                "error_feedback": True,
            },
            "codec.down_slots": {"teacher": [row]},
        }
    )
    up = codec["codec"]
    assert display_name(up["up"]["kind"]) == "Mine"
    assert [up["down"][0], up["down"][1]["amount"]] == [{"kind": "topk", "ratio": 0.5}, 3]
    assert display_name(up["down"][1]["kind"]).startswith("with_options")
    assert (up["up_slots"], up["error_feedback"]) == ({"control": up["up"], "kind": {"kind": "fp16"}}, True)
    assert codec["codec.down_slots"] == {"teacher": [{"kind": up["down"][1]["kind"]}]}
    assert as_names({"codec.up.kind": stage}) == {"codec.up.kind": up["up"]["kind"]}
    resolved = load("digits", {f"codec.{key}": value for key, value in up.items() if key in ("up", "down")}).scenario
    assert resolved.codec.down[1] == {"kind": up["down"][1]["kind"], "amount": 3}
    key, values = axis_names("codec.up", [{"kind": "sign"}, stage], {}, "digits")
    assert (key, values) == ("codec.up", [{"kind": "sign"}, up["up"]])
    with pytest.raises(ScenarioError, match=r"codec.up = Options: must be a class derived from Reduction or class"):
        as_names({"codec": {"up": main["Options"]}})


def importable(at: Any, options: Any) -> float:
    """A schedule of a module that can be imported."""
    return float(at.lr)


def test_metrics_are_a_list_and_measure_examples_or_models(script: Script) -> None:
    main = script(
        "from edge.training.metrics.metric import Metric\n"
        "class PerExample(Metric):\n    def measure(self, net, x, y, logits): return {}\n"
        "class OfModel(Metric):\n    def measure_model(self, net, batches, rng): return {}\n"
    )
    named = as_names({"eval": {"metrics": ["accuracy", main["PerExample"], main["OfModel"]]}})["eval"]["metrics"]
    rows = [import_module(name.partition(":")[0]).ROW for name in named[1:]]
    assert (named[0], [(row.name, row.per_example) for row in rows]) == (
        "accuracy",
        [("PerExample", True), ("OfModel", False)],
    )


SELECTOR = "from coordinator.rounds.selection import ClientSelector\nclass Mine(ClientSelector): pass\n"
SCHEDULE = "def mine(at, options): return at.lr * factor\n"


@pytest.mark.parametrize(
    ("key", "text", "given", "why"),
    [
        ("rounds.selection", SELECTOR + "mine = Mine()", "mine", "Mine: a Mine has a state that no other process can"),
        ("rounds.selection", SELECTOR + "Mine.more = 3", "Mine", "Mine: Mine.more is not what the notebook or script"),
        (
            "rounds.selection",
            SELECTOR + "def make():\n    class Inner(Mine): pass\n    return Inner\nmine = make()",
            "mine",
            "make.<locals>.Inner: is defined within a function, whose local names no other process has; define",
        ),
        ("rounds.selection", SELECTOR + "mine = [Mine]", "mine", "list: a run takes one; fedbr.compare and fedbr.swee"),
        (
            "train.lr_schedule",
            "import threading\nfactor = threading.Lock()\n" + SCHEDULE,
            "mine",
            "mine: mine uses factor, which is no definition, import or constant, but a lock that only this process "
            "has; make it within the class or function, or in a module of your own that is imported",
        ),
        (
            "train.lr_schedule",
            "factor = list(range(100_000))\n" + SCHEDULE,
            "mine",
            "mine: mine uses factor, which is too large for a constant",
        ),
        ("train.lr_schedule", SELECTOR, "Mine", "Mine: must be a function, or a row"),
        ("data", "import numpy", "numpy.zeros((4, 6))", "ndarray: must be (x, y), ((x, y), (x_test, y_test)) or"),
    ],
)  # fmt: skip
def test_what_cannot_be_rebuilt_is_refused_with_the_reason(
    key: str, text: str, given: str, why: str, script: Script
) -> None:
    main = script(text.replace("print_code", "(lambda at, options: 1).__code__"))
    with pytest.raises(ScenarioError) as refused:
        as_names({key: eval(given, main)}, "digits")
    assert str(refused.value).startswith(f"{key} = {why}")


def test_values_of_a_grid_are_called_as_they_are(script: Script) -> None:
    main = script(NET + "\nclass Other(Net): pass")
    key, names = axis_names("model", [main["Net"], main["Other"]], {"data": pair()}, "digits")
    assert (key, [display_name(name) for name in names]) == ("model.name", ["Net", "Other"])
    assert axis_names("train.lr", [0.1, 0.2], {}, "digits") == ("train.lr", [0.1, 0.2])
    with pytest.raises(ScenarioError, match="model: Net is given twice; give each class or function a name of its own"):
        axis_names("model", [main["Net"], main["Net"]], {"data": pair()}, "digits")


# --- arrays ---------------------------------------------------------------------------------------------------------


def test_a_pair_is_split_with_evenly_many_of_each_class_and_named_by_its_content(script: Script) -> None:
    script("")
    x, y = pair()
    data = fedbr.dataset(x, y, test=0.25, name="pens")
    assert (np.bincount(data.train.y).tolist(), np.bincount(data.test.y).tolist()) == ([7, 8, 7, 8], [3, 2, 3, 2])
    assert repr(data) == "<pens: 30 training and 10 test examples, features (6,), 4 classes>"
    name = as_names({"data": data})["data.name"]
    assert name == f"pens/features-0/6/4/{data.row.content}"
    assert (dataset(name), display_name(name)) == (data.row, "pens")
    same = fedbr.dataset(x.tolist(), y.astype(np.int16).tolist(), test=0.25, name="pens")
    assert same.row == data.row
    assert fedbr.dataset(x, y, test=0.25, seed=1).row.content != data.row.content
    given = as_names({"data": ((x, y), (x[:8], y[:8]))})["data.name"]
    assert given == f"arrays/features-0/6/4/{fedbr.dataset(x, y, x[:8], y[:8]).row.content}"


def test_labels_are_texts_or_listed_and_classes_without_an_example_are_noted(script: Script) -> None:
    script("")
    x = np.zeros((40, 6), np.float32)
    data = fedbr.dataset(x, np.array(["dog", "cat"])[np.arange(40) % 2])
    assert (data.class_names, np.bincount(data.train.y).tolist(), data.notes) == (("cat", "dog"), [16, 16], ())
    gaps = np.array([0, 3, 7, 250])[np.arange(40) % 4]
    wide = fedbr.dataset(x, gaps)
    assert wide.row.classes == 251
    with pytest.warns(UserWarning, match="^data: 247 of 251 classes have no training example"):
        as_names({"data": wide})
    listed = fedbr.dataset(x, gaps, classes=[250, 7, 3, 0])
    assert (listed.class_names, np.bincount(listed.train.y).tolist()) == (("250", "7", "3", "0"), [8, 8, 8, 8])
    with pytest.raises(fedbr.DataError, match=r"y: example 3 is '250', which is not among classes = \['0', '3', '7'\]"):
        fedbr.dataset(x, gaps, classes=[0, 3, 7])


def test_missing_numbers_are_refused_left_out_or_the_mean_of_their_clients_training_examples() -> None:
    x = [["1", "4"], ["3", "?"], ["5", None], ["9", "10"], ["", "30"]]
    given: dict[str, Any] = {"clients": list("aabbb"), "clients_test": ["a"], "kind": "features"}
    pairs = (np.array(x, object), [0, 1, 0, 1, 0]), (np.array([[np.nan, 2.0]]), [0])
    with pytest.raises(fedbr.DataError, match="training examples: example 1 has NaN or infinite numbers, as 4 in all;"):
        fedbr.dataset(*pairs[0], *pairs[1], **given)
    filled = fedbr.dataset(*pairs[0], *pairs[1], missing="mean", **given)
    assert filled.train.x.tolist() == [[1, 4], [3, 4], [5, 20], [9, 10], [7, 30]]
    assert filled.test.x.tolist() == [[2, 2]]  # of client a, whose training examples have 1 and 3
    assert filled.notes == ("missing numbers of 4 examples are the means of their client's training examples",)
    kept = fedbr.dataset(*pairs[0], (np.ones((1, 2))), [0], missing="drop", **given)
    assert (kept.train.x.tolist(), kept.train.y.tolist()) == ([[1, 4], [9, 10]], [0, 1])
    with pytest.raises(fedbr.DataError, match="missing = 'fill': "):
        fedbr.dataset(*pairs[0], missing="fill")  # type: ignore[arg-type]  # a user's mistake


@pytest.mark.parametrize(
    ("x", "kind", "shape", "number"),
    [
        (np.full((4, 8, 8), 16.0), "image", (1, 8, 8), 16),
        (np.full((4, 3, 8, 8), 255, np.uint8), "image", (3, 8, 8), 255),
        (np.full((4, 12, 3, 3), 255, np.uint8), "image", (12, 3, 3), 255),  # patches of many channels
        (np.full((4, 5), 7), "tokens", (5,), 8),
        (np.full((4, 5), 7, np.float16), "features", (5,), None),
    ],
)
def test_the_form_of_arrays_says_what_they_are(x: Any, kind: str, shape: tuple[int, ...], number: int | None) -> None:
    row = fedbr.dataset(x, [0, 1, 0, 1], x, [1, 0, 1, 0]).row
    assert (row.kind, row.shape, row.classes) == (kind, shape, 2)
    assert (row.vocabulary if kind == "tokens" else number and row.pixel_max) == number


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((np.zeros((4, 6)), [0, 1]), "x of shape (4, 6) and y of shape (2,): x has a row for each example, and y"),
        ((np.array([["a", "b"]] * 2), [0, 1]), "x: example 0, column 0: 'a' is no number; a category needs"),
        ((np.zeros((4, 6)), [0, 1, 0, 1], np.zeros((1, 6)), [2]), "y_test: class 2 has no training example; leave it"),
        ((np.zeros((2, 6)), [0.5, 1]), "test = 0.2: none of 2 examples is left for the test set"),
        ((np.zeros((2, 6)), [1, 2]), "y: begins with 1; classes are counted from 0: give y - 1, or say classes="),
        ((np.full((2, 8, 8), 0.5), [0, 1]), "x: image needs whole numbers from 0 to 255; pixels in 0..1 become them"),
        ((np.zeros((2, 32, 32, 3)), [0, 1]), "x of shape (2, 32, 32, 3): has its channels last; images are (channels"),
        ((np.zeros((2, 28, 20, 1)), [0, 1]), "x of shape (2, 28, 20, 1): has its channels last; images are (channels"),
        ((np.full((9, 6), np.nan), [0] * 9), "training examples: example 0 has NaN or infinite numbers"),
        ((np.zeros((2, 6)), [0, 1], np.zeros((2, 6))), "data: x_test and y_test belong together"),
        ((np.zeros((2, 6)), [0, 1], np.zeros((2, 5)), [0, 1]), "test examples: x is float32 of shape (2, 5), not"),
        (([[1, 2], [3]], [0, 1]), "x: is no array: "),
        ((np.zeros((2, 2, 2, 2, 2)), [0, 1], np.zeros((2, 6)), [0, 1]), "data set arrays: examples of shape (2, 2, 2"),
        ((np.broadcast_to(np.float32(0), (10**6, 10**6)), np.zeros(1)), "x of shape (1000000, 1000000) and y of"),
    ],
)  # fmt: skip
def test_arrays_that_are_no_data_set_are_refused(given: tuple[Any, ...], why: str) -> None:
    with pytest.raises(fedbr.DataError) as refused:
        fedbr.dataset(*given)
    assert str(refused.value).startswith(why)


# --- from the run folder alone --------------------------------------------------------------------------------------

CELLS = (
    "import numpy as np\nfrom torch import nn\nimport fedbr\nHIDDEN = 8",
    "class Net(nn.Module):\n"
    "    def __init__(self, classes, features):\n"
    "        super().__init__()\n"
    "        self.inner = nn.Linear(features, HIDDEN)\n"
    "        self.act = nn.ReLU()\n"
    "        self.head = nn.Linear(HIDDEN, classes)\n"
    "    def forward(self, x):\n"
    "        return self.head(self.act(self.inner(x)))",
    "import os, signal\n"
    "y = np.arange(80) % 4\n"
    "x = np.random.default_rng(0).normal(size=(4, 6))[y]\n"
    "def die(round):\n"
    "    if round.round == 2:\n"
    "        os.kill(os.getpid(), signal.SIGKILL)\n"
    "limits = {'rounds.max': 3, 'train.local_steps': 1, 'rounds.participants': 2, 'data.clients': 4}\n"
    "given = {'model': Net, 'data': (x, y), 'method': 'fedavg'}\n"
    "fedbr.run('digits', out='runs', run_id='cut', workers=1, on_round=die, **given, **limits)",
)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose notebook was killed after its second round, away from the notebook and its cache."""
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    home = tmp_path_factory.mktemp("home")
    v4: Any = import_module("nbformat.v4")  # untyped
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in CELLS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        patch.setenv("PYTHONPATH", str(ROOT))
        resources = {"metadata": {"path": str(home)}}
        with pytest.raises(DeadKernelError), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    place = tmp_path_factory.mktemp("elsewhere") / "cut"
    shutil.copytree(home / "runs" / "digits" / "cut", place)
    shutil.rmtree(home)
    return place


def fedbr_on(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command on a run, in the folder that it lies in, with a cache of that folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder.parent / "cache")}
    return warm.run((words[0], folder.name, *words[1:]), cwd=folder.parent, env=environment)


def copied(cut: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cut, tmp_path / "run"))


def test_a_killed_notebooks_run_goes_on_from_its_folder_alone(cut: Path, tmp_path: Path) -> None:
    folder = copied(cut, tmp_path)
    resumed = fedbr_on(folder, "resume", "--allow-code", "--workers", "1", "--json")
    assert (resumed.returncode, json.loads(resumed.stdout)["rounds"]) == (0, 3), resumed.stderr
    verified = fedbr_on(folder, "diff", "--again", "--allow-code", "--workers", "1", "--json")
    assert json.loads(verified.stdout)["same"] is True
    for words in (("replay",), ("replay", "--measure", "loss", "--workers", "1")):
        assert fedbr_on(folder, *words, "--allow-code").returncode == 0
    record = json.loads((folder / "environment.json").read_text())
    assert sorted(display_name(f"{name}:ROW") for name in record["sources"]) == ["Net", "Net"]
    assert record["data"]["source"] == "arrays (given in Python)"


def test_code_of_a_folder_is_executed_only_if_it_is_allowed_and_what_it_was(cut: Path, tmp_path: Path) -> None:
    folder = copied(cut, tmp_path)
    refused = fedbr_on(folder, "resume", "--workers", "1")
    assert (refused.returncode, "is in no folder of your own search path" in refused.stderr) == (2, True)
    for copy in (folder / "sources").iterdir():
        copy.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n{copy.read_text()}")
    changed = fedbr_on(folder, "resume", "--allow-code", "--workers", "1")
    assert (changed.returncode, "No module named 'Net_" in changed.stderr) == (2, True)
    assert not (tmp_path / "executed").exists()


def test_arrays_of_a_folder_are_used_only_if_they_are_what_they_were(cut: Path, tmp_path: Path) -> None:
    folder = copied(cut, tmp_path)
    np.save(folder / "arrays" / "train_y.npy", np.zeros(64, np.int64))
    changed = fedbr_on(folder, "resume", "--allow-code", "--workers", "1")
    assert (changed.returncode, "the content has the hash" in changed.stderr) == (2, True)
    shutil.rmtree(folder / "arrays")
    missing = fedbr_on(folder, "resume", "--allow-code", "--workers", "1")
    assert missing.returncode != 0
    assert "its arrays are in no cache of this machine; give them in Python again" in missing.stderr


def test_objects_are_given_to_several_runs_and_gone_on_with_in_the_same_process(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = script(NET + METHOD + "class Wide(Net): pass")
    x, y = pair(80)
    small = {"train.local_steps": 1, "rounds.max": 1, "rounds.participants": 2, "data.clients": 4}
    made: dict[str, Any] = {"out": tmp_path / "runs", "workers": 1, "progress": False, "data": (x, y), **small}
    as_names({"method": main["SPEC"]})  # workers search the folders that are searched here when their launcher starts
    with WorkerLauncher() as launcher:
        monkeypatch.setattr(Session, "_launcher", lambda session, runs: nullcontext(launcher))
        run = fedbr.run("digits", model=main["Net"], method=main["SPEC"], **made)
        assert (repr(run).split(": ")[1][:9], run.stopped_by) == ("my_method", "rounds")
        longer = fedbr.resume(run, workers=1, progress=False, rounds={"max": 2})
        assert longer.summary["rounds"] == 2
        inputs, labels = longer.test_set()
        assert tuple(longer.model()(inputs).shape) == (len(labels), 4)
        swept = fedbr.sweep("digits", {"model": [main["Net"], main["Wide"]]}, seeds=1, method="fedavg", **made)
        assert [row["name"] for row in swept.result["rows"]] == ["model.name=Net", "model.name=Wide"]
        compared = fedbr.compare("digits", ["fedavg", main["SPEC"]], model=main["Net"], **made)
        assert [display_name(each.summary["method"]) for each in compared] == ["fedavg", "my_method"]


@pytest.mark.usefixtures("warm_workers")
def test_arrays_that_say_whose_they_are_make_natural_clients(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    who = np.repeat(["ada", "bob", "cy"], 40)
    x, y = rng.normal(size=(120, 6)).astype(np.float32), np.tile(np.arange(4), 30)
    given = fedbr.dataset(x, y, clients=who, name="pens")
    assert given.client_names == ("ada", "bob", "cy")
    keys: dict[str, Any] = {
        "rounds.participants": 3,
        "rounds.max": 1,
        "model.name": "softmax",
    }
    ran = fedbr.run("digits", method="fedavg", data=given, out=tmp_path, workers=1, **keys)
    assert ran.scenario["data"]["clients"] == 3
    assert set(ran.visits["samples"].to_pylist()) == {64}  # twice 32: a fifth of each 40 are tests
    assert display_name(str(ran.scenario["data"]["name"])) == "pens"
    with pytest.raises(fedbr.DataError, match="clients: int64 of shape \\(3,\\); give a whole number or a text"):
        fedbr.dataset(x, y, clients=[1, 2, 3])
