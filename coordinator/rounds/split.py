"""Split learning: clients hold the first blocks of a model, and a server trains the others with them, step by step.

O. Gupta and R. Raskar, Distributed learning of deep neural network over multiple agents, Journal of Network and
Computer Applications 116, 2018; C. Thapa et al., SplitFed, AAAI 2022, https://arxiv.org/abs/2004.12088. In a step of b
examples the outputs of the front, a numbers an example, go up, 4 a b bytes and the labels; the gradient of these comes
down, as many bytes. U-shaped, the client has the last block as well, and labels stay with it: a step has two round
trips. A front that is frozen needs no gradient.

What both sides compute together is what one device would compute of the whole model, so that nothing else is trained
where the server has a copy of its blocks for each client and averages them (SplitFed V1): the numbers are FedAvg's. In
turn (SL) a client begins where the one before has ended. So a split changes what travels, who computes, and the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from coordinator.methods.compute import Compute, ComputeContext
from coordinator.records.schema import Lengths, lengths
from costmodel import units
from costmodel.fleet.codec_costs import codec_seconds
from costmodel.visits.work import StepExchange
from edge.protocol import serialization
from edge.protocol.codecs.codecs import unencoded
from edge.protocol.codecs.update_codec import VectorCodecs
from edge.protocol.config import ModelProfile, Section
from edge.protocol.payload import ACTIVATIONS, GRADIENTS, LABELS, Shapes, block_of
from edge.protocol.spelling import nearest

STEP_SLOTS = (ACTIVATIONS, GRADIENTS, LABELS)
"""Slots of messages of a step"""
FlopRate = Annotated[float, BeforeValidator(units.flops_per_second), Field(gt=0)]


@dataclass(frozen=True)
class SplitConfig(Section):
    """Which blocks clients hold, where a server trains the others with them in each local step."""

    after: str | None = None
    """The last block of the front, which clients hold. By default clients train whole models."""
    kind: Literal["splitfed-v1", "splitfed-v2", "sequential", "frozen-front"] = "splitfed-v1"
    """splitfed-v1: the server has a copy of its blocks for each client of a round, and averages both sides (Thapa et
    al., 2022); splitfed-v2: clients of a round train one server part, step by step as their activations arrive, and
    fronts alone are averaged (same paper); sequential: clients train one after another, each from where the one before
    has ended (Gupta and Raskar, 2018); frozen-front: as splitfed-v1, and nothing learns on the devices (``adapter``),
    so that no gradient comes down."""
    labels: Literal["share", "u-shaped"] = "share"
    """share: labels go up with the activations; u-shaped: clients hold the last block as well, and labels stay."""
    clip: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Largest L2 norm of an example's activations; longer ones are scaled down to it. By default there is none."""
    noise: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    """Standard deviation of normal noise that devices add to activations, in units of ``clip``."""
    server: FlopRate = 1e13
    """FLOP/s of the server's device, which all clients under way share (assumed: 10 TFLOP/s)."""

    @property
    def is_shared(self) -> bool:
        """Whether clients of a round train one server part together, so that what is learned depends on times."""
        return self.after is not None and self.kind == "splitfed-v2"


@dataclass(frozen=True)
class SplitModel:
    """A model that is cut between clients and server."""

    config: SplitConfig
    description: ModelProfile
    codecs: VectorCodecs
    """Of messages of a step"""

    def __post_init__(self) -> None:
        """ValueError, naming the key, for a cut that the model does not have."""
        names, after = self.description.layout.names, self.config.after
        if after not in names:
            raise ValueError(f"split.after = {after!r}: {nearest(str(after), names)}")
        if after == names[-1] or (self.is_u_shaped and after == names[-2]):
            what = "the last block is the clients' as well" if after != names[-1] else "it is the last block"
            raise ValueError(f"split.after = {after!r}: {what}, and the server would have none; choose an earlier one")
        if not len(self.description.cuts):
            raise ValueError("split.after: the outputs of the model's blocks are not known")
        learning = [block.name for block in self.description.layout.blocks[: self.cut] if block.params]
        if self.config.kind == "frozen-front" and learning:
            why = (
                f"{', '.join(learning)} would learn on the devices; let adapter.train and adapter.on name later blocks"
            )
            raise ValueError(f"split.kind = frozen-front: {why}")

    @property
    def is_u_shaped(self) -> bool:
        """Whether clients have the last block."""
        return self.config.labels == "u-shaped"

    @cached_property
    def cut(self) -> int:
        """Blocks of the front."""
        assert self.config.after is not None
        return self.description.layout.names.index(self.config.after) + 1

    @cached_property
    def is_clients(self) -> NDArray[np.bool_]:
        """(blocks,) Whether clients hold a block."""
        held = np.arange(len(self.description.layout)) < self.cut
        held[-1] |= self.is_u_shaped
        return held

    def charged(self, shapes: Shapes) -> dict[str, dict[str, int]]:
        """Those of a message's vectors that are not of the server's blocks; a slot without any is left out."""
        servers = {self.description.layout.names[index] for index in np.flatnonzero(~self.is_clients).tolist()}
        found = {
            slot: {key: size for key, size in sizes.items() if block_of(key) not in servers}
            for slot, sizes in shapes.items()
        }
        return {slot: sizes for slot, sizes in found.items() if sizes}

    def client_flops(self, compute: Compute) -> float:
        """FLOPs of a visit that its device executes."""
        return float((compute.passes * self.description.flops)[self.is_clients].sum())

    def codec_seconds(self, context: ComputeContext) -> float:
        """Seconds for which a reference host encodes what goes up in a visit, and decodes what comes down."""
        seconds = 0.0
        for examples, times in Counter(context.batches).items():
            down, up = self._messages(examples)
            seconds += times * (codec_seconds(self._stages(down), "decode") + codec_seconds(self._stages(up), "encode"))
        return seconds

    def _stages(self, messages: Sequence[Shapes]) -> list[tuple[str, float]]:
        return [each for message in messages for each in self.codecs.stages(self.codecs.lengths(message), message)]

    def exchange(self, run_id: str, context: ComputeContext, compute: Compute) -> tuple[StepExchange, Lengths, Lengths]:
        """What goes back and forth in a visit, and the bytes of each slot down and up.

        Lengths are those of canonical messages (`edge.protocol.serialization`), which follow from shapes.
        """
        server_flops = compute.flops(self.description.flops) - self.client_flops(compute)
        down, up, trips = Counter[str](), Counter[str](), 2 if self.is_u_shaped else 1
        headers = [0, 0]
        for examples, times in Counter(context.batches).items():
            sent_down, sent_up = self._messages(examples)
            for way, slots, messages in ((0, down, sent_down), (1, up, sent_up)):
                for message in messages:
                    encoded = self.codecs.lengths(message)
                    of_message = (serialization.train_nbytes, serialization.update_nbytes)[way]
                    nbytes = of_message(run_id, (), unencoded(message, encoded), encoded)
                    payload = {slot: sum(each.values()) for slot, each in lengths(message, encoded).items()}
                    headers[way] += times * (nbytes - sum(payload.values()))
                    for slot, length in payload.items():
                        slots[slot] += times * length
        total_down, total_up = (sum(slots.values()) + own for slots, own in zip((down, up), headers, strict=True))
        exchange = StepExchange(trips * context.plan.steps, total_down, total_up, server_flops / self.config.server)
        key = self.description.layout.names[self.cut - 1]
        lengths_down, lengths_up = ({slot: {key: length} for slot, length in slots.items()} for slots in (down, up))
        return exchange, lengths_down, lengths_up

    def _messages(self, examples: int) -> tuple[list[Shapes], list[Shapes]]:
        """Shapes of the messages of one step, down and up."""
        names, numbers = self.description.layout.names, examples * self.description.cuts.astype(np.int64)
        front = {names[self.cut - 1]: int(numbers[self.cut - 1])}
        gradient_down: list[Shapes] = [{GRADIENTS: front}] if self.description.layout.learns[: self.cut].any() else []
        if not self.is_u_shaped:
            labels = {names[-1]: examples * self.description.label_words}
            return gradient_down, [{ACTIVATIONS: front, LABELS: labels}]
        back = {names[-2]: int(numbers[-2])}
        gradient_up: list[Shapes] = [{GRADIENTS: back}] if self.description.layout.learns[:-1].any() else []
        return [{ACTIVATIONS: back}, *gradient_down], [{ACTIVATIONS: front}, *gradient_up]
