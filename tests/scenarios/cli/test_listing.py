"""``fedbr list`` and ``fedbr check``: what can be named, and what this machine has."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from costmodel.fleet.devices import Device, Network, devices, networks, own_rows
from edge.protocol.config import PartitionConfig
from scenarios.api import listing
from scenarios.cli import listing_text, lookup, main
from scenarios.config.plugin_points import PLUGIN_POINTS


def named(what: str, name: str) -> listing.Row:
    return next(row for row in listing.rows(what) if row["name"] == name)


def test_methods_server_optimisers_and_partitions_are_listed_with_their_options() -> None:
    row = named("methods", "fedbr")
    assert row["keeps"] == "All but the last block, which arrives in every visit."
    assert named("methods", "fedavg")["keeps"] == "nothing"
    assert named("methods", "fedprox")["joins"] == "any objective, as in fedmlb+fedprox"
    assert named("methods", "feddyn")["joins"] == "any objective that sends the whole model, as in fedmlb+feddyn"
    assert row["weights"] == "uniform"
    assert row["options"][0]["name"] == "preset"
    assert {option["name"] for option in named("methods", "calibrated")["options"]} == {"tau", "form"}
    assert row["options"][2] == {
        "name": "period",
        "symbol": "τ",
        "default": 3,
        "meaning": "The whole model is downloaded every period + 1 rounds; 0: in every round.",
    }
    assert [row["name"] for row in listing.rows("servers")] == ["plain", "fedavgm", "fedadagrad", "fedadam", "fedyogi"]
    assert [row["name"] for row in listing.rows("selections")] == ["uniform", "poisson", "power-of-choice", "oort"]
    assert [row["name"] for row in listing.rows("schedules")] == ["exponential", "constant", "cosine", "step"]
    assert [row["name"] for row in listing.rows("policies")] == [
        "sync", "over_select", "deadline", "fedasync", "fedbuff"
    ]  # fmt: skip
    row = named("servers", "fedavgm")
    assert (row["neutral"], row["options"][1]) == (
        "momentum = 0 and lr = 1",
        {"name": "lr", "symbol": "η_g", "default": 1.0, "meaning": "Server step size."},
    )
    for what in ("methods", "servers", "selections", "schedules"):
        assert all(option["meaning"] for row in listing.rows(what) for option in row["options"])
    kinds = [
        "iid",
        "dirichlet",
        "dirichlet-unbalanced",
        "epsilon",
        "classes",
        "class-shares",
        "pairs",
        "natural",
        "file",
        "boards",
    ]
    assert [row["name"] for row in listing.rows("partitions")] == kinds
    for row in listing.rows("partitions"):
        assert {key.rpartition(".")[2] for key in row["options"]} <= set(get_type_hints(PartitionConfig))


def test_the_rows_of_every_plug_in_point_are_listed_and_the_help_names_each_list() -> None:
    for point in PLUGIN_POINTS:
        assert all(row["name"] and row["title"] for row in listing.rows(point.topic))
    names = [row["name"] for row in listing.rows("metrics")]
    assert names == [
        *("accuracy", "loss", "class-accuracy", "rmse", "mae", "mase", "r2", "pinball", "coverage", "f1"),
        *("auroc", "perplexity", "hessian", "loss-surface"),
    ]
    assert named("methods", "scaffold")["joins"] is not None, "corrections are among the methods"
    assert lookup.TOPICS.replace(" (with corrections)", "").split(", ") == list(listing.KINDS)


GUESSED: listing.Row = {
    "name": "guessed",
    "flops_per_second": {"conv": 2.5e9, "vit": 1e9},
    "modes": (1.0, 0.5),
    "memory_bytes": 4_294_967_296,
    "idle_watts": 2.0,
    "source": "a bench",
    "year": 2024,
    "assumed": ("flops_per_second.conv", "modes", "memory_bytes"),
}


def test_assumed_keeps_the_rows_that_assume_a_figure_and_shows_these_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [{"name": "measured", "assumed": ()}, GUESSED]
    monkeypatch.setattr(listing, "TABLES", {"devices": lambda: {row["name"]: row for row in table}})
    monkeypatch.setattr(listing, "_row", lambda kind, row, name: row)
    assert listing.rows("devices") == table
    assert listing.rows("devices", assumed=True) == [GUESSED], "and all their fields, for --json"
    stream = io.StringIO()
    listing_text.show("devices", [GUESSED], stream, assumed=True)
    assert stream.getvalue().splitlines() == [
        "guessed",
        "    flops_per_second.conv = 2.5e+09",
        "    modes = 1, 0.5",
        "    memory_bytes = 4_294_967_296",
        "    source (2024): a bench",
    ]


SHOWN = {
    "methods fedgkd": (
        "extra bytes: 44.9 MB (1.00 models) down; 0 B up",
        "relative compute: 1.333 (resnet18, 32x32 images of 100 classes)",
        "weight (w = γ/2) = 0.1: Weight of the divergence from the teacher",
    ),
    "methods fednova": ("extra bytes: 0 B down; 21 B up",),
    "methods fedbr": (
        "extra bytes: at most 31 B down, chosen per visit; 15 B up",
        "relative compute: 1.000 to 2.631 (",
    ),
    "devices jetson-tx2": (
        "GFLOP/s: conv 340~, depthwise 100~; 5 ms* more per step",
        "8.59 GB*, 15 W* training, 3 W* idle, 1.3 GHz",
        "codecs: 2.6~ times as long as the reference host",
        "power modes: 1, 0.86, 0.86, 0.65*",
        "source (2017): ",
    ),
    # With full speed alone, there is nothing to say of modes.
    "devices jetson-nano": ("held out, gemma-3-270m on MMLU, batch 8: 12.4 s a step predicted, 11.2 s measured, +11%",),
    "devices raspberry-pi-5": (
        "GFLOP/s: conv 29.6, depthwise 4, attention 50, resnet18-imagenet 29.6; 1 ms* more per step",
        "8.59 GB, 11 W~ training, 3 W* idle, 2.4 GHz",
        "codecs: 1.51~ times as long as the reference host",
        "source (",
    ),
    "models shufflenet": (
        "images 32x32 and others, width 24 or another multiple of 12; family depthwise",
        "blocks: stem, stage1, stage2, stage3, head, or balanced:2 .. balanced:18",
        "norm: group, or batch or none",
    ),
    "models cnn": ("images 32x32; family conv", "blocks: ", "norm: none, or batch or group"),
    "models digits-cnn": ("images 8x8, width 16; family conv", "blocks: ", "norm: "),
    "metrics loss": ("a mean over examples; lower is better",),
    "networks lte-2012": (
        "13 Mbit/s down (sigma 0.7*), 6 Mbit/s up (sigma 0.7*), goodput; RTT 60 ms*",
        "loss 0.06 %~; outages per hour 0*; promotion 260 ms at 1.21 W",
        "3.92 W* to send, 1.96 W* to receive, 1.06 W for 11.6 s* after",
        "by rate: 1.288 W* and per Mbit/s 0.438 W to send, 0.052 W to receive",
    ),
    "networks wan": (
        "100 Mbit/s* down (sigma 0.5*), 100 Mbit/s* up (sigma 0.5*), line rate; RTT 20 ms*",
        "loss 0 %*; outages per hour 0*; promotion 0 ms*",
        "0.5 W* to send, 0.5 W* to receive, no tail",
    ),
}
"""What people see below a name: how its texts begin, from one of them on."""


@pytest.mark.parametrize("name", SHOWN)
def test_a_row_is_shown_with_what_its_figures_mean(name: str) -> None:
    what, _, row = name.partition(" ")
    found = [text for text in listing_text.DETAILS[what](named(what, row)) if text.startswith(SHOWN[name])]
    assert [text.startswith(begins) for text, begins in zip(found, SHOWN[name], strict=True)] == [True] * len(found)


@pytest.mark.parametrize(
    ("kind", "shipped", "row_type"), [("devices", devices, Device), ("networks", networks, Network)]
)
def test_a_row_as_toml_is_a_file_of_ones_own_with_the_same_figures(
    kind: str,
    shipped: Callable[[], dict[str, Any]],
    row_type: type[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "mine.toml"
    for name, row in shipped().items():
        assert main.run_command(["list", kind, "--toml", name]) == 0
        file.write_text(capsys.readouterr().out)
        without = {"measurements": ()} if kind == "devices" else {}  # they are of the row as it shipped
        assert own_rows(file, row_type) == {f"my-{name}": replace(row, name=f"my-{name}", **without)}


@pytest.mark.parametrize("what", listing.KINDS)
def test_each_list_is_shown_to_people_and_as_json(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    stream = io.StringIO()
    listing_text.show(what, listing.rows(what), stream)
    lines = stream.getvalue().splitlines()
    assert [row["name"] for row in rows] == [line.split("  ")[0] for line in lines if line and line[0] != " "]
    assert what == "scenarios" or max(map(len, lines)) <= 80
