"""What the tests read of a run's ledger, and run folders with rounds made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.records.schema import AggregatorRow, EvaluationRow, RoundRow, VisitRow
from coordinator.records.store import Commit, Ledger, read
from coordinator.records.visit_columns import VisitColumns

HOST_TABLES = ("meta", "host_rounds", "host_events")


def virtual_rows(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Table or view -> its rows, for all that are part of the result of a run; the method's own table among them."""
    ledger = folder / "ledger.sqlite"
    tables = [row["name"] for row in read(ledger, "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    return {
        table: [tuple(row) for row in read(ledger, f"SELECT * FROM {table}")]
        for table in sorted(set(tables) - set(HOST_TABLES))
    }


def chain(folder: Path) -> list[str]:
    """The hash chain of a run."""
    return [row["chain"] for row in read(folder / "ledger.sqlite", "SELECT chain FROM rounds ORDER BY round")]


def visit_row(number: int, round: int, client: int, *times: float, kind: str = "train", staleness: int = 0) -> VisitRow:
    """A visit with its four ``times``: start, end of download, of compute and of upload, in virtual seconds."""
    start, down_end, compute_end, up_end = times
    return VisitRow(
        number, round, client, "pi", "lte", kind, staleness, start, down_end, compute_end, up_end,
        0.0, 0.0, 500, 500, 1000.0, 1e6, 1e6, 5.0, 8, 1, 1.5, "", "", 0.5, 3.0, 0.25, 1.25,
    )  # fmt: skip


def message_row(
    round: int, tier: int, aggregator: int, direction: str, start: float, end: float | None, nbytes: int = 1000
) -> AggregatorRow:
    """A message of 2 J, after 3 J of waiting, that lost 0.25 s to others and costs a millionth a byte."""
    return AggregatorRow(round, tier, aggregator, direction, start, end, nbytes, 2.0, 3.0, 0.25, nbytes / 1e6)


def made_run(
    folder: Path,
    accuracies: Sequence[float | None],
    scenario: str,
    visits: Sequence[VisitRow] = (),
    joules: float = 10,
    is_ended: bool = True,
    aggregators: Sequence[AggregatorRow] = (),
    evaluations: Sequence[EvaluationRow] = (),
) -> Path:
    """A run folder with one round of 10 s, 1 kB and ``joules`` per accuracy; ``scenario`` is its text, in TOML.

    ``aggregators``: messages of a run with tiers; ``evaluations``: values beside the accuracies.
    """
    folder.mkdir(parents=True)
    (folder / "scenario.toml").write_text(scenario)
    (folder / "environment.json").write_text(json.dumps({"blocks": [], "partition": {}}))
    ledger = Ledger(folder / "ledger.sqlite", "genesis", None)
    for number, accuracy in enumerate(accuracies):
        row = RoundRow(
            number, 10.0 * number, 10.0 * number + 10, 1, accuracy, None, 2.0 - number, 500, 500, 1000.0, 1e6, 1e6,
            joules, 10.0, 0.0, 0, 0.0, None, "", "ab",
        )  # fmt: skip
        own = VisitColumns.of(visit for visit in visits if visit.round == number)
        messages = [each for each in aggregators if each.round == number]
        values = [each for each in evaluations if each.round == number]
        ledger.commit(Commit(row, own, aggregators=messages, evaluations=values))
    if is_ended:
        ledger.finish({"stopped_by": "rounds", "rounds": len(accuracies)})
    ledger.close()
    return folder
