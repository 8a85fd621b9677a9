"""The model of a finished run as a torch module, for a process of the user's. Never trains.

Evaluation is as in `edge.training.trainer`: float32, in evaluation mode, on the CPU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from edge.protocol.config import Job
from edge.protocol.payload import Vector
from edge.training.block_model import BlockModel
from edge.training.trainer import LocalTrainer

Examples = tuple[Tensor, Tensor]
"""(inputs, labels (examples,) int64); inputs are float32, or int64 tokens, as the data set prepares them"""


class TrainedModel(nn.Sequential):
    """A model of a run: one module per block, under the block's name. It maps inputs of `Examples` to logits (batch,
    classes)."""


def trained_model(
    job: Job, vectors: Mapping[str, Vector], merged: Mapping[str, Vector] = MappingProxyType({})
) -> TrainedModel:
    """The job's model with these numbers, in evaluation mode; ``vectors``: by key, all of the model's; ``merged``: what
    its base has taken up (`edge.protocol.payload.MERGED`)."""
    net = _trainer(job).net
    net.load(vectors)
    net.merge(merged)
    net.train_mode(False)
    return TrainedModel(OrderedDict(zip(net.layout.names, _modules(net), strict=True))).eval()


def evaluated_examples(job: Job) -> Examples:
    """The global test examples that evaluations use; DataError for data that cannot be read."""
    trainer = _trainer(job)
    return trainer.test_set.fetch(trainer.evaluated_indices)


def _trainer(job: Job) -> LocalTrainer:
    """A trainer on the CPU that leaves this process's number of threads as it is."""
    threads = torch.get_num_threads()
    try:
        return LocalTrainer(replace(job, device="cpu"))
    finally:
        torch.set_num_threads(threads)


def _modules(net: BlockModel) -> list[nn.Module]:
    """The modules of the model, with tensors of their own in place of views into flat vectors."""
    for module in net.modules:
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data, tensor.grad = tensor.data.clone(), None
    return net.modules
