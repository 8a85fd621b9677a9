"""Arrays as a data set: checked, split if there is no test set, and kept by their content in the cache.

A run links them into its folder, and a scenario names them by a name that says all that it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.decoded_cache import arrays_sha256, check_examples, store_arrays
from edge.data.registry import DataError, DataSet, ExampleKind, Split, arrays_name, arrays_row, check_channels


@dataclass(frozen=True)
class Arrays:
    """A data set of arrays, which ``data=`` takes; `dataset` makes one."""

    row: DataSet
    train: Split
    test: Split

    def keep(self, cache: Path) -> str:
        """Keep them in the cache, and return the value of ``data.name`` that stands for them."""
        store_arrays(self.row, self.train, self.test, cache)
        return arrays_name(self.row)

    def __repr__(self) -> str:
        counts = f"{len(self.train.y)} training and {len(self.test.y)} test examples"
        return f"<{self.row.name}: {counts}, {self.row.kind} {self.row.shape}, {self.row.classes} classes>"


def dataset(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    ids: Any = None,
    ids_test: Any = None,
    test: float = 0.2,
    seed: int = 0,
    kind: ExampleKind | None = None,
    classes: int | None = None,
    name: str = "arrays",
) -> Arrays:
    """Arrays as a data set: ``fedbr.run("digits", data=fedbr.dataset(x, y))``, or ``data=(x, y)`` for short.

    ``x``: images ``(examples, channels, height, width)`` or ``(examples, height, width)`` of whole numbers from 0 to
    255; features ``(examples, features)`` of real numbers; series ``(examples, channels, length)`` of real numbers; or
    tokens ``(examples, length)`` of integers from 0 on, 0 for padding. ``kind`` says which, and series need it; by
    default the number of dimensions and the type do. ``y``: classes, integers
    from 0 on. ``x_test``, ``y_test``: the test set; without it, the part ``test`` of the examples of each class is
    drawn by ``seed``. ``ids``: who made each example, whole numbers or texts, for
    ``data.partition.kind = "natural"``; ``ids_test``: of the examples of ``x_test``. ``classes``: how many there are,
    by default the largest label and one. ``name``: in reports.

    Features and series are standardised, pixels divided by the largest; ``data.augment`` changes that. DataError for
    anything that is no data set.
    """
    x, y = _pair("", x, y)
    if (x_test is None) != (y_test is None):
        raise DataError("data: x_test and y_test belong together")
    owners = _owners("ids", ids, len(y))
    if x_test is None:
        if ids_test is not None:
            raise DataError("data: ids_test belongs to x_test")
        is_test = _test_mask(y, test, seed)
        parts = [~is_test, is_test]
        pairs, whose = [(x[part], y[part]) for part in parts], [None if owners is None else owners[p] for p in parts]
    else:
        if (ids is None) != (ids_test is None):
            raise DataError("data: ids and ids_test belong together")
        pairs = [(x, y), _pair("_test", x_test, y_test)]
        whose = [owners, _owners("ids_test", ids_test, len(pairs[1][1]))]
    if classes is None and len(y) and y.min() > 0:
        raise DataError(f"y: begins with {y.min()}; classes are counted from 0: give y - {y.min()}, or say classes=")
    if kind is None:
        kind = "image" if x.ndim > 2 else "features" if x.dtype.kind == "f" else "tokens"
    train, held = (Split(_examples(kind, x), y, who) for (x, y), who in zip(pairs, whose, strict=True))
    most = int(max(train.y.max(initial=0), held.y.max(initial=0)))
    largest = int(max(train.x.max(initial=0), held.x.max(initial=0))) if kind in ("image", "tokens") else 0
    number = largest + 1 if kind == "tokens" else largest
    classes = most + 1 if classes is None else classes
    row = arrays_row(name, kind, number, train.x.shape[1:], classes, arrays_sha256(train, held), ids is not None)
    for part, split in (("training", train), ("test", held)):
        check_examples(row, f"{part} examples", split)
    return Arrays(row, train, held)


def arrays(given: Sequence[Any]) -> Arrays:
    """The data set of ``(x, y)``, or of ``((x, y), (x_test, y_test))``."""
    if len(given) != 2:
        raise DataError("must be (x, y), ((x, y), (x_test, y_test)) or fedbr.dataset(x, y, ...)")
    is_split = all(isinstance(each, tuple | list) and len(each) == 2 and np.ndim(each[0]) > 1 for each in given)
    return dataset(*given[0], *given[1]) if is_split else dataset(*given)


def _array(name: str, given: Any) -> NDArray[Any]:
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{name}: is no array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: holds {array.dtype}; give numbers")
    return array


def _pair(part: str, x: Any, y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Examples and their classes; ``part``: of their names."""
    x, y = _array(f"x{part}", x), _array(f"y{part}", y)
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        shapes = f"x{part} of shape {x.shape} and y{part} of shape {y.shape}"
        raise DataError(f"{shapes}: x{part} has a row for each example, and y{part} its class")
    labels = y.astype(np.int64)
    if not np.array_equal(labels, y):
        raise DataError(f"y{part}: must hold classes, integers from 0 on")
    return x, labels


def _owners(name: str, given: Any, count: int) -> NDArray[Any] | None:
    """Who made each example."""
    if given is None:
        return None
    owners = np.asarray(given)
    if owners.shape != (count,) or owners.dtype.kind not in "iuU":
        raise DataError(
            f"{name}: {owners.dtype} of shape {owners.shape}; give a whole number or a text for each example"
        )
    return owners


def _test_mask(y: NDArray[Any], part: float, seed: int) -> NDArray[np.bool_]:
    """Which examples are the test set's: evenly many of each class."""
    if not 0 < part < 1:
        raise DataError(f"test = {part}: must be a part of the examples, above 0 and below 1")
    order = np.random.default_rng(seed).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    ranks = np.floor(np.arange(len(y) + 1) * part + 0.5)
    drawn = np.zeros(len(y), bool)
    drawn[order[np.diff(ranks) > 0]] = True
    return drawn


def _examples(kind: ExampleKind, x: NDArray[Any]) -> NDArray[Any]:
    """Examples in the form of `edge.data.registry.Split`, with the same values."""
    if kind == "image":
        check_channels(f"x of shape {x.shape}", x.shape[1:])
    if kind in ("features", "series"):
        return np.ascontiguousarray(x, np.float32)
    whole = np.ascontiguousarray(x[:, None] if kind == "image" and x.ndim == 3 else x)
    with np.errstate(invalid="ignore"):
        converted = whole.astype(np.uint8 if kind == "image" else np.int64)
    if not np.array_equal(converted, whole):
        more = " from 0 to 255; pixels in 0..1 become them by (255 * x).round()" if kind == "image" else ""
        raise DataError(f"x: {kind} needs whole numbers{more}")
    return converted
