"""The source files of a user's modules that a run uses: found, copied into its folder, and compared on resuming.

A scenario names such modules itself (``method = "my_package.my_method:SPEC"``; `scenarios.config.plugin_points` has
such keys), or the rows that it names do. They are found by the import system's path search and read as text: nothing
here executes them, or their copies, again. A file that is edited while a run is under way is recorded as it was at the
start, and the difference is found on resuming.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from pydantic import ConfigDict

from edge.protocol.allowed import checked
from edge.protocol.files import opened, write_bytes
from edge.protocol.home import abbreviated, expanded
from edge.protocol.plugins import FLOWER_APP, OBJECT, load
from scenarios.config import search_path
from scenarios.config.cache import restored_objects_folder
from scenarios.config.load import Loaded
from scenarios.config.plugin_points import own_names
from scenarios.config.search_path import ALLOW as ALLOW
from scenarios.run.run_records import read_json

FOLDER = "sources"
OURS = {"coordinator", "costmodel", "edge", "scenarios"}
INSTALLED = {"site-packages", "dist-packages"}
MODE = 0o644
DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""``package.module:NAME``"""


@dataclass(frozen=True)
class Source:
    file: Path
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class SourceFile:
    """The record of a module's file in a run's environment."""

    __pydantic_config__ = ConfigDict(strict=False)  # JSON's tables are taken, too

    file: str
    sha256: str


def named(loaded: Loaded) -> set[str]:
    """The modules of all rows that a scenario names, and those that the rows name: client sides, stages, readers."""
    names = own_names(loaded.scenario.model_dump())
    rows = [*loaded.method.parts, loaded.model, loaded.dataset, *map(load, sorted(names))]
    values = [getattr(row, field.name) for row in rows if is_dataclass(row) for field in fields(row)]
    dotted = [value for value in values if isinstance(value, str) and DOTTED.fullmatch(value)]
    readers = {loaded.dataset.reader} if loaded.dataset.reader else set()
    return {name.partition(":")[0] for name in (*names, *dotted)} | readers


def find(modules: Iterable[str]) -> dict[str, Source]:
    """Module -> its file, for these modules, their packages, and the modules of the user's that they import.

    Imports are followed in the folders of the modules' top-level packages; those of an installed package only within
    it. Modules of this product and modules without a file are ignored. The module of an object that was given in Python
    lies apart from the user's own; those that it imports are taken as if they were named here.
    """
    importlib.invalidate_caches()
    waiting = [name for name in modules if _top(name) not in OURS]
    for spec in map(_spec, filter(OBJECT.fullmatch, list(waiting))):
        if spec is not None and spec.origin is not None:
            waiting += (name for name in _imports(Path(spec.origin).read_bytes(), "") if _is_users(_top(name)))
    tops = {_top(name) for name in waiting}
    roots = {root for top in tops for root in _roots(top) if not INSTALLED & set(root.parts)}
    sources: dict[str, Source] = {}
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
        sources[name] = Source(Path(spec.origin), Path(spec.origin).read_bytes())
        if spec.origin.endswith(".py"):
            waiting += _imports(sources[name].content, parent if spec.submodule_search_locations is None else name)
    return sources


def keep(sources: Mapping[str, Source], folder: Path) -> dict[str, SourceFile]:
    """Copy sources into a run folder that `scenarios.run.folder_files` has checked; returns module -> record."""
    for module, source in sources.items():
        copy = _copy(folder, module, source.file)
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(copy, source.content)
        copy.chmod(MODE)
    return {
        module: SourceFile(abbreviated(str(source.file)), source.sha256) for module, source in sorted(sources.items())
    }


def copies(folder: Path) -> dict[Path, object]:
    """The copies of sources that a run folder's environment names, and their hashes in it.

    They may be missing, links, or have other hashes: the folder may come from anyone.
    """
    try:
        recorded = dict(read_json(folder / "environment.json")["sources"])
        return {
            _copy(folder, module, Path(source["file"])): source.get("sha256")
            for module, source in recorded.items()
            if all(part.isidentifier() for part in module.split("."))
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no sources, or not what a run has written
        return {}


def remove(folder: Path) -> None:
    """Remove the copies that a run folder's environment names, and the folders that this empties."""
    for copy in copies(folder):
        within = [parent for parent in copy.parents if parent.is_relative_to(folder / FOLDER)]
        if any(parent.is_symlink() for parent in within):
            continue
        with suppress(OSError):
            copy.unlink()
            for parent in within:
                parent.rmdir()


@contextmanager
def of_run(folder: Path, recorded: Mapping[str, SourceFile], allow_code: bool) -> Iterator[None]:
    """For a body that imports the modules which a run folder names; ``recorded``: its record of `keep`.

    They come from the user's own search path alone (`search_path.independent`), and never from the run's folder, from
    beside it, or from a package that the run lies in: all of these may come from somebody else, and so may the record.
    Any other is a ValueError of `load` that says how to allow it. With ``allow_code`` the current folder and those of
    the record (`roots`) are searched as well, after all others, and modules of objects that were given in Python come
    from the run's copies, which such a module's name has the hash of.
    """
    with search_path.restored(), search_path.allowing(True):  # what is checked here
        if allow_code:
            objects = restored_objects_folder()
            for module in filter(OBJECT.fullmatch, recorded):
                with suppress(OSError), opened(folder / FOLDER / f"{module}.py") as copy:
                    keep_object(module, copy.read(), objects)
            search_path.add_current_folder()
            for root in (*roots(recorded, folder), objects):
                search_path.append(root)
        else:
            search_path.leave_current_folder()
        place = folder.resolve()
        sys.path[:] = [entry for entry in sys.path if not Path(entry).resolve().is_relative_to(place)]

        def check(name: str) -> None:
            if not allow_code:
                _check_place(place, recorded, name)
            _refuse_inside(place, name)

        with checked(check):
            yield


@contextmanager
def not_imported() -> Iterator[None]:
    """For a body that only reads runs: no module of a user's own is imported, and the current folder is not searched.

    `edge.protocol.plugins.load` is a ValueError.
    """

    def refuse(module: str) -> None:
        raise ValueError(f"the module {module!r} is not imported to read a run")

    with search_path.without_current_folder(), search_path.allowing(True), checked(refuse):
        yield


def _refuse_inside(folder: Path, name: str) -> None:
    """ValueError for a Flower app, or a module with those that it imports, that lies within a run's folder.

    Modules are not searched there, but links may lead there.
    """
    is_app = name.startswith(FLOWER_APP)
    what = "the Flower app" if is_app else f"the module {name!r}"
    files = [expanded(name.removeprefix(FLOWER_APP))] if is_app else [source.file for source in find([name]).values()]
    for file in files:
        if file.resolve().is_relative_to(folder):
            raise ValueError(f"{what} lies in the run's own folder {folder}, and nothing in that is executed")
        if search_path.is_of_run(file):
            raise ValueError(f"{what} lies in a run's folder, {file.resolve()}, and nothing in that is executed")


def _check_place(folder: Path, recorded: Mapping[str, SourceFile], module: str) -> None:
    if module.startswith(FLOWER_APP):
        app = module.removeprefix(FLOWER_APP)
        raise ValueError(f"the Flower app {app}, which the run names, runs only if you trust the run: add {ALLOW}")
    top = _top(module)
    if top in OURS:
        return
    places = [place.resolve() for place in _roots(top)]
    if places and not any(  # the module may have come with the run
        place == folder.parent or place.is_relative_to(folder) or folder.is_relative_to(place / top) for place in places
    ):
        return
    source = recorded.get(module)
    was = f"SHA-256 {source.sha256}, then in {source.file}" if source else "its hash is not recorded"
    raise ValueError(
        f"the module {module!r} ({was}) is in no folder of your own search path; it is imported from the current "
        f"folder or from there only if you trust the run: add {ALLOW}, or name its folder in PYTHONPATH"
    )


def roots(recorded: Mapping[str, SourceFile], folder: Path) -> list[Path]:
    """The folders from which a run imported the modules of this record of `keep`, but for installed ones.

    Never one within the run folder, which may come from anywhere.
    """
    found = []
    for module, source in recorded.items():
        file = expanded(source.file)
        depth = module.count(".") + (file.stem == "__init__")
        is_inside = file.resolve().is_relative_to(folder.resolve())
        if file.is_absolute() and not is_inside and len(file.parents) > depth and not INSTALLED & set(file.parts):
            found.append(file.parents[depth])
    return found


def keep_object(module: str, content: bytes, objects: Path) -> None:
    """Write the module of an object, unless its text is not that of its name, or is there already."""
    file = objects / f"{module}.py"
    is_its_own = module.endswith(f"_{hashlib.sha256(content).hexdigest()[:12]}")
    if is_its_own and not (file.is_file() and file.read_bytes() == content):
        objects.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content, f".{os.getpid()}")


def _is_users(top: str) -> bool:
    """Whether a top-level module is neither ours nor Python's nor installed."""
    if top in OURS or top in sys.stdlib_module_names:
        return False
    places = _roots(top)
    return bool(places) and not any(INSTALLED & set(place.parts) for place in places)


def change(before: Mapping[str, SourceFile], folder: Path) -> str:
    """The differences between these modules and the record ``before`` of `keep`; empty: none."""
    now, differences = find(before), []
    for module in sorted({*before, *now}):
        if module not in before:
            differences.append(f"{now[module].file} is new")
            continue
        file = expanded(before[module].file)
        if module not in now:
            differences.append(f"{file} is missing (its copy: {_copy(folder, module, file)})")
        elif now[module].sha256 != before[module].sha256:
            differences.append(f"{now[module].file} has changed (its copy: {_copy(folder, module, file)})")
    return "; ".join(differences)


def _copy(folder: Path, module: str, file: Path) -> Path:
    inside = "/__init__" if file.stem == "__init__" else ""
    return folder / FOLDER / f"{module.replace('.', '/')}{inside}{file.suffix}"


def _top(module: str) -> str:
    return module.partition(".")[0]


def _roots(top: str) -> set[Path]:
    """The parent folders of a top-level module; several for a namespace package."""
    spec = _spec(top)
    if spec is None:
        return set()
    locations = spec.submodule_search_locations
    if locations is None:
        locations = [spec.origin] if spec.has_location and spec.origin else []
    return {Path(location).parent for location in locations}


def _spec(module: str) -> ModuleSpec | None:
    """A module's spec, found without importing its packages."""
    parent, _, name = module.rpartition(".")
    if parent:
        package = _spec(parent)
        if package is None or package.submodule_search_locations is None:
            return None
        # By its last name: for a namespace package, the finder would need a parent that has been imported.
        return PathFinder.find_spec(name, list(package.submodule_search_locations))
    spec = PathFinder.find_spec(name)
    finders = (finder for finder in sys.meta_path if finder is not PathFinder)  # those of editable installs
    return spec or next(filter(None, (finder.find_spec(name, None) for finder in finders)), None)


def _imports(content: bytes, package: str) -> Iterator[str]:
    """The names that a file imports, of modules and of other objects, and modules that its text names as ``m:NAME``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing the file will warn
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # importing the file will fail
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            yield node.value.partition(":")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # beyond the top-level package
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)
