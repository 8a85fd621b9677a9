"""``fedbr study trial``: what its parts plan, what they read off the runs, and that they share one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.cli import main
from scenarios.report.progress import ProgressPoint, Trail
from scenarios.studies.trial import results, statistics
from scenarios.studies.trial.plan import TrialChoice, TrialPlan, plan
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.runs import refused


def planned(part: str, *overrides: str, **more: Any) -> TrialPlan:
    return plan(TrialChoice("digits", overrides, part, seeds=1, **more))


def names(of: TrialPlan) -> list[str]:
    return [run.name for run in of.sweep.runs]


# --- statistics -------------------------------------------------------------------------------------------------------


def test_an_interval_is_students_t_over_seeds_and_one_seed_has_none() -> None:
    assert statistics.t_quantile(3) == pytest.approx(4.303, abs=5e-4)
    assert statistics.t_quantile(2) == pytest.approx(12.706, abs=5e-4)
    # The deviation of 1, 2, 3 is 1: half the interval is 4.303 / sqrt(3).
    found = statistics.with_interval([1.0, 2.0, 3.0])
    assert (found["mean"], found["deviation"], found["half_width"]) == (2.0, 1.0, pytest.approx(2.484, abs=5e-4))
    assert statistics.with_interval([0.5])["half_width"] is None
    assert statistics.with_interval([0.5, None])["mean"] is None


def test_a_difference_is_paired_over_the_seeds_that_both_have() -> None:
    found = statistics.paired({0: 0.5, 1: 0.7, 2: 0.9}, {1: 0.4, 2: 0.4, 3: 0.1})
    assert found is not None
    assert (found["seeds"], found["values"]) == ([1, 2], pytest.approx([0.3, 0.5]))
    # The deviation of 0.3 and 0.5 is sqrt(0.02): half the interval is 12.706 sqrt(0.02 / 2).
    assert found["half_width"] == pytest.approx(1.2706, abs=5e-5)
    assert statistics.paired({0: 0.5}, {1: 0.5}) is None


def test_a_mean_until_a_target_is_over_all_seeds_or_none() -> None:
    fast: Trail = (ProgressPoint(1, 2.0, 100, 90.0, 0.4, 0.4, 7.0),)
    slow: Trail = (ProgressPoint(1, 3.0, 100, 90.0, 0.2, 0.2, 5.0), ProgressPoint(2, 6.0, 200, 180.0, 0.3, 0.3, 11.0))
    found = results.to_targets([fast, slow], 0.3)
    assert found["reached"] == 2
    assert [found[key] for key in results.SPENT] == [4.0, 150.0, 135.0, 9.0, 1.5]
    missed = results.to_targets([fast, slow], 0.35)
    assert (missed["reached"], missed["bytes"], missed["values"]["bytes"]) == (1, None, [100, None])


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_run_is_named_by_skew_variant_and_seed_so_that_parts_share_it() -> None:
    details, bandit, skew = (names(planned(part)) for part in ("details", "bandit", "skew"))
    assert {
        "dir0.3-fedavg-seed0", "dir0.3-fedbr-seed0", "dir0.3-fedbr-hybrid-ce-false-detach-true-seed0",
        "dir0.3-fedbr-lambda1-0-lambda2-0-seed0", "dir0.3-fedbr-blocks-balanced-3-seed0",
    } < set(details)  # fmt: skip
    # digits-cnn has four blocks.
    assert bandit == [
        f"dir0.3-fedbr{detail}-seed0" for detail in ("", "-alpha-random", "-alpha-1", "-alpha-2", "-alpha-3")
    ]
    assert set(bandit) < set(details)
    assert {"eps0-fedavg-seed0", "eps7-fedmlb-seed0", "dir0.3-fedbr-seed0"} < set(skew)
    shared = planned("skew", only="dir0.3,fedbr").sweep.runs
    assert [run.loaded.scenario for run in shared] == [
        run.loaded.scenario for run in planned("bandit", only="fedbr").sweep.runs
    ]


def test_a_detail_that_a_scenario_does_not_allow_or_has_already_is_left_out_with_the_reason() -> None:
    found = planned("details", "method_options.period=7", "model.width=16")
    assert found.left_out["fedbr-period-7"] == "the same runs as fedbr"
    assert "dir0.3-fedbr-period-7-seed0" not in names(found)


def test_a_variant_is_compared_with_fedavg_of_the_same_norm_and_calibration() -> None:
    of = {cell.variant.name: cell.reference for cell in planned("details").cells}
    assert of["fedbr-alpha-2"] == "dir0.3-fedavg"


def test_a_mistake_of_the_users_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("study", "trial", "digits")
    assert refused(capsys, *words, "--part", "detail") == "--part 'detail': did you mean 'details'?"
    assert (
        refused(capsys, *words, "--only", "fedbr-alpha-9")
        == "--only: no variant 'fedbr-alpha-9': did you mean 'fedbr-alpha-3'?"
    )
    assert (
        refused(capsys, *words, "--targets", "30")
        == "--targets '30': write accuracies above 0, at most 1, such as 0.25,0.3,0.35,0.4"
    )
    assert "method_options.lr: none of fedavg" in refused(capsys, *words, "method_options.lr=1", "--only", "fedavg")


# --- a small trial ----------------------------------------------------------------------------------------------------

WORDS = [
    "digits",
    "train.local_steps=2",
    "rounds.max=2",
    "--seeds",
    "2",
    "--targets",
    "0.05",
    "--workers",
    "1",
    "--json",
]


def trial(out: Path, *more: str) -> int:
    return main.run_command(["study", "trial", *WORDS, "--out", str(out), *more])


def stamps(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in sorted(folder.glob("*/ledger.sqlite"))}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trial of which a part has been made."""
    out = tmp_path_factory.mktemp("runs")
    assert trial(out, "--only", "fedavg,fedbr-alpha-2") == 0
    return out / "digits" / "trial"


def result_of(folder: Path, part: str) -> dict[str, Any]:
    return dict(json.loads((folder / f"{part}.json").read_text()))


def test_a_part_has_a_result_tables_figures_and_a_report_of_its_name(made: Path) -> None:
    result = result_of(made, "details")
    fedavg, fedbr = result["variants"]
    assert (fedavg["name"], fedavg["difference"]) == ("dir0.3-fedavg", None)
    assert fedbr["reference"] == "dir0.3-fedavg"
    pairs = zip(fedbr["accuracy"]["values"], fedavg["accuracy"]["values"], strict=True)
    assert fedbr["difference"]["values"] == [own - other for own, other in pairs]
    assert fedbr["to_target"][0]["joules"] > 0
    assert {path.name for path in made.iterdir() if not path.is_dir()} == {
        "study.json", "details.json", "details.csv", "details-targets.csv", "details.html",
    }  # fmt: skip
    figure = (made / "figures" / "details-accuracy.svg").read_text()
    assert figure.startswith('<svg role="img" xmlns="http://www.w3.org/2000/svg"')


def test_another_part_finds_the_runs_that_are_there_and_keeps_them(made: Path) -> None:
    before = stamps(made)
    assert trial(made.parent.parent, "--part", "bandit", "--only", "fedbr,fedbr-alpha-2") == 0
    after = stamps(made)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"dir0.3-fedbr-seed0", "dir0.3-fedbr-seed1"}
