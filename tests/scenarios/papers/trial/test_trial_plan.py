"""``fedbr study trial``: what its parts plan, and what its rows say of targets."""

from __future__ import annotations

import pytest

from scenarios.experiment.grid import grid_of
from scenarios.papers.trial import speed_map
from scenarios.papers.trial.plan import plan
from scenarios.papers.trial.trial import Trial, to_target
from scenarios.report.readings import AMOUNTS
from scenarios.run.progress import ProgressPoint, Trail
from tests.scenarios.runs import refused


def planned(part: str, *words: str) -> Trial:
    return plan(grid_of("digits", words), part, seeds=1)


def names(of: Trial) -> list[str]:
    return [run.name for run in of.run_set.runs]


# --- targets ----------------------------------------------------------------------------------------------------------


def test_a_mean_until_a_target_is_over_all_seeds_or_none() -> None:
    fast: Trail = (ProgressPoint(1, 2.0, 100, 90.0, 0.4, 0.4, 7.0),)
    slow: Trail = (ProgressPoint(1, 3.0, 100, 90.0, 0.2, 0.2, 5.0), ProgressPoint(2, 6.0, 200, 180.0, 0.3, 0.3, 11.0))
    found = to_target([fast, slow], 0.3)
    assert found["reached"] == 2
    assert [found[key] for key in AMOUNTS] == [4.0, 150.0, 135.0, 9.0, 1.5]
    missed = to_target([fast, slow], 0.35)
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
    shared = planned("skew", "skew=dir0.3", "variant=fedbr").run_set.runs
    assert [run.loaded.scenario for run in shared] == [
        run.loaded.scenario for run in planned("bandit", "variant=fedbr").run_set.runs
    ]


def test_a_detail_that_a_scenario_does_not_allow_or_has_already_is_left_out_with_the_reason() -> None:
    found = planned("details", "method_options.period=7", "model.width=16")
    assert found.left_out["fedbr-period-7"] == "the same runs as fedbr"
    assert "dir0.3-fedbr-period-7-seed0" not in names(found)


def test_a_server_link_without_limit_has_no_slower_or_faster_one() -> None:
    no_limit = {row.variant for row in planned("map", "fleet.server.down=inf", "fleet.server.up=inf").rows}
    assert {row.variant for row in planned("map").rows} - no_limit == {
        "fedbr-server-0.0625", "fedbr-server-0.25", "fedbr-server-4",
    }  # fmt: skip


def test_a_map_waits_for_all_of_its_runs() -> None:
    found = speed_map.read(planned("map"), {"runs": []}, print)
    assert (found["maps"], found["unmapped"]) == ([], {"all": "the runs are re-timed when all of them have ended"})


def test_a_variant_is_compared_with_fedavg_of_the_same_norm_and_calibration() -> None:
    variants = "variant=fedbr-alpha-2,fedbr-norm-group,fedmlb"
    of = {row.variant: row.reference for row in planned("details", variants).rows}
    assert of == {
        "fedmlb": "dir0.3-fedavg",
        "fedbr-norm-group": "dir0.3-fedavg-norm-group",
        "fedbr-alpha-2": "dir0.3-fedavg",
    }
    (calibrated,) = planned("calibrated", "variant=fedbr+calibrated-norm-group").rows
    assert calibrated.reference == "dir0.3-fedavg+calibrated-norm-group"


def test_a_mistake_of_the_users_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("study", "trial", "digits")
    assert "those of a trial are named by its part" in refused(capsys, *words, "method=fedavg")
    assert refused(capsys, *words, "--part", "detail") == "--part 'detail': did you mean 'details'?"
    assert (
        refused(capsys, *words, "variant=fedbr-alpha-9")
        == "command line: variant: no variant 'fedbr-alpha-9': did you mean 'fedbr-alpha-3'?"
    )
    assert (
        refused(capsys, *words, "--target", "30")
        == "--target 30: must be an accuracy above 0 and at most 1, for example 0.9"
    )
    assert "method_options.lr: none of fedavg" in refused(capsys, *words, "method_options.lr=1", "variant=fedavg")
    assert "method_options.alpha = 99: must be in 1..3" in refused(capsys, *words, "method_options.alpha=99")
    for part in ("bandit", "map"):
        chosen = refused(capsys, *words, "--part", part, "method_options.alpha=2")
        assert chosen == "method_options.alpha = 2: the part chooses alpha for its variants; leave it out"
