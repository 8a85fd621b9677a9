"""HeteroFL's table: what is printed, what is counted of the paper's model, and what stands for it at each scale."""

from __future__ import annotations

import pytest

from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.experiment.grid import Grid
from scenarios.papers import heterofl, published, reproduce, tables
from scenarios.papers.spec import SCALES

SETTINGS = {"heterofl:2": "mnist", "heterofl:2-cifar10": "cifar10"}
COUNTED = heterofl.FIGURES["heterofl:2"]


def counts(measure: str) -> dict[str, float]:
    (panel,) = (panel for panel in COUNTED.panels if panel.measure == measure)
    assert panel.counts is not None
    return {name: panel.counts(row) for name, row in COUNTED.rows.items()}


def test_the_figures_hold_every_value_of_the_source() -> None:
    for name, expected in (("heterofl:2", 5 * 12), ("heterofl:2-cifar10", 2 * 12)):
        assert sum(cell["published"] is not None for cell in tables.catalogue(name)) == expected
    values = {(cell["panel"], cell["row"]): cell["published"] for cell in tables.catalogue("heterofl:2")}
    assert values["mnist-iid@200R", "a-b-c-d-e"] == 0.9923
    assert values["mnist-non-iid@400R", "e"] == 0.965
    assert values["mnist-iid@weights(K)", "c-d-e"] == 43596.5


def test_flops_are_the_printed_ones_but_for_a_row_that_is_of_other_models() -> None:
    products, flops = counts(published.HELD_PRODUCTS), counts(published.HELD_FLOPS)
    places = [28**2, 14**2, 7**2, 3**2]
    macs = [784 * 9 * 1 * 64, 196 * 9 * 64 * 128, 49 * 9 * 128 * 256, 9 * 9 * 256 * 512, 512 * 10]
    assert products["a"] == 2 * sum(macs)
    assert flops["a"] == 2 * sum(macs) + 6 * sum(64 * 2**layer * place for layer, place in enumerate(places))
    for measure, nearest in ((published.HELD_FLOPS, 1e3), (published.HELD_WEIGHTS, 1.0), (published.HELD_NBYTES, 600)):
        (panel,) = (panel for panel in COUNTED.panels if panel.measure == measure)
        ours = counts(measure)
        for mix, value in panel.published.items():
            if mix != "c-e":
                assert ours[mix] == pytest.approx(value, abs=nearest), (measure, mix)
        assert panel.published["c-e"] == pytest.approx((ours["c"] + ours["d"]) / 2, abs=nearest)
        assert ours["c-e"] == (ours["c"] + ours["e"]) / 2


@pytest.mark.parametrize("name", SETTINGS)
def test_the_papers_scale_is_the_authors_code(name: str) -> None:
    for partition, doubled in (("iid", 1), ("non-iid", 2)):
        found = heterofl.FIGURES[name].settings[f"{SETTINGS[name]}-{partition}"]["paper"]
        scenario = load(found.scenario, parse_all(found.overrides)).scenario
        train, rounds = scenario.train, scenario.rounds
        assert (train.batch, train.local_epochs, train.momentum, train.weight_decay, train.clip) == (
            10,
            5,
            0.9,
            5e-4,
            1,
        )
        assert (scenario.data.clients, rounds.participants, scenario.method_options["mask"]) == (100, 10, True)
        assert (scenario.data.partition.kind, scenario.data.partition.classes_per_client) == (
            {"iid": "iid", "non-iid": "classes"}[partition],
            2,
        )
        rate, most, falls = {"heterofl:2": (0.01, 200, 100), "heterofl:2-cifar10": (0.1, 400, 150)}[name]
        assert (rounds.max, scenario.eval.every) == (most * doubled, most * doubled)
        assert [train.lr_in(round) for round in (0, falls * doubled - 1, falls * doubled)] == pytest.approx(
            [rate, rate, rate / 10]
        )


@pytest.mark.parametrize("scale", SCALES)
def test_a_row_is_as_wide_as_its_largest_part(scale: str) -> None:
    runs = reproduce.plan("heterofl:2", scale, Grid("heterofl:2"), 1).run_set.runs
    assert len(runs) == 2 * 12
    widest = heterofl.WIDTHS[heterofl.MNIST][scale]
    for run, mix in zip(runs, 2 * heterofl.MIXES, strict=True):
        scenario = run.loaded.scenario
        width = scenario.model.width
        assert width is not None
        assert [width * rate for rate in scenario.submodel.levels] == [
            widest * heterofl.LEVELS[level] for level in mix.split("-")
        ]
        assert scenario.rounds.max == scenario.eval.every
