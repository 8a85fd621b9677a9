"""The source files of the user's own modules that a run is made of: found, copied into its folder, and compared later.

A scenario names such modules itself (``method = "my_package.my_method:ROW"``) or through the rows that it names. They
are found by the import system's path search and read as text: nothing here imports or executes them, or their copies.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from edge.protocol.files import write_bytes
from scenarios.config.load import Loaded

FOLDER = "sources"
OURS = {"coordinator", "costmodel", "edge", "scenarios"}
INSTALLED = {"site-packages", "dist-packages"}
MODE = 0o644


@dataclass(frozen=True)
class Source:
    """A module's file, as it was when it was looked at."""

    file: Path
    content: bytes

    @property
    def sha256(self) -> str:
        """Of all its bytes: a comment counts."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class SourceFile:
    """What a run's environment says of one."""

    file: str
    sha256: str


def named(loaded: Loaded) -> set[str]:
    """The modules that a scenario and its rows name: rows, client sides, stages of a model, readers of data."""
    scenario, method = loaded.scenario, loaded.method
    rows = [*method.name.split("+"), scenario.model.name, scenario.data.name]
    parts = [*(part.client for part in method.parts), loaded.model.stages]
    readers = {loaded.dataset.reader} if loaded.dataset.reader else set()
    return {name.strip().partition(":")[0] for name in (*rows, *parts) if ":" in name} | readers


def find(modules: Iterable[str]) -> dict[str, Source]:
    """Module -> its file: of these modules, of the packages that they lie in, and of what they import of the user's.

    Imports are followed beside the modules' top-level package; of one that is installed, only within that package.
    Modules of this product and modules without a file are passed over.
    """
    importlib.invalidate_caches()
    waiting = [name for name in modules if _top(name) not in OURS]
    tops = {_top(name) for name in waiting}
    roots = {root for top in tops for root in _roots(top) if not INSTALLED & set(root.parts)}
    found: dict[str, Source] = {}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        top, parent = _top(name), name.rpartition(".")[0]
        if top in OURS or not (top in tops or roots & _roots(top)):
            continue
        waiting += [parent] if parent else []
        spec = _spec(name)
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            continue
        found[name] = Source(Path(spec.origin), Path(spec.origin).read_bytes())
        if spec.origin.endswith(".py"):
            waiting += _imports(found[name].content, parent if spec.submodule_search_locations is None else name)
    return found


def keep(found: Mapping[str, Source], folder: Path) -> dict[str, SourceFile]:
    """Copy them into a run folder that has been checked (`scenarios.run_folder`); returns what to record."""
    for module, source in found.items():
        copy = _copy(folder, module, source.file)
        write_bytes(copy, source.content)
        copy.chmod(MODE)
    return {module: SourceFile(str(found[module].file), found[module].sha256) for module in sorted(found)}


def remove(folder: Path) -> None:
    """Remove the copies that a run folder's environment names, and the folders that are empty without them."""
    try:
        recorded = dict(json.loads((folder / "environment.json").read_bytes())["sources"])
        copies = [_copy(folder, module, Path(known["file"])) for module, known in recorded.items() if _is_name(module)]
    except (OSError, ValueError, KeyError, TypeError):  # there are none, or the file is not what a run has written
        return
    for copy in copies:
        within = [parent for parent in copy.parents if parent.is_relative_to(folder / FOLDER)]
        if any(parent.is_symlink() for parent in within):
            continue
        with suppress(OSError):
            copy.unlink()
            for parent in within:
                parent.rmdir()


def _is_name(module: str) -> bool:
    return all(part.isidentifier() for part in module.split("."))


def change(before: Mapping[str, SourceFile], folder: Path) -> str:
    """How these modules differ from those that a run began with, of which `keep` recorded ``before``; empty: nowise."""
    now, words = find(before), []
    for module in sorted({*before, *now}):
        if module not in before:
            words.append(f"{now[module].file} was not there before")
            continue
        was = Path(before[module].file)
        if module not in now:
            words.append(f"{was} is missing (its copy: {_copy(folder, module, was)})")
        elif now[module].sha256 != before[module].sha256:
            words.append(f"{now[module].file} has changed (what it was: {_copy(folder, module, was)})")
    return "; ".join(words)


def _copy(folder: Path, module: str, file: Path) -> Path:
    inside = "/__init__" if file.stem == "__init__" else ""
    return folder / FOLDER / f"{module.replace('.', '/')}{inside}{file.suffix}"


def _top(module: str) -> str:
    return module.partition(".")[0]


def _roots(top: str) -> set[Path]:
    """The folders in which a top-level module lies; more than one for a namespace package."""
    spec = _spec(top)
    if spec is None:
        return set()
    places = spec.submodule_search_locations
    if places is None:
        places = [spec.origin] if spec.has_location and spec.origin else []
    return {Path(place).parent for place in places}


def _spec(module: str) -> ModuleSpec | None:
    """Where a module is, found without importing the packages that it lies in."""
    parent, _, name = module.rpartition(".")
    if parent:
        package = _spec(parent)
        if package is None or package.submodule_search_locations is None:
            return None
        # Under its last name: of a namespace package, the finder would ask for a parent that has been imported.
        return PathFinder.find_spec(name, list(package.submodule_search_locations))
    found = PathFinder.find_spec(name)
    others = (finder for finder in sys.meta_path if finder is not PathFinder)  # for one that is installed as editable
    return found or next(filter(None, (finder.find_spec(name, None) for finder in others)), None)


def _imports(content: bytes, package: str) -> Iterator[str]:
    """The modules that a file may import, and with them names that are none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever imports it is warned
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # whoever imports it will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # beyond the top-level package
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)
