"""``fedbr study trial``: one part of it as a `Study`, with result, tables, figures and report named after the part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edge.protocol.files import write_text
from scenarios.experiment.run_set import Study
from scenarios.papers.trial import bandit, calibration, results, speed_map, tables
from scenarios.papers.trial.addition import Figure, Say, TrialAddition
from scenarios.papers.trial.plan import TrialPlan
from scenarios.papers.trial.variants import CALIBRATED
from scenarios.report import bands, plot_style, terminal
from scenarios.report.pages import PageTable, write_study

ADDITIONS: Mapping[str, TrialAddition] = {
    "calibrated": calibration.ADDITION,
    "skew": calibration.ADDITION,
    "bandit": bandit.ADDITION,
    "map": speed_map.ADDITION,
}
"""Part -> what it has beside the others."""


def study(plan: TrialPlan, say: Say = lambda text: None) -> Study:
    """The study of a part's runs; ``say`` shows the progress of what follows them."""
    return Study(
        plan.run_set,
        partial(_read_off, plan, say),
        partial(_draw, plan),
        _show,
        _write_tables,
        result_file=f"{plan.name}.json",
    )


def _additions(part: str) -> list[TrialAddition]:
    return [ADDITIONS[part]] if part in ADDITIONS else []


def _read_off(plan: TrialPlan, say: Say, done: Mapping[str, Any]) -> dict[str, Any]:
    result = results.read_off(plan, done)
    for addition in _additions(plan.name):
        result |= addition.read_off(plan, result, say)
    return result


def _write_tables(result: Mapping[str, Any], folder: Path) -> None:
    tables.write_tables(result, folder)
    for addition in _additions(result["part"]):
        addition.write_tables(result, folder)


def _tables(result: Mapping[str, Any], targets: Sequence[float]) -> list[PageTable]:
    """The tables of the addition, which answer the part's question, first."""
    own = [table for addition in _additions(result["part"]) for table in addition.tables(result)]
    return [*own, *tables.accuracies(result), *tables.to_targets(result, targets)]


def _show(result: Mapping[str, Any], page: Path) -> None:
    for table in _tables(result, [result["target"]]):
        terminal.print_table(table, columns=4)  # names of variants are long
    terminal.print_location(page)


def _draw(plan: TrialPlan, result: Mapping[str, Any], folder: Path) -> Path:
    """Write the part's report, and its figures as files of their own in ``figures``."""
    figures = list(_figures(plan, result))
    for name, drawn, _ in figures:
        write_text(_made(folder / "figures") / f"{name}.svg", plot_style.standalone(drawn))
    return write_study(
        folder / f"{plan.name}.html",
        f"{plan.run_set.name}: {plan.part.title}",
        f"{plan.part.question} Each variant ran once per seed, to the scenario's last round. Bytes are counted on the "
        "messages, down and up, of all clients; time and energy are the simulated fleet's.",
        {"scenario": plan.run_set.name, "part": plan.name, "seeds": ", ".join(map(str, result["seeds"]))},
        figures,
        _tables(result, result["targets"]),
    )


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _figures(plan: TrialPlan, result: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of the addition, which answer the part's question, first."""
    additions = _additions(plan.name)
    for addition in additions:
        yield from addition.figures(result)
    if not any(addition.is_alone for addition in additions):
        yield from _common_figures(plan, result)


def _common_figures(plan: TrialPlan, result: Mapping[str, Any]) -> Iterator[Figure]:
    from scenarios.papers.trial import figures

    if any(row["difference"] for row in result["variants"]):
        name = f"{plan.name}-accuracy"
        caption = (
            "Final test accuracy and its difference from FedAvg, paired over seeds. Dots are means, bars 95 % "
            "intervals (Student's t over seeds), ticks single seeds."
        )
        yield name, figures.accuracies(result, name), caption
    name = f"{plan.name}-to-target"
    spent = figures.to_target(result, name)
    if spent is not None:
        yield name, spent, "Spent until the target, mean over seeds; a variant without a bar missed it in some seed."
    yield from _curves(plan, result)


def _curves(plan: TrialPlan, result: Mapping[str, Any]) -> Iterator[Figure]:
    """Accuracy against bytes and time, a figure per skew."""
    trails, chosen = results.trails(plan, result["runs"]), plan.part.curves
    for skew in dict.fromkeys(cell.skew for cell in plan.cells):
        shown = {
            cell.variant.name: list(trails[cell.name].values())
            for cell in plan.cells
            if cell.skew == skew and (chosen is None or cell.variant.name.replace(CALIBRATED, "") in chosen)
        }
        methods = {cell.variant.name: cell.variant.method for cell in plan.cells}
        curves = [
            bands.band(methods[name], kind, runs, label=name)
            for kind in ("bytes", "time")
            for name, runs in shown.items()
            if runs
        ]
        if curves:
            name = f"{plan.name}-curves-{skew.replace('.', '-')}"
            caption = f"{skew}: test accuracy when last evaluated, mean over seeds; bands are one sample deviation."
            yield name, bands.draw(curves, {}, name), caption
