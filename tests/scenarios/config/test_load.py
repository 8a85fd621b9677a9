"""From TOML and overrides to a resolved scenario, or to one message that names file, key and nearest valid choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from coordinator.methods.fedavg import SPEC as FEDAVG
from coordinator.methods.spec import ModelEvaluation
from edge.protocol.options.fedbr import TUNED, FedBROptions
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all, parsed
from scenarios.config.quantities import scenario_text
from scenarios.config.tables import value_at
from scenarios.config.toml_source import shipped
from scenarios.config.toml_writer import toml_text
from scenarios.run.evaluated_clients import check_validation
from scenarios.run.setup import RunInputs, Setup


def refusal(*overrides: str, name: str = "digits") -> str:
    with pytest.raises(ScenarioError) as caught:
        load(name, parse_all(overrides))
    return str(caught.value)


@pytest.mark.parametrize("name", shipped())
def test_every_scenario_that_ships_loads_and_its_resolved_form_says_the_same(name: str, tmp_path: Path) -> None:
    loaded = load(name)
    resolved = tmp_path / f"{name}.toml"
    resolved.write_text(scenario_text(loaded.scenario.model_dump()), encoding="utf-8")

    assert load(str(resolved)).scenario == loaded.scenario


def test_quantities_take_units_and_are_kept_in_si() -> None:
    loaded = load(
        "digits", parsed(['budget.bytes="50 GB"', "budget.virtual_seconds=15 min", "fleet.server.down=20 Mbit/s"])
    )

    assert (loaded.scenario.budget.bytes, loaded.scenario.budget.virtual_seconds) == (50_000_000_000, 900.0)
    assert loaded.scenario.fleet.server.down == 20e6
    assert load("digits", parsed(["fleet.server.down=inf"])).scenario.fleet.server.down == float("inf")


def test_a_run_folder_of_an_earlier_version_may_have_bare_numbers_but_overrides_of_it_may_not(tmp_path: Path) -> None:
    text = toml_text(load("digits", parsed(["rounds.deadline=5 s"])).scenario.model_dump())
    assert "deadline = 5.0\n" in text
    (tmp_path / "scenario.toml").write_text(text)
    assert "split.server = 10000000000000.0: needs a unit" in refusal(name=str(tmp_path / "scenario.toml"))
    (tmp_path / "ledger.sqlite").touch()

    assert load(str(tmp_path / "scenario.toml")).scenario.rounds.deadline == 5.0
    assert "needs a unit" in refusal("rounds.deadline=6", name=str(tmp_path / "scenario.toml"))


def test_what_a_file_extends_is_overlaid_key_by_key_but_tables_of_names_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "digits"\n[train]\nlr = 0.5\n[fleet.networks]\n5g = 1\n')

    loaded = load(str(file))

    assert loaded.name == "mine"
    assert (loaded.scenario.train.lr, loaded.scenario.train.batch) == (0.5, 16)
    assert loaded.scenario.fleet.networks == {"5g": 1.0}
    assert set(loaded.scenario.fleet.devices) == {"raspberry-pi-4", "jetson-nano", "phone-mid"}


def test_a_number_or_list_without_end_is_refused_where_it_stands(tmp_path: Path) -> None:
    assert refusal(f"seed={'1' * 5000}").startswith("command line: seed: Exceeds the limit")
    assert refusal(f"{'.'.join('a' * 5000)}=1") == "digits.toml: tables or lists are nested too deeply"
    assert refusal(f"seed={'[' * 5000}").startswith("command line: seed: maximum recursion depth exceeded")
    (tmp_path / "long.toml").write_text(f"seed = {'1' * 5000}\n")
    (tmp_path / "deep.toml").write_text(f"seed = {'[' * 5000}\n")
    assert refusal(name=str(tmp_path / "long.toml")).startswith("long.toml: not valid TOML: Exceeds the limit")
    assert refusal(name=str(tmp_path / "deep.toml")) == "deep.toml: tables or lists are nested too deeply"
    assert refusal(f"seed=0x{'f' * 6000}") == "command line: seed: an integer must lie within -2^53 .. 2^53"
    assert refusal(name="x" * 300).startswith("no scenario 'xxx")


@pytest.mark.parametrize(
    ("spelled", "name"), [("fedprox", "fedprox"), ("fedavg + fedprox", "fedprox"), ("fedprox+fedmlb", "fedmlb+fedprox")]
)
def test_a_method_has_one_name_however_it_is_spelled(spelled: str, name: str) -> None:
    assert load("digits", parsed(["method_options={}", f"method={spelled}"])).scenario.method == name


def test_a_server_optimiser_is_written_out_with_all_its_options_which_a_file_replaces_as_one(tmp_path: Path) -> None:
    loaded = load("digits", parsed(["server=fedadam", "server_options.lr=0.02", "method=fedbr+scaffold"]))
    (tmp_path / "base.toml").write_text('extends = "digits"\nserver = "fedavgm"\n[server_options]\nmomentum = 0.6\n')
    file = tmp_path / "mine.toml"
    file.write_text('extends = "base.toml"\nserver = "fedyogi"\n[server_options]\ntau = 0.1\n')

    assert loaded.scenario.server_options == {"lr": 0.02, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}
    assert load("digits").scenario.server_options == {}
    assert load(str(file)).scenario.server_options == {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.1}


OWN = "tests.plugins.optioned"


@pytest.mark.parametrize(
    ("key", "own", "other", "table"),
    [
        ("method", "METHOD", "fedavg", "method_options"),
        ("server", "SERVER", "plain", "server_options"),
        ("rounds.selection", "SELECTION", "uniform", "rounds.selection_options"),
        ("rounds.policy", "POLICY", "sync", "rounds.policy_options"),
        ("train.lr_schedule", "SCHEDULE", "constant", "train.lr_schedule_options"),
        ("data.partition.kind", "PARTITION", "iid", "data.partition.options"),
    ],
)
def test_a_file_that_names_another_row_replaces_the_options_of_the_one_it_extends(
    key: str, own: str, other: str, table: str, tmp_path: Path
) -> None:
    (tmp_path / "base.toml").write_text(f'extends = "digits"\n{key} = "{OWN}:{own}"\n{table} = {{ amount = 0.5 }}\n')
    (tmp_path / "mine.toml").write_text(f'extends = "base.toml"\n{key} = "{other}"\n{table} = {{}}\n')

    amounts = [
        value_at(load(str(tmp_path / f"{name}.toml")).scenario.model_dump(), f"{table}.amount")
        for name in ("base", "mine")
    ]
    assert amounts == [0.5, None]


SCORED_BY_CLIENT = replace(FEDAVG, name="scored-by-client", evaluation=ModelEvaluation(on="clients"))


def test_a_method_scored_client_by_client_needs_local_test_examples_and_no_part_of_the_global_set(
    tmp_path: Path,
) -> None:
    (tmp_path / "shares.json").write_text("{}")
    name = f"{__name__}:SCORED_BY_CLIENT"
    from_file = ["data.partition.kind=file", f"data.partition.file={tmp_path / 'shares.json'}"]

    assert load("digits", parsed([f"method={name}"])).scenario.method == name
    assert load("digits", parsed(["eval.subset=100"])).scenario.eval.subset == 100
    assert refusal(f"method={name}", *from_file) == (
        f"command line: data.partition.kind = file assigns no test examples to clients, but {name} is evaluated on "
        "each client's own test examples"
    )
    assert refusal(f"method={name}", "eval.subset=100") == (
        f"command line: eval.subset = 100: {name} is evaluated on each client's own test examples, not on the test set"
    )
    assert refusal("eval.on=both", *from_file) == (
        "command line: data.partition.kind = file assigns no test examples to clients, but eval.on = both evaluates "
        "models on each client's own test examples"
    )
    assert load("digits", parse_all(["eval.on=clients", "eval.split=train", *from_file])).scenario.eval.split == "train"
    (tmp_path / "shares.json").write_text('{"0": {"train": [1], "test": [0]}}')
    assert load("digits", parse_all(["eval.on=both", *from_file])).scenario.eval.on == "both"


def test_an_error_of_a_file_names_the_file_and_one_that_is_not_there_the_nearest(tmp_path: Path) -> None:
    for name, text in (
        ("mine", 'extends = "digits"\n[train]\nlearning_rat = 0.1\n'),
        ("a", 'extends = "b.toml"\n'),
        ("b", 'extends = "a.toml"\n'),
        ("broken", "seed = \n"),
        ("bare", "fleet.server.up = 20\n"),
    ):
        (tmp_path / f"{name}.toml").write_text(text)
    mine, circle, broken, absent, bare = (
        refusal(name=str(tmp_path / f"{name}.toml")) for name in ("mine", "a", "broken", "x", "bare")
    )

    assert mine == "mine.toml: unknown key train.learning_rat, did you mean 'train.lr'?"
    assert circle == "a.toml: extends: the files extend each other in a circle"
    assert broken.startswith("broken.toml: not valid TOML: ") and "line 1" in broken
    assert refusal(name="digitz") == "no scenario 'digitz': did you mean 'digits'? (or name a TOML file)"
    assert absent == f"{tmp_path / 'x.toml'}: no such file"
    assert bare == "bare.toml: fleet.server.up = 20: needs a unit, for example '20 Mbit/s'"


@pytest.mark.parametrize("key", ["data.partition.seed", "fleet.seed"])
def test_partition_and_fleet_have_the_runs_seed_unless_they_are_given_one(key: str, tmp_path: Path) -> None:
    def seed(*overrides: str, name: str = "digits") -> int | None:
        scenario = load(name, parse_all(overrides)).scenario
        return scenario.fleet.seed if key == "fleet.seed" else scenario.data.partition.seed

    assert [seed(), seed("seed=3"), seed("seed=3", f"{key}=0")] == [0, 3, 0]
    # A run's own file has the number, so that another seed of it has the same partition or fleet.
    copy = tmp_path / "scenario.toml"
    copy.write_text(scenario_text(load("digits", parsed(["seed=3"])).scenario.model_dump()))
    assert [seed(name=str(copy)), seed("seed=4", name=str(copy))] == [3, 3]


def test_with_a_method_given_only_the_options_that_it_has_are_kept() -> None:
    options = ["method_options.lambda1=0.5", "method_options.period=7"]

    assert load("digits", parse_all(options), method="fedmlb").scenario.method_options["lambda1"] == 0.5
    assert load("digits", parse_all(options), method="fedbr").scenario.method_options["period"] == 7
    assert load("digits", parse_all(options), method="fedavg").scenario.method_options == {}
    with pytest.raises(ScenarioError, match=r"^command line: method: no method 'fedmlp'; did you mean 'fedmlb'\?$"):
        load("digits", method="fedmlp")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), texts)
tables = st.recursive(
    st.dictionaries(texts, st.one_of(values, st.none(), st.lists(values, max_size=3)), max_size=4),
    lambda inner: st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


@pytest.mark.parametrize(
    ("overrides", "others"),
    [
        ([], ["model.norm=none", "train.frozen_statistics=running", "method_options.preset=paper"]),
        (["model.name=resnet18"], ["model.name=resnet18", "model.norm=group"]),
        (
            ["method_options.preset=tuned"],
            [f"method_options.{key}={str(value).lower()}" for key, value in TUNED.items()],
        ),
    ],
)
def test_a_default_or_preset_that_is_written_out_changes_no_chain(overrides: list[str], others: list[str]) -> None:
    one, other = (
        RunInputs(load("digits", parse_all(overrides))).identity,
        RunInputs(load("digits", parse_all(others))).identity,
    )
    assert one == other
    assert "norm" not in one["model"]
    assert "preset" not in one["method_options"]
    assert one != RunInputs(load("digits", parse_all([*overrides, "model.norm=batch"]))).identity


def test_a_preset_is_written_out_and_goes_with_no_other_values() -> None:
    tuned = "method_options.preset=tuned"
    options = load("digits", parse_all([tuned, "method_options.alpha=2", "method_options.detach=true"])).options
    assert options.model_dump() == FedBROptions().model_dump() | dict(TUNED) | {
        "preset": "tuned",
        "detach": True,
    }
    with pytest.raises(ScenarioError, match=r'preset = "tuned" has period = 1, and 7 is given; leave one of them out'):
        load("digits", parse_all([tuned, "method_options.period=7"]))
    assert FedBROptions(preset="paper") == FedBROptions()


def test_fedfomo_needs_validation_examples_only_if_it_has_peers() -> None:
    alone = ["method=fedfomo", "method_options.peers=0"]
    assert load("digits", parse_all(alone)).scenario.data.validation == 0.2, "the same training examples as with peers"
    assert load("digits", parse_all([*alone, "data.validation=0"])).scenario.data.validation == 0
    three_and_none: Any = SimpleNamespace(samples=np.array([3]), validation_samples=np.array([0]))
    check_validation(Setup.of(load("digits", parse_all(alone)), three_and_none))
    with pytest.raises(ScenarioError, match="holds out no example of client 0, which has 3; raise it"):
        check_validation(Setup.of(load("digits", parsed(["method=fedfomo"])), three_and_none))


@pytest.mark.parametrize(
    ("words", "feeds_back"),
    [
        ((), False),
        (("codec.up.kind=quantize",), False),
        (("codec.up.kind=fp16",), False),
        (("codec.up.kind=topk",), True),
        (("codec.up.kind=topk", "codec.error_feedback=false"), False),
        (("codec.up.kind=randk", "codec.up.unbiased=false"), True),
        (('codec.up=[{kind="topk",ratio=0.1},{kind="fp16"}]',), True),
        (("codec.down.kind=topk",), False),
        # More noise than numbers: residuals would grow.
        (("codec.up.kind=ternary",), False),
        (("codec.up.kind=ternary", "codec.up.clip=2"), True),
        (('codec.up=[{kind="randk",ratio=0.1,unbiased=true},{kind="sign"}]',), False),
        (('codec.up=[{kind="powersgd"},{kind="sign"}]',), False),
        (('codec.up=[{kind="topk"},{kind="quantize",bits=4,norm="l2"}]',), False),
    ],
    ids=str,
)
def test_errors_of_biased_codecs_are_fed_back_unless_they_only_round_or_residuals_grow(
    words: tuple[str, ...], feeds_back: bool
) -> None:
    assert load("digits", parse_all(words)).scenario.codec.error_feedback is feeds_back


@pytest.mark.parametrize(
    ("words", "unbiased", "feeds_back"),
    [
        (("codec.up.kind=randk",), True, False),
        (('codec.up=[{kind="randk",ratio=0.1},{kind="fp16"}]',), True, False),
        (('codec.up=[{kind="randk",ratio=0.1},{kind="ternary"}]',), True, False),
        (('codec.up=[{kind="randk",ratio=0.1},{kind="sign"}]',), False, True),
        (("codec.up.kind=randk", "codec.error_feedback=true"), False, True),
        (('codec.up=[{kind="randk"}]', 'codec.up_slots.control={kind="topk"}'), False, True),
        (('codec.up=[{kind="randk"},{kind="sign"}]', "codec.error_feedback=false"), True, False),
    ],
    ids=str,
)
def test_drawn_numbers_are_scaled_unless_errors_are_fed_back(
    words: tuple[str, ...], unbiased: bool, feeds_back: bool
) -> None:
    codec = load("digits", parse_all([*words, "codec.down.kind=randk"])).scenario.codec
    assert (codec.up[0]["unbiased"], codec.error_feedback) == (unbiased, feeds_back)
    assert codec.down[0]["unbiased"]  # nothing is fed back there
