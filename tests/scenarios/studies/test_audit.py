"""What an audit says of runs: every stage by hand, twins and references, and the accuracy of their comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedbr
from coordinator.methods.registry import resolve
from coordinator.records.schema import RoundRow
from coordinator.records.store import Commit, Ledger
from coordinator.records.visit_columns import VisitColumns
from edge.protocol import serialization
from edge.protocol.payload import BlockShape, Layout
from edge.protocol.serialization import pack_description
from scenarios.cli import main
from scenarios.report import stages
from scenarios.report.run_reader import open_runs
from scenarios.run.setup import RUN_ID_BYTES
from scenarios.studies.audit import Means, audit, tables
from tests.edge.protocol.mutations import DESCRIPTION
from tests.ledgers import visit_row
from tests.scenarios.in_this_process import pool_in_this_process, run

__all__ = ["pool_in_this_process"]
MODEL, HEAD = 61_352, 5_160
"""Bytes of the model for digits, and of its last block"""
PAIR = ("data.clients=2", "rounds.participants=2", "train.local_steps=1", "train.lr=0.01", "data.partition.alpha=100")
"""Both clients take part in each round."""


def test_fedavg_sends_what_its_paper_counts_and_headers(tmp_path: Path) -> None:
    (opened,) = open_runs([run(tmp_path, *PAIR, "rounds.max=3")])
    spent = stages.totals(opened)
    assert spent.nominal_bytes == spent.payload_bytes == spent.encoded_bytes == 3 * 2 * 2 * MODEL
    assert spent.by_slot == {("model", way): stages.SlotBytes(6 * MODEL, 6 * MODEL) for way in ("down", "up")}
    shapes = {"model": {block.name: block.params for block in opened.environment.blocks}}
    run_id, reports = "0" * 2 * RUN_ID_BYTES, resolve("fedavg").reports
    both = serialization.train_nbytes(run_id, (), shapes) + serialization.update_nbytes(run_id, reports, shapes)
    assert spent.message_bytes == 6 * both == 6 * (2 * MODEL + 742)
    # An Ethernet frame of 1514 bytes carries 1448 of them.
    assert spent.wire_bytes == pytest.approx(spent.message_bytes * 1514 / 1448)
    assert spent.wasted_bytes == 0
    assert spent.joules == pytest.approx(spent.compute + spent.receive + spent.send + spent.idle)
    after_one = stages.totals(opened, 1)
    assert (after_one.nominal_bytes, after_one.virtual_seconds) == (4 * MODEL, opened.rounds[0].end_s)


def test_means_of_second_moments_stand_beside_what_fedadamws_code_sends(tmp_path: Path) -> None:
    adamw = ("train.optimizer=adamw", "train.lr=0.001", "train.optimizer_state=mean")
    folder = run(tmp_path, *PAIR, "rounds.max=3", *adamw)
    (opened,) = open_runs([folder])
    spent, messages = stages.totals(opened), 3 * 2 * 2
    # Four blocks: one number of v for each, and the number of steps behind it.
    assert spent.payload_bytes == spent.encoded_bytes == messages * (MODEL + 4 * 4 + 4 * 4)
    assert spent.whole_moments_bytes == messages * (MODEL + MODEL + 4 * 4)
    (table, *_) = tables(audit([folder]).result())
    assert "  with whole second moments" in [row[0] for row in table.texts]
    assert any("its published code the whole of them" in note for note in table.notes)
    assert stages.totals(open_runs([run(tmp_path / "sgd", *PAIR, "rounds.max=1")])[0]).whole_moments_bytes is None


# --- pairs, of runs that are made by hand -----------------------------------------------------------------------------


def made(
    folder: Path,
    accuracies: Sequence[float | None],
    settings: str = 'method = "fedavg"',
    nbytes: int = 400,
    seed: int = 0,
) -> Path:
    """A run of a visit a round: 100 numbers down and up, as ``nbytes`` each, behind headers of 50 bytes; 10 s, 10 J.

    Each round also has a visit that is lost after 30 bytes.
    """
    folder.mkdir(parents=True)
    top, _, tables = settings.partition("\n")
    (folder / "scenario.toml").write_text(f"{top}\nseed = {seed}\n{tables}\n")
    block = {"name": "net", "params": 100, "buffers": 0, "nbytes": 400}
    (folder / "environment.json").write_text(json.dumps({"blocks": [block], "partition": {}}))
    net = replace(DESCRIPTION, layout=Layout((BlockShape("net", 100),)), flops=np.ones((1, 4)), activations=np.ones(1))
    (folder / "description.msgpack").write_bytes(pack_description(net))
    ledger = Ledger(folder / "ledger.sqlite", "genesis", None)
    for number, accuracy in enumerate(accuracies):
        start = 10.0 * number
        visit = visit_row(2 * number, number, 0, start, start + 1, start + 4, start + 10)._replace(
            shared_s=2.0, bytes_down=nbytes + 50, bytes_up=nbytes + 50, down_payload="p", up_payload="p"
        )
        lost = visit_row(2 * number + 1, number, 1, start, start + 1, start + 1, start + 1, kind="lost")._replace(
            bytes_down=30, bytes_up=0
        )
        row = RoundRow(
            number, start, start + 10, 1, accuracy, None, 1.0, nbytes + 80, nbytes + 50, 800.0, 1e6, 1e6,
            10.0, 11.0, 1.0, 30, 1.0, 0, "", "ab",
        )  # fmt: skip
        ledger.commit(Commit(row, VisitColumns.of([visit, lost]), {"p": {"model": {"net": nbytes}}}))
    ledger.finish({"stopped_by": "rounds", "rounds": len(accuracies)})
    ledger.close()
    return folder


QUANTIZED = 'method = "fedavg"\n[codec]\nup = [{ kind = "quantize", bits = 4 }]\ndown = [{ kind = "fp16" }]'


def values(means: Means, *keys: str) -> list[float | None]:
    return [means[key].mean for key in keys]


def test_a_run_with_codecs_is_compared_with_its_twin_at_the_best_accuracy_of_both(tmp_path: Path) -> None:
    coded = made(tmp_path / "coded", (0.3, 0.5, 0.6, 0.7), QUANTIZED, nbytes=100)
    plain = made(tmp_path / "plain", (0.4, 0.6, 0.8))
    made(tmp_path / "other", (0.9,), 'method = "fedavg"\n[train]\nlr = 0.5')
    result = audit([tmp_path]).result()
    rows = {Path(row.runs[0]): row for row in result.rows}
    whole = rows[coded].whole
    keys = ("nominal_bytes", "payload_bytes", "encoded_bytes", "message_bytes", "wasted_bytes")
    assert values(whole, *keys) == [4 * 800, 4 * 800, 4 * 200, 4 * 300, 4 * 30]
    assert values(whole, "visit_seconds", "computing_seconds", "contention_seconds") == [44.0, 12.0, 8.0]
    other, pair = rows[plain].reference, rows[coded].reference
    assert other is not None
    assert pair is not None
    assert not other.is_twin  # that is the FedAvg of another step size
    assert (pair.is_twin, pair.seeds, pair.score) == (True, [0], 0.7)
    assert set(pair.differing) == {"codec.up", "codec.down"}
    # 70 %: 4 rounds with codecs, 3 without, in bytes 4 * 800, 4 * 200, 4 * 300 against 3 * 800, 3 * 800, 3 * 900
    factors = values(pair.factors, *keys[:4], "virtual_seconds", "joules")
    assert factors == pytest.approx([0.75, 0.75, 3.0, 2.25, 0.75, 0.75])


def test_pairs_are_made_seed_by_seed_and_factors_have_intervals(tmp_path: Path) -> None:
    for seed, rounds in ((0, 2), (1, 4)):
        made(tmp_path / f"coded-{seed}", (*[0.1] * (rounds - 1), 0.5), QUANTIZED, nbytes=100, seed=seed)
        made(tmp_path / f"plain-{seed}", (0.2, 0.5), seed=seed)
    made(tmp_path / "plain-2", (0.2, 0.6), seed=2)
    pair = next(row.reference for row in audit([tmp_path]).result().rows if row.reference)
    assert (pair.seeds, pair.score) == ([0, 1], 0.5)
    factor = pair.factors["encoded_bytes"]
    assert factor.values == [4.0, 2.0]
    # of two values, 12.706 * sqrt(2) / sqrt(2)
    assert factor.mean == 3.0
    assert factor.half_width == pytest.approx(12.706, abs=1e-3)


def test_without_a_twin_fedavg_is_the_reference_and_without_that_the_amounts_stand_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedbr_run = made(tmp_path / "a", (0.5, 0.7), 'method = "fedbr"')
    fedavg_run = made(tmp_path / "b", (0.6, 0.6))
    assert main.run_command(["audit", str(fedbr_run), str(fedavg_run), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["fedavg"]["reference"] is None
    assert rows["fedbr"]["nominal_rule"] == "Eq. 3 of the FedBR paper"
    # 60 %: after two rounds, against one
    assert rows["fedbr"]["reference"]["factors"]["message_bytes"]["mean"] == 0.5
    assert main.run_command(["audit", str(fedbr_run), str(fedavg_run), "--target", "0.5"]) == 0
    shown = capsys.readouterr().out
    assert "Nominal: Eq. 3 of the FedBR paper (fedbr)." in shown
    factors = next(line.split() for line in shown.splitlines() if line.startswith("fedbr "))
    assert factors[1:4] == ["fedavg", "50.00", "%"]
    assert main.run_command(["audit", str(fedbr_run)]) == 0
    assert "fedbr has no reference: add the run with the same seed and without codecs" in capsys.readouterr().out


def test_a_named_twin_is_the_reference_of_all_others_and_python_has_the_same_numbers(tmp_path: Path) -> None:
    folders = [made(tmp_path / name, (0.5,), f'method = "{name}"') for name in ("fedavg", "fedmlb", "scaffold")]
    found = fedbr.audit(folders, twin="scaffold", output=tmp_path / "page.html")
    names = [row["reference"] and row["reference"]["name"] for row in found["rows"]]
    assert names == ["scaffold", "scaffold", None]
    assert fedbr.audit(folders, twin=fedbr.Run(folders[2])) == found
    page = (tmp_path / "page.html").read_text()
    assert 'id="stages-caption"' in page
    assert "Until 50.00 %: fedmlb against scaffold" in page
