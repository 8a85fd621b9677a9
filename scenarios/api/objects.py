"""What a scenario names, given in Python as the thing itself: rows, classes, functions and arrays get names.

An object of an importable module is named where it is, ``my_nets:Net``. One of a notebook's cells, or of the script
that runs, is written into a module of its own: its definition and those of all that it uses, as the cells or the file
have them, with imports and the values of constants. ``Net_1f2e3d4c5b6a.py`` has the start of the hash of its text in
its name, so that a run's identity follows from the code alone, and is from then on a module like any other of the
user's: a run keeps a copy, with which it is resumed, verified, and computed elsewhere (`scenarios.run.plugin_sources`).

The module is imported here and compared with the object. What it would not rebuild is refused with the reason.
"""

from __future__ import annotations

import ast
import copy
import dis
import importlib
import inspect
import math
import re
import symtable
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256
from os import PathLike
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from edge.data.registry import ExampleKind, dataset
from edge.models.registry import INPUTS, module_row
from edge.protocol.plugins import display_name, error_text
from scenarios.api.arrays import Arrays, arrays
from scenarios.config import search_path
from scenarios.config.cache import cache_folder, objects_folder
from scenarios.config.errors import ScenarioError
from scenarios.config.plugin_keys import PLUGIN_KEYS
from scenarios.config.toml_source import find, leaves, read
from scenarios.run.plugin_sources import keep_object

MAIN = "__main__"
SHORT = {"model": "model.name", "data": "data.name"}
"""Tables -> the key whose object may be given in their place"""
GIVEN_AS = {key: table for table, key in SHORT.items()}
MODEL = "model.name"
KINDS: tuple[ExampleKind, ...] = ("image", "features", "tokens")
MOST_LETTERS = 100_000
"""Of a constant; more is data"""

_SPEC = "coordinator.methods.spec"
_CLIENT = "edge.training.client_update"
_OPTIMIZERS = "coordinator.aggregation.optimizers"
_SELECTION = "coordinator.rounds.selection"
_POLICY = "coordinator.rounds.policy"
_WRAPPERS = (
    ("method", f"{_CLIENT}:ClientUpdate", f"{_SPEC}:ObjectiveSpec"),
    ("method", f"{_CLIENT}:GradientCorrection", f"{_SPEC}:CorrectionSpec"),
    ("server", f"{_OPTIMIZERS}:ServerOptimizer", f"{_OPTIMIZERS}:ServerOptimizerRow"),
    ("rounds.selection", f"{_SELECTION}:ClientSelector", "coordinator.rounds.selectors.registry:SelectionRow"),
    ("rounds.policy", f"{_POLICY}:SynchronousPolicy", f"{_POLICY}:PolicyRow"),
    ("rounds.policy", f"{_POLICY}:AsynchronousPolicy", f"{_POLICY}:PolicyRow"),
    ("eval.metrics", "edge.training.metrics.metric:Metric", "edge.training.metrics.registry:MetricRow"),
    ("data.partition.kind", "", "edge.data.partition_registry:PartitionRow"),
    ("train.lr_schedule", "", "edge.protocol.lr_schedules:LrSchedule"),
)  # fmt: skip
"""Plug-in point, the class that the object inherits from ('': it is a function), and the row that it then gets"""
_ABOUT = "{name!r}, '{name}, given in Python', 'given in Python'"
_ROWS = {
    "ObjectiveSpec": f"Row({_ABOUT}, Options, 'none', {{dotted}})",
    "CorrectionSpec": f"Row({_ABOUT}, Options, 'none', {{dotted}})",
    "ServerOptimizerRow": f"Row({_ABOUT}, PluginOptions, 'none', lambda options: {{object}}())",
    "SelectionRow": f"Row({_ABOUT}, PluginOptions, lambda options: {{object}}())",
    "PolicyRow": f"Row({_ABOUT}, PluginOptions, lambda options: {{object}}())",
    "MetricRow": "Row({name!r}, '{name}, given in Python', {dotted}, per_example={per_example})",
    "PartitionRow": "Row({name!r}, '{name}, given in Python', {object})",
    "LrSchedule": f"Row({_ABOUT}, PluginOptions, {{object}})",
}
"""The rows of bare classes and functions: ``object`` is imported with its row, and ``dotted``, which trains, named"""
_IMPORTS = {
    "Options": "from coordinator.methods.spec import Options",
    "PluginOptions": "from edge.protocol.plugins import PluginOptions",
}


class UnusableError(ValueError):
    """Why an object cannot be rebuilt, and what to do."""


def as_names(given: Mapping[str, Any], scenario: Any = None) -> dict[str, Any]:
    """Overrides, or the tables of a scenario, with names in place of the objects at plug-in points.

    ``scenario``: the one that they override; a model is made for its data. ScenarioError, by the key, for an object
    that no other process could rebuild.
    """
    named = _named(given, "", lambda key, value: value if key == MODEL else _name(key, value))
    return _named(named, "", lambda key, value: _model_name(value, _data_name(named, scenario)))


def with_names(scenario: Any) -> Any:
    """A scenario as it is, or if it is a mapping with names in place of its objects."""
    return as_names(scenario, scenario) if isinstance(scenario, Mapping) else scenario


def axis_names(key: str, given: Any, overrides: Mapping[str, Any], scenario: Any) -> tuple[str, Any]:
    """A key of a grid and its values, with names in place of objects; ``overrides``: those of all runs."""
    if not isinstance(key, str) or not isinstance(given, Sequence) or all(map(_is_text, given)):
        return key, given
    named = [next(iter(as_names({key: each, **overrides}, scenario).items())) for each in given]
    labels = [display_name(text) for (_, text), each in zip(named, given, strict=True) if not _is_text(each)]
    for label in labels:
        if labels.count(label) > 1:
            raise ScenarioError(f"{key}: {label} is given twice; give each class or function a name of its own")
    return (named[0][0] if named else key), [value for _, value in named]


def _named(tables: Mapping[str, Any], at: str, name: Any) -> dict[str, Any]:
    """The tables with ``name(key, object)`` for each object."""
    result: dict[str, Any] = {}
    for part, value in tables.items():
        key = SHORT.get(f"{at}{part}", f"{at}{part}")
        if isinstance(value, Mapping):
            result[part] = _named(value, f"{at}{part}.", name)
        elif key not in PLUGIN_KEYS or _is_text(value):
            result[part] = value
        elif key == "eval.metrics" and isinstance(value, list | tuple):
            result[part] = [each if _is_text(each) else name(key, each) for each in value]
        elif key == "method" and isinstance(value, tuple):  # joined; a list stands for several
            result[part] = "+".join(each if _is_text(each) else name(key, each) for each in value)
        else:
            result[key if part in SHORT and not at else part] = name(key, value)
    return result


def _is_text(value: Any) -> bool:
    """Whether it is no object, but what files have, too."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(each, str) for each in value)
    return value is None or isinstance(value, str | PathLike | bool | int | float)


def _data_name(given: Mapping[str, Any], scenario: Any) -> str:
    """The data of a scenario with these overrides."""
    tables = dict(leaves(scenario)) if isinstance(scenario, Mapping) else {"extends": scenario}
    named = dict(leaves(given)).get("data.name") or tables.get("data.name")
    if named is None and tables.get("extends") is not None:
        named = read(find(str(tables["extends"])), set()).get("data", {}).get("name")
    return str(named or "digits")


# --- names ------------------------------------------------------------------------------------------------------------


def _name(key: str, value: Any) -> str:
    """The name of an object at a plug-in point, under which any process finds it."""
    try:
        if _is_row(value):
            return _dotted(value)
        if key == "data.name":
            return (value if isinstance(value, Arrays) else arrays(value)).keep(cache_folder())
        if isinstance(value, type | FunctionType):
            return _row_of(key, value)
        if isinstance(value, list | tuple):
            raise UnusableError("a run takes one; fedbr.compare and fedbr.sweep take several")
        raise UnusableError(
            f"a {type(value).__name__} has a state that no other process can rebuild; give the class or function "
            "itself, or a row of it"
        )
    except ValueError as why:
        raise ScenarioError(f"{GIVEN_AS.get(key, key)} = {_short(value)}: {why}") from why.__cause__


def _short(value: Any) -> str:
    """What an object is called."""
    if _is_row(value):
        return str(value.name)
    name = str(getattr(value, "__qualname__", type(value).__name__))
    names = (name for name, each in vars(sys.modules[MAIN]).items() if each is value and not name.startswith("_"))
    return next(names, name) if name == "<lambda>" else name


def _is_row(value: Any) -> bool:
    """Whether it is a row of a plug-in point."""
    ours = type(value).__module__.startswith(("coordinator.", "edge."))
    return ours and is_dataclass(value) and hasattr(value, "name")


def _named_objects(value: Any) -> list[Any]:
    """The classes and functions of a row that it would name as text, such as its client side."""
    texts = [field.name for field in fields(value) if field.type in ("str", "str | None")] if _is_row(value) else []
    return [each for name in texts if isinstance(each := getattr(value, name), type | FunctionType)]


def _row_of(key: str, value: Any) -> str:
    """The name of the row of a bare class or function."""
    bases = [f"{base.__module__}:{base.__qualname__}" for base in getattr(value, "__mro__", ())]
    points = [(base, row) for point, base, row in _WRAPPERS if point == key]
    row = next((row for base, row in points if (base in bases if base else not bases)), None)
    if row is None:
        kinds = " or ".join(
            f"class derived from {base.rpartition(':')[2]}" if base else "function" for base, _ in points
        )
        raise UnusableError(f"must be a {kinds}, or a row" if kinds else "must be a row")
    module, _, kind = row.partition(":")
    closure, pattern, name = _Closure(), _ROWS[kind], _short(value)
    text = pattern.format(
        name=name,
        object=closure.add_object(value) if "{object}" in pattern else "",
        dotted=repr(_dotted(value)) if "{dotted}" in pattern else "",
        per_example=kind == "MetricRow" and "edge.training.metrics" in value.measure_model.__module__,
    )
    imports = [line for word, line in _IMPORTS.items() if f" {word}," in text]
    return f"{closure.module(name, f'from {module} import {kind} as Row', *imports, f'ROW = {text}')}:ROW"


def _model_name(value: Any, data_name: str) -> str:
    """The name of the row of a torch module's class, cut into its children, for this data."""
    from edge.models.user_module import own_blocks

    try:
        if _is_row(value):
            return _dotted(value)
        if not isinstance(value, type | FunctionType):
            raise UnusableError(
                "each run initialises a model of its own; give the class, or a function that makes the module"
            )
        data, name = dataset(data_name), _short(value)
        parameters = inspect.signature(value).parameters
        kind: ExampleKind = next((each for each in KINDS if INPUTS[each] in parameters), data.kind)
        width = parameters["width"].default if "width" in parameters else None
        width = width if isinstance(width, int) else None
        title = f"{name}, given in Python"
        given = f"{name!r}, {_dotted(value)!r}, {{}}, kind={kind!r}, width={width}, title={title!r}"
        row = module_row(name, _dotted(value), ["all"], kind=kind, width=width)
        blocks = own_blocks(row, data.classes, data.inputs if kind == data.kind else 1)
        text = f"ROW = module_row({given.format(blocks)})"
        return f"{_Closure().module(name, 'from edge.models.registry import module_row', text)}:ROW"
    except UnusableError as why:
        raise ScenarioError(f"model = {_short(value)}: {why}") from why.__cause__
    except ValueError as error:
        raise ScenarioError(display_name(str(error))) from error.__cause__


def _dotted(value: Any) -> str:
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
    if home is not None and (named := _named_objects(value)):
        raise UnusableError(
            f"{home} has {_short(named[0])} itself in the place of its name; write 'module:{_short(named[0])}' there, "
            "since the row is imported where torch is not"
        )
    if home is not None:
        return home
    closure = _Closure()
    name = closure.name_of(value)
    closure.add(name)
    return f"{closure.module(value.name if _is_row(value) else name)}:{name}"


def _home(row: Any) -> str | None:
    """``module:NAME`` of a row that an importable module has."""
    modules = ((name, module) for name, module in sorted(sys.modules.items()) if name != MAIN)
    for name, module in modules:
        if getattr(module, "__spec__", None) is not None:
            for attribute, value in list(vars(module).items()):
                if value is row:
                    return f"{name}:{attribute}"
    return None


# --- modules of objects -----------------------------------------------------------------------------------------------


class _Closure:
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
        module, _, name = _dotted(value).partition(":")
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
            module, _, attribute = _dotted(value).partition(":")
            return f"from {module} import {attribute} as {name}"
        is_named = _is_row(value) or isinstance(value, type | FunctionType)
        if isinstance(last, ast.FunctionDef | ast.ClassDef) or (isinstance(last, ast.Assign) and is_named):
            return ast.unparse(_Named(self.namespace, value).visit(copy.deepcopy(last)))
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
        future = [
            ast.unparse(each) for each in self.statements.get("annotations", []) if "__future__" in ast.unparse(each)
        ]
        parts = ["\n".join([*future, *imports]), *(self.texts[each] for each in definitions), *lines[-1:]]
        content = ("\n\n\n".join(filter(None, parts)) + "\n").encode()
        module = f"{re.sub(r'[^0-9A-Za-z]+', '_', name).strip('_')}_{sha256(content).hexdigest()[:12]}"
        try:
            keep_object(module, content, objects_folder())
        except OSError as error:
            raise UnusableError(f"{error.filename}: cannot be written: {error.strerror}") from error
        search_path.append(objects_folder())
        importlib.invalidate_caches()
        try:
            built = importlib.import_module(module)
        except Exception as error:  # whatever a user's code raises
            raise UnusableError(f"its definitions alone cannot be executed: {error_text(error)}") from error
        for each in definitions:
            if (change := next(_differences(self.namespace[each], getattr(built, each, None), each), None)) is not None:
                raise UnusableError(
                    f"{change} is not what the notebook or script last defined: it was changed or defined again since; "
                    "execute its definition again, and give the object of that"
                )
        return module

    def _put(self, name: str, ordered: list[str]) -> None:
        """Order names so that each follows those that its statement uses."""
        if name not in ordered and name in self.texts:
            for each in sorted(self.before.get(name, set()) - {name}):
                self._put(each, ordered)
            ordered.append(name)


class _Named(ast.NodeTransformer):
    """Puts names as of modules in place of ``"__main__:NAME"``, and of what a row names as text (its client side)."""

    def __init__(self, namespace: dict[str, Any], value: Any) -> None:
        self.namespace, self.objects = namespace, _named_objects(value)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Texts."""
        module, _, name = node.value.partition(":") if isinstance(node.value, str) else ("", "", "")
        return ast.Constant(_dotted(self.namespace[name])) if module == MAIN and name in self.namespace else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Names of objects."""
        value = self.namespace.get(node.id)
        return ast.Constant(_dotted(value)) if any(value is each for each in self.objects) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """``module.Class``."""
        for each in self.objects:
            if ast.unparse(node) == f"{each.__module__}.{each.__qualname__}" or (
                isinstance(node.value, ast.Name) and getattr(self.namespace.get(node.value.id), node.attr, None) is each
            ):
                return ast.Constant(_dotted(each))
        return self.generic_visit(node)


def _statements() -> dict[str, list[ast.stmt]]:
    """Name -> what bound it last at the top level of the cells or of the script; all imports of parts of a package."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    file = getattr(sys.modules[MAIN], "__file__", None)
    texts = (
        list(shell.history_manager.input_hist_parsed) if shell is not None else [Path(file).read_text()] if file else []
    )
    bound: dict[str, list[ast.stmt]] = {}
    for text in texts:
        try:
            tree = ast.parse(text)
        except SyntaxError:  # a cell that was never executed
            continue
        for name, statement in _bindings(tree):
            parts = [
                each
                for each in bound.get(name, [])
                if isinstance(each, ast.Import) and isinstance(statement, ast.Import)
            ]
            is_part = isinstance(statement, ast.Import) and statement.names[0].asname is None
            bound[name] = [*(parts if is_part else []), statement]
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
    items = [
        _literal(each)
        for pair in (value.items() if type(value) is dict else ((each,) for each in value))
        for each in pair
    ]
    if any(each is None for each in items):
        return None
    texts = [each for each in items if each is not None]
    if type(value) is dict:
        return f"{{{', '.join(f'{key}: {each}' for key, each in zip(texts[::2], texts[1::2], strict=True))}}}"
    if type(value) in (set, frozenset):
        return f"{type(value).__name__}([{', '.join(sorted(texts))}])"
    return f"[{', '.join(texts)}]" if type(value) is list else f"({''.join(f'{each}, ' for each in texts)})"


def _differences(given: Any, built: Any, path: str) -> Iterator[str]:
    """The parts of an object that its module makes otherwise."""
    if isinstance(given, staticmethod | classmethod):
        given, built = given.__func__, getattr(built, "__func__", None)
    if given is built or (isinstance(given, str) and given.startswith(f"{MAIN}:")):
        return
    if isinstance(given, FunctionType):
        if not isinstance(built, FunctionType) or not _same_code(given.__code__, built.__code__):
            yield path
            return
        for one, other in zip(given.__closure__ or (), built.__closure__ or (), strict=True):
            if not isinstance(one.cell_contents, type):  # that of super()
                yield from _differences(one.cell_contents, other.cell_contents, path)
        yield from _differences(
            (given.__defaults__, given.__kwdefaults__), (built.__defaults__, built.__kwdefaults__), path
        )
    elif isinstance(given, property):
        for name in ("fget", "fset", "fdel"):
            yield from _differences(getattr(given, name), getattr(built, name, None), path)
    elif isinstance(given, type):
        if given.__module__ != MAIN or isinstance(built, str):  # named as text
            return
        own, new = vars(given), vars(built)
        for name in sorted(own.keys() ^ new.keys()):
            if not name.startswith(("__", "_abc")) or isinstance(own.get(name, new.get(name)), FunctionType):
                yield f"{path}.{name}"
        for name in sorted(own.keys() & new.keys()):
            if not name.startswith("__") or isinstance(own[name], FunctionType):
                yield from _differences(own[name], new[name], f"{path}.{name}")
    elif _is_row(given):
        for field in fields(given):
            yield from _differences(
                getattr(given, field.name), getattr(built, field.name, None), f"{path}.{field.name}"
            )
    elif isinstance(given, tuple | list) and isinstance(built, tuple | list) and len(given) == len(built):
        for one, other in zip(given, built, strict=True):
            yield from _differences(one, other, path)
    elif isinstance(given, dict) and isinstance(built, dict) and given.keys() == built.keys():
        for name in given:
            yield from _differences(given[name], built[name], path)
    elif _literal(given) != _literal(built) or type(given).__qualname__ != type(built).__qualname__:
        yield path


def _same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two functions do the same, wherever they are written."""
    if _steps(one) != _steps(other) or len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _same_code(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else not any(_differences(a, b, "?"))
        for a, b in zip(one.co_consts, other.co_consts, strict=True)
    )


def _steps(code: CodeType) -> list[tuple[str, str]]:
    """Instructions without constants and places. Calls of what the same cell imports are compiled otherwise than those
    of what another one does."""
    without = {*dis.hasconst, *dis.hasjrel, *dis.hasjabs}
    return [
        (
            each.opname.replace("METHOD", "ATTR"),
            "" if each.opcode in without else re.sub(r"[ +]|NULL(\|self)?", "", each.argrepr),
        )
        for each in dis.get_instructions(code)
        if each.opname not in ("PUSH_NULL", "PRECALL", "EXTENDED_ARG")
    ]
