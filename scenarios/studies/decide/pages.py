"""What a decision shows: the answer first, then all candidates, how sure it is, where it flips, and what it took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from coordinator.rounds.amounts import BY_NAME as AMOUNTS
from coordinator.rounds.amounts import BYTES, ENERGY, VIRTUAL_SECONDS
from edge.protocol.better import HIGHER
from scenarios.experiment import sweep_tables
from scenarios.experiment.experiment import ExperimentPage, Result
from scenarios.experiment.run_set import missing_note
from scenarios.report import run_reader, tables, terminal
from scenarios.report.columns import COUNT, PERCENT, Column
from scenarios.report.readings import SCORE, differences_of, quantity, quantity_of
from scenarios.report.tables import Cell, Number, Table, TableColumn
from scenarios.studies.decide.answer import CandidateRow, Change, DecisionAnswer, Nearest, Point, Sought
from scenarios.studies.decide.objective import shown as amount_text

READ_AS = (
    "{}: {} on their validation examples, when last evaluated within the budgets; ± half of the "
    "95 % interval over the seeds that a candidate was judged by"
)
TESTED = (
    "difference from the chosen candidate, paired over seeds; p: paired t-test, two-sided, or where seeds have not "
    "reached the target Fisher's exact test of how many have; corrected for all pairs of finalists (Holm); a tie: p is "
    "0.05 or more; not tested: there is one seed, or the difference is the same in all"
)


def read(result: Result) -> DecisionAnswer:
    """The answer in a result."""
    return msgspec.convert(result, DecisionAnswer)


def numbered(answer: DecisionAnswer) -> dict[str, str]:
    """Name of a candidate -> what it is called in tables and figures: ``3 fedavg kind=sign``."""
    labels = sweep_tables.labels_of([(row.method, row.settings) for row in answer.candidates])
    return dict(zip((row.name for row in answer.candidates), labels, strict=True))


def lead(answer: DecisionAnswer) -> str:
    """The answer in sentences."""
    chosen = next((row for row in answer.candidates if row.name == answer.chosen), None)
    if chosen is None:
        return "There is no answer yet: the runs have not ended."
    labels, objective = numbered(answer), answer.objective
    label = labels[chosen.name].partition(" ")[2]
    mean, seeds = chosen.value.mean, len(chosen.seeds)
    if answer.nearest is not None:
        return _nearest(answer.nearest, objective, labels)
    if objective.target is None:
        text = f"Run {label}: {_score(objective, mean)} on validation examples within the budgets"
    else:
        cost = amount_text(objective.cost, mean) if mean is not None else "-"
        name = AMOUNTS[objective.cost].heading
        target = objective.score.text_of_target(objective.target)
        text = f"Run {label}: it reaches {target} for {cost} ({name}, mean of {seeds} seeds)"
        if chosen.reached < seeds:
            text = f"Run {label}: it reaches {target} with {chosen.reached} of {seeds} seeds"
    sentences = [text]
    if (chance := answer.probability) is not None:
        than, by_seed = labels[chance.than], chance.by_seed
        draws = f"{chance.draws} draws of uncertain figures" if chance.draws else ""
        if chance.probability is not None:
            over = " and ".join(filter(None, ["seeds", draws]))
            sentences.append(
                f"over {over}, with each seed left out of the choice in turn, it is better than {than} in "
                f"{100 * chance.probability:.0f} %"
            )
        elif draws:
            sentences.append(f"it is better than {than} in {100 * by_seed[0]:.0f} % of {draws}, given its one seed")
        elif by_seed == [0.5]:
            sentences.append(f"it equals {than} with its one seed")
        else:
            sentences.append(f"it is better than {than} with {by_seed.count(1.0)} of {len(by_seed)} seeds")
    ties = [each for each in answer.tests or () if each.is_tie]
    tied = [labels[each.name] for each in ties if each.p is not None or seeds == 1]
    same = [labels[each.name] for each in ties if each.p is None and seeds > 1]
    if tied:
        few = "one seed does" if seeds == 1 else f"{seeds} seeds do"
        sentences.append(f"{few} not tell it apart from {', '.join(tied)}")
    if same:
        sentences.append(f"the difference from {', '.join(same)} is the same with all {seeds} seeds, and is not tested")
    return "; ".join(sentences) + "."


def _nearest(nearest: Nearest, objective: Sought, labels: Mapping[str, str]) -> str:
    limits = "within the budgets" if objective.budgets else "before its runs end"
    if nearest.name is None:
        text = f"No candidate is evaluated {limits}"
    else:
        target = objective.score.text_of_target(objective.target or 0.0)
        text = f"No candidate reaches {target} {limits}; {labels[nearest.name]} gets "
        text += f"nearest, with {_score(objective, nearest.score)} at its best"
    for name, budgets in nearest.budgets_needed.items():
        amounts = ", ".join(f"{AMOUNTS[key].heading} {amount_text(key, amount)}" for key, amount in budgets.items())
        text += f"; {labels[name]} would need {amounts}"
    return text + "."


def _score(objective: Sought, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if objective.score.is_share else objective.score.text(value)


def all_tables(answer: DecisionAnswer) -> list[Table]:
    """The tables of the page."""
    return [*_candidates(answer), *_finalists(answer), *_rests_on(answer), *_flips(answer), _effort(answer)]


def _candidates(answer: DecisionAnswer) -> Iterator[Table]:
    labels, objective, nearest = numbered(answer), answer.objective, answer.nearest
    common = (amount.name for amount in (VIRTUAL_SECONDS, BYTES, ENERGY))
    costs = list(dict.fromkeys([objective.cost, *common, *objective.budgets]))
    columns = [
        TableColumn("candidate"),
        TableColumn("state"),
        TableColumn("rounds", COUNT, missing="-", dispensable=1),
        TableColumn("seeds", COUNT, missing="-", dispensable=2),
        TableColumn(objective.metric, quantity_of(objective.score), missing="-"),
    ]
    if objective.target is not None:
        columns.append(TableColumn("reached", missing="-"))
        column = f"{AMOUNTS[objective.cost].heading} to {objective.score.text_of_target(objective.target)}"
        columns.append(TableColumn(column, quantity(AMOUNTS[objective.cost]), missing="-"))
    columns += [
        TableColumn(f"{AMOUNTS[name].heading} spent", quantity(AMOUNTS[name]), missing="-", dispensable=3)
        for name in costs
    ]
    columns.append(TableColumn("why", is_left=True, dispensable=4))
    rank = {name: place for place, name in enumerate(answer.finalists or ())}
    rows: list[list[Cell]] = []
    for row in sorted(answer.candidates, key=lambda row: (rank.get(row.name, len(rank)), -row.rung)):
        state = "chosen" if row.name == answer.chosen and nearest is None else row.state
        if nearest is not None and row.name == nearest.name:
            state = "nearest"
        cells: list[Cell] = [labels[row.name], state, max(row.rounds, default=None), len(row.seeds) or None]
        cells.append(Number.mean(row.score))
        if objective.target is not None:
            has_value = any(value is not None for value in row.value.values)
            cells.append(f"{row.reached} of {len(row.seeds)}" if row.seeds else "-")
            cells.append(Number.mean(row.value) if has_value else Number(None, missing="-"))
        cells += [Number.mean(row.spent[name]) if name in row.spent else Number(None) for name in costs]
        rows.append([*cells, row.why])
    missing = missing_note(answer.missing or [])
    read = READ_AS.format(objective.metric, objective.score.over_clients)
    yield Table(f"candidates: {objective.text}", columns, rows, [read, *missing])


def _finalists(answer: DecisionAnswer) -> Iterator[Table]:
    labels, objective = numbered(answer), answer.objective
    if answer.chosen is None or not answer.tests:
        return
    is_score = objective.target is None
    held = differences_of(objective.score) if is_score else quantity(AMOUNTS[objective.cost]).of_differences
    columns = [
        TableColumn(f"against {labels[answer.chosen]}"),
        TableColumn("difference", held, missing="-"),
        TableColumn("seeds", COUNT),
        TableColumn("p"),
        TableColumn("p, corrected"),
        TableColumn("verdict"),
    ]
    rows: list[list[Cell]] = []
    for each in answer.tests:
        paired, texts = each.difference, [_probability(p) for p in (each.p, each.p_corrected)]
        verdict = ("not tested" if each.p is None else "a tie") if each.is_tie else "worse"
        number = Number(paired.mean, paired.half_width, paired.deviation)
        rows.append([labels[each.name], number, len(paired.seeds), *texts, verdict])
    yield Table("finalists", columns, rows, [TESTED])


def _probability(p: float | None) -> str:
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _rests_on(answer: DecisionAnswer) -> Iterator[Table]:
    if answer.rests_on:
        columns = [
            TableColumn("figure"),
            TableColumn("basis"),
            TableColumn("lead's variance that it explains alone", PERCENT),
            TableColumn("a measurement", is_left=True),
        ]
        rows: list[list[Cell]] = []
        for each in answer.rests_on:
            is_link = each.figure.endswith(("bits_per_second", "rtt_seconds"))
            measurement = f"a link test on {each.row}" if is_link else f"fedbr check --calibrate on a {each.row}"
            rows.append([f"{each.row}: {each.figure}", each.basis, each.share, measurement])
        yield Table("figures that the lead over the second finalist rests on", columns, rows)


def _flips(answer: DecisionAnswer) -> Iterator[Table]:
    labels, rows, none = numbered(answer), list[list[Cell]](), _none(answer)
    axes = answer.flips or {}
    for axis in axes.values():
        for first, last, point in stretches(axis.points):
            span = f"{first:g}" if first == last else f"{first:g} to {last:g}"
            rows.append([f"{axis.words} {span}", _chosen(point, labels, none)])
    if rows:
        columns = [TableColumn("what changes"), TableColumn("the answer", is_left=True)]
        notes = ["by replay of the finalists' runs"] if len(axes) > 1 else []
        notes += [f"{labels[name]} cannot be replayed: {why}" for name, why in (answer.not_replayed or {}).items()]
        yield Table("where the answer flips", columns, rows, notes)
    if answer.robust:
        robust: list[list[Cell]] = [
            [f"{each.change} ({each.how})", _chosen(each, labels, none)] for each in answer.robust
        ]
        yield Table("robustness", [TableColumn("change"), TableColumn("the answer", is_left=True)], robust)


def _none(answer: DecisionAnswer) -> str:
    has_target = answer.objective.target is not None
    return "none reaches the target" if has_target else "none is evaluated within the budgets"


def _chosen(point: Point | Change, labels: Mapping[str, str], none: str) -> str:
    if point.unknown:
        numbers = [labels[name].partition(" ")[0] for name in point.unknown]
        return f"open: {' and '.join(numbers)} would have to be trained"
    return none if point.chosen is None else labels[point.chosen]


def stretches(points: Sequence[Point]) -> list[tuple[float, float, Point]]:
    """(from, to, the first of them) of neighbouring values with the same answer."""
    spans: list[tuple[float, float, Point]] = []
    for point in points:
        first, begin = point, point.at
        if spans and (spans[-1][2].chosen, spans[-1][2].unknown) == (point.chosen, point.unknown):
            begin, _, first = spans.pop()
        spans.append((begin, point.at, first))
    return spans


def _effort(answer: DecisionAnswer) -> Table:
    effort = answer.effort
    rows: list[list[Cell]] = [["this decision", effort.runs, effort.rounds]]
    if effort.changed_runs:
        rows.append(["on changed fleets", effort.changed_runs, effort.changed_rounds])
    rows.append(["all candidates, all seeds, to the end", effort.exhaustive_runs, effort.exhaustive_rounds])
    return Table("training", [TableColumn(""), TableColumn("runs", COUNT), TableColumn("rounds", COUNT)], rows)


def page(title: str, answer: DecisionAnswer) -> ExperimentPage:
    """The page: the answer, figures, tables, and the report of the finalists' runs."""
    facts = {"scenario": answer.scenario, "sought": answer.objective.text}
    facts |= {"all runs": " ".join(answer.overrides)} if answer.overrides else {}
    facts["seeds"] = ", ".join(map(str, answer.seeds))
    facts |= _facts_of_chosen(answer)
    labels, ended = numbered(answer), answer.runs or []
    folders: dict[str, list[Path]] = {}
    for name in answer.finalists or ():
        own = [Path(run.run_dir) for run in ended if run.name in answer.runs_of[name]]
        if own:
            folders[labels[name]] = own
    ended_by = {Path(run.run_dir): run.stopped_by for run in ended}
    groups = run_reader.of_rows(folders, ended_by) if folders else []
    text = " ".join(filter(None, [lead(answer), against_fedavg(answer)]))
    return ExperimentPage(title, text, facts, list(figures(answer, groups)), all_tables(answer), groups=groups)


def _facts_of_chosen(answer: DecisionAnswer) -> dict[str, str]:
    """The facts about the chosen candidate alone: its score on test examples, and what its times rest on."""
    facts = dict[str, str]()
    test = answer.test
    if answer.chosen is not None and test is not None and test.mean is not None:
        held = answer.objective.score
        column = replace(Column.of(PERCENT, []), decimals=1) if held.is_share else Column.of(SCORE, [test.mean])
        score = column.text(test.mean, test.half_width)
        who = numbered(answer)[answer.chosen] if answer.nearest is not None else "chosen candidate"
        facts[f"{who} on test examples, looked at once"] = score
    by_basis = answer.seconds_by_basis or {}
    if (whole := sum(by_basis.values())) > 0:
        shares = sorted(by_basis.items(), key=lambda each: -each[1])
        text = ", ".join(f"{basis} {100 * seconds / whole:.0f} %" for basis, seconds in shares if seconds > 0)
        facts["its virtual seconds, by the basis of their figures"] = text
    return facts


def figures(answer: DecisionAnswer, groups: Sequence[run_reader.RunGroup]) -> Iterator[tuple[str, str, str]]:
    """(name, HTML, caption): cost against score of the candidates, and the map of answers on changed fleets."""
    yield from _cost_figure(answer, groups)
    yield from _flips_figure(answer, groups)


def _cost_figure(answer: DecisionAnswer, groups: Sequence[run_reader.RunGroup]) -> Iterator[tuple[str, str, str]]:
    """Nothing unless two candidates have a cost and a score."""
    objective, labels = answer.objective, numbered(answer)
    points: dict[str, tuple[float, float]] = {}
    for row in answer.candidates:
        cost = row.spent.get(objective.cost)
        if cost is not None and cost.mean is not None and row.score.mean is not None:
            points[labels[row.name]] = cost.mean, row.score.mean
    if len(points) < 2:
        return
    from scenarios.report.html_figures import inline  # matplotlib takes half a second
    from scenarios.report.plot_style import ShownRuns
    from scenarios.report.result_figures import CostMap, cost_map

    chosen = None if answer.nearest is not None else labels.get(answer.chosen or "")
    name, limit = AMOUNTS[objective.cost], objective.budgets.get(objective.cost)
    drawn = CostMap(
        f"Cost and {objective.metric} of all candidates",
        objective.score,
        f"{name.heading} spent",
        quantity(name),
        points,
        chosen,
        limit,
        objective.target,
    )
    way = "high" if objective.score.better is HIGHER else "low"
    caption = f"Each candidate by the mean over its seeds, as far as it was trained: {way} and left is better."
    caption += f" {saving}" if (saving := against_fedavg(answer)) else ""
    yield "candidates", inline("candidates", lambda: cost_map(ShownRuns(groups), drawn)), caption


def against_fedavg(answer: DecisionAnswer) -> str:
    """How much less the chosen candidate takes to the target than plain FedAvg; empty where that is not known."""
    objective, rows = answer.objective, answer.candidates
    chosen = next((row for row in rows if row.name == answer.chosen and answer.nearest is None), None)
    plain = next((row for row in rows if _is_plain_fedavg(row) and row.reached), None)
    if objective.target is None or chosen is None or plain is None or plain is chosen:
        return ""
    if any(row.reached < len(row.seeds) for row in (chosen, plain)):
        return ""
    base, mean = plain.value.mean, chosen.value.mean
    percent = round(100 * (1 - mean / base)) if base and mean is not None else 0
    if percent <= 0:
        return ""
    labels, heading = numbered(answer), AMOUNTS[objective.cost].heading
    return (
        f"{labels[chosen.name]} reaches {objective.score.text_of_target(objective.target)} with {percent} % less than "
        f"{labels[plain.name]} ({heading}, means over seeds)."
    )


def _is_plain_fedavg(row: CandidateRow) -> bool:
    """Whether a candidate is FedAvg without a codec."""
    codecs = [value for key, value in row.settings.items() if key.startswith("codec.")]
    return row.method == "fedavg" and all(value == "none" for value in codecs)


def _flips_figure(answer: DecisionAnswer, groups: Sequence[run_reader.RunGroup]) -> Iterator[tuple[str, str, str]]:
    """Nothing unless the map has two known places."""
    labels, places = numbered(answer), answer.map or []
    known = [each for each in places if not each.unknown]
    if len(known) < 2:
        return
    from scenarios.report.html_figures import inline  # matplotlib takes half a second
    from scenarios.report.plot_style import ShownRuns
    from scenarios.report.result_figures import ChoiceMap, choice_map

    chosen = {(each.links, each.devices): None if each.chosen is None else labels[each.chosen] for each in places}
    unknown = [(each.links, each.devices) for each in places if each.unknown]
    across, down = "rates of all links, times", "speeds of all devices, times"
    drawn = ChoiceMap("Where the answer flips", across, down, chosen, unknown)
    caption = (
        "The finalist that would be chosen if all links and all devices were faster or slower than the scenario's, "
        "whose own place is in the middle: replays of the same training."
    )
    caption += f" –: {_none(answer)}." if any(each.chosen is None for each in known) else ""
    caption += " ?: a finalist would have to be trained there." if unknown else ""
    yield "flips", inline("flips", lambda: choice_map(ShownRuns(groups), drawn)), caption


def markdown(answer: DecisionAnswer) -> str:
    """The answer and its tables."""
    facts = "".join(f"* {name}: {value}\n" for name, value in _facts_of_chosen(answer).items())
    return "\n\n".join(filter(None, [lead(answer), facts.rstrip(), tables.markdown(all_tables(answer))]))


def show(answer: DecisionAnswer, page: Path) -> None:
    """Print the answer and its tables."""
    for table in all_tables(answer):
        terminal.print_table(table)
    print(f"\n{lead(answer)}")
    for name, value in _facts_of_chosen(answer).items():
        print(f"{name}: {value}")
    terminal.print_location(page)
