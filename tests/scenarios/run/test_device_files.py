"""Files of devices as a scenario names them: TOML, tables of boards, calibrated devices beside both, and the notes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scenarios.config import counted_steps
from scenarios.config.cache import cache_folder
from scenarios.config.counted_steps import step_flops
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from scenarios.run import visits
from scenarios.run.setup import RunInputs

BOARDS = Path(__file__).parents[3] / "examples" / "data" / "boards.csv"
RESNET_FLOPS = 10_645_954_560.0
ROW = """[{name}]
flops_per_second = {{ conv = {conv}, depthwise = "5 GFLOP/s" }}
step_seconds = "1 ms"
modes = [1.0]
memory_bytes = "4 GB"
train_watts = "6 W"
idle_watts = "2 W"
clock_hz = "1.5 GHz"
source = "mine"
year = 2026
assumed = false
"""
MINE, LINKS = "fleet.devices={mine=1}", ("fleet.bandwidth.kind=trace", "fleet.bandwidth.file=t.csv")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache, ``tmp_path`` to work in, and a process that counts at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(counted_steps, "_counted", lambda model, width, data: str(RESNET_FLOPS))
    step_flops.cache_clear()
    return tmp_path


def inputs(*overrides: str) -> RunInputs:
    return RunInputs(load("digits", parse_all(["method=fedavg", *overrides])))


def refusal(*overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        inputs(*overrides)
    return str(caught.value).removeprefix("command line: ")


# --- tables of boards -------------------------------------------------------------------------------------------------


def test_a_fleet_takes_the_boards_of_a_table_beside_shipped_and_calibrated_devices(home: Path) -> None:
    shutil.copy(BOARDS, home / "boards.csv")
    calibrated = cache_folder() / "devices" / "this-host.toml"
    calibrated.parent.mkdir(parents=True)
    calibrated.write_text(ROW.format(name="this-host", conv="20e9"))
    shares = "{pi5-bench=0.2, orange-pi-5-hpl=0.2, this-host=0.4, phone-mid=0.2}"
    run = inputs("fleet.device_file=boards.csv", f"fleet.devices={shares}")
    names = run.drawn_fleet.device_names(range(10))
    assert {name: names.count(name) for name in names} == {
        "pi5-bench": 2, "orange-pi-5-hpl": 2, "this-host": 4, "phone-mid": 2,
    }  # fmt: skip
    speeds = dict(zip(names, run.drawn_fleet.flops_per_second.tolist(), strict=True))
    # Of ResNet-18 a Pi 5 takes 5.84 s for 16.
    assert speeds["pi5-bench"] == pytest.approx(16 * RESNET_FLOPS / 5.84)
    assert speeds["this-host"] == 20e9
    bases = visits.row_bases(run.scenario, run.files, run.families)["devices"]
    assert bases["pi5-bench"] == {"compute": "read"}  # the seconds of a step, of which all follows
    assert bases["orange-pi-5-hpl"] == {"compute": "assumed"}  # the overhead of a step
    assert list(run.file_hashes) == ["fleet.device_file"]
    # The file of a calibration is one that the same key takes.
    own = calibrated.rename(home / "this-host.toml")
    fleet = inputs(f"fleet.device_file={own}", "fleet.devices={this-host=1}").drawn_fleet
    assert fleet.flops_per_second.tolist() == [20e9] * 10


def test_flops_of_a_model_are_counted_once_for_all_processes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert step_flops("mobilenetv2", 16, "cifar10") == ("depthwise", RESNET_FLOPS)
    monkeypatch.setattr(counted_steps, "_counted", lambda *_: pytest.fail("counted again"))
    step_flops.cache_clear()
    assert step_flops("mobilenetv2", 16, "cifar10") == ("depthwise", RESNET_FLOPS)
    (file,) = (cache_folder() / "steps").glob("*.txt")
    assert file.name.startswith("mobilenetv2-16-cifar10-")


@pytest.mark.parametrize(
    ("model", "width", "data", "why"),
    [
        ("resnt18", "", "", "no model 'resnt18' ships, did you mean 'resnet18'?"),
        ("resnet18", "3", "", "width = 3: resnet18 needs a multiple of 2; the nearest is 4"),
        ("mlp", "", "", "mlp takes examples of any size: name a data set in a column data"),
        ("cnn", "", "cifar-10", "no data set 'cifar-10' ships, did you mean 'cifar10'?"),
        ("cnn", "", "digits", "cnn does not take the examples of digits"),
    ],
)
def test_a_model_that_cannot_be_counted_is_refused_in_its_cell(
    home: Path, model: str, width: str, data: str, why: str
) -> None:
    text = f"name,step (ms),model,batch,memory (GB),watts,width,data\nmine,9,{model},16,4,6,{width},{data}\n"
    (home / "b.csv").write_text(text)
    said = refusal("fleet.device_file=b.csv", MINE)
    assert said == f"fleet.device_file: b.csv, line 2, column model: {why}"


def test_a_table_is_refused_by_file_line_and_column(home: Path) -> None:
    (home / "b.csv").write_text("name,GFLOP/s,memory,watts\nmine,30,4 GB,6\nother,30,4,6\n")
    hint = "4 has no unit: GB? write memory (GB), or 4 GB in the cell"
    assert refusal("fleet.device_file=b.csv", MINE) == f"fleet.device_file: b.csv, line 3, column memory: {hint}"
    (home / "b.csv").write_text("name,GFLOP/s,memory (GB),watts\njetson-nano,30,4,6\n")
    shipped = "fleet.device_file: b.csv: row 'jetson-nano': a device of that name ships; give it another"
    assert refusal("fleet.device_file=b.csv", "seed=0") == shipped
    (home / "b.xlsx").write_bytes(b"PK\x03\x04")
    own = "fleet.device_file: b.xlsx: is a spreadsheet's own file; save it as CSV"
    assert refusal("fleet.device_file=b.xlsx", "seed=0") == own


# --- notes ------------------------------------------------------------------------------------------------------------


def test_columns_that_are_not_read_are_noted(home: Path) -> None:
    (home / "b.csv").write_text("name,GFLOP/s,memory (GB),watts,price,count\nmine,30,4,6,45,3\n")
    assert inputs("fleet.device_file=b.csv", MINE).fleet_notes == [
        "fleet.device_file = 'b.csv': columns that are not read: price, count; fleet.devices says how many of each"
    ]


def test_throughputs_without_a_unit_are_doubted(home: Path) -> None:
    (home / "d.toml").write_text(ROW.format(name="mine", conv="120"))
    note = "mine: flops_per_second.conv = 120 FLOP/s; GFLOP/s given?"
    assert inputs("fleet.device_file=d.toml", MINE).fleet_notes == [note]
    (home / "d.toml").write_text(ROW.format(name="mine", conv='"120 GFLOP/s"'))
    assert inputs("fleet.device_file=d.toml", MINE).fleet_notes == []


def test_recorded_rates_without_a_unit_are_doubted_wherever_they_are(home: Path) -> None:
    (home / "t.csv").write_text("seconds,bits_per_second\n0,5\n1,10\n2,4\n")
    assert inputs(*LINKS, "fleet.bandwidth.up_file=t.csv").fleet_notes[:2] == [
        "fleet.bandwidth.file = 't.csv', column bits_per_second: at most 10 bit/s; Mbit/s given?",
        "fleet.bandwidth.up_file = 't.csv', column bits_per_second: at most 10 bit/s; Mbit/s given?",
    ]
    (home / "log.csv").write_text("time,router,down_mbps,up_mbps\n0,a,18e-6,5\n60,a,6e-6,3\n")
    (note, *_) = inputs("fleet.gateways={count=1,bandwidth={file='log.csv'}}").fleet_notes
    column = "column down_bits_per_second: at most 18 bit/s; Mbit/s given?"
    assert note == f"fleet.gateways.bandwidth.file = 'log.csv', {column}"
    (note, *_) = inputs("fleet.tiers={count=1,bandwidth={file='t.csv'}}").fleet_notes
    assert note == "fleet.tiers.bandwidth.file = 't.csv', column bits_per_second: at most 10 bit/s; Mbit/s given?"
    header = "client,flops_per_second,down_bits_per_second,up_bits_per_second,rtt_seconds\n"
    (home / "clients.csv").write_text(header + "a,30,20e6,5e6,40\nb,30e9,20e6,5 Mbit/s,40 ms\n")
    assert inputs("fleet.trace=clients.csv", "data.clients=2", "rounds.participants=2").fleet_notes == [
        "fleet.trace = 'clients.csv', column flops_per_second: as little as 30 FLOP/s; GFLOP/s given?",
        "fleet.trace = 'clients.csv', column rtt_seconds: as much as 40 s; ms given?",
    ]


def test_a_price_of_a_byte_is_doubted() -> None:
    note = "fleet.price.gb = 5e-09 a GB; the price of a MB or a byte given?"
    assert inputs("fleet.price.gb=5e-9").fleet_notes == [note]
