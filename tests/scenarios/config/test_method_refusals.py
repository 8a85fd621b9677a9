"""Combinations that a method of several models makes no sense with are refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all, parsed
from scenarios.run.evaluated_clients import check_validation
from tests.scenarios.runs import refused

CLUSTERS = "method=coordinator.methods.ifca:SPEC"


@pytest.mark.parametrize("method", ["ifca", "fedamp"])
def test_a_correction_of_one_global_model_is_refused_where_there_is_none(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, "check", "digits", f"method=coordinator.methods.{method}:SPEC+scaffold")
    assert "command line: method = " in message, "where it was given, not the file"
    assert message.endswith(f": scaffold corrects one global model, but {method} has none")


@pytest.mark.parametrize("on", ["global", "both"])
def test_without_a_global_model_none_is_evaluated(on: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "check", "digits", CLUSTERS, f"eval.on={on}")
    assert message.endswith(f'eval.on = "{on}": ifca has no global model; choose "clients"')


def test_workers_cannot_add_up_updates_of_different_models(capsys: pytest.CaptureFixture[str]) -> None:
    words = (CLUSTERS, "aggregate.sum=fixed_point")
    assert refused(capsys, "check", "digits", *words).endswith('"fixed_point": ifca needs individual updates')


@pytest.mark.parametrize(("method", "fraction"), [("fedavg", 0.0), ("fedfomo", 0.2)])
def test_validation_examples_are_held_out_by_default_where_the_method_needs_them(method: str, fraction: float) -> None:
    assert load("digits", parsed([f"method={method}"])).scenario.data.validation == fraction
    assert load("digits", parsed([f"method={method}", "data.validation=0.4"])).scenario.data.validation == 0.4


def test_a_method_is_refused_without_the_validation_examples_that_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "check", "digits", "method=fedfomo", "data.validation=0")
    assert "data.validation = 0: fedfomo needs validation examples of each client; choose such as 0.2" in message


def test_fedfomo_needs_validation_examples_only_if_it_has_peers() -> None:
    alone = ["method=fedfomo", "method_options.peers=0"]
    assert load("digits", parse_all(alone)).scenario.data.validation == 0.2, "the same training examples as with peers"
    assert load("digits", parse_all([*alone, "data.validation=0"])).scenario.data.validation == 0
    three_and_none: Any = SimpleNamespace(samples=np.array([3]), validation_samples=np.array([0]))
    check_validation(load("digits", parse_all(alone)), three_and_none)
    with pytest.raises(ScenarioError, match="holds out no example of client 0, which has 3; raise it"):
        check_validation(load("digits", parsed(["method=fedfomo"])), three_and_none)


@pytest.mark.usefixtures("warm_workers")
def test_a_client_that_would_have_no_validation_examples_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """1437 examples for 400 clients: 3 or 4 each, of which 20 % are none."""
    message = refused(capsys, "check", "digits", "method=fedfomo", "data.clients=400")
    assert "data.validation = 0.2 holds out no example of client 0, which has 3, and of 399 other clients" in message


@pytest.mark.parametrize("method", ["fedfomo", "fedamp"])
def test_stored_models_have_no_server_step_and_no_staleness(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "check", "digits", f"method={method}", "server=fedadam")
    assert message.endswith(f'server = "fedadam": {method} makes its own server step and admits only "plain"')
    message = refused(capsys, "check", "digits", f"method={method}", "rounds.policy=fedbuff")
    assert f"rounds.policy: {method} stores each client's newest model as it is" in message


@pytest.mark.parametrize(("method", "symbol", "key"), [("ifca", "k", "models"), ("fedfomo", "M_d", "peers")])
def test_a_papers_symbol_leads_to_the_option(
    method: str, symbol: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, "check", "digits", f"method={method}", f"method_options.{symbol}=3")
    assert message.endswith(f"unknown key method_options.{symbol}, did you mean 'method_options.{key}'?")
