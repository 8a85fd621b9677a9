"""What each part of a trial compares: methods, FedBR's open details one at a time, and skews of the data.

Plain data. A variant that a scenario does not allow is no error here: `scenarios.papers.trial.trial` leaves it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from edge.protocol.config import PartitionConfig
from scenarios.config.errors import ScenarioError
from scenarios.config.load import Loaded
from scenarios.experiment.experiment import ExperimentRow
from scenarios.experiment.grid import row_of, row_of_words

CALIBRATED = "+calibrated"
OPTION = "method_options."
NORM = "model.norm"
NORMS = tuple(f"{NORM}={norm}" for norm in ("none", "batch", "group"))
FIXED_ALPHA = 2
"""The fixed alpha of the map, whose runs can be re-timed."""
SERVER_FACTORS = (1 / 16, 1 / 4, 4.0)
"""On the server's bandwidth, for runs of GMBS that are trained anew."""


@dataclass(frozen=True)
class TrialPart:
    """One part: every variant on every skew, once per seed."""

    title: str
    question: str
    variants: Callable[[Loaded], tuple[ExperimentRow, ...]]
    """From the scenario with the user's overrides."""
    skews: tuple[tuple[str, ...], ...] = ((),)
    """Overrides of the partition; none: the scenario's own."""
    curves: tuple[str, ...] | None = ("fedavg", "fedprox", "fedmlb", "fedbr", "fedbr-preset-tuned")
    """Variants whose curves are drawn, with their calibrated forms; None: all."""
    check: Callable[[Loaded], None] = lambda base: None
    """ScenarioError for a scenario, with the method fedbr, that the part has no answer for."""


def of(method: str, *options: str) -> ExperimentRow:
    """A method with options of its own, or with other keys, which have a dot."""
    return row_of_words(method, (each if "." in each.partition("=")[0] else f"{OPTION}{each}" for each in options))


def calibrated_form(row: ExperimentRow) -> ExperimentRow:
    """The same with calibrated logits."""
    return row_of(f"{row.method}{CALIBRATED}", row.settings)


def alphas(blocks: int) -> tuple[ExperimentRow, ...]:
    """FedBR with each fixed alpha of a model with so many blocks."""
    return tuple(of("fedbr", f"alpha={alpha}") for alpha in range(1, blocks))


def details(base: Loaded) -> tuple[ExperimentRow, ...]:
    """FedBR's open details one at a time, beside the methods that it is compared with."""
    return (
        of("fedavg"),
        *(of("fedavg", norm) for norm in NORMS),
        of("fedprox"),
        of("fedmlb"),
        of("fedbr"),
        of("fedbr", "hybrid_ce=false"),
        of("fedbr", "detach=true"),
        of("fedbr", "hybrid_ce=false", "detach=true"),
        of("fedbr", "lambda1=0", "lambda2=0"),
        *(of("fedbr", norm) for norm in NORMS),
        of("fedbr", "alpha=random"),
        *alphas(base.blocks),
        of("fedbr", "stale_after=2"),
        of("fedbr", "broadcast=everyone"),
        of("fedbr", f"model.blocks=balanced:{max(2, min(3, base.model.units))}"),
        of("fedbr", "period=1"),
        of("fedbr", "period=7"),
        of("fedbr", "preset=tuned"),
    )


def calibrated(base: Loaded) -> tuple[ExperimentRow, ...]:
    """The same list with calibrated logits."""
    return tuple(map(calibrated_form, details(base)))


def skewed(base: Loaded) -> tuple[ExperimentRow, ...]:
    """Few variants, for several skews, each with and without calibration."""
    plain = (of("fedavg"), of("fedmlb"), of("fedbr"), of("fedbr", "preset=tuned"))
    return tuple(form for row in plain for form in (row, calibrated_form(row)))


def bandit(base: Loaded) -> tuple[ExperimentRow, ...]:
    """GMBS, and what it has to beat."""
    return (of("fedbr"), of("fedbr", "alpha=random"), *alphas(base.blocks))


def mapped(base: Loaded) -> tuple[ExperimentRow, ...]:
    """FedAvg and FedBR with a fixed alpha, also calibrated, all re-timed; and GMBS at several server bandwidths."""
    server = base.scenario.fleet.server
    has_limit = min(server.down, server.up) < math.inf
    trained = (of("fedbr", server_at(base, factor)) for factor in SERVER_FACTORS if has_limit)
    retimed = (of("fedavg"), of("fedbr", f"alpha={FIXED_ALPHA}"), of("fedbr", "preset=tuned"))
    return (*retimed, *map(calibrated_form, retimed), of("fedbr"), *trained)


def server_at(base: Loaded, factor: float) -> str:
    """The override for a server's link of so many times its rates."""
    return f"fleet.scale.server={factor * base.scenario.fleet.scale.server:g}"


def check_bandit(loaded: Loaded) -> None:
    """ScenarioError for a scenario in which ``fedbr`` is not GMBS."""
    alpha = loaded.scenario.method_options["alpha"]
    if alpha != "gmbs":
        raise ScenarioError(f"method_options.alpha = {alpha!r}: the part chooses alpha for its variants; leave it out")


def check_map(loaded: Loaded) -> None:
    """ScenarioError for a scenario in which ``fedbr`` is not GMBS, or whose runs cannot be re-timed."""
    check_bandit(loaded)
    rounds = loaded.scenario.rounds
    reasons = {
        f"rounds.policy = {rounds.policy}: the order of its updates depends on times": rounds.is_asynchronous,
        "eval.charged = true: the clients that are evaluated depend on times": loaded.scenario.eval.charged,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ScenarioError(f"{reason}; the map needs the policy sync")


SKEWS = (
    *(("data.partition.kind=epsilon", f"data.partition.epsilon={epsilon}") for epsilon in (0, 3, 5, 7)),
    ("data.partition.kind=dirichlet", "data.partition.alpha=0.3"),
)
PARTS = {
    "details": TrialPart(
        "FedBR's open details, one at a time",
        "Which of the details that its paper leaves open decide whether FedBR learns?",
        details,
    ),
    "calibrated": TrialPart(
        "FedBR's open details with calibrated logits",
        "Does calibration by the clients' class shares let frozen blocks help?",
        calibrated,
    ),
    "skew": TrialPart(
        "Methods at several skews of the data",
        "At which skew does a method learn, and what does it cost to reach a target?",
        skewed,
        SKEWS,
    ),
    "bandit": TrialPart(
        "GMBS against fixed and random alpha",
        "Is the bandit worth it, at equal bytes and at equal virtual time?",
        bandit,
        curves=None,
        check=check_bandit,
    ),
    "map": TrialPart(
        "When FedBR pays",
        "At which speeds of links and devices does FedBR reach a target before FedAvg?",
        mapped,
        check=check_map,
    ),
}


def reference_of(row: ExperimentRow) -> ExperimentRow:
    """The FedAvg that a variant is compared with: of the same norm, and with calibration where the variant has it."""
    plain = row_of("fedavg", {key: value for key, value in row.settings.items() if key == NORM})
    return calibrated_form(plain) if row.method.endswith(CALIBRATED) else plain


def skew_name(partition: PartitionConfig) -> str:
    """For names of folders: ``eps7``, ``dir0.3``, ``iid``."""
    if partition.kind == "epsilon":
        return f"eps{partition.epsilon}"
    return f"dir{partition.alpha:g}" if partition.kind == "dirichlet" else partition.kind.replace(":", ".")
