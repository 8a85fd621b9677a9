"""``fedbr explain``, ``list`` and ``explain --schema``: what there is to set, and what it means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.api import listing
from scenarios.cli import main


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main.run_command(words) == 0
    return capsys.readouterr().out


def test_a_key_is_explained_with_all_that_the_schema_knows(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.strip() for line in told(capsys, "explain", "train.lr").splitlines()]
    assert lines[:5] == [
        "train.lr",
        "Learning rate of the first round.",
        "type: a number, at least 0, at most 1,000,000",
        "default: 0.1",
        "elsewhere called: learning_rate, eta, step_size",
    ]
    assert lines[5].startswith("other values in: campus 0.05")
    assert lines[-1] == "example: fedbr run digits train.lr=0.05"


def test_a_row_of_the_user_s_own_is_explained_as_shipped_ones_are(capsys: pytest.CaptureFixture[str]) -> None:
    own = json.loads(told(capsys, "explain", "coordinator.methods.fedmlb:SPEC", "--json"))["rows"]["methods"]
    (shipped,) = [row for row in listing.rows("methods") if row["name"] == "fedmlb"]
    assert own == {**json.loads(json.dumps(shipped)), "name": "coordinator.methods.fedmlb:SPEC"}
    lines = told(capsys, "explain", "tests.plugins.own_rows:CONV_NET").splitlines()
    assert lines[0] == "a row of your own, beside those of fedbr list models:"
    assert lines[-1] == "    blocks: stem, deep, head"


def test_a_table_an_option_and_a_name_are_explained_too(capsys: pytest.CaptureFixture[str]) -> None:
    table = told(capsys, "explain", "fleet.server")
    assert 'fleet.server.up = "1 Gbit/s": From clients to the server, bit/s.' in table
    option = told(capsys, "explain", "method_options.mu")
    assert "with method = fedprox (μ): Weight of the term." in option
    group = json.loads(told(capsys, "explain", "rounds.selection_options", "--json"))
    assert {key["used_by"][0] for key in group["keys"]} == {
        "rounds.selection = power-of-choice",
        "rounds.selection = oort",
    }
    assert told(capsys, "explain", "sync").splitlines()[:2] == [
        "one of fedbr list policies:",
        "sync  rounds wait for all of their visits",
    ]
    assert "mu (μ) = 0.001" in told(capsys, "explain", "fedprox")


def test_a_codec_is_explained_with_its_class_its_error_and_the_ranges_of_its_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = told(capsys, "explain", "quantize").splitlines()
    assert lines[:2] == [
        "one of fedbr list codecs:",
        "quantize  integer levels of a norm per bucket, rounded at random",
    ]
    text = " ".join(" ".join(lines).split())
    assert "number format, of a length that follows from shapes; unbiased with these options" in text
    assert "levels (s) = None, at least 1, at most 32,767: Levels on each side of 0" in text
    own = json.loads(told(capsys, "explain", "tests.plugins.optioned:CODEC", "--json"))["rows"]["codecs"]
    assert own["example"] == "fedbr run digits codec.up.kind=tests.plugins.optioned:CODEC codec.up.amount=0.1"
    assert (own["class"], own["fixed_length"], own["unbiased"]) == ("number format", True, False)
    elias = json.loads(told(capsys, "explain", "elias", "--json"))["rows"]["codecs"]
    assert elias["example"] == """fedbr run digits 'codec.up=[{kind="quantize"},{kind="elias"}]'"""
    assert (elias["class"], elias["fixed_length"], elias["unbiased"]) == ("entropy coder", False, True)


def test_the_key_of_a_chain_is_explained_with_the_options_of_all_stages(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(capsys, "explain", "codec.up", "--json"))
    assert found["example"] == """fedbr run digits codec.up='{kind = "quantize", bits = 4}'"""  # of lte-compressed
    down = json.loads(told(capsys, "explain", "codec.down", "--json"))
    assert down["example"] == """fedbr run digits codec.down='{ kind = "topk" }'"""
    assert found["choices"]["sign"] == "signs, and the mean magnitude"
    assert [key["name"] for key in found["keys"]][-1] == "codec.up.level"
    assert found == json.loads(told(capsys, "explain", "codec.up.kind", "--json"))
    option = told(capsys, "explain", "codec.up.ratio")
    assert "with codec.up.kind = topk (k/n): Share of the numbers that travel" in option
    assert "example: fedbr run digits codec.up.kind=topk codec.up.ratio=0.01" in option


def test_the_schema_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = told(capsys, "explain", "--schema")
    assert json.loads(printed)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    file = tmp_path / "fedbr.schema.json"
    assert told(capsys, "explain", "--schema", "-o", str(file)) == f"schema: {file}\n"
    assert file.read_text(encoding="utf-8") == printed


def test_zones_are_listed_with_their_figures_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(told(capsys, "explain", "fleet.carbon.zone").split())
    assert "DE: Germany: 362.92 (2023), 336.38 (2024), 329.65 (2025) g/kWh [ember-2026]" in text
    assert "[ember-2026]: Ember, Yearly Electricity Data 2026, via Our World in Data; " in text
    assert "of 2026-04-24, read on 2026-11-29 counted are life-cycle emissions" in text
    assert "module:ROW" not in text


@pytest.mark.parametrize(
    ("word", "first"),
    [
        ("euro", "fleet.price"),
        ("kWh", "fleet.price.kwh"),
        ("data plan", "fleet.price.plan"),
        ("carbon", "fleet.carbon"),
        ("CO2e", "fleet.carbon"),
        ("router", "fleet.gateways"),
        ("int8", "one of fedbr list codecs:"),
    ],
)
def test_words_of_users_lead_to_keys_and_rows(word: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "explain", word).splitlines()[0] == first


def test_a_table_of_boards_and_a_folder_of_data_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("boards.csv").write_text("board,GFLOP/s,memory (GB),watts,price\npi,5,4,6,60\n")
    assert [line.strip() for line in told(capsys, "explain", "boards.csv").splitlines()] == [
        "boards.csv",
        "a table of boards, which fleet.devices names",
        "not used: price",
        "example: fedbr check digits fleet.device_file=boards.csv",
    ]
    Path("cams").mkdir()
    for name in ("ann", "bo"):
        rows = "".join(f"{place % 2},{place}\n" for place in range(5))
        Path("cams", f"{name}.csv").write_text(f"label,x\n{rows}")
    found = json.loads(told(capsys, "explain", "cams", "--json"))
    assert found["meaning"].startswith("a data set: cams: 8 training and 2 test examples of 2 clients")
    Path("cams", "bo.csv").write_text("")
    assert main.run_command(["explain", "cams"]) == 2
    assert "explain cams: is no data set: cams/bo.csv: has no examples below a header" in capsys.readouterr().err


def test_a_file_is_explained_as_the_recording_or_data_that_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    link, table = Path("link.csv"), Path("pets.csv")
    link.write_text("seconds,bits_per_second\n0,5\n1,10\n2,0\n")
    lines = [line.strip() for line in told(capsys, "explain", str(link)).splitlines()]
    assert lines[1:4] == [
        "rates over time: 3 values of 1 link, 3 s",
        "rate: 0 bit/s to 10 bit/s, median 5 bit/s, each held at most 1 s, a silence",
        "of 1 s",
    ]
    assert lines[4] == f"|{'▄' * 20}{'█' * 20}{' ' * 20}|"
    assert lines[5] == "doubted: rate: at most 10 bit/s; Mbit/s given?"
    table.write_text("client,label,x\n" + "".join(f"{'ab'[place % 2]},{place % 3},{place}\n" for place in range(30)))
    found = json.loads(told(capsys, "explain", str(table), "--json"))
    assert (
        found["meaning"] == "a data set: pets: 24 training and 6 test examples of 2 clients, features (1,), 3 classes"
    )
    assert found["example"] == f"fedbr run digits data.file={table}"
    table.write_text("a,b\n1,2\n")
    assert main.run_command(["explain", str(table)]) == 2
    assert capsys.readouterr().err.endswith(
        "is no recording (line 1: no known trace has the columns a, b; fleet.bandwidth.columns names others), and no "
        "data set (which column is the label? Say data.reading.label; it has a, b)\n"
    )
