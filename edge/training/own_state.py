"""State that a user's code has outside of a visit's own objects: put back before each visit and evaluation.

A worker serves one client after another, so what a visit left in its process would reach the clients that this worker
happens to visit next, and results would depend on the number of workers. Recorded are, when the worker is made, the
globals of a user's modules, attributes of their classes and functions, default arguments, and what these and the layers
of the model hold: containers, attributes, small arrays and tensors, and the states of random generators. What
`functools.cache` holds stays: that is the place for a value that is the same for every client.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edge.protocol.plugins import is_users_module

MOST_OBJECTS = 20_000
"""That are recorded; further ones stay as visits leave them, which ``fedbr check --plugin`` would find"""
MOST_NBYTES = 1 << 20
"""Largest array or tensor whose numbers are recorded; larger ones are data or teachers"""
_GENERATORS: tuple[tuple[type, str, str], ...] = (
    (random.Random, "getstate", "setstate"),
    (torch.Generator, "get_state", "set_state"),
)
_MISSING = object()


class OwnState:
    """The state of a user's modules, or of the layers of a model, when this is made.

    ``kept``: tensors whose numbers are not recorded, since each visit loads them.
    """

    def __init__(self, roots: Iterable[ModuleType | nn.Module], kept: Iterable[Tensor] = ()) -> None:
        """``roots``: modules of Python, with those of the user's that they use; or layers, without their classes."""
        waiting: list[Any] = list(roots)
        self._is_of_layers = any(isinstance(each, nn.Module) for each in waiting)
        self._kept = {each.untyped_storage().data_ptr() for each in kept}
        self._objects: dict[int, Any] = {id(sys.modules): sys.modules}
        """By id, which is theirs as long as they are here"""
        self._restores: list[Callable[[], None]] = []
        while waiting and len(self._objects) < MOST_OBJECTS:
            value = waiting.pop()
            if id(value) not in self._objects:
                self._objects[id(value)] = value
                waiting.extend(self._record(value))

    def restore(self) -> None:
        """Put it back."""
        for restore in self._restores:
            restore()

    def _record(self, value: Any) -> Iterator[Any]:
        """Note how an object is put back; yields what it holds."""
        if isinstance(value, ModuleType):
            if is_users_module(value):
                yield from self._attributes(value)
        elif isinstance(value, type):
            if not self._is_of_layers and is_users_module(_module_of(value)):
                yield from self._attributes(value)
        elif isinstance(value, FunctionType):
            if not self._is_of_layers and is_users_module(_module_of(value)):
                yield _module_of(value)
                yield from (value.__defaults__ or (), value.__kwdefaults__ or {}, value.__dict__)
                yield from self._cells(value.__closure__ or ())
        elif isinstance(value, staticmethod | classmethod):
            yield value.__func__
        elif isinstance(value, property):
            yield from (value.fget, value.fset)
        elif isinstance(value, list | set | deque | bytearray):
            self._restores.append(partial(_refill, value, list(value)))
            yield from value
        elif isinstance(value, dict):
            self._restores.append(partial(_refill_mapping, value, dict(value)))
            yield from value.values()
        elif isinstance(value, tuple | frozenset):
            yield from value
        elif isinstance(value, Tensor):
            self._record_tensor(value)
        elif isinstance(value, np.ndarray):
            if value.nbytes <= MOST_NBYTES and value.flags.writeable:
                self._restores.append(partial(np.copyto, value, value.copy()))
        elif isinstance(value, np.random.Generator | np.random.RandomState):
            bits = value.bit_generator if isinstance(value, np.random.Generator) else value._bit_generator
            self._restores.append(partial(setattr, bits, "state", bits.state))
        elif pair := next((names for kind, *names in _GENERATORS if isinstance(value, kind)), None):
            self._restores.append(partial(getattr(value, pair[1]), getattr(value, pair[0])()))
        elif isinstance(value, nn.Module | torch.optim.Optimizer) or is_users_module(_module_of(type(value))):
            if not self._is_of_layers:
                yield type(value)
            if isinstance(own := getattr(value, "__dict__", None), dict):
                yield own

    def _record_tensor(self, value: Tensor) -> None:
        if value.layout is not torch.strided or value.is_inference() or value.nbytes > MOST_NBYTES:
            return
        if value.untyped_storage().data_ptr() not in self._kept:
            self._restores.append(_TensorRestore(value))

    def _attributes(self, owner: ModuleType | type) -> Iterator[Any]:
        named = {name: value for name, value in vars(owner).items() if not _is_internal(name)}
        self._restores.append(partial(_reset_attributes, owner, named))
        yield from named.values()
        if isinstance(owner, type):
            yield from (_module_of(owner), *owner.__mro__[1:])

    def _cells(self, cells: Iterable[CellType]) -> Iterator[Any]:
        for cell in cells:
            try:
                value = cell.cell_contents
            except ValueError:  # empty
                continue
            self._restores.append(partial(setattr, cell, "cell_contents", value))
            yield value


def named_modules(names: Iterable[str]) -> list[ModuleType]:
    """The user's modules among those of ``module:NAME``, imported; what cannot be is for whoever uses it to refuse."""
    modules = []
    for name in dict.fromkeys(name.partition(":")[0] for name in names if ":" in name):
        try:
            module = importlib.import_module(name)
        except Exception:  # a user's module may raise anything
            continue
        if is_users_module(module):
            modules.append(module)
    return modules


def seed_process(number: int) -> None:
    """Seed the generators of Python, NumPy and torch that all code of this process shares."""
    random.seed(number)
    np.random.seed(number % (1 << 32))
    torch.manual_seed(number)


def _module_of(value: Any) -> ModuleType | None:
    return sys.modules.get(getattr(value, "__module__", None) or "")


class _TensorRestore:
    """Puts a tensor's numbers back if they were changed."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.numbers, self.version = value, value.detach().clone(), value._version

    def __call__(self) -> None:
        if self.value._version != self.version or self.value.grad is not None:
            with torch.no_grad():
                self.value.grad = None
                self.value.copy_(self.numbers)
            self.version = self.value._version


def _is_internal(name: str) -> bool:
    """Whether an attribute is Python's own, or of a class that others made (``abc``, ``pydantic``)."""
    return name.startswith(("__", "_abc_"))


def _reset_attributes(owner: Any, named: dict[str, Any]) -> None:
    now = {name: value for name, value in vars(owner).items() if not _is_internal(name)}
    for name in now.keys() - named.keys():
        # A module may have imported further ones of its package, which nothing changes by that.
        if not isinstance(now[name], ModuleType):
            delattr(owner, name)
    for name, value in named.items():
        if now.get(name, _MISSING) is not value:
            setattr(owner, name, value)


def _refill(value: Any, items: list[Any]) -> None:
    if len(value) != len(items) or any(one is not other for one, other in zip(value, items, strict=True)):
        value.clear()
        value.update(items) if isinstance(value, set) else value.extend(items)


def _refill_mapping(value: dict[Any, Any], items: dict[Any, Any]) -> None:
    if len(value) != len(items) or any(value.get(key, _MISSING) is not item for key, item in items.items()):
        value.clear()
        value.update(items)
