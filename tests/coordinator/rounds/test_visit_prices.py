"""Visits that are alike have one price; visits that draw, or read something of their client, have their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.methods.compute import Compute, ComputeContext, fedavg_compute
from coordinator.methods.spec import Costs, Traffic
from coordinator.rounds.visit import VisitPricing
from edge.protocol.payload import MODEL
from tests.toy import federation

DOWN = {MODEL: {"head": 30}}


def pricing(folder: Path, compute: Callable[[ComputeContext], Compute]) -> tuple[VisitPricing, list[int]]:
    """Prices of a method with this compute plan, and the examples of each visit for which it was asked."""
    run, asked = federation(folder), []

    def noted(context: ComputeContext) -> Compute:
        asked.append(context.samples)
        return compute(context)

    objective = replace(run.method.objective, costs=Costs(compute=noted), traffic=Traffic(choices=("alpha",)))
    method = replace(run.method, objective=objective)
    return VisitPricing(run.job, method, run.options, run.description, run.up_shapes, run.downloads.codecs), asked


def test_alike_visits_are_priced_once(tmp_path: Path) -> None:
    prices, asked = pricing(tmp_path, fedavg_compute)
    first = prices.train({"alpha": 1}, DOWN, 40, client=0, rng_round=0)
    assert prices.train({"alpha": 1}, DOWN, 40, client=3, rng_round=7) is first
    assert asked == [40]
    assert prices.train({"alpha": 1}, DOWN, 20, client=3, rng_round=7).work.flops == first.work.flops / 2
    assert prices.train({"alpha": 2}, DOWN, 40, client=3, rng_round=7).work.flops == first.work.flops
    assert asked == [40, 20, 40]
    more = prices.train({"alpha": 1}, {MODEL: {"head": 31}}, 40, client=3, rng_round=7)
    assert more.work.bytes_down == first.work.bytes_down + 4


@pytest.mark.parametrize(
    "own", [lambda context: context.rng("draws"), lambda context: context.validation, lambda context: context.client]
)
def test_visits_that_differ_are_priced_one_by_one(own: Callable[[ComputeContext], object], tmp_path: Path) -> None:
    def compute(context: ComputeContext) -> Compute:
        own(context)
        return replace(fedavg_compute(context), further_flops=float(context.client))

    prices, asked = pricing(tmp_path, compute)
    flops = [prices.train({"alpha": 1}, DOWN, 40, client, rng_round=0).work.flops for client in (0, 5, 6, 0)]
    assert [each - flops[0] for each in flops] == [0.0, 5.0, 6.0, 0.0]
    assert asked == [40, 40, 40, 40]
