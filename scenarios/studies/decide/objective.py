"""What a decision looks for: the cheapest way to a target score, or the best score within budgets.

These are the *cost to target* and the *quality under budget* of EdgeFlowerTune (arXiv 2605.08636). With both a target
and budgets, the target counts where it is reached within them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.rounds.amounts import BY_NAME, NOMINAL_BYTES, VIRTUAL_SECONDS
from costmodel import units
from edge.protocol.better import HIGHER, LOWER, Better
from edge.protocol.spelling import nearest
from scenarios.config.errors import Argument, ScenarioError
from scenarios.experiment.sweep import Target, target_of
from scenarios.run.progress import Limits, ProgressPoint, Trail
from scenarios.run.score import OF_ACCURACY, RunScore

BUDGET = 'bytes="2 GB"'
AMOUNTS = {name: amount for name, amount in BY_NAME.items() if amount is not NOMINAL_BYTES}
"""Those that decisions weigh: nobody pays for nominal bytes"""


@dataclass(frozen=True)
class Objective:
    """How runs are judged."""

    target: float | None
    """Score on validation examples; None: the best score within the budgets is sought"""
    cost: str
    """That is to be low, the name of an amount; without a target it is the axis of figures alone"""
    budgets: Mapping[str, float]
    """Name of an amount -> its limit in SI units"""
    score: RunScore = OF_ACCURACY
    """The metric by which runs are judged"""

    @property
    def limits(self) -> Limits:
        """The budgets by amount."""
        return {AMOUNTS[name]: limit for name, limit in self.budgets.items()}

    def kept(self, trail: Trail) -> Trail:
        """The rounds of a run until one exceeds a budget."""
        return trail.within(self.limits)

    def is_spent(self, trail: Trail) -> bool:
        """Whether a run has used up a budget."""
        return len(self.kept(trail)) < len(trail)

    def reached(self, trail: Trail) -> ProgressPoint | None:
        """The first round that reached the target within the budgets."""
        return trail.until(self.target, self.limits)

    def spent(self, point: ProgressPoint) -> float:
        """What a run has spent by the end of a round: of the cost, or without a target the share of its tightest
        budget."""
        if self.target is not None:
            return AMOUNTS[self.cost].spent(point)
        return max(AMOUNTS[name].spent(point) / limit for name, limit in self.budgets.items())

    def value(self, trail: Trail) -> float | None:
        """The cost until the target, None if that was not reached; or the last score within the budgets."""
        if self.target is not None:
            point = self.reached(trail)
            return None if point is None else self.spent(point)
        return self.kept(trail).final

    def is_better(self, one: float | None, other: float | None) -> bool:
        """Whether the first of two values is better; no value is the worst."""
        if one is None or other is None:
            return one is not None
        return self.better.prefers(one, other)

    @property
    def better(self) -> Better:
        """Of values: of the cost, or without a target of scores."""
        return LOWER if self.target is not None else self.score.better

    @property
    def text(self) -> str:
        """In words: ``lowest virtual time to 90 % within 5 MB bytes``."""
        budgets = ", ".join(f"{AMOUNTS[name].heading} {shown(name, limit)}" for name, limit in self.budgets.items())
        within = f" within {budgets}" if budgets else ""
        if self.target is None:
            best = "highest" if self.score.better is HIGHER else "lowest"
            return f"{best} {self.score.metric}{within}"
        return f"least {AMOUNTS[self.cost].heading} to {self.score.text_of_target(self.target)}{within}"


def shown(name: str, amount: float) -> str:
    """An amount with its unit."""
    from scenarios.report.columns import cells
    from scenarios.report.readings import quantity

    return cells(quantity(AMOUNTS[name]), [amount], missing="-")[0]


def objective_of(
    target: Target | None, cost: str | None, budgets: Mapping[str, units.Quantity], score: RunScore = OF_ACCURACY
) -> Objective:
    """What is asked for of runs that are judged by this metric; ScenarioError for anything that cannot be.

    The target is as of `target_of`; the cost is by default that of the first budget, or else virtual time.
    """
    goal = None if target is None else target_of(target, score)
    if target is None and not budgets:
        raise ScenarioError(
            "name ", Argument("target", "0.9"), ", ", Argument("budgets", BUDGET, "budget"), ", or both: what decides?"
        )
    limits = {}
    for name, amount in budgets.items():
        text = amount if isinstance(amount, str) else f"{amount:.15g}"
        argument = Argument("budgets", f"{name}={text}", "budget")
        if name not in AMOUNTS:
            raise ScenarioError(argument, f": unknown amount {name!r}, {nearest(name, list(AMOUNTS))}")
        try:
            limits[name] = AMOUNTS[name].parse(amount)
        except (TypeError, ValueError) as error:
            raise ScenarioError(argument, f": {error}") from None
        if not limits[name] > 0:
            raise ScenarioError(argument, ": a budget must be above 0")
    chosen = cost or next(iter(limits), VIRTUAL_SECONDS.name)
    if chosen not in AMOUNTS:
        raise ScenarioError(
            Argument("cost", repr(chosen)), f": unknown amount {chosen!r}, {nearest(chosen, list(AMOUNTS))}"
        )
    return Objective(goal, chosen, limits, score)


def budgets_of(asked: Mapping[str, units.Quantity] | Sequence[str]) -> Mapping[str, units.Quantity]:
    """Budgets by the names of amounts, also of words such as ``bytes="2 GB"``; ScenarioError for a word that is none,
    or names an amount twice."""
    if isinstance(asked, Mapping):
        return asked
    budgets: dict[str, units.Quantity] = {}
    for word in asked:
        name, equals, amount = word.partition("=")
        argument = Argument("budgets", repr(word), "budget")
        if not equals or not amount:
            raise ScenarioError(argument, f": write an amount and its limit, for example {BUDGET}")
        if name in budgets:
            raise ScenarioError(argument, f": {name} is named twice")
        budgets[name] = amount.strip().strip('"')
    return budgets
