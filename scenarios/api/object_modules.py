"""Modules of objects: the definitions of a notebook's cells, or of the script that runs, as files that others import.

The module of an object has its definition and those of all that it uses, with imports and the values of constants, as
the cells or the file last defined them. ``Net_1f2e3d4c5b6a.py`` has the start of the hash of its text in its name, so
that a run's identity follows from the code alone. It is imported here, and compared with the object: what it would not
rebuild is refused with the reason.
"""

from __future__ import annotations

import ast
import copy
import dis
import importlib
import math
import re
import symtable
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from edge.protocol.plugins import OBJECT, error_text
from scenarios.config import search_path
from scenarios.config.cache import objects_folder
from scenarios.run.plugin_sources import keep_object

MAIN = "__main__"
OBJECT_NAME = re.compile(rf"(?:{MAIN}|{OBJECT.pattern}):\w+")
UNLIKE = r"[ +]|NULL(\|self)?"
"""What the arguments of instructions say of a call"""
WRITTEN = re.compile(r'(\(|File ")(?:[^()"]*/)?' + OBJECT.pattern + r'\.py("?), line (\d+)')
"""The place of an error in a module of an object, in a sentence or in a traceback"""
_places: dict[str, dict[int, str]] = {}
"""Module -> its lines, and where the cell or script has them"""
MOST_LETTERS = 100_000
"""Of a constant; more is data"""


class UnusableError(ValueError):
    """Why an object cannot be rebuilt, and what to do."""


def label(value: Any) -> str:
    if is_row(value):
        return str(value.name)
    name = str(getattr(value, "__qualname__", type(value).__name__))
    names = (name for name, each in vars(sys.modules[MAIN]).items() if each is value and not name.startswith("_"))
    return next(names, name) if name == "<lambda>" else name


def is_row(value: Any) -> bool:
    ours = type(value).__module__.startswith(("coordinator.", "edge."))
    return ours and is_dataclass(value) and hasattr(value, "name")


def named_objects(value: Any) -> list[Any]:
    """The classes and functions of a row that it would name as text, such as its client side."""
    texts = [field.name for field in fields(value) if field.type in ("str", "str | None")] if is_row(value) else []
    return [each for name in texts if isinstance(each := getattr(value, name), type | FunctionType)]


def dotted(value: Any) -> str:
    """``module:NAME`` of a class, function or row: its own module's, or that which is written for it."""
    if not isinstance(value, type | FunctionType):
        home = _home(value)
    elif value.__module__ == MAIN:
        home = None
    else:
        home = f"{value.__module__}:{value.__qualname__}"
        module = sys.modules.get(value.__module__)
        if getattr(module, "__spec__", None) is None or getattr(module, value.__qualname__, None) is not value:
            raise UnusableError(f"is not {home} of a module that can be imported; define it at the top level of one")
    if home is not None and (named := named_objects(value)):
        raise UnusableError(
            f"{home} has {label(named[0])} itself in the place of its name; write 'module:{label(named[0])}' there, "
            "since the row is imported where torch is not"
        )
    if home is not None:
        return home
    closure = Closure()
    name = closure.name_of(value)
    closure.add(name)
    return f"{closure.module(value.name if is_row(value) else name)}:{name}"


def _home(row: Any) -> str | None:
    """``module:NAME`` of a row that an importable module has."""
    modules = ((name, module) for name, module in sorted(sys.modules.items()) if name != MAIN)
    for name, module in modules:
        if getattr(module, "__spec__", None) is not None:
            for attribute, value in list(vars(module).items()):
                if value is row:
                    return f"{name}:{attribute}"
    return None


class Closure:
    """What an object of the notebook or script uses there, as the text of one module."""

    def __init__(self) -> None:
        self.namespace, self.statements = vars(sys.modules[MAIN]), _statements()
        self.texts: dict[str, str] = {}
        """Name -> the statement that defines it"""
        self.before: dict[str, set[str]] = {}
        """Name -> names that this statement itself uses, not only a call of what it defines"""

    def name_of(self, value: Any) -> str:
        """The name of an object at the top level."""
        if "<locals>" in getattr(value, "__qualname__", ""):
            raise UnusableError(
                "is defined within a function, whose local names no other process has; define it at the top level of "
                "the notebook or script"
            )
        names = [name for name, each in self.namespace.items() if each is value and name in self.statements]
        if not names:
            raise UnusableError(
                "has no definition in a cell or in the file of the script, which its source would be read from; define "
                "it there by name, or in a module of your own that is imported"
            )
        own = getattr(value, "__name__", "")
        return own if own in names else min(names)

    def add_object(self, value: Any) -> str:
        """Have a class or function in the module; returns its name there."""
        if value.__module__ == MAIN:
            name = self.name_of(value)
            self.add(name)
            return name
        module, _, name = dotted(value).partition(":")
        self.texts[name] = f"from {module} import {name}"
        return name

    def add(self, name: str, user: str = "") -> None:
        """Have what a name means in the module, and all that it uses; ``user``: the name that uses it."""
        if name in self.texts:
            return
        self.texts[name] = ""  # whatever uses each other ends here
        self.texts[name] = text = self._text(name, user)
        self.before[name], later = _used(text)
        for each in sorted(self.before[name] | later):
            if each in self.namespace and not each.startswith("__"):
                self.add(each, name)

    def _text(self, name: str, user: str) -> str:
        value, statements = self.namespace[name], self.statements.get(name, [])
        last = statements[-1] if statements else None
        if isinstance(last, ast.Import | ast.ImportFrom):
            return "\n".join(dict.fromkeys(map(ast.unparse, statements)))
        if isinstance(value, ModuleType):
            return f"import {value.__name__} as {name}"
        if isinstance(value, type | FunctionType) and value.__module__ != MAIN:
            module, _, attribute = dotted(value).partition(":")
            return f"from {module} import {attribute} as {name}"
        is_named = is_row(value) or isinstance(value, type | FunctionType)
        if isinstance(last, ast.FunctionDef | ast.ClassDef) or (isinstance(last, ast.Assign) and is_named):
            return ast.unparse(Named(self.namespace, value).visit(copy.deepcopy(last)))
        if (constant := _literal(value)) is not None and len(constant) <= MOST_LETTERS:
            return f"{name} = {constant}"
        what = "too large for a constant" if constant is not None else "no definition, import or constant"
        uses = f"{user} uses {name}, which" if user else name
        raise UnusableError(
            f"{uses} is {what}, but a {type(value).__name__} that only this process has; make it within the class or "
            "function, or in a module of your own that is imported"
        )

    def module(self, name: str, *lines: str) -> str:
        """Write the module, import it and compare it; ``lines``: imports, and the last a row. Returns its name."""
        ordered: list[str] = []
        for each in sorted(self.texts):
            self._put(each, ordered)
        definitions = [each for each in ordered if not self.texts[each].startswith(("import ", "from "))]
        imports = sorted({*lines[:-1], *(self.texts[each] for each in ordered if each not in definitions)})
        future = [text for text in map(ast.unparse, self.statements.get("annotations", [])) if "__future__" in text]
        parts = ["\n".join([*future, *imports]), *(self.texts[each] for each in definitions), *lines[-1:]]
        content = ("\n\n\n".join(filter(None, parts)) + "\n").encode()
        module = f"{re.sub(r'[^0-9A-Za-z]+', '_', name).strip('_')}_{sha256(content).hexdigest()[:12]}"
        try:
            keep_object(module, content, objects_folder())
        except OSError as error:
            raise UnusableError(f"{error.filename}: cannot be written: {error.strerror}") from error
        _places[module] = self._lines(content.decode(), definitions)
        search_path.append(objects_folder())
        importlib.invalidate_caches()
        try:
            built = importlib.import_module(module)
        except Exception as error:  # whatever a user's code raises
            raise UnusableError(f"its definitions alone cannot be executed: {error_text(error)}") from error
        for each in definitions:
            given, made = (_form(value, True) for value in (self.namespace[each], getattr(built, each, None)))
            if given != made:
                names = given.keys() | made.keys() if isinstance(given, dict) and isinstance(made, dict) else set[str]()
                part = min((f".{name}" for name in names if given.get(name) != made.get(name)), default="")
                raise UnusableError(
                    f"{each}{part} is not what the notebook or script last defined: it was changed or defined again "
                    "since; execute its definition again, and give the object of that"
                )
        return module

    def _lines(self, content: str, definitions: list[str]) -> dict[int, str]:
        """Line of the module -> where the cell or script has it, with its text."""
        lines: dict[int, str] = {}
        for name, statement in _bindings(ast.parse(content)):
            before = self.statements.get(name) if name in definitions else None
            cell: _Cell | None = getattr(before[-1], "cell", None) if before else None
            if before and cell is not None:
                for number, original in _paired(statement, before[-1]):
                    lines.setdefault(number, f"{cell.name}, line {original}: {cell.lines[original - 1].strip()}")
        return lines

    def _put(self, name: str, ordered: list[str]) -> None:
        """Order names so that each follows those that its statement uses."""
        if name not in ordered and name in self.texts:
            for each in sorted(self.before.get(name, set()) - {name}):
                self._put(each, ordered)
            ordered.append(name)


class Named(ast.NodeTransformer):
    """Puts names as of modules in place of ``"__main__:NAME"``, and of what a row names as text (its client side)."""

    def __init__(self, namespace: dict[str, Any], value: Any) -> None:
        self.namespace, self.objects = namespace, named_objects(value)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        module, _, name = node.value.partition(":") if isinstance(node.value, str) else ("", "", "")
        return ast.Constant(dotted(self.namespace[name])) if module == MAIN and name in self.namespace else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self.namespace.get(node.id)
        return ast.Constant(dotted(value)) if any(value is each for each in self.objects) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        for each in self.objects:
            if isinstance(node.value, ast.Name) and getattr(self.namespace.get(node.value.id), node.attr, 0) is each:
                return ast.Constant(dotted(each))
        return self.generic_visit(node)


@dataclass(frozen=True)
class _Cell:
    """A cell of the notebook, or the script."""

    name: str
    lines: list[str]


def in_cells(text: str) -> str:
    """A message with places in modules of objects as the cells or the script have them, and the first place first."""
    found: list[str] = []

    def place(match: re.Match[str]) -> str:
        known = _places.get(f"{match[2]}_{match[3]}", {})
        before = [line for line in known if line <= int(match[5])]
        if not before:
            return match[0]
        found.append(known[max(before)])
        cell, _, line = found[-1].partition(": ")[0].rpartition(", line ")
        return f"{match[1]}{cell}{match[4]}, line {line}"

    replaced = WRITTEN.sub(place, text)
    return f"{found[0]}: {replaced}" if found else text


def _paired(new: ast.AST, old: ast.AST) -> Iterator[tuple[int, int]]:
    """The lines of nodes of two trees that are alike, but for names that have become constants."""
    if type(new) is not type(old):
        return
    if hasattr(new, "lineno") and hasattr(old, "lineno"):
        yield new.lineno, old.lineno
    for one, other in zip(ast.iter_child_nodes(new), ast.iter_child_nodes(old), strict=False):
        yield from _paired(one, other)


def _statements() -> dict[str, list[ast.stmt]]:
    """Name -> what bound it last at the top level of the cells or of the script; all imports of parts of a package."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    file = getattr(sys.modules[MAIN], "__file__", None)
    if shell is not None:
        texts = [(f"cell {number}", text) for number, text in enumerate(shell.history_manager.input_hist_parsed)]
    else:
        texts = [(file, Path(file).read_text())] if file and Path(file).is_file() else []
    bound: dict[str, list[ast.stmt]] = {}
    for place, text in texts:
        cell = _Cell(place, text.split("\n"))
        try:
            tree = ast.parse(text)
        except SyntaxError:  # a cell that was never executed
            continue
        for name, statement in _bindings(tree):
            statement.cell = cell  # type: ignore[attr-defined]
            is_part = isinstance(statement, ast.Import) and statement.names[0].asname is None
            parts = [each for each in bound.get(name, []) if is_part and isinstance(each, ast.Import)]
            bound[name] = [*parts, statement]
    return bound


def _bindings(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import):
            yield from ((each.asname or each.name.partition(".")[0], ast.Import([each])) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                yield each.asname or each.name, ast.ImportFrom(node.module, [each], node.level)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((each.id, node) for each in targets if isinstance(each, ast.Name))
        elif not isinstance(node, ast.expr):
            yield from _bindings(node)


def _used(text: str) -> tuple[set[str], set[str]]:
    """Global names that a statement uses itself, and those that only a call of what it defines uses."""
    at_once, later = set[str](), set[str]()

    def look(table: symtable.SymbolTable, names: set[str]) -> None:
        is_top = table.get_type() == "module"
        names |= {
            each.get_name() for each in table.get_symbols() if each.is_referenced() and (is_top or each.is_global())
        }
        for inner in table.get_children():
            look(inner, names if inner.get_type() == "class" else later)

    look(symtable.symtable(text, "module", "exec"), at_once)
    return at_once, later


def _literal(value: Any) -> str | None:
    """A constant as code; None for anything else."""
    if value is None or value is ... or type(value) in (bool, int, str, bytes, complex):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if type(value) not in (tuple, list, set, frozenset, dict):
        return None
    if type(value) is dict:
        pairs = _literal(list(value.items()))
        return pairs and f"dict({pairs})"
    items = [_literal(each) for each in value]
    texts = [each for each in items if each is not None]
    if len(texts) < len(items):
        return None
    if type(value) in (set, frozenset):
        return f"{type(value).__name__}([{', '.join(sorted(texts))}])"
    return f"[{', '.join(texts)}]" if type(value) is list else f"({''.join(f'{each}, ' for each in texts)})"


def _form(value: Any, is_definition: bool = False) -> Any:
    """What two objects have alike if one definition makes both: code, constants, and names of all else.

    ``is_definition``: a class with its attributes; elsewhere its name alone, as its own definition is compared.
    """
    if isinstance(value, type):
        if not is_definition or (value.__module__ != MAIN and not OBJECT.fullmatch(value.__module__)):
            return value.__qualname__
        own = {name: each for name, each in vars(value).items() if not name.startswith("_abc")}
        return {name: _form(each) for name, each in own.items() if name[:2] != "__" or isinstance(each, FunctionType)}
    if is_dataclass(value):  # a row, or a part of one
        return {field.name: _form(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, staticmethod | classmethod):
        return _form(value.__func__)
    if isinstance(value, property):
        return [_form(each) for each in (value.fget, value.fset, value.fdel)]
    if isinstance(value, FunctionType):
        cells = [_form(each.cell_contents) for each in value.__closure__ or ()]
        return _form(value.__code__), _form(value.__defaults__), _form(value.__kwdefaults__), cells
    if isinstance(value, CodeType):
        # Instructions without constants and places. Calls of what the same cell imports are compiled otherwise than
        # those of what another one does.
        without = {*dis.hasconst, *dis.hasjrel, *dis.hasjabs}
        steps = [
            (each.opname.replace("METHOD", "ATTR"), "" if each.opcode in without else re.sub(UNLIKE, "", each.argrepr))
            for each in dis.get_instructions(value)
            if each.opname not in ("PUSH_NULL", "PRECALL", "EXTENDED_ARG")
        ]
        return steps, [_form(each) for each in value.co_consts]
    if isinstance(value, tuple | list):
        return [_form(each) for each in value]
    if isinstance(value, str):
        return value.rpartition(":")[2] if OBJECT_NAME.fullmatch(value) else value  # a class that a row names as text
    return _literal(value) or type(value).__qualname__
