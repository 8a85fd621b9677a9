"""Visits and updates that travel together: columns, one payload down, one frame per upload, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge.protocol import serialization
from edge.protocol.messages import Message, Train, Update, Updates, Visits, WireError
from edge.protocol.payload import Payload, Vector, shapes
from edge.protocol.variant import Variant
from tests.edge.protocol.mutations import put, refusal


def payload(*numbers: float) -> Payload:
    first, *others = numbers
    return {
        "model": {"a": Vector(np.array([first], np.float32))},
        "control": {"b": Vector(np.array(others, np.float32))},
    }


def visits(**changed: Any) -> Visits:
    columns: dict[str, Any] = {
        "sequences": [7, 8],
        "clients": [0, 300],
        "rounds": [4, 4],
        "lrs": [0.1, 0.05],
        "weights": [0.0, 1.0],
        "state_in": [None, "state-1"],
        "state_out": ["state-2", None],
        "choice": {"alpha": [2, 1]},
        "payload": payload(1.0, 2.0, 3.0),
    }
    return Visits(**(columns | changed))


def updates(**changed: Any) -> Updates:
    columns: dict[str, Any] = {
        "sequences": [7, 8],
        "clients": [0, 300],
        "rounds": [4, 4],
        "seconds": [0.25, 0.5],
        "numbers": {"loss": [1.5, np.inf], "steps": [3.0, 4.0]},
        "payloads": [payload(1.0, 2.0, 3.0), payload(4.0, 5.0, 6.0)],
        "logged": {"gap": [0.25, np.nan]},
    }
    return Updates(**(columns | changed))


def through(message: Message) -> Any:
    encoded = serialization.encode(message, "run-1")
    return serialization.decode(encoded.header, encoded.frames, "run-1")


def numbers_of(payload: Payload) -> list[float]:
    return [number for named in payload.values() for vector in named.values() for number in vector.data.tolist()]


def test_visits_come_out_as_the_trains_that_they_would_be_alone() -> None:
    received = through(visits())
    first, second = received.tasks()
    assert first[:4] == (7, 0.0, None, "state-2")
    assert second[:4] == (8, 1.0, "state-1", None)
    down = received.payload
    assert first[4] == Train(0, 4, 0.1, {"alpha": 2}, down)
    assert second[4] == Train(300, 4, 0.05, {"alpha": 1}, down)
    assert numbers_of(down) == [1.0, 2.0, 3.0]


def test_each_visit_has_its_variant_in_columns_beside_the_choices() -> None:
    variants = [Variant(0.5, 3, 8), Variant(0.25, 4, 2)]
    first, second = (visit for *_, visit in through(visits(variants=variants)).tasks())
    assert [(first.choice, first.variant), (second.choice, second.variant)] == [
        ({"alpha": 2}, variants[0]),
        ({"alpha": 1}, variants[1]),
    ]


def test_updates_come_out_one_by_one_from_one_frame_each() -> None:
    assert [frame.nbytes for frame in serialization.encode(updates(), "run-1").frames] == [12, 12]
    first, second = through(updates()).replies()
    assert [first[:2], second[:2]] == [(7, 0.25), (8, 0.5)]
    assert first[2] == Update(0, 4, {"loss": 1.5, "steps": 3.0}, first[2].payload, {"gap": 0.25})
    assert second[2].numbers == {"loss": np.inf, "steps": 4.0}
    assert [repr(each[2].logged) for each in (first, second)] == ["{'gap': 0.25}", "{'gap': nan}"]
    assert [numbers_of(each[2].payload) for each in (first, second)] == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert shapes(second[2].payload) == {"model": {"a": 1}, "control": {"b": 2}}


@pytest.mark.parametrize(
    ("message", "field", "column", "reason"),
    [
        (visits(), "sequences", [7, 7], "Visits: tasks: [7, 7] does not fit"),
        (visits(), "sequences", [], "Visits: Expected `array` of length >= 1 - at `$.sequences`"),
        (visits(), "sequences", list(range(1, 1026)), "Visits: Expected `array` of length <= 1024 - at `$.sequences`"),
        (visits(), "clients", [1], "Visits: lengths: [2, 1, 2, 2, 2, 2, 2, 2] does not fit"),
        (visits(), "lrs", [0.1, np.nan], "Visits: Expected `float` >= 0.0 - at `$.lrs[1]`"),
        (visits(), "weights", [0.1, 1.5], "Visits: Expected `float` <= 1.0 - at `$.weights[1]`"),
        (visits(), "choice", {"rate": [0.5, 0.5, 0.5]}, "Visits: lengths: [3] does not fit"),
        (visits(), "choice", {"mu": [0.5, np.nan]}, "Visits: Expected `float` >= -1.7976931348623157e+308"),
        (updates(), "seconds", [0.1, -1.0], "Updates: Expected `float` >= 0.0 - at `$.seconds[1]`"),
        (updates(), "logged", {"Gap": [0.0, 0.0]}, "Updates: Expected `str` matching regex"),
        (updates(), "logged", {"gap": [0.5, -np.inf]}, "Updates: logged: gap: -inf does not fit"),
        (updates(), "logged", {f"n{n}": [0.0] * 2 for n in range(65)}, "Updates: Expected `object` of length <= 64"),
    ],
)
def test_columns_that_cannot_be_are_refused(message: Message, field: str, column: Any, reason: str) -> None:
    assert refusal(message, put(3, field, column)).startswith(reason)


def test_a_frame_of_another_length_and_a_missing_one_are_refused() -> None:
    encoded = serialization.encode(updates(), "run-1")
    with pytest.raises(WireError, match="Updates: 2 frames announced, 1 received"):
        serialization.decode(encoded.header, encoded.frames[:1], "run-1")
    with pytest.raises(WireError, match="Updates: 12 bytes announced, a frame of 8 came"):
        serialization.decode(encoded.header, [encoded.frames[0], encoded.frames[1][:8]], "run-1")
