"""A row of each plug-in point that has options, with one option each."""

from __future__ import annotations

from pydantic import Field

from coordinator.aggregation.optimizers import ServerOptimizer, ServerOptimizerRow
from coordinator.methods.spec import CorrectionSpec, ObjectiveSpec
from coordinator.rounds.policy import PolicyRow, SynchronousPolicy
from coordinator.rounds.selection import ClientSelector
from coordinator.rounds.selectors.registry import SelectionRow
from edge.data import partition
from edge.data.partition_registry import PartitionRow
from edge.protocol.codecs.codec import CodecRow
from edge.protocol.codecs.sign import Sign
from edge.protocol.lr_schedules import LrSchedule
from edge.protocol.options.base import Options
from edge.protocol.plugins import PluginOptions
from edge.training.metrics.registry import MetricRow


class AmountOptions(PluginOptions):
    """One option."""

    amount: float = Field(default=0.1, ge=0, le=1)
    """Any share."""


class MethodOptions(Options):
    """One option."""

    amount: float = Field(default=0.1, ge=0, le=1)
    """Any share."""


ABOUT = ("optioned", "has an option", "a test")
METHOD = ObjectiveSpec(*ABOUT, options=MethodOptions, neutral="none")
CORRECTION = CorrectionSpec(*ABOUT, MethodOptions, "none", "edge.methods.fedprox:FedProxCorrection")
SERVER = ServerOptimizerRow(*ABOUT, AmountOptions, "none", lambda options: ServerOptimizer())
SELECTION = SelectionRow(*ABOUT, AmountOptions, lambda options: ClientSelector())
POLICY = PolicyRow(*ABOUT, AmountOptions, lambda options: SynchronousPolicy())
SCHEDULE = LrSchedule(*ABOUT, AmountOptions, lambda at, options: at.lr * options.amount)
CODEC = CodecRow(*ABOUT, AmountOptions, Sign, costs_like="sign")
UNPRICED_CODEC = CodecRow(*ABOUT, AmountOptions, Sign)
PARTITION = PartitionRow("optioned", "has an option", partition.iid)
METRIC = MetricRow("optioned", "has an option", "edge.training.metrics.accuracy:Accuracy", options=AmountOptions)
