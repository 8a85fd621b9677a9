"""A codec: the stages by which one vector of a message becomes a frame, and comes back. Never torch, never a socket.

A chain has at most one stage of each class, in this order:

* a `Reduction` puts fewer numbers in the place of all (``topk``, ``randk``, ``powersgd``);
* a `NumberFormat` packs numbers into bytes (``fp16``, ``bf16``, ``quantize``, ``ternary``, ``sign``); raw float32
  without one;
* an `EntropyCoder` makes frequent bytes short (``zstd``, ``elias``), so that the length depends on the data.

Without an entropy coder the length of a frame follows from the shape of its vector alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edge.protocol.payload import Floats
from edge.protocol.plugins import OptionsRow
from edge.protocol.wire import Buffer

Frame = NDArray[np.uint8]
"""One-dimensional."""
Integers = NDArray[np.int32]
Tensors = tuple[tuple[int, ...], ...]
"""Shapes of the tensors that lie one after another in a vector; ``((n,),)`` for one whose parts do not matter."""


class Stage(ABC):
    """One stage of a codec, made from its options."""

    is_unbiased: ClassVar[bool]
    """Whether the mean of what comes back is what was sent (`EntropyCoder` and exact stages: True)"""

    def __init__(self, options: Any) -> None:
        self.options = options


class Reduction(Stage):
    """A stage that puts fewer numbers in the place of a vector."""

    @abstractmethod
    def count(self, tensors: Tensors) -> int:
        """How many numbers it leaves of a vector of these tensors."""

    @abstractmethod
    def side_nbytes(self, tensors: Tensors) -> int:
        """Bytes that travel beside these numbers, such as indices."""

    def kept(self, tensors: Tensors) -> int:
        """Numbers that the sender keeps from one use to the next."""
        return 0

    @abstractmethod
    def reduce(
        self, values: Floats, tensors: Tensors, rng: np.random.Generator, kept: Floats | None
    ) -> tuple[Floats, Frame, Floats | None]:
        """(the numbers, the side bytes, what the sender keeps). ``kept``: of its last use; None at the first."""

    @abstractmethod
    def restore(self, numbers: Floats, side: Frame, tensors: Tensors, rng: np.random.Generator) -> Floats:
        """The vector, with the draws of `reduce`. WireError for side bytes that no `reduce` gives."""


class NumberFormat(Stage):
    """A stage that packs numbers into bytes."""

    @abstractmethod
    def nbytes(self, count: int) -> int:
        """Bytes of so many numbers."""

    @abstractmethod
    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        """The bytes of finite numbers."""

    @abstractmethod
    def unpack(self, frame: Frame, count: int) -> Floats:
        """The numbers of a frame of `nbytes`. WireError for bytes that no `pack` gives."""

    def integers(self, frame: Frame, count: int) -> tuple[Integers, Frame] | None:
        """(the signed levels, the other bytes) of a frame, for coders of integers; None if it has none."""
        return None

    def frame(self, integers: Integers, rest: Frame, count: int) -> Frame:
        """The inverse of `integers`. WireError for levels out of range."""
        raise NotImplementedError


class EntropyCoder(Stage):
    """A stage that shortens bytes without loss, by how frequent they are."""

    is_unbiased = True


@dataclass(frozen=True)
class CodecRow(OptionsRow):
    """One stage as scenarios name it: ``{ kind = "NAME", OPTION = VALUE, .. }``."""

    stage: type[Stage]
    title_of_error: str = ""
    """How far what comes back may differ, in a few words and symbols, for ``fedbr list codecs``"""


@dataclass(frozen=True)
class Encoded:
    """What `Codec.encode` gives."""

    frame: Frame
    kept: Floats | None
    """Numbers that the sender keeps until its next use; None if there are none"""


class Codec:
    """A chain of stages.

    ``is_fixed_length``: whether lengths follow from shapes alone; ``is_unbiased``: whether all stages are.
    """

    is_fixed_length: bool
    is_unbiased: bool

    def __init__(self, stages: Sequence[Stage]) -> None:
        raise NotImplementedError

    def nbytes(self, tensors: Tensors) -> int:
        """Length of a frame; a bound on it with an entropy coder."""
        raise NotImplementedError

    def kept(self, tensors: Tensors) -> int:
        """Numbers that the sender keeps between uses, beside a residual."""
        raise NotImplementedError

    def encode(
        self, values: Floats, tensors: Tensors, rng: np.random.Generator, kept: Floats | None = None
    ) -> Encoded:
        """The frame of a vector of finite numbers, the same for the same arguments on every processor."""
        raise NotImplementedError

    def decode(self, frame: Buffer, tensors: Tensors, rng: np.random.Generator) -> Floats:
        """The vector of a frame, for a generator in the state that `encode` got. Always finite.

        WireError for a frame that `encode` does not give: length, NaN or infinity, indices that are not in order or out
        of range, levels beyond the largest, sizes that its own header claims before memory is taken for them.
        """
        raise NotImplementedError
