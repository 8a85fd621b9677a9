"""Figures 3 and 4 of FedBR, as far as its text prints them.

Zeng, Liu, Xu, Wang, Xu and Zhao, Enhanced Federated Learning with Adaptive Block-wise Regularization and Knowledge
Distillation, Section V. The curves and bars themselves are drawn, not printed: no value is read off a picture here.
"""

from __future__ import annotations

from scenarios.config.overrides import KeyValues
from scenarios.papers.spec import PAPER, SMALL, TINY, PaperFigure, PaperLimit, PaperPanel, PaperRow, PaperSetting

SOURCE = (
    "Zeng et al., Enhanced Federated Learning with Adaptive Block-wise Regularization and Knowledge Distillation, "
    "Section V (ResNet-18, epsilon = 7)"
)
ROWS = {
    "FedAvg": PaperRow("fedavg"),
    "FedProx": PaperRow("fedprox"),
    "FedMLB": PaperRow("fedmlb"),
    "FedBR": PaperRow("fedbr"),
}
AT_TIME, AT_BYTES, TIME_TO, BYTES_TO = "accuracy at time", "accuracy at bytes", "time to accuracy", "bytes to accuracy"
GB = 10**9

NOT_PRINTED = (
    "clients, cohort, local epochs, batch, learning rate, FedBR's period and blocks, devices and links are not printed "
    "in the paper; those of {} are used"
)
# 50 GB are 559 visits of two ResNet-18 of 44,734,248 B (with BatchNorm's statistics). The CNN has 248,376 B.
SMALL_BYTES = PaperLimit(50 * GB * 248_376 / 44_734_248, "50 GB in the ratio of the models' bytes")
SMALL_TIME = PaperLimit(36.0, "time for about as many rounds as 50 GB are")
# digits-cnn has 61,352 B; the set is learned in a tenth of the visits.
TINY_BYTES = PaperLimit(
    50 * GB * 61_352 / 44_734_248 / 10, "50 GB in the ratio of the models' bytes, for a tenth as many visits"
)
TINY_TIME = PaperLimit(4.0, "time for about a tenth as many rounds as 50 GB are")

SMALL_CHANGED = (
    "a CNN of five blocks with BatchNorm in place of ResNet-18; 20 clients, 10 a round, 20 local steps of batch 50; "
    "fleet of fedbr-cifar10"
)
TINY_CHANGED = "digits (8x8) and digits-cnn in place of {} and ResNet-18; 10 clients, 5 a round; fleet of digits"
TINY_CLASSES = "; of 10 classes 70 % of a client's images are of one, while of CIFAR-100's a client lacks 70"
TINY_OVERRIDES: KeyValues = {"data.partition.kind": "epsilon", "data.partition.epsilon": 7, "rounds.max": 80}


def _limits(nbytes: PaperLimit, seconds: PaperLimit, target: float, why: str) -> dict[str, PaperLimit]:
    goal = PaperLimit(target, why)
    return {AT_BYTES: nbytes, AT_TIME: seconds, TIME_TO: goal, BYTES_TO: goal}


EASIER, HARDER = "a higher target, since digits are easier", "a lower target, since the model is small"
SETTINGS = {
    "cifar10": {
        PAPER: PaperSetting("fedbr-cifar10", {"rounds.max": 500}, {}, "", NOT_PRINTED.format("fedbr-cifar10")),
        SMALL: PaperSetting(
            "fedbr-cifar10-cnn",
            {"rounds.max": 120},
            _limits(SMALL_BYTES, SMALL_TIME, 0.35, HARDER),
            SMALL_CHANGED,
        ),
        TINY: PaperSetting(
            "digits", TINY_OVERRIDES, _limits(TINY_BYTES, TINY_TIME, 0.9, EASIER), TINY_CHANGED.format("CIFAR-10")
        ),
    },
    "cifar100": {
        PAPER: PaperSetting("fedbr-cifar100", {"rounds.max": 500}, {}, "", NOT_PRINTED.format("fedbr-cifar100")),
        SMALL: PaperSetting(
            "fedbr-cifar10-cnn",
            {"data.name": "cifar100", "rounds.max": 120},
            _limits(SMALL_BYTES, SMALL_TIME, 0.08, HARDER),
            SMALL_CHANGED,
        ),
        TINY: PaperSetting(
            "digits",
            TINY_OVERRIDES,
            _limits(TINY_BYTES, TINY_TIME, 0.8, EASIER),
            TINY_CHANGED.format("CIFAR-100") + TINY_CLASSES,
        ),
    },
}

# "about", says the text of Section V of these eight.
AT_900_S = {"FedBR": 0.774, "FedAvg": 0.753, "FedProx": 0.741, "FedMLB": 0.740}
AT_50_GB = {"FedBR": 0.768, "FedAvg": 0.708, "FedProx": 0.703, "FedMLB": 0.723}
SECONDS_TO_HALF = {"FedBR": 954.0, "FedAvg": 1104.0, "FedProx": 1189.0, "FedMLB": 1245.0}
BYTES_TO_HALF = {"FedBR": 72.8 * GB, "FedAvg": 105.4 * GB, "FedProx": 100.4 * GB, "FedMLB": 93.7 * GB}

FIGURES = {
    "fedbr:fig3": PaperFigure(
        title="FedBR, Fig. 3: test accuracy at a budget of completion time or of bandwidth",
        source=SOURCE,
        rows=ROWS,
        settings=SETTINGS,
        panels=(
            PaperPanel("a", "test accuracy at 900 s, CIFAR-10", "cifar10", AT_TIME, 900.0, AT_900_S),
            PaperPanel("b", "test accuracy at 900 s, CIFAR-100", "cifar100", AT_TIME, 900.0, {}),
            PaperPanel("c", "test accuracy at 50 GB, CIFAR-10", "cifar10", AT_BYTES, 50.0 * GB, AT_50_GB),
            PaperPanel("d", "test accuracy at 50 GB, CIFAR-100", "cifar100", AT_BYTES, 50.0 * GB, {}),
        ),
        notes=(
            "The printed accuracies are introduced with 'about'.",
            "For CIFAR-100 the text prints neither accuracies nor budgets; CIFAR-10's budgets are used.",
            "The paper's 105.4 GB in 1,104 s (Fig. 4) are 1.1 visits of ResNet-18 a second. On the fleet of "
            "fedbr-cifar10 a round of ten visits takes some minutes, so that 900 s hold only a few rounds.",
        ),
    ),
    "fedbr:fig4": PaperFigure(
        title="FedBR, Fig. 4: completion time and bandwidth until a target accuracy",
        source=SOURCE,
        rows=ROWS,
        settings=SETTINGS,
        panels=(
            PaperPanel("left-cifar10", "time to 80 %, CIFAR-10", "cifar10", TIME_TO, 0.8, {}),
            PaperPanel("left-cifar100", "time to 50 %, CIFAR-100", "cifar100", TIME_TO, 0.5, SECONDS_TO_HALF),
            PaperPanel("right-cifar10", "bandwidth to 80 %, CIFAR-10", "cifar10", BYTES_TO, 0.8, {}),
            PaperPanel("right-cifar100", "bandwidth to 50 %, CIFAR-100", "cifar100", BYTES_TO, 0.5, BYTES_TO_HALF),
        ),
        notes=(
            "For CIFAR-10 the text prints no values.",
            "The text claims savings of time over FedAvg, FedProx and FedMLB of 14.6, 20 and 24 %; its seconds give "
            "13.6, 19.8 and 23.4 %. Those of bandwidth, 31, 27.5 and 22.3 %, agree with its bytes.",
            "How the paper counts FedBR's bytes is not printed; its Eq. 3 charges a block 1/M of the model, which is "
            "what stands under 'nominal'.",
        ),
    ),
}
