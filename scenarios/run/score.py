"""The metric by which a run is judged: its name, its better direction, and how its values are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge.protocol.better import HIGHER, LOWER, Better
from edge.protocol.config import ACCURACY, TrainConfig
from edge.protocol.losses import CROSS_ENTROPY, LOSSES
from edge.training.metrics.registry import METRICS, metric_row

ACRONYMS = ("rmse", "mae", "mase", "auroc", "f1", "r2")


def sentence(text: str) -> str:
    """A text as sentences and headings begin: "RMSE of clients", "Accuracy of clients"."""
    word = re.match(r"\w*", text)
    first = "" if word is None else word[0]
    return first.upper() + text[len(first) :] if first in ACRONYMS else text[:1].upper() + text[1:]


@dataclass(frozen=True)
class RunScore:
    """The metric of a run's target, best round and patience."""

    metric: str = ACCURACY
    better: Better = HIGHER
    is_share: bool = True
    """Whether values are shares, which are written as percentages; else they are in the metric's units"""

    @property
    def title(self) -> str:
        """At the beginning of a sentence: "Accuracy", or "RMSE"."""
        return sentence(self.metric)

    @property
    def over_clients(self) -> str:
        """How the score of clients' models is made of theirs, in words."""
        return "mean over clients" if self == OF_ACCURACY else "pooled over clients"

    @property
    def record(self) -> dict[str, object]:
        """For JSON: its name; of one that does not ship, its direction, too."""
        is_known = self == named_score(self.metric)
        return {"metric": self.metric} | ({} if is_known else {"better": str(self.better), "is_share": self.is_share})

    def named(self, figures: Mapping[str, object]) -> dict[str, object]:
        """Figures by their keys in results: of accuracies ``clients_score`` is ``clients_accuracy``."""
        if self != OF_ACCURACY:
            return dict(figures)
        return {key.replace("_score", f"_{ACCURACY}"): value for key, value in figures.items()}

    def text(self, value: float) -> str:
        """A value: "81.94 %", or "3.912"."""
        return f"{100 * value:.2f} %" if self.is_share else f"{value:.4g}"

    def text_of_target(self, target: float) -> str:
        """A target, as it was given: "90 %", or "rmse 4"."""
        return f"{100 * target:g} %" if self == OF_ACCURACY else self.words_of_target(target)

    def words_of_target(self, target: float) -> str:
        """The same with its metric: "accuracy 90 %"."""
        return f"{self.metric} {100 * target:g} %" if self.is_share else f"{self.metric} {target:g}"


OF_ACCURACY = RunScore()


def score_of(train: TrainConfig) -> RunScore:
    """That of runs with this loss."""
    row = metric_row(train.score)
    return RunScore(row.name, Better(row.better), row.is_share)


def score_in(recorded: Mapping[str, object]) -> RunScore:
    """That of a result, as `RunScore.record` gives it; of accuracies, it may be left out."""
    metric = str(recorded.get("metric", ACCURACY))
    if "better" not in recorded:
        return named_score(metric)
    return RunScore(metric, Better(str(recorded["better"])), bool(recorded.get("is_share")))


def named_score(metric: str) -> RunScore:
    """That of a recorded metric; of one that does not ship, its name alone."""
    row = METRICS.get(metric)
    return RunScore(metric, LOWER, False) if row is None else RunScore(row.name, Better(row.better), row.is_share)


def recorded_score(scenario: Mapping[str, Any]) -> RunScore | None:
    """That of a recorded run, from the tables of its scenario, which execute no code; None for a loss of a user's own,
    of which the environment says it."""
    loss = str((scenario.get("train") or {}).get("loss", CROSS_ENTROPY))
    return named_score(LOSSES[loss].score) if loss in LOSSES else None
