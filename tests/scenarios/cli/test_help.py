"""The command line itself: help, version, -q and -v, completion, and the first moment."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import fedbr
from edge.protocol.codecs.registry import CODECS
from scenarios.cli import completion, main
from scenarios.config.toml_source import shipped


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.run_command(words) == 0
    return capsys.readouterr().out


def test_help_has_every_command_under_a_heading_and_cuts_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = told(capsys, "-h")
    lines = text.splitlines()
    for heading, commands in main.COMMANDS.items():
        assert f"{heading}:" in lines
        assert all(any(line.startswith(f"  {name} ") for line in lines) for name in commands)
    assert "Commands:" not in lines
    assert "..." not in text.partition("Runs:")[2]
    assert "..." not in told(capsys, "flower", "-h").partition("Commands:")[2]
    assert max(map(len, lines)) <= 80
    assert told(capsys, "help") == text
    assert told(capsys, "help", "flower", "run") == told(capsys, "flower", "run", "-h")


def test_the_version_is_that_of_product_python_and_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--version") == (
        f"fedbr {version('fedbr-edge')}, Python {platform.python_version()}, torch {version('torch')}\n"
    )


def test_usage_and_options_have_words_for_what_is_to_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "run", "-h").startswith("Usage: fedbr run [OPTIONS] SCENARIO [KEY=VALUE]...\n")
    assert told(capsys, "report", "-h").startswith("Usage: fedbr report [OPTIONS] FOLDER...\n")
    assert told(capsys, "list", "-h").startswith("Usage: fedbr list [OPTIONS] [WHAT]\n")
    assert told(capsys, "reproduce", "-h").startswith("Usage: fedbr reproduce [OPTIONS] [NAME] [KEY=V1,V2,..]...\n")
    for name in (name for commands in main.COMMANDS.values() for name in commands):
        text = told(capsys, *name.split(), "-h")
        assert re.search("<[a-z]|[{}]|x>=|<=x", text) is None, name
    assert "--workers N " in told(capsys, "run", "-h")


QUIET = ("run", "resume", "compare", "sweep", "decide", "stress", "verify", "measure", "reproduce", "check-plugin")


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


def test_names_and_choices_are_completed(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").touch()
    (tmp_path / "more").mkdir()
    assert completion.complete_scenarios("") == sorted([*shipped(), "mine.toml", "more/"])
    assert completion.complete_scenarios("dig") == ["digits"]
    assert completion.complete_topics("d") == ["datasets", "devices"]
    assert "fleet.server" in completion.complete_names("fleet.ser")
    assert completion.complete_names("fedpr") == ["fedprox"]


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


def test_the_words_are_made_again_when_the_product_has_changed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    file = cache / "fedbr-edge" / "completion.json"
    made = {"stamp": json.loads(file.read_bytes())["stamp"], "topics": ["old"]}
    file.write_text(json.dumps(made))
    assert completion.complete_topics("") == ["old"]
    file.write_text(json.dumps({**made, "stamp": ["another place", 0]}))
    assert "methods" in completion.complete_topics("")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (("--gpu",), "No such option: --gpu; use --device cuda"),
        (("--seed", "abc"), "Invalid value for '--seed': 'abc' is not a whole number."),
        (("--workers", "two"), "Invalid value for '--workers': 'two' is not a whole number."),
    ],
)
def test_a_wrong_option_is_answered_in_plain_words(
    word: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run_command(["run", "digits", *word]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_words_of_earlier_versions_name_what_is_in_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["study", "tune", "digits", "train.lr=0.1,0.2"]) == 2
    now = "sweep: budgets are its --at NAME=AMOUNTS, and tuning its --judge validation"
    assert capsys.readouterr() == ("", f"fedbr: study: is now {now}\n")
    with pytest.raises(AttributeError, match=r"it is now fedbr\.sweep\(\.\., judge=\"validation\"\)"):
        fedbr.tune  # noqa: B018
