"""What a decision shows: the answer first, then all candidates, how sure it is, where it flips, and what it took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.rounds.amounts import BY_NAME as AMOUNTS
from scenarios.experiment import sweep_tables
from scenarios.experiment.experiment import ExperimentPage, Result
from scenarios.experiment.run_set import missing_note
from scenarios.report import run_reader, tables, terminal
from scenarios.report.columns import COUNT, PERCENT, POINTS, Column
from scenarios.report.readings import quantity
from scenarios.report.tables import Cell, Number, Table, TableColumn
from scenarios.studies.decide.objective import shown as amount_text

READ_AS = (
    "accuracy: mean over clients on their validation examples, when last evaluated within the budgets; ± half of the "
    "95 % interval over the seeds that a candidate was judged by"
)
TESTED = (
    "difference from the chosen candidate, paired over seeds; p: paired t-test, two-sided, or where seeds have not "
    "reached the target Fisher's exact test of how many have; corrected for all pairs of finalists (Holm); a tie: p is "
    "0.05 or more; not tested: there is one seed, or the difference is the same in all"
)
FIGURES = {"calibrate": "fedbr check --calibrate on a {row}", "link": "a link test on {row}"}


def numbered(result: Result) -> dict[str, str]:
    """Name of a candidate -> what it is called in tables and figures: ``3 fedavg kind=sign``."""
    rows = result["candidates"]
    return dict(zip((row["name"] for row in rows), sweep_tables.labels(rows), strict=True))


def lead(result: Result) -> str:
    """The answer in sentences."""
    if "chosen" not in result:
        return "There is no answer yet: the runs have not ended."
    labels, objective = numbered(result), result["objective"]
    chosen = next(row for row in result["candidates"] if row["name"] == result["chosen"])
    label = labels[result["chosen"]].partition(" ")[2]
    value, seeds = chosen["value"], len(chosen["seeds"])
    if "nearest" in result:
        return _nearest(result, labels)
    if objective["target"] is None:
        text = f"Run {label}: {_percent(value['mean'])} on validation examples within the budgets"
    else:
        cost = amount_text(objective["cost"], value["mean"]) if value["mean"] is not None else "-"
        name = AMOUNTS[objective["cost"]].heading
        text = f"Run {label}: it reaches {100 * objective['target']:g} % for {cost} ({name}, mean of {seeds} seeds)"
        if chosen["reached"] < seeds:
            text = f"Run {label}: it reaches {100 * objective['target']:g} % with {chosen['reached']} of {seeds} seeds"
    sentences = [text]
    if (chance := result.get("probability")) is not None:
        than, by_seed = labels[chance["than"]], chance["by_seed"]
        draws = f"{chance['draws']} draws of uncertain figures" if chance["draws"] else ""
        if chance["probability"] is not None:
            over = " and ".join(filter(None, ["seeds", draws]))
            sentences.append(
                f"over {over}, with each seed left out of the choice in turn, it is better than {than} in "
                f"{100 * chance['probability']:.0f} %"
            )
        elif draws:
            sentences.append(f"it is better than {than} in {100 * by_seed[0]:.0f} % of {draws}, given its one seed")
        elif by_seed == [0.5]:
            sentences.append(f"it equals {than} with its one seed")
        else:
            sentences.append(f"it is better than {than} with {by_seed.count(1.0)} of {len(by_seed)} seeds")
    ties = [each for each in result["tests"] if each["is_tie"]]
    tied = [labels[each["name"]] for each in ties if each["p"] is not None or seeds == 1]
    same = [labels[each["name"]] for each in ties if each["p"] is None and seeds > 1]
    if tied:
        few = "one seed does" if seeds == 1 else f"{seeds} seeds do"
        sentences.append(f"{few} not tell it apart from {', '.join(tied)}")
    if same:
        sentences.append(f"the difference from {', '.join(same)} is the same with all {seeds} seeds, and is not tested")
    return "; ".join(sentences) + "."


def _nearest(result: Result, labels: Mapping[str, str]) -> str:
    nearest, target = result["nearest"], 100 * (result["objective"]["target"] or 0)
    limits = "within the budgets" if result["objective"]["budgets"] else "before its runs end"
    if nearest["accuracy"] is None:
        text = f"No candidate is evaluated {limits}"
    else:
        text = f"No candidate reaches {target:g} % {limits}; {labels[nearest['name']]} gets nearest, with "
        text += f"{_percent(nearest['accuracy'])} at its best"
    for name, budgets in nearest["budgets_needed"].items():
        amounts = ", ".join(f"{AMOUNTS[key].heading} {amount_text(key, amount)}" for key, amount in budgets.items())
        text += f"; {labels[name]} would need {amounts}"
    return text + "."


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def all_tables(result: Result) -> list[Table]:
    """The tables of the page."""
    return [*_candidates(result), *_finalists(result), *_rests_on(result), *_flips(result), _effort(result)]


def _candidates(result: Result) -> Iterator[Table]:
    labels, objective = numbered(result), result["objective"]
    costs = list(dict.fromkeys([objective["cost"], "seconds", "bytes", "joules", *objective["budgets"]]))
    columns = [
        TableColumn("candidate"),
        TableColumn("state"),
        TableColumn("rounds", COUNT, missing="-", dispensable=1),
        TableColumn("seeds", COUNT, missing="-", dispensable=2),
        TableColumn("accuracy", PERCENT, missing="-"),
    ]
    if objective["target"] is not None:
        columns.append(TableColumn("reached", missing="-"))
        column = f"{AMOUNTS[objective['cost']].heading} to {100 * objective['target']:g} %"
        columns.append(TableColumn(column, quantity(AMOUNTS[objective["cost"]]), missing="-"))
    columns += [
        TableColumn(f"{AMOUNTS[name].heading} spent", quantity(AMOUNTS[name]), missing="-", dispensable=3)
        for name in costs
    ]
    columns.append(TableColumn("why", is_left=True, dispensable=4))
    rank = {name: place for place, name in enumerate(result.get("finalists", []))}
    rows: list[list[Cell]] = []
    ordered = sorted(result["candidates"], key=lambda row: (rank.get(row["name"], len(rank)), -row["rung"]))
    for row in ordered:
        is_chosen = row["name"] == result.get("chosen") and "nearest" not in result
        state = "chosen" if is_chosen else row["state"]
        if "nearest" in result and row["name"] == result["nearest"]["name"]:
            state = "nearest"
        spent = [row["spent"].get(name) for name in costs]
        cells: list[Cell] = [labels[row["name"]], state, max(row["rounds"], default=None), len(row["seeds"]) or None]
        cells.append(Number.mean(row["accuracy"]))
        if objective["target"] is not None:
            known = [value for value in row["value"]["values"] if value is not None]
            cells.append(f"{row['reached']} of {len(row['seeds'])}" if row["seeds"] else "-")
            cells.append(Number.mean(row["value"]) if known else Number(None, missing="-"))
        cells += [Number(None) if each is None else Number.mean(each) for each in spent]
        rows.append([*cells, row["why"]])
    yield Table(f"candidates: {objective['text']}", columns, rows, [READ_AS, *missing_note(result)])


def _finalists(result: Result) -> Iterator[Table]:
    labels, objective = numbered(result), result["objective"]
    if not result.get("tests"):
        return
    held = POINTS if objective["target"] is None else quantity(AMOUNTS[objective["cost"]])
    columns = [
        TableColumn(f"against {labels[result['chosen']]}"),
        TableColumn("difference", held.of_differences, missing="-"),
        TableColumn("seeds", COUNT),
        TableColumn("p"),
        TableColumn("p, corrected"),
        TableColumn("verdict"),
    ]
    rows: list[list[Cell]] = []
    for each in result["tests"]:
        found, texts = each["difference"], [_probability(p) for p in (each["p"], each["p_corrected"])]
        verdict = ("not tested" if each["p"] is None else "a tie") if each["is_tie"] else "worse"
        rows.append([labels[each["name"]], Number.mean(found), len(found["seeds"]), *texts, verdict])
    yield Table("finalists", columns, rows, [TESTED])


def _probability(p: float | None) -> str:
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _rests_on(result: Result) -> Iterator[Table]:
    found = result.get("rests_on") or []
    if found:
        columns = [
            TableColumn("figure"),
            TableColumn("basis"),
            TableColumn("lead's variance that it explains alone", PERCENT),
            TableColumn("a measurement", is_left=True),
        ]
        rows: list[list[Cell]] = [
            [
                f"{each['row']}: {each['figure']}",
                each["basis"],
                each["share"],
                FIGURES["link" if each["figure"].endswith(("bits_per_second", "rtt_seconds")) else "calibrate"].format(
                    **each
                ),
            ]
            for each in found
        ]
        yield Table("figures that the lead over the second finalist rests on", columns, rows)


def _flips(result: Result) -> Iterator[Table]:
    labels, rows, none = numbered(result), list[list[Cell]](), _none(result)
    for axis in result.get("flips", {}).values():
        for first, last, point in stretches(axis["points"]):
            span = f"{first:g}" if first == last else f"{first:g} to {last:g}"
            rows.append([f"{axis['words']} {span}", _chosen(point, labels, none)])
    if rows:
        columns = [TableColumn("what changes"), TableColumn("the answer", is_left=True)]
        notes = ["by replay of the finalists' runs"] if len(result["flips"]) > 1 else []
        notes += [f"{labels[name]} cannot be replayed: {why}" for name, why in result.get("not_replayed", {}).items()]
        yield Table("where the answer flips", columns, rows, notes)
    robust: list[list[Cell]] = [
        [f"{each['change']} ({each['how']})", _chosen(each, labels, none)] for each in result.get("robust", [])
    ]
    if robust:
        yield Table("robustness", [TableColumn("change"), TableColumn("the answer", is_left=True)], robust)


def _none(result: Result) -> str:
    has_target = result.get("objective", {}).get("target", 1.0) is not None
    return "none reaches the target" if has_target else "none is evaluated within the budgets"


def _chosen(point: Mapping[str, Any], labels: Mapping[str, str], none: str) -> str:
    if point["unknown"]:
        numbers = [labels[name].partition(" ")[0] for name in point["unknown"]]
        return f"open: {' and '.join(numbers)} would have to be trained"
    return none if point["chosen"] is None else labels[point["chosen"]]


def stretches(points: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, Mapping[str, Any]]]:
    """(from, to, the first of them) of neighbouring values with the same answer."""
    found: list[tuple[float, float, Mapping[str, Any]]] = []
    for point in points:
        same = found and all(found[-1][2][key] == point[key] for key in ("chosen", "unknown"))
        begin = found.pop() if same else (point["at"], point["at"], point)
        found.append((begin[0], point["at"], begin[2]))
    return found


def _effort(result: Result) -> Table:
    effort = result["effort"]
    rows: list[list[Cell]] = [
        ["this decision", effort["runs"], effort["rounds"]],
        *([["on changed fleets", effort["changed_runs"], effort["changed_rounds"]]] if effort["changed_runs"] else []),
        ["all candidates, all seeds, to the end", effort["exhaustive_runs"], effort["exhaustive_rounds"]],
    ]
    return Table("training", [TableColumn(""), TableColumn("runs", COUNT), TableColumn("rounds", COUNT)], rows)


def page(title: str, result: Result) -> ExperimentPage:
    """The page: the answer, figures, tables, and the report of the finalists' runs."""
    facts = {"scenario": result["scenario"], "sought": result["objective"]["text"]}
    facts |= {"all runs": " ".join(result["overrides"])} if result["overrides"] else {}
    facts["seeds"] = ", ".join(map(str, result["seeds"]))
    facts |= _facts_of_chosen(result)
    labels = numbered(result)
    ended = {run["name"]: Path(run["run_dir"]) for run in result["runs"]}
    folders: dict[str, list[Path]] = {}
    for name in result.get("finalists", []):
        own = [path for run, path in ended.items() if run in result["runs_of"][name]]
        if own:
            folders[labels[name]] = own
    ended_by = {Path(run["run_dir"]): str(run["stopped_by"]) for run in result["runs"]}
    groups = run_reader.of_rows(folders, ended_by) if folders else []
    answer = " ".join(filter(None, [lead(result), against_fedavg(result)]))
    return ExperimentPage(title, answer, facts, list(figures(result, groups)), all_tables(result), groups=groups)


def _facts_of_chosen(result: Result) -> dict[str, str]:
    """What is known of the chosen candidate alone: its score on test examples, and what its times rest on."""
    facts = dict[str, str]()
    test = result.get("test")
    if test is not None and test["mean"] is not None:
        score = replace(Column.of(PERCENT, []), decimals=1).text(test["mean"], test["half_width"])
        who = numbered(result)[result["chosen"]] if "nearest" in result else "chosen candidate"
        facts[f"{who} on test examples, looked at once"] = score
    by_basis = result.get("seconds_by_basis") or {}
    if (whole := sum(by_basis.values())) > 0:
        shares = sorted(by_basis.items(), key=lambda each: -float(each[1]))
        text = ", ".join(f"{basis} {100 * seconds / whole:.0f} %" for basis, seconds in shares if seconds > 0)
        facts["its virtual seconds, by the basis of their figures"] = text
    return facts


def figures(result: Result, groups: Sequence[run_reader.RunGroup]) -> Iterator[tuple[str, str, str]]:
    """(name, HTML, caption): cost against accuracy of the candidates, and the map of answers on changed fleets."""
    yield from _cost_figure(result, groups)
    yield from _flips_figure(result, groups)


def _cost_figure(result: Result, groups: Sequence[run_reader.RunGroup]) -> Iterator[tuple[str, str, str]]:
    """Nothing unless two candidates have a cost and an accuracy."""
    objective = result.get("objective", {})
    cost = objective.get("cost")
    labels = numbered(result)
    points = {
        labels[row["name"]]: (row["spent"][cost]["mean"], row["accuracy"]["mean"])
        for row in result["candidates"]
        if ((row.get("spent") or {}).get(cost) or {}).get("mean") is not None and row["accuracy"]["mean"] is not None
    }
    if len(points) < 2:
        return
    from scenarios.report.html_figures import inline  # matplotlib takes half a second
    from scenarios.report.plot_style import ShownRuns
    from scenarios.report.result_figures import CostMap, cost_map

    chosen = None if "nearest" in result else labels.get(result.get("chosen", ""))
    name, limit = AMOUNTS[cost], objective["budgets"].get(cost)
    drawn = CostMap(
        "Cost and accuracy of all candidates",
        f"{name.heading} spent",
        quantity(name),
        points,
        chosen,
        limit,
        objective["target"],
    )
    caption = "Each candidate by the mean over its seeds, as far as it was trained: high and left is better."
    caption += f" {saving}" if (saving := against_fedavg(result)) else ""
    yield "candidates", inline("candidates", lambda: cost_map(ShownRuns(groups), drawn)), caption


def against_fedavg(result: Result) -> str:
    """How much less the chosen candidate takes to the target than plain FedAvg; empty where that is not known."""
    objective, rows = result["objective"], result["candidates"]
    chosen = next((row for row in rows if row["name"] == result.get("chosen") and "nearest" not in result), None)
    plain = next((row for row in rows if _is_plain_fedavg(row) and row["reached"]), None)
    if objective["target"] is None or chosen is None or plain is None or plain is chosen:
        return ""
    if any(row["reached"] < len(row["seeds"]) for row in (chosen, plain)):
        return ""
    base = plain["value"]["mean"]
    percent = round(100 * (1 - chosen["value"]["mean"] / base)) if base else 0
    if percent <= 0:
        return ""
    labels, heading = numbered(result), AMOUNTS[objective["cost"]].heading
    return (
        f"{labels[chosen['name']]} reaches {100 * objective['target']:g} % with {percent} % less than "
        f"{labels[plain['name']]} ({heading}, means over seeds)."
    )


def _is_plain_fedavg(row: Mapping[str, Any]) -> bool:
    """Whether a candidate is FedAvg without a codec."""
    codecs = [value for key, value in row["settings"].items() if key.startswith("codec.")]
    return row["method"] == "fedavg" and all(value in (None, "none", [], ()) for value in codecs)


def _flips_figure(result: Result, groups: Sequence[run_reader.RunGroup]) -> Iterator[tuple[str, str, str]]:
    """Nothing unless the map has two known places."""
    labels, places = numbered(result), result.get("map") or []
    known = [each for each in places if not each["unknown"]]
    if len(known) < 2:
        return
    from scenarios.report.html_figures import inline  # matplotlib takes half a second
    from scenarios.report.plot_style import ShownRuns
    from scenarios.report.result_figures import ChoiceMap, choice_map

    chosen = {(each["links"], each["devices"]): each["chosen"] for each in places}
    found = {place: None if name is None else labels[name] for place, name in chosen.items()}
    unknown = [(each["links"], each["devices"]) for each in places if each["unknown"]]
    across, down = "rates of all links, times", "speeds of all devices, times"
    drawn = ChoiceMap("Where the answer flips", across, down, found, unknown)
    caption = (
        "The finalist that would be chosen if all links and all devices were faster or slower than the scenario's, "
        "whose own place is in the middle: replays of the same training."
    )
    caption += f" –: {_none(result)}." if any(each["chosen"] is None for each in known) else ""
    caption += " ?: a finalist would have to be trained there." if unknown else ""
    yield "flips", inline("flips", lambda: choice_map(ShownRuns(groups), drawn)), caption


def markdown(result: Result) -> str:
    """The answer and its tables."""
    facts = "".join(f"* {name}: {value}\n" for name, value in _facts_of_chosen(result).items())
    return "\n\n".join(filter(None, [lead(result), facts.rstrip(), tables.markdown(all_tables(result))]))


def show(result: Result, page: Path) -> None:
    """Print the answer and its tables."""
    for table in all_tables(result):
        terminal.print_table(table)
    print(f"\n{lead(result)}")
    for name, value in _facts_of_chosen(result).items():
        print(f"{name}: {value}")
    terminal.print_location(page)
