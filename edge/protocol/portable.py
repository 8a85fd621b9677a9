"""Portable numerics: the environment in which libraries compute the same bits on every x86-64 processor with AVX2.

Libraries choose kernels by a processor's maker, instructions and caches, and kernels differ in the order of their sums.
The switches here leave them one choice. They are read when a library is imported, so that they are set for a process
before it starts. Never torch, and this process's own environment is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

Instructions = Literal["native", "portable"]
NATIVE: Instructions = "native"
PORTABLE: Instructions = "portable"

NEEDED = ("avx2", "fma")
"""The instructions of portable kernels, by their names in /proc/cpuinfo; torch tells AVX2 kernels by both."""
TRAINING_SWITCHES: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
}
"""Of torch's own kernels, of oneDNN (convolutions) and of MKL (matrix products, exp and log). MKL heeds ``AVX2`` on
Intel's processors alone, as MKL_VERBOSE=1 shows; ``COMPATIBLE`` is its one branch for all makers (oneMKL Developer
Guide, Obtaining Numerically Reproducible Results)."""
OPENBLAS_KERNELS, NUMPY_SKIPS = "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES"
OPENBLAS_WITH_AVX2 = "Haswell"
"""Kernels that OpenBLAS has for the first processors with AVX2; makers do not matter."""
OVERRIDING = (
    *("DNNL_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "DNNL_CPU_ISA_HINTS", "ONEDNN_DEFAULT_FPMATH_MODE"),
    *("DNNL_DEFAULT_FPMATH_MODE", "MKL_ENABLE_INSTRUCTIONS", "NPY_ENABLE_CPU_FEATURES"),
)
"""Variables of a user's environment that would change these choices."""
NUMPY_BEYOND_AVX2 = ("X86_V4", "AVX512", "AVX10")
"""How names of NumPy's kernels begin that need more than AVX2, in all of its versions from 2.0 on."""


def training_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment, changed so that a process that starts with it trains with portable numerics."""
    kept = {name: value for name, value in numpy_environment(environment).items() if name not in OVERRIDING}
    return {**kept, **TRAINING_SWITCHES}


def numpy_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment, changed so that NumPy computes with portable numerics; nothing else of it changes."""
    skipped = " ".join(filter(None, (environment.get(NUMPY_SKIPS, ""), *numpy_instructions())))
    kept = {name: value for name, value in environment.items() if name != "NPY_ENABLE_CPU_FEATURES"}
    return kept | {OPENBLAS_KERNELS: OPENBLAS_WITH_AVX2} | ({NUMPY_SKIPS: skipped} if skipped else {})


def trains_portably(environment: Mapping[str, str]) -> bool:
    """Whether a process that was started with this environment trains with portable numerics."""
    return all(environment.get(name) == value for name, value in training_environment(environment).items()) and not any(
        name in environment for name in OVERRIDING
    )


def numpy_is_portable(environment: Mapping[str, str]) -> bool:
    """Whether NumPy computes with portable numerics in this process, which was started with this environment."""
    return environment.get(OPENBLAS_KERNELS) == OPENBLAS_WITH_AVX2 and not numpy_instructions()


def numpy_instructions() -> list[str]:
    """The names of the kernels beyond AVX2 that NumPy uses in this process; empty if there are none."""
    # NumPy's own test suite reads these two names; its public functions only print them.
    kernels: Any = import_module("numpy._core._multiarray_umath")
    return [
        name
        for name in kernels.__cpu_dispatch__
        if kernels.__cpu_features__.get(name) and name.startswith(NUMPY_BEYOND_AVX2)
    ]
