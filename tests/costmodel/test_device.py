"""The shipped rows are complete and anchored to published figures; a bad row is refused by file, row and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.device import Device, Network, devices, networks, read_rows

ROW = {
    "flops_per_second": "1e9",
    "memory_bytes": "1_000_000",
    "train_watts": "5",
    "idle_watts": "0.0",
    "source": '"a bench"',
    "year": "2024",
    "assumed": "false",
}


def _file(folder: Path, **changes: str | None) -> Path:
    row = {key: value for key, value in (ROW | changes).items() if value is not None}
    path = folder / "rows.toml"
    path.write_text("[toaster]\n" + "\n".join(f"{key} = {value}" for key, value in row.items()))
    return path


def test_every_shipped_row_says_where_it_comes_from() -> None:
    assert len(devices()) >= 10
    assert len(networks()) >= 8
    rows: list[Device | Network] = [*devices().values(), *networks().values()]
    for row in rows:
        assert 2005 < row.year < 2100, row
        # A row that assumes a figure says which, and only such a row.
        assert row.assumed == ("assumed" in row.source), row


def test_a_raspberry_pi_5_trains_resnet18_as_fast_as_published() -> None:
    # jafermarq/federated-embedded-vision: 116.85 s for 20 batches of 16 images of 1.8 GMAC forward; training is 3x.
    flops_per_batch = 3 * 2 * 1.8e9 * 16
    assert flops_per_batch / devices()["raspberry-pi-5"].flops_per_second == pytest.approx(116.85 / 20, rel=0.01)


def test_the_published_rates_of_lte_stand_in_its_row() -> None:
    lte = networks()["lte-2012"]
    assert (lte.down_bits_per_second, lte.up_bits_per_second) == (13e6, 6e6)


def test_a_good_row_is_read_into_its_types(tmp_path: Path) -> None:
    assert read_rows(_file(tmp_path), Device) == {
        "toaster": Device("toaster", 1e9, 1_000_000, 5.0, 0.0, "a bench", 2024, False)
    }


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("year", None, "rows.toml: row 'toaster': key 'year' is missing"),
        ("idle_wats", "3", "rows.toml: row 'toaster': unknown key 'idle_wats', did you mean 'idle_watts'?"),
        ("year", '"2024"', "rows.toml: row 'toaster', key 'year': expected int, not '2024'"),
        ("assumed", "1", "rows.toml: row 'toaster', key 'assumed': expected bool, not 1"),
        ("train_watts", "true", "rows.toml: row 'toaster', key 'train_watts': expected float, not True"),
        ("flops_per_second", "0.0", "rows.toml: row 'toaster', key 'flops_per_second': 0.0 is out of range"),
        ("train_watts", "-1", "rows.toml: row 'toaster', key 'train_watts': -1.0 is out of range"),
        ("train_watts", "inf", "rows.toml: row 'toaster', key 'train_watts': inf is out of range"),
        ("source", '" "', "rows.toml: row 'toaster', key 'source': it must not be empty"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, key: str, value: str | None, message: str) -> None:
    with pytest.raises(ValueError) as error:
        read_rows(_file(tmp_path, **{key: value}), Device)
    assert str(error.value) == message


@pytest.mark.parametrize("text", ["[toaster", "toaster = 3"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^rows\.toml: "):
        read_rows(path, Network)
