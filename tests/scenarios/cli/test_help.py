"""The command line itself: help, version, -q and -v, completion, and the first moment."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import fedbr
from edge.protocol.codecs.registry import CODECS
from scenarios.cli import completion, main


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.run_command(words) == 0
    return capsys.readouterr().out


def test_help_has_every_command_on_one_screen_and_cuts_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = told(capsys, "-h")
    lines = text.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 80, "..." in text.partition("\n")[2]) == (True, True, False)
    group: Any = typer.main.get_command(main.app)
    words = [line[10:].split()[0] for line in lines if re.match(r".{10}[a-z]+ +[A-Z]", line)]
    by_heading = (
        "run resume check flower",
        "report audit replay diff ls",
        "list explain",
        "compare sweep decide reproduce stress",
        "new worker",
    )
    assert words == " ".join(by_heading).split()
    assert sorted(words) == sorted(name for name, command in group.commands.items() if not command.hidden)
    assert told(capsys, "help") == text
    assert told(capsys, "help", "flower", "run") == told(capsys, "flower", "run", "-h")


@pytest.mark.parametrize("word", main.SUCCESSORS)
def test_an_earlier_word_is_answered_with_the_one_in_its_place(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["-q", word, "anything", "--json"]) == 2
    assert capsys.readouterr() == ("", f"fedbr: {word}: is now {main.SUCCESSORS[word]}\n")
    command = main.SUCCESSORS[word].split()[0].rstrip(",")
    options = [part for part in main.SUCCESSORS[word].split() if part.startswith("--")]
    text = told(capsys, command, "-h")
    assert all(f"{option} " in text for option in options)


def test_an_earlier_name_of_python_is_answered_with_the_call_in_its_place() -> None:
    with pytest.raises(AttributeError, match=r"fedbr\.verify is now fedbr\.diff\(run, again=True\)"):
        getattr(fedbr, "verify")  # noqa: B009
    with pytest.raises(AttributeError, match=r"fedbr\.tune is now fedbr\.sweep\(\.\., judge=\"validation\"\)"):
        getattr(fedbr, "tune")  # noqa: B009
    with pytest.raises(AttributeError, match=r"fedbr\.check_plugin is now fedbr\.check\(plugin=ROW\)"):
        getattr(fedbr, "check_plugin")  # noqa: B009
    assert {"verify", "check_plugin"} & {*dir(fedbr)} == set()


QUIET = ("run", "resume", "check", "compare", "sweep", "decide", "reproduce", "stress", "replay", "diff")


def test_every_command_takes_v_and_those_with_progress_q(capsys: pytest.CaptureFixture[str]) -> None:
    for commands in main.COMMANDS.values():
        for name in commands:
            options = [line.split("  ")[1] for line in told(capsys, name, "-h").splitlines() if line[2:3] == "-"]
            assert "-v, --verbose" in options
            assert "--quiet" not in options
            assert ("-q, --quiet" in options) == (name in QUIET)


def test_q_and_v_may_stand_before_the_command() -> None:
    group: Any = typer.main.get_command(main.app)
    with group.make_context("fedbr", ["-q", "-v", "flower", "run"]) as whole:
        main.options_of_all(whole, quiet=True, verbose=True)
        asked = whole.command.commands["run"].make_context("run", ["digits"], parent=whole).params
        assert (asked["scenario"], asked["quiet"], asked["verbose"]) == ("digits", True, True)
        assert whole.default_map["flower"]["run"] == {"quiet": True, "verbose": True}
        assert whole.command.commands["explain"].make_context("explain", ["sync"], parent=whole).params["verbose"]


def test_v_shows_where_data_lie_and_where_an_error_came_from_and_leaves_nothing_switched_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = list(logging.getLogger("fedbr").handlers)
    assert main.run_command(["explain", "nothing-like-it", "-v"]) == 2
    shown = capsys.readouterr().err
    assert f"cache {tmp_path}/fedbr-edge" in shown
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith("fedbr: explain 'nothing-like-it'")
    assert main.run_command(["explain", "nothing-like-it"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert logging.getLogger("fedbr").handlers == before
    assert logging.getLogger("fedbr").level == logging.NOTSET


def test_a_ctrl_c_in_the_first_moment_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fedbr, "_load_packages", interrupted)
    with pytest.raises(SystemExit) as ended:
        fedbr.main()
    assert ended.value.code == 4
    assert capsys.readouterr() == ("", "fedbr: stopped\n")


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the words of completion."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        completion.words()
    return folder


def completed(cache: Path, *words: str) -> list[str]:
    """What bash is told for a line that ends in the last of these words; slow modules may not be imported."""
    code = "import sys; from scenarios.cli import main; main.run_command([]); "
    code += "print('loaded', *{'torch', 'numpy', 'zmq', 'scenarios.config.catalogue'} & {*sys.modules})"
    typed = {"_FEDBR_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **typed, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    *found, loaded = ended.stdout.splitlines()
    assert loaded == "loaded"
    return found


def test_a_shell_completes_keys_without_loading_what_is_slow(cache: Path) -> None:
    assert completed(cache, "fedbr", "run", "digits", "train.lr_d") == ["train.lr_decay=", "train.lr_decay=1.0"]


def test_behind_a_key_are_its_choices_also_where_bash_ends_the_word_at_the_sign(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def typed(*words: str) -> Any:
        return SimpleNamespace(params={"overrides": list(words)})

    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    complete = completion.complete_overrides
    assert complete(typed(), "rounds.policy=fed") == ["rounds.policy=fedasync", "rounds.policy=fedbuff"]
    assert complete(typed(), "method=fedmlb+sca") == ["method=fedmlb+scaffold"]
    assert complete(typed("train.lr=0.1", "rounds.policy", "="), "fedb") == ["fedbuff"]
    assert complete(typed("train.nesterov"), "") == ["true", "false"]
    assert complete(typed(), "stop.pat") == ["stop.patience="]
    assert complete(typed(), "codec.up.k") == ["codec.up.kind=", *map("codec.up.kind={}".format, CODECS)]
    assert complete(typed("codec.up.kind=quantize"), "codec.up.b") == ["codec.up.bits=", "codec.up.bucket="]
    assert complete(typed(), "codec.down.kind=s") == ["codec.down.kind=sign"]
