"""The commands that look something up: list, explain."""

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
    from scenarios.api import listing
    from scenarios.cli import listing_text

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
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="a key (train.lr), a table (fleet.server), an option (method_options.mu), a name (sync, MODULE:ROW), "
            "or the folder of a run",
            autocompletion=complete_names,
        ),
    ] = None,
    visit: Annotated[
        str | None,
        typer.Argument(
            metavar="[VISIT]", help="of a run: the number of a visit, or ROUND:CLIENT; by default its critical visits"
        ),
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="print the JSON Schema of scenarios, for editors")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="file of the schema; by default stdout")] = None,
    as_json: Json = False,
) -> None:
    """Explain a key, a name, or the time of a run's visit."""
    from scenarios.api.explained import explained
    from scenarios.cli import explain as explanations
    from scenarios.config.errors import ScenarioError

    if schema:
        if name is not None:
            raise ScenarioError(f"explain {name!r}: does not go with --schema, which is that of all keys")
        _write_schema(output)
        return
    if output is not None:
        raise ScenarioError(f"--output {output}: is the file of a schema: add --schema")
    if name is None:
        raise ScenarioError("explain: name a key, a table, an option or a row (fedbr list), or the folder of a run")
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
    found = explained(name)
    emit(found, as_json, lambda: explanations.show(found))


def _write_schema(file: Path | None) -> None:
    from scenarios.config import json_schema

    text = json.dumps(json_schema.scenario_schema(), indent=2, ensure_ascii=False) + "\n"
    if file is None:
        print(text, end="")
    else:
        file.write_text(text, encoding="utf-8")
        print(f"schema: {file}")
