"""FLOPs of a step that tables of boards have the seconds of."""

from __future__ import annotations

import pytest

from edge.profile.step_flops import counted


@pytest.mark.parametrize(
    ("model", "width", "data", "flops"),
    [
        # Two passes of the first layer's 2 x (8 x 8 x 9 x 16) FLOPs, since its input has no gradient; three passes of
        # 2 x (8 x 8 x 9 x 16 x 32), 2 x (4 x 4 x 9 x 32 x 32) and 2 x (128 x 10).
        ("digits-cnn", None, "digits", 2 * 18_432 + 3 * (589_824 + 294_912 + 2_560)),
        ("digits-cnn", 8, "digits", 2 * 9_216 + 3 * (147_456 + 73_728 + 1_280)),
        # 1.82 GMAC forward with 1000 classes; 200 here.
        ("resnet18-imagenet", None, "imagenet200", 10_645_954_560),
    ],
)
def test_a_step_is_counted_as_a_run_counts_it(model: str, width: int | None, data: str, flops: float) -> None:
    assert counted(model, width, data) == flops
