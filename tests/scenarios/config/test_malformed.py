"""Whatever a scenario says, it is either one that can be written out and read again, or one short message.

FEDBR_HOSTILE=20000 tries so many other examples of each kind.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scenarios.config.errors import LONGEST
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.config.overrides import parse_all
from scenarios.config.quantities import scenario_text
from tests import warm
from tests.scenarios.config.malformed import FIELDS, deep, fits, fitting, hostile, keys, scenario, toml

steady = settings(
    max_examples=int(os.environ.get("FEDBR_HOSTILE", "50")),
    derandomize="FEDBR_HOSTILE" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def ending(folder: Path, text: str | bytes, *overrides: str) -> Loaded | str:
    """What came of a file: the scenario, after it was read again from its own text, or the message."""
    file = folder / "mine.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        loaded = load(str(file), parse_all(overrides))
    except ScenarioError as error:
        message = str(error)
        assert message.isprintable(), message
        assert len(message) < LONGEST + 50, message
        assert re.match(r"\w+\.toml: |command line: |.*KEY=VALUE", message), message
        return message
    resolved = folder / "resolved.toml"
    resolved.write_text(scenario_text(loaded.scenario.model_dump()), encoding="utf-8")
    assert load(str(resolved)).scenario == loaded.scenario
    return loaded


def names_a_key(message: str) -> bool:
    return any(key in message for key in (*FIELDS, "fleet", "method", "data", "travels"))


def test_every_key_takes_values_of_its_type_and_range_or_says_with_what_they_clash(folder: Path) -> None:
    loaded: set[str] = set()

    def one(key: str, value: Any) -> None:
        came = ending(folder, scenario({"train.instructions": "native", key: value}))
        if isinstance(came, Loaded):
            loaded.add(key)
        else:
            assert names_a_key(came), came

    for key in FIELDS:
        few = settings(steady, max_examples=max(1, steady.max_examples // 50))
        few(given(key=st.just(key), value=fitting(key))(one))()
    # Keys of tiers clash without a number of them, those of columns and readings without a file.
    assert len(loaded) > 3 / 5 * len(FIELDS)


@steady
@given(keys, hostile, fits)
@example("method_options", {"x": [[int("f" * 5000, 16)]]}, {})
@example("seed", [[int("f" * 5000, 16)]], {})
@example("seed", "99999999999999999999999", {})
@example("seed", deep(200), {})
@example("data.clients", 10**12, {})
@example("data.name", "x" * 100_000, {})
@example("model.name", ":x", {})
@example("fleet.devices", ["raspberry-pi-4"] * 100_000, {})
def test_whatever_a_key_is_given_is_loaded_or_refused_by_its_name(
    folder: Path, key: str, value: Any, others: dict[str, Any]
) -> None:
    came = ending(folder, scenario({**others, key: value}))
    assert isinstance(came, Loaded) or names_a_key(came), came


@steady
@given(keys, hostile)
def test_whatever_is_said_on_the_command_line_is_loaded_or_refused_by_its_name(
    folder: Path, key: str, value: Any
) -> None:
    came = ending(folder, scenario({}), f"{key}={toml(value)}")
    assert isinstance(came, Loaded) or names_a_key(came), came


@steady
@given(fits, st.randoms(use_true_random=False), st.integers(1, 6))
def test_a_file_that_is_damaged_anywhere_is_loaded_or_refused(
    folder: Path, said: dict[str, Any], draw: random.Random, hits: int
) -> None:
    text = bytearray(scenario(said).encode() + b"[train]\nmomentum = 0.5\n")
    for _ in range(hits):
        at = draw.randrange(len(text) + 1)
        if draw.random() < 0.3:
            text[at : at + draw.randrange(9)] = b""
        elif draw.random() < 0.3:
            text[at:at] = draw.choice(
                [b"\0", b"\xff", b"\r", b"[[", b"]]", b"{", b"'''", b"\n", b"=", b".", b"[train]\n"]
            )
        else:
            lines = bytes(text).split(b"\n")
            lines.insert(draw.randrange(len(lines)), draw.choice(lines))
            text = bytearray(b"\n".join(lines))
    ending(folder, bytes(text))


def test_files_that_extend_each_other_without_end_or_are_beyond_all_use_are_refused(folder: Path) -> None:
    for number in range(40):
        (folder / f"{number}.toml").write_text(f'extends = "{number + 1}.toml"\n')
    (folder / "40.toml").write_text('extends = "digits"\n')

    assert ending(folder, 'extends = "0.toml"\n') == "31.toml: extends: more than 32 files extend each other"
    assert isinstance(ending(folder, 'extends = "12.toml"\n'), Loaded)
    os.truncate(folder / "mine.toml", 40_000_000)
    with pytest.raises(ScenarioError, match=r"mine\.toml: is larger than 32,000,000 bytes$"):
        load(str(folder / "mine.toml"))


def test_more_keys_tables_or_items_than_any_scenario_has_are_refused_before_they_are_parsed(folder: Path) -> None:
    shares = "\n".join(f"unknown-{number} = 1" for number in range(100_000))
    for text, said in (
        (f"[fleet.devices]\n{shares}\nlast = 1\n", "100,000 times '='"),
        ("[a]\n" * 100_001, "100,000 times '['"),
        (f"[fleet]\ndevices = [{'1,' * 3_000_001}]", "3,000,000 times ','"),
    ):
        assert ending(folder, text) == f"mine.toml: not valid TOML: more than {said}"


def test_a_module_of_ones_own_that_fails_is_told_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "my_own_broken.py").write_text("ROW = 1 / 0\n")
    for key, text in (("method", "method: "), ("model.name", "model.name: cannot load "), ("data.name", "data.name: ")):
        came = ending(folder, scenario({key: "my_own_broken:ROW"}))
        assert isinstance(came, str)
        assert came.startswith(f"mine.toml: {text}")
        assert came.endswith(f"ZeroDivisionError: division by zero ({folder / 'my_own_broken.py'}, line 1)")


@pytest.mark.parametrize(
    ("written", "words", "said"),
    [
        (b"seed = 1\0", [], "mine.toml: not valid TOML: "),
        (b"seed = '\xff'", [], "mine.toml: not valid TOML: 'utf-8' codec can't decode"),
        (b'extends = "digits"', ["data.clients=1000000000000"], "command line: data.clients = 1000000000000: "),
        (b'extends = "digits"', ["rounds.max"], "'rounds.max': an override reads KEY=VALUE, for example train.lr=0.05"),
        (b'extends = "digits"', ["model.width=4096"], "mine: model.name = 'digits-cnn': of width 4096 it has "),
        (None, [], "{path}: is a folder; name a scenario or a TOML file"),
    ],
)
def test_the_command_ends_with_2_and_one_line(
    tmp_path: Path, written: bytes | None, words: list[str], said: str
) -> None:
    path = tmp_path / "mine.toml"
    if written is None:
        path.mkdir()
    else:
        path.write_bytes(written)
    ended = warm.run(["check", str(path), *words])
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith(f"fedbr: {said.replace('{path}', str(path))}")
