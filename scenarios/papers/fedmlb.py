"""Tables 1 to 11 of FedMLB: the runs for each row and setting, and the settings that the paper leaves open.

Kim, Kim and Han, Multi-Level Branched Regularization for Federated Learning, ICML 2022. The printed values are in
``fedmlb.csv``; panels are made of them, so that a table has the cells that the paper prints and no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from scenarios.config.overrides import KeyValues
from scenarios.papers.published import panels, printed
from scenarios.papers.spec import (
    ACCURACY_AT,
    PAPER,
    SCALES,
    SMALL,
    TINY,
    PaperFigure,
    PaperLimit,
    PaperPanel,
    PaperRow,
    PaperSetting,
    Smoothing,
    TablePart,
    setting_of,
)

SOURCE = "Kim, Kim and Han, Multi-Level Branched Regularization for Federated Learning, ICML 2022"
CIFAR, IMAGENET = "CIFAR-100", "Tiny-ImageNet"
PAPER_ROUNDS = 1000


def _model(paper: str, small: int, tiny: int) -> dict[str, TablePart]:
    named = {"model.name": paper}
    narrow = {SMALL: small, TINY: tiny}
    words = {
        scale: TablePart({**named, "model.width": width}, f"{paper} of width {width}")
        for scale, width in narrow.items()
    }
    return {PAPER: TablePart(named), **words}


def _steps(paper: int, small: int, tiny: int) -> dict[str, TablePart]:
    """K; 50 at the paper's scale are the scenarios' own 5 epochs of 10 batches."""
    inferred = f"{paper} local steps are {paper // 10} epochs of the same batch, which the text leaves open"
    changed = {
        scale: TablePart({"train.local_steps": steps}, f"{steps} local steps in place of {paper}")
        for scale, steps in {SMALL: small, TINY: tiny}.items()
    }
    return {
        PAPER: TablePart({"train.local_epochs": paper // 10}, inferred=inferred if paper > 50 else ""),
        **changed,
    }


# --- settings ---------------------------------------------------------------------------------------------------------
# "CIFAR-100", "Dir(0.3) 100 clients 5% K=100": a data set, a partition, a fleet, and what is not K=50 on ResNet-18.

FILES = {CIFAR: "fedmlb-cifar100", IMAGENET: "fedmlb-tinyimagenet"}
ROUNDS = {(SMALL, CIFAR): 150, (SMALL, IMAGENET): 80, (TINY, CIFAR): 30, (TINY, IMAGENET): 30}
"""Rounds in place of the paper's 1000."""
TARGETS = {
    (SMALL, CIFAR): (0.05, 0.1),
    (SMALL, IMAGENET): (0.02, 0.04),
    (TINY, CIFAR): (0.4, 0.7),
    (TINY, IMAGENET): (0.4, 0.7),
}
"""Targets in place of a setting's lower and higher target accuracy."""
PIECES: Mapping[str, Mapping[str, TablePart]] = {
    CIFAR: {
        PAPER: TablePart(),
        SMALL: TablePart({"eval.subset": 2000}, "scored on 2,000 test images"),
        TINY: TablePart({"data.name": "digits"}, "digits (8x8, 10 classes) in place of CIFAR-100"),
    },
    IMAGENET: {
        PAPER: TablePart(),
        SMALL: TablePart({"eval.subset": 2000}, "scored on 2,000 test images"),
        TINY: TablePart({"data.name": "digits"}, "digits (8x8, 10 classes) in place of Tiny-ImageNet"),
    },
    "Dir(0.3)": dict.fromkeys(SCALES, TablePart({"data.partition.alpha": 0.3})),
    "Dir(0.6)": dict.fromkeys(SCALES, TablePart({"data.partition.alpha": 0.6})),
    "IID": dict.fromkeys(SCALES, TablePart({"data.partition.kind": "iid"})),
    "100 clients": {
        PAPER: TablePart(),
        SMALL: TablePart({"train.batch": 20}, "batch 20"),
        TINY: TablePart({"data.clients": 20, "train.batch": 16}, "5 of 20 clients a round, batch 16"),
    },
    "500 clients": {
        PAPER: TablePart({"data.clients": 500, "rounds.participants": 10}),
        SMALL: TablePart({"data.clients": 500, "rounds.participants": 10, "train.batch": 20}, "batch 20"),
        TINY: TablePart(
            {"data.clients": 100, "rounds.participants": 10, "train.batch": 7}, "10 of 100 clients a round, batch 7"
        ),
    },
    f"500 clients of {CIFAR}": {PAPER: TablePart({"train.batch": 10})},
    f"500 clients of {IMAGENET}": {PAPER: TablePart({"train.batch": 20})},
    "K=50": _steps(50, 20, 10),
    "K=100": _steps(100, 40, 20),
    "K=200": _steps(200, 80, 40),
    "ResNet-18": _model("resnet18", 16, 8),
    "VGG-9": _model("vgg9", 16, 8),
    "MobileNet": _model("mobilenetv2", 16, 8),
    "ShuffleNet": _model("shufflenet", 12, 12),
    "SqueezeNet": _model("squeezenet", 48, 24),
}


def _setting(mine: Sequence[PaperPanel], scale: str) -> PaperSetting:
    """The scenario for the setting of these panels at one scale."""
    dataset, _, setting = mine[0].title.partition(", ")
    partition, count, _, _, *rest = setting.split()
    steps = next((word for word in rest if word.startswith("K=")), "K=50")
    model = next((word for word in rest if not word.startswith("K=")), "ResNet-18")
    words = (dataset, partition, f"{count} clients", f"{count} clients of {dataset}", steps, model)
    pieces = [PIECES.get(word, {}).get(scale, TablePart()) for word in words]
    limits: dict[str, PaperLimit] = {}
    if scale != PAPER:
        rounds = ROUNDS[scale, dataset]
        pieces.append(TablePart({"rounds.max": rounds}, f"{rounds} rounds in place of {PAPER_ROUNDS}"))
        to = sorted((panel for panel in mine if panel.measure not in ACCURACY_AT), key=lambda panel: panel.limit)
        limits = {panel.name: PaperLimit(panel.limit * rounds / PAPER_ROUNDS, "") for panel in mine if panel not in to}
        for panel, target in zip(to, TARGETS[scale, dataset], strict=False):
            limits[panel.name] = PaperLimit(target, "a target chosen for so few rounds")
    # Where the data set is another, that of the file is too, so that settings that are made alike share their runs.
    return setting_of(FILES[CIFAR if scale == TINY else dataset], pieces, limits)


# --- rows -------------------------------------------------------------------------------------------------------------

FEDAVG, FEDMLB = PaperRow("fedavg"), PaperRow("fedmlb")
BETA = "which beta of 0.4, 0.6 and 0.8 was used is not printed"
ADAM = "beta1, beta2 and v_0 are not printed"
ADAM_IS: KeyValues = {"server": "fedadam", "train.lr": 0.01}
SERVERS = {
    "FedAvg": FEDAVG,
    "FedMLB": FEDMLB,
    "FedAvgM": PaperRow("fedavg", {"server": "fedavgm"}, note=BETA),
    "FedAvgM+FedMLB": PaperRow("fedmlb", {"server": "fedavgm"}, note=BETA),
    "FedADAM": PaperRow("fedavg", ADAM_IS, note=ADAM),
    "FedADAM+FedMLB": PaperRow("fedmlb", ADAM_IS, note=ADAM),
    "FedDyn": PaperRow("feddyn"),
    "FedDyn+FedMLB": PaperRow("fedmlb+feddyn"),
}
FEDNTD = PaperRow("fedntd", note="weights and temperature are not printed")
FEDGKD = PaperRow("fedgkd", note="how many models the teacher is the mean of, and its temperature, are not printed")
LOCAL = {
    "FedAvg": FEDAVG,
    "FedAvg+KD": PaperRow("fedavg-kd", note="weight and temperature are not printed"),
    "FedAvg+FitNet": PaperRow("fedavg-fitnet", note="weight and layers are not printed"),
    "FedProx": PaperRow("fedprox", note="which mu of 0.1, 0.01 and 0.001 was used is not printed"),
    "FedLS-NTD": FEDNTD,
    "FedGKD": FEDGKD,
    "FedMLB": FEDMLB,
}
ORDERS = {
    "FedAvg": FEDAVG,
    "FedMLB_GL": PaperRow("fedmlb", {"method_options.order": "GL"}),
    "FedMLB_LG": PaperRow("fedmlb", {"method_options.order": "LG"}),
}
# As in the published code, all five pathways are what the losses are divided by, however few are used.
DIVIDED = {"method_options.norm": "all"}
DIVIDED_NOTE = "that the losses of some pathways are divided by five, as in the published code, is inferred"


def _paths(number: int) -> PaperRow:
    chosen = list(range(1, number + 1))
    note = f"{DIVIDED_NOTE}; that its pathways are {chosen} too, since the table's marks are lost"
    return PaperRow("fedmlb", {**DIVIDED, "method_options.pathways": chosen}, note=note if number < 5 else "")


MARKED = {f"row {row}": _paths(6 - row) for row in range(1, 6)}
LOST = {f"row {row}": PaperRow("", note="setting unknown: the table's marks are lost") for row in range(6, 10)}
COUNTED = {
    f"{number} pathway{'s' if number > 1 else ''}": PaperRow(
        "fedmlb",
        DIVIDED,
        tuple({"method_options.pathways": list(chosen)} for chosen in combinations(range(1, 6), number)),
        note=DIVIDED_NOTE if number < 5 else "",
    )
    for number in range(1, 6)
}
WEIGHTED = {
    f"lambda1={first} lambda2={second}": PaperRow(
        "fedmlb", {"method_options.lambda1": first, "method_options.lambda2": second}
    )
    for first in range(4)
    for second in range(4)
}
TEMPERED = {f"tau={t}": PaperRow("fedmlb", {"method_options.temperature": t}) for t in (0.75, 1, 1.5, 2, 3, 5)}
BACKBONES = {"FedAvg": FEDAVG, "FedLS-NTD": FEDNTD, "FedGKD": FEDGKD, "FedMLB": FEDMLB}

# --- tables -----------------------------------------------------------------------------------------------------------

NOTES = (
    "Not printed in the paper: how the moving average begins (here corrected for its bias; --ema first begins with the "
    "first accuracy), how many seeds (the published code has one), the stem and the groups of ResNet-18 (3x3 without "
    "pooling, 2 groups), the norm that gradients are clipped to (10).",
)
TABLES: Mapping[str, tuple[str, Mapping[str, PaperRow], tuple[str, ...]]] = {
    "1a": ("server-side methods with and without FedMLB, 100 clients, Dir(0.3)", SERVERS, ()),
    "1b": ("server-side methods with and without FedMLB, 500 clients, Dir(0.3)", SERVERS, ()),
    "2": ("FedMLB and other local objectives", LOCAL, ()),
    "3": ("more local iterations, K = 100 and 200", LOCAL, ()),
    "4": ("pathways from global to local blocks, and from local to global ones", ORDERS, ()),
    "5": ("which pathways are used", MARKED | LOST, ()),
    "6": (
        "how many pathways are used",
        COUNTED,
        ("Mean and sample deviation over all subsets of so many pathways; which deviation the paper has is not said.",),
    ),
    "7": (
        "weights of the two losses of the pathways",
        WEIGHTED,
        ("That the table's rows are lambda1 and its columns lambda2 is inferred from the order of its heading.",),
    ),
    "8": ("temperature of the divergence", TEMPERED, ()),
    "9": (
        "other backbones",
        BACKBONES,
        ("The networks are those of the authors' later code; that they are the table's is inferred.",),
    ),
    "10a": ("server-side methods with and without FedMLB, 100 clients, Dir(0.6)", SERVERS, ()),
    "10b": ("server-side methods with and without FedMLB, 500 clients, Dir(0.6)", SERVERS, ()),
    "11a": ("server-side methods with and without FedMLB, 100 clients, IID", SERVERS, ()),
    "11b": ("server-side methods with and without FedMLB, 500 clients, IID", SERVERS, ()),
}


def _figure(table: str, title: str, rows: Mapping[str, PaperRow], notes: tuple[str, ...]) -> PaperFigure:
    printed_panels = tuple(panels(printed("fedmlb", table)))
    keys = dict.fromkeys(panel.setting for panel in printed_panels)
    settings = {
        key: {scale: _setting([panel for panel in printed_panels if panel.setting == key], scale) for scale in SCALES}
        for key in keys
    }
    return PaperFigure(
        title=f"FedMLB, Table {table}: {title}",
        source=SOURCE,
        rows=rows,
        settings=settings,
        panels=printed_panels,
        notes=(*notes, *NOTES),
        smoothing=Smoothing(),
        is_table=True,
    )


FIGURES = {f"fedmlb:{table}": _figure(table, *row) for table, row in TABLES.items()}
