"""``fedbr study trial`` on a few small runs, which its parts share; the bandit, calibration, and the map."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.store import read
from costmodel.config import Scale
from scenarios.cli import main
from scenarios.config.load import ScenarioError
from scenarios.experiment.grid import grid_of
from scenarios.papers.trial import analyses, speed_map
from scenarios.papers.trial.analyses import is_twin
from scenarios.papers.trial.plan import plan
from scenarios.run.progress import ProgressPoint, Trail
from scenarios.run.run_folder import RunFolder
from scenarios.studies.replay import prepared, time_to
from tests.brief import brief_figures
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

TWINS = ("fedbr+calibrated-alpha-2", "fedbr-alpha-2")
"""A calibrated run, and the same without."""


def run_of(*accuracies: float, nbytes: int, seconds: float) -> Trail:
    """A run of equal rounds."""
    return tuple(
        ProgressPoint(k, k * seconds, k * nbytes, 0.0, value, max(accuracies[:k]))
        for k, value in enumerate(accuracies, 1)
    )


# --- the bandit -------------------------------------------------------------------------------------------------------


def test_runs_are_compared_at_the_smallest_total_of_their_seed() -> None:
    curves = {
        "fedbr": {0: run_of(0.1, 0.3, 0.5, nbytes=100, seconds=3.0)},
        "fedbr-alpha-1": {0: run_of(0.2, 0.4, 0.6, nbytes=80, seconds=2.0)},
        "fedbr-alpha-random": {0: run_of(0.2, 0.9, nbytes=200, seconds=1.0)},
    }
    # 240 bytes: two rounds of GMBS, three of alpha = 1, one of the random alpha. 2 s: none, one, and two.
    by_bytes, by_time = (analyses.at_common(curves, kind)["variants"] for kind in ("bytes", "time"))
    assert [found["mean"] for found in by_bytes.values()] == [0.3, 0.6, 0.2]
    assert by_bytes["fedbr-alpha-1"]["gmbs_minus"]["values"] == pytest.approx([-0.3])
    assert [found["mean"] for found in by_time.values()] == [None, 0.2, 0.9]
    assert by_time["fedbr-alpha-1"]["gmbs_minus"] is None
    assert analyses.best_fixed({"variants": by_bytes}) == "fedbr-alpha-1"


def test_regret_sums_the_rewards_that_the_best_alpha_would_have_had_more() -> None:
    assert analyses.reward_regret({0: 1.0, 1: 3.0, 2: 2.0}, {0: 2.0, 1: 1.0, 2: 1.5}) == {0: -1.0, 1: 1.0, 2: 1.5}
    best, gmbs = run_of(0.2, 0.5, nbytes=1, seconds=1.0), run_of(0.1, 0.25, 0.4, nbytes=1, seconds=1.0)
    assert analyses.accuracy_gap(best, gmbs) == {0: 0.1, 1: 0.25}
    found = analyses.over_seeds({0: {0: 1.0, 1: 2.0}, 1: {0: 3.0}})
    assert (found["rounds"], found["mean"], found["values"]) == ([0], [2.0], [[1.0, 3.0]])


# --- a small trial ----------------------------------------------------------------------------------------------------


def trial(out: Path, part: str, only: str, seeds: int = 1) -> dict[str, Any]:
    """The result of a part, in the one folder of all parts."""
    words = ["digits", "train.local_steps=2", "rounds.max=2", "--part", part, f"variant={only}", "--seeds", str(seeds)]
    words += ["--target", "0.05", "--workers", "1", "--json", "--report", "--out", str(out)]
    with brief_figures():
        assert main.run_command(["study", "trial", *words]) == 0
    return dict(json.loads((out / "digits" / "trial" / f"{part}.json").read_text()))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a part of a trial: FedAvg and a fixed alpha, two seeds."""
    out = tmp_path_factory.mktemp("runs")
    trial(out, "details", "fedavg,fedbr-alpha-2", seeds=2)
    return out


def stamps(out: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in sorted(out.glob("digits/trial/*/ledger.sqlite"))}


def folder(out: Path, name: str) -> Path:
    return out / "digits" / "trial" / f"dir0.3-{name}-seed0"


def test_a_part_has_a_result_tables_figures_and_a_report_of_its_name(out: Path) -> None:
    made = out / "digits" / "trial"
    result = json.loads((made / "details.json").read_text())
    fedavg, fedbr = result["variants"]
    assert (fedavg["name"], fedavg["difference"]) == ("dir0.3-fedavg", None)
    assert fedbr["reference"] == "dir0.3-fedavg"
    pairs = zip(fedbr["accuracy"]["values"], fedavg["accuracy"]["values"], strict=True)
    assert fedbr["difference"]["values"] == [own - other for own, other in pairs]
    assert fedbr["to_target"][0]["joules"] > 0
    assert {path.name for path in made.iterdir() if not path.is_dir()} >= {
        "study.json", "details.json", "details.csv", "details-targets.csv", "details.html",
    }  # fmt: skip
    figure = (made / "figures" / "details-accuracy.svg").read_text()
    assert figure.startswith('<svg role="img" xmlns="http://www.w3.org/2000/svg"')


def test_a_calibrated_run_is_compared_with_its_twin_from_another_part(out: Path) -> None:
    result = trial(out, "calibrated", "fedbr+calibrated-alpha-2")
    (found,) = result["calibration"]
    own, twin = (RunFolder(folder(out, name)).trail[-1].accuracy for name in TWINS)
    assert own is not None
    assert twin is not None
    assert found["difference"]["values"] == [own - twin]


def test_a_twin_of_an_earlier_version_may_lack_keys_that_were_added_since(out: Path, tmp_path: Path) -> None:
    calibrated, plain = (shutil.copytree(folder(out, name), tmp_path / name) for name in TWINS)
    text = (plain / "scenario.toml").read_text()
    before = text.replace('on_late = "stop"\n', "")
    assert before != text
    (plain / "scenario.toml").write_text(before)
    assert is_twin(calibrated, plain)
    (plain / "scenario.toml").write_text(text.replace("seed = 0\n", "seed = 1\n"))
    assert not is_twin(calibrated, plain)


def test_another_part_keeps_the_runs_that_are_there_and_reads_rewards_off_their_ledgers(out: Path) -> None:
    before = stamps(out)
    result = trial(out, "bandit", "fedbr,fedbr-alpha-2")["bandit"]
    after = stamps(out)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"dir0.3-fedbr-seed0"}
    assert result["best_fixed"] == "fedbr-alpha-2"
    means = [analyses.rewards_of(folder(out, name)) for name in ("fedbr-alpha-2", "fedbr")]
    assert result["regret"]["reward"]["mean"] == pytest.approx(
        [means[0][0] - means[1][0], means[0][0] - means[1][0] + means[0][1] - means[1][1]]
    )
    assert {path.name for path in (out / "digits" / "trial" / "figures").glob("bandit*")} == {
        "bandit-equal.svg", "bandit-regret.svg", "bandit-to-target.svg", "bandit-curves-dir0-3.svg",
    }  # fmt: skip


# --- the map ----------------------------------------------------------------------------------------------------------


def test_a_fleet_of_factors_1_gives_the_recorded_times_to_the_bit(out: Path) -> None:
    for name in ("fedavg", "fedbr-alpha-2"):
        ready = prepared(folder(out, name))
        again = ready.play(ready.fleet.at_scale(Scale())).rounds_done
        assert [(row.start_s, row.end_s, row.joules) for row in again] == [
            (row.start_s, row.end_s, row.joules) for row in ready.record.rounds
        ]


def slowest_visits(of: Path) -> float:
    """Sum over rounds of the slowest visit's bits over rates, in seconds at the rates of its networks."""
    fleet = prepared(of).fleet
    rows = read(of / "ledger.sqlite", "SELECT round, client, bytes_down, bytes_up FROM visits")
    seconds: dict[int, float] = {}
    for row in rows:
        taken = 8 * (row["bytes_down"] / fleet.down[row["client"]] + row["bytes_up"] / fleet.up[row["client"]])
        seconds[row["round"]] = max(seconds.get(row["round"], 0.0), taken)
    return sum(seconds.values())


def test_where_links_decide_the_ratio_is_that_of_bits_over_rates(out: Path) -> None:
    # Rates of 1/10,000 and devices 10,000 times as fast leave nothing but the transfers.
    names, slow = ("fedbr-alpha-2", "fedavg"), Scale(links=1e-4, devices=1e4)
    ready = [prepared(folder(out, name)) for name in names]
    ends = [each.play(each.fleet.at_scale(slow)).rounds_done[-1].end_s for each in ready]
    by_hand = [slowest_visits(folder(out, name)) for name in names]
    assert ends[0] / ends[1] == pytest.approx(by_hand[0] / by_hand[1], rel=0.01)


def test_a_map_has_the_ratio_of_the_recorded_times_at_factor_1(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        speed_map, "AXES", [replace(each, columns=(0.5, 1.0), rows=(1.0, 2.0)) for each in speed_map.AXES]
    )
    result = trial(out, "map", "fedavg,fedbr,fedbr-alpha-2,fedbr-server-0.25")
    assert [found["axes"] for found in result["maps"]] == ["links-devices", "server-clients"]
    times = {row["variant"]: row["to_target"][0]["virtual_seconds"] for row in result["variants"]}
    for found in result["maps"]:
        assert found["ratio"][0][1] == pytest.approx(times["fedbr-alpha-2"] / times["fedavg"])
        assert found["x"]["factors"] == [0.5, 1.0]
    slow, gmbs = result["server_axis"]
    assert (gmbs["server"], gmbs["ratio"]) == (1.0, pytest.approx(times["fedbr"] / times["fedavg"]))
    # Trained at a quarter of the server's rates, it is compared with FedAvg there, and on no map.
    assert slow["server"] == 0.25
    assert {found["variant"] for found in result["maps"]} == {"fedbr-alpha-2"}
    ready = prepared(folder(out, "fedavg"))
    fedavg = time_to(0.05, ready.play(ready.fleet.at_scale(Scale(server=0.25))).rounds_done)
    assert slow["ratio"] == pytest.approx(times["fedbr-server-0.25"] / fedavg)
    assert (out / "digits" / "trial" / "figures" / "map-fedbr-alpha-2-5.svg").exists()


def test_ratios_are_averaged_as_logarithms_over_seeds_that_all_have_one() -> None:
    # log2 of 1/2 and 8 is -1 and 3: the mean is 1, the deviation sqrt(8), half the interval 12.706 sqrt(8 / 2).
    found = speed_map.ratio_of([0.5, 8.0])
    assert found["ratio"] == pytest.approx(2.0)
    assert found["low"] == pytest.approx(2 ** (1 - 25.412), rel=1e-3)
    assert speed_map.ratio_of([0.5, None])["ratio"] is None
    assert speed_map.ratio_of([0.5]) == {"ratio": 0.5, "low": None, "high": None}


def test_runs_that_cannot_be_timed_again_are_refused_before_anything_is_trained() -> None:
    with pytest.raises(ScenarioError, match=r"rounds\.policy = fedbuff: the order .*; the map needs"):
        plan(grid_of("digits", ["rounds.policy=fedbuff"]), "map")
