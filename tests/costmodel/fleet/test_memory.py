"""Memory that training takes is a sum that anyone can redo, and the limit is a share of what the device has."""

from __future__ import annotations

import math

import pytest

from costmodel.fleet.memory import fits, sum_text, training_nbytes

RESNET18 = 11_220_132
ACTIVATIONS = 1_175_120


def test_two_copies_and_the_gradients_and_a_batch_of_activations() -> None:
    assert training_nbytes(parameters=100, activations=7, batch=5) == 4 * (200 + 100 + 35)
    # 3 x 44,880,528 bytes of model, 50 x 4,700,480 bytes of activations.
    assert training_nbytes(RESNET18, ACTIVATIONS, 50) == 134_641_584 + 235_024_000
    assert training_nbytes(RESNET18, ACTIVATIONS, 0) == 134_641_584
    assert training_nbytes(parameters=0, activations=0.3, batch=1) == 2  # a part of a byte takes a whole one
    for activations in (-1.0, math.nan, math.inf):
        with pytest.raises(AssertionError):
            training_nbytes(1, activations, 1)


def test_training_may_take_seven_tenths_of_a_device() -> None:
    assert fits(700, 1000)
    assert not fits(701, 1000)
    assert fits(10**15, math.inf)
    assert not fits(1, 0)


def test_the_sum_is_shown_with_its_verdict() -> None:
    assert sum_text(RESNET18, 1_234_567, 50, 256_000_000) == (
        "4 B x (2 x 11,220,132 parameters + 11,220,132 gradients + 50 x 1,234,567 activations) = 382 MB,"
        " more than 0.7 of 256 MB"
    )
    assert sum_text(100, 7.5, 4, 8e9) == (
        "4 B x (2 x 100 parameters + 100 gradients + 4 x 7.5 activations) = 1.32 kB, within 0.7 of 8 GB"
    )
