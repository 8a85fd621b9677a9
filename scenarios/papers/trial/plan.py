"""The runs of one part of a trial. All parts share a folder, in which a run is named by variant, skew and seed.

A variant that the scenario does not allow is left out with the reason; a mistake of the user's is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edge.protocol.spelling import nearest
from scenarios.config.errors import COMMAND_LINE
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.config.overrides import parse, parse_all
from scenarios.experiment.compare import check_options, check_settings
from scenarios.experiment.run_set import PlannedRun, RunSet
from scenarios.experiment.variant import Variant
from scenarios.papers.trial.variants import PARTS, TrialPart, reference_of, skew_name

KIND = "trial"
TARGETS = "0.25,0.3,0.35,0.4"


@dataclass(frozen=True)
class TrialCell:
    """One variant on one skew: a run per seed."""

    variant: Variant
    skew: str
    partition: tuple[str, ...] = ()
    """Overrides of the scenario's partition."""

    @property
    def name(self) -> str:
        """Of its runs' folders, without the seed."""
        return f"{self.skew}-{self.variant.name}"

    @property
    def reference(self) -> str:
        """The name of the cell of FedAvg that it is compared with."""
        return f"{self.skew}-{reference_of(self.variant).name}"

    def run_name(self, seed: int) -> str:
        """The name of a run's folder."""
        return f"{self.name}-seed{seed}"


@dataclass(frozen=True)
class TrialChoice:
    """What the user asked for."""

    scenario: str
    overrides: Sequence[str] = ()
    part: str = "details"
    seeds: int = 3
    first_seed: int | None = None
    target: float | None = None
    targets: str = TARGETS
    only: str | None = None
    run_id: str | None = KIND


@dataclass(frozen=True)
class TrialPlan:
    """One part of a trial: its cells, and the runs that they need."""

    name: str
    part: TrialPart
    cells: Sequence[TrialCell]
    seeds: Sequence[int]
    targets: Sequence[float]
    """Accuracies, the smallest first."""
    target: float
    """The one that figures show."""
    left_out: Mapping[str, str]
    """Variant or skew -> why this scenario does not have it."""
    run_set: RunSet


def plan(choice: TrialChoice) -> TrialPlan:
    """The runs of a part, seed by seed; ScenarioError for a user's mistake, and if no variant is left."""
    if choice.part not in PARTS:
        raise ScenarioError(f"--part {choice.part!r}: {nearest(choice.part, PARTS)}")
    if any(parse(override)[0] == "method" for override in choice.overrides):
        raise ScenarioError(
            "method: those of a trial are named by its part; --only chooses from them", source=COMMAND_LINE
        )
    part, base = PARTS[choice.part], check_settings(choice.scenario, choice.overrides)
    part.check(
        load(choice.scenario, parse_all(choice.overrides), "fedbr")
    )  # refuses values of options that FedBR does not take
    targets, target = _targets(choice, base)
    first = base.scenario.seed if choice.first_seed is None else choice.first_seed
    seeds = range(first, first + choice.seeds)
    cells, left_out = _cells(choice, part, base)
    check_options(choice.overrides, [cell.variant.method for cell in cells])
    runs = [
        PlannedRun(cell.run_name(seed), replace(_loaded(choice, cell, seed), name=base.name), {})
        for seed in seeds
        for cell in cells
    ]
    run_set = RunSet(KIND, base.name, runs, choice.run_id)
    return TrialPlan(choice.part, part, cells, seeds, targets, target, left_out, run_set)


def _targets(choice: TrialChoice, base: Loaded) -> tuple[list[float], float]:
    """(all targets, the one of the figures): ``--target``, else the scenario's, else the middle of the list."""
    targets = sorted({_accuracy("--targets", piece) for piece in choice.targets.split(",")})
    if choice.target is not None and not 0 < choice.target <= 1:
        raise ScenarioError(f"--target {choice.target:g}: must be an accuracy above 0, at most 1")
    target = choice.target or base.scenario.stop.target_accuracy or targets[len(targets) // 2]
    return sorted({*targets, target}), target


def _accuracy(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ScenarioError(f"{option} {text.strip()!r}: write accuracies above 0, at most 1, such as {TARGETS}")
    return value


def _cells(choice: TrialChoice, part: TrialPart, base: Loaded) -> tuple[list[TrialCell], dict[str, str]]:
    """Everything asked for that the scenario allows; and the variants and skews left out, with reasons."""
    left_out: dict[str, str] = {}
    skews = _skews(choice, part, left_out)
    variants = {variant.name: variant for variant in part.variants(base)}
    only = _asked(choice.only, [*variants, *skews])
    cells: list[TrialCell] = []
    for skew in [skew for skew in skews if skew in only] or skews:
        seen: dict[str, str] = {}
        for name in [name for name in variants if name in only] or variants:
            cell = TrialCell(variants[name], skew, skews[skew])
            try:
                _refuse_same(seen, name, _loaded(choice, cell, base.scenario.seed))
            except ScenarioError as error:
                left_out.setdefault(name, _reason(error))
            else:
                cells.append(cell)
    if not cells:
        raise ScenarioError(f"--part {choice.part}: no variant is left: {'; '.join(dict.fromkeys(left_out.values()))}")
    return cells, left_out


def _skews(choice: TrialChoice, part: TrialPart, left_out: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Name -> overrides; invalid skews go into ``left_out``."""
    skews: dict[str, tuple[str, ...]] = {}
    settings = [override for override in choice.overrides if not override.startswith("method_options")]
    for overrides in part.skews:
        try:
            loaded = load(choice.scenario, parse_all([*settings, *overrides]))
        except ScenarioError as error:
            left_out[" ".join(overrides)] = _reason(error)
        else:
            skews.setdefault(skew_name(loaded.scenario.data.partition), overrides)
    return skews


def _reason(error: ScenarioError) -> str:
    """Without its source: the user wrote nothing of it."""
    return error.why.removeprefix("--methods: ")


def _asked(only: str | None, known: Sequence[str]) -> set[str]:
    wanted = {piece.strip() for piece in only.split(",")} if only is not None else set()
    for name in wanted:
        if name not in known:
            raise ScenarioError(f"--only: no variant {name!r}: {nearest(name, known)}")
    return wanted


def _loaded(choice: TrialChoice, cell: TrialCell, seed: int) -> Loaded:
    """The scenario of one run. ScenarioError for a detail that it does not allow."""
    variant = cell.variant
    overrides = [*choice.overrides, *cell.partition, *variant.overrides, f"seed={seed}"]
    loaded = load(choice.scenario, parse_all(overrides), variant.method)
    check_options(variant.overrides, [variant.method])  # those that no method has are dropped in silence
    return loaded


def _refuse_same(seen: dict[str, str], name: str, loaded: Loaded) -> None:
    """ScenarioError for a variant that names the values that an earlier one has without naming them."""
    key = repr(loaded.scenario.model_dump())
    if key in seen:
        raise ScenarioError(f"the same runs as {seen[key]}")
    seen[key] = name
