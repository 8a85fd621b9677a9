"""Table 2 of DAdaQuant: the runs for each row on Synthetic and FEMNIST, and what the paper leaves open.

Hönig, Zhao and Mullins, DAdaQuant: Doubly-adaptive quantization for communication-efficient Federated Learning, ICML
2022. The printed values are in ``dadaquant.csv``, where accuracies are sums: the paper prints those of compressed runs
as differences from the uncompressed. Uploads are the vectors alone, as the paper's 12.2 MB are: 610 weights of 4 bytes
of 10 clients in 500 rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scenarios.config.overrides import KeyValues
from scenarios.papers.published import FACTOR, HIGHEST, TABLE_AMOUNTS, UPLOADED_MESSAGES, panels, printed
from scenarios.papers.spec import (
    PAPER,
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
    "Hönig, Zhao and Mullins, DAdaQuant: Doubly-adaptive quantization for communication-efficient Federated Learning, "
    "ICML 2022"
)
SYNTHETIC, FEMNIST = "Synthetic", "FEMNIST"
ROUNDS = {PAPER: 500, SMALL: 100, TINY: 20}
"""Scale -> rounds"""

# --- settings ---------------------------------------------------------------------------------------------------------

OPEN = "20 local epochs are those of Li et al., MLSys 2020, whose settings the paper takes"
SPLIT = (
    "90 % of a client's examples are training examples, as published with the set, in which these are 45 to 5,953, the "
    "paper's samples per client; the paper says 80 %"
)
WRITERS = (
    "105 writers, 5 % of FEMNIST, in place of 3,500, and a CNN of other size in place of 6.6 million weights, whose "
    "uploads take 132.1 GB"
)


def _shorter(scale: str, epochs: int, every: int) -> TablePart:
    rounds = ROUNDS[scale]
    return TablePart(
        {"train.local_epochs": epochs, "rounds.max": rounds, "eval.every": every},
        f"{epochs} local epoch{'s' * (epochs > 1)} in place of 20, {rounds} rounds in place of {ROUNDS[PAPER]}",
    )


FEMNIST_AS_PAPER: KeyValues = {
    "method": "fedprox",
    "method_options.mu": 1,
    "rounds.participants": 10,
    "train.batch": 10,
    "train.lr": 0.003,
    "train.local_epochs": 20,
    "train.partial_work": 0.9,
    "rounds.max": ROUNDS[PAPER],
    "eval.every": 10,
    "stop.target_accuracy": 1,
}
FASTER = TablePart({"train.lr": 0.03}, "rate 0.03 in place of 0.003")
PARTS: Mapping[str, Mapping[str, tuple[TablePart, ...]]] = {
    SYNTHETIC: {
        PAPER: (),
        SMALL: (_shorter(SMALL, 5, 5),),
        TINY: (_shorter(TINY, 2, 2),),
    },
    FEMNIST: {
        PAPER: (),
        SMALL: (_shorter(SMALL, 2, 5), FASTER),
        TINY: (_shorter(TINY, 1, 5), FASTER),
    },
}
COMMON = {
    SYNTHETIC: ("fedprox-synthetic", TablePart(inferred=f"{OPEN}; {SPLIT}")),
    FEMNIST: ("femnist-writers", TablePart(FEMNIST_AS_PAPER, WRITERS, OPEN)),
}
"""Data set -> (scenario, its part at every scale)"""


def _setting(dataset: str, scale: str) -> PaperSetting:
    scenario, common = COMMON[dataset]
    limits = {panel.measure: PaperLimit(float(ROUNDS[scale]), "") for panel in _panels(dataset) if scale != PAPER}
    return setting_of(scenario, (common, *PARTS[dataset][scale]), limits)


# --- rows -------------------------------------------------------------------------------------------------------------

WHOLE = 1 << 30
"""A bucket that no block fills: one norm for each"""
ZSTD = "zstd in place of gzip"
LEVELS = {SYNTHETIC: 8, FEMNIST: 2}
"""Data set -> q, and q_max of DAdaQuant. The paper does not print it. Fixed point of 2q + 1 levels takes ⌈log2(2q + 1)⌉
of 32 bits; its factors are 6.4 = 32/5 and 11 = 32/3, and q was one of 1, 2, 4, 8, .."""


def _rows(dataset: str) -> dict[str, PaperRow]:
    q = LEVELS[dataset]
    quantize: KeyValues = {"kind": "quantize", "levels": q, "bucket": WHOLE, "norm": "l2"}
    note = f"q = {q} follows from the factor of fixed point; the norm is that of a block"

    def row(*then: str, by: tuple[str, ...] = (), more: str = "") -> PaperRow:
        stages = [quantize, *({"kind": kind} for kind in then)]
        levels = {f"codec.levels.{key}": True for key in by}
        notes = "; ".join(text for text in (note, more) if text)
        return PaperRow("fedprox", {"codec.up": stages, **levels}, note=notes)

    def adaptive(*by: str) -> PaperRow:
        return row(
            "elias",
            by=by,
            more="the loss of a round is that of local steps, and no pass over the received model",
        )

    return {
        "Uncompressed": PaperRow("fedprox"),
        "Federated QSGD": row("elias"),
        "FP8": PaperRow("", note="numbers of 8 bits with an exponent are no codec here"),
        "FedPAQ (FxPQ)": row(),
        "FxPQ + GZip": row("zstd", more=ZSTD),
        "UVeQFed": PaperRow("", note="vector quantisation is no codec here"),
        "DAdaQuant": adaptive("by_round", "by_client"),
        "DAdaQuant time": adaptive("by_round"),
        "DAdaQuant clients": adaptive("by_client"),
    }


# --- figures ----------------------------------------------------------------------------------------------------------

NOTES = (
    "The paper's values are the highest accuracies of three runs each, here of evaluations every 10 rounds; factors "
    "are of uploads of vectors, without headers of messages. The last column has the messages whole.",
    "A factor is that of the same uploads as float32 numbers, and follows from the run alone.",
)


def _panels(dataset: str) -> list[PaperPanel]:
    values = [value for value in printed("dadaquant", "2") if value.dataset == dataset]
    found = [
        replace(panel, setting=dataset.lower(), name=f"{dataset.lower()}@{name}")
        for panel in panels(values, ROUNDS[PAPER])
        for name in [panel.name.partition("@")[2]]
    ]
    order = [panel.measure for panel in found]
    factor = found[order.index(FACTOR)]
    messages = replace(
        factor,
        name=f"{dataset.lower()}@messages",
        measure=UPLOADED_MESSAGES,
        published={},
        column=TABLE_AMOUNTS[UPLOADED_MESSAGES].column,
    )
    assert order[0] == HIGHEST, order
    return [*found, messages]


def _figure(dataset: str) -> PaperFigure:
    key = dataset.lower()
    return PaperFigure(
        f"DAdaQuant, Table 2: accuracy and uploads on {dataset}",
        SOURCE,
        _rows(dataset),
        {key: {scale: _setting(dataset, scale) for scale in (TINY, SMALL, PAPER)}},
        tuple(_panels(dataset)),
        NOTES,
        is_table=True,
    )


FIGURES = {"dadaquant:2": _figure(SYNTHETIC), "dadaquant:2-femnist": _figure(FEMNIST)}
