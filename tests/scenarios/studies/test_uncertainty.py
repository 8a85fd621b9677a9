"""``fedbr replay --draws``: intervals of times that follow from the factors of each draw, compared in pairs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins
from msgspec.structs import asdict

import fedbr
from coordinator.records.store import read
from costmodel.fleet import devices as device
from edge.protocol.rng import keyed_generator
from scenarios.cli import main
from scenarios.config.load import ScenarioError
from scenarios.config.overrides import parse_all, parsed
from scenarios.report import drawn_times, html, terminal
from scenarios.report.drawn_times import DrawnTimes, TimesOverSeeds, chance, interval, with_intervals
from scenarios.studies.uncertainty import (
    SIGMAS,
    DrawnRuns,
    Draws,
    replay_in_draws,
    throughput_sigma,
)
from tests.brief import brief_figures
from tests.scenarios.in_this_process import BOARDS, run
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

DRAWS = Draws(20, seed=3)


def own_row(folder: Path, kind: str, base: str, name: str, **figures: Any) -> str:
    """The override that names a file with one row: a shipped one with other figures."""
    text = Path(device.__file__).with_name(f"{kind}.toml").read_text()
    row = text.partition(f"[{base}]")[2].partition("\nassumed")[0].partition("\nderived")[0]
    lines = [line for line in row.splitlines() if line.partition(" ")[0] not in figures]
    path = folder / f"{name}.toml"
    path.write_text(
        "\n".join([f"[{name}]", *lines, *(f"{key} = {json.dumps(value)}" for key, value in figures.items())])
    )
    return str(path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one client on links without end, whose time is that of its training steps."""
    folder = tmp_path_factory.mktemp("alone")
    fast = {"down_bits_per_second": 1e15, "up_bits_per_second": 1e15, "rtt_seconds": 0.0, "assumed": ["rtt_seconds"]}
    board = own_row(folder, "profiles", "jetson-nano", "board", step_seconds=0.01, assumed=["step_seconds"], derived=[])
    return run(
        folder,
        *("data.clients=1", "rounds.participants=1", "rounds.max=3", "fleet.jitter=0", "stop.target_accuracy=0.99"),
        *(f"fleet.device_file={board}", "fleet.devices={board=1.0}", "fleet.server.down=inf", "fleet.server.up=inf"),
        f"fleet.network_file={own_row(folder, 'networks', 'wifi-4', 'wire', **fast)}",
        *("fleet.networks={wire=1.0}", "fleet.server.aggregate=inf"),
    )


@pytest.fixture(scope="module")
def found(alone: Path) -> DrawnRuns:
    """20 draws of it."""
    return replay_in_draws([alone], {}, DRAWS)


def by_hand(folder: Path, draws: int, sigma: dict[str, float]) -> list[float]:
    """Three visits of four steps: the overhead is assumed, and the throughput measured in training, with another model
    of the family."""
    flops = read(folder / "ledger.sqlite", "SELECT SUM(flops) FROM visits")[0][0]
    throughput = device.own_rows(folder.parents[1] / "board.toml", device.Device)["board"].throughput("conv")
    sigma_of_both = [math.hypot(0.1, 0.36), sigma["assumed"]]
    factors = [
        np.exp(keyed_generator(3, "uncertainty: device board", draw).standard_normal(2) * sigma_of_both)
        for draw in range(draws)
    ]
    return [3 * 4 * 0.01 * overhead + flops / (throughput * speed) for speed, overhead in factors]


def test_the_times_of_one_client_are_those_of_its_steps_with_the_factors_of_each_draw(
    alone: Path, found: DrawnRuns
) -> None:
    result = found.result().runs[0]
    expected = by_hand(alone, 20, {"assumed": 0.7})
    assert result.values.virtual_seconds == pytest.approx(expected, rel=1e-6)
    low, median, high = np.quantile(expected, [0.05, 0.5, 0.95])
    assert asdict(result.virtual_seconds) == pytest.approx({"low": low, "median": median, "high": high}, rel=1e-6)
    assert (result.reached, result.left_out, result.time_to_target_s) == (0.0, 0, None)
    (group,) = found.result().groups
    assert (group.label, group.seeds, group.scope) == ("fedavg", [0], "given this training")
    assert group.virtual_seconds == result.virtual_seconds
    assert found.result().pairs == []


HELD_OUT = [
    # Family, multiply-adds at 224x224 in 1e9, seconds of 20 batches of 16 on a Raspberry Pi 5 (README of
    # jafermarq/federated-embedded-vision, 2023). Multiply-adds of ViTs are those listed there, of MobileNetV3 those of
    # leondgarse/keras_cv_attention_models (the list rounds them to 0.01), of the others those of torchvision's models.
    # The row was made from ResNet-18, MobileNetV2 and ViT-S of the same list.
    ("conv", 3.664, 219.80),  # ResNet-34
    ("conv", 4.089, 322.26),  # ResNet-50
    ("depthwise", 0.0971, 73.65),  # MobileNetV2 of half the width
    ("depthwise", 0.04435, 39.69),  # MobileNetV3-Small of 0.75 of the width
    ("depthwise", 0.05762, 47.39),  # MobileNetV3-Small
    ("depthwise", 0.1563, 95.65),  # MobileNetV3-Large of 0.75 of the width
    ("depthwise", 0.21873, 114.61),  # MobileNetV3-Large
    ("attention", 1.1, 59.78),  # ViT-Ti
    ("attention", 16.9, 470.39),  # ViT-B
]


def test_the_interval_for_another_model_of_a_family_holds_those_that_its_row_was_not_made_from() -> None:
    row = replace(device.devices()["raspberry-pi-5"], operations_per_second={})
    errors = np.array(
        [
            math.log(3 * 2 * macs * 1e9 * 20 * 16 / seconds / row.throughput(family))
            for family, macs, seconds in HELD_OUT
        ]
    )
    assert math.sqrt(np.mean(errors**2)) == pytest.approx(0.37, abs=0.005)
    # Of 90 %: 1.645 sigma. The sigma of the model that the row was made from holds two of nine.
    for names, inside in ((("resnet34", "conv"), 8), (("conv", "conv"), 2)):
        assert np.sum(np.abs(errors) < 1.645 * throughput_sigma(row, names, SIGMAS)) == inside


def test_draws_that_would_train_other_visits_are_left_out_and_too_many_of_them_refused(alone: Path) -> None:
    seconds = by_hand(alone, 20, {"assumed": 0.7})
    second, first = sorted(seconds)[-2:]
    policy = ["rounds.policy=deadline", f"rounds.deadline={(first + second) / 2 / 3} s"]
    result = replay_in_draws([alone], parse_all(policy), DRAWS).result().runs[0]
    assert result.left_out == 1
    assert result.values.virtual_seconds.index(None) == seconds.index(first)
    assert result.reason == "round 1: client 0 took part, but its visit would be late or lost"
    kept = sorted(seconds)[:-1]
    assert result.virtual_seconds.median == pytest.approx(np.median(kept), rel=1e-6)
    with pytest.raises(ScenarioError) as caught:
        replay_in_draws(
            [alone], parsed(["rounds.policy=deadline", f"rounds.deadline={np.median(seconds) / 3} s"]), DRAWS
        )
    count = [time > np.median(seconds) for time in seconds]
    third = [draw for draw, late in enumerate(count) if late][2]
    assert str(caught.value).startswith(
        f"{alone}: 3 of the first {third + 1} draws would have trained other visits, more than 10 % of 20 (first "
        "reason: round 1: client 0 took part, but its visit would be late or lost); to train anew: fedbr run"
    )


# --- pairs ------------------------------------------------------------------------------------------------------------


def drawn(to_target: Sequence[float | None], ends: Sequence[float | None], **other: Any) -> DrawnTimes:
    known = {"seed": 0, "sigmas": {"assumed": 0.7}, "noise": "measured", "target_accuracy": 0.8, "model_sha256": "a"}
    values = {"reason": None, "virtual_seconds": [*ends], "time_to_target_s": [*to_target]}
    return DrawnTimes.model_validate({**known, **values, **other})


def over(*times: DrawnTimes) -> TimesOverSeeds:
    """The times of one method, of seeds 0, 1, .."""
    return TimesOverSeeds(dict(enumerate(times)))


def test_the_probability_counts_pairs_of_draws_and_ties_half() -> None:
    one = drawn([1.0, 5.0, None, None, 3.0, 1.0], [9.0, 9.0, 9.0, 9.0, 9.0, 9.0])
    two = drawn([2.0, 4.0, 6.0, None, 3.0, None], [9.0, 9.0, 9.0, 9.0, 9.0, None])
    # Sooner; later; only the other reaches it; neither does; at the same time; and a draw that the other lacks.
    assert chance(over(one), over(two)) == ((1 + 0 + 0 + 0.5 + 0.5) / 5, None, None, 5, {0: 2 / 5})
    assert chance(over(two), over(one)) == (3 / 5, None, None, 5, {0: 3 / 5})
    assert two.reached == 4 / 5
    others: list[dict[str, Any]] = [{"seed": 1}, {"sigmas": {}}, {"target_accuracy": 0.7}]
    for other in others:
        assert chance(over(one), over(drawn([2.0] * 6, [9.0] * 6, **other))) is None
    assert chance(over(one), over(drawn([2.0] * 5, [9.0] * 5))) is None


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_methods_are_compared_seed_by_seed_and_few_seeds_leave_a_wide_interval() -> None:
    one = over(drawn([1.0, 2.0], [9.0, 9.0]), drawn([5.0, 5.0], [9.0, 9.0]), drawn([7.0, None], [9.0, 9.0]))
    two = over(drawn([2.0, 3.0], [9.0, 9.0]), drawn([4.0, 6.0], [9.0, 9.0]), drawn([7.0, None], [9.0, None]))
    found = chance(one, two)
    # Always sooner; in one of two draws; and at the same time, in the one draw in which both have a time.
    assert found is not None
    assert found.by_seed == {0: 1.0, 1: 0.5, 2: 0.5}
    assert found.probability == pytest.approx(2 / 3)
    assert found.draws == 5
    # Three of three: at least p with p^3 = 5 %.
    apart = over(*[drawn([8.0], [9.0])] * 3)
    always = chance(over(*[drawn([2.0], [9.0])] * 3), apart)
    assert always is not None and (always.probability, always.high) == (1.0, 1.0)
    assert always.low == pytest.approx(0.05 ** (1 / 3))
    never = chance(apart, over(*[drawn([2.0], [9.0])] * 3))
    assert never is not None and (never.probability, never.low) == (0.0, 0.0)
    assert never.high == pytest.approx(1 - 0.05 ** (1 / 3))
    # Seeds that only one of them has are in no pair.
    assert chance(TimesOverSeeds({4: one.by_seed[0]}), two) is None


def test_the_interval_over_seeds_is_that_of_a_further_value_of_a_normal_distribution() -> None:
    # Without a spread of the draws: logarithms 1, 2 and 3 have the mean 2 and the deviation 1; t(2) has its 95 %
    # quantile at 2.919986.
    alone = [[float(np.exp(value))] * 4 for value in (1, 2, 3)]
    half_width = 2.919986 * np.sqrt(4 / 3)
    ends = np.exp([2 - half_width, 2, 2 + half_width])
    assert interval(alone) == pytest.approx(tuple(ends), rel=1e-6)
    # Without a spread of the seeds: the quantiles of the draws, in logarithms.
    draws = np.exp(np.linspace(-1, 1, 21))
    assert interval([draws.tolist()] * 3) == pytest.approx(tuple(np.exp([-0.9, 0, 0.9])))
    # Both: the root of the sum of squares. A seed that never reaches the target is left out.
    both = [[None] * 21, *((draws * np.exp(value)).tolist() for value in (1, 2, 3))]
    half_width = np.hypot(half_width, 0.9)
    assert interval(both) == pytest.approx(tuple(np.exp([2 - half_width, 2, 2 + half_width])), rel=1e-6)
    # Of one seed, the quantiles themselves; of one that reaches the target among others, none.
    assert interval([draws.tolist()]) == tuple(np.quantile(draws, [0.05, 0.5, 0.95]))
    assert interval([draws.tolist(), [None] * 21]) is None
    # A table says so, in place of a time.
    partly = over(drawn([3.0, 3.0], [9.0, 9.0]), drawn([None, None], [9.0, 9.0]))
    never = over(drawn([None, None], [9.0, 9.0]))
    assert drawn_times.median_texts([partly, never], "time_to_target_s") == ["by one seed", "not reached"]
    assert drawn_times.median_texts([partly], "virtual_seconds") == ["9 s (9 to 9)"]
    assert partly.reached == 0.5
    # Times that no run has are no error.
    assert interval([[0.0], [0.0]]) == pytest.approx((0.0, 0.0, 0.0))
    assert np.isfinite(interval([[0.0], [1e300]]) or [np.inf]).all()


@pytest.mark.parametrize(("seeds", "of_seeds"), [(7, 0.05), (3, 0.4)])
def test_nine_of_ten_runs_of_further_seeds_are_within_the_interval(seeds: int, of_seeds: float) -> None:
    """By simulation: logarithms with a spread between seeds, of all seeds in a draw (0.15), and of both (0.1)."""
    random, held, held_by_one, held_by_all = np.random.default_rng(7), 0, 0, 0
    repetitions = 500
    for _ in range(repetitions):
        of_seed, of_draw = of_seeds * random.standard_normal(seeds + 1), 0.15 * random.standard_normal(61)
        times = np.exp(of_seed[:, None] + of_draw + 0.1 * random.standard_normal((seeds + 1, 61)))
        known, further = times[:seeds, :60].tolist(), float(times[seeds, 60])
        found, of_one = interval(known), interval(known[:1])
        assert found is not None and of_one is not None
        held += found.low <= further <= found.high
        held_by_one += of_one.low <= further <= of_one.high
        low, high = np.quantile(known, [0.05, 0.95])
        held_by_all += low <= further <= high
    # With 500 repetitions a share of 90 % has a standard error of 1.3 points.
    assert 0.86 < held / repetitions < 0.96
    if of_seeds == 0.4:
        assert held_by_one / repetitions < 0.7
        assert held_by_all / repetitions < 0.85


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, pool_in_this_process: None) -> Path:
    """The folder of a comparison of two methods with two seeds."""
    out = tmp_path_factory.mktemp("compared")
    words = ["rounds.max=3", "train.local_steps=2", "stop.target_accuracy=0.15", "method=fedavg,fedmlb"]
    options = ["--seeds", "2", "--out", str(out), "--run-id", "both", "--no-report", "--quiet"]
    assert main.run_command(["compare", "digits", *words, BOARDS, *options]) == 0
    return out / "digits" / "both"


def test_runs_of_a_comparison_are_pooled_over_seeds_and_its_methods_compared_by_seed(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main.run_command(["replay", str(compared), "--draws", "12", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    values = {(run["method"], run["seed"]): run["values"] for run in result["runs"]}
    assert sorted(values) == [("fedavg", 0), ("fedavg", 1), ("fedmlb", 0), ("fedmlb", 1)]
    for group in result["groups"]:
        assert (group["seeds"], group["scope"], group["left_out"]) == ([0, 1], "2 seeds", 0)
        ends = [values[group["method"], seed]["virtual_seconds"] for seed in (0, 1)]
        assert group["virtual_seconds"]["median"] == pytest.approx(np.sqrt(np.prod(np.median(ends, axis=1))), rel=0.05)
        assert group["virtual_seconds"]["low"] < np.min(ends) < np.max(ends) < group["virtual_seconds"]["high"]
    (pair,) = result["pairs"]
    assert (pair["first"], pair["second"], pair["seeds"], pair["draws"]) == ("fedavg", "fedmlb", [0, 1], 24)
    by_seed = [
        np.mean(
            [
                0.5 * ((a or np.inf) < (b or np.inf)) + 0.5 * ((a or np.inf) <= (b or np.inf))
                for a, b in zip(*(values[name, seed]["time_to_target_s"] for name in ("fedavg", "fedmlb")), strict=True)
            ]
        )
        for seed in (0, 1)
    ]
    assert pair["values"] == pytest.approx(by_seed)
    assert pair["probability"] == pytest.approx(np.mean(by_seed))
    # The runs of one seed have the same draws, alone or with others, and say that their training is given.
    alone = fedbr.replay([compared / "fedavg", compared / "fedmlb"], draws=12)
    assert [run["values"] for run in alone["runs"]] == [values["fedavg", 0], values["fedmlb", 0]]
    assert [each["scope"] for each in (*alone["groups"], *alone["pairs"])] == ["given this training"] * 3
    assert (alone["pairs"][0]["values"], alone["pairs"][0]["low"]) == (pair["values"][:1], None)


# --- the file and its readers -----------------------------------------------------------------------------------------


def test_the_command_keeps_the_times_for_reports_and_tables(
    alone: Path, found: DrawnRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name for path in alone.iterdir()}
    assert main.run_command(["replay", str(alone), "--draws", "4", "fleet.jitter=0.1", "--json"]) == 0
    assert {path.name for path in alone.iterdir()} == before
    assert main.run_command(["replay", str(alone), "--draws", "20", "--seed", "3", "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert json.loads(printed[-1]) == to_builtins(found.result())
    assert {path.name for path in alone.iterdir()} - before == {"uncertainty.json"}
    summary = json.loads(read(alone / "ledger.sqlite", "SELECT value FROM meta WHERE key = 'summary'")[0][0])
    times = drawn_times.read(alone, summary["model_sha256"])
    assert times is not None and times == found.times[0]
    around = over(times).to_end
    (text,) = with_intervals([summary["virtual_seconds"]], [around])
    rows = dict(terminal.run_rows([summary]))
    assert (rows["virtual time"], rows["scope of intervals"]) == ([text], ["given this training"])
    with brief_figures("uncertainty"):
        page = html.build([alone], tmp_path / "page.html", "title").read_text()
    (text,) = with_intervals([around.median], [around])
    assert f"<td>{text}</td>" in page and "uncertainty-caption" in page
    assert "<td>given this training</td>" in page
    assert drawn_times.read(alone, "the hash of a later model") is None
    (alone / "uncertainty.json").unlink()
