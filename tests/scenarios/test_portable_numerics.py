"""Portable numerics: digits give these models on every x86-64 processor with AVX2 and FMA.

The hashes are literals, so that every machine that runs the suite checks that of FedAvg, and the long tests all of
them. They change with what a run computes, and may change with torch's version: then they are taken anew on one
machine, and the others check that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.workers.launcher import environment
from edge.protocol import portable
from edge.runtime import numerics
from edge.runtime.numerics import lacking
from scenarios.config.load import load
from scenarios.config.overrides import parsed
from scenarios.report.run_reader import open_runs
from scenarios.run import own_numpy
from scenarios.run.run_folder import RunFolder
from tests.scenarios.portable_runs import SHORT
from tests.scenarios.runs import fedbr

HASHES = {
    "fedavg": "3e88d1e01fe4b5b88e1d2fb8cc468aa739a576541e93d000936399066a9eda3a",
    "scaffold": "49cc7609674eab876e4cdcdc9a2a198047b4abcf67016269982a6ded81bcc150",
    "moon": "3cae5b328e39fe7f59c77c31d2089e93d32e8ba4a3cf23b5afd91bfec811ae55",
    "fedbr": "016092e042f9e1c441a9188fb81f93b88411c7266f6e6425ccccfb344828bb7e",
}
with_avx2 = pytest.mark.skipif(bool(lacking()), reason=f"needs an x86-64 processor with AVX2 and FMA: {lacking()}")


def printed(command: list[str], variables: dict[str, str]) -> dict[str, object]:
    """The JSON object that a command prints."""
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, object] = json.loads(ended.stdout)
    return found


@pytest.mark.long  # FedAvg's hash is in the next test, too
@with_avx2
def test_four_methods_give_one_model_hash_each_on_every_processor(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.scenarios.portable_runs", str(tmp_path), *HASHES]
    assert printed(command, environment("portable")) == HASHES


@with_avx2
def test_the_command_limits_its_own_numpy_and_its_workers(tmp_path: Path) -> None:
    words = ("run", "digits", "method=fedavg", *SHORT, "--workers", "2", "--out", str(tmp_path), "--run-id", "a")
    summary = printed(fedbr(*words, "--json"), dict(os.environ))
    assert summary["model_sha256"] == HASHES["fedavg"]
    (run,) = open_runs([tmp_path / "digits" / "a"])
    assert (run.environment.computes["processor"], run.is_portable) == ("x86_64 avx2 fma", True)


def test_a_run_is_bit_identical_on_another_processor_that_has_avx2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numerics, "_instructions", lambda: ["avx2", "fma", "avx512f"])
    monkeypatch.setattr("scenarios.run.environment.numpy_is_portable", lambda variables: True)
    computes = numerics.fingerprint("cpu", "portable") | {"instructions": "portable"}
    (tmp_path / "environment.json").write_text(json.dumps({"computes": computes}))
    monkeypatch.setattr(numerics, "_instructions", lambda: ["avx2", "fma"])
    assert RunFolder(tmp_path).environment.machine_change("cpu") == ""
    monkeypatch.setattr("scenarios.run.environment.numpy_is_portable", lambda variables: False)
    monkeypatch.setattr("scenarios.run.environment.numpy_instructions", lambda: ["X86_V4"])
    assert RunFolder(tmp_path).environment.machine_change("cpu") == "NumPy native X86_V4 instead of none"
    (tmp_path / "environment.json").write_text(json.dumps({"computes": computes | {"torch": "2.0.1"}}))
    assert "instead of 2.0.1" in RunFolder(tmp_path).environment.machine_change("cpu")


def test_only_a_command_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(os, "execve", lambda program, words, variables: started.append(variables["OPENBLAS_CORETYPE"]))
    monkeypatch.setattr(portable, "numpy_instructions", lambda: ["X86_V4"])
    runs = [load("digits", parsed([f"train.instructions={value}"])) for value in ("native", "portable")]
    own_numpy.limit(runs)
    assert started == []
    monkeypatch.setattr(own_numpy, "_commands", [True])
    own_numpy.limit(runs[:1])
    assert started == []
    own_numpy.limit(runs)
    assert started == ["Haswell"]
