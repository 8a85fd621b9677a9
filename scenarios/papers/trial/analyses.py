"""What two parts of the trial read off their runs: is the bandit worth it, and what calibration changes.

GMBS stands against random and fixed alpha at equal bytes and time, with its regret over rounds. The best fixed alpha is
chosen in hindsight, by the mean accuracy at equal bytes: no server knows it beforehand.

Each calibrated run stands against its twin without calibration, of the same seed and folder. A twin may come from
another part. It counts if its scenario differs in nothing but the calibration, and it is as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.records.store import has_rounds
from coordinator.records.store import read as read_ledger
from coordinator.rounds.amounts import BY_KIND
from scenarios.experiment.statistics import Trails, paired
from scenarios.papers.trial.trial import READ_AS, Figure, PartAnalysis, Say, Trial, compared, difference
from scenarios.papers.trial.variants import CALIBRATED
from scenarios.report.tables import Table
from scenarios.run.progress import Trail, at_budget, with_interval
from scenarios.run.run_folder import RunFolder

GMBS = "fedbr"
FIXED = "fedbr-alpha-"
REWARDS = "SELECT round, AVG(reward) AS reward FROM choices GROUP BY round ORDER BY round"
SHARED = {"bytes": "equal bytes", "time": "equal virtual time"}
HINDSIGHT = "the best fixed alpha is that of the best mean accuracy at equal bytes, which is known only in hindsight"


def read_bandit(trial: Trial, result: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """``bandit``: accuracies at equal bytes and time, the best fixed alpha, and GMBS's regret against it."""
    progress = trial.trails(result["runs"])
    curves = {row.variant: progress[row.name] for row in trial.rows if row.name in progress}
    shared = {kind: at_common(curves, kind) for kind in SHARED}
    best = best_fixed(shared["bytes"])
    found: dict[str, Any] = {"at_common": shared, "best_fixed": best, "best_fixed_note": HINDSIGHT}
    if best is not None and GMBS in curves:
        folders = {run["name"]: Path(run["run_dir"]) for run in result["runs"]}
        skew = trial.rows[0].skew
        seeds = sorted(curves[best].keys() & curves[GMBS].keys())
        rewards = {seed: [rewards_of(folders[f"{skew}-{name}-seed{seed}"]) for name in (best, GMBS)] for seed in seeds}
        found["regret"] = {
            "reward": over_seeds({seed: reward_regret(*pair) for seed, pair in rewards.items()}),
            "accuracy": over_seeds({seed: accuracy_gap(curves[best][seed], curves[GMBS][seed]) for seed in seeds}),
        }
    return {"bandit": found}


def at_common(curves: Trails, kind: str) -> dict[str, Any]:
    """Accuracies at the smallest total of a seed's runs, and GMBS's minus each, paired over seeds."""
    seeds = sorted({seed for runs in curves.values() for seed in runs})
    limits = {seed: min(BY_KIND[kind].total(runs[seed]) for runs in curves.values() if seed in runs) for seed in seeds}
    accuracy = {
        name: {seed: at_budget(points, BY_KIND[kind], limits[seed]).accuracy for seed, points in runs.items()}
        for name, runs in curves.items()
    }
    return {
        "limits": {str(seed): limit for seed, limit in limits.items()},
        "variants": {
            name: {
                **with_interval(list(values.values())),
                "gmbs_minus": None if name == GMBS else paired(accuracy.get(GMBS, {}), values),
            }
            for name, values in accuracy.items()
        },
    }


def best_fixed(shared: Mapping[str, Any]) -> str | None:
    """The fixed alpha of the best mean accuracy; None without one."""
    means = {
        name: found["mean"]
        for name, found in shared["variants"].items()
        if name.removeprefix(FIXED).isdecimal() and found["mean"] is not None
    }
    return max(means, key=means.__getitem__) if means else None


def rewards_of(folder: Path) -> dict[int, float]:
    """Round -> mean reward of a visit (Eq. 5), from the ledger's choices."""
    return {row["round"]: float(row["reward"]) for row in read_ledger(folder / "ledger.sqlite", REWARDS)}


def reward_regret(best: Mapping[int, float], gmbs: Mapping[int, float]) -> dict[int, float]:
    """Round -> sum, up to it, of the mean reward of a visit of the best fixed alpha minus GMBS's."""
    rounds = sorted(best.keys() & gmbs.keys())
    totals = np.cumsum([best[each] - gmbs[each] for each in rounds]).tolist()
    return dict(zip(rounds, totals, strict=True))


def accuracy_gap(best: Trail, gmbs: Trail) -> dict[int, float]:
    """Round -> accuracy of the best fixed alpha minus GMBS's, in the rounds that were evaluated in both."""
    own, other = (
        {point.rounds - 1: point.accuracy for point in points if point.accuracy is not None} for points in (best, gmbs)
    )
    return {each: own[each] - other[each] for each in sorted(own.keys() & other.keys())}


def over_seeds(by_seed: Mapping[int, Mapping[int, float]]) -> dict[str, Any]:
    """Per round, in rounds that all seeds have: the mean over seeds with its interval."""
    rounds = sorted(set.intersection(*(set(values) for values in by_seed.values()))) if by_seed else []
    found = [with_interval([values[each] for values in by_seed.values()]) for each in rounds]
    return {
        "seeds": list(by_seed),
        "rounds": rounds,
        **{key: [each[key] for each in found] for key in ("mean", "half_width", "values")},
    }


def bandit_tables(result: Mapping[str, Any]) -> list[Table]:
    """A table for equal bytes and one for equal time: each alpha, and what GMBS is better by."""
    found = result["bandit"]
    best = found["best_fixed"]
    notes = [READ_AS, *([f"best fixed: {best}; {HINDSIGHT}"] if best else [])]
    return [
        compared(
            f"accuracy at {label} (fedbr: GMBS)",
            "GMBS minus it",
            {name: (cell, cell["gmbs_minus"]) for name, cell in cells.items()},
            notes,
        )
        for kind, label in SHARED.items()
        for cells in [found["at_common"][kind]["variants"]]
    ]


def bandit_figures(result: Mapping[str, Any]) -> list[Figure]:
    """The accuracies, and the regret over rounds if there are runs of GMBS and of a fixed alpha."""
    from scenarios.papers.trial.figures import equal_amounts, regret

    found = result["bandit"]
    panels = {label: found["at_common"][kind]["variants"] for kind, label in SHARED.items()}
    caption = (
        "Accuracy when last evaluated within the smallest total of each seed's runs (fedbr: GMBS). Dots are means, "
        "bars 95 % intervals, ticks single seeds."
    )
    drawn = [("bandit-equal", equal_amounts(panels, "bandit-equal"), caption)]
    if "regret" in found:
        caption = (
            f"GMBS against {found['best_fixed']}. Left: the sum over rounds of the mean reward of a visit (Eq. 5, with "
            "times relative to the longest of their round), best fixed alpha minus GMBS. Right: accuracy after equal "
            "rounds, best fixed alpha minus GMBS. Lines are means over seeds, bands 95 % intervals, thin lines single "
            f"seeds; above 0 GMBS is worse. Note that {HINDSIGHT}."
        )
        drawn.append(("bandit-regret", regret(found["regret"], "bandit-regret"), caption))
    return drawn


BANDIT = PartAnalysis(read_bandit, bandit_tables, bandit_figures)


# --- calibration ------------------------------------------------------------------------------------------------------


def read_calibration(trial: Trial, result: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """``calibration``: for each calibrated variant its accuracy minus its twin's; none where no twin is there."""
    folders = {run["name"]: Path(run["run_dir"]) for run in result["runs"]}
    found = []
    for row in result["variants"]:
        own: dict[int, Trail] = {}
        twins: dict[int, Trail] = {}
        for seed in row["seeds"] if CALIBRATED in row["variant"] else ():
            folder = folders[f"{row['name']}-seed{seed}"]
            twin = folder.parent / folder.name.replace(CALIBRATED, "", 1)
            if is_twin(folder, twin):
                own[seed], twins[seed] = RunFolder(folder).trail, RunFolder(twin).trail
        if (paired_with := difference(own, twins)) is not None:
            keys = ("name", "skew", "variant", "accuracy")
            found.append({**{key: row[key] for key in keys}, "difference": paired_with})
    return {"calibration": found}


def is_twin(calibrated: Path, plain: Path) -> bool:
    """Whether a run is there that differs in the calibration alone, and has as many rounds."""
    if not (has_rounds(plain / "ledger.sqlite") and (plain / "scenario.toml").is_file()):
        return False
    own, other = (RunFolder(run).keys() for run in (calibrated, plain))
    differing = {key for key in own.keys() | other.keys() if own.get(key) != other.get(key)}
    added = {key for key in own.keys() - other.keys() if key.startswith("method_options.")}
    return differing <= {"method", *added} and len(RunFolder(calibrated).trail) == len(RunFolder(plain).trail)


def calibration_tables(result: Mapping[str, Any]) -> list[Table]:
    """One table, if there are twins."""
    rows = {row["name"]: (row["accuracy"], row["difference"]) for row in result["calibration"]}
    title = "calibrated logits: difference from the same variant without"
    return [compared(title, "difference", rows, [READ_AS])] if rows else []


CALIBRATION = PartAnalysis(read_calibration, calibration_tables)
