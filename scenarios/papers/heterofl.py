"""Table 2 of HeteroFL: the runs for each mix of models on MNIST and CIFAR-10, and what is counted without any.

Diao, Ding and Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021, https://arxiv.org/abs/2010.01264. The values in ``heterofl.csv`` are no printed ones of the paper: they are
those that Flower's baseline of it reproduced, whose table has the paper's columns. Settings are those of the authors'
code (https://github.com/diaoenmao), which the baseline follows.

The model of a row is as wide as its largest part: ``b-e`` trains a model of half the width and its parts of 1/8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from statistics import fmean

from edge.protocol.payload import FORWARD, ITEM_NBYTES
from scenarios.config.load import load
from scenarios.config.overrides import KeyValues
from scenarios.papers.published import (
    HELD_FLOPS,
    HELD_NBYTES,
    HELD_PRODUCTS,
    HELD_WEIGHTS,
    MEASURES,
    TABLE_AMOUNTS,
    panels,
    printed,
)
from scenarios.papers.spec import (
    PAPER,
    SCALES,
    SMALL,
    TINY,
    PaperFigure,
    PaperLimit,
    PaperPanel,
    PaperRow,
    PaperSetting,
    TablePart,
    setting_of,
)

SOURCE = (
    "Diao, Ding and Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous "
    "Clients, ICLR 2021; the values are those that Flower's baseline reproduced (its README, dynamic scenario)"
)
SCENARIO = "heterofl-mnist"
MNIST, CIFAR10 = "MNIST", "CIFAR-10"
IID, NON_IID = "IID", "non-IID"

# --- settings ---------------------------------------------------------------------------------------------------------

ROUNDS = {(MNIST, IID): 200, (MNIST, NON_IID): 400, (CIFAR10, IID): 400, (CIFAR10, NON_IID): 800}
SHORTER = {
    PAPER: {200: 200, 400: 400, 800: 800},
    SMALL: {200: 40, 400: 80, 800: 160},
    TINY: {200: 20, 400: 40, 800: 40},
}
"""Scale -> rounds of the paper -> rounds"""
STEPS = {MNIST: (1, 2), CIFAR10: (3, 8)}
"""Data set -> the share of the rounds after which the learning rate falls to a tenth: in the code in round 100 of 200
and 200 of 400; for CIFAR-10 in rounds 150 and 250 of 400, where ours falls in 150 and 300"""
WIDTHS = {MNIST: {PAPER: 64, SMALL: 64, TINY: 32}, CIFAR10: {PAPER: 64, SMALL: 32, TINY: 32}}
"""Data set -> scale -> channels of a's first layer; e has a sixteenth, and at least two"""
CLIPPED = TablePart({"train.clip": 1}, inferred="gradients are clipped to norm 1, as in the authors' code")
TENTH = "10 of 100 clients a round, as in the authors' code; the baseline's list has 100"
PADDED = "images padded to 32x32 in place of 28x28"
FROM_CIFAR10 = TablePart(
    {
        "data.name": "cifar10",
        "model.name": "resnet18",
        "model.norm": "batch",
        "train.lr": 0.1,
        "fleet.devices": {"jetson-agx-xavier": 1.0},
        "fleet.networks": {"wifi-4": 1.0},
    },
    "ResNet-18 with its normalisation behind the convolutions in place of before; the learning rate falls after 3/8 "
    "and 3/4 of the rounds in place of 3/8 and 5/8",
)
FEWER: KeyValues = {
    "data.name": "digits",
    "data.clients": 20,
    "rounds.participants": 5,
    "train.local_epochs": 1,
    "train.drop_last": True,
}


def _of_scale(dataset: str, scale: str) -> TablePart:
    width = WIDTHS[dataset][scale]
    narrow = f"widths {width} to {width // 16} in place of 64 to 4"
    if scale == TINY:
        digits = f"digits (8x8, 10 classes) in place of {dataset}"
        return TablePart(FEWER, f"{digits}; {narrow}; 5 of 20 clients a round; one local epoch in place of 5")
    padded = PADDED if dataset == MNIST else ""
    if scale == PAPER:
        return TablePart(changed=padded, inferred=TENTH)
    words = [padded, narrow if width < 64 else "", "one local epoch in place of 5"]
    return TablePart({"train.local_epochs": 1}, "; ".join(word for word in words if word), TENTH)


def _setting(dataset: str, partition: str, scale: str) -> PaperSetting:
    of_paper = ROUNDS[dataset, partition]
    rounds, (share, of) = SHORTER[scale][of_paper], STEPS[dataset]
    classes: KeyValues = {"data.partition.kind": "classes", "data.partition.classes_per_client": 2}
    parts = [
        CLIPPED,
        *([FROM_CIFAR10] if dataset == CIFAR10 else []),
        _of_scale(dataset, scale),
        TablePart(classes if partition == NON_IID else {}),
        TablePart(
            {
                "rounds.max": rounds,
                "eval.every": rounds,
                "train.lr_schedule": "step",
                "train.lr_schedule_options.every": rounds * share // of,
            },
            "" if scale == PAPER else f"{rounds} rounds in place of {of_paper}",
        ),
    ]
    return setting_of(SCENARIO, parts, {} if scale == PAPER else {MEASURES["acc"]: PaperLimit(float(rounds), "")})


# --- rows -------------------------------------------------------------------------------------------------------------

LEVELS = {"a": 1.0, "b": 1 / 2, "c": 1 / 4, "d": 1 / 8, "e": 1 / 16}
MIXES = ("a", "a-e", "a-b-c-d-e", "b", "b-e", "b-c-d-e", "c", "c-e", "c-d-e", "d", "d-e", "e")


def _row(dataset: str, mix: str) -> PaperRow:
    """A visit has each level of the mix with the same probability."""
    largest, *more = (LEVELS[level] for level in mix.split("-"))
    rates = [rate / largest for rate in (largest, *more)]
    drawn: KeyValues = {"submodel.rate": "round", "submodel.rates": rates} if more else {"submodel.rate": 1}
    scaled = {scale: TablePart({"model.width": round(width * largest)}) for scale, width in WIDTHS[dataset].items()}
    return PaperRow("heterofl", drawn, scaled=scaled)


# --- counts -----------------------------------------------------------------------------------------------------------


@cache
def held_model(width: int) -> Mapping[str, float]:
    """Measure -> amount of HeteroFL's network of a width, for images of 28x28; nothing is trained.

    The printed FLOPs add up the cost of each layer once for its weights and once for its biases. That of a convolution
    is one for each product and one for the bias of each output, that of BatchNorm two for each number: in all two for
    each product, and six for each output of a convolution.
    """
    from edge.data.registry import dataset
    from edge.protocol.config import ModelConfig
    from edge.training.counts import count_model

    counted = count_model(ModelConfig("heterofl-cnn", width), replace(dataset("mnist"), shape=(1, 28, 28)))
    weights = sum(block.params for block in counted.layout.blocks)
    products = float(counted.counts.flops[:, FORWARD].sum())
    outputs = sum(width * 2**layer * (28 >> layer) ** 2 for layer in range(4))  # three max-pools halve the sides
    return {
        HELD_WEIGHTS: weights,
        HELD_NBYTES: weights * ITEM_NBYTES,
        HELD_PRODUCTS: products,
        HELD_FLOPS: products + 6 * outputs,
    }


def _counted(panel: PaperPanel) -> PaperPanel:
    """The panel with the means over the models that clients of a row hold at the paper's scale."""
    if panel.measure not in TABLE_AMOUNTS:
        return panel

    def counts(row: PaperRow) -> float:
        scenario = load(SCENARIO, row.at(PAPER).overrides, row.method).scenario
        width = scenario.model.width
        assert width is not None
        return fmean(held_model(round(width * rate))[panel.measure] for rate in scenario.submodel.levels)

    dataset, _, partition = panel.title.partition(", ")
    return replace(panel, counts=counts, limit=float(ROUNDS[dataset, partition]))


# --- figures ----------------------------------------------------------------------------------------------------------

NOTES = (
    "No printed accuracy of the paper itself is here. The baseline's values are of its dynamic scenario, in which the "
    "model of each visit is drawn anew; whether they are of the last or the best round is not said: ours are of the "
    "last, in which alone is evaluated. Accuracies on each client's own classes, which it also prints, are left out.",
)
COUNTS = (
    "Parameters, MiB (4 bytes each) and MFLOPs are means over the models of a mix, counted on the paper's network for "
    "images of 28x28 at every scale. The printed MFLOPs are two for each multiply-accumulate and six for each output "
    "of a convolution, since the baseline adds a layer's cost once for its weights and once for its biases. MFLOPs of "
    "products, two for each multiply-accumulate, are what fedbr counts.",
    "What is printed for c-e are the parameters, MFLOPs and MiB of c and d; whether its accuracies are theirs, too, is "
    "not said.",
)
DEEPER = (
    "Parameters and MFLOPs are left out: the printed 11,172,170 of a are those of a ResNet-18 with its normalisation "
    "before the convolutions; that of the runs has 11,173,962.",
)


def _panels(dataset: str) -> list[PaperPanel]:
    columns = []
    for panel in map(_counted, panels([value for value in printed("heterofl", "2") if value.dataset == dataset])):
        columns.append(panel)
        if panel.measure == HELD_FLOPS:
            name, column = f"{panel.setting}@products", TABLE_AMOUNTS[HELD_PRODUCTS].column
            columns.append(_counted(replace(panel, name=name, measure=HELD_PRODUCTS, published={}, column=column)))
    return columns


def _figure(dataset: str, *notes: str) -> PaperFigure:
    found = _panels(dataset)
    settings = {
        panel.setting: {scale: _setting(dataset, panel.title.partition(", ")[2], scale) for scale in SCALES}
        for panel in found
    }
    return PaperFigure(
        f"HeteroFL, Table 2: mixes of models on {dataset}",
        SOURCE,
        {mix: _row(dataset, mix) for mix in MIXES},
        settings,
        tuple(found),
        (*notes, *NOTES),
        is_table=True,
    )


FIGURES = {"heterofl:2": _figure(MNIST, *COUNTS), "heterofl:2-cifar10": _figure(CIFAR10, *DEEPER)}
