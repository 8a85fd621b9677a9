"""Messages of real apps: their bytes and FLOPs by hand, and what Flower's calls mean in virtual time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.store import read
from tests.scenarios.flower.apps import Apps, said

THREE = "data.clients=3"
LARGE = 10_000_000
"""Bytes of the array that a slow client returns"""


def visits(result: dict[str, Any], columns: str) -> list[tuple[Any, ...]]:
    """These columns of a run's visits, in order of their messages."""
    ledger = Path(result["run_dir"]) / "ledger.sqlite"
    return [tuple(row) for row in read(ledger, f"SELECT {columns} FROM visits ORDER BY visit")]


STEP_CLIENT = """
    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context):
        net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(torch.ones(16, 8)), torch.zeros(16, dtype=torch.int64)).backward()
            optimizer.step()
        arrays = ArrayRecord(net.state_dict())
        # the same array in a second record is the same object, which travels once
        return Message(RecordDict({"a": arrays, "b": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": 48})}), reply_to=msg)
"""
STEP_SERVER = """
    import numpy as np
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid, context):
        node = next(iter(grid.get_node_ids()))
        content = RecordDict({"arrays": ArrayRecord([np.arange(100.0)]), "config": ConfigRecord({"lr": 0.1})})
        grid.send_and_receive([Message(content, node, "train")])
"""


def test_bytes_are_those_of_flowers_objects_and_flops_twice_the_macs(apps: Apps) -> None:
    result = apps.play(client=STEP_CLIENT, server=STEP_SERVER)
    ((down, up, flops, steps, samples),) = visits(result, "bytes_down, bytes_up, flops, steps, samples")
    # forward: 16 x (8 x 4 + 4 x 2) MACs; gradients of both weights: as many; of the input of the second layer: 16 x 8
    macs = 16 * (2 * (8 * 4 + 4 * 2) + 4 * 2)
    assert (flops, steps, samples) == (3 * 2 * macs, 3, 48)
    assert (down, up) == (_down_nbytes(), _up_nbytes())


def _distinct(item: Any) -> Iterator[Any]:
    yield item
    for child in (item.children or {}).values():
        yield from _distinct(child)


def _nbytes(message: Any) -> int:
    return sum({each.object_id: len(each.deflate()) for each in _distinct(message)}.values())


def _message(content: Any) -> Any:
    from flwr.app import Message

    from edge.flower import wire

    wire.identify(1, lambda: 0.0)
    message = Message(content, wire.node_id(0), "train")
    message.metadata.__dict__["_created_at"] = 1.7e9
    return message


def _down_nbytes() -> int:
    import numpy as np
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    arrays, config = ArrayRecord([np.arange(100.0)]), ConfigRecord({"lr": 0.1})
    # the chunk of the array is its .npy file of 128 + 800 bytes behind a head that says what it is
    chunks = [each for each in _distinct(arrays) if type(each).__name__ == "ArrayChunk"]
    assert [len(chunk.data) for chunk in chunks] == [128 + 800]
    return _nbytes(_message(RecordDict({"arrays": arrays, "config": config})))


def _up_nbytes() -> int:
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    from edge.flower import wire

    request = _message(RecordDict({}))
    request.metadata.__dict__["_message_id"] = "0" * 64
    wire.identify(wire.node_id(0), lambda: 0.0)
    torch.manual_seed(0)
    arrays = ArrayRecord(
        torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).state_dict()
    )
    content = RecordDict({"a": arrays, "b": arrays, "metrics": MetricRecord({"num-examples": 48})})
    return _nbytes(Message(content, reply_to=request))


STATE_CLIENT = f"""
    import numpy as np
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    def double(msg, context, call_next):
        reply = call_next(msg, context)
        reply.content["metrics"]["doubled"] = 2 * reply.content["metrics"]["visits"]
        return reply

    app = ClientApp(mods=[double])

    def answer(msg: Message, context: Context, **metrics):
        before = context.state["count"]["visits"] if "count" in context.state else 0
        context.state["count"] = MetricRecord({{"visits": before + 1}})
        record = MetricRecord({{"visits": before + 1, "id": context.node_config["partition-id"], "num-examples": 1}})
        record.update(metrics)
        content = {{"metrics": record}}
        if context.node_config["partition-id"] == 2:
            content["arrays"] = ArrayRecord([np.zeros({LARGE}, np.uint8)])
        return Message(RecordDict(content), reply_to=msg)

    @app.query()
    def query(msg, context):
        return answer(msg, context, partitions=context.node_config["num-partitions"])

    @app.train()
    def train(msg, context):
        return answer(msg, context)

    @app.train("custom", mods=[double])
    def custom(msg, context):
        return answer(msg, context, custom=1)
"""
STATE_SERVER = """
    import json
    import time
    from flwr.app import Message, RecordDict
    from flwr.serverapp import ServerApp

    app = ServerApp()

    def say(**values):
        print("said", json.dumps(values), flush=True)

    @app.main()
    def main(grid, context):
        nodes = list(grid.get_node_ids())
        began = time.time()

        def messages(kind, of=nodes, ttl=None):
            return [Message(RecordDict(), node, kind, ttl=ttl) for node in of]

        def values(replies):
            found = [dict(reply.content["metrics"]) for reply in replies if reply.has_content()]
            return sorted(found, key=lambda each: each["id"])

        say(query=values(grid.send_and_receive(messages("query", nodes[:2]))))
        say(custom=values(grid.send_and_receive(messages("train.custom", nodes[:2]))))

        before = time.monotonic()
        replies = list(grid.send_and_receive(messages("train"), timeout=2.0))
        say(timeout=[each["id"] for each in values(replies)], seconds=time.monotonic() - before)

        time.sleep(3600)
        before = time.perf_counter()
        (reply,) = grid.send_and_receive(messages("train", nodes[2:], ttl=1.0))
        say(code=reply.error.code, seconds=time.perf_counter() - before)
        time.sleep(3600)

        waiting, before, polls = set(grid.push_messages(messages("train"))), time.monotonic(), []
        while waiting:
            replies = list(grid.pull_messages(waiting))
            polls.append([time.monotonic() - before, [each["id"] for each in values(replies)]])
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
            if waiting:
                time.sleep(3)
        say(polls=polls, visits=[each["visits"] for each in values(replies)])

        twice = list(grid.push_messages(messages("query", [nodes[0], nodes[0]])))
        replies = []
        while len(replies) < 2:
            replies += grid.pull_messages(twice)
        say(twice=len(set(twice)), visits=sorted(each["visits"] for each in values(replies)))
        say(seconds=time.time() - began)
"""


def test_calls_of_flower_mean_virtual_time_and_nodes_keep_their_state(apps: Apps) -> None:
    began = time.monotonic()
    result = apps.play(THREE, client=STATE_CLIENT, server=STATE_SERVER)
    query, custom, timeout, expired, polls, twice, whole = said(result)
    assert query["query"] == [
        {"visits": 1, "id": index, "num-examples": 1, "partitions": 3, "doubled": 2} for index in (0, 1)
    ]
    # of the message's own mods and those of the app, each doubles once the same value
    assert [(each["visits"], each["custom"]) for each in custom["custom"]] == [(2, 1), (2, 1)]
    # a message of a megabyte takes longer than 2 s over LTE; its reply is late, and its node has counted the visit
    assert timeout["timeout"] == [0, 1]
    assert timeout["seconds"] == pytest.approx(2.0, abs=1e-6)  # the server takes 0.3 us for the replies
    assert (expired["code"], expired["seconds"]) == (3, pytest.approx(1.0, abs=1e-9))
    times = [seconds for seconds, _ in polls["polls"]]  # the server takes 3.3 ms for 10 MB
    assert times == [pytest.approx(3.0 * index, abs=4e-3) for index in range(len(times))]
    assert [ids for _, ids in polls["polls"] if ids] == [[0, 1], [2]]
    assert polls["visits"] == [3]  # of the third node: late, expired, then in time
    assert (twice["twice"], twice["visits"]) == (2, [5, 6])
    assert whole["seconds"] > 7200
    assert time.monotonic() - began < 600  # nobody sleeps
    kinds = visits(result, "client, kind")
    assert kinds[:4] == [(0, "evaluate"), (1, "evaluate"), (0, "train"), (1, "train")]
    assert [kind for client, kind in kinds if client == 2] == ["late", "late", "train"]
    bytes_up = [nbytes for client, nbytes in visits(result, "client, bytes_up") if client == 2]
    assert all(LARGE < nbytes < LARGE + 2000 for nbytes in bytes_up)
