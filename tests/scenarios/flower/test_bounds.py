"""What an app gives as metrics is recorded if it can be read again, and else ends the run with its name and client."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.records.foreign import check
from coordinator.rounds.run import RunFailed
from tests.scenarios.flower.apps import CLIENT, SERVER, Apps, write_app

OF_CLIENT = 'MetricRecord({"num-examples": 1})'
ON_SERVER = "num_rounds=context.run_config"
LEDGER = Path("digits") / "run" / "ledger.sqlite"


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ('{"big": 1e31}', "logs 'big': 1e+31 is beyond 1e+30, the most that a run records"),
        ('{f"n{i}": 1.0 for i in range(1001)}', "logs 1,00"),
    ],
)
@pytest.mark.parametrize("side", ["client", "server"])
def test_metrics_that_no_reader_takes_end_the_run_when_they_are_given(
    side: str, metrics: str, said: str, apps: Apps, tmp_path: Path
) -> None:
    given = f"evaluate_fn=lambda round, arrays: MetricRecord({metrics}), {ON_SERVER}"
    server = (
        SERVER
        if side == "client"
        else SERVER.replace(ON_SERVER, given).replace("import Arr", "import MetricRecord, Arr")
    )
    client = (
        CLIENT.replace(OF_CLIENT, f"MetricRecord({{'num-examples': 1, **{metrics}}})") if side == "client" else CLIENT
    )
    app = write_app(tmp_path / "app", client, server)
    with pytest.raises(RunFailed) as caught:
        apps.run(app, "data.clients=2")
    assert said in str(caught.value)
    assert ("client " if side == "client" else "the server's side ") in str(caught.value)
    check(apps.folder / LEDGER)
