"""Real targets: given in Python or as a column, standardised by the client's own training examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.data.arrays import dataset
from edge.data.registry import DataError, RealTargets, Split, arrays_name
from edge.data.registry import dataset as named
from edge.data.targets import fitted_scale, unscaled
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parsed

X = np.arange(40, dtype=np.float32).reshape(20, 2)
Y = np.linspace(-1.5, 8.0, 20)
WHO = np.repeat([0, 1], 10)
CARS = dataset(X, Y, kind="features").row


def test_fractions_or_several_numbers_are_real_targets() -> None:
    one, several = dataset(X, Y, kind="features"), dataset(X, np.stack([Y, Y], 1), kind="features")
    assert (one.row.numbers, one.row.classes, several.row.numbers) == (1, 1, 2)
    assert (one.train.y.dtype, one.train.y.shape, len(one.test.y)) == (np.dtype("float32"), (16, 1), 4)
    assert repr(one).endswith("features (2,), 1 real target>")
    assert dataset(X, np.arange(20) % 2, kind="features").row.numbers == 0
    assert dataset(X, np.arange(20), kind="features", targets="numbers").row.numbers == 1
    assert named(arrays_name(several.row)) == several.row


def test_a_clients_targets_have_its_own_scale_and_those_of_nobody_that_of_all() -> None:
    y = np.array([[1.0], [3.0], [10.0], [30.0]], np.float32)
    train = Split(np.zeros((4, 1), np.float32), y, np.array([0, 0, 2, 2]))
    scale = fitted_scale(CARS, train, ("a", "b", "c"))
    test = Split(np.zeros((3, 1), np.float32), np.array([[5.0], [5.0], [5.0]], np.float32), np.array([0, 1, 2]))
    rows = scale.of(test, np.arange(3))
    assert rows[:, 0, 0].tolist() == [5.0, 5.0, 5.0]
    assert rows[:, 1, 0].tolist() == [2.0, 11.0, 20.0]
    assert rows[:, 2, 0].tolist() == pytest.approx([1.0, np.std([1, 3, 10, 30]), 10.0])
    without = fitted_scale(CARS, Split(train.x, y), ())
    assert without.of(test, np.arange(1))[0, :3].ravel().tolist() == pytest.approx([5.0, 11.0, np.std([1, 3, 10, 30])])
    assert unscaled(1).of(test, np.arange(1))[0, :3].ravel().tolist() == [5.0, 0.0, 1.0]


@pytest.mark.parametrize(("season", "errors"), [(0, [1.0, 4.0, 2.5]), (3, [3.0, 6.0, 4.5])])
def test_the_naive_forecast_errs_on_each_clients_training_windows(season: int, errors: list[float]) -> None:
    """Windows 1 2 3 | 4 and 5 4 5 | 6 of one client, and 9 9 8 | 4 and 4 8 16 | 12 of another: the last value errs by
    1, 1, 4 and 4, and the value three steps before by 3, 1, 5 and 8. Only their next value counts, of two."""
    x = np.array([[1, 2, 3], [5, 4, 5], [9, 9, 8], [4, 8, 16]], np.float32)
    y = np.array([[4, 0], [6, 1], [4, 2], [12, 3]], np.float32)
    if season:
        y[1, 0], y[2, 0] = 8.0, 5.0
    row = replace(CARS, shape=(3,), stored=(3,), targets=RealTargets(2, 3, season))
    scale = fitted_scale(row, Split(x, y, np.array([0, 0, 1, 1])), ("south", "north"))
    assert scale.naive.tolist() == errors
    test = Split(x[:1], y[:1], np.array([1]))
    assert scale.of(test, np.arange(1))[0, 3].tolist() == 2 * [errors[1]]


def test_a_client_whose_targets_never_change_is_named() -> None:
    train = Split(
        np.zeros((4, 1), np.float32), np.array([[1.0], [3.0], [7.0], [7.0]], np.float32), np.array([0, 0, 1, 1])
    )
    with pytest.raises(DataError, match="the training targets of client north are 7; leave what is constant"):
        fitted_scale(CARS, train, ("south", "north"))


def test_a_target_that_is_no_number_is_named() -> None:
    gap = np.where(np.arange(20) == 3, np.nan, Y)
    with pytest.raises(DataError, match="the target of example 3 is NaN or infinite; leave the example out"):
        dataset(X[:16], gap[:16], X[16:], Y[16:], kind="features")


def test_a_column_may_be_a_real_target(tmp_path: Path) -> None:
    rows = [f"{'ab'[row // 10]},{row},{Y[row]:.3f}" for row in range(20)]
    (tmp_path / "load.csv").write_text("\n".join(["client,hour,target", *rows]))
    words = ["method=fedavg", f"data.file={tmp_path}/load.csv", "data.reading.targets=numbers", "model.name=mlp",
        "rounds.participants=2",
             "train.loss=mae", 'stop.target={metric="mae",below=1.5}']  # fmt: skip
    loaded = load("digits", parsed(words))
    assert (loaded.dataset.numbers, loaded.scenario.data.clients) == (1, 2)
    assert (loaded.scenario.eval.metrics, loaded.scenario.stop.goal) == (("mae", "loss"), 1.5)
    assert loaded.scenario.stop.target_accuracy is None
    (tmp_path / "load.csv").write_text("\n".join(["client,hour,target", *rows, "b,21,full"]))
    with pytest.raises(ScenarioError, match="example 21: its target is 'full', no number"):
        load("digits", parsed(words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.loss=mse"], "stop.target_accuracy = 0.9: runs with train.loss = 'mse' are judged by rmse; write"),
        (
            ["train.loss=mse", 'stop.target={metric="rmse",below=1}'],
            "train.loss = 'mse': the targets of digits are classes; choose train.loss among cross-entropy, ",
        ),
        (
            ["method=fedmlb", "train.loss=reconstruction", 'stop.target={metric="rmse",below=1}'],
            "train.loss = 'reconstruction': fedmlb needs the logits and the cross-entropy of classes",
        ),
        (
            ["method=calibrated", "train.loss=reconstruction"],
            "train.loss = 'reconstruction': calibrated needs the logits and the cross-entropy of classes",
        ),
        (
            ["train.loss=reconstruction", 'stop.target={metric="mae",below=1}'],
            "stop.target.metric = 'mae': runs with train.loss = 'reconstruction' are judged by rmse; write",
        ),
        (
            ["train.loss=reconstruction", 'stop.target={metric="rmse",above=1}'],
            'stop.target: lower values of rmse are better; write stop.target = { metric = "rmse", below = .. }',
        ),
        (
            ["train.loss=reconstruction", 'stop.target={metric="rmse",below=1}', 'eval.metrics=["class-accuracy"]'],
            "eval.metrics: class-accuracy needs classes, and train.loss = 'reconstruction' has none; leave it out",
        ),
        (
            ["train.loss=reconstruction", 'stop.target={metric="rmse",below=1}', 'eval.metrics=["coverage"]'],
            "eval.metrics: coverage needs the outputs of train.loss = 'pinball', and it is 'reconstruction'",
        ),
        (
            ["train.loss=pinball", "train.loss_options.quantiles=[0.5, 0.1]"],
            "train.loss_options.quantiles = [0.5, 0.1]: must be different ones in ascending order",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("digits", parsed(["method=fedavg", *words] if "method" not in words[0] else words))
    assert message in str(refused.value)


def test_a_partition_by_class_needs_classes() -> None:
    data = dataset(X, Y, clients=WHO, kind="features")
    assert data.row.numbers == 1
    from edge.data.partitioning import check_partition
    from edge.data.registry import PartitionError
    from edge.protocol.config import DataConfig, PartitionConfig

    with pytest.raises(PartitionError, match="choose iid, dirichlet-unbalanced, natural or file"):
        check_partition(DataConfig(clients=2, partition=PartitionConfig("dirichlet")), data.row)
