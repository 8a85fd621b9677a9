"""A codec: the stages by which one vector of a message becomes a frame, and comes back. Never torch, never a socket.

A chain has at most one stage of each class, in this order:

* a `Reduction` puts fewer numbers in the place of all (``topk``, ``randk``, ``powersgd``);
* a `NumberFormat` packs numbers into bytes (``fp16``, ``bf16``, ``quantize``, ``ternary``, ``sign``); raw float32
  without one;
* an `EntropyCoder` makes frequent bytes short (``zstd``, ``elias``), so that the length depends on the data.

Without an entropy coder the length of a frame follows from the shape of its vector alone: the side bytes of the
reduction, then the bytes of the numbers. With one, a byte comes first: 1 if what follows is coded, 0 if it is as it
would be without, since coding would not shorten it. Numbers of more than one byte are little-endian.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edge.protocol.payload import Floats
from edge.protocol.plugins import OptionsRow
from edge.protocol.wire import Buffer, WireError

Frame = NDArray[np.uint8]
"""One-dimensional."""
Integers = NDArray[np.int32]
Tensors = tuple[tuple[int, ...], ...]
"""Shapes of the tensors that lie one after another in a vector; ``((n,),)`` for one whose parts do not matter."""
LARGEST = float(np.finfo(np.float32).max)
PROBE: Tensors = ((40, 50),) * 32
PROBE_SCALES = (1e-3, 1.0, 1e3)
"""The matrices on which `Codec.contracts` is measured"""
PROBE_MARGIN = 1.05
"""So that it does not hang on draws: noise of 0.9 of what was sent does not contract"""


class Stage(ABC):
    """One stage of a codec, made from its options."""

    is_unbiased: bool
    """Whether the mean of what comes back is what was sent (`EntropyCoder` and exact stages: True)"""
    is_nearest: ClassVar[bool] = False
    """Whether each number comes back as the nearest that there is, so that little would be gained by feeding back what
    was lost"""

    def __init__(self, options: Any) -> None:
        self.options = options


class Reduction(Stage):
    """A stage that puts fewer numbers in the place of a vector.

    Subclasses may say ``has_indices``: the side bytes, if there are any, are the places of the numbers, uint32 in
    ascending order, for coders of integers.
    """

    has_indices: ClassVar[bool] = False

    @abstractmethod
    def count(self, tensors: Tensors) -> int:
        """How many numbers it leaves of a vector of these tensors."""

    def side_nbytes(self, tensors: Tensors) -> int:
        """Bytes that travel beside these numbers, such as indices."""
        return 0

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
    """A stage that packs numbers into bytes.

    Subclasses may say ``has_integers``: then they have `integers` and `frame`, for coders of integers.
    """

    has_integers: ClassVar[bool] = False

    @abstractmethod
    def nbytes(self, count: int) -> int:
        """Bytes of so many numbers."""

    @abstractmethod
    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        """The bytes of finite numbers."""

    @abstractmethod
    def unpack(self, frame: Frame, count: int) -> Floats:
        """The numbers of a frame of `nbytes`, finite. WireError for bytes that no `pack` gives."""

    def rest_nbytes(self, count: int) -> int:
        """Bytes beside the integers of so many numbers, such as norms."""
        raise NotImplementedError

    def integers(self, frame: Frame, count: int) -> tuple[Integers, Frame]:
        """(the signed levels, the other bytes) of a frame that `pack` has given."""
        raise NotImplementedError

    def frame(self, integers: Integers, rest: Frame) -> Frame:
        """The inverse of `integers`. WireError for levels out of range."""
        raise NotImplementedError


class Everything(Reduction):
    """No reduction."""

    is_unbiased = True

    def count(self, tensors: Tensors) -> int:
        """All."""
        return size(tensors)

    def reduce(
        self, values: Floats, tensors: Tensors, rng: np.random.Generator, kept: Floats | None
    ) -> tuple[Floats, Frame, Floats | None]:
        """The values."""
        return values, NOTHING, None

    def restore(self, numbers: Floats, side: Frame, tensors: Tensors, rng: np.random.Generator) -> Floats:
        """The numbers."""
        return numbers


class Float32(NumberFormat):
    """Numbers as they are."""

    is_unbiased = True

    def nbytes(self, count: int) -> int:
        """4 a number."""
        return 4 * count

    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        """Their bytes."""
        return numbers.astype("<f4").view(np.uint8)

    def unpack(self, frame: Frame, count: int) -> Floats:
        """Their numbers."""
        return finite_floats(frame)


@dataclass(frozen=True)
class PlainStages:
    """The stages before an entropy coder, for vectors of one shape."""

    reduction: Reduction
    number_format: NumberFormat
    tensors: Tensors

    @cached_property
    def count(self) -> int:
        """Numbers that are packed."""
        return self.reduction.count(self.tensors)

    @cached_property
    def side_nbytes(self) -> int:
        """Bytes of the reduction, first in the frame."""
        return self.reduction.side_nbytes(self.tensors)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a frame of these stages."""
        return self.side_nbytes + self.number_format.nbytes(self.count)


class EntropyCoder(Stage):
    """A stage that shortens bytes without loss, by how frequent they are.

    Subclasses may say ``needs_integers``: it codes what ``has_indices`` or ``has_integers`` alone.
    """

    is_unbiased = True
    needs_integers: ClassVar[bool] = False

    @abstractmethod
    def shorten(self, plain: Frame, stages: PlainStages) -> Frame:
        """The coded bytes of a frame of these stages, of any length."""

    @abstractmethod
    def lengthen(self, coded: Frame, stages: PlainStages) -> Frame:
        """The frame of ``stages.nbytes`` bytes, or of another length, which is refused. WireError for what `shorten`
        does not give, before memory is taken that no frame of these stages needs."""


@dataclass(frozen=True)
class CodecRow(OptionsRow):
    """One stage as scenarios name it: ``{ kind = "NAME", OPTION = VALUE, .. }``."""

    stage: type[Stage]
    title_of_error: str = ""
    """How far what comes back may differ, in a few words and symbols, for ``fedbr list codecs``"""
    costs_like: str = ""
    """The shipped stage that takes as long, for one of your own, of which no time was measured"""


@dataclass(frozen=True)
class EncodedFrame:
    """What `Codec.encode` gives."""

    frame: Frame
    kept: Floats | None
    """Numbers that the sender keeps until its next use; None if there are none"""


class Codec:
    """A chain of stages, which `registry.make_codec` checks.

    ``is_fixed_length``: whether lengths follow from shapes alone; ``is_unbiased``: whether all stages are;
    ``loses_much``: whether any is biased and does more than round to the nearest number; ``has_reduction``: whether
    any is a `Reduction`, for which `decode` needs a generator; ``contracts``: whether errors can be fed back.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.reduction = next((each for each in stages if isinstance(each, Reduction)), Everything(None))
        self.number_format = next((each for each in stages if isinstance(each, NumberFormat)), Float32(None))
        self.entropy_coder = next((each for each in stages if isinstance(each, EntropyCoder)), None)
        self.is_fixed_length = self.entropy_coder is None
        self.is_unbiased = all(each.is_unbiased for each in stages)
        self.loses_much = any(not each.is_unbiased and not each.is_nearest for each in stages)
        self.has_reduction = not isinstance(self.reduction, Everything)
        self._stages = lru_cache(maxsize=1024)(partial(PlainStages, self.reduction, self.number_format))

    @cached_property
    def contracts(self) -> bool:
        """Whether what comes back is nearer to what was sent than 0 is: ‖v - v'‖² < ‖v‖², for normally distributed
        numbers small and large, so many that draws make no difference.

        Where it is not, residuals grow from use to use, so that errors must not be fed back: the theory of error
        feedback needs it (Karimireddy et al., ICML 2019, Assumption A). Some chains miss it though their stages do not,
        such as levels of one norm for the P and the Q of PowerSGD.
        """
        normal = np.random.default_rng(0).standard_normal(size(PROBE))
        for scale in PROBE_SCALES:
            values = (scale * normal).astype(np.float32)
            frame = self.encode(values, PROBE, np.random.default_rng(1)).frame
            back = self.decode(frame.data, PROBE, np.random.default_rng(1)).astype(np.float64)
            # ‖v‖² - ‖v - v'‖² = 2·v·v' - ‖v'‖²
            if 2 * float(np.dot(values, back)) <= PROBE_MARGIN * float(np.dot(back, back)):
                return False
        return True

    def nbytes(self, tensors: Tensors) -> int:
        """Length of a frame; a bound on it with an entropy coder."""
        return self._stages(tensors).nbytes + (not self.is_fixed_length)

    def kept(self, tensors: Tensors) -> int:
        """Numbers that the sender keeps between uses, beside a residual."""
        return self.reduction.kept(tensors)

    def encode(
        self, values: Floats, tensors: Tensors, rng: np.random.Generator, kept: Floats | None = None
    ) -> EncodedFrame:
        """The frame of a vector of finite numbers, the same for the same arguments on every processor."""
        assert values.shape == (size(tensors),), (values.shape, tensors)
        assert kept is None or kept.size == self.kept(tensors), (kept.size, tensors)
        stages = self._stages(tensors)
        numbers, side, kept = self.reduction.reduce(np.ascontiguousarray(values), tensors, rng, kept)
        packed = self.number_format.pack(numbers, rng)
        plain = np.concatenate((side, packed)) if side.size else packed
        assert plain.size == stages.nbytes, (plain.size, stages.nbytes)
        if self.entropy_coder is None:
            return EncodedFrame(plain, kept)
        coded = self.entropy_coder.shorten(plain, stages)
        is_shorter = coded.size < plain.size
        return EncodedFrame(np.concatenate((np.array([is_shorter], np.uint8), coded if is_shorter else plain)), kept)

    def decode(self, frame: Buffer, tensors: Tensors, rng: np.random.Generator | None) -> Floats:
        """The vector of a frame, for a generator in the state that `encode` got. Always finite.

        WireError for a frame that `encode` does not give: length, NaN or infinity, indices that are not in order or out
        of range, levels beyond the largest, sizes that its own header claims before memory is taken for them.
        """
        assert rng is not None or not self.has_reduction
        plain = np.frombuffer(frame, np.uint8)
        stages = self._stages(tensors)
        if self.entropy_coder is not None:
            plain = _uncoded(plain, self.entropy_coder, stages)
        if plain.size != stages.nbytes:
            raise WireError(f"codec: {plain.size} bytes instead of {stages.nbytes}")
        numbers = self.number_format.unpack(plain[stages.side_nbytes :], stages.count)
        return numbers if rng is None else self.reduction.restore(numbers, plain[: stages.side_nbytes], tensors, rng)


def _uncoded(frame: Frame, coder: EntropyCoder, stages: PlainStages) -> Frame:
    """The frame without its entropy coder."""
    if not 1 <= frame.size <= stages.nbytes + 1:
        raise WireError(f"codec: {frame.size} bytes instead of 1 to {stages.nbytes + 1}")
    if frame[0] > 1:
        raise WireError(f"codec: begins with {frame[0]} instead of 0 or 1")
    if not frame[0]:
        return frame[1:]
    if frame.size > stages.nbytes:
        raise WireError(f"codec: {frame.size - 1} coded bytes for {stages.nbytes}")
    return coder.lengthen(frame[1:], stages)


NOTHING: Frame = np.empty(0, np.uint8)


def size(tensors: Tensors) -> int:
    """Values of a vector of these tensors."""
    return sum(math.prod(shape) for shape in tensors)


def finite_floats(frame: Frame, least: float = -LARGEST) -> Floats:
    """The float32 numbers of these bytes, in memory of their own. WireError for one that is not finite, or less than
    ``least``."""
    floats = frame.view("<f4").astype(np.float32)
    if floats.size and not (least <= np.minimum.reduce(floats) and np.maximum.reduce(floats) <= LARGEST):  # or NaN
        raise WireError("codec: a number is not finite, or negative where none may be")
    return floats
