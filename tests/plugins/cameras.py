"""A data set and a model of a user's own, whose examples may lie on boards."""

from __future__ import annotations

from edge.data.registry import DataSet
from edge.models.registry import module_row

SET = DataSet(
    "cameras",
    "What cameras saw",
    3,
    shape=(6,),
    stored=(6,),
    profile="plain",
    source="a test",
    id_column="camera",
    reader="tests.plugins.cameras_reader",
    kind="features",
)
NET = module_row("camera-net", "tests.plugins.cameras_net:net", ["0+1", "2"], kind="features")
