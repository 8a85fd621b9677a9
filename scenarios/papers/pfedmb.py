"""Tables I to III and Figures 3 to 5 of pFedMB: the runs for each row and setting, and what the paper leaves open.

Mori, Yoshiyama, Furukawa and Teranishi, Personalized Federated Learning with Multi-branch Architecture, 2022. The
printed values of Table II are in ``pfedmb.csv``; those of Tables I and III are lost in the paper's text at hand, and
Figures 3 to 5 are drawn only. Clients' models are adapted for 5 epochs before they are evaluated, in every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scenarios.config.overrides import KeyValues
from scenarios.papers.published import panels, printed
from scenarios.papers.spec import (
    BEST,
    PAPER,
    SCALES,
    SMALL,
    TINY,
    VALIDATION,
    PaperFigure,
    PaperLimit,
    PaperPanel,
    PaperRow,
    PaperSetting,
    TablePart,
    setting_of,
)

SOURCE = "Mori, Yoshiyama, Furukawa and Teranishi, Personalized Federated Learning with Multi-branch Architecture, 2022"
SCENARIO = "pfedmb-cifar10"
MOST_ROUNDS = 500

# --- settings ---------------------------------------------------------------------------------------------------------
# "CIFAR-10", "2 classes 15 clients 100%": a data set, a partition, and clients.

UNKNOWN = (
    "the optimiser (here plain SGD) and the tuned learning rates (here 0.05 where no row has its own) are not printed"
)
SHORTER = {SMALL: 30, TINY: 6}
"""Scale -> rounds in place of convergence."""
SCALED: Mapping[str, TablePart] = {
    PAPER: TablePart(inferred=UNKNOWN),
    SMALL: TablePart(
        {"train.local_epochs": 1, "eval.adapt.epochs": 1, "rounds.max": SHORTER[SMALL], "eval.every": 5},
        f"1 local epoch and 1 epoch of adaptation in place of 5, {SHORTER[SMALL]} rounds, evaluated every 5, in place "
        "of convergence",
        UNKNOWN,
    ),
    TINY: TablePart(
        {"train.local_epochs": 1, "eval.adapt.epochs": 1, "train.batch": 16, "rounds.max": SHORTER[TINY]},
        f"1 local epoch and 1 epoch of adaptation in place of 5, batch 16, {SHORTER[TINY]} rounds in place of "
        "convergence",
        UNKNOWN,
    ),
}


def _digits(of: str) -> TablePart:
    return TablePart({"data.name": "digits", "model.name": "digits-cnn"}, f"digits (8x8, 10 classes) in place of {of}")


def _everywhere(overrides: KeyValues, inferred: str = "") -> dict[str, TablePart]:
    return dict.fromkeys(SCALES, TablePart(overrides, inferred=inferred))


WORDS: Mapping[str, Mapping[str, TablePart]] = {
    "CIFAR-10": {PAPER: TablePart(), SMALL: TablePart(), TINY: _digits("CIFAR-10")},
    "CIFAR-100": {
        **dict.fromkeys((PAPER, SMALL), TablePart({"data.name": "cifar100"})),
        TINY: _digits("CIFAR-100"),
    },
    "2 classes": _everywhere({"data.partition.kind": "classes"}),
    "Dir(0.4)": {
        **_everywhere(
            {"data.partition.kind": "dirichlet-unbalanced", "data.partition.alpha": 0.4},
            inferred="that the Dirichlet partition is the unbalanced one of the papers it cites is inferred",
        ),
        TINY: TablePart(
            {
                "data.partition.kind": "dirichlet-unbalanced",
                "data.partition.alpha": 0.4,
                "data.partition.min_samples": 5,
            }
        ),
    },
    "20 classes": {
        **_everywhere({"data.partition.kind": "class-shares", "data.partition.classes_per_client": 20}),
        TINY: TablePart(
            {"data.partition.kind": "class-shares", "data.partition.classes_per_client": 4}, "4 classes in place of 20"
        ),
    },
    "pairs": _everywhere({"data.partition.kind": "pairs"}),
    "10 clients": _everywhere({"data.clients": 10, "rounds.participants": 10}),
    "15 clients": _everywhere({"data.clients": 15, "rounds.participants": 15}),
    "50 clients": _everywhere({"data.clients": 50, "rounds.participants": 10}),
}


def _setting(title: str, scale: str) -> PaperSetting:
    """The scenario for a title such as ``CIFAR-10, 2 classes 15 clients 100%`` at one scale."""
    dataset, _, words = title.partition(", ")
    partition, _, clients = words.removesuffix("%").rpartition(" clients ")[0].rpartition(" ")
    parts = [SCALED[scale], *(WORDS[word][scale] for word in (dataset, partition, f"{clients} clients"))]
    limits: dict[str, PaperLimit] = {}
    if scale != PAPER:
        limits = dict.fromkeys((BEST, VALIDATION), PaperLimit(float(SHORTER[scale]), ""))
    return setting_of(SCENARIO, parts, limits)


# --- rows -------------------------------------------------------------------------------------------------------------

NOT_PRINTED = "its hyperparameters, tuned on validation examples, are not printed"


FASTER = {
    scale: TablePart(
        {"train.lr": lr, "method_options.branch_init": "variance_preserving"},
        f"rate {lr:g} in place of 0.05, and branches multiplied by √B at first, as the mean of independent ones has "
        "1/√B of a layer's deviation and needs more rounds",
    )
    for scale, lr in {SMALL: 0.1, TINY: 0.3}.items()
}
"""Scale -> settings with which pFedMB learns, and its branch weights part, within a few rounds."""


def _pfedmb(overrides: KeyValues, note: str = "") -> PaperRow:
    return PaperRow("pfedmb", overrides, note=note, scaled=FASTER)


PFEDMB = _pfedmb({}, "the number of branches, tuned on validation examples, is lost; here 5")
FIVE = _pfedmb({"method_options.shared_alpha": True, "method_options.branches": 5})
PLAIN = _pfedmb({**FIVE.overrides, "method_options.aggregation": "plain"})
METHODS = {
    "Local": PaperRow("local"),
    "FedAvg": PaperRow("fedavg"),
    "FedProx": PaperRow("fedprox", note=NOT_PRINTED),
    "FedPer": PaperRow("fedper", note="the number of private layers is not printed; here the last one"),
    "pFedMe": PaperRow("pfedme", note=NOT_PRINTED),
    "IFCA": PaperRow("ifca", {"method_options.models": 5}, note="the number of models is not printed; here 5"),
    "FedFomo": PaperRow("fedfomo", note=NOT_PRINTED),
    "FedAMP": PaperRow("fedamp", note=NOT_PRINTED),
    "pFedMB": PFEDMB,
}
PAIRED = {
    "Local": METHODS["Local"],
    "FedAvg": METHODS["FedAvg"],
    "pFedMB, plain averaging": PLAIN,
    "pFedMB": FIVE,
}


def _branches(*counts: int) -> dict[str, PaperRow]:
    return {f"B={count}": _pfedmb({"method_options.branches": count}) for count in counts}


# --- figures ----------------------------------------------------------------------------------------------------------

IN_ROWS = (
    "Every value is the mean over clients of the accuracy on their own test examples, after local fine-tuning, in the "
    "round with the best accuracy on their validation examples. Which round the paper reports is not said.",
    "The paper's three runs are --seeds 3.",
)
TABLE_II = tuple(panels(printed("pfedmb", "II")))
PAIRS = PaperPanel(
    "pairs", "CIFAR-10, pairs 10 clients 100%", "pairs", BEST, MOST_ROUNDS, {}, column="best round", is_lost=True
)
TUNED = tuple(
    PaperPanel(f"{panel.setting}@B", panel.title, panel.setting, VALIDATION, MOST_ROUNDS, {}, column="B", is_lost=True)
    for panel in TABLE_II
)


FIGURE_4 = PaperPanel("pairs@rounds", PAIRS.title, "pairs", "accuracy at rounds", MOST_ROUNDS, {}, column="drawn")
FIGURE_5 = PaperPanel("branches", TABLE_II[1].title, TABLE_II[1].setting, BEST, MOST_ROUNDS, {}, column="drawn")


def _figure(
    name: str, title: str, rows: Mapping[str, PaperRow], found: tuple[PaperPanel, ...], *notes: str, draws: bool = False
) -> PaperFigure:
    return PaperFigure(
        f"pFedMB, {name}: {title}",
        SOURCE,
        rows,
        {panel.setting: {scale: _setting(panel.title, scale) for scale in SCALES} for panel in found},
        found,
        (*notes, *IN_ROWS),
        is_table=True,
        draws_methods=draws,
    )


FIGURES = {
    "pfedmb:I": _figure("Table I", "10 clients in pairs that have the same two classes", PAIRED, (PAIRS,)),
    "pfedmb:II": _figure(
        "Table II",
        "nine methods, each with local fine-tuning",
        METHODS,
        TABLE_II,
        "The text calls FedAMP (90.73) and pFedMe (45.57) comparable with pFedMB's 90.69 and 44.73; in the last of "
        "these settings FedProx (44.81) is above pFedMB too.",
    ),
    "pfedmb:III": _figure(
        "Table III",
        "tuned numbers of branches",
        _branches(2, 3, 5, 10),
        TUNED,
        "The tuned number of a setting is the row with the highest validation accuracy, which stands here in place of "
        "the accuracy on test examples. The text says that at most 10 branches are needed, and fewer on CIFAR-100.",
    ),
    "pfedmb:fig3": _figure(
        "Fig. 3",
        "branch weights of 10 clients in pairs, with and without weighted averaging",
        {"pFedMB": FIVE, "pFedMB, plain averaging": PLAIN},
        (replace(PAIRS, is_lost=False, column="drawn"),),
        "The report shows each client's branch weights. The text says that with weighted averaging the clients of a "
        "pair have almost the same weights, and different pairs focus on different branches.",
        draws=True,
    ),
    "pfedmb:fig4": _figure(
        "Fig. 4",
        "accuracy after each round, 10 clients in pairs",
        PAIRED,
        (FIGURE_4,),
        "The report shows the curves. The text says that with weighted averaging pFedMB converges clearly faster.",
    ),
    "pfedmb:fig5": _figure(
        "Fig. 5",
        "accuracy against the number of branches",
        _branches(2, 5, 10, 15, 20),
        (FIGURE_5,),
        "The text says that accuracy rises with the number of branches up to 10, and falls then.",
    ),
}
