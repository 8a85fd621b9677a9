"""``fedbr.check(plugin=..)``: a plug-in as the thing itself, and what short runs say of it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import fedbr
from scenarios.api.objects import plugin_name
from scenarios.config.errors import ScenarioError
from tests.plugins import leaking_client, leaking_parts, optioned


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
