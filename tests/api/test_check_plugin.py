"""``fedbr.check(plugin=..)``: a plug-in as the thing itself, and what short runs say of it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import fedbr
from scenarios.api.objects import plugin_name
from scenarios.config.errors import ScenarioError
from scenarios.studies import conformance
from tests.plugins import leaking_client, leaking_parts, optioned


@pytest.mark.usefixtures("warm_workers")
def test_a_class_that_keeps_something_between_visits_in_a_cache_is_found() -> None:
    result = fedbr.check(plugin=leaking_client.Cached, workers=2)
    findings = {finding["name"]: (finding["holds"], finding["detail"]) for finding in result["findings"]}
    assert (result["key"], result["holds"]) == ("method", False)
    assert findings["1 worker"][0]
    assert findings["3 workers"] == (False, "round 1 differs")
    assert findings["resume"][0] is False  # each round begins in new processes


@pytest.mark.parametrize(
    ("plugin", "key", "named"),
    [
        ("my_method:SPEC", None, "my_method:SPEC"),
        (optioned.METHOD, None, "tests.plugins.optioned:METHOD"),
        (optioned.SELECTION, None, "tests.plugins.optioned:SELECTION"),
        (leaking_parts.MODEL, None, "tests.plugins.leaking_parts:MODEL"),
        (leaking_client.Cached, None, "Cached_"),
        (leaking_parts.Growing, None, "Growing_"),
        (leaking_parts.CountingSign, None, "CountingSign_"),
        (leaking_parts.counting_net, "model.name", "counting_net_"),
    ],
)
def test_a_plug_in_is_named_by_its_row_or_by_one_that_is_written(plugin: Any, key: str | None, named: str) -> None:
    assert plugin_name(plugin, key, {}).startswith(named)


@pytest.mark.parametrize(
    ("plugin", "arguments", "message"),
    [
        (
            leaking_parts.counting_net,
            {},
            "counting_net: say which it is: key = 'model.name', 'data.partition.kind', 'train.lr_schedule'",
        ),
        (leaking_parts.counting_net, {"key": "model.nam"}, "key = 'model.nam': no key of a plug-in; did you mean 'mod"),
        (3, {}, "3: is no plug-in; give its row, a class derived from AsynchronousPolicy, ClientSelector, "),
        (nn.Identity(), {}, "is no plug-in; give its row, a class derived from"),
        ("my_method", {}, "'my_method': write MODULE:NAME, the module and its row, such as my_method:SPEC"),
        (
            optioned.METHOD,
            {"method_options": {"amuont": 1}},
            "unknown key method_options.amuont, did you mean 'method_options.amount'?",
        ),
    ],
)
def test_what_is_no_plug_in_is_refused_with_what_would_be(plugin: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        fedbr.check(plugin=plugin, **arguments)
    assert message in str(refused.value)


def test_other_keys_of_its_runs_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(conformance.Examination, "examine", lambda own, folder: given.append(dict(own.overrides)))
    keys: dict[str, Any] = {"server_options.amount": 0.5, "method": "fedavg"}
    result = fedbr.check(plugin=optioned.SERVER, **keys)
    assert result["holds"]
    assert (given[0]["server"], given[0]["server_options.amount"]) == ("tests.plugins.optioned:SERVER", 0.5)
