"""``fedbr check``: what a scenario weighs and will cost, and whether it can run here at all, without training."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.cli import main
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from scenarios.run.setup import Setup
from scenarios.studies.forecast import check, check_text
from scenarios.studies.forecast.check import AlphaRow, Check, DataSource, MachineCosts
from scenarios.studies.forecast.forecast import RefusedClients, forecast
from tests.scenarios.studies.forecast.profiles import profile

COSTS = MachineCosts(
    rounds=40,
    virtual_seconds_per_round=1.5,
    bytes_per_round=2000.0,
    wall_seconds_per_round=None,
    wall_seconds=None,
    wall_from=None,
    workers=2,
    device="cpu",
    disk_nbytes=1_390_000,
    coordinator_nbytes=74_000_000,
    worker_nbytes=569_000_000,
)
HERE = DataSource("here", None, None, None)


def checked(*overrides: str, **changes: Any) -> Check:
    """A check of the digits as it would be, with these costs in place of those of this machine."""
    loaded = load("digits", parse_all(["method=fedavg", "method_options={}", *overrides]))
    found = forecast(Setup.of(loaded, replace(profile(samples=32), test_samples=np.full(10, 8))))
    return Check({}, [], [], [], [], replace(found, **changes), HERE, COSTS, [])


def texts(found: Check) -> tuple[dict[str, Any], list[str], dict[str, str]]:
    """(rows of costs, notes below them, rows of the estimate), as they are printed."""
    rows = {name: (each, total) for name, each, total in check_text.cost_rows(found.costs, found.estimate)}
    notes = list(check_text.cost_notes(found.costs, found.estimate))
    return rows, notes, dict(check_text.estimate_rows(found.estimate))


@pytest.fixture(scope="module")
def cifar100(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """The check of the FedBR paper's CIFAR-100 setting, on a machine without the data."""
    root = tmp_path_factory.mktemp("no-data")
    return check.run_check(load("fedbr-cifar100", parse_all([f"data.root={root}", "model.norm=group"])), root)


def column(rows: list[AlphaRow], name: str, digits: int = 4) -> list[float]:
    return [round(getattr(row, name), digits) for row in rows]


# --- blocks and alphas ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("warm_workers")
def test_the_blocks_of_resnet18_weigh_and_cost_what_its_shapes_say_and_a_message_a_header_more(cifar100: Check) -> None:
    rows, blocks = cifar100.alphas, cifar100.blocks
    assert column(rows, "payload_nbytes") == [205_200, 33_780_112, 42_178_960, 44_281_232, 44_873_104]
    assert column(rows, "flops_ratio", 3) == [1.000, 1.161, 1.484, 1.968, 2.633]
    assert column(rows, "ratio_3f") == [1.0001, 1.1612, 1.4834, 1.9668, 2.6313]
    assert column(rows, "eq2") == [1.1667, 1.5, 2.0, 2.6667, 3.5]
    assert column(rows, "nominal_share") == [0.1667, 0.3333, 0.5, 0.6667, 0.8333]
    assert column(rows, "share") == [0.0046, 0.7527, 0.9398, 0.9866, 0.9998]
    for row in rows:
        assert 0 < row.message_nbytes - row.payload_nbytes < 1000
    assert [block.name for block in blocks] == ["stem", "stage1", "stage2", "stage3", "stage4", "head"]
    assert sum(block.params for block in blocks) == 11_220_132
    assert sum(block.nbytes for block in blocks) == 4 * 11_220_132
    assert sum(block.flops_forward for block in blocks) == 2 * 555_468_800


# --- what is printed --------------------------------------------------------------------------------------------------


def test_the_printed_check_fits_80_columns_cuts_no_number_and_names_devices_that_are_too_small(cifar100: Check) -> None:
    refused = replace(cifar100.estimate, refused_clients=[RefusedClients(3, "board: 4 B x ...")])
    found, stream = replace(cifar100, estimate=refused), io.StringIO()
    check_text.print_check(found, stream)
    lines = stream.getvalue().splitlines()

    assert lines[1].startswith("costs, if the run lasts all its rounds"), "before all details"
    assert 'name = "cifar100"' not in lines
    assert "…" not in stream.getvalue()
    unbroken = ("warning: data set", "to get it:", "wall time:", "forecast:")
    assert max(len(line) for line in lines if not line.startswith(unbroken)) <= 80
    row = "1 205,200 205,377 0.46 % 16.67 % 1.000 1.0001 1.1667"
    assert row in [" ".join(line.split()) for line in lines]
    assert any(line.startswith("warning: data set cifar100 was not found") for line in lines)
    assert "warning: 3 clients cannot take part: board: 4 B x ..." in lines[:20]
    check_text.print_check(found, stream, keys=True)
    assert 'name = "cifar100"' in stream.getvalue().splitlines()


def test_wall_time_is_that_of_measured_rounds_and_otherwise_unknown() -> None:
    found = checked(bytes=80_000, virtual_seconds=60.0, joules=None)
    rows, notes, _ = texts(found)
    assert rows == {
        "virtual time": ("about 1.5 s", "about 1 min"),
        "bytes": ("2 kB", "80 kB"),
        "wall time here": ("unknown", "unknown"),
    }
    assert notes[0] == "forecast: 20 rounds played without training, the others at the pace of the later half"
    assert notes[1] == "wall time: unknown, since no run of this kind is in --out; --measure finds it in a few rounds"
    assert notes[3] == "memory: about 74 MB for the coordinator, and 569 MB for each of 2 workers"
    rows, notes, _ = texts(found.with_pace(0.5, 1))
    assert rows["wall time here"] == ("500 ms", "20 s")
    assert notes[1] == "wall time: measured just now, with 1 worker on cpu"


# --- this machine -----------------------------------------------------------------------------------------------------


def test_what_clients_of_fedbr_keep_is_refused_with_the_sum_where_the_disk_cannot_hold_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(check, "free_nbytes", lambda out: 5999)
    setup = Setup.of(load("digits", parse_all(["model.blocks=balanced:2"])), profile()).with_examples
    with pytest.raises(ScenarioError) as caught:
        check.check_disk(setup, tmp_path)

    # 100 parameters of each of ten clients, and a second copy of five while a round is under way.
    assert forecast(setup).state_disk_nbytes == 15 * 400
    assert str(caught.value) == (
        f"digits: data.clients = 10: client states need 15 x 400 B = 6 kB, but --out {tmp_path} has 6 kB free"
    )


ABSENT = DataSource(None, None, "data set mnist was not found", None)


@pytest.mark.parametrize(
    ("scenario", "overrides", "refused", "data", "refusal"),
    [
        ("digits", (), 0, HERE, None),
        ("digits", (), 9, HERE, None),
        ("digits", (), 10, HERE, "fleet.devices: none of 10 clients can take part: board: too small"),
        ("mnist-cnn", (), 0, ABSENT, None),  # it is downloaded
        (
            *("mnist-cnn", ("data.download=false",), 0, ABSENT),
            "data.name = 'mnist': data set mnist was not found; it is not downloaded: data.download is false",
        ),
    ],
)
def test_a_run_that_cannot_work_is_refused_by_key(
    scenario: str, overrides: tuple[str, ...], refused: int, data: DataSource, refusal: str | None
) -> None:
    found = checked(refused_clients=[RefusedClients(refused, "board: too small")]).estimate
    reasons = list(check.refusals(load(scenario, parse_all(overrides)), found, data, COSTS))
    assert reasons == ([] if refusal is None else [refusal])


@pytest.mark.usefixtures("warm_workers")
def test_check_ends_with_2_where_data_cannot_be_had_after_it_has_said_all_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDBR_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["check", "mnist-cnn", "data.download=false", "--out", str(tmp_path)]
    assert main.run_command([*words, "--json"]) == 2
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["costs"]["bytes_per_round"] > 0
    assert result["costs"]["wall_seconds"] is None
    (reason,) = result["refusals"]
    assert captured.err.splitlines()[-1] == f"fedbr: mnist-cnn: {reason}"
