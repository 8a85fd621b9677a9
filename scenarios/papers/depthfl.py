"""Table 2 of DepthFL: the runs of the global models on CIFAR-100, whose clients have four widths or four depths.

Kim, Yu, Kim and Moon, DepthFL: Depthwise Federated Learning for Heterogeneous Clients, ICLR 2023,
https://openreview.net/forum?id=pf8RIZTMU58. The values in ``depthfl.csv`` are those that the first author reproduced in
Flower's baseline (https://github.com/adap/flower, baselines/depthfl), whose settings these are. Its models for clients
that learn without the others, each of one size, are not here.
"""

from __future__ import annotations

from collections.abc import Mapping

from scenarios.config.overrides import KeyValues
from scenarios.papers.published import MEASURES, panels, printed
from scenarios.papers.spec import (
    PAPER,
    SCALES,
    SMALL,
    TINY,
    PaperFigure,
    PaperLimit,
    PaperRow,
    PaperSetting,
    TablePart,
    setting_of,
)

SOURCE = (
    "Kim, Yu, Kim and Moon, DepthFL: Depthwise Federated Learning for Heterogeneous Clients, ICLR 2023; the values are "
    "those that its first author reproduced in Flower's baseline (its README)"
)
SCENARIO = "fedmlb-cifar100"
ROUNDS = {PAPER: 1000, SMALL: 150, TINY: 20}
"""Scale -> rounds"""

# --- settings ---------------------------------------------------------------------------------------------------------

AS_BASELINE = TablePart(
    {
        "data.partition.kind": "iid",
        "model.norm": "batch",
        "train.clip": 0,
        "rounds.participants": 10,
        "aggregate.weights": "uniform",
    }
)
SHORTER: Mapping[str, TablePart] = {
    PAPER: TablePart({"eval.every": 50}),
    SMALL: TablePart(
        {"model.width": 16, "train.local_steps": 20, "train.batch": 20, "eval.every": 150, "eval.subset": 2000},
        "ResNet-18 of width 16, 20 local steps of batch 20 in place of 5 epochs of batch 50; scored on 2,000 test "
        "images",
    ),
    TINY: TablePart(
        {
            "data.name": "digits",
            "data.clients": 20,
            "model.width": 8,
            "rounds.participants": 5,
            "train.local_epochs": 2,
            "train.batch": 16,
            "train.drop_last": True,
            "eval.every": 20,
        },
        "digits (8x8, 10 classes) in place of CIFAR-100, ResNet-18 of width 8; 5 of 20 clients a round; 2 local epochs "
        "of batch 16 in place of 5 of batch 50",
    ),
}


def _setting(scale: str) -> PaperSetting:
    rounds = ROUNDS[scale]
    fewer = "" if scale == PAPER else f"{rounds} rounds in place of {ROUNDS[PAPER]}"
    parts = [AS_BASELINE, SHORTER[scale], TablePart({"rounds.max": rounds}, fewer)]
    return setting_of(SCENARIO, parts, {} if scale == PAPER else {MEASURES["acc"]: PaperLimit(float(rounds), "")})


# --- rows -------------------------------------------------------------------------------------------------------------

FOURTHS: KeyValues = {"submodel.rate": "client", "submodel.rates": [1, 0.75, 0.5, 0.25]}
EXITS = "an exit is a linear layer of the means over places; the baseline's has attention and convolutions before it"
RAMP = 300
"""Rounds until the exits' divergences have their whole weight"""
SCALED = {
    scale: TablePart(
        {"method_options.ramp": RAMP * ROUNDS[scale] // ROUNDS[PAPER]},
        f"the divergences grow over {RAMP * ROUNDS[scale] // ROUNDS[PAPER]} rounds in place of {RAMP}",
    )
    for scale in (SMALL, TINY)
}
ROWS = {
    "HeteroFL": PaperRow("heterofl", FOURTHS),
    "DepthFL (FedAvg)": PaperRow("depthfl", {**FOURTHS, "method_options.distil": False}, note=EXITS),
    "DepthFL": PaperRow(
        "depthfl", FOURTHS, note=f"{EXITS}; without FedDyn's terms, which the baseline adds here", scaled=SCALED
    ),
}

# --- figures ----------------------------------------------------------------------------------------------------------

FIGURES = {
    "depthfl:2": PaperFigure(
        "DepthFL, Table 2: four widths and four depths of a model on CIFAR-100",
        SOURCE,
        ROWS,
        {"cifar100-iid": {scale: _setting(scale) for scale in SCALES}},
        tuple(panels(printed("depthfl", "2"))),
        (
            "A fourth of the clients each has the whole ResNet-18, and three, two and one fourths of its channels, or "
            "of its depths. DepthFL's model is scored by the mean of its exits' logits.",
        ),
        is_table=True,
    )
}
