"""A run of the user's own modules goes on with those that it began with, or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parsed
from scenarios.run import folder_files, plugin_sources
from tests import warm
from tests.scenarios.runs import refused

ROOT = Path(__file__).parents[3]
PLUG_IN = {
    "source_pkg/__init__.py": "",
    "source_pkg/my_method.py": """
from coordinator.methods.spec import ObjectiveSpec
from source_pkg.options import SmoothOptions

SPEC = ObjectiveSpec(
    name="smooth",
    title="label smoothing",
    source="a test",
    options=SmoothOptions,
    neutral="amount = 0",
    client="my_client:Smooth",
)
""",
    "source_pkg/options.py": """
from edge.protocol.options.base import Options

class SmoothOptions(Options):
    amount: float = 0.1
""",
    "my_client.py": """
from my_helper import smooth_loss

from edge.training.client_update import ClientUpdate


class Smooth(ClientUpdate):
    def loss(self, net, x, y):
        loss, noted = smooth_loss(net.run(x), y, self.options.amount)
        self.record_loss(noted)
        return loss
""",
    "my_helper.py": """
from torch.nn import functional as F


def smooth_loss(logits, y, amount):
    return F.cross_entropy(logits, y, label_smoothing=amount), F.cross_entropy(logits, y)
""",
    "unrelated.py": "",
}
FOUND = {"source_pkg", "source_pkg.my_method", "source_pkg.options", "my_client", "my_helper"}
COPIES = ["my_client.py", "my_helper.py", "source_pkg/__init__.py", "source_pkg/my_method.py", "source_pkg/options.py"]
RUN = ("run", "digits", "method=source_pkg.my_method:SPEC", "rounds.max=2", "train.local_steps=1")
KILLED = ("kill", "coordinator.records.store:Ledger.commit", "after", "1")


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def fedbr(folder: Path, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(ROOT)])
    return warm.run(words, env={**os.environ, "PYTHONPATH": path}, **how)


def test_a_run_goes_on_only_with_the_sources_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, PLUG_IN)
    monkeypatch.syspath_prepend(tmp_path)  # for what needs no process of its own
    where = ("--out", str(tmp_path), "--workers", "1", "--json")
    whole = fedbr(tmp_path, *RUN, *where, "--run-id", "whole")
    assert whole.returncode == 0, whole.stderr
    assert fedbr(tmp_path, *RUN, *where, "--run-id", "cut", meddler=KILLED).returncode == -signal.SIGKILL
    folder = tmp_path / "digits" / "cut"
    resume = ("resume", str(folder), "--workers", "1", "--json")
    copies = folder / "sources"
    assert sorted(str(path.relative_to(copies)) for path in copies.rglob("*.py")) == COPIES
    recorded = json.loads((folder / "environment.json").read_text())["sources"]
    assert set(recorded) == FOUND
    helper = tmp_path / "my_helper.py"
    digest = hashlib.sha256(helper.read_bytes()).hexdigest()
    assert recorded["my_helper"] == {"file": str(helper), "sha256": digest}
    assert (copies / "my_helper.py").read_text() == PLUG_IN["my_helper.py"]
    for name in ("source_pkg/my_method.py", "my_client.py", "my_helper.py"):
        (tmp_path / name).write_text(f"{PLUG_IN[name]}# a comment\n")
        assert refused(capsys, *resume) == (
            f"{folder}: {tmp_path / name} has changed (its copy: {copies / name}); to resume this run, "
            "restore the files, or start a new run"
        )
        (tmp_path / name).write_text(PLUG_IN[name])
    (tmp_path / "source_pkg/options.py").unlink()  # so that the row cannot even be loaded
    missing = fedbr(tmp_path, *resume)
    assert missing.returncode == 2
    assert missing.stderr.endswith(
        f"; {tmp_path / 'source_pkg/options.py'} is missing (its copy: {copies / 'source_pkg/options.py'})\n"
    )
    written(tmp_path, PLUG_IN)
    resumed = fedbr(tmp_path, *resume)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["model_sha256"] == json.loads(whole.stdout)["model_sha256"]
    helper.write_text(f"{PLUG_IN['my_helper.py']}# a comment\n")
    assert fedbr(tmp_path, *resume).stdout == resumed.stdout  # it has ended: nothing is trained any more
    verified = json.loads(fedbr(tmp_path, "diff", "--again", str(folder), "--workers", "1", "--json").stdout)
    assert (verified["same"], verified["source_change"]) == (
        True,
        f"{helper} has changed (its copy: {copies / 'my_helper.py'})",
    )


def test_client_sides_specs_and_readers_name_modules_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(
        tmp_path, {"named_row.py": PLUG_IN["source_pkg/my_method.py"].replace("source_pkg.options", "named_options")}
    )
    written(tmp_path, {"named_options.py": PLUG_IN["source_pkg/options.py"]})
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load("digits", parsed(["method=named_row:SPEC + fedprox"]))
    assert plugin_sources.named(loaded) == {
        "named_row", "my_client", "edge.methods.fedprox", "edge.models.digits_cnn", "edge.data.scikit_learn"
    }  # fmt: skip
    assert set(plugin_sources.find(plugin_sources.named(loaded))) == {"named_row", "named_options"}
    assert plugin_sources.find(plugin_sources.named(load("digits", parsed(["method=fedmlb+scaffold"])))) == {}


def test_imports_are_followed_without_executing_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(
        tmp_path,
        {
            "space/deep/pkg/__init__.py": "from . import beside\nraise SystemExit('executed')",
            "space/deep/pkg/method.py": "import json, numpy.linalg, edge.protocol\nfrom ..other import thing as it",
            "space/deep/pkg/beside.py": "def later():\n    from .inner.last import *\nfrom ..... import nowhere",
            "space/deep/pkg/inner/__init__.py": "import twin_of_ours",
            "space/deep/pkg/inner/last.py": "this is no Python",
            "space/deep/other/thing.py": "pattern = '\\d'",
            "twin_of_ours.py": "import space.deep.pkg.method",
            "space/deep/pkg/unused.py": "",
        },
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = plugin_sources.find(["space.deep.pkg.method"])
    assert {name: str(source.file.relative_to(tmp_path)) for name, source in found.items()} == {
        "space.deep.pkg": "space/deep/pkg/__init__.py",
        "space.deep.pkg.method": "space/deep/pkg/method.py",
        "space.deep.pkg.beside": "space/deep/pkg/beside.py",
        "space.deep.pkg.inner": "space/deep/pkg/inner/__init__.py",
        "space.deep.pkg.inner.last": "space/deep/pkg/inner/last.py",
        "space.deep.other.thing": "space/deep/other/thing.py",
        "twin_of_ours": "twin_of_ours.py",
    }


def test_of_an_installed_plug_in_only_its_own_package_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    written(site, {"bought/__init__.py": "import library", "bought/row.py": "from bought import more"})
    written(site, {"bought/more.py": "", "library.py": ""})
    monkeypatch.syspath_prepend(site)
    assert set(plugin_sources.find(["bought.row"])) == {"bought", "bought.row", "bought.more"}


def test_copies_take_the_place_of_those_of_a_start_that_was_broken_off_and_of_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    written(
        tmp_path,
        {"kept.py": "1\n", "run/sources/kept.py": "0\n", "run/sources/mine.py": "", "elsewhere/kept.py": "precious"},
    )
    monkeypatch.syspath_prepend(tmp_path)
    recorded = plugin_sources.keep(plugin_sources.find(["kept"]), run)
    assert (run / "sources" / "kept.py").read_text() == "1\n"
    assert (run / "sources" / "kept.py").stat().st_mode & 0o777 == 0o644
    assert recorded == {
        "kept": plugin_sources.SourceFile(
            str(tmp_path / "kept.py"), "4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865"
        )
    }
    (run / "environment.json").write_text(json.dumps({"sources": {"kept": {"file": "kept.py"}, "../mine": {}}}))
    folder_files.discard(run)
    assert [path.name for path in (run / "sources").iterdir()] == ["mine.py"]
    (run / "sources" / "mine.py").unlink()
    (run / "sources").rmdir()
    (run / "sources").symlink_to(elsewhere)
    with pytest.raises(ScenarioError, match=f"{run / 'sources'} is a link"):
        folder_files.check(run)


def test_what_is_new_missing_or_other_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, {"first.py": "import second, numpy", "second.py": "", "run/x": ""})
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    recorded = plugin_sources.keep(plugin_sources.find(["first"]), run)
    assert plugin_sources.change(recorded, run) == ""
    (tmp_path / "second.py").unlink()
    written(tmp_path, {"first.py": "import second,  numpy", "numpy.py": ""})
    assert plugin_sources.change(recorded, run) == (
        f"{tmp_path}/first.py has changed (its copy: {run}/sources/first.py); "
        f"{tmp_path}/numpy.py is new; "
        f"{tmp_path}/second.py is missing (its copy: {run}/sources/second.py)"
    )


def test_the_same_sources_in_another_folder_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "old", {"moved.py": "1", "run/x": ""})
    with monkeypatch.context() as at_first:
        at_first.syspath_prepend(tmp_path / "old")
        recorded = plugin_sources.keep(plugin_sources.find(["moved"]), tmp_path)
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.syspath_prepend(tmp_path / "new")
    assert plugin_sources.change(recorded, tmp_path) == ""


SELECTION = """
from coordinator.rounds.selection import ClientSelector
from coordinator.rounds.selectors.registry import SelectionRow
from edge.protocol.plugins import PluginOptions


class Options(PluginOptions):
    last: bool = True


class Ends(ClientSelector):
    def __init__(self, options):
        self.last = options.last

    def select(self, context):
        return sorted(context.candidates, reverse=self.last)[: context.count]


NAME = SelectionRow("ends", "clients with the largest numbers", "a test", Options, Ends)
"""
SCHEDULE = """
from edge.protocol.lr_schedules import LrSchedule
from edge.protocol.plugins import PluginOptions


class Options(PluginOptions):
    rounds: int = 1


def warm_up(at, options):
    return at.lr * min(1, (at.round + 1) / (options.rounds + 1))


NAME = LrSchedule("warm-up", "linear in the first rounds", "a test", Options, warm_up)
"""
SERVER = """
from coordinator.aggregation.optimizers import ServerOptimizer, ServerOptimizerRow
from edge.protocol.plugins import PluginOptions


class Options(PluginOptions):
    decay: float = 0.5


class Average(ServerOptimizer):
    def __init__(self, options):
        self.decay, self.average = options.decay, {}

    def step(self, key, current, mean):
        before = self.average.get(key, current)
        self.average[key] = (self.decay * before + (1 - self.decay) * mean).astype("float32")
        return self.average[key]

    def state(self):
        return dict(self.average)

    def restore(self, state):
        self.average = dict(state)


NAME = ServerOptimizerRow("average", "a running average of the means", "a test", Options, "decay = 0", Average)
"""
POLICY = """
import numpy as np

from coordinator.rounds.policy import PolicyRow, SynchronousPolicy
from edge.protocol.plugins import PluginOptions


class Options(PluginOptions):
    fraction: float = 0.5


class Half(SynchronousPolicy):
    def __init__(self, options):
        self.fraction = options.fraction

    def accepted(self, rules, visits, timeline, start):
        end = float(np.sort(timeline.end)[max(0, round(self.fraction * len(visits)) - 1)])
        return timeline.up_end <= end, end


NAME = PolicyRow("half", "rounds end when half of the visits have arrived", "a test", Options, Half)
"""
CODEC = """
import numpy as np

from edge.protocol.codecs.codec import CodecRow, NumberFormat
from edge.protocol.plugins import PluginOptions


class Options(PluginOptions):
    digits: int = 3


class Rounded(NumberFormat):
    is_unbiased = False

    def nbytes(self, count):
        return 4 * count

    def pack(self, numbers, rng):
        return np.round(numbers, self.options.digits).astype("<f4").view(np.uint8)

    def unpack(self, frame, count):
        return np.nan_to_num(frame.view("<f4")).astype(np.float32)


NAME = CodecRow("rounded", "decimal digits", "a test", Options, Rounded, costs_like="fp16")
"""
OF_ALL_KINDS = {
    "kinds_selection": (SELECTION, "rounds.selection", "rounds.selection_options.last", "false"),
    "kinds_schedule": (SCHEDULE, "train.lr_schedule", "train.lr_schedule_options.rounds", "3"),
    "kinds_server": (SERVER, "server", "server_options.decay", "0.9"),
    "kinds_policy": (POLICY, "rounds.policy", "rounds.policy_options.fraction", "0.7"),
    "kinds_codec": (CODEC, "codec.up.kind", "codec.up.digits", "2"),
}
"""Module -> (its text, key that names its row, key of an option, value of that)"""


def test_rows_of_every_kind_are_imported_from_the_current_folder_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, {f"{module}.py": text for module, (text, *_) in OF_ALL_KINDS.items()})

    def here(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
        # Without the current folder, as the installed command starts.
        return warm.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, **how)

    rows = [f"{key}={module}:NAME" for module, (_, key, *_) in OF_ALL_KINDS.items()]
    brief = ("digits", "method=fedavg", "rounds.max=2", "train.local_steps=1", *rows)
    set_options = [f"{option}={value}" for _, _, option, value in OF_ALL_KINDS.values()]
    checked = here("check", *brief, *set_options, "--json")
    assert checked.returncode == 0, checked.stderr
    monkeypatch.syspath_prepend(tmp_path)  # for what needs no process of its own
    for _, _, option, value in OF_ALL_KINDS.values():
        unknown = refused(capsys, "check", *brief, f"{option}s={value}")
        of_codec = "codec.up: rounded: no option 'digitss'; did you mean 'digits'?"
        why = of_codec if option.startswith("codec") else f"unknown key {option}s, did you mean {option!r}?"
        assert unknown == f"command line: {why}"
    where = ("--out", str(tmp_path), "--workers", "1", "--json")
    assert here("run", *brief, *where, "--run-id", "cut", meddler=KILLED).returncode == -signal.SIGKILL
    folder = tmp_path / "digits" / "cut"
    resume = ("resume", str(folder), "--allow-code", "--workers", "1", "--json")
    for module, (text, *_) in OF_ALL_KINDS.items():
        row = tmp_path / f"{module}.py"
        row.write_text(f"{text}# a comment\n")
        change = f"{row} has changed (its copy: {folder / 'sources' / row.name})"
        why = f"{folder}: {change}; to resume this run, restore the files, or start a new run"
        assert refused(capsys, *resume) == why
        if module == "kinds_policy":
            verified = json.loads(
                here("diff", "--again", str(folder), "--allow-code", "--workers", "1", "--json").stdout
            )
            assert (verified["same"], verified["source_change"]) == (True, change)
        row.write_text(text)
    whole, resumed = here("run", *brief, *where), here(*resume)
    assert (whole.returncode, resumed.returncode) == (0, 0), whole.stderr + resumed.stderr
    assert json.loads(resumed.stdout)["model_sha256"] == json.loads(whole.stdout)["model_sha256"]
