"""What decides about last bits on a machine."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from edge.runtime import numerics
from edge.runtime.numerics import difference, fingerprint


def test_a_processor_is_told_by_its_maker_and_the_instructions_that_kernels_choose_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nvendor_id\t: Somebody\nflags\t\t: fpu amx_tile avx2 sse2 avx\n\nprocessor\t: 1\n")
    monkeypatch.setattr(numerics, "PROCESSOR", told)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert fingerprint("cpu")["processor"] == "x86_64 Somebody avx avx2 amx_tile"


def test_two_machines_are_compared_by_name() -> None:
    here = fingerprint("cpu")
    assert here["torch"] == version("torch")
    assert difference(here, here) == ""
    assert difference(here, {**here, "torch": "2.0.1", "MKL_CBWR": "AVX2"}) == (
        f"torch {here['torch']} instead of 2.0.1; MKL_CBWR missing instead of AVX2"
    )


def test_a_choice_of_kernels_by_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    before = fingerprint("cpu")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert difference(fingerprint("cpu"), before) == "ONEDNN_MAX_CPU_ISA AVX2 instead of none"


def test_gpus_are_told_by_their_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 40\n")
    monkeypatch.setattr(numerics, "GPUS", tmp_path)
    assert numerics.gpus() == ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"]
    assert fingerprint("cuda")["GPU"] == "NVIDIA H100 80GB HBM3"
    assert "GPU" not in fingerprint("cpu")
