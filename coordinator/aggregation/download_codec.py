"""The encoding of downloads: what the server sends is encoded, and the visit starts from what its client decodes.

The server decodes its own frames to know what its clients hold. Workers get these decoded vectors as they get all
others, each version once, since what passes between processes of the simulator is not what the simulated client
receives; the client is charged for the frame. Real devices get the frames.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Lock

from coordinator.aggregation.held_versions import SENT, HeldVersions
from coordinator.aggregation.server import Download, LaterPayload
from edge.protocol.codecs.codecs import Codecs
from edge.protocol.codecs.update_codec import DownloadFrame, VectorCodecs, download_rng
from edge.protocol.payload import MODEL, Payload, Vector

References = dict[tuple[str, str], Vector | None]
"""(slot, key) of what is encoded -> the version that the client holds; None: none, or the numbers are encoded"""
MOST_DECODED = 256
"""Frames and decoded vectors that are kept for clients with the same version of a block"""


class DownloadCodec:
    """Encodes the downloads of one run, and has the versions that its clients hold.

    ``kept_blocks``: blocks that not every visit downloads.
    """

    def __init__(self, codecs: Codecs, kept_blocks: Sequence[str] = ()) -> None:
        self.codecs, self._kept_blocks = codecs, kept_blocks
        references, is_difference = codecs.up.references(kept_blocks), codecs.config.of == "update"

        def is_wanted(slot: str, key: str, size: int) -> bool:
            if slot == SENT:
                return True
            if slot == MODEL and key in references and codecs.up.codecs.codec(slot, key, size) is not None:
                return True
            if slot == MODEL and key in kept_blocks and codecs.down.codec(slot, key, size) is not None:
                return True
            return is_difference and codecs.down.codec(slot, key, size) is not None

        self.held = HeldVersions(is_wanted)
        self._made: OrderedDict[tuple[str, str, bytes, bytes], tuple[DownloadFrame, Vector]] = OrderedDict()
        self._lock = Lock()

    def anew(self) -> DownloadCodec:
        """The same before the first round."""
        return DownloadCodec(self.codecs, self._kept_blocks)

    def planned(self, dispatch: Download) -> tuple[Download, dict[str, dict[str, int]]]:
        """(the download as its client decodes it, bytes of the frames); changes nothing.

        A vector of which the client holds no version travels as it is.
        """
        lengths: dict[str, dict[str, int]] = {}
        if not self.codecs.down.is_used:
            return dispatch, lengths
        held, is_difference = self.held.of(dispatch.client), self.codecs.config.of == "update"
        codecs = self.codecs.of(dispatch.variant).down
        references: References = {}
        for slot, key, tensors, codec in codecs.encoded(dispatch.shapes):
            version = held.get((slot, key))
            is_alike = version is not None and version.data.size == dispatch.shapes[slot][key]  # of the same part
            if not is_difference or is_alike:
                references[slot, key] = version if is_difference else None
                lengths.setdefault(slot, {})[key] = codec.nbytes(tensors)
        if not lengths:
            return dispatch, lengths
        build = partial(self._build, codecs, dispatch, references)
        later = LaterPayload(dispatch.shapes, build, partial(self._frames, codecs, dispatch, references))
        return replace(dispatch, payload={}, later=later), lengths

    def _build(self, codecs: VectorCodecs, dispatch: Download, references: References) -> Payload:
        built = dispatch.built()
        decoded = {slot: dict(vectors) for slot, vectors in built.items()}
        for (slot, key), reference in references.items():
            decoded[slot][key] = self._encoded(codecs, slot, key, built[slot][key], reference)[1]
        return decoded

    def _frames(
        self, codecs: VectorCodecs, dispatch: Download, references: References
    ) -> dict[tuple[str, str], DownloadFrame]:
        built = dispatch.built()
        return {
            (slot, key): self._encoded(codecs, slot, key, built[slot][key], reference)[0]
            for (slot, key), reference in references.items()
        }

    def _encoded(
        self, codecs: VectorCodecs, slot: str, key: str, vector: Vector, reference: Vector | None
    ) -> tuple[DownloadFrame, Vector]:
        """The frame for clients that hold this reference, and what they decode."""
        before = b"" if reference is None else reference.version
        place = slot, key, before, vector.version
        with self._lock:
            if place not in self._made:
                size = vector.data.size
                codec, tensors = codecs.codec(slot, key, size), codecs.shape(key, size)
                assert codec is not None, place
                change = vector.data if reference is None else vector.data - reference.data
                rng = download_rng(self.codecs.seed, slot, key, before, vector.version)
                frame = DownloadFrame(codec.encode(change, tensors, rng).frame, before, vector.version, size)
                if len(self._made) >= MOST_DECODED:
                    self._made.popitem(last=False)
                self._made[place] = frame, frame.decode(codecs, self.codecs.seed, slot, key, reference)
            return self._made[place]
