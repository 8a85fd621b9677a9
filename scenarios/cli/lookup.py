"""The commands that look something up: list, explain, schema, doctor."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from scenarios.cli.completion import complete_names, complete_topics
from scenarios.cli.options import Json, emit
from scenarios.config.plugin_points import PLUGIN_POINTS

TOPICS = ", ".join([*(point.topic for point in PLUGIN_POINTS), "devices", "networks", "scenarios", "keys"]).replace(
    "methods", "methods (with corrections)", 1
)


def list_(
    kind: Annotated[str | None, typer.Argument(metavar="[WHAT]", help=TOPICS, autocompletion=complete_topics)] = None,
    assumed: Annotated[bool, typer.Option("--assumed", help="only rows with assumed figures")] = False,
    toml: Annotated[
        str | None, typer.Option("--toml", metavar="NAME", help="a device or network as a file of your own, to change")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the names that a scenario can use, or its keys."""
    from scenarios.cli import listing, listing_text

    if kind is None:
        topics = listing.topics()
        emit(topics, as_json, lambda: listing_text.show_topics(topics))
        return
    if toml is not None:
        text = listing.row_text(kind, toml)
        emit({"toml": text}, as_json, lambda: print(text, end=""))
        return
    rows = listing.rows(kind, assumed)
    emit(rows, as_json, lambda: listing_text.show(kind, rows, assumed=assumed))


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="a key (train.lr), a table (fleet.server), an option (method_options.mu), a name (sync, MODULE:ROW), "
            "or the folder of a run",
            autocompletion=complete_names,
        ),
    ],
    visit: Annotated[
        str | None,
        typer.Argument(
            metavar="[VISIT]", help="of a run: the number of a visit, or ROUND:CLIENT; by default its critical visits"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain a key of scenarios, a name they use, or what the time of a run's visit was made of."""
    from scenarios.cli import explain as explanations

    folder = Path(name)
    if visit is not None or (folder / "ledger.sqlite").is_file():
        from scenarios.studies import visit_parts

        if visit is None:
            rounds = visit_parts.critical_visits(folder)
            emit([asdict(each) for each in rounds], as_json, lambda: visit_parts.show_rounds(rounds))
        else:
            parts = visit_parts.visit_parts(folder, visit_parts.number_of(folder, visit))
            emit(asdict(parts), as_json, lambda: visit_parts.show(parts))
        return
    found = explanations.explained(name)
    emit(found, as_json, lambda: explanations.show(found))


def schema(
    output: Annotated[Path | None, typer.Option("-o", "--output", help="the file; by default stdout")] = None,
) -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from scenarios.config import json_schema

    text = json.dumps(json_schema.scenario_schema(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        print(text, end="")
    else:
        output.write_text(text, encoding="utf-8")
        print(f"schema: {output}")


def doctor(
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="measure training steps, and save a device for fleets")
    ] = False,
    name: Annotated[str, typer.Option("--name", help="name of the calibrated device")] = "this-host",
    passes: Annotated[int, typer.Option("--passes", help="repetitions of a calibration")] = 3,
    as_json: Json = False,
) -> None:
    """Show this machine: cores, memory, GPUs, versions, data sets."""
    from scenarios.studies import doctor as checks

    if calibrate:
        calibration = checks.calibrate(name, quiet=as_json, passes=passes)
        emit(calibration, as_json, lambda: checks.show_calibration(calibration))
        return
    facts = checks.examine()
    emit(facts, as_json, lambda: checks.show(facts))
