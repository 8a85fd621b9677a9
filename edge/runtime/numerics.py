"""The fingerprint of a machine's arithmetic: versions of the computing libraries, and the type of processor.

Libraries choose their kernels by the instructions that a processor has, and kernels differ in the order of their sums.
Two machines with the same fingerprint give bit-identical results. Never torch.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edge.protocol.config import CPU

COMPUTING = ("fedbr-edge", "torch", "torchvision", "numpy")
PROCESSOR = Path("/proc/cpuinfo")
GPUS = Path("/proc/driver/nvidia/gpus")
INSTRUCTIONS = (
    *("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx_vnni", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
"""Those by which oneDNN, MKL, OpenBLAS and torch itself tell processors apart."""
SWITCHES = (
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"),
    *("OPENBLAS_CORETYPE", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"),
)
"""Variables of the environment by which a user chooses kernels."""


def fingerprint(device: str) -> dict[str, str]:
    """Libraries, processor and switches that decide the bits of a device (``cpu``, ``cuda``, ``cuda:N``), by name."""
    parts = {name: _version(name) for name in COMPUTING}
    parts["processor"] = _processor()
    if device != CPU:
        parts["GPU"] = ", ".join(sorted(set(gpus())))
    return parts | {name: os.environ[name] for name in SWITCHES if name in os.environ}


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """The differences of two fingerprints in words; empty if there are none."""
    names = [name for name in {**there, **here} if here.get(name) != there.get(name)]
    return "; ".join(f"{name} {here.get(name) or 'missing'} instead of {there.get(name) or 'none'}" for name in names)


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs, from the driver."""
    lines = [line for file in sorted(GPUS.glob("*/information")) for line in file.read_text().splitlines()]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def processor_fields() -> dict[str, str]:
    """The fields of /proc/cpuinfo for the first processor, by name; empty where there is no such file."""
    if not PROCESSOR.is_file():
        return {}
    lines = PROCESSOR.read_text().partition("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _processor() -> str:
    """Maker, and the instructions that matter."""
    fields = processor_fields()
    instructions = (fields.get("flags") or fields.get("Features") or "").split()
    maker = fields.get("vendor_id") or fields.get("CPU implementer") or ""
    return " ".join([platform.machine(), maker, *(name for name in INSTRUCTIONS if name in instructions)])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
