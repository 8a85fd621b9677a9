"""Arrays as a data set: checked, split if there is no test set, and kept by their content in the cache.

A run links them into its folder, and a scenario names them by a name that says all that it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edge.data.decoded_cache import arrays_sha256, check_examples, store_arrays
from edge.data.registry import (
    DataError,
    DataSet,
    Decoded,
    ExampleKind,
    Names,
    RealTargets,
    Split,
    arrays_name,
    arrays_row,
    check_channels,
)
from edge.protocol.spelling import nearest

Missing = Literal["refuse", "drop", "mean"]
UNKNOWN = ("", "?", "na", "n/a", "nan", "none", "null")
"""Texts, in small letters, of cells without a number"""


@dataclass(frozen=True)
class Arrays:
    """A data set of arrays, which ``data=`` takes; `dataset` makes one."""

    row: DataSet
    decoded: Decoded

    @property
    def train(self) -> Split:
        return self.decoded.train

    @property
    def test(self) -> Split:
        return self.decoded.test

    @property
    def class_names(self) -> tuple[str, ...]:
        """The label of each class, where they were given as texts or as a list."""
        return self.decoded.names.classes

    @property
    def client_names(self) -> tuple[str, ...]:
        """Who client 0, 1, .. of ``data.partition.kind = "natural"`` is; empty if nobody was named."""
        return () if self.train.ids is None else tuple(map(str, np.unique(self.train.ids).tolist()))

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to the examples, in words."""
        return self.decoded.notes

    def keep(self, cache: Path) -> str:
        """Keep them in the cache, and return the value of ``data.name`` that stands for them."""
        store_arrays(self.row.content, self.decoded, cache)
        return arrays_name(self.row)

    def __repr__(self) -> str:
        counts = f"{len(self.train.y)} training and {len(self.test.y)} test examples"
        clients = f" of {len(self.client_names)} clients" if self.client_names else ""
        about = f"{self.row.name}: {counts}{clients}, {self.row.kind} {self.row.shape}, {self.row.target_text}"
        return f"<{'; '.join((about, *self.notes))}>"


def dataset(
    x: Any,
    y: Any,
    x_test: Any = None,
    y_test: Any = None,
    *,
    clients: Any = None,
    clients_test: Any = None,
    test: float = 0.2,
    seed: int = 0,
    kind: ExampleKind | None = None,
    classes: int | Sequence[Any] | None = None,
    targets: Literal["class", "numbers"] | None = None,
    missing: Missing = "refuse",
    name: str = "arrays",
    form: str = "given in Python",
) -> Arrays:
    """Arrays as a data set: ``fedbr.run("digits", data=fedbr.dataset(x, y))``, or ``data=(x, y)`` for short.

    ``x``: images ``(examples, channels, height, width)`` or ``(examples, height, width)`` of whole numbers from 0 to
    255; features ``(examples, features)`` of real numbers; series ``(examples, channels, length)`` of real numbers; or
    tokens ``(examples, length)`` of integers from 0 on, 0 for padding. ``kind`` says which, and series need it; by
    default the number of dimensions and the type do. ``missing``: what is done about NaN, empty cells and "?" among
    features and series: ``refuse``; ``drop`` the example; or put the ``mean`` of the client's training examples in its
    place, of all where nobody is named or the client has none.

    ``y``: real targets ``(examples, numbers)``, or ``(examples,)`` for one, for the losses of ``train.loss``; or
    classes, integers from 0 on, or texts, which are classes in alphabetical order. ``targets`` says which, by default
    the number of dimensions and whether there are fractions. ``classes``: how many there are, by default the largest
    label and one; or the labels themselves, the first of which is class 0.

    ``x_test``, ``y_test``: the test set, whose classes all have training examples; without it, the part ``test`` of the
    examples of each class is drawn by ``seed``. ``clients``: who made each example, whole numbers or texts: then
    ``data.partition.kind`` is ``natural`` and ``data.clients`` their number, unless these are given, and the part
    ``test`` is of each client's examples. ``clients_test``: of the examples of ``x_test``. ``name``: in reports;
    ``form``: where they are from, likewise.

    Features and series are standardised, pixels divided by the largest; ``data.augment`` changes that. DataError for
    anything that is no data set.
    """
    if missing not in get_args(Missing):
        raise DataError(f"missing = {missing!r}: {nearest(str(missing), get_args(Missing))}")
    if (x_test is None) != (y_test is None):
        raise DataError("data: x_test and y_test belong together")
    if x_test is None and clients_test is not None:
        raise DataError("data: clients_test belongs to x_test")
    if x_test is not None and (clients is None) != (clients_test is None):
        raise DataError("data: clients and clients_test belong together")
    given = [_pair("", x, y)] if x_test is None else [_pair("", x, y), _pair("_test", x_test, y_test)]
    is_real = targets == "numbers" or (targets is None and any(_are_real(labels) for _, labels in given))
    if is_real:
        numbered = zip(("y", "y_test"), given, strict=False)
        real: list[NDArray[Any]] = [_real(part, labels) for part, (_, labels) in numbered]
        named, names = [np.zeros(len(each), np.int64) for each in real], tuple[str, ...]()
    else:
        named, names = _classes([labels for _, labels in given], classes)
        real = [*named]
    owners = [_owners("clients", clients, len(named[0]))]
    if x_test is None:
        is_test = _test_mask(named[0], owners[0], test, seed)
        parts = [~is_test, is_test]
        splits = [Split(given[0][0][part], real[0][part], _of(owners[0], part)) for part in parts]
    else:
        owners.append(_owners("clients_test", clients_test, len(named[1])))
        splits = [Split(x, y, who) for (x, _), y, who in zip(given, real, owners, strict=True)]
    first = splits[0].x
    if kind is None:
        kind = "image" if first.ndim > 2 else "features" if first.dtype.kind == "f" else "tokens"
    notes: list[str] = []
    if kind in ("features", "series"):
        splits = _without_gaps(splits, missing, notes)
    train, held = (replace(split, x=_examples(kind, split.x)) for split in splits)
    if x_test is None and not is_test.any():
        each = "class" if clients is None else "class and client"
        few = f"none of {len(is_test)} examples"
        if is_real:
            raise DataError(f"test = {test}: {few} is left for the test set")
        few += f" of {len(np.unique(named[0]))} classes"
        raise DataError(f"test = {test}: {few} is left for the test set, since each {each} keeps one for training")
    most = int(max(train.labels.max(initial=0), held.labels.max(initial=0)))
    unseen = np.setdiff1d(held.labels, train.labels)
    if unseen.size and classes is None:
        label = names[unseen[0]] if names else unseen[0]
        raise DataError(f"y_test: class {label} has no training example; leave it out of the test set, or say classes=")
    largest = int(max(train.x.max(initial=0), held.x.max(initial=0))) if kind in ("image", "tokens") else 0
    number = largest + 1 if kind == "tokens" else largest
    count = len(names) or (classes if isinstance(classes, int) else most + 1)
    if empty := count - len(np.unique(train.labels)):
        notes.append(f"{empty} of {count} classes have no training example; classes=[..] lists those that there are")
    everyone = () if train.ids is None else np.unique(np.concatenate([each.ids for each in (train, held)])).tolist()
    training = 0 if train.ids is None else len(np.unique(train.ids))
    if idle := len(everyone) - training:
        notes.append(f"{idle} of {len(everyone)} clients have test examples alone, and take no part")
    who = tuple(map(str, everyone)) if idle else _unless_counted(everyone)
    decoded = Decoded(train, held, form, Names(who, _unless_counted(names)), tuple(notes))
    about = RealTargets(real[0].shape[1]) if is_real else RealTargets()
    row = arrays_row(name, kind, number, train.x.shape[1:], count, arrays_sha256(decoded), clients is not None, about)
    for part, split in (("training", train), ("test", held)):
        check_examples(row, f"{part} examples", split)
    return Arrays(row, decoded)


def arrays(given: Sequence[Any]) -> Arrays:
    """The data set of ``(x, y)``, or of ``((x, y), (x_test, y_test))``."""
    if len(given) != 2:
        raise DataError("must be (x, y), ((x, y), (x_test, y_test)) or fedbr.dataset(x, y, ...)")
    is_split = all(isinstance(each, tuple | list) and len(each) == 2 and np.ndim(each[0]) > 1 for each in given)
    return dataset(*given[0], *given[1]) if is_split else dataset(*given)


def _array(name: str, given: Any) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{name}: is no array: {error}") from None


def _numbers(name: str, given: Any) -> NDArray[Any]:
    """An array of numbers; of texts and objects, NaN for what is one of `UNKNOWN`."""
    array = _array(name, given)
    if array.dtype.kind in "OU" and array.ndim == 2:
        numbers = np.empty(array.shape, np.float64)
        for place, cell in np.ndenumerate(array):
            text = "" if cell is None else str(cell).strip()
            try:
                numbers[place] = np.nan if text.lower() in UNKNOWN else float(text)
            except ValueError:
                where = f"{name}: example {place[0]}, column {place[1]}"
                raise DataError(f"{where}: {text!r} is no number; a category needs numbers, too") from None
        return numbers
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: holds {array.dtype}; give numbers")
    return array


def _pair(part: str, x: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Examples and their labels; ``part``: of their names."""
    x, y = _numbers(f"x{part}", x), _array(f"y{part}", y)
    if x.ndim < 2 or y.ndim not in (1, 2) or len(x) != len(y):
        shapes = f"x{part} of shape {x.shape} and y{part} of shape {y.shape}"
        raise DataError(f"{shapes}: x{part} has a row for each example, and y{part} its class, or its real targets")
    return x, y


def _are_real(y: NDArray[Any]) -> bool:
    """Whether targets are no classes: several for an example, or with fractions."""
    return y.ndim == 2 or (y.dtype.kind == "f" and not np.array_equal(y, np.floor(y)))


def _real(name: str, y: NDArray[Any]) -> NDArray[np.float32]:
    """Real targets, (examples, numbers)."""
    if y.dtype.kind not in "biuf" or not y.size:
        raise DataError(f"{name}: holds {y.dtype} of shape {y.shape}; real targets are numbers")
    return np.ascontiguousarray(y.reshape(len(y), -1), np.float32)


def _classes(
    labels: Sequence[NDArray[Any]], classes: int | Sequence[Any] | None
) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """The classes of each set of labels, and the label of each class if these were no numbers of classes."""
    is_text = any(each.dtype.kind not in "biuf" for each in labels)
    if not is_text and not isinstance(classes, Sequence):
        numbers = [each.astype(np.int64) for each in labels]
        if not all(map(np.array_equal, numbers, labels)):
            raise DataError("y: must hold classes, integers from 0 on, or texts")
        least = min(int(each.min(initial=0)) if len(each) else 0 for each in numbers)
        begin = int(numbers[0].min()) if len(numbers[0]) else 0
        if classes is None and least >= 0 and begin > 0:
            raise DataError(f"y: begins with {begin}; classes are counted from 0: give y - {begin}, or say classes=")
        return numbers, ()
    texts = [np.array([str(label) for label in each.tolist()]) for each in labels]
    if isinstance(classes, Sequence):
        names = tuple(map(str, classes))
    else:
        names = tuple(sorted({text for each in texts for text in each.tolist()}))
    number = {name: place for place, name in enumerate(names)}
    if len(number) < len(names):
        raise DataError(f"classes = {list(names)!r:.80}: a label is given twice")
    for each in texts:
        for place, text in enumerate(each.tolist()):
            if text not in number:
                raise DataError(f"y: example {place} is {text!r}, which is not among classes = {list(names)!r:.80}")
    return [np.array([number[text] for text in each.tolist()], np.int64) for each in texts], names


def _unless_counted(names: Sequence[Any]) -> tuple[str, ...]:
    """Names as texts; none of them where they are the numbers 0, 1, .. themselves."""
    texts = tuple(map(str, names))
    return () if texts == tuple(map(str, range(len(texts)))) else texts


def _of(owners: NDArray[Any] | None, part: NDArray[np.bool_]) -> NDArray[Any] | None:
    return None if owners is None else owners[part]


def _without_gaps(splits: Sequence[Split], missing: Missing, notes: list[str]) -> list[Split]:
    """Training and test examples without NaN and infinite numbers, as ``missing`` says; those are noted."""
    train, test = splits
    gaps = [~np.isfinite(split.x) for split in splits]
    count = sum(int(gap.reshape(len(gap), -1).any(axis=1).sum()) for gap in gaps if len(gap))
    if not count:
        return [train, test]
    if missing == "refuse":
        part = next(place for place, gap in enumerate(gaps) if gap.any())
        first = int(np.flatnonzero(gaps[part].reshape(len(gaps[part]), -1).any(axis=1))[0])
        which = f"{('training', 'test')[part]} examples: example {first} has NaN or infinite numbers"
        raise DataError(f"{which}, as {count} in all; missing='drop' leaves them out, missing='mean' fills them in")
    if missing == "drop":
        notes.append(f"{_counted(count)} without all numbers left out")
        whole = [~gap.reshape(len(gap), -1).any(axis=1) for gap in gaps]
        return [
            Split(split.x[kept], split.y[kept], _of(split.ids, kept)) for split, kept in zip(splits, whole, strict=True)
        ]
    whose = "their client's training examples" if train.ids is not None else "the training examples"
    notes.append(f"missing numbers of {_counted(count)} are the means of {whose}")
    filled = [np.where(gap, np.nan, split.x) for split, gap in zip(splits, gaps, strict=True)]
    everyone = _means(filled[0])
    if np.isnan(everyone).any():
        raise DataError("missing = 'mean': a number is missing in all training examples; leave its column out")
    for client in () if train.ids is None else np.unique(train.ids):
        own = [np.asarray(each.ids == client) for each in splits]
        mean = _means(filled[0][own[0]])
        mean = np.where(np.isnan(mean), everyone, mean)
        for x, theirs in zip(filled, own, strict=True):
            x[theirs] = np.where(np.isnan(x[theirs]), mean, x[theirs])
    filled = [np.where(np.isnan(x), everyone, x) for x in filled]  # of nobody, or of clients without training examples
    return [replace(split, x=x) for split, x in zip(splits, filled, strict=True)]


def _counted(count: int) -> str:
    return f"{count} example{'s' * (count > 1)}"


def _means(x: NDArray[Any]) -> NDArray[Any]:
    """The mean of each number over examples that have it; NaN where none does."""
    known = ~np.isnan(x)
    with np.errstate(invalid="ignore"):
        means: NDArray[Any] = np.where(known, x, 0.0).sum(axis=0, dtype=np.float64) / known.sum(axis=0)
    return means


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


def _test_mask(y: NDArray[Any], owners: NDArray[Any] | None, part: float, seed: int) -> NDArray[np.bool_]:
    """Which examples are the test set's: evenly many of each class, or of each client and of its classes."""
    if not 0 < part < 1:
        raise DataError(f"test = {part}: must be a part of the examples, above 0 and below 1")
    order = np.random.default_rng(seed).permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    if owners is not None:
        order = order[np.argsort(owners[order], kind="stable")]
    ranks = np.floor(np.arange(len(y) + 1) * part + 0.5)
    drawn = np.zeros(len(y), bool)
    drawn[order[np.diff(ranks) > 0]] = True
    for groups in (y, owners):  # no class and no client is left without a training example
        if groups is not None:
            _, first, of = np.unique(groups, return_index=True, return_inverse=True)
            drawn[first[np.bincount(of, ~drawn) == 0]] = False
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
