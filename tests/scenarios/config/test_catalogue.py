"""The keys of a scenario as they are explained: all of them, with meaning, type, unit, default and range."""

from __future__ import annotations

import tomllib
from typing import Any

import jsonschema
import pytest

from scenarios.config import catalogue, json_schema, toml_source
from scenarios.config.error_messages import known_keys
from scenarios.config.schema import Scenario

KEYS = {entry.key: entry for entry in catalogue.scenario_keys()}


def test_every_key_is_explained_and_every_quantity_has_a_unit() -> None:
    tables = set(catalogue.key_tables())
    assert set(KEYS) | tables == set(known_keys(Scenario).values())
    assert [key for key, entry in KEYS.items() if not entry.meaning] == []
    assert [key for key, meaning in catalogue.key_tables().items() if not meaning] == []
    assert [(entry.key, entry.used_by) for entry in catalogue.all_options() if not entry.meaning] == []
    # Names of quantities: time, data, energy. None may be taken as a plain number.
    words = ("virtual_seconds", "bytes", "joules", "flops", "battery", "deadline", "reconnect", "rates")
    named = {key: entry.unit for key, entry in KEYS.items() if key.rpartition(".")[2].startswith(words)}
    del named["submodel.rates"]  # shares of channels
    assert set(named.values()) == {"seconds", "bytes", "joules", "FLOP", "bit/s"}
    assert KEYS["fleet.server.up"].unit == "bit/s"
    assert KEYS["fleet.rates"].unit == "bit/s"
    for key in ("hour", "hours", "spread_hours", "jitter_hours", "start_hour"):
        assert any(word in KEYS[f"fleet.availability.{key}"].meaning for word in ("hour", "interval", "time of day"))


@pytest.mark.parametrize(
    ("key", "kind", "default", "bounds", "users"),
    [
        ("train.lr", "a number", "0.1", "at least 0, at most 1,000,000", ()),
        ("train.nesterov", "true or false", "false", None, ()),
        ("train.lr_decay", "a number", "1.0", "above 0, at most 1", ("train.lr_schedule = exponential",)),
        ("data.partition.epsilon", "a whole number", "7", None, ("data.partition.kind = epsilon",)),
        ("rounds.deadline", "text with a unit (us, ms, s, min, h, d)", '"4.5 min"', "above 0 s",
         ("rounds.policy = deadline",)),
        ("rounds.on_late", "one of stop, finish, complete", '"stop"', None,
         ("rounds.policy = over_select", "rounds.policy = deadline")),
        ("fleet.transport.reconnect", "text with a unit (us, ms, s, min, h, d)", "inf", "at least 1 s", ()),
        ("fleet.transport.noise", "a number or one of measured", "0.0", "at least 0, at most 2", ()),
        ("stop.patience", "a whole number", "none", "at least 1", ()),
        ("eval.metrics", "a list of text", '["accuracy", "loss"]', None, ()),
        ("codec.up", "a list of tables", "[]", None, ()),
        ("checkpoints.keep", "a list of numbers or text", '"newest"', None, ()),
    ],
)  # fmt: skip
def test_a_key_says_what_it_takes(
    key: str, kind: str, default: str, bounds: str | None, users: tuple[str, ...]
) -> None:
    entry = KEYS[key]
    assert (entry.type, entry.default_text, entry.range, entry.used_by) == (kind, default, bounds, users)


# --- the JSON Schema --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json_schema.scenario_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", toml_source.shipped())
def test_every_shipped_scenario_is_valid(validator: Any, name: str) -> None:
    tables = tomllib.loads((toml_source.FILES / f"{name}.toml").read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(tables)] == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("train.lrr = 0.1", "$.train"),
        ("train.lr = -1", "$.train.lr"),
        ('train.precision = "fp8"', "$.train.precision"),
        ('fleet.server.up = "20 MB/s"', "$.fleet.server.up"),
        ("fleet.server.up = 0.5", "$.fleet.server.up"),
        ('method = "fedavgg"', "$.method"),
        ('method_options.period = "often"', "$.method_options.period"),
        ('rounds.policy = "async"', "$.rounds.policy"),
        ("seed = true", "$.seed"),
        ('codec.up = "quantize"', "$.codec.up"),
        ('codec.up = { kind = "quantise" }', "$.codec.up"),
        ('codec.up = { kind = "quantize", bits = 17 }', "$.codec.up"),
        ('codec.down = [{ kind = "topk" }, { ratio = 0.1 }]', "$.codec.down"),
        ('codec.up_slots.control = { kind = "sign", bits = 1 }', "$.codec.up_slots.control"),
        ('codec.of = "updates"', "$.codec.of"),
    ],
)
def test_an_editor_marks_what_is_wrong(validator: Any, text: str, where: str) -> None:
    assert [error.json_path for error in validator.iter_errors(tomllib.loads(text))] == [where]


@pytest.mark.parametrize(
    "text",
    [
        'method = "fedmlb+scaffold"',
        'method = "my_method:SPEC"\nmethod_options.amount = 3',
        'fleet.server.up = "20 Mbit/s"',
        "fleet.server.down = inf",
        'budget.bytes = "1.5e2 MiB"',
        'fleet.devices = ["jetson-nano", "my-board"]',
        'extends = "digits"\n[eval.metric_options.hessian]\npairs = "distinct"',
        'codec.up = { kind = "quantize", bits = 4 }\ncodec.down = [{ kind = "topk" }, { kind = "zstd" }]',
        'codec.up_slots.control = [{ kind = "mine:ROW", amount = 3 }]\ncodec.down_slots = {}',
    ],
)
def test_an_editor_accepts_what_a_run_does(validator: Any, text: str) -> None:
    assert [error.message for error in validator.iter_errors(tomllib.loads(text))] == []


def test_the_schema_says_what_keys_mean_and_what_they_are_by_default() -> None:
    schema = json_schema.scenario_schema()["properties"]
    assert schema["train"]["description"] == "Local training."
    assert schema["train"]["properties"]["lr"] == {
        "description": "Learning rate of the first round. Default: 0.1.",
        "default": 0.1,
        "type": "number",
        "minimum": 0,
        "maximum": 1e6,
    }
    policies = schema["rounds"]["properties"]["policy"]["anyOf"][0]
    assert policies == {"enum": ["sync", "over_select", "deadline", "fedasync", "fedbuff"]}
