"""The codecs of one run, made once from its chains: of updates, of downloads, and of models above aggregators.

Whatever depends on a codec is asked here: the lengths that are charged, what clients keep between visits, and the bytes
that devices encode and decode. Seconds are the clock's (`costmodel.fleet.codec_costs`). Never torch, never a socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from edge.protocol.codecs.codec import Tensors
from edge.protocol.codecs.update_codec import UpdateCodec, VectorCodecs, with_levels
from edge.protocol.config import CodecConfig, TensorAxes
from edge.protocol.payload import ACTIVATIONS, GRADIENTS, MODEL, Shapes
from edge.protocol.submodels import slice_map
from edge.protocol.variant import Variant

Stages = list[tuple[str, float]]
"""(kind, bytes that reach it) of each stage"""


@dataclass(frozen=True)
class Codecs:
    """The codecs of visits that do not differ; `of` has those of a variant."""

    config: CodecConfig
    seed: int
    tensors: Mapping[str, Tensors]
    """key -> shapes of the tensors in its vector; keys that are missing have one tensor"""
    axes: TensorAxes = field(default_factory=dict)
    """The axes of these tensors, where visits have parts of them"""

    @cached_property
    def up(self) -> UpdateCodec:
        """The codecs of updates."""
        return UpdateCodec(self.config, self.seed, self.tensors)

    @cached_property
    def down(self) -> VectorCodecs:
        """The codecs of downloads."""
        return VectorCodecs(self.config.down, self.config.down_slots, self.config.min_values, self.tensors)

    @cached_property
    def steps(self) -> VectorCodecs:
        """The codecs of activations and gradients of a model that is cut."""
        slots = dict.fromkeys((ACTIVATIONS, GRADIENTS), self.config.steps)
        return VectorCodecs((), slots if self.config.steps else {}, 0, {})

    @cached_property
    def wan(self) -> UpdateCodec | None:
        """The codecs of the models that aggregators send up; nothing is fed back."""
        if not self.config.wan:
            return None
        config = replace(CodecConfig(), up=self.config.wan, error_feedback=False, min_values=self.config.min_values)
        return UpdateCodec(config, self.seed, self.tensors)

    def of(self, variant: Variant) -> Codecs:
        """The codecs of visits of a variant, which may have its levels and the tensors of its part."""
        levels, shape = variant.levels, variant.shape
        if levels is None and (shape.share == 1 or not self.axes):
            return self
        if shape not in self._of:
            config, tensors = self.config, self.tensors
            if levels is not None:
                config = replace(config, up=with_levels(config.up, levels))
            if self.axes and shape.share != 1:
                part = slice_map(self.axes, shape).tensors
                tensors = {key: part.get(key, whole) for key, whole in tensors.items()}
            self._of[shape] = Codecs(config, self.seed, tensors)
        return self._of[shape]

    @cached_property
    def _of(self) -> dict[Variant, Codecs]:
        return {}

    def up_stages(self, shapes: Shapes) -> tuple[Stages, Stages]:
        """(stages that encode an update of these shapes, stages that decode it again): a residual is what decoding does
        not give back."""
        vectors = self.up.codecs
        encoded = vectors.lengths(shapes)
        fed_back = {slot: encoded[slot] for slot, *_, codec in vectors.encoded(shapes) if self.up.feeds_back(codec)}
        return vectors.stages(encoded, shapes), vectors.stages(fed_back, shapes)

    def kept_numbers(self, up: Shapes, kept_blocks: Sequence[str], sizes: Mapping[str, int]) -> int:
        """Numbers that a client keeps for codecs between visits: residuals, what stages keep, and versions that updates
        and downloads differ from.

        ``up``: shapes of its update; ``sizes``: of the model that it has.
        """
        held = set(self.up.references(kept_blocks))
        if self.config.down and self.config.of == "update":
            held |= {key for _, key, *_ in self.down.encoded({MODEL: sizes})}
        state = self.up.client_state(up)
        return sum(size for by_key in state.values() for size in by_key.values()) + sum(sizes[key] for key in held)


def unencoded(shapes: Shapes, encoded: Shapes) -> Shapes:
    """The shapes of the vectors that travel as they are, where these are ``encoded``."""
    return {
        slot: {key: size for key, size in by_key.items() if key not in encoded.get(slot, {})}
        for slot, by_key in shapes.items()
    }
