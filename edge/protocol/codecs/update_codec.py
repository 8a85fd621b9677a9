"""The encoding of updates: workers encode, the coordinator decodes, and so do workers that add updates up.

Both sides know a *reference* of each vector, which the difference is taken from and added to again; each vector has
random draws of its own, keyed by its name, client and round, so that the result depends on neither worker nor order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge.protocol.codecs.codec import Codec, Tensors
from edge.protocol.codecs.quantize import QuantizeOptions
from edge.protocol.codecs.registry import make_codec, stage_nbytes
from edge.protocol.config import Chain, CodecConfig
from edge.protocol.payload import BUFFERS, MODEL, EncodedVectors, Floats, Payload, Shapes, Vector
from edge.protocol.plugins import is_own
from edge.protocol.rng import keyed_generator
from edge.protocol.wire import WireError

RESIDUAL, KEPT, REFERENCE = "residual of ", "codec of ", "reference of "
"""Before the name of a slot: the slots of a client state with what encoding has taken from the client's last update,
with what stages keep (PowerSGD's Q), and with the last downloaded version of blocks that not every visit downloads."""

References = Callable[[str, str], Floats | None]
"""(slot, key) -> the version that both sides know; None: there is none, and the vector itself is encoded"""


@dataclass(frozen=True)
class VectorCodecs:
    """The codecs of the vectors of messages in one direction."""

    model: Chain
    """Stages for slot ``model``"""
    slots: Mapping[str, Chain]
    """Stages for other slots"""
    min_values: int
    tensors: Mapping[str, Tensors]
    """key -> shapes of the tensors in its vector; keys that are missing have one tensor"""

    @property
    def is_used(self) -> bool:
        """Whether any vector is encoded."""
        return bool(self._by_slot)

    def codec(self, slot: str, key: str, size: int) -> Codec | None:
        """The codec of a vector of so many numbers; None if it travels as it is."""
        if key.endswith(BUFFERS) or size < max(self.min_values, 1):
            return None
        codec = self._by_slot.get(slot)
        # Stages of a user's own may keep attributes, which no other vector must meet.
        return deepcopy(codec) if slot in self._own else codec

    @cached_property
    def _own(self) -> frozenset[str]:
        """Slots with a stage of a user's own."""
        chains = {**self.slots, MODEL: self.model}.items()
        return frozenset(slot for slot, chain in chains if any(is_own(str(stage.get("kind"))) for stage in chain))

    @cached_property
    def _by_slot(self) -> dict[str, Codec]:
        chains = {**self.slots, MODEL: self.model}.items()
        return {slot: _codec(tuple([tuple(stage.items()) for stage in chain])) for slot, chain in chains if chain}

    def encoded(self, shapes: Shapes) -> Iterator[tuple[str, str, Tensors, Codec]]:
        """(slot, key, shapes of its tensors, codec) of each vector that is encoded."""
        for slot, by_key in shapes.items():
            for key, size in by_key.items():
                if (codec := self.codec(slot, key, size)) is not None:
                    yield slot, key, self.shape(key, size), codec

    def lengths(self, shapes: Shapes) -> dict[str, dict[str, int]]:
        """slot -> key -> bytes of the frame of each vector that is encoded, or a bound on them."""
        lengths: dict[str, dict[str, int]] = {}
        for slot, key, tensors, codec in self.encoded(shapes):
            lengths.setdefault(slot, {})[key] = codec.nbytes(tensors)
        return lengths

    def stages(self, encoded: Shapes, sizes: Shapes) -> list[tuple[str, float]]:
        """(kind, bytes that reach it) of the stages of all vectors that are ``encoded``, of these ``sizes``."""
        counted: list[tuple[str, float]] = []
        for slot, by_key in encoded.items():
            stages = self.model if slot == MODEL else self.slots[slot]
            for key in by_key:
                counted += stage_nbytes(stages, self.shape(key, sizes[slot][key]))
        return counted

    def shape(self, key: str, size: int) -> Tensors:
        """The shapes of the tensors in a vector."""
        return self.tensors.get(key) or ((size,),)


class DownloadFrame(NamedTuple):
    """A vector of a download as a codec has made it."""

    frame: NDArray[np.uint8]
    before: bytes
    """The version that it is the difference from; empty: there is none, and the vector itself is encoded"""
    version: bytes
    """That of the vector which was encoded"""
    size: int
    """Its numbers"""

    def decode(self, codecs: VectorCodecs, seed: int, slot: str, key: str, reference: Vector | None) -> Vector:
        """The vector that its client has then; ``reference``: its version ``before``. WireError for a malformed frame.

        Draws are keyed by the versions, so that all clients with the same one decode the same.
        """
        codec, tensors = codecs.codec(slot, key, self.size), codecs.shape(key, self.size)
        if codec is None:
            raise WireError(f"{slot}/{key}: a frame of a vector that is not encoded")
        decoded = codec.decode(self.frame.data, tensors, download_rng(seed, slot, key, self.before, self.version))
        if reference is not None:
            decoded += reference.data
        return Vector(decoded)


def download_rng(seed: int, slot: str, key: str, before: bytes, version: bytes) -> np.random.Generator:
    """The draws of a frame of this vector for clients that hold its version ``before``."""
    return keyed_generator(seed, f"codec down {slot}/{key} {before.hex()} {version.hex()}")


@dataclass(frozen=True)
class UpdateCodec:
    """The codecs of updates. ``tensors``: of the model, as in `VectorCodecs`."""

    config: CodecConfig
    seed: int
    tensors: Mapping[str, Tensors]

    @cached_property
    def codecs(self) -> VectorCodecs:
        """The codecs of its vectors."""
        return VectorCodecs(self.config.up, self.config.up_slots, self.config.min_values, self.tensors)

    def feeds_back(self, codec: Codec) -> bool:
        """Whether clients keep what this one of the codecs takes from an update, for the next one."""
        return bool(self.config.error_feedback) and codec.contracts

    def is_fixed_length(self, up: Shapes) -> bool:
        """Whether the length of an update with these vectors follows from their shapes."""
        return all(codec.is_fixed_length for *_, codec in self.codecs.encoded(up))

    def client_state(self, up: Shapes) -> dict[str, dict[str, int]]:
        """Numbers that clients keep between visits, by slot of their state: residuals, and what stages keep."""
        state: dict[str, dict[str, int]] = {}
        for slot, key, tensors, codec in self.codecs.encoded(up):
            if self.feeds_back(codec):
                state.setdefault(f"{RESIDUAL}{slot}", {})[key] = up[slot][key]
            if kept := codec.kept(tensors):
                state.setdefault(f"{KEPT}{slot}", {})[key] = kept
        return state

    def references(self, kept_blocks: Sequence[str]) -> tuple[str, ...]:
        """Blocks, out of those that clients keep and not every visit downloads, whose last downloaded version both
        sides must know."""
        return tuple(kept_blocks) if self.config.up and self.config.of == "update" else ()

    def encode(
        self, client: int, number: int, payload: Payload, references: References, state: Payload
    ) -> tuple[Payload, EncodedVectors, Payload]:
        """(vectors that travel as they are, frames of the others, what the client keeps).

        ``number``: the visit's, as of its random streams; ``state``: what the client has kept. A vector that is not
        finite travels as it is, so that the server names what is wrong with it.
        """
        raw: Payload = {}
        frames: EncodedVectors = {}
        keep: Payload = {}
        for slot, vectors in payload.items():
            for key, vector in vectors.items():
                codec = self.codecs.codec(slot, key, vector.data.size)
                if codec is None:
                    raw.setdefault(slot, {})[key] = vector
                    continue
                tensors = self.codecs.shape(key, vector.data.size)
                reference, residual = references(slot, key), _kept(state, f"{RESIDUAL}{slot}", key)
                with np.errstate(over="ignore", invalid="ignore"):
                    change: Floats = vector.data - (np.float32(0) if reference is None else reference)
                    if residual is not None:
                        change += residual
                    is_finite = bool(np.isfinite(np.abs(change).max(initial=0)))
                if not is_finite:
                    raw.setdefault(slot, {})[key] = vector
                    change = np.zeros_like(change)
                kept = _kept(state, f"{KEPT}{slot}", key)
                encoded = codec.encode(change, tensors, self._rng(slot, key, client, number), kept)
                if is_finite:
                    frames.setdefault(slot, {})[key] = encoded.frame
                if self.feeds_back(codec):
                    change -= codec.decode(encoded.frame.data, tensors, self._rng(slot, key, client, number))
                    keep.setdefault(f"{RESIDUAL}{slot}", {})[key] = Vector(change)
                if encoded.kept is not None:
                    keep.setdefault(f"{KEPT}{slot}", {})[key] = Vector(encoded.kept)
        return raw, frames, keep

    @np.errstate(over="ignore")  # sums are checked as all updates are
    def decode(
        self, client: int, number: int, raw: Payload, frames: EncodedVectors, references: References, up: Shapes
    ) -> Payload:
        """The vectors of an update, those of ``up`` in its order.

        WireError for a frame that is malformed or of a vector that is not encoded, and for a finite vector that travels
        as it is though it should be encoded. What is missing, or too much, is for the checks of updates to refuse.
        """
        for slot, by_key in frames.items():
            for key in by_key:
                if key not in up.get(slot, {}) or self.codecs.codec(slot, key, up[slot][key]) is None:
                    raise WireError(f"{slot}/{key}: a frame of a vector that is not encoded")
        decoded: Payload = {slot: {} for slot in up if slot in raw or slot in frames}
        for slot, sizes in up.items():
            for key, size in sizes.items():
                codec, frame = self.codecs.codec(slot, key, size), frames.get(slot, {}).get(key)
                vector = raw.get(slot, {}).get(key)
                if frame is not None and codec is not None:
                    if vector is not None:
                        raise WireError(f"{slot}/{key}: sent twice")
                    tensors = self.codecs.shape(key, size)
                    try:
                        rng = self._rng(slot, key, client, number) if codec.has_reduction else None
                        change = codec.decode(frame.data, tensors, rng)
                    except WireError as error:
                        raise WireError(f"{slot}/{key}: {error}") from None
                    reference = references(slot, key)
                    if reference is not None:
                        change += reference
                    decoded[slot][key] = Vector(change)
                elif vector is not None:
                    if codec is not None and np.isfinite(vector.data).all():
                        raise WireError(f"{slot}/{key}: travels as it is, though it has a codec")
                    decoded[slot][key] = vector
        for slot, vectors in raw.items():
            among = decoded.setdefault(slot, {})
            among.update({key: vector for key, vector in vectors.items() if key not in among})
        return decoded

    def _rng(self, slot: str, key: str, client: int, number: int) -> np.random.Generator:
        return keyed_generator(self.seed, f"codec {slot}/{key}", number, client)


def with_levels(stages: Chain, levels: int) -> Chain:
    """The stages, with so many levels in those that have any."""
    changed = []
    for stage in stages:
        others = {name: value for name, value in stage.items() if name not in ("bits", "levels")}
        changed.append({**others, "levels": levels} if is_quantize(stage) else stage)
    return tuple(changed)


def most_levels(stages: Chain) -> int:
    """The levels of the ``quantize`` of these stages; 0 without one."""
    options = [
        {name: value for name, value in stage.items() if name != "kind"} for stage in stages if is_quantize(stage)
    ]
    return QuantizeOptions.model_validate(options[0]).s if options else 0


def is_quantize(stage: Mapping[str, object]) -> bool:
    """Whether it has levels."""
    return stage.get("kind") == "quantize"


def _kept(state: Payload, slot: str, key: str) -> Floats | None:
    vector = state.get(slot, {}).get(key)
    return None if vector is None else vector.data


@lru_cache(maxsize=256)
def _codec(stages: tuple[tuple[tuple[str, object], ...], ...]) -> Codec:
    return make_codec([dict(stage) for stage in stages])
