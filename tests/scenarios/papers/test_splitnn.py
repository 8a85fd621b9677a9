"""Bytes of split learning as they were counted elsewhere, by hand and by the pricing of runs."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from coordinator.methods.compute import ComputeContext, fedavg_compute
from coordinator.rounds.split import SplitConfig, SplitModel
from edge.protocol.codecs.codecs import Codecs
from edge.protocol.config import CodecConfig, ModelProfile, TrainConfig
from edge.protocol.options.base import Options
from edge.protocol.payload import BlockShape, Layout
from scenarios.papers import splitnn
from scenarios.papers.published import MODEL_UPLOAD, SPLIT_DOWN, SPLIT_UP

LAYOUT = Layout((BlockShape("conv1", 128, 0, ()), BlockShape("rest", 55_861, 0, ())))


AS_THEY_ARE = Codecs(CodecConfig(), 0, {}).steps


def profile(cuts: tuple[int, int]) -> ModelProfile:
    none = np.zeros(0, np.int64)
    return ModelProfile(
        LAYOUT, "conv", np.ones((2, 4)), np.ones(2), "", "", 5, 0, none, np.zeros((0, 5), np.int64), none,
        cuts=np.array(cuts, np.int64),
    )  # fmt: skip


def exchanged() -> tuple[dict[str, int], dict[str, int], int]:
    """Bytes of the slots of one epoch of Gao's client, down and up, and headers of both."""
    train, split = TrainConfig(batch=32), SplitModel(SplitConfig(after="conv1"), profile((16 * 65, 5)), AS_THEY_ARE)
    context = ComputeContext(LAYOUT, Options(), {}, train, train.plan(6_622), 6_622, np.ones((2, 4)))
    exchange, down, up = split.exchange("a-run", context, fedavg_compute(context))
    slots = [{slot: nbytes["conv1"] for slot, nbytes in each.items()} for each in (down, up)]
    return slots[0], slots[1], exchange.bytes_down + exchange.bytes_up - sum(slots[0].values()) - sum(slots[1].values())


def test_an_epoch_of_gaos_client_by_hand() -> None:
    down, up, headers = exchanged()
    assert down == {"gradients": 27_547_520}
    assert up == {"activations": 27_547_520, "labels": 52_976}
    # 207 steps; counted there were 630 and 430 B a message beyond these.
    assert 2 * 207 * 40 < headers < 2 * 207 * 430
    assert 27_730_677 - 27_547_520 - 52_976 == 130_181 and pytest.approx(629, abs=1) == 130_181 / 207


def test_the_table_has_what_was_counted_beside_it() -> None:
    ours = {
        (panel.measure, row): panel.counts(splitnn.ROWS[row])  # type: ignore[misc]
        for panel in splitnn.FIGURES["splitnn"].panels
        for row in panel.published
    }
    assert ours == {
        (SPLIT_UP, "ECG, split"): 27_547_520, (SPLIT_UP, "decoder, frozen front"): 13_107_200,
        (SPLIT_DOWN, "ECG, split"): 27_547_520, (MODEL_UPLOAD, "ECG, federated"): 223_956,
    }  # fmt: skip


def test_labels_take_the_words_of_what_is_foreseen() -> None:
    """Of a batch of 8: a class or token is 8 B, a real number 4 B."""
    for words, nbytes in ((2, 8 * 8), (2 * 63, 8 * 63 * 8), (3, 8 * 3 * 4)):
        described = replace(profile((1040, 5)), label_words=words)
        train = TrainConfig(batch=8, local_steps=1)
        context = ComputeContext(LAYOUT, Options(), {}, train, train.plan(8), 8, np.ones((2, 4)))
        split = SplitModel(SplitConfig(after="conv1"), described, AS_THEY_ARE)
        assert split.exchange("a-run", context, fedavg_compute(context))[2]["labels"] == {"conv1": nbytes}


def test_a_cut_that_the_model_does_not_have_is_named() -> None:
    for config, message in (
        (SplitConfig(after="rest"), "split.after = 'rest': it is the last block, and the server would have none"),
        (SplitConfig(after="conv"), "split.after = 'conv': did you mean 'conv1'"),
        (
            SplitConfig(after="conv1", kind="frozen-front"),
            "split.kind = frozen-front: conv1 would learn on the devices",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            SplitModel(config, profile((1040, 5)), AS_THEY_ARE)
