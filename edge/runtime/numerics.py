"""The fingerprint of a machine's arithmetic: versions of the computing libraries, and the type of processor.

Libraries choose their kernels by the instructions that a processor has, and kernels differ in the order of their sums.
Two machines with the same fingerprint give bit-identical results. With portable numerics (`edge.protocol.portable`) the
processor is told by the instructions that portable kernels need alone. Never torch.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from edge.protocol.config import CPU
from edge.protocol.portable import NATIVE, NEEDED, PORTABLE, TRAINING_SWITCHES, Instructions

COMPUTING = ("fedbr-edge", "torch", "torchvision", "numpy")
PROCESSOR = Path("/proc/cpuinfo")
X86_64 = "x86_64"
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


def fingerprint(device: str, instructions: Instructions = NATIVE) -> dict[str, str]:
    """Libraries, processor and switches that decide the bits of a device (``cpu``, ``cuda``, ``cuda:N``), by name.

    ``instructions``: `TrainConfig.instructions`; portable ones have the same fingerprint on every machine that has them
    and these versions.
    """
    parts = {name: _version(name) for name in COMPUTING}
    if instructions == PORTABLE:
        return parts | {"processor": _processor(NEEDED, with_maker=False)} | dict(TRAINING_SWITCHES)
    parts["processor"] = processor()
    if device != CPU:
        parts["GPU"] = ", ".join(sorted(set(gpus())))
    return parts | {name: os.environ[name] for name in SWITCHES if name in os.environ}


def lacking() -> str:
    """What this machine's processor lacks for portable numerics, in words; empty if it has all of it."""
    if platform.machine() != X86_64:
        return f"this machine's is {platform.machine() or 'unknown'}, not {X86_64}"
    missing = [name for name in NEEDED if name not in _instructions()]
    return f"this machine's has no {' and no '.join(name.upper() for name in missing)}" if missing else ""


def processor() -> str:
    """Maker of the processor, and its instructions that matter for native kernels."""
    return _processor(INSTRUCTIONS, with_maker=True)


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


def _processor(names: Sequence[str], with_maker: bool) -> str:
    """The architecture, the maker, and the instructions of these names."""
    fields, found = processor_fields(), _instructions()
    maker = fields.get("vendor_id") or fields.get("CPU implementer") or ""
    return " ".join([platform.machine(), *([maker] if with_maker else []), *(name for name in names if name in found)])


def _instructions() -> list[str]:
    fields = processor_fields()
    return (fields.get("flags") or fields.get("Features") or "").split()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
