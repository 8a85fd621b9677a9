"""Runs whose models are cut between clients and a server: FedAvg's numbers, bytes by hand, one chain, and refusals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.store import read
from coordinator.rounds.pool_trainer import PoolTrainer
from coordinator.workers.launcher import WorkerLauncher
from scenarios.cli import main
from scenarios.report.round_figures import timeline
from scenarios.report.run_reader import RecordedRun
from scenarios.report.stages import totals
from scenarios.studies.visit_parts import visit_parts
from tests.ledgers import chain
from tests.scenarios.runs import AMONG_UPDATES, killed_and_resumed, run_with

PLAIN = ("method=fedavg", "train.local_steps=2", "train.batch=20", "rounds.max=3", "rounds.participants=4")
CUT = (*PLAIN, "split.after=conv2")
IN_TURN = ("split.kind=sequential", "rounds.policy=fedasync", "rounds.participants=1", "rounds.mixing=1")
LONG = pytest.mark.long
FRONT = ("split.kind=frozen-front", "adapter.kind=freeze", 'adapter.train=["conv3","head"]')


def rows(folder: str | Path, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in read(Path(folder) / "ledger.sqlite", query)]


def test_what_both_sides_train_is_what_one_device_would(launcher: WorkerLauncher, tmp_path: Path) -> None:
    whole = run_with(tmp_path / "whole", launcher, 2, *PLAIN)
    cut = run_with(tmp_path / "cut", launcher, 2, *CUT)
    shaped = run_with(tmp_path / "shaped", launcher, 2, *CUT, "split.labels=u-shaped")
    assert whole["model_sha256"] == cut["model_sha256"] == shaped["model_sha256"]
    assert cut["flops"] < whole["flops"] and cut["virtual_seconds"] != whole["virtual_seconds"]


def test_bytes_of_a_visit_follow_from_shapes(launcher: WorkerLauncher, tmp_path: Path) -> None:
    """The second block of digits-cnn gives 32 channels of 4 x 4 places: 512 numbers. Two steps of 20 examples."""
    cut = run_with(tmp_path / "cut", launcher, 2, *CUT)
    front = 4 * (16 * 9 + 16 + 32 * 16 * 9 + 32)
    transfers = rows(cut["run_dir"], "SELECT direction, slot, SUM(nbytes) FROM transfers GROUP BY direction, slot")
    found = {(way, slot): nbytes // 12 for way, slot, nbytes in transfers if slot}
    activations = 2 * 20 * 512 * 4
    assert activations == 81_920
    assert found == {
        ("down", "model"): front, ("down", "gradients"): activations,
        ("up", "model"): front, ("up", "activations"): activations, ("up", "labels"): 2 * 20 * 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [
        ("split.kind=splitfed-v2", "codec.steps.kind=quantize", "split.clip=3", "split.noise=0.1"),
        pytest.param((), marks=LONG),
        pytest.param((*IN_TURN, "rounds.max=12"), marks=LONG),
        pytest.param(
            ("codec.steps.kind=quantize", "split.clip=3", "split.noise=0.1", "split.labels=u-shaped"), marks=LONG
        ),
        pytest.param(FRONT, marks=LONG),
        pytest.param(("split.labels=u-shaped", "rounds.policy=deadline", "rounds.deadline=2 s"), marks=LONG),
    ],
    ids=str,
)
def test_a_split_run_is_one_chain_for_any_workers_and_after_a_kill(
    how: tuple[str, ...], launcher: WorkerLauncher, tmp_path: Path
) -> None:
    keys = {word.partition("=")[0] for word in how}
    words = (*(word for word in CUT if word.partition("=")[0] not in keys), *how)
    one, four = (run_with(tmp_path, launcher, workers, *words) for workers in (1, 4))
    again = killed_and_resumed(tmp_path, launcher, AMONG_UPDATES, *words, workers=1 if IN_TURN[0] in how else 2)
    assert chain(Path(one["run_dir"])) == chain(Path(four["run_dir"])) == chain(again)


def test_one_client_trains_a_shared_server_part_as_its_own(launcher: WorkerLauncher, tmp_path: Path) -> None:
    runs = {
        (kind, clients): run_with(
            tmp_path / f"{kind}-{clients}", launcher, 1, *CUT, f"split.kind={kind}", f"rounds.participants={clients}"
        )
        for kind in ("splitfed-v1", "splitfed-v2")
        for clients in (1, 4)
    }
    hashes = {each: run["model_sha256"] for each, run in runs.items()}
    assert hashes["splitfed-v2", 1] == hashes["splitfed-v1", 1]
    assert hashes["splitfed-v2", 4] != hashes["splitfed-v1", 4]
    costs = [(run["virtual_seconds"], run["bytes_up"], run["flops"]) for run in runs.values()]
    assert costs[:2] == costs[2:]


def test_one_client_with_all_data_trains_as_in_one_place(launcher: WorkerLauncher, tmp_path: Path) -> None:
    alone = (*PLAIN[1:], "data.clients=1", "rounds.participants=1")
    central = run_with(tmp_path / "central", launcher, 1, "method=central", *alone)
    cut = run_with(
        tmp_path / "cut", launcher, 1, "method=fedavg", *alone, "split.after=conv2", "split.kind=splitfed-v2"
    )
    losses = [rows(run["run_dir"], "SELECT loss FROM visits ORDER BY visit") for run in (central, cut)]
    assert losses[0] == losses[1] and len(losses[0]) == 3
    assert central["accuracy"] == cut["accuracy"]


def test_a_visit_that_is_late_pays_for_its_steps_and_a_shared_server_part_keeps_them(
    launcher: WorkerLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six clients with four steps each: three end in 0.6 s, one lacks its upload alone, and two have made 3 steps."""
    orders, submit = list[Sequence[int]](), PoolTrainer.submit

    def noted(self: PoolTrainer, visits: Any, on_update: Any, weights: Any = None, order: Sequence[int] = ()) -> Any:
        orders.append(order)
        return submit(self, visits, on_update, weights, order)

    monkeypatch.setattr(PoolTrainer, "submit", noted)
    late = ("train.local_steps=4", "rounds.max=1", "rounds.participants=6", "rounds.policy=deadline")
    words = (*CUT, *late, "rounds.deadline=0.6 s", "split.kind=splitfed-v2")
    shared = run_with(tmp_path / "shared", launcher, 1, *words)
    own = run_with(tmp_path / "own", launcher, 1, *words, "split.kind=splitfed-v1")
    query = "SELECT client, kind, flops, bytes_up FROM visits ORDER BY client"
    visits = rows(shared["run_dir"], query)
    assert visits == rows(own["run_dir"], query)
    kinds = {client: kind for client, kind, *_ in visits}
    assert sorted(kinds.values()) == ["late"] * 3 + ["train"] * 3
    whole = max(flops for *_, flops, _ in visits)
    steps = {client: int(4 * flops / whole + 0.5) for client, _, flops, _ in visits}
    assert sorted(steps.values()) == [3, 3, 4, 4, 4, 4]
    assert Counter(orders[0]) == steps and orders[1] == []
    # Of 3.1 and 3.4 steps, each with 10,240 bytes of activations and labels beside, the device has sent so much.
    for number in range(6):
        parts = visit_parts(Path(shared["run_dir"]), number)
        assert sum(part.seconds for part in parts.parts) == pytest.approx(parts.seconds)
    sent = {client: nbytes for client, _, flops, nbytes in visits if flops < whole}
    assert all(3 * 41_120 < nbytes < 4 * 41_120 for nbytes in sent.values())


def test_in_turn_a_client_begins_where_the_one_before_has_ended(launcher: WorkerLauncher, tmp_path: Path) -> None:
    words = (*(word for word in PLAIN if "participants" not in word), *IN_TURN[1:])
    whole, cut = (
        run_with(tmp_path / str(len(more)), launcher, 2, *words, *more)
        for more in ((), ("split.after=conv2", IN_TURN[0]))
    )
    assert whole["model_sha256"] == cut["model_sha256"]
    ends = rows(cut["run_dir"], "SELECT start_s, up_end_s FROM visits ORDER BY visit")
    assert all(later[0] >= earlier[1] for earlier, later in pairwise(ends)) and len(ends) == 3


def test_a_frozen_front_gets_no_gradient(launcher: WorkerLauncher, tmp_path: Path) -> None:
    run = run_with(tmp_path, launcher, 1, *CUT, *FRONT)
    query = "SELECT direction, slot, SUM(nbytes) FROM transfers WHERE slot <> '' GROUP BY direction, slot ORDER BY slot"
    # Twelve visits of two steps of 20 examples; the front is shipped, and does not change.
    found = [row for row in rows(run["run_dir"], query) if row[2]]
    assert found == [("up", "activations", 983_040), ("up", "labels", 3_840)]


def test_a_forecast_and_a_replay_have_the_runs_costs(
    launcher: WorkerLauncher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tmp_path, launcher, 2, *CUT)
    assert main.run_command(["check", "digits", *CUT, "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)["estimate"]
    assert (costs["bytes_down"], costs["bytes_up"]) == (run["bytes_down"], run["bytes_up"])
    assert costs["virtual_seconds"] == pytest.approx(run["virtual_seconds"])
    assert main.run_command(["replay", run["run_dir"], "--json"]) == 0
    before, after = json.loads(capsys.readouterr().out)["virtual_seconds"]
    assert before == after
    assert main.run_command(["replay", run["run_dir"], "split.server=1 MFLOP/s", "--json"]) == 0
    before, after = json.loads(capsys.readouterr().out)["virtual_seconds"]
    assert after > 100 * before


def test_messages_of_steps_take_codecs_a_clip_and_noise(
    launcher: WorkerLauncher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    each = {
        "plain": (),
        "wide": ("split.clip=1e9",),
        "clipped": ("split.clip=1",),
        "noisy": ("split.clip=1", "split.noise=0.1"),
        "halves": ("codec.steps.kind=fp16",),
        "bytes": ("codec.steps.kind=quantize", "codec.steps.bits=8"),
    }
    runs = {name: run_with(tmp_path / name, launcher, 2, *CUT, *words) for name, words in each.items()}
    hashes = {name: run["model_sha256"] for name, run in runs.items()}
    assert hashes.pop("wide") == hashes["plain"] and len({*hashes.values()}) == 5
    query = "SELECT SUM(nbytes) FROM transfers WHERE slot = 'activations'"
    # Twelve visits of two steps: 24 messages of 20 x 512 numbers; 8 bits a number, and a norm for 512.
    sent = {name: rows(run["run_dir"], query)[0][0] for name, run in runs.items()}
    assert sent["noisy"] == sent["plain"] == 24 * 40_960
    assert (sent["halves"], sent["bytes"]) == (24 * 20_480, 24 * (10_240 + 80))
    assert runs["bytes"]["joules_by_part"]["compute"] > runs["plain"]["joules_by_part"]["compute"]
    coded, plain = (totals(RecordedRun(Path(runs[name]["run_dir"]))) for name in ("bytes", "plain"))
    assert coded.payload_bytes == plain.payload_bytes == plain.encoded_bytes
    assert coded.encoded_bytes == plain.encoded_bytes - 2 * 24 * (40_960 - 10_320)
    assert main.run_command(["replay", runs["bytes"]["run_dir"], "split.after=conv1"]) == 2
    assert "split: messages change numbers, so that another cut would train others" in capsys.readouterr().err


def test_a_report_tells_what_steps_send_from_the_blocks(launcher: WorkerLauncher, tmp_path: Path) -> None:
    traffic = RecordedRun(Path(run_with(tmp_path, launcher, 1, *CUT)["run_dir"])).traffic()
    assert [(row.name, row.down, row.up) for row in traffic if row.name not in ("conv1", "conv2", "header")] == [
        ("activations", 0, 983_040), ("gradients", 983_040, 0), ("labels", 0, 3_840),
    ]  # fmt: skip


def test_a_visit_is_explained_by_the_parts_of_its_steps(launcher: WorkerLauncher, tmp_path: Path) -> None:
    run = run_with(tmp_path, launcher, 1, *CUT, "fleet.jitter=0")
    found = visit_parts(Path(run["run_dir"]), 0)
    steps = {part.name: part.seconds for part in found.parts if part.phase == "computing"}
    assert [*steps] == ["computing", "steps up", "steps down", "round trips", "server", "queue"]
    assert steps["round trips"] == pytest.approx(2 * found.conditions["rtt_s"])
    # Two messages with 40,960 bytes of gradients and a header of 151 are 8 x 82,222 x 1514 / 1448 bits on the wire.
    bits = 8 * 82_222 * 1514 / 1448 * found.conditions["noise_down"]
    assert steps["steps down"] == pytest.approx(bits / found.conditions["down_bps"])
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.seconds)


def test_a_server_that_is_slow_holds_rounds_up_and_its_queue_is_recorded(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    """Each of four visits takes 5.4 s of a server of 10 MFLOP/s, and waits for the three others."""
    run = run_with(tmp_path, launcher, 1, *CUT, "split.server=10 MFLOP/s")
    assert run["bottlenecks"]["server"] == 3
    steps = rows(run["run_dir"], "SELECT served_s, queued_s FROM steps ORDER BY visit")
    assert len(steps) == 12 and len({served for served, _ in steps}) == 1
    # Four share the device all the time, so that each takes four times as long as it is served.
    seconds = rows(run["run_dir"], "SELECT compute_end_s - down_end_s FROM visits ORDER BY visit")
    assert [whole for (whole,) in seconds] == pytest.approx([4 * steps[0][0]] * 12, rel=0.01)
    assert run["steps"]["queue"] == pytest.approx(sum(queued for _, queued in steps))
    assert 0.95 < run["steps"]["load"] <= 1
    found = visit_parts(Path(run["run_dir"]), 0)
    parts = {part.name: part.seconds for part in found.parts if part.phase == "computing"}
    assert (parts["server"], parts["queue"]) == pytest.approx(steps[0])
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.seconds)
    assert main.run_command(["report", run["run_dir"]]) == 0
    page = (Path(run["run_dir"]) / "report.html").read_text()
    assert "Steps of the cut" in page and "waiting for it" in page
    recorded = RecordedRun(Path(run["run_dir"]))
    shown = timeline(recorded, 0).rows
    assert shown[0].compute_end - shown[0].device_end == pytest.approx(recorded.steps[0].seconds)
