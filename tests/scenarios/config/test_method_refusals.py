"""Combinations that a method of several models makes no sense with are refused by name."""

from __future__ import annotations

import pytest

from tests.scenarios.runs import refused

CLUSTERS = "method=tests.plugins.clusters:SPEC"


@pytest.mark.parametrize("method", ["clusters", "peers"])
def test_a_correction_of_one_global_model_is_refused_where_there_is_none(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, "check", "digits", f"method=tests.plugins.{method}:SPEC+scaffold")
    assert message.endswith(f": scaffold corrects one global model, but {method} has none")


@pytest.mark.parametrize("on", ["global", "both"])
def test_without_a_global_model_none_is_evaluated(on: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "check", "digits", CLUSTERS, f"eval.on={on}")
    assert message.endswith(f'eval.on = "{on}": tests.plugins.clusters:SPEC has no global model; choose "clients"')


def test_workers_cannot_add_up_updates_of_different_models(capsys: pytest.CaptureFixture[str]) -> None:
    words = (CLUSTERS, "aggregate.sum=fixed_point")
    assert refused(capsys, "check", "digits", *words).endswith('"fixed_point": clusters needs individual updates')
