"""Tables of boards: spreadsheets, saved as CSV, whose rows become devices."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from costmodel.fleet.board_table import LIKE, is_table, read_boards, unread_columns
from costmodel.fleet.devices import BASES, Device, basis, devices

BOARDS = Path(__file__).parents[3] / "examples" / "data" / "boards.csv"
PI = devices()[LIKE]
PLAIN = "name,GFLOP/s,memory (GB),watts"


def step_flops(model: str, width: int | None, data: str) -> tuple[str, float]:
    """A model of 0.5 GFLOP, or of 0.1 with a width; on other data twice as many."""
    if model not in ("cnn", "mobilenetv2"):
        raise ValueError(f"no model {model!r} ships")
    return ("conv" if model == "cnn" else "depthwise"), (1e8 if width else 5e8) * (2 if data else 1)


def boards(folder: Path, text: str) -> dict[str, Device]:
    file = folder / "boards.csv"
    file.write_text(text)
    return read_boards(file, step_flops)


def board(folder: Path, header: str, row: str) -> Device:
    (device,) = boards(folder, f"{header}\n{row}\n").values()
    return device


# --- figures and units ------------------------------------------------------------------------------------------------


def test_a_row_of_four_cells_is_a_device_whose_other_figures_are_assumed(tmp_path: Path) -> None:
    device = board(tmp_path, PLAIN, "a board,30,8,10")
    assert (device.name, device.memory_bytes, device.train_watts) == ("a board", 8_000_000_000, 10.0)
    assert device.throughput("conv") == 30e9
    # Of the default device: 1.89 of 15.8 GFLOP/s (depthwise), 2.3 of 7.2 W (waiting), 1 ms a step, 1.8 GHz.
    assert device.throughput("depthwise") == pytest.approx(30e9 * 1.89 / 15.8)
    assert device.idle_watts == pytest.approx(10 * 2.3 / 7.2)
    assert (device.step_seconds, device.clock_hz, device.modes) == (0.001, 1.8e9, (1.0,))
    assert device.source == "no source is said; of raspberry-pi-4: depthwise, step_seconds, idle_watts, clock_hz"
    assert device.year == 0


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("name,gflops,memory_gb,watts", "a,5,4,6"),
        ("Board,GFLOPS (fp32),Memory [GB],Power (W)", "a,5,4,6"),
        ("device,flops_per_second,memory_bytes,train_watts", "a,5e9,4e9,6"),
        ("name,flops_per_second.conv,memory (MB),power (mW)", "a,5e9,4000,6000"),
        ("name,speed,memory,power", "a,5 GFLOP/s,4 GB,6 W"),
        ("name,speed (MFLOPS),RAM,train power (kW)", "a,5000,4 GB,0.006"),
        ("name,conv (TFLOP/s),memory (MB),power (mW)", "a,0.005,4 GB,6 W"),  # a cell's unit goes before the header's
        ("\ufeffname;conv GFLOP/s;memory GB;power W", "a;5,0;4,0;6,0"),
        ("name\tconv_mflops\tram_mb\tpower_mw", "a\t5000\t4000\t6000"),
    ],
)
def test_units_are_in_headers_or_cells(header: str, row: str, tmp_path: Path) -> None:
    device = board(tmp_path, header, row)
    figures = (device.throughput("conv"), device.memory_bytes, device.train_watts)
    assert figures == (5e9, 4_000_000_000, 6.0)


def test_a_row_may_have_all_figures_and_then_nothing_is_of_another_device(tmp_path: Path) -> None:
    header = "name,conv (GFLOP/s),depthwise (GFLOP/s),dense (GFLOP/s),memory (GiB),watts,idle_watts,clock_ghz,step_ms"
    device = board(tmp_path, f"{header},source,year", "a,9,3,6,2,8,2,1.5,4,a bench,2024")
    assert device.flops_per_second == {"conv": 9e9, "depthwise": 3e9, "dense": 6e9}
    # Without a model the seconds of a step are the overhead of one, as in a TOML row.
    figures = (device.memory_bytes, device.idle_watts, device.clock_hz, device.step_seconds)
    assert figures == (2_147_483_648, 2.0, 1.5e9, 0.004)
    assert (device.source, device.year) == ("a bench", 2024)
    assert device.assumed == ("modes", "codec_slowdown", "memory_bytes_per_second")


def test_figures_that_a_row_lacks_are_those_of_the_device_that_it_names(tmp_path: Path) -> None:
    device = board(tmp_path, f"{PLAIN},like", "a,30,8,10,jetson-nano")
    assert device.throughput("depthwise") == pytest.approx(30e9 * 38 / 120)
    assert (device.idle_watts, device.step_seconds, device.clock_hz) == (2.0, 0.005, 0.92e9)


# --- the seconds of a step --------------------------------------------------------------------------------------------

STEPS = "name,step (ms),model,batch,memory (GB),watts"


def test_the_seconds_of_a_step_are_those_of_the_model_on_that_device(tmp_path: Path) -> None:
    device = board(tmp_path, STEPS, "a,200,cnn,16,4,6")
    # 16 x 0.5 GFLOP in 0.2 s; the overhead of a step is within them.
    assert (device.throughput("cnn", "conv"), device.throughput("conv")) == (40e9, 40e9)
    assert device.step_seconds + 16 * 5e8 / device.throughput("cnn") == pytest.approx(0.2)
    narrow = board(tmp_path, f"{STEPS},width,data", "a,200,mobilenetv2,16,4,6,8,mnist")
    # The family alone has the figure of a narrower model; convolutions are faster as they are on the default device.
    assert "mobilenetv2" not in narrow.flops_per_second
    assert narrow.throughput("depthwise") == 16e9
    assert narrow.throughput("conv") == pytest.approx(16e9 * 15.8 / 1.89)


def test_an_overhead_beside_it_is_no_part_of_the_throughput(tmp_path: Path) -> None:
    device = board(tmp_path, f"{STEPS},overhead (ms)", "a,250,cnn,16,4,6,50")
    assert device.step_seconds == 0.05
    assert device.throughput("cnn") == pytest.approx(40e9)


def test_rows_with_seconds_and_rows_with_throughputs_stand_in_one_table(tmp_path: Path) -> None:
    found = boards(tmp_path, f"{STEPS},GFLOP/s\na,200,cnn,16,4,6,\nb,,,,4,6,7\n")
    assert [device.throughput("conv") for device in found.values()] == [40e9, 7e9]


# --- basis ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "source", "expected"),
    [
        ("measured", "", "training"),
        ("read", "a page", "training"),
        ("training", "", "training"),
        ("inference", "a page", "inference"),
        ("Derived", "a page", "derived"),
        ("assumed", "a page", "assumed"),
        ("", "a page", "training"),
        ("", "", "assumed"),
    ],
)
def test_the_basis_is_that_of_the_rows_own_figures(word: str, source: str, expected: str, tmp_path: Path) -> None:
    device = board(tmp_path, f"{PLAIN},basis,source", f"a,30,8,10,{word},{source}")
    assert {basis(device, key) for key in ("flops_per_second.conv", "memory_bytes", "train_watts")} == {expected}
    assert {basis(device, key) for key in ("flops_per_second.depthwise", "idle_watts", "clock_hz")} == {"assumed"}


# --- refusals ---------------------------------------------------------------------------------------------------------

NO_UNIT = "8 has no unit: GB? write memory (GB), or 8 GB in the cell"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,memory (GB),watts\na,8,10\n", "line 1: there is no throughput: a column GFLOP/s, or step (ms) with"),
        ("name,GFLOP/s,memory (GB)\na,30,8\n", "line 1: column watts is missing"),
        ("name,GFLOP/s,watts\na,30,8\n", "line 1: column memory (GB) is missing"),
        ("GFLOP/s,memory (GB),watts\n30,8,5\n", "line 1: column name is missing"),
        ("name,step (ms),memory (GB),watts\na,3,8,5\n", "line 1: column model is missing, of which the column of sec"),
        ("name,memroy (GB),gflops,watts\na,8,30,5\n", "line 1, column memroy (GB): unknown, did you mean 'memory'?"),
        ("name,memory (Gb),gflops,watts\na,8,30,5\n", "line 1, column memory (Gb): '1 Gb' is not bytes: unknown unit"),
        ("name,gflops,conv (GFLOP/s),watts\na,8,30,5\n", "line 1, column conv (GFLOP/s): is the same as gflops; kee"),
        ("name,AI score,memory (GB),watts\na,8,30,5\n", "line 1, column AI score: a benchmark's score is no speed: "),
        (f"{PLAIN},score\na,8,30,5,9\n", "line 1, column score: a benchmark's score is no speed: it adds up times of"),
        ("name,gflops,memory,watts\na,30,8,5\n", f"line 2, column memory: {NO_UNIT}"),
        ("name,gflops,memory (GB),watts\na,fast,8,5\n", "line 2, column gflops: 'fast' is not a number"),
        ("name,speed,memory (GB),watts\na,5 GFLOPS,8,5\n", "line 2, column speed: '5 GFLOPS' is not a speed of compu"),
        (f"{PLAIN}\na,0,8,5\n", "line 2, column GFLOP/s: it must be more than 0"),
        (f"{PLAIN}\na,30,8,-5\n", "line 2, column watts: '-5 W' is not a power: it must not be negative"),
        (f"{PLAIN}\na,30,8,5\nb,30,8,\n", "line 3, column watts: the cell is empty"),
        (f"{PLAIN}\na,30,8,5\na,30,8,5\n", "line 3, column name: 'a' is in an earlier row already"),
        (f"{PLAIN}\na,,8,5\n", "line 2, column name: a has no throughput: the cells are empty"),
        (f"{PLAIN},like\na,30,8,5,jetson-nan\n", "line 2, column like: no device 'jetson-nan' ships, did you mean"),
        (f"{PLAIN},basis\na,30,8,5,mesured\n", "line 2, column basis: 'mesured': did you mean 'measured'?"),
        (f"{PLAIN},year\na,30,8,5,'24\n", 'line 2, column year: "\'24" is not a whole number above 0'),
        (f"{STEPS}\na,3,,16,8,5\n", "line 2, column model: the cell is empty, but the row has seconds of a step"),
        (f"{STEPS}\na,3,cnn,,8,5\n", "line 2, column batch: the cell is empty, but the row has seconds of a step"),
        (f"{STEPS}\na,3,rsnet,16,8,5\n", "line 2, column model: no model 'rsnet' ships"),
        (f"{STEPS},gflops\na,3,cnn,16,8,5,7\n", "line 2, column step (ms): the row has FLOP/s already; leave one of "),
        (f"{STEPS},overhead_ms\na,3,cnn,16,8,5,3\n", "line 2, column step (ms): 0.003 s are no more than the overhead"),
    ],
)
def test_a_wrong_cell_or_header_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "boards.csv"
    with pytest.raises(ValueError, match=f"^{re.escape(f'{file}, {message}')}"):
        boards(tmp_path, text)


@pytest.mark.parametrize(("name", "content"), [("boards.xlsx", b""), ("b.ods", b"PK"), ("boards.csv", b"PK\x03\x04.")])
def test_a_spreadsheets_own_file_is_to_be_saved_as_csv(name: str, content: bytes, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert is_table(file)
    with pytest.raises(ValueError) as error:
        read_boards(file, step_flops)
    assert str(error.value) == f"{file}: is a spreadsheet's own file; save it as CSV"


def test_a_table_has_steps_of_few_models(tmp_path: Path) -> None:
    rows = "".join(f"b{width},9,cnn,16,4,6,{width}\n" for width in range(1, 34))
    with pytest.raises(ValueError, match=r"line 34, column model: more than 32 models and widths in one table$"):
        boards(tmp_path, f"{STEPS},width\n{rows}")


def test_columns_of_something_else_are_left_out_and_listed(tmp_path: Path) -> None:
    device = board(tmp_path, f"{PLAIN},price,count", "a,30,8,10,45 EUR,3")
    assert device.train_watts == 10.0
    assert unread_columns(tmp_path / "boards.csv") == ("price", "count")


# --- the example ------------------------------------------------------------------------------------------------------


def test_the_boards_of_the_example_are_as_fast_as_the_shipped_rows_of_the_same_sources() -> None:
    # Counted by edge.profile.step_flops: ResNet-18 at 224x224 with 200 classes.
    found = read_boards(BOARDS, lambda model, width, data: ("conv", 10_645_954_560.0))
    assert unread_columns(BOARDS) == ()
    for name, shipped in (
        ("pi4-bench", "raspberry-pi-4"),
        ("pi5-bench", "raspberry-pi-5"),
        ("orange-pi-5-hpl", "orange-pi-5"),
        ("nano-resnet18", "jetson-nano"),
        ("mi9-bench", "phone-high"),
        ("meizu-16t-bench", "meizu-16t"),
    ):
        row, own = devices()[shipped], found.pop(name)
        assert own.throughput("conv") == pytest.approx(row.throughput("conv"), rel=0.1)
        assert own.throughput("depthwise") == pytest.approx(row.throughput("depthwise"), rel=0.15)
        assert (own.train_watts, own.clock_hz, own.year) == (row.train_watts, row.clock_hz, row.year)
        assert own.source
        assert {key for each in BASES for key in getattr(own, each)} >= {"modes"}
    assert found == {}


def test_empty_rows_of_spreadsheets_are_passed_over(tmp_path: Path) -> None:
    assert [*boards(tmp_path, f"{PLAIN}\na,30,8,10\n,,,\nb,30,8,10\n , ,,\n")] == ["a", "b"]
