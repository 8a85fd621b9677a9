"""Replies that no SuperLink would store, or that a run cannot count: named by client and key, and not kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.records.store import read
from coordinator.rounds.run import RunFailed
from edge.protocol import app_records
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.studies.replay import replay
from tests.crossed import every
from tests.scenarios.flower.apps import CLIENT, SERVER, Apps, write_app
from tests.scenarios.runs import check_message, never, opened

METRICS = 'MetricRecord({"num-examples": 1})'
REPLY = 'return Message(RecordDict({"arrays": msg.content["arrays"], "metrics": metrics}), reply_to=msg)'
PLACE = "round 1, client 0, train, message 0: the ClientApp has returned "
NO_REPLY = f"{PLACE}a message that is no reply to the one it got, which a SuperLink refuses: its "
MAKES = "; Message(content, reply_to=msg) makes a reply"
EXAMPLES = f"{PLACE}a reply whose metrics.num-examples is "
LIMIT = ": must be from 0 to 9007199254740992"


def changed(metadata: str, value: str) -> str:
    """A client's last lines, by which the metadata of its reply has another value."""
    return f"r = {REPLY.removeprefix('return ')}\n    r.metadata.__dict__['_{metadata}'] = {value}\n    return r"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    every(
        3,
        [
            (METRICS, 'MetricRecord({"num-examples": -1})', f"{EXAMPLES}-1{LIMIT}"),
            (METRICS, 'MetricRecord({"num-examples": 2**53 + 2})', f"{EXAMPLES}9007199254740994{LIMIT}"),
            (
                METRICS,
                'MetricRecord({"num-examples": 1, "a\\ud800": 0.5})',
                f"{PLACE}a reply that cannot be sent: metrics.a\\ud800: UnicodeEncodeError: 'utf-8' codec ..",
            ),
            (
                REPLY,
                "context.state['mine'] = MetricRecord({'n': 2**70})\n    " + REPLY,
                "round 1, client 0, train, message 0: the ClientApp has left a state that cannot be kept: mine.n: "
                "ValueError: ..",
            ),
            (REPLY, "return None", f"{PLACE}a NoneType instead of a Message"),
            (
                REPLY,
                "return Message(RecordDict(), 4611686018427387905, 'train')",
                f"{NO_REPLY}reply_to_message_id is '' instead of ..",
            ),
            (
                REPLY,
                changed("reply_to_message_id", "'another'"),
                f"{NO_REPLY}reply_to_message_id is 'another' instead of ..",
            ),
            (REPLY, changed("run_id", "7"), f"{NO_REPLY}run_id is 7 instead of 4611686018427387904{MAKES}"),
            (REPLY, changed("ttl", "1e9"), f"{PLACE}a reply with a ttl of 1000000000.0 s, of which 43200 s are left"),
        ],
    ),
)
def test_a_reply_that_cannot_count_ends_the_run_and_is_not_kept(apps: Apps, old: str, new: str, message: str) -> None:
    assert CLIENT.count(old) == 1
    with pytest.raises(RunFailed) as failed:
        apps.play("data.clients=1", client=CLIENT.replace(old, new), server=SERVER.replace("FedAvg()", ONE))
    folder = apps.folder / "digits" / "run"
    check_message(str(failed.value).partition("\n")[0], message)
    assert list((folder / app_records.FOLDER).glob("*.reply")) == []


ONE = "FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)"
LATER = "msg.content['config']['server-round'] == 2 and context.node_config['partition-id'] == 1"
"""In the second round, at one of the clients"""


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (
            f"if {LATER}: metrics = MetricRecord({{'num-examples': -1}})",
            "round 2, client 1, train, message 4: the ClientApp has returned a reply whose metrics.num-examples is -1"
            ": must be from 0 to 9007199254740992",
        ),
    ],
    ids=[
        "negative",
    ],
)
def test_a_run_goes_on_with_an_app_whose_client_was_mended(apps: Apps, wrong: str, error: str) -> None:
    client = CLIENT.replace("from flwr.app import", "import numpy as np, torch\nfrom flwr.app import Array,", 1)
    client = client.replace(METRICS, f"{METRICS}\n    torch.ones(8, 8) @ torch.ones(8, 8)")  # its time is no host's
    server = SERVER.replace("FedAvg()", "FedAvg(fraction_evaluate=0.0)")
    words = ("method_options.run_config.rounds=2", "data.clients=3")
    whole = apps.run(write_app(apps.folder / "whole", client, server), *words, run_id="whole")
    with pytest.raises(RunFailed) as failed:
        apps.play(*words, client=client.replace(REPLY, f"{wrong}\n    {REPLY}"), server=server)
    folder = apps.folder / "digits" / "run"
    place, _, rest = error.partition("..")
    text = str(failed.value).partition("\n")[0]
    assert text.startswith(place) and text.endswith(rest)
    (apps.folder / "app" / "probe" / "client_app.py").write_text(client)
    loaded, device = opened(folder, allow_code=True)
    assert runner.resume(loaded, Host(folder.parent, 2, device), folder, apps.launcher, never)["rounds"] == 2
    assert rows(folder) == rows(Path(whole["run_dir"]))
    # it is that app's run from now on
    assert replay(folder, allow_code=True).rounds == 2


def rows(folder: Path) -> list[tuple[object, ...]]:
    columns = "round, start_s, end_s, participants, bytes_down, bytes_up, flops, joules"
    return [tuple(row) for row in read(folder / "ledger.sqlite", f"SELECT {columns} FROM rounds ORDER BY round")]
