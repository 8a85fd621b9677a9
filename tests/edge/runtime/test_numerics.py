"""What decides about last bits on a machine."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from edge.runtime import numerics
from edge.runtime.numerics import difference, fingerprint, lacking


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Computes as on a processor of an architecture, a maker and such instructions."""

    def stand_in(architecture: str, maker: str, instructions: str) -> None:
        told = tmp_path / "cpuinfo"
        told.write_text(f"processor\t: 0\nvendor_id\t: {maker}\nflags\t\t: {instructions}\n\nprocessor\t: 1\n")
        monkeypatch.setattr(numerics, "PROCESSOR", told)
        monkeypatch.setattr(platform, "machine", lambda: architecture)

    return stand_in


def test_a_processor_is_told_by_its_maker_and_the_instructions_that_kernels_choose_by(
    processor: Callable[[str, str, str], None],
) -> None:
    processor("x86_64", "Somebody", "fpu amx_tile avx2 sse2 avx")
    assert fingerprint("cpu")["processor"] == "x86_64 Somebody avx avx2 amx_tile"


def test_portable_numerics_are_the_same_for_all_makers_and_later_instructions(
    processor: Callable[[str, str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor("x86_64", "Somebody", "fpu avx avx2 fma")
    somebodys = fingerprint("cpu", "portable")
    assert (somebodys["processor"], somebodys["MKL_CBWR"], lacking()) == ("x86_64 avx2 fma", "COMPATIBLE", "")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # replaced where workers start
    processor("x86_64", "Another", "avx2 fma avx512f amx_tile")
    assert difference(fingerprint("cpu", "portable"), somebodys) == ""


def test_a_processor_without_portable_numerics_is_told_by_what_it_lacks(
    processor: Callable[[str, str, str], None],
) -> None:
    processor("x86_64", "Somebody", "fpu avx avx2 fma")
    complete = fingerprint("cpu", "portable")
    processor("x86_64", "Somebody", "avx")
    assert lacking() == "this machine's has no AVX2 and no FMA"
    assert difference(fingerprint("cpu", "portable"), complete) == "processor x86_64 instead of x86_64 avx2 fma"
    processor("aarch64", "Arm", "asimd")
    assert lacking() == "this machine's is aarch64, not x86_64"


def test_two_machines_are_compared_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MKL_CBWR", raising=False)
    here = fingerprint("cpu")
    assert here["torch"] == version("torch")
    assert difference(here, here) == ""
    assert difference(here, {**here, "torch": "2.0.1", "MKL_CBWR": "AVX2"}) == (
        f"torch {here['torch']} instead of 2.0.1; MKL_CBWR missing instead of AVX2"
    )


def test_gpus_are_told_by_their_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 40\n")
    monkeypatch.setattr(numerics, "GPUS", tmp_path)
    assert numerics.gpus() == ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"]
    assert fingerprint("cuda")["GPU"] == "NVIDIA H100 80GB HBM3"
    assert "GPU" not in fingerprint("cpu")
