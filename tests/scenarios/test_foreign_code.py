"""Run folders and scenarios from somebody else are data: nothing that lies in or beside them is imported unless their
user says so.

One run of a user's own method is killed after the first of its two rounds. What a test gets is that folder as a
stranger could send it: with modules of the method's name, and of packages that libraries import if they are there,
everywhere, and an environment that names them. Each of them writes a file when it is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedbr
from scenarios.config import search_path
from scenarios.config.errors import ScenarioError
from tests import warm
from tests.crossed import every

ROOT = Path(__file__).parents[2]
METHOD = """
from coordinator.methods.spec import ObjectiveSpec
from edge.protocol.options.base import Options

SPEC = ObjectiveSpec("mine", "plain", "a test", Options, "always", client="sent_side:Mine")
"""
SIDE = "from edge.training.client_update import ClientUpdate\n\n\nclass Mine(ClientUpdate):\n    pass\n"
OPTIONAL = ("defusedxml", "olefile", "cairocffi", "cupy", "numexpr", "bottleneck", "colorama", "IPython", "win32api")
"""Packages that libraries import only if they are installed, which these are not"""
KILLED = ("kill", "coordinator.records.store:Ledger.commit", "after", "1")
COMMANDS = {
    "report": ("report", "-o", "{out}/page.html", "--csv", "{out}/rounds.csv"),
    "replay": ("replay",),
    "diff": ("diff", "--again", "--workers", "1"),
    "measure": ("replay", "--measure", "loss", "--workers", "1"),
    "resume": ("resume", "--workers", "1"),
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user's modules, and in ``runs`` a run with them that was killed."""
    home = tmp_path_factory.mktemp("home")
    (home / "sent.py").write_text(METHOD)
    (home / "sent_side.py").write_text(SIDE)
    words = ("run", "digits", "method=sent:SPEC", "rounds.max=2", "train.local_steps=1", "--workers", "1")
    where = ("--out", str(home / "runs"), "--run-id", "cut")
    assert fedbr_in(home, *words, *where, meddler=KILLED).returncode == -signal.SIGKILL
    return home


def fedbr_in(
    folder: Path, *words: str, path: str | None = None, meddler: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """A command line in a folder; ``path``: the user's own entries of PYTHONPATH."""
    entries = os.pathsep.join([*([] if path is None else [path]), str(ROOT)])
    return warm.run(words, cwd=folder, env={**os.environ, "PYTHONPATH": entries}, meddler=meddler)


def as_sent(own: Path, place: Path) -> Path:
    """The run's folder as a stranger sends it, below ``place``; modules in it write ``imported`` beside ``place``."""
    folder = Path(shutil.copytree(own / "runs" / "digits" / "cut", place / "sent_runs" / "digits" / "cut"))
    harm = f"open({str(place.with_name('imported'))!r}, 'a').write(__name__ + ' ')\n"
    for where in (place, folder.parent, folder, folder / "sources"):
        where.mkdir(exist_ok=True)
        (where / "sent.py").write_text(harm + METHOD)
        (where / "sent_side.py").write_text(harm + SIDE)
        for name in OPTIONAL:
            (where / f"{name}.py").write_text(f"{harm}raise ImportError(__name__)\n")
    return folder


def recorded_at(folder: Path, file: str) -> str:
    """Say in a run's environment that its method was imported from there; returns the hash of what lies there."""
    path = folder / "environment.json"
    record = json.loads(path.read_text())
    content = Path(file).read_bytes() if Path(file).is_file() else b""
    digest = hashlib.sha256(content).hexdigest()
    record["sources"] = {"sent": {"file": file, "sha256": digest}}
    path.write_text(json.dumps(record))
    return digest


@pytest.mark.parametrize(
    ("file", "cwd", "run", "commands"),
    [
        ("{folder}/sent.py", "{folder}", ".", ("report", "replay", "diff", "measure", "resume")),
        ("{folder}/sources/sent.py", "{folder}/..", "cut", ("replay", "diff", "measure", "resume")),
        ("/proc/self/cwd/sent.py", "{place}", "{folder}", ("replay", "diff", "resume")),
    ],
    ids=["inside", "above", "beside"],
)
def test_no_command_imports_what_a_foreign_folder_brings(
    file: str, cwd: str, run: str, commands: tuple[str, ...], own: Path, tmp_path: Path
) -> None:
    place = tmp_path / "mail"
    folder = as_sent(own, place)
    names = {"folder": folder, "place": place}
    digest = recorded_at(folder, file.format(**names))
    for command in commands:
        word, *options = [part.format(out=tmp_path) for part in COMMANDS[command]]
        ended = fedbr_in(Path(cwd.format(**names)).resolve(), word, run.format(**names), *options)
        assert "Traceback" not in ended.stderr
        assert ended.returncode == (0 if command == "report" else 2), ended.stderr
        if command != "report":
            assert ended.stderr == (
                f"fedbr: scenario.toml: method: the module 'sent' (SHA-256 {digest}, then in "
                f"{file.format(**names)}) is in no folder of your own search path; it is imported from the current "
                "folder or from there only if you trust the run: add --allow-code (allow_code=True in Python), or "
                "name its folder in PYTHONPATH\n"
            )
    assert not (tmp_path / "imported").exists()


def test_a_user_who_allows_it_has_modules_of_the_current_folder_or_of_the_record_imported(
    own: Path, tmp_path: Path
) -> None:
    folder = as_sent(own, tmp_path / "mail")
    recorded_at(folder, str(tmp_path / "mail" / "sent.py"))
    ended = fedbr_in(tmp_path, "replay", str(folder), "--allow-code")
    assert (ended.returncode, (tmp_path / "imported").read_text()) == (0, "sent "), ended.stderr
    recorded_at(folder, str(folder / "sent.py"))  # never from within the run's folder
    assert fedbr_in(tmp_path, "replay", str(folder), "--allow-code").returncode == 2
    assert fedbr_in(folder.parent, "replay", "cut", "--allow-code").returncode == 0  # but from the current one
    assert (tmp_path / "imported").read_text() == "sent sent "


@pytest.mark.parametrize(
    ("module", "cwd", "file"),
    [
        ("sent", "{folder}", "{folder}/sent.py"),  # the current folder is the run's
        ("sent", "{link}", "{link}/sent.py"),  # or is reached through a link
        ("mine", "{mine}", "{mine}/mine.py"),
        ("mail.sent_runs.digits.cut.sent", "{place}/..", "{place}/../mail/sent_runs/digits/cut/sent.py"),
    ],
    ids=["inside", "link", "linked-import", "package"],
)
def test_nothing_is_imported_from_a_runs_folder_although_its_user_allows_code(
    module: str, cwd: str, file: str, own: Path, tmp_path: Path
) -> None:
    place, link, mine = tmp_path / "mail", tmp_path / "link", tmp_path / "mine"
    folder = as_sent(own, place)
    link.symlink_to(folder)
    mine.mkdir()
    (mine / "sent.py").symlink_to(folder / "sent.py")
    (mine / "mine.py").write_text(f"from sent import SPEC as SPEC\n{METHOD}")
    names = {"folder": folder, "place": place, "link": link, "mine": mine}
    recorded_at(folder, file.format(**names))
    scenario = folder / "scenario.toml"
    scenario.write_text(scenario.read_text().replace("sent:SPEC", f"{module}:SPEC"))
    ended = fedbr_in(Path(cwd.format(**names)).resolve(), "replay", str(folder), "--allow-code")
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended.stderr
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("sent", "."),
        ("sent", "{folder}"),
        ("sent", "{folder}/.."),
        ("mail.sent", "{tmp_path}"),
    ],
)
def test_a_search_path_that_leads_to_the_run_is_not_the_users_own(
    module: str, path: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, replay = as_sent(own, tmp_path / "mail"), fedbr.replay
    scenario = folder / "scenario.toml"
    scenario.write_text(scenario.read_text().replace("sent:SPEC", f"{module}:SPEC"))
    entry = path.format(folder=folder, tmp_path=tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", entry)
    monkeypatch.setattr("sys.path", [*sys.path, str(Path(entry).absolute())])
    before = list(sys.path)
    refusal = rf"the module '{module}' .* add --allow-code \(allow_code=True in Python\), or"
    with pytest.raises(ScenarioError, match=refusal):
        replay(folder)
    assert not (tmp_path / "imported").exists()
    assert sys.path == before


def test_the_users_own_places_are_those_that_do_not_depend_on_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, named, lib = tmp_path / "here", tmp_path / "named", tmp_path / "here" / "lib"
    lib.mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(named), "lib", ""]))
    path = ["", str(here), str(named), str(lib), "lib", "/usr/lib/python3", str(ROOT)]
    assert search_path.independent(path) == [str(named), "/usr/lib/python3", str(ROOT)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here), str(lib)]))
    assert search_path.independent(path) == [str(here), str(named), str(lib), "/usr/lib/python3", str(ROOT)]


# --- scenarios --------------------------------------------------------------------------------------------------------

ROW = "{harm}raise ImportError(__name__)\n"
KEYS = {
    "method": '"evil:ROW"',
    "server": '"evil:ROW"',
    "rounds.selection": '"evil:ROW"',
    "rounds.policy": '"evil:ROW"',
    "train.lr_schedule": '"evil:ROW"',
    "model.name": '"evil:ROW"',
    "data.name": '"evil:ROW"',
    "data.partition.kind": '"evil:ROW"',
    "eval.metrics": '["evil:ROW"]',
    "codec.up": '{ kind = "evil:ROW" }',
    "codec.down": '[{ kind = "evil:ROW" }]',
}
"""Key -> its value in a scenario that names the module ``evil``"""


@pytest.fixture
def mail(tmp_path: Path) -> Path:
    """A folder with scenarios from somebody else: every module in it writes the file ``imported`` beside it."""
    folder = tmp_path / "mail"
    (folder / "app").mkdir(parents=True)
    harm = f"with open({str(tmp_path / 'imported')!r}, 'a') as file:\n    file.write(__name__ + ' ')\n"
    for name in ("evil", "sitecustomize", "usercustomize", "random", "numpy", *OPTIONAL, "app/given"):
        (folder / f"{name}.py").write_text(ROW.format(harm=harm))
    (folder / "app" / "pyproject.toml").write_text(
        '[project]\nname = "app"\nversion = "1"\n'
        '[tool.flwr.app.components]\nserverapp = "given:app"\nclientapp = "given:app"\n'
    )
    (folder / "plain.toml").write_text('extends = "digits"\nmethod = "fedavg"\nrounds.max = 1\ntrain.local_steps = 1\n')
    (folder / "app.toml").write_text(f'extends = "digits"\nmethod = "flower:{folder}/app"\n')
    (folder / "grid.toml").write_text(f'scenario = "digits"\n[grid]\nmethod = ["fedavg", "flower:{folder}/app"]\n')
    for key, value in KEYS.items():
        (folder / f"{key}.toml").write_text(f'extends = "digits"\n{key} = {value}\n')
    return folder


@pytest.mark.parametrize("place", every(2, [".", ".."]))
def test_a_scenario_brings_no_file_into_any_process_that_it_does_not_name(
    place: str, mail: Path, tmp_path: Path
) -> None:
    """With real starts of interpreters, since Python itself imports two of these files at its start."""
    words = ["run", str(mail / "plain.toml"), "--out", str(tmp_path / "runs"), "--workers", "1", "--no-report"]
    ended = subprocess.run(
        [sys.executable, "-P", "-c", "import fedbr; fedbr.main()", *words],
        cwd=mail / place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("key", KEYS)
def test_a_module_beside_a_scenario_elsewhere_is_imported_only_if_its_user_allows_it(
    key: str, mail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = mail / f"{key}.toml"
    refusal = (
        f"the module 'evil' lies beside {file}, in {mail}/evil.py, outside of the current folder; it is imported from "
        "there only if you trust it: add --allow-code (allow_code=True in Python), or name its folder in PYTHONPATH"
    )
    with pytest.raises(ScenarioError, match=re.escape(refusal)):
        fedbr.check(str(file))
    link = tmp_path / "here" / "link"
    link.parent.mkdir()
    link.symlink_to(mail)
    monkeypatch.chdir(link.parent)
    with pytest.raises(ScenarioError, match="outside of the current folder"):
        fedbr.check(str(link / file.name))
    assert not (tmp_path / "imported").exists()
    with pytest.raises(ScenarioError, match="ImportError: evil"):
        fedbr.check(str(file), allow_code=True)
    assert (tmp_path / "imported").read_text() == "evil "


@pytest.mark.parametrize(
    "words",
    [
        "check {mail}/method.toml",
        "run {mail}/method.toml",
        "decide {mail}/server.toml method=fedavg,fedbr --target 0.5",
        "diff digits {mail}/method.toml",
        "flower run {mail}/app --fleet {mail}/rounds.selection.toml",
        "flower export {mail}/method.toml {tmp}/exported",
        "run {mail}/app.toml",
    ],
)
def test_no_command_runs_what_lies_beside_a_scenario_elsewhere(words: str, mail: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended = fedbr_in(elsewhere, *words.format(mail=mail, tmp=tmp_path).split())
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended.stderr
    assert "add --allow-code (allow_code=True in Python), or name it" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "imported").exists()


def test_a_module_in_the_current_folder_is_the_users_own_unless_that_is_a_runs(mail: Path, tmp_path: Path) -> None:
    for words in (("check", "method.toml"), ("check", "digits", "method=evil:ROW"), ("explain", "evil:ROW")):
        ended = fedbr_in(mail, *words)
        assert (ended.returncode, (tmp_path / "imported").read_text()) == (2, "evil "), ended.stderr
        (tmp_path / "imported").unlink()
    for name in ("scenario.toml", "ledger.sqlite"):  # the marks of a run's folder
        (mail / name).touch()
    for words in (("check", "method.toml", "--allow-code"), ("explain", "evil:ROW")):
        assert "No module named 'evil'" in fedbr_in(mail, *words).stderr
    assert not (tmp_path / "imported").exists()
