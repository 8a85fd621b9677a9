"""``fedbr doctor --calibrate``: this machine as a device that a fleet can name."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from coordinator.workers.task import PoolError
from costmodel.fleet.devices import Device, devices, figures, own_devices
from scenarios.config.load import ScenarioError
from scenarios.studies import doctor


def measurement(model: str, width: int | None, batch: int, *figures: float) -> dict[str, Any]:
    """One row: FLOPs, seconds, predicted seconds and relative error; of its own width if none is given."""
    family = "attention" if model == "vit" else "conv"
    row = {"model": model, "width": width, "own_width": width is None, "family": family, "batch": batch}
    return row | dict(zip(("flops", "seconds", "predicted_seconds", "relative_error"), figures, strict=True))


MEASURED: dict[str, Any] = {
    "step_seconds": 0.00123611,
    "flops_per_second": {"conv": 80e9, "attention": 50e9, "resnet18": 80e9, "vit": 50e9},
    "torch": "2.99",
    "measurements": [
        measurement("resnet18", 16, 32, 6.66e9, 0.08, 0.09, 0.125),
        measurement("vit", None, 8, 5e7, 0.004, 0.001, -0.75),
    ],
}

LIKE = Device(
    name="a-laptop",
    flops_per_second={"conv": 100e9, "depthwise": 40e9, "attention": 70e9},
    step_seconds=0.001,
    modes=(1.0,),
    memory_bytes=16,
    train_watts=25.0,
    idle_watts=6.0,
    clock_hz=3e9,
    source="made up",
    year=2024,
    assumed=("step_seconds", "idle_watts"),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedbr-edge"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_measure", lambda quick: MEASURED)


def python_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script stand where the measuring process is started."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_this_machine_becomes_a_device_that_reads_back(cache: Path) -> None:
    made = doctor.calibrate("my-host", quick=True)
    device = own_devices(cache / "devices" / "my-host.toml")["my-host"]

    assert made["file"] == str(cache / "devices" / "my-host.toml")
    assert [row["batch"] for row in made["measurements"]] == [8, 32]
    # How well the line fits depends on who else is on this machine; the fit itself is tested with made-up times.
    assert 0 <= made["step_seconds"] <= min(row["seconds"] for row in made["measurements"])
    assert 1e8 < device.throughput("digits-cnn", "conv") < 1e13
    assert device.throughput("conv") == device.throughput("digits-cnn"), "the only model that was measured"
    assert device.step_seconds == made["step_seconds"] < 1
    assert device.flops_per_second == made["flops_per_second"]
    assert set(device.flops_per_second) == {"digits-cnn", *devices()["laptop-cpu"].flops_per_second}
    assert device.memory_bytes == psutil.virtual_memory().total
    known = {"step_seconds", "memory_bytes", "flops_per_second.conv", "flops_per_second.digits-cnn"}
    assert {"train_watts", "idle_watts"} <= set(device.assumed) <= {*figures(asdict(device))} - known
    assert "training digits-cnn with torch" in device.source
    assert json.loads(json.dumps(made)) == made


def test_what_was_not_measured_is_taken_from_another_device_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_clock_hz", lambda: None)
    monkeypatch.setattr(doctor, "_processor", lambda: "a processor")
    made = doctor.profile(MEASURED, LIKE)

    # Depthwise: 80 GFLOP/s, what conv reaches here, times 40/100. Attention was measured.
    assert made["flops_per_second"] == MEASURED["flops_per_second"] | {"depthwise": 32e9}
    assert made["step_seconds"] == 0.001236
    assert (made["train_watts"], made["idle_watts"], made["clock_hz"]) == (25.0, 6.0, 2.5e9)
    assert made["source"] == (
        "throughput of each model, geometric mean of a family's, and step overhead: CPU time of one core (a processor) "
        "in training resnet18, vit with torch 2.99, by fedbr doctor --calibrate; memory: as the system tells; "
        "of a-laptop: throughput of depthwise (conv times its ratio), both powers"
    )
    assert made["assumed"] == ["flops_per_second.depthwise", "train_watts", "idle_watts", "clock_hz"]
    assert set(made) == set(asdict(LIKE)) - {"name", "inference", "derived"}
    monkeypatch.setattr(doctor, "_clock_hz", lambda: 3.1e9)  # which the system tells
    made = doctor.profile(MEASURED, LIKE)
    assert made["assumed"] == ["flops_per_second.depthwise", "train_watts", "idle_watts"]
    assert "; memory and clock: as the system tells; " in made["source"]


@pytest.mark.usefixtures("measured")
def test_people_see_the_table_the_file_and_how_to_name_it(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream, file = io.StringIO(), cache / "devices" / "desk.toml"
    doctor.show_calibration(doctor.calibrate("desk"), stream)

    assert capsys.readouterr() == (
        "",
        "fedbr: measuring the training steps of every shipped model on one core; about half a minute\n",
    )
    assert [line.rstrip() for line in stream.getvalue().splitlines()] == [
        "model                            batch        work  CPU time  predicted   error",
        "resnet18, width 16 (not fitted)     32  6.66 GFLOP     80 ms      90 ms  +12.5%",
        "vit                                  8    50 MFLOP      4 ms       1 ms  -75.0%",
        "",
        "conv 80 GFLOP/s, attention 50 GFLOP/s, resnet18 80 GFLOP/s, vit 50 GFLOP/s, depthwise 32 GFLOP/s, "
        "dense 52 GFLOP/s; 1.24 ms overhead per step",
        f"off by at most 75%, 12% at other widths; written to {file}",
        "a scenario names it so: fleet.devices = { desk = 1.0 }",
    ]
    assert file.read_text().splitlines()[3:8] == [
        "# model                            batch  work        CPU time  predicted  error",
        "# resnet18, width 16 (not fitted)  32     6.66 GFLOP  80 ms     90 ms      +12.5%",
        "# vit                              8      50 MFLOP    4 ms      1 ms       -75.0%",
        "",
        "[desk]",
    ]
    doctor.calibrate(quick=True)
    assert capsys.readouterr() == ("", "fedbr: measuring a few training steps of one model on one core\n")
    assert (cache / "devices" / "this-host.toml").is_file()
    doctor.calibrate(quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("laptop-cpu", "--name laptop-cpu: a shipped device has that name; choose another"),
        ("../mine", "--name '../mine': must be at most 64 letters, digits, - and _"),
        ("", "--name '': must be at most 64 letters, digits, - and _"),
    ],
)
def test_a_name_that_no_device_can_have_is_refused_before_measuring(name: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        doctor.calibrate(name)
    assert str(caught.value) == message


@pytest.mark.usefixtures("measured")
def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(ScenarioError, match=r"^cannot write .*/this-host\.toml: Not a directory$"):
        doctor.calibrate()


# --- the measuring process --------------------------------------------------------------------------------------------


def test_it_runs_as_workers_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    answer = '{"words": "%s", "threads": %s, "mmap": %s}'
    python_is(tmp_path, monkeypatch, f"printf '{answer}' \"$*\" $OMP_NUM_THREADS $MALLOC_MMAP_THRESHOLD_")

    assert doctor._measure(quick=True) == {
        "words": "-P -m edge.profile.calibrate --quick",
        "threads": 1,
        "mmap": 1 << 30,
    }


def test_its_failure_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_is(tmp_path, monkeypatch, "echo 'RuntimeError: out of memory' >&2; exit 3")

    with pytest.raises(PoolError) as caught:
        doctor.calibrate()
    assert str(caught.value).splitlines()[0].startswith("the process that measures ended with exit code 3")
    assert str(caught.value).splitlines()[-1].strip() == "RuntimeError: out of memory"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGTERM)
    # A shell that starts the tests in the background has Ctrl-C ignored.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    told = tmp_path / "pid"
    python_is(tmp_path, monkeypatch, f"sleep 0.2; echo $$ > {told}.part; mv {told}.part {told}; exec sleep 60")

    def interrupt() -> None:
        while not told.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        doctor.calibrate()
    thread.join()
    signal.signal(signal.SIGINT, ours)
    assert not psutil.pid_exists(int(told.read_text()))
    assert signal.getsignal(signal.SIGTERM) is before
