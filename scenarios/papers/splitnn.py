"""Split learning and federated learning of one network on an ECG, counted in bytes, and a split decoder's of a testbed.

Y. Gao, M. Kim, S. Abuadbba, Y. Kim, C. Thapa, K. Kim, S. A. Camtepe, H. Kim and S. Nepal, End-to-End Evaluation of
Federated Learning and Split Learning for Internet of Things, SRDS 2020, https://arxiv.org/abs/2003.13376, and the
outputs in its repository: a 1D CNN whose first layer gives 16 channels of 65 places, 6,622 examples a client, batches
of 32, one epoch; 55,989 weights in all. EdgeFlowerTune's split decoder: ten steps of 8 x 64 tokens of width 640. Bytes
follow from shapes, as those of every run with ``split.after`` do; what is trained beside them are the digits.
"""

from __future__ import annotations

import math
from functools import partial

from edge.protocol.payload import ITEM_NBYTES
from scenarios.papers.published import MODEL_UPLOAD, SPLIT_DOWN, SPLIT_UP, TABLE_AMOUNTS
from scenarios.papers.spec import SCALES, PaperFigure, PaperPanel, PaperRow, TablePart, setting_of

SOURCE = "Gao et al., SRDS 2020, outputs in its repository; Edge-Intelligence-Lab, EdgeFlowerTune, docs/original, 2026"
EXAMPLES, CHANNELS, PLACES = 6_622, 16, 65
WEIGHTS = 55_989
STEPS, BATCH, TOKENS, WIDTH = 10, 8, 64, 640
ECG, FEDERATED, DECODER = "ECG, split", "ECG, federated", "decoder, frozen front"
ROWS = {
    ECG: PaperRow("fedavg", {"split.after": "conv1"}, note="one epoch of a client"),
    FEDERATED: PaperRow("fedavg", {}, note="a message, in either direction"),
    DECODER: PaperRow("fedavg", {}, note="ten steps; the front does not learn, and no gradient comes down"),
}
DIGITS = TablePart({"stop.target_accuracy": 1.0}, "digits-cnn on the digits, for a round, in place of the ECG")
COUNTED = {
    SPLIT_UP: {ECG: 27_730_677.0, DECODER: 13_353_000.0},
    SPLIT_DOWN: {ECG: 27_636_500.0},
    MODEL_UPLOAD: {FEDERATED: 228_175.0},
}
"""Measure -> row -> bytes that were counted there"""


def exchanged(examples: int, numbers: int) -> int:
    """Bytes of the outputs of a front with so many numbers an example, and of their gradients, in one direction."""
    return ITEM_NBYTES * examples * numbers


def counted(measure: str, of: PaperRow) -> float:
    """An amount of a row of the table; NaN where the row has none."""
    row = next(name for name, each in ROWS.items() if each is of)
    if (row == FEDERATED) != (measure == MODEL_UPLOAD):
        return math.nan
    if measure == MODEL_UPLOAD:
        return float(ITEM_NBYTES * WEIGHTS)
    if row == DECODER:
        return float(exchanged(STEPS * BATCH * TOKENS, WIDTH)) if measure == SPLIT_UP else 0.0
    return float(exchanged(EXAMPLES, CHANNELS * PLACES))


def _panel(measure: str) -> PaperPanel:
    column = TABLE_AMOUNTS[measure].column
    counts = partial(counted, measure)
    return PaperPanel(column, "one visit", "counted", measure, 1.0, COUNTED[measure], column=column, counts=counts)


NOTES = (
    "What was counted beyond that: labels, 52,976 B of the ECG's, and some 430 to 630 B a message; a header of 4 kB of "
    "the model.",
    "One split epoch takes as many bytes up as 123 models, or 246 with what comes down.",
)
FIGURES = {
    "splitnn": PaperFigure(
        "Split and federated learning of an ECG, and a split decoder: bytes",
        SOURCE,
        ROWS,
        {"counted": {scale: setting_of("digits", [DIGITS], {}) for scale in SCALES}},
        tuple(map(_panel, (SPLIT_UP, SPLIT_DOWN, MODEL_UPLOAD))),
        NOTES,
        is_table=True,
    )
}
