"""Runs whose clients train adapters of a frozen base: bytes by hand, one chain, and what they are joined with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedbr
from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.cli import main
from tests.ledgers import chain
from tests.scenarios.runs import AMONG_UPDATES, killed_and_resumed, run_with

PLAIN = ("method=fedavg", "train.local_steps=2", "rounds.max=3", "rounds.participants=4")
LORA = (*PLAIN, "adapter.kind=lora", "adapter.rank=2", 'adapter.train=["conv3"]')


def rows(folder: str | Path, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in read(Path(folder) / "ledger.sqlite", query)]


@pytest.mark.parametrize(
    "how",
    [
        (),
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (
                ("aggregate.sum=fixed_point", "codec.up.kind=quantize"),
                ("privacy.unit=client", "privacy.noise=0.5", "privacy.clip=0.1"),
                ("privacy.unit=example", "adapter.aggregate=ffa"),
                ("privacy.secagg=secagg+",),
                ("method=fedprox", "train.momentum=0.9"),
                ("method=scaffold", "fleet.tiers.count=2"),
                ("adapter.kind=freeze", "adapter.rank=8"),
                ("rounds.policy=fedbuff", "rounds.buffer=3", "model.base=download"),
                ("method=fedper",),
                ("method=local",),
                ("method=flora", "submodel.rate=round", "submodel.rates=[0.5,1]", "train.instructions=native"),
                ("method=flexlora", "submodel.rate=round", "submodel.rates=[0.5,1]", "train.instructions=native"),
            )
        ),
    ],
    ids=str,
)
def test_adapters_are_one_chain_for_any_workers_and_after_a_kill(
    how: tuple[str, ...], launcher: WorkerLauncher, tmp_path: Path
) -> None:
    keys = {word.partition("=")[0] for word in how}
    words = (*(word for word in LORA if word.partition("=")[0] not in keys), *how)
    one, four = (run_with(tmp_path, launcher, workers, *words) for workers in (1, 4))
    again = killed_and_resumed(tmp_path, launcher, AMONG_UPDATES, *words)
    assert chain(Path(one["run_dir"])) == chain(Path(four["run_dir"])) == chain(again)


def test_a_base_that_is_downloaded_comes_once_with_the_first_visit_of_each_client(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    shipped = run_with(tmp_path / "a", launcher, 2, *LORA)
    fetched = run_with(tmp_path / "b", launcher, 2, *LORA, "model.base=download")
    assert shipped["model_sha256"] == fetched["model_sha256"] and shipped["bytes_up"] == fetched["bytes_up"]
    visits = rows(fetched["run_dir"], "SELECT client, round, bytes_down FROM visits ORDER BY round, client")
    (plain,) = {row[0] for row in rows(shipped["run_dir"], "SELECT bytes_down FROM visits")}
    blocks = rows(fetched["run_dir"], "SELECT DISTINCT key, nbytes FROM payload_shapes WHERE slot = 'base'")
    ((key, base),) = blocks
    first: set[object] = set()
    for client, _, nbytes in visits:
        assert nbytes == plain + (0 if client in first else base)  # type: ignore[operator]
        first.add(client)
    assert key == "frozen" and len(first) < len(visits)
    assert fetched["bytes_down"] - shipped["bytes_down"] == len(first) * base  # type: ignore[operator]


def test_a_straggler_downloads_the_base_once_even_if_it_never_counts(launcher: WorkerLauncher, tmp_path: Path) -> None:
    words = (
        *LORA,
        "model.base=download",
        "rounds.policy=deadline",
        "rounds.deadline=300 ms",
        "fleet.compute_spread=100",
    )
    run = run_with(tmp_path, launcher, 2, *words, "rounds.participants=10")
    visits = rows(run["run_dir"], "SELECT client, kind, bytes_down FROM visits ORDER BY round, client")
    plain, with_base = sorted({int(str(nbytes)) for _, _, nbytes in visits})
    by_client: dict[object, list[tuple[object, object]]] = {}
    for client, kind, nbytes in visits:
        by_client.setdefault(client, []).append((kind, nbytes))
    assert all([nbytes for _, nbytes in own] == [with_base, plain, plain] for own in by_client.values())
    assert any({kind for kind, _ in own} == {"late"} for own in by_client.values())


def test_ranks_of_clients_are_parts_of_one_adapter_and_cost_their_share(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    words = [word for word in LORA if not word.startswith(("method", "adapter.rank"))]
    words += ["adapter.rank=8", "train.instructions=native"]
    rates = ("submodel.rate=client", "submodel.rates=[0.5,1]")
    whole, parts = (
        run_with(tmp_path / name, launcher, 2, *words, f"method={name}", *more)
        for name, more in (("fedavg", ()), ("flexlora", rates))
    )
    (full,) = {row[0] for row in rows(whole["run_dir"], "SELECT bytes_up FROM visits")}
    sent = {row[0] for row in rows(parts["run_dir"], "SELECT bytes_up FROM visits")}
    # The head's adapter, 128 inputs and 10 classes: half of the rank is 4 x 138 numbers less.
    assert sent == {full, full - 4 * 4 * 138}  # type: ignore[operator]
    gaps = [row[0] for row in rows(whole["run_dir"], "SELECT value FROM logged WHERE name = 'adapter_gap'")]
    assert len(gaps) == 3 and all(0 < gap < 2 for gap in gaps), gaps  # type: ignore[operator]
    assert not rows(parts["run_dir"], "SELECT name FROM sqlite_master WHERE name = 'logged'")


def test_a_client_downloads_the_stacks_of_all_rounds_that_it_has_missed(
    launcher: WorkerLauncher, tmp_path: Path
) -> None:
    words = (*(word for word in LORA if "rounds.max" not in word and "method" not in word), "method=flora")
    run = run_with(tmp_path, launcher, 2, *words, "rounds.max=5", "train.instructions=native")
    visits = rows(run["run_dir"], "SELECT client, round, bytes_down FROM visits ORDER BY round, client")
    stack = 4 * 4 * 2 * (128 + 10)  # of four clients' adapters of rank 2 on the head, 128 inputs and 10 classes
    whole = 4 * 128 * 10  # the change of the layer itself, which is no more than two stacks
    behind: dict[object, int] = {}
    plain = next(nbytes for _, round, nbytes in visits if round == 0)
    for client, round, nbytes in visits:
        missed = int(round) - behind.get(client, 0)  # type: ignore[call-overload]
        more = 0 if missed == 0 else nbytes - plain - min(missed * stack, whole)  # type: ignore[operator]
        assert (nbytes == plain) if missed == 0 else 0 < more < 80, (client, round, more)
        behind[client] = int(round)  # type: ignore[call-overload]
    assert {round for _, round, _ in visits} == {0, 1, 2, 3, 4} and stack == 4416


def test_a_stack_is_of_those_who_counted(launcher: WorkerLauncher, tmp_path: Path) -> None:
    """Under a short deadline those who are late have their download, and what they train counts for none."""
    words = (*(word for word in LORA if "method" not in word), "method=flora", "train.instructions=native")
    late = ("rounds.policy=deadline", "rounds.deadline=300 ms", "fleet.compute_spread=100", "rounds.participants=10")
    run = run_with(tmp_path, launcher, 2, *words, *late, "rounds.max=4")
    of_rounds = rows(run["run_dir"], "SELECT round, SUM(kind = 'train') FROM visits GROUP BY round")
    counted = {int(str(round)): int(str(clients)) for round, clients in of_rounds}
    found = rows(run["run_dir"], "SELECT round, bytes_down FROM visits ORDER BY round, client")
    visits = [(int(str(round)), int(str(nbytes))) for round, nbytes in found]
    stack, whole = 4 * 2 * (128 + 10), 4 * 128 * 10
    (plain,) = {nbytes for round, nbytes in visits if round == 0}
    for round, nbytes in visits:  # all take part in each, so that they lack the stack of the one before
        last = min(counted[round - 1] * stack, whole) if round else 0
        assert 0 <= nbytes - plain - last < 80, (round, counted)


def test_the_model_of_a_run_has_taken_the_stacks_up(launcher: WorkerLauncher, tmp_path: Path) -> None:
    words = ("method=flora", "adapter.alpha=2", *LORA[1:], "train.instructions=native", "train.local_steps=8")
    run = fedbr.Run(run_with(tmp_path, launcher, 2, *words)["run_dir"])
    x, y = run.test_set()
    with torch.no_grad():
        correct = (run.model()(x).argmax(1) == y).double().mean()
    assert float(correct) == pytest.approx(run.accuracy, abs=1e-9)


def test_a_report_shows_how_far_a_shipped_device_is_off(launcher: WorkerLauncher, tmp_path: Path) -> None:
    run = run_with(tmp_path, launcher, 1, *PLAIN, "fleet.devices={jetson-nano=1}")
    page = tmp_path / "report.html"
    assert main.run_command(["report", run["run_dir"], "-o", str(page)]) == 0
    section = page.read_text().partition('<section id="calibration">')[2].partition("</section>")[0]
    assert "Measured devices" in section and "gemma-3-270m on MMLU" in section and "+11.3%" in section
