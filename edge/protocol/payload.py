"""What a message carries: float32 vectors by slot and block. Never torch, never a socket.

A *slot* names one set of vectors in a message: ``model`` for the model itself, others where a method sends more
(a teacher, a control variate, several cluster models). Inside a slot, a vector is named by its *key*: the name of a
block for its parameters, and the block's name + ``.buffers`` for its float buffers (BatchNorm statistics). Where a
method's spec asks for it, blocks are cut into layers, and keys are ``block/layer``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from edge.protocol.wire import Count

Floats = NDArray[np.float32]
FORWARD, WEIGHT_GRADIENT, INNER_GRADIENT, INPUT_GRADIENT = range(4)
"""Kinds of pass through a block: forward; the gradients of its weights; those between its own layers, which both of
the others need; and the one that it passes on to its input."""
PASS_TYPES = 4


def step_passes(learns: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(blocks, 4) passes of one ordinary training step: gradients go as far back as to the first block that learns.

    ``learns``: (blocks,)
    """
    is_behind = np.cumsum(learns) - learns > 0
    passes = np.ones((len(learns), PASS_TYPES))
    passes[:, WEIGHT_GRADIENT], passes[:, INNER_GRADIENT] = learns, learns | is_behind
    passes[:, INPUT_GRADIENT] = is_behind
    return passes


def step_flops(flops: NDArray[np.float64]) -> float:
    """FLOPs per example of a training step of blocks: all passes but the gradient of their input, which nobody needs.

    ``flops``: (blocks, 4), a column per kind of pass.
    """
    return float(flops.sum() - flops[:1, INPUT_GRADIENT].sum())


MODEL = "model"
TEACHER = "teacher"
"""The slot of another model that local training learns from."""
CONTROL = "control"
"""SCAFFOLD's control variates."""
STEPS = "optimizer_steps"
"""The steps that an optimizer's vectors, in slots of torch's names, have behind them."""
MERGED = "merged"
"""The slot of products of adapters that a frozen base has taken up, by `merged_key`."""
ARRIVALS = "arrivals"
"""The slot of the order in which visits that train together make their steps (`arrivals`); of no simulated message."""
ACTIVATIONS, GRADIENTS, LABELS = "activations", "gradients", "labels"
"""Slots of messages of a step of a model that is cut, in no message of the simulator's processes"""
BUFFERS = ".buffers"
ITEM_NBYTES = 4
LAYER = "/"
"""Between the names of a block and of one of its layers, in keys of single layers."""
VERSION_NBYTES = 16


def merged_key(key: str) -> str:
    """That of the products of the adapters in the vector ``key``, which are other numbers than these."""
    return f"{key}.{MERGED}"


class Vector:
    """One block's numbers, read-only, with the content hash that names this version of them.

    ``data`` is a one-dimensional float32 array; it must not change once wrapped.
    """

    __slots__ = ("_version", "data")

    def __init__(self, data: Floats, version: bytes | None = None) -> None:
        assert data.dtype == np.float32, data.dtype
        assert data.ndim == 1, data.shape
        self.data = data
        self._version = version

    @property
    def version(self) -> bytes:
        """16 bytes of BLAKE2b over the raw little-endian numbers, computed once."""
        if self._version is None:
            self._version = hashlib.blake2b(self.data.data.cast("B"), digest_size=VERSION_NBYTES).digest()
        return self._version

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers alone."""
        return int(self.data.nbytes)


Payload = dict[str, dict[str, Vector]]
"""slot -> key -> vector, in the order in which the frames travel."""


BASE = "base"
"""The slot of a frozen base in the price of a visit that downloads it; in no real message, since workers have it"""
CLIENTS = "clients"
EncodedVectors = dict[str, dict[str, NDArray[np.uint8]]]
"""slot -> key -> frame that a codec has made of a vector"""


def arrivals(clients: Sequence[int]) -> Payload:
    """The client of each step, in order, as vectors of a download: float32 holds such numbers exactly."""
    return {ARRIVALS: {CLIENTS: Vector(np.array(clients, np.float32))}}


def order_of_steps(payload: Payload) -> Vector | None:
    """Inverse of `arrivals`; None for a visit that trains alone."""
    return payload.get(ARRIVALS, {}).get(CLIENTS)


def initial_slot(index: int) -> str:
    """The slot of the initial model of this number, 0, 1, .., in a worker's description."""
    return MODEL if index == 0 else f"{MODEL}.{index}"


Shapes = Mapping[str, Mapping[str, int]]
"""slot -> key -> number of float32 values: all that the length of a message depends on, beside names."""


def shapes(payload: Payload) -> dict[str, dict[str, int]]:
    """The shapes of a payload."""
    return {slot: {key: vector.data.size for key, vector in vectors.items()} for slot, vectors in payload.items()}


def frame_nbytes(encoded: EncodedVectors) -> dict[str, dict[str, int]]:
    """The lengths of frames."""
    return {slot: {key: frame.size for key, frame in named.items()} for slot, named in encoded.items()}


def vectors(payload: Payload) -> Iterator[tuple[str, str, Vector]]:
    """(slot, key, vector) in travelling order."""
    for slot, named in payload.items():
        for key, vector in named.items():
            yield slot, key, vector


def nbytes(payload: Payload) -> int:
    """Bytes of all numbers in the payload, without any header."""
    return sum(vector.nbytes for _, _, vector in vectors(payload))


def sha256(payload: Payload) -> str:
    """One hash over names and numbers of a payload, in its order."""
    digest = hashlib.sha256()
    for slot, key, vector in vectors(payload):
        digest.update(f"{slot}/{key}:{vector.data.size};".encode())
        digest.update(vector.data.data.cast("B"))
    return digest.hexdigest()


class LayerShape(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One layer of a block, by its key, and how many float32 parameters and buffers it has."""

    key: str
    """``block/layer``, or the block's name if it is a single layer"""
    params: Count
    buffers: Count = 0


class BlockShape(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One block of a model: its name and how many float32 parameters and buffers it has."""

    name: str
    params: Count
    buffers: Count = 0
    layers: tuple[LayerShape, ...] = ()
    """Its layers, if these have keys of their own"""

    @property
    def parts(self) -> tuple[LayerShape, ...]:
        """The parts of it that have keys: its layers, or itself."""
        return self.layers or (LayerShape(self.name, self.params, self.buffers),)


class Layout(Struct, frozen=True, dict=True, array_like=True, forbid_unknown_fields=True):
    """The blocks of a model, in the order in which data flows through them."""

    blocks: tuple[BlockShape, ...]

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Block names, first to last."""
        return tuple(block.name for block in self.blocks)

    @property
    def learns(self) -> NDArray[np.bool_]:
        """(blocks,) Whether a block has parameters: the others are frozen, or have none."""
        return np.array([block.params > 0 for block in self.blocks])

    @cached_property
    def sizes(self) -> dict[str, int]:
        """key -> number of float32 values; the buffers of a block, or of a layer, follow its parameters."""
        sizes: dict[str, int] = {}
        for block in self.blocks:
            for part in block.parts:
                if part.params or not block.layers:
                    sizes[part.key] = part.params
                if part.buffers:
                    sizes[part.key + BUFFERS] = part.buffers
        return sizes

    def keys(self, names: Iterable[str] | None = None) -> tuple[str, ...]:
        """The keys of these blocks or layers (default: all), buffers beside their parameters, in model order."""
        wanted = set(self.names if names is None else names)
        return tuple(key for key in self.sizes if not wanted.isdisjoint((block_of(key), key.removesuffix(BUFFERS))))

    def last(self, alpha: int) -> tuple[str, ...]:
        """The keys of the last ``alpha`` blocks."""
        return self.keys(self.names[len(self) - alpha :])

    def shapes(self, keys: Iterable[str]) -> dict[str, int]:
        """key -> size for the given keys."""
        return {key: self.sizes[key] for key in keys}

    def nbytes(self, keys: Iterable[str] | None = None) -> int:
        """Bytes of the numbers of these keys (default: the whole model)."""
        return ITEM_NBYTES * sum(self.sizes[key] for key in (self.sizes if keys is None else keys))


def block_of(key: str) -> str:
    """The block of a key, be it of the block or of one of its layers."""
    return key.removesuffix(BUFFERS).partition(LAYER)[0]
