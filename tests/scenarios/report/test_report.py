"""The report: what it says of runs, and that it stands alone."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet
import pytest

from coordinator.methods.gmbs import CHOICES, ChoiceRow
from coordinator.records.schema import EvaluationRow, HostEvent, RoundRow, VisitRow
from coordinator.records.store import Commit, Ledger
from coordinator.records.visit_columns import VisitColumns
from scenarios.config.errors import ReportError
from scenarios.report import html, terminal
from scenarios.report.run_reader import BlockTraffic, open_runs
from scenarios.run.run_finder import found
from scenarios.run.run_folder import RunFolder
from scenarios.run.run_records import SummaryRecord
from scenarios.run.score import OF_ACCURACY
from tests.brief import brief_figures, drawn_figures

BLOCKS = [
    {"name": "stem", "params": 98, "buffers": 2, "nbytes": 400, "flops_forward": 3e6},
    {"name": "head", "params": 300, "buffers": 0, "nbytes": 1200, "flops_forward": 1e6},
]
COMPARISON = {
    "target_accuracy": 0.5,
    "at_common_bytes": {"bytes": 6_000_000, "accuracy": {"fedavg": 0.4, "fedbr": 0.45}},
    "at_common_seconds": {"seconds": 12.0, "accuracy": {"fedavg": 0.4, "fedbr": None}},
}
VOID = {"meta", "br", "hr", "img", "link", "input"}
HEAD = {"head": 1200}
PAYLOADS = {"whole": {"model": {"stem": 392, "stem.buffers": 8} | HEAD}, "head": {"model": HEAD}}


class Page(HTMLParser):
    """An HTML page's table rows, ids and attributes; fails where a tag is closed that is not the open one."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = [(name, value or "") for name, value in attrs]
        self.attributes += known
        self.ids += [value for name, value in known if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.rows and self.open[-1] in ("td", "th", "span"):
            self.rows[-1][-1] += data

    def row(self, name: str, which: int = 0) -> list[str]:
        """The cells of the table row that begins with ``name``; of several such rows, one by its place."""
        return [row for row in self.rows if row and row[0] == name][which]


def make_run(
    folder: Path,
    method: str,
    rounds: Sequence[Commit],
    summary: dict[str, Any] | None = None,
    seed: int = 0,
    clients: int = 3,
    **more: Any,
) -> Path:
    """A run folder as the runner leaves it, with these rounds; without a summary it is unfinished.

    ``more``: further parts of its environment.
    """
    folder.mkdir(parents=True)
    text = f'method = "{method}"\nseed = {seed}\n[data]\nname = "digits"\nclients = {clients}\n'
    (folder / "scenario.toml").write_text(text + "[stop]\ntarget_accuracy = 0.5\n")
    partition = {"clients": clients, "classes": 2, "histogram": [[20, 5]] * clients}
    environment = {"python": "3.11.7", "versions": {"torch": "2.11.0"}, "partition": partition, "blocks": BLOCKS}
    (folder / "environment.json").write_text(json.dumps(environment | more))
    ledger = Ledger(folder / "ledger.sqlite", "genesis", CHOICES if method == "fedbr" else None)
    for commit in rounds:
        ledger.commit(commit)
    ledger.event(HostEvent("worker died", "worker-1", "signal 9 <killed>", 2.5))
    if summary:
        ledger.finish(summary)
    ledger.close()
    return folder


def round_row(number: int, end_s: float, accuracy: float | None, **amounts: Any) -> RoundRow:
    known: dict[str, Any] = {"bytes_down": 2_000_000, "bytes_up": 2_000_000, "nominal_bytes": 4e6, "flops": 1e9}
    known |= {"nominal_flops": 1e9, "joules": 50.0, "busy_s": 16.0, "wasted_s": 0.0, "wasted_bytes": 0}
    known |= {"wasted_joules": 0.0, "critical": 1, "bottleneck": "own link", "model_sha256": "ab"}
    known |= {"start_s": number * 10.0, "participants": 2} | amounts
    return RoundRow(round=number, end_s=end_s, accuracy=accuracy, test_loss=None, train_loss=1.5, **known)


def visit(
    number: int, client: int, start_s: float, *seconds: float, down: str = "whole", nbytes: int = 1650
) -> VisitRow:
    """Visits are numbered as if clients 0 and 1 took part in every round; ``seconds`` of each part of it."""
    times = dict(zip(("down_end_s", "compute_end_s", "up_end_s"), start_s + np.cumsum(seconds), strict=True))
    known = {"visit": 2 * number + client, "round": number, "client": client, "device": "pi", "network": "lte"}
    spent = {"bytes_down": nbytes, "bytes_up": 1650, "nominal_bytes": 3200.0, "flops": 5e8, "nominal_flops": 5e8}
    rest = {"staleness": 0, "shared_s": 0.0, "paused_s": 0.0, "joules": 25.0, "samples": 25, "steps": 1, "loss": 1.5}
    payloads = {"kind": "train", "down_payload": down, "up_payload": "whole", "start_s": start_s}
    energy = {"idle_joules": 5.0, "compute_joules": 12.0, "receive_joules": 2.0, "send_joules": 6.0}
    return VisitRow(**{**known, **times, **spent, **rest, **payloads, **energy})


def fedavg_rounds() -> list[Commit]:
    """Three rounds of 10 s and 4 MB; client 0 takes 2 + 3 + 1 s of the first 10 and client 1 2 + 4 + 4 s."""
    commits = []
    for number, accuracy in enumerate((0.4, 0.6, 0.8)):
        row = round_row(number, 10.0 * number + 10, accuracy)
        visits = [visit(number, 0, 10.0 * number, 2, 3, 1), visit(number, 1, 10.0 * number, 2, 4, 4)]
        commits.append(Commit(row, VisitColumns.of(visits), PAYLOADS, wall_seconds=1.5))
    return commits


def fedbr_rounds() -> list[Commit]:
    """Two rounds of 3 MB: the first sends the whole model, the second its last block only (alpha = 1)."""
    commits = []
    for number, accuracy in enumerate((0.3, 0.45)):
        down, nbytes = ("head", 1250) if number else ("whole", 1650)
        amounts = {"bytes_down": 1_000_000, "nominal_bytes": 3.5e6, "flops": 1.5e9, "nominal_flops": 1.2e9}
        row = round_row(number, 6.0 * number + 6, accuracy, **amounts)
        visits = [visit(number, client, 6.0 * number, 1, 3, 2, down=down, nbytes=nbytes) for client in (0, 1)]
        chosen = [ChoiceRow(number, client, 1, int(number == 0), 0.2, 0.5, 0.1, 1.0, 1.0, 0.1) for client in (0, 1)]
        commits.append(Commit(row, VisitColumns.of(visits), PAYLOADS, chosen, wall_seconds=1.5))
    return commits


def two_runs(folder: Path) -> list[Path]:
    """FedAvg, finished, beside FedBR, killed after its second round."""
    ended = {"stopped_by": "rounds", "wall_seconds": 7.0, "rounds": 3}
    return [
        make_run(folder / "a", "fedavg", fedavg_rounds(), ended),
        make_run(folder / "b", "fedbr", fedbr_rounds()),
    ]


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """`two_runs`, for one test."""
    return two_runs(tmp_path)


class Reported(NamedTuple):
    """`two_runs`, their files before the report, and the report."""

    runs: list[Path]
    before: dict[Path, bytes]
    report: Path


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """For the tests that only read it: it takes seconds to draw."""
    folder = tmp_path_factory.mktemp("reported")
    runs = two_runs(folder)
    before = {file: file.read_bytes() for run in runs for file in run.iterdir()}
    (folder / "out").mkdir()
    with drawn_figures():
        return Reported(runs, before, html.build(runs, folder / "out" / "report.html", "Two methods"))


@pytest.fixture
def page(reported: Reported) -> Page:
    return Page(reported.report.read_text())


def page_of(folder: Path, runs: list[Path], *names: str, title: str = "Runs") -> Page:
    """The page of runs with the figures of these names alone: all of them take seconds to draw."""
    with brief_figures(*names):
        return Page(html.build(runs, folder / "report.html", title).read_text())


def test_the_page_says_in_reading_order_what_each_method_reached_and_cost_and_what_is_unfinished(page: Page) -> None:
    outcome = ["80.00 %", "80.00 %", "3", "20 s", "8 MB", "8 MB"]
    assert page.row("fedavg") == ["fedavg", *outcome, "3 GFLOP", "3.0 GFLOP", "150 J", "7 s", "round limit"]
    outcome = ["45.00 %", "45.00 %", "2", "not reached", "not reached", "not reached"]
    assert page.row("fedbr") == ["fedbr", *outcome, "3 GFLOP", "2.4 GFLOP", "100 J", "3 s", "unfinished"]
    assert "Unfinished: fedbr." in page.text
    assert "not reached, best 45.0 %" in page.text
    totals = ["6 MB", "7 MB", "0.857", "3.0 GFLOP", "2.4 GFLOP", "1.250"]
    assert page.row("fedbr", -1) == ["fedbr", *totals, "-25.0 %", "-12.5 %", "+50.0 %", "+20.0 %"]
    sections = (
        "results accuracy losses front target choices blame timing timeline energy participation waste bytes cost "
    )
    sections += "partition blocks scenario"
    assert " ".join(name for name in page.ids if name in sections.split()) == sections
    captions = ["curves", "losses", "pareto", "to_target", "choices", "bottlenecks", "timing", "round_timeline"]
    captions += ["energy", "energy_parts", "participation", "blocks", "partition"]
    assert [name for name in page.ids if name.endswith("-caption")] == [f"{name}-caption" for name in captions]


def test_the_page_is_one_file_that_refers_to_nothing_outside_itself(page: Page, reported: Reported) -> None:
    text = reported.report.read_text()
    assert "http" not in text
    assert "@import" not in text
    assert not {"src", "srcset", "data", "action"} & {name for name, _ in page.attributes}
    links = [value for name, value in page.attributes if name in ("href", "xlink:href")]
    assert [link for link in links if not link.startswith(("#", "data:image/png;base64,"))] == []
    assert re.findall(r"url\((?!#)", text) == []
    assert {link[1:] for link in links if link.startswith("#")} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_the_same_runs_give_the_same_bytes_and_are_left_as_they_are(reported: Reported, tmp_path: Path) -> None:
    first, again = (html.build(reported.runs, tmp_path / name, "Two methods") for name in ("a.html", "b.html"))
    assert again.read_bytes() == first.read_bytes()
    assert {file: file.read_bytes() for file in reported.before} == reported.before


def test_a_block_is_charged_its_real_bytes_beside_an_equal_share_of_the_model(runs: list[Path]) -> None:
    # The model has 1,600 bytes in two blocks, nominally 800 each; buffers count with their block, and once.
    (_, fedbr) = open_runs(runs)
    stem = BlockTraffic("stem", down=2 * 400, up=4 * 400, nominal_down=2 * 800, nominal_up=4 * 800)
    head = BlockTraffic("head", down=4 * 1200, up=4 * 1200, nominal_down=4 * 800, nominal_up=4 * 800)
    header = BlockTraffic("header", down=4 * 50, up=4 * 50, nominal_down=0, nominal_up=0)
    assert fedbr.traffic() == [stem, head, header]


def test_the_accuracies_of_clients_are_shown_by_kind_of_device(tmp_path: Path) -> None:
    """Two seeds; phones are clients 0 and 2. Validation, of client 0 alone, is best after the first of two rounds."""

    def commits(*phones: float) -> list[Commit]:
        every = [(0.25, 0.5, 0.75), (phones[0], 0.5, phones[1])]
        return [
            Commit(
                round_row(n, 10.0 * (n + 1), 0.5, critical=None, bottleneck=""),
                evaluations=[
                    *(EvaluationRow(n, client, "accuracy", value, 4) for client, value in enumerate(values)),
                    EvaluationRow(n, 0, "accuracy", 0.5 - n / 4, 4, kind="validation"),
                ],
            )
            for n, values in enumerate(every)
        ]

    classes: dict[str, Any] = {"clients_by_device": {"watch": [1], "phone": [0, 2]}}
    runs = [
        make_run(tmp_path / "a", "fedavg", commits(0.0, 0.5), **classes),
        make_run(tmp_path / "b", "fedavg", commits(0.5, 0.75), seed=1, **classes),
    ]
    page = page_of(tmp_path, runs, "client_values", "client_devices")
    head = ["device", "clients", "mean", "worst decile", "spread"]
    # Of the first seed.
    last, best = (page.rows.index([heading, *head]) for heading in ("last evaluation", "best validation round"))
    assert [row[1:] for row in page.rows[last + 1 : last + 3]] == [
        ["watch", "1", "50.00 %", "50.00 %", "0.00 %"],
        ["phone", "2", "25.00 %", "0.00 %", "25.00 %"],
    ]
    assert [row[1:] for row in page.rows[best + 1 : best + 3]] == [
        ["watch", "1", "50.00 %", "50.00 %", "0.00 %"],
        ["phone", "2", "50.00 %", "25.00 %", "25.00 %"],
    ]
    # Phones have 25 and 62.5 %: 43.75 ± 12.706 x 26.52 / sqrt(2). The worst are first the phones, then the watch.
    means = page.rows.index(["", "seeds", "worst device", "watch", "phone"])
    texts = [text.replace("\u00a0", " ") for text in page.rows[means + 1]]
    assert texts == ["fedavg", "2", "38 (0 to 100) %", "50.00 ± 0.00 %", "44 (0 to 100) %"]
    assert "worst device" in next(row for row in page.rows if row[:2] == ["group", "seeds"])
    assert "client_devices-caption" in page.ids


def test_the_best_validation_round_is_in_the_report_and_in_the_final_table(tmp_path: Path) -> None:
    """Validation is best after the second of three rounds; test examples would choose the third."""

    def measured(number: int, **pairs: tuple[float, float]) -> list[EvaluationRow]:
        return [
            EvaluationRow(number, client, "accuracy", value, 4, kind=None if name == "after" else name)
            for name, pair in pairs.items()
            for client, value in enumerate(pair)
        ]

    every = [
        measured(0, after=(0.5, 0.25), before=(0.25, 0.25), validation=(0.5, 0.25)),
        measured(1, after=(1.0, 0.5), before=(0.5, 0.75), validation=(0.75, 0.5)),
        measured(2, after=(1.0, 0.75), before=(0.5, 0.5), validation=(0.25, 0.75)),
    ]
    rounds = [
        Commit(round_row(n, 10.0 * (n + 1), accuracy, critical=None, bottleneck=""), evaluations=own)
        for n, (own, accuracy) in enumerate(zip(every, (0.375, 0.75, 0.875), strict=True))
    ]
    with_all = make_run(tmp_path / "a", "fedavg", rounds)
    without = make_run(tmp_path / "b", "fedprox", [replace(rounds[0], evaluations=every[0][:2])])
    page = page_of(tmp_path, [with_all, without], "client_values", "adaptation")
    header = next(index for index, row in enumerate(page.rows) if row[:1] == ["best validation round"])
    assert page.rows[header][1:] == [
        *("round", "virtual time", "bytes, real", "validation", "mean", "mean before adaptation", "worst decile"),
        "spread",
    ]
    assert page.rows[header + 1] == [
        *("fedavg", "2", "20 s", "8 MB", "62.50 %", "75.00 %", "62.50 %", "50.00 %", "25.00 %")
    ]
    assert "adaptation-caption" in page.ids

    best = RunFolder(with_all).best_round
    assert best is not None
    ended = SummaryRecord.model_validate({"rounds": 2, "stopped_by": "rounds", "best_round": vars(best)})
    assert dict(terminal.best_round_rows([ended, ended.model_copy(update={"best_round": None})], OF_ACCURACY)) == {
        "best validation round": ["2", "-"],
        "accuracy then, validation": ["62.50 %", "-"],
        "accuracy then, clients": ["75.00 %", "-"],
        "before adaptation": ["62.50 %", "-"],
        "worst decile": ["50.00 %", "-"],
    }


def trouble() -> list[Commit]:
    """Client 1 is late in round 0, lost in round 1, where nobody counts, and round 2 is cut.

    Of 3 x 16 s, 12 MB and 150 J, 10 + 16 + 16 s, 1 + 4 + 4 MB and 20 + 50 + 50 J are in vain.
    """
    kinds = (("train", "late"), ("lost", "lost"), ("cut", "cut"))
    wasted = ((10.0, 1_000_000, 20.0), (16.0, 4_000_000, 50.0), (16.0, 4_000_000, 50.0))
    critical, by = (1, 0, 1), ("compute", "waiting", "compute")
    commits = []
    for number, pair in enumerate(kinds):
        rows = [visit(number, k, 10.0 * number, 2, 3, 3 + k)._replace(kind=kind) for k, kind in enumerate(pair)]
        amounts: dict[str, Any] = dict(zip(("wasted_s", "wasted_bytes", "wasted_joules"), wasted[number], strict=True))
        amounts |= {"critical": critical[number], "bottleneck": by[number], "participants": pair.count("train")}
        accuracy = None if number else 0.4
        row = round_row(number, 10.0 * number + 10 - number, accuracy, **amounts)
        commits.append(Commit(row, VisitColumns.of(rows)))
    return commits


@pytest.fixture
def troubled(tmp_path: Path) -> Path:
    """A run of two rounds that a budget ended in the third."""
    ended = {"stopped_by": "virtual_seconds", "wall_seconds": 7.0, "rounds": 2}
    return make_run(tmp_path / "troubled", "fedavg", trouble(), ended)


def test_the_page_names_who_was_waited_for_and_what_was_spent_in_vain(troubled: Path, tmp_path: Path) -> None:
    page = page_of(tmp_path, [troubled], "bottlenecks")
    assert page.row("client 1") == ["client 1", "pi", "lte", "2", "3", "18 s", "compute 2"]
    assert page.row("client 0") == ["client 0", "pi", "lte", "1", "3", "9 s", "waiting 1"]
    row = next(row for row in page.rows if row[:1] == ["fedavg"] and len(row) == 9)
    assert row[1:6] == ["1", "0", "1", "2", "2"]
    assert row[6:] == ["42 s of 48 s87.50 %", "9 MB of 12 MB75.00 %", "120 J of 150 J80.00 %"]
    assert ("style", "width:87.5%") in page.attributes
    assert "nominal" not in page.text.lower()  # no method of the page has nominal costs of its own


def test_clients_whose_updates_could_not_be_used_are_named_and_counted(troubled: Path, tmp_path: Path) -> None:
    kinds = ("train", "refused", "zeroed")
    bad = [
        Commit(
            round_row(n, 10.0 * n + 10, 0.4),
            VisitColumns.of(
                visit(n, k, 10.0 * n, 2, 3, 1)._replace(visit=3 * n + k, kind=kind) for k, kind in enumerate(kinds)
            ),
        )
        for n in range(2)
    ]
    folder = make_run(tmp_path / "bad", "fedprox", bad)
    page = page_of(tmp_path, [troubled, folder])
    assert ["fedprox", "1", "refused", "2"] in page.rows
    assert ["fedprox", "2", "zeroed", "2"] in page.rows
    row = next(row for row in page.rows if row[:1] == ["fedprox"] and len(row) == 11)
    assert row[1:8] == ["2", "2", "0", "0", "0", "0", "2"]


BASES = {"devices": {"pi": {"compute": "derived"}}, "networks": {"lte": {"down": "assumed", "up": "read"}}}


def test_the_page_shows_the_shares_and_leaves_out_runs_that_do_not_know_them(tmp_path: Path) -> None:
    knows = make_run(tmp_path / "a", "fedavg", fedavg_rounds(), bases=BASES)
    older = make_run(tmp_path / "b", "fedprox", fedavg_rounds())
    page = page_of(tmp_path, [knows, older])
    assert ["fedavg", "31.25 %", "0.00 %", "43.75 %", "25.00 %"] in page.rows
    alone = page_of(tmp_path, [older])
    assert "bases" in page.ids and "bases" not in alone.ids


def test_a_run_that_has_not_finished_a_round_still_has_a_report(tmp_path: Path) -> None:
    path = html.build([make_run(tmp_path / "run", "fedbr", [])], tmp_path / "report.html", "Just begun")
    page = Page(path.read_text())
    assert page.row("fedbr")[1:7] == ["–", "–", "0", "not reached", "not reached", "not reached"]
    assert "No run has reached 50 %." in page.text
    assert "accuracy" not in page.ids


def test_names_from_outside_are_text_and_never_markup(runs: list[Path], tmp_path: Path) -> None:
    page = page_of(tmp_path, runs, title="<script>alert(1)</script>")
    assert "<script>alert(1)</script>" in page.text  # as characters: a real tag would not be in the text
    assert page.row("worker died") == ["worker died", "worker-1", "signal 9 <killed>", "2.50"]


def test_csv_and_parquet_hold_one_row_per_run_and_round_and_names_as_text(runs: list[Path], tmp_path: Path) -> None:
    runs[1] = runs[1].rename(tmp_path / "=cmd|x!A0")
    with html.csv_table(runs, tmp_path / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["method"], row["round"], row["accuracy"]) for row in rows] == [
        ("a", "fedavg", "0", "0.4"),
        ("a", "fedavg", "1", "0.6"),
        ("a", "fedavg", "2", "0.8"),
        ("'=cmd|x!A0", "fedbr", "0", "0.3"),
        ("'=cmd|x!A0", "fedbr", "1", "0.45"),
    ]
    assert (rows[-1]["bytes_down"], rows[-1]["bytes_so_far"], rows[-1]["test_loss"]) == ("1000000", "6000000", "")
    table = pyarrow.parquet.read_table(html.parquet_table(runs, tmp_path / "rounds.parquet"))
    assert table.column("bytes_so_far").to_pylist() == [4_000_000, 8_000_000, 12_000_000, 3_000_000, 6_000_000]


def test_a_compare_folder_is_reported_whole_and_into_itself_even_when_it_was_moved(tmp_path: Path) -> None:
    study = tmp_path / "digits" / "20260105-1"
    runs = [make_run(study / "fedavg", "fedavg", fedavg_rounds()), make_run(study / "fedbr", "fedbr", fedbr_rounds())]
    stated = COMPARISON | {"runs": [{"run_dir": f"/gone/{run.name}"} for run in runs]}
    (study / "compare.json").write_text(json.dumps(stated))
    whole, alone = found([study]), found([runs[0]])
    assert whole.comparison is not None
    assert whole.comparison.model_dump(exclude_unset=True) == stated
    assert (whole.folders, alone.folders, alone.comparison) == (runs, [runs[0]], None)
    path = html.from_folder(study, None, tmp_path / "rounds.csv", tmp_path / "rounds.parquet")
    assert path == study / "report.html"
    page = Page(path.read_text())
    assert page.text.startswith("digits: fedavg, fedbr ")
    assert page.row("fedbr")[7] == "45.00 %"  # at the smallest common bytes
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 1 + 5
    assert pyarrow.parquet.read_table(tmp_path / "rounds.parquet").num_rows == 5


@pytest.mark.parametrize("name", ["scenario.toml", "environment.json", "ledger.sqlite"])
def test_a_run_folder_with_a_damaged_file_or_without_it_is_refused_with_its_name(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "fedavg", [])
    (run / name).write_text("[not what it should be" * 99)
    with pytest.raises(ReportError, match=rf"{name} cannot be read: "):
        open_runs([run])
    (run / name).unlink()
    with pytest.raises(ReportError, match=rf"run is not a run folder: it has no {name}$"):
        html.build([run], tmp_path / "report.html", "Not a run")


def test_nothing_to_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="there is no run to report"):
        open_runs([])
    with pytest.raises(ReportError, match="there is no such folder"):
        open_runs([tmp_path / "absent"])
    (tmp_path / "compare.json").write_text("{}")
    with pytest.raises(
        ReportError, match=r"compare\.json does not name the runs that were compared: runs: Field required"
    ):
        found([tmp_path])
