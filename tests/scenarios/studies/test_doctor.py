"""``fedbr check --calibrate``: this machine as a device that a fleet can name."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from msgspec import convert, to_builtins

from costmodel.fleet.codec_costs import reference_rates
from costmodel.fleet.devices import Device, devices, own_rows
from edge.protocol.codecs.registry import CODECS
from scenarios.config.load import ScenarioError
from scenarios.studies import doctor


def measurement(model: str, width: int | None, batch: int, seconds: float, *, fitted: bool = False) -> dict[str, Any]:
    """One row, whose example takes 0.8 GFLOP of convolutions of width 16, and whose step makes ten calls."""
    operations = {"conv.w16": [0.8e9, 0.0], "calls": [0.0, 10.0]}
    row = {"model": model, "width": width, "fitted": fitted, "family": "conv", "batch": batch, "flops": 0.8e9}
    return row | {"seconds": seconds, "spread": 0.04 if batch == 16 else 0.06, "operations": operations}


OUTPUT: dict[str, Any] = {
    "step_seconds": 0.00123611,
    "flops_per_second": {"conv": 80e9, "attention": 50e9},
    "operations_per_second": {"conv.w16": 40e9, "calls": 1 / 0.0008764},
    "memory_bytes_per_second": 12.3456e9,
    "torch": "2.99",
    "codecs": {
        kind: {"encode": [rate / 2 for rate in rates.encode], "decode": [rate / 8 for rate in rates.decode]}
        for kind, rates in reference_rates().items()
    },
    "measurements": [
        measurement("plain-6x2@32", 6, 32, 0.65, fitted=True),
        measurement("resnet18", 16, 16, 0.32),
        measurement("cnn", None, 32, 0.60),
    ],
}
MEASURED = convert(OUTPUT, doctor.Measured)
"""A step takes 1.236 + 8.764 = 10 ms and 20 ms per example: 330 ms with 16 and 650 ms with 32. Encoding takes twice as
long as on the reference host, and decoding eight times: four times in the geometric mean."""

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
    monkeypatch.setattr(doctor, "_measure", lambda quick, passes: json.dumps(OUTPUT).encode())


def python_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script stand where the measuring process is started."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.long
def test_this_machine_becomes_a_device_that_reads_back(cache: Path) -> None:
    made = doctor.calibrate("my-host", quick=True)
    device = own_rows(cache / "devices" / "my-host.toml", Device)["my-host"]

    assert made.file == str(cache / "devices" / "my-host.toml")
    # How well it fits depends on who else is on this machine; the fit itself is tested with made-up times.
    assert 0 <= made.step_seconds <= 2 * min(row.seconds for row in made.measurements)
    assert 1e7 < device.throughput("digits-cnn", "conv") < 1e13
    assert device.step_seconds == made.step_seconds < 1
    assert device.flops_per_second == made.flops_per_second
    assert device.operations_per_second == made.operations_per_second
    assert set(device.codecs) == set(CODECS) == set(reference_rates())
    assert device.codec_slowdown == made.codec_slowdown > 0
    # Which classes come out as the limit of a short trial varies.
    assert any(kind.startswith("conv.w") for kind in device.operations_per_second)
    assert set(device.flops_per_second) == {*devices()["laptop-cpu"].flops_per_second}
    assert device.memory_bytes == psutil.virtual_memory().total
    assert convert(json.loads(json.dumps(to_builtins(made))), doctor.Calibration) == made


def test_what_was_not_measured_is_taken_from_another_device_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_freq", lambda: None)
    monkeypatch.setattr("edge.runtime.numerics.processor_fields", lambda: {"model name": "a processor"})
    made = doctor.profile(MEASURED, LIKE)

    # Depthwise: 80 GFLOP/s, what conv reaches here, times 40/100. Attention was measured.
    assert made.flops_per_second == MEASURED.flops_per_second | {"depthwise": 32e9}
    assert made.step_seconds == 0.001236
    assert made.operations_per_second == {"conv.w16": 40e9, "calls": 1141.0}
    assert made.codec_slowdown == pytest.approx(4.0, rel=1e-3)
    assert made.memory_bytes_per_second == 12.35e9
    assert (made.train_watts, made.idle_watts, made.clock_hz) == (25.0, 6.0, 2.5e9)
    assert made.source == (
        "rates by kind of operation, throughputs and step overhead: CPU time of one core (a processor) "
        "in training 1 reference networks with torch 2.99, by fedbr check --calibrate; codecs: likewise, in coding "
        "random numbers; rate of memory: likewise, in a step of AdamW; memory: as the system tells; "
        "of a-laptop: throughput of depthwise (conv times its ratio), both powers"
    )
    assert made.assumed == ["flops_per_second.depthwise", "train_watts", "idle_watts", "clock_hz"]
    monkeypatch.setattr("psutil.cpu_freq", lambda: SimpleNamespace(max=3100.0))  # which the system tells
    made = doctor.profile(MEASURED, LIKE)
    assert made.assumed == ["flops_per_second.depthwise", "train_watts", "idle_watts"]
    assert "; memory and clock: as the system tells; " in made.source


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "laptop-cpu"}, "--name laptop-cpu: a shipped device has that name; choose another"),
        ({"name": "../mine"}, "--name '../mine': must be at most 64 letters, digits, - and _"),
        ({"name": ""}, "--name '': must be at most 64 letters, digits, - and _"),
        ({"passes": 0}, "--passes 0: must be at least 1"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_measuring(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        doctor.calibrate(**arguments)
    assert str(caught.value) == message


# --- the measuring process --------------------------------------------------------------------------------------------


def test_it_runs_as_workers_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    answer = '{"words": "%s", "threads": %s, "mmap": %s}'
    python_is(tmp_path, monkeypatch, f"printf '{answer}' \"$*\" $OMP_NUM_THREADS $MALLOC_MMAP_THRESHOLD_")

    assert json.loads(doctor._measure(quick=True, passes=5)) == {
        "words": "-P -m edge.protocol.interpreter edge.profile.calibrate --quick --passes 5 --codec-sizes 10000",
        "threads": 1,
        "mmap": 1 << 30,
    }


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
