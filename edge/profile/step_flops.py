"""The FLOPs of a training step: ``python -m edge.profile.step_flops MODEL WIDTH DATA``.

Prints those of one example of a shipped model on a shipped data set; WIDTH 0 is the model's own. Nothing is trained or
measured, and no data set is opened.
"""

from __future__ import annotations

import sys

from edge.data.registry import DATASETS
from edge.protocol.config import ModelConfig
from edge.protocol.payload import step_flops
from edge.training.blocks import Block, build
from edge.training.counts import flops_per_example


def counted(model: str, width: int | None, data: str) -> float:
    """FLOPs of a plain step of one example; ValueError for a model that does not take such examples."""
    examples = DATASETS[data]

    def make() -> list[Block]:
        return build(ModelConfig(model, width), examples.classes, examples.inputs)

    return step_flops(flops_per_example(make, examples.shape, examples.kind))


if __name__ == "__main__":
    print(counted(sys.argv[1], int(sys.argv[2]) or None, sys.argv[3]))
