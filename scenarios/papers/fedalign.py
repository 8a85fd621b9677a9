"""Tables 1 to 7 and Figure 1 of FedAlign: the runs for each row and setting, and what is counted without any.

Mendieta, Yang, Wang, Lee, Ding and Chen, Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning,
CVPR 2022. The printed values are in ``fedalign.csv``; Figure 1 is drawn only. Accuracies are those of the last round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scenarios.config.overrides import KeyValues
from scenarios.papers.published import (
    EIGENVALUE,
    FORWARD_MACS,
    HESSIANS,
    STORED_PARAMETERS,
    STORED_WEIGHTS,
    TABLE_AMOUNTS,
    TRACE,
    TRAINING_MACS,
    VIRTUAL_SECONDS,
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
    "Mendieta, Yang, Wang, Lee, Ding and Chen, Local Learning Matters: Rethinking Data Heterogeneity in Federated "
    "Learning, CVPR 2022"
)
SCENARIO = "fedalign-cifar100"
CIFAR100, CIFAR10, IMAGENET = "CIFAR-100", "CIFAR-10", "ImageNet-200"
ROUNDS = 25

# --- settings ---------------------------------------------------------------------------------------------------------
# "CIFAR-100", "Dir(0.5) C=64x0.25 E=20": a data set, a partition, clients with the fraction of a round, local epochs.

CODE = "batch 64, Nesterov's momentum 0.9 and weight decay 1e-4 are those of the published code"
EPOCHS_LEFT_OPEN = "the partition, 20 local epochs and 25 rounds of this table are inferred from the others"
SHORTER = {PAPER: {25: 25, 50: 50, 100: 100}, SMALL: {25: 15, 50: 30, 100: 60}, TINY: {25: 8, 50: 12, 100: 20}}
"""Scale -> rounds of the paper -> rounds."""


def _narrow(of: str) -> TablePart:
    return TablePart({"model.width": 4}, f"{of} of width 4; scored on 2,000 test images")


DIGITS: KeyValues = {
    "data.name": "digits",
    "data.augment": "default",
    "model.name": "resnet18",
    "model.width": 8,
    "model.norm": "batch",
}


def _digits(of: str) -> TablePart:
    return TablePart(DIGITS, f"digits (8x8, 10 classes) in place of {of}, ResNet-18 of width 8; batch 16")


IMAGENET_AT_PAPER = {
    "data.name": "imagenet200",
    "data.augment": "fedalign-imagenet200",
    "model.name": "resnet18-imagenet",
}
IMAGENET_SMALL = {**DIGITS, "data.name": "tinyimagenet"}
IMAGENET_METHODS = {"gradaug": {"method_options.resolutions": [1, 0.8571, 0.7143, 0.5714]}}
"""Images of 224, 192, 160 or 128, as the published code draws them."""
CIFAR10_AT = {"data.name": "cifar10", "data.augment": "fedalign-cifar10"}
WORDS: Mapping[str, Mapping[str, TablePart]] = {
    CIFAR100: {PAPER: TablePart(), SMALL: _narrow("ResNet-56"), TINY: _digits(CIFAR100)},
    CIFAR10: {
        PAPER: TablePart(CIFAR10_AT, "", EPOCHS_LEFT_OPEN),
        SMALL: replace(_narrow("ResNet-56"), overrides={**CIFAR10_AT, "model.width": 4}, inferred=EPOCHS_LEFT_OPEN),
        TINY: replace(_digits(CIFAR10), inferred=EPOCHS_LEFT_OPEN),
    },
    IMAGENET: {
        PAPER: TablePart(IMAGENET_AT_PAPER, "", EPOCHS_LEFT_OPEN),
        SMALL: TablePart(
            IMAGENET_SMALL,
            "Tiny-ImageNet (64x64) in place of ImageNet-200, ResNet-18 of width 8; scored on 2,000 test images",
            EPOCHS_LEFT_OPEN,
        ),
        TINY: replace(_digits(IMAGENET), inferred=EPOCHS_LEFT_OPEN),
    },
    "homog": dict.fromkeys(SCALES, TablePart({"data.partition.kind": "iid"})),
}


def _unbalanced(alpha: float) -> TablePart:
    return TablePart({"data.partition.kind": "dirichlet-unbalanced", "data.partition.alpha": alpha})


def _setting(title: str, rounds: int, scale: str) -> PaperSetting:
    """The scenario for a title such as ``CIFAR-100, Dir(0.5) C=16 E=20`` at one scale."""
    dataset, _, words = title.partition(", ")
    partition, of_round, of_visit = words.split()
    shared = WORDS[partition][scale] if partition in WORDS else _unbalanced(float(partition[len("Dir(") : -1]))
    count, _, fraction = of_round.removeprefix("C=").partition("x")  # C=64x0.25: 16 of 64 clients a round
    clients = int(count) // (2 if scale == TINY else 1)
    participants = round(clients * float(fraction or 1))
    epochs = int(of_visit.removeprefix("E="))
    visit = {
        PAPER: TablePart({"train.local_epochs": epochs}),
        SMALL: TablePart({"train.local_steps": epochs}, f"{epochs} local steps in place of {epochs} epochs"),
        TINY: TablePart(
            {"train.local_epochs": epochs // 10, "train.batch": 16},
            f"{epochs // 10} local epochs in place of {epochs}",
        ),
    }
    few = SHORTER[scale]
    parts = [
        TablePart(inferred=CODE),
        WORDS[dataset][scale],
        shared,
        TablePart(
            {"data.clients": clients, "rounds.participants": participants},
            f"{participants} of {clients} clients a round" if scale == TINY else "",
        ),
        visit[scale],
        TablePart(
            {"rounds.max": few[rounds], **({"eval.subset": 2000} if scale == SMALL else {})},
            "" if scale == PAPER else f"{few[rounds]} rounds in place of {rounds}",
        ),
    ]
    setting = setting_of(SCENARIO, parts, {})
    return replace(setting, of_methods=IMAGENET_METHODS) if dataset == IMAGENET and scale != TINY else setting


def _settings(*found: PaperPanel) -> dict[str, dict[str, PaperSetting]]:
    """The settings of these panels; a run is as long as the longest panel of its setting."""
    rounds: dict[str, float] = {}
    for panel in found:
        rounds[panel.setting] = max(panel.limit, rounds.get(panel.setting, 0.0))
    return {
        panel.setting: {
            scale: replace(
                _setting(panel.title, int(rounds[panel.setting]), scale),
                limits={
                    each.name: PaperLimit(float(SHORTER[scale][int(each.limit)]), "")
                    for each in found
                    if each.setting == panel.setting and scale != PAPER
                },
            )
            for scale in SCALES
        }
        for panel in found
    }


# --- rows -------------------------------------------------------------------------------------------------------------


def _gradaug(subnets: int, mu: float) -> PaperRow:
    return PaperRow("gradaug", {"method_options.subnets": subnets, "method_options.weight": mu})


ADDED = {
    "GradAug(n=1)": _gradaug(1, 2.0),
    "GradAug(n=2)": _gradaug(2, 1.75),
    "GradAug(n=3)": _gradaug(3, 1.5),
    "GradAug(n=4)": _gradaug(4, 1.25),
    "FedAlign": PaperRow("fedalign", note="its alignment term is scaled and clipped as in the published code"),
}
PLAIN = {
    "FedAvg": PaperRow("fedavg"),
    "FedProx": PaperRow("fedprox", {"method_options.mu": 0.0001}),
    "MOON": PaperRow("moon"),
    "Mixup": PaperRow("mixup"),
    "StochDepth": PaperRow("stochdepth", note="its keep probabilities are those of the published code"),
}
SIX = {**PLAIN, "GradAug": ADDED["GradAug(n=2)"]}
TEN = {**PLAIN, **ADDED}
EIGHT = {**PLAIN, **{name: ADDED[name] for name in ("GradAug(n=2)", "GradAug(n=1)", "FedAlign")}}

# --- counts -----------------------------------------------------------------------------------------------------------

STORED_MODELS = {"fedprox": 2, "moon": 3}
"""Method -> models that a client stores while it trains: also the received one, and the previous local one."""
MODELS = {
    CIFAR100: ("resnet56", "cifar100"),
    CIFAR10: ("resnet56", "cifar10"),
    IMAGENET: ("resnet18-imagenet", "imagenet200"),
}
"""Data set -> (model, row of the data set)."""
COUNTED = {
    FORWARD_MACS: "forward_macs",
    TRAINING_MACS: "training_macs",
    STORED_WEIGHTS: "stored_weights",
    STORED_PARAMETERS: "stored_parameters",
}
"""Measure -> field of `accounting.MethodAccount`."""


def counted_values(method: str, overrides: KeyValues, dataset: str) -> Mapping[str, float]:
    """Measure -> amount of a method on the paper's model; nothing is trained."""
    from scenarios.papers import accounting

    model, data = MODELS[dataset]
    found = accounting.of_row(method, overrides, model, data, STORED_MODELS.get(method, 1))
    return {measure: float(getattr(found, field)) for measure, field in COUNTED.items()}


def _counted(panel: PaperPanel) -> PaperPanel:
    if panel.measure not in COUNTED:
        return panel
    dataset = panel.title.partition(", ")[0]
    own = IMAGENET_METHODS if dataset == IMAGENET else {}

    def counts(row: PaperRow) -> float:
        return counted_values(row.method, {**row.overrides, **own.get(row.method, {})}, dataset)[panel.measure]

    return replace(panel, counts=counts)


def _unprinted(panel: PaperPanel, measure: str) -> PaperPanel:
    """A column of ours beside the paper's."""
    name, column = f"{panel.setting}@{measure}", TABLE_AMOUNTS[measure].column
    return _counted(replace(panel, name=name, measure=measure, published={}, deviations={}, column=column))


# --- figures ----------------------------------------------------------------------------------------------------------

LAST_ROUND = (
    "Accuracies are those of the last round; whether the paper has the last or the best is not said (its code keeps "
    "the best). The best of each run is in best_accuracy.",
    "The paper's three runs are --seeds 3, each with its own partition unless data.partition.seed is given; its code "
    "has a single seed.",
)
SECOND_ORDER = (
    "Table 1 is of a single run. H_N and H_D are measured as in the published code: per tensor of parameters, over all "
    "pairs of clients, each with itself too.",
    "Hessians are measured of each finished run's last checkpoint, as by fedbr replay RUN --measure hessian; here of "
    "the global training set without augmentation, where the paper's code draws augmented batches anew.",
)
BRIEF = {"examples": 160, "iterations": 20}


def _briefly(options: Mapping[str, KeyValues], changed: str) -> dict[str, TablePart]:
    """Scale -> options of metrics: at the paper's, their own."""
    part = TablePart(
        {f"eval.metric_options.{name}.{key}": value for name, keys in options.items() for key, value in keys.items()},
        changed,
    )
    return {PAPER: TablePart(), SMALL: part, TINY: part}


HESSIAN = {"hessian": {**BRIEF, "probes": 20}}
MEASURED = _briefly(HESSIAN, "Hessians of 160 examples, with at most 20 iterations and 20 probes")
DRAWN = _briefly(
    HESSIAN | {"loss-surface": BRIEF}, "Hessians and losses of 160 examples, with at most 20 iterations and 20 probes"
)
COUNTS = (
    "MFLOPs and parameters are counted on the paper's models at every scale, and no run is needed for them. The paper "
    "counts the multiply-accumulates of the forward passes of training, and parameters without those of BatchNorm; all "
    "passes and all parameters are beside them in Table 5.",
    "The paper's 82.4 for StochDepth is 17/18 of 87.25, one of 18 units left out; with its keep probabilities the "
    "expectation is 83.1. Its figures for GradAug could not be derived: they grow by 46.6, 36.8, 46.7 and 46.7 with "
    "each sub-network, where equal draws cost the same.",
    "The paper's seconds were measured on four RTX 2080 Ti with 20 epochs; ours are of this machine and this scale.",
)
IMAGENET_PRINTS = (
    "For ImageNet-200 the paper prints GFLOPs ten times too large (ResNet-18 has 1.81 at 224x224), fewer parameters "
    "for MOON (19.96 M) than for two models, and 11.22 and 22.42 M, which belong to 100 classes.",
    "The parameters printed for CIFAR-10 are those of CIFAR-100's 100 classes.",
    "On ImageNet-200, GradAug's sub-networks draw images of 224, 192, 160 or 128, as in the published code; at scale "
    "tiny, by the factors for CIFAR, of 8, 7, 6 or 5.",
)


def _figure(
    name: str, title: str, rows: Mapping[str, PaperRow], found: tuple[PaperPanel, ...], *notes: str
) -> PaperFigure:
    measured = MEASURED if any(panel.measure in HESSIANS for panel in found) else {}
    return PaperFigure(
        f"FedAlign, {name}: {title}",
        SOURCE,
        rows,
        _settings(*found),
        found,
        (*notes, *LAST_ROUND),
        is_table=True,
        hessians=measured,
    )


def _table(number: int, title: str, rows: Mapping[str, PaperRow], *notes: str) -> PaperFigure:
    found = tuple(map(_counted, panels(printed("fedalign", str(number)), ROUNDS)))
    return _figure(f"Table {number}", title, rows, found, *notes)


TABLE_5 = _table(5, "local compute, stored parameters and time", TEN, *COUNTS)
BESIDE = {FORWARD_MACS: TRAINING_MACS, STORED_WEIGHTS: STORED_PARAMETERS}
"""Measure of Table 5 -> the column of ours that stands beside it"""
COLUMNS_5 = [
    column
    for panel in TABLE_5.panels
    for column in (panel, *([_unprinted(panel, BESIDE[panel.measure])] if panel.measure in BESIDE else []))
]
COLUMNS_5.append(_unprinted(COLUMNS_5[-1], VIRTUAL_SECONDS))
CURVATURES = tuple(
    _unprinted(next(panels(printed("fedalign", "1"), ROUNDS)), measure) for measure in (EIGENVALUE, TRACE)
)
FIGURE_1 = _figure(
    "Fig. 1",
    "the loss around each global model",
    SIX,
    CURVATURES,
    "As the paper, the figure draws the loss along the first two eigenvectors of the Hessian, of length 1, up to 0.5 "
    "from the model. The paper does not say its distances. The largest eigenvalue is the curvature along the first, "
    "the trace the sum over all.",
    SECOND_ORDER[1],
)
FIGURES = {
    "fedalign:1": _table(1, "accuracy and second-order metrics", SIX, *SECOND_ORDER),
    "fedalign:2": _table(2, "skews of the data", SIX),
    "fedalign:3": _table(3, "numbers of local epochs", SIX),
    "fedalign:4": _table(4, "numbers of clients", SIX),
    "fedalign:5": replace(TABLE_5, settings=_settings(*COLUMNS_5), panels=tuple(COLUMNS_5)),
    "fedalign:6": _table(6, "FedAlign over the settings of Tables 2 to 4", {"FedAlign": ADDED["FedAlign"]}),
    "fedalign:7": _table(7, "CIFAR-10 and ImageNet-200", EIGHT, COUNTS[0], *IMAGENET_PRINTS),
    "fedalign:fig1": replace(FIGURE_1, hessians=DRAWN, metrics=("hessian", "loss-surface")),
}
