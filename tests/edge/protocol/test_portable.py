"""The environment in which every processor with AVX2 computes the same bits."""

from __future__ import annotations

import pytest

from edge.protocol import portable
from edge.protocol.portable import numpy_is_portable, training_environment, trains_portably

LIMITED = {
    "HOME": "/home/me",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Haswell",
}


@pytest.fixture
def avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy as on a processor with AVX-512."""
    monkeypatch.setattr(portable, "numpy_instructions", lambda: ["X86_V4", "AVX512_ICL"])


@pytest.fixture
def avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy as on a processor without AVX-512, or limited."""
    monkeypatch.setattr(portable, "numpy_instructions", list)


@pytest.mark.usefixtures("avx512")
def test_libraries_are_limited_whatever_the_user_has_set() -> None:
    theirs = {"HOME": "/home/me", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "AVX512"}
    assert training_environment(theirs) == LIMITED | {"NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL"}
    assert not trains_portably(theirs)
    assert not trains_portably(LIMITED)  # NumPy is not


@pytest.mark.usefixtures("avx2")
def test_a_process_that_was_started_so_is_told_by_its_environment() -> None:
    assert training_environment(LIMITED) == LIMITED
    assert trains_portably(LIMITED)
    assert not trains_portably(LIMITED | {"DNNL_MAX_CPU_ISA": "ALL"})
    assert numpy_is_portable({"OPENBLAS_CORETYPE": "Haswell"})
    assert not numpy_is_portable({})
