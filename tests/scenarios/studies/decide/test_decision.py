"""``fedbr decide`` with real runs on the digits: what is trained, what is replayed, and the answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fedbr
from scenarios.cli import main
from scenarios.config.load import load
from scenarios.config.overrides import parsed
from scenarios.experiment.grid import grid_of
from scenarios.run.run_folder import RunFolder
from scenarios.run.setup import RunInputs
from scenarios.studies.decide import analysis, analysis_file, decision, evidence, variations
from scenarios.studies.decide.candidates import starter
from scenarios.studies.decide.objective import Objective
from scenarios.studies.replay import prepared
from tests.scenarios.in_this_process import SMALL, summary_of_run
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

GRID = ("digits", "method=fedavg,fedprox", "fleet.networks={wifi-4=1},{lte=1}", *SMALL)


def less_varied(patch: pytest.MonkeyPatch) -> None:
    """Two values of each axis, the second that of `variations.REPLAYED`."""
    last = dict(variations.REPLAYED.values())
    axes = {
        axis: (change, (values[0], last.get(axis, values[-1])), words)
        for axis, (change, values, words) in variations.AXES.items()
    }
    patch.setattr(variations, "AXES", axes)
    patch.setattr(analysis, "MAPPED", (0.5, 1.0))


@pytest.fixture(autouse=True)
def in_this_process_on_few_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    less_varied(monkeypatch)


def decided(capsys: pytest.CaptureFixture[str], out: Path | str, *words: str) -> dict[str, Any]:
    options = ("--out", str(out), "--run-id", "d", "--json", "--seeds", "2", "--draws", "2")
    assert main.run_command(["decide", *GRID, *options, *words]) == 0
    return dict(json.loads(capsys.readouterr().out))


WHOLE = ("--budget", "seconds=1 h", "--robust")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, pool_in_this_process: None) -> Path:
    """The folder of a decision with all its parts, for tests that only read it or copies of it."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        less_varied(patch)
        options = ("--run-id", "d", "--report", "--seeds", "2", "--draws", "2", *WHOLE)
        assert main.run_command(["decide", *GRID, "--out", str(folder), *options]) == 0
    return folder


@pytest.fixture(scope="module")
def whole(out: Path) -> dict[str, Any]:
    """Its result."""
    return dict(json.loads((out / "digits/d/study.json").read_text()))


def by_settings(result: dict[str, Any]) -> dict[tuple[str, ...], dict[str, Any]]:
    return {tuple(row["settings"].values()): row for row in result["candidates"]}


def trained(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs on the fleets of the candidates."""
    return [run for run in result["runs"] if not run["name"].endswith("-gone")]


@pytest.mark.long
def test_candidates_that_differ_in_links_alone_share_one_training(whole: dict[str, Any]) -> None:
    assert sorted(Path(run["run_dir"]).name.partition("-networks")[0] for run in trained(whole)) == [
        "fedavg", "fedavg", "fedprox", "fedprox",
    ]  # fmt: skip
    rows = by_settings(whole)
    wifi, lte = (rows["fedavg", f"{{{name} = 1}}"] for name in ("wifi-4", "lte"))
    # The same training, in other times.
    assert wifi["score"]["values"][0] == lte["score"]["values"][0]
    assert wifi["spent"]["bytes"] == lte["spent"]["bytes"]
    assert wifi["spent"]["seconds"]["mean"] < lte["spent"]["seconds"]["mean"]
    # Two of the first rung's rounds and seeds for two trainings, and then the rest of them.
    assert whole["effort"]["rounds"] == 16
    assert (whole["effort"]["exhaustive_runs"], whole["effort"]["exhaustive_rounds"]) == (8, 32)
    assert len(whole["finalists"]) == 3
    assert [row["state"] for row in whole["candidates"]].count("halved") == 1


def test_the_recommended_scenario_is_the_users_own_with_the_budgets(out: Path, whole: dict[str, Any]) -> None:
    scenario = load(str(out / "digits" / "d" / "recommended.toml")).scenario
    chosen = next(row for row in whole["candidates"] if row["name"] == whole["chosen"])
    assert (scenario.method, scenario.budget.virtual_seconds) == (chosen["method"], 3600.0)
    assert (scenario.data.validation, scenario.eval.split) == (0.0, "test")  # on all examples
    assert whole["overrides"][-1] == "data.validation=0.2"
    assert {RunFolder(Path(run["run_dir"])).keys()["eval.split"] for run in whole["runs"]} == {"validation"}
    assert whole["test"]["seeds"] == [0, 1]
    assert 0 < whole["test"]["mean"] < 1


def test_the_model_that_is_scored_is_that_of_the_last_round_within_the_budgets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small = [word for word in SMALL if not word.startswith("rounds.max")]
    words = ["digits", "method=fedavg", "fleet.networks={wifi-4=1},{lte=1}", *small, "--seeds", "1", "--draws", "0"]
    options = ("--out", str(tmp_path), "--json", "--budget")

    def decided_within(budget: str, run_id: str, rounds: int = 4) -> dict[str, Any]:
        more = (budget, "--run-id", run_id, f"rounds.max={rounds}")
        assert main.run_command(["decide", *words, *options, *more]) == 0
        return dict(json.loads(capsys.readouterr().out))

    whole = decided_within("seconds=1 h", "whole")
    (run,) = whole["runs"]
    first, _, third, _ = (point.virtual_seconds for point in RunFolder(Path(run["run_dir"])).trail)
    assert whole["test"]["rounds"] == [4]
    # Both share one training of four rounds, which keeps the checkpoints of the last two.
    assert decided_within(f"seconds={third + 1e-3} s", "three")["test"]["rounds"] == [3]
    result = decided_within(f"seconds={first + 1e-3} s", "one")
    assert [(Path(run["run_dir"]).name, run["rounds"]) for run in result["runs"]] == [
        (Path(run["run_dir"]).name, 4),
        (f"{Path(run['run_dir']).name}-scored", 1),
    ]
    assert result["test"]["rounds"] == [1]
    assert result["test"]["values"] == decided_within("seconds=1 h", "short", 1)["test"]["values"]
    assert result["test"]["values"] != whole["test"]["values"]


@pytest.mark.parametrize(
    ("axis", "trainings"),
    [
        ("fleet.tiers.networks={lte=1},{broadband=1}", 1),
        ("fleet.tiers.assign=turn,place", 2),
        ("tiers.interval=1,2", 2),
    ],
)
def test_candidates_share_a_training_if_aggregators_train_with_the_same_clients(axis: str, trainings: int) -> None:
    planned = decision.plan(grid_of("digits", ["fleet.tiers.count=2", axis]), Objective(0.9, "seconds", {}))
    assert len({candidate.like for candidate in planned.candidates}) == trainings


def test_the_page_speaks_of_validation_examples(out: Path) -> None:
    page = (out / "digits/d/report.html").read_text()
    assert "Validation accuracy after each evaluated round" in page
    assert "test accuracy" not in page.lower()


def test_a_limit_of_wan_bytes_is_one_of_all_bytes_where_there_are_no_aggregators(tmp_path: Path) -> None:
    sought = Objective(0.9, "wan_bytes", {"wan_bytes": 5e6})
    planned = decision.plan(grid_of("digits", ["fleet.tiers.count=0,2"]), sought)
    limits = []
    for number, candidate in enumerate(planned.candidates):
        file = tmp_path / f"{number}.toml"
        file.write_text(planned.recommended(candidate))
        scenario = load(str(file)).scenario
        limits.append((scenario.budget.bytes, scenario.budget.wan_bytes, scenario.stop.target_accuracy))
    assert limits == [(5_000_000, None, 0.9), (None, 5_000_000, 0.9)]


def runs_without(result: dict[str, Any], absence: str) -> Iterator[tuple[set[int], set[int]]]:
    """(the clients that are gone, those that took part) of the runs of an absence."""
    for run in result["runs"]:
        if run["name"].endswith(absence):
            path = Path(run["run_dir"])
            lines = Path(f"{path}.csv").read_text().splitlines()[1:]
            away = {int(line.split(",")[0]) for line in lines if line.split(",")[1] != "0"}
            yield away, {row[0] for row in RunFolder(path).query("SELECT client FROM visits")}


def test_the_two_best_are_trained_without_a_fifth_of_the_clients(whole: dict[str, Any]) -> None:
    without = list(runs_without(whole, "-gone"))
    assert len(without) == 2
    for away, took_part in without:
        assert len(away) == 2  # of ten clients
        assert took_part
        assert not took_part & away
    assert [(each["change"], each["how"]) for each in whole["robust"]] == [
        ("links halved", "replayed"),
        ("devices half as fast", "replayed"),
        ("a fifth slow", "replayed"),
        ("a fifth of the clients gone", "seed 0, trained"),
    ]
    assert whole["robust"][-1]["chosen"] in whole["finalists"][:2]
    assert not list(runs_without(whole, "-cut-off"))  # there is no gateway


def test_all_links_on_the_way_to_the_server_are_varied_together() -> None:
    settings = ["fleet.server.up=8 Mbit/s", "fleet.gateways.count=2", "fleet.gateways.down=4 Mbit/s"]
    fleet = RunInputs(load("digits", parsed(settings))).drawn_fleet
    halved = variations.with_links(fleet, 0.5)
    assert (halved.links.up, halved.links.site_down, halved.links.site_up) == (4e6, (2e6, 2e6), (5e8, 5e8))
    assert halved.up.tolist() == (fleet.up / 2).tolist()
    assert halved.down.tolist() == (fleet.down / 2).tolist()


def test_a_decision_that_was_interrupted_gives_the_same_answer(
    whole: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first rung ends, and the command with it.
    with monkeypatch.context() as patch:
        patch.setattr(decision.Decision, "further", lambda self, done: (_ for _ in ()).throw(KeyboardInterrupt))
        words = (*GRID, "--budget", "seconds=1 h", "--out", str(tmp_path / "cut"), "--run-id", "d", "--seeds", "2")
        assert main.run_command(["decide", *words]) != 0
    rounds = [len(RunFolder(path).rounds) for path in sorted((tmp_path / "cut/digits/d").glob("fed*"))]
    assert rounds == [2, 2, 2, 2]
    again = decided(capsys, tmp_path / "cut", "--budget", "seconds=1 h", "--draws", "0")
    assert {key: again[key] for key in ("candidates", "finalists", "tests", "test")} == {
        key: whole[key] for key in ("candidates", "finalists", "tests", "test")
    }
    assert [run["model_sha256"] for run in again["runs"]] == [run["model_sha256"] for run in trained(whole)]


def test_a_finalist_that_cannot_be_replayed_leaves_the_answer_open(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["decide", "digits", "method=fedavg", "rounds.policy=sync,deadline,fedbuff", *SMALL]
    options = ("--out", str(tmp_path), "--run-id", "d", "--json", "--seeds", "1", "--draws", "1")
    assert main.run_command([*words, *options, "--budget", "seconds=1 h"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["not_replayed"]) == ["rounds.policy=fedbuff"]
    page = (tmp_path / "digits/d/decision.md").read_text()
    assert "| all links × 0.125 to 0.5 | open: 3 would have to be trained |" in page
    assert "3 policy=fedbuff cannot be replayed: rounds.policy = fedbuff: the order of its updates" in page


def test_a_forecast_refuses_candidates_that_cannot_keep_a_budget() -> None:
    words = ["method=fedavg", 'codec.up=none,{kind="quantize",bits=4}', "rounds.max=4"]
    # A round takes 5 clients 61.8 kB down each, and up again or 8.2 kB: 617 kB or 350 kB.
    planned = decision.plan(grid_of("digits", words), Objective(None, "bytes", {"bytes": 500_000}), 1)
    refused, kept = planned.candidates
    assert refused.refusal == "until it is first evaluated, one round takes 617 kB of 500 kB (forecast)"
    assert (kept.refusal, [run.name[:6] for run in planned.run_set.runs]) == ("", ["fedavg"])


def test_the_shipped_candidates_vary_one_thing_each_and_leave_out_what_a_scenario_refuses() -> None:
    told: list[str] = []
    points = starter(grid_of("digits", []), told.append)
    assert len(points) == 21
    assert told == []
    assert len(starter(grid_of("digits", ["aggregate.sum=fixed_point"]), told.append)) == 17
    assert told[0] == (
        'left out: method=scaffold: command line: aggregate.sum = "fixed_point": scaffold needs individual updates'
    )


def test_python_lists_candidates_as_mappings_and_reads_the_answer(tmp_path: Path) -> None:
    small: dict[str, Any] = {"train.local_steps": 4, "rounds.max": 4}
    decided = fedbr.decide(
        "digits",
        candidates=[{"method": "fedavg"}, {"method": "fedavg", "train.lr": 0.01}],
        target="99 %",
        budgets={"bytes": 5e6},
        seeds=1,
        draws=0,
        out=tmp_path,
        **small,
    )
    assert [row["settings"] for row in decided.result["candidates"]] == [
        {"method": "fedavg"},
        {"method": "fedavg", "train.lr": "0.01"},
    ]
    assert decided.result["nearest"]["name"] in ("method=fedavg", "method=fedavg train.lr=0.01")
    assert (decided.folder / "decision.md").read_text().startswith("No candidate reaches 99 % ")
    assert (decided.folder / "recommended.toml").is_file()
    assert len(decided) == 2
    with pytest.raises(fedbr.ScenarioError) as refused:
        fedbr.decide("digits", {"method": ["fedavg", "fedbr"]}, budgets={"byte": 1e6})
    assert str(refused.value) == "budgets = byte=1000000: unknown amount 'byte', did you mean 'bytes'?"


def test_replays_have_the_bytes_and_the_price_of_messages_above_aggregators(tmp_path: Path) -> None:
    summary_of_run(tmp_path, *SMALL, "fleet.tiers.count=2", "fleet.tiers.price=1000", run_id="r")
    run = tmp_path / "digits" / "r"
    again = evidence.played(prepared(run))
    # Two aggregators receive and send 61.7 kB a round each; 1,000 per GB.
    assert [point.wan_nbytes for point in again] == [246_762, 493_524, 740_286, 987_048]
    assert again[-1].price == pytest.approx(0.987048)
    assert again[-1].aggregator_joules == pytest.approx(RunFolder(run).trail[-1].aggregator_joules)


def damage(found: dict[str, Any], kind: str) -> Any:
    """What an analysis has found, as no decision writes it."""
    if kind == "nothing":
        return None
    if kind == "another candidate":
        found["flips"]["budget"]["points"][0]["chosen"] = "method=scaffold"
    if kind == "a number as text":
        found["test"]["mean"] = "0.99"
    if kind == "control characters":
        found["flips"]["budget"]["words"] = "\x1b[2J"
    if kind == "a key of the result":
        found["runs"] = []
    return found


@pytest.mark.long
def test_an_analysis_that_no_decision_writes_is_made_anew(
    out: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    file, names = tmp_path / "digits/d/analysis.json", whole["finalists"]
    written = file.read_text()
    assert json.loads(msgspec.json.encode(analysis_file.read(file, names))) == json.loads(written)
    for kind in ("nothing", "a number as text", "control characters", "a key of the result", "another candidate"):
        tables = json.loads(written)
        file.write_text(json.dumps({**tables, "found": damage(tables["found"], kind)}))
        with pytest.raises(ValueError):
            analysis_file.read(file, names)
    assert decided(capsys, tmp_path, *WHOLE)["flips"] == whole["flips"]
    assert file.read_text() == written


@pytest.mark.long
def test_a_decision_goes_on_however_its_folder_is_spelled_and_wherever_it_lies(
    out: Path, whole: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(out, tmp_path / "moved")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    again = decided(capsys, "../here/../moved", *WHOLE)
    assert again["robust"] == whole["robust"]
    assert [run["model_sha256"] for run in again["runs"]] == [run["model_sha256"] for run in whole["runs"]]
    # So do its runs, whose traces lie beside them.
    gone, *_ = (tmp_path / "moved/digits/d").glob("*-gone")
    assert main.run_command(["replay", str(gone), "--json"]) == 0


def test_a_candidate_that_shares_a_training_is_judged_as_its_own_runs_would_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Shares of devices in an order that is not alphabetical, and a fleet that each seed draws anew.
    fleet = ["fleet.devices={raspberry-pi-5=0.5, jetson-nano=0.5}", "fleet.compute_sigma=0.5"]
    small = [word for word in SMALL if not word.startswith("fleet.devices")]
    words = ["method=fedavg", *fleet, *small, "data.clients=4", "rounds.participants=4"]
    options = ("--out", str(tmp_path), "--json", "--seeds", "2", "--draws", "0", "--budget", "seconds=1 h")
    assert main.run_command(["decide", "digits", *words, "fleet.networks={wifi-4=1},{lte=1}", *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["effort"]["trainings"] == 1
    for name in ("wifi-4", "lte"):
        row = next(row for row in result["candidates"] if name in row["settings"]["fleet.networks"])
        own = [f"fleet.networks={{{name}=1}}", "data.validation=0.2"]
        runs = [
            summary_of_run(tmp_path, *words, *own, f"seed={seed}", run_id=f"{name}-{seed}", stop_at_target=False)
            for seed in (0, 1)
        ]
        assert row["spent"]["seconds"]["values"] == [run["virtual_seconds"] for run in runs]
    assert len(set(row["spent"]["seconds"]["values"])) == 2
