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

from scenarios.run import plugin_sources
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
