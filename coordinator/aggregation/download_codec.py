"""The encoding of downloads: what the server sends is encoded, and the visit starts from what its client decodes.

The server decodes its own frames to know what its clients hold. Workers get these decoded vectors as they get all
others, each version once, since what passes between processes of the simulator is not what the simulated client
receives; the client is charged for the frame.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Lock

from coordinator.aggregation.held_versions import HeldVersions
from coordinator.aggregation.server import Download, LaterPayload
from edge.protocol.codecs.update_codec import UpdateCodec, VectorCodecs
from edge.protocol.config import CodecConfig, TensorShapes
from edge.protocol.payload import MODEL, Payload, Vector
from edge.protocol.rng import keyed_generator

MOST_DECODED = 256
"""Decoded vectors that are kept for clients with the same version of a block"""


class DownloadCodec:
    """The codecs of one run's downloads, and the versions that its clients hold.

    ``kept_blocks``: blocks that not every visit downloads.
    """

    def __init__(self, config: CodecConfig, seed: int, tensors: TensorShapes, kept_blocks: Sequence[str] = ()) -> None:
        self._config, self._seed = config, seed
        self._codecs = VectorCodecs(config.down, config.down_slots, config.min_values, tensors)
        self._tensors, self._kept_blocks = tensors, kept_blocks
        upwards = UpdateCodec(config, seed, tensors)
        references = upwards.references(kept_blocks)

        def is_wanted(slot: str, key: str, size: int) -> bool:
            if slot == MODEL and key in references and upwards.codecs.codec(slot, key, size) is not None:
                return True
            return config.of == "update" and self._codecs.codec(slot, key, size) is not None

        self.held = HeldVersions(is_wanted)
        self._decoded: OrderedDict[tuple[str, str, bytes, bytes], Vector] = OrderedDict()
        self._lock = Lock()

    def anew(self) -> DownloadCodec:
        """The same before the first round."""
        return DownloadCodec(self._config, self._seed, self._tensors, self._kept_blocks)

    def planned(self, dispatch: Download) -> tuple[Download, dict[str, dict[str, int]]]:
        """(the download as its client decodes it, bytes of the frames); changes nothing.

        A vector of which the client holds no version travels as it is.
        """
        lengths: dict[str, dict[str, int]] = {}
        if not (self._config.down or self._config.down_slots):
            return dispatch, lengths
        held, is_difference = self.held.of(dispatch.client), self._config.of == "update"
        references: dict[tuple[str, str], Vector | None] = {}
        for slot, key, tensors, codec in self._codecs.encoded(dispatch.shapes):
            if not is_difference or (slot, key) in held:
                references[slot, key] = held[slot, key] if is_difference else None
                lengths.setdefault(slot, {})[key] = codec.nbytes(tensors)
        if not lengths:
            return dispatch, lengths
        build = partial(self._build, dispatch, references)
        return replace(dispatch, payload={}, later=LaterPayload(dispatch.shapes, build)), lengths

    def _build(self, dispatch: Download, references: dict[tuple[str, str], Vector | None]) -> Payload:
        return {
            slot: {
                key: self._decode(slot, key, vector, references[slot, key]) if (slot, key) in references else vector
                for key, vector in named.items()
            }
            for slot, named in dispatch.built().items()
        }

    def _decode(self, slot: str, key: str, vector: Vector, reference: Vector | None) -> Vector:
        """The vector as clients with this version decode it. Draws are keyed by the versions, so that it is one."""
        before = b"" if reference is None else reference.version
        place = slot, key, before, vector.version
        with self._lock:
            if place not in self._decoded:
                size = vector.data.size
                codec, tensors = self._codecs.codec(slot, key, size), self._codecs.shape(key, size)
                assert codec is not None, place
                purpose = f"codec down {slot}/{key} {before.hex()} {vector.version.hex()}"
                change = vector.data if reference is None else vector.data - reference.data
                frame = codec.encode(change, tensors, keyed_generator(self._seed, purpose)).frame
                decoded = codec.decode(frame.data, tensors, keyed_generator(self._seed, purpose))
                if reference is not None:
                    decoded += reference.data
                if len(self._decoded) >= MOST_DECODED:
                    self._decoded.popitem(last=False)
                self._decoded[place] = Vector(decoded)
            return self._decoded[place]
