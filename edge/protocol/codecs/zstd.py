"""zstd: Collet, Kucherawy, Zstandard Compression and the 'application/zstd' Media Type, RFC 8878, 2021."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from edge.protocol.codecs.codec import EntropyCoder, Frame, PlainStages
from edge.protocol.plugins import PluginOptions
from edge.protocol.wire import WireError


class ZstdOptions(PluginOptions):
    """The frame is one of zstd, with its content size and without a checksum."""

    level: int = Field(default=3, ge=1, le=19)
    """Higher ones take more time and memory for fewer bytes."""


class Zstd(EntropyCoder):
    """The same bytes on every machine with the same version of the library, which is imported at the first use."""

    options: ZstdOptions

    def shorten(self, plain: Frame, stages: PlainStages) -> Frame:
        """One zstd frame, made by one thread."""
        from zstandard import ZstdCompressor

        coder = ZstdCompressor(level=self.options.level, write_checksum=False, write_content_size=True, threads=0)
        return np.frombuffer(coder.compress(plain.data), np.uint8)

    def lengthen(self, coded: Frame, stages: PlainStages) -> Frame:
        """WireError if the content is not as long as it must be, by its header, before it is decompressed."""
        from zstandard import ZstdDecompressor, ZstdError, get_frame_parameters

        try:
            claim = get_frame_parameters(coded.data).content_size
            if claim != stages.nbytes:
                raise WireError(f"zstd: the header says {claim} bytes instead of {stages.nbytes}")
            plain = ZstdDecompressor().decompress(coded.data, allow_extra_data=False)
        except ZstdError as error:
            raise WireError(f"zstd: {error}") from error
        return np.frombuffer(plain, np.uint8)
