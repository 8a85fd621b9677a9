"""Visits and updates that travel together: columns, one payload down, one frame per upload, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge.protocol import codec
from edge.protocol.messages import Message, Train, Update, Updates, Visits, WireError
from edge.protocol.payload import Payload, Vector, shapes


def payload(*numbers: float) -> Payload:
    first, *others = numbers
    return {
        "model": {"a": Vector(np.array([first], np.float32))},
        "control": {"b": Vector(np.array(others, np.float32))},
    }


def visits(**changed: Any) -> Visits:
    columns: dict[str, Any] = {
        "sequences": np.array([7, 8]),
        "clients": np.array([0, 300]),
        "rounds": np.array([4, 4]),
        "lrs": np.array([0.1, 0.05]),
        "weights": np.array([0.0, 1.0]),
        "state_in": [None, "state-1"],
        "state_out": ["state-2", None],
        "choice": {"alpha": np.array([2, 1])},
        "payload": payload(1.0, 2.0, 3.0),
    }
    return Visits(**(columns | changed))


def updates(**changed: Any) -> Updates:
    columns: dict[str, Any] = {
        "sequences": np.array([7, 8]),
        "clients": np.array([0, 300]),
        "rounds": np.array([4, 4]),
        "seconds": np.array([0.25, 0.5]),
        "numbers": {"loss": np.array([1.5, np.inf]), "steps": np.array([3.0, 4.0])},
        "payloads": [payload(1.0, 2.0, 3.0), payload(4.0, 5.0, 6.0)],
        "logged": {"gap": np.array([0.25, np.nan])},
    }
    return Updates(**(columns | changed))


def through(message: Message) -> Any:
    encoded = codec.encode(message, "run-1")
    return codec.decode(encoded.header, encoded.frames, "run-1")


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


def test_floats_and_integers_of_choices_stay_what_they_are() -> None:
    mixed = {"alpha": np.array([2, 1]), "mu": np.array([0.5, 1.0])}
    (*_, first), (*_, second) = through(visits(choice=mixed)).tasks()
    assert (repr(first.choice), repr(second.choice)) == ("{'alpha': 2, 'mu': 0.5}", "{'alpha': 1, 'mu': 1.0}")
    with pytest.raises(WireError, match="visits: choice: mu: nan does not fit"):
        visits(choice={"mu": np.array([0.5, np.nan])})


def test_updates_come_out_one_by_one_from_one_frame_each() -> None:
    assert [frame.nbytes for frame in codec.encode(updates(), "run-1").frames] == [12, 12]
    first, second = through(updates()).replies()
    assert [first[:2], second[:2]] == [(7, 0.25), (8, 0.5)]
    assert first[2] == Update(0, 4, {"loss": 1.5, "steps": 3.0}, first[2].payload)
    assert second[2].numbers == {"loss": np.inf, "steps": 4.0}
    assert [repr(each[2].logged) for each in (first, second)] == ["{'gap': 0.25}", "{'gap': nan}"]
    assert [numbers_of(each[2].payload) for each in (first, second)] == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert shapes(second[2].payload) == {"model": {"a": 1}, "control": {"b": 2}}


@pytest.mark.parametrize(
    ("logged", "refusal"),
    [
        ({"Gap": np.zeros(2)}, "updates: logged: 'Gap' does not fit"),
        ({"gap": np.zeros(3)}, "updates: lengths: "),
        ({"gap": np.array([0.5, -np.inf])}, "updates: logged: gap: -inf does not fit"),
        ({f"n{index}": np.zeros(2) for index in range(65)}, "updates: logged: names: 65 does not fit"),
    ],
)
def test_logged_numbers_that_no_method_can_log_are_refused(logged: dict[str, Any], refusal: str) -> None:
    with pytest.raises(WireError, match=refusal):
        updates(logged=logged)


def test_updates_that_are_in_a_partial_sum_have_no_frames() -> None:
    added = updates(payloads=())
    assert codec.encode(added, "run-1").frames == ()
    assert [update.payload for _, _, update in through(added).replies()] == [{}, {}]


def test_visits_without_choices_and_updates_without_numbers_are_as_many() -> None:
    assert [visit.choice for *_, visit in through(visits(choice={})).tasks()] == [{}, {}]
    assert [update.numbers for _, _, update in through(updates(numbers={})).replies()] == [{}, {}]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sequences": np.array([7, 7])}, "visits: tasks: [7, 7] does not fit"),
        ({"sequences": np.array([0, 7])}, "visits: tasks: [0, 7] does not fit"),
        ({"clients": np.array([1])}, "visits: lengths: [2, 1, 2, 2, 2, 2, 2, 2] does not fit"),
        ({"clients": np.array([1, -1])}, "visits: clients: -1 does not fit"),
        ({"lrs": np.array([0.1, np.nan])}, "visits: lrs: nan does not fit"),
        ({"weights": np.array([0.1, 1.5])}, "visits: weights: 1.5 does not fit"),
        ({"sequences": np.zeros(0, np.int64)}, "visits: number: 0 does not fit"),
    ],
)
def test_visits_that_cannot_be_are_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError) as error:
        visits(**changed)
    assert str(error.value) == reason


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"seconds": np.array([0.1, -1.0])}, "updates: seconds: -1.0 does not fit"),
        ({"rounds": np.array([-2, 0])}, "updates: rounds: -2 does not fit"),
        ({"payloads": [payload(1.0)]}, "updates: lengths: [2, 2, 2, 2, 2, 2, 2, 1] does not fit"),
    ],
)
def test_updates_that_cannot_be_are_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError) as error:
        updates(**changed)
    assert str(error.value) == reason


def test_a_frame_of_another_length_and_a_missing_one_are_refused() -> None:
    encoded = codec.encode(updates(), "run-1")
    with pytest.raises(WireError, match="updates: 2 frames announced, 1 received"):
        codec.decode(encoded.header, encoded.frames[:1], "run-1")
    with pytest.raises(WireError, match="updates: 12 bytes announced, a frame of 8 came"):
        codec.decode(encoded.header, [encoded.frames[0], encoded.frames[1][:8]], "run-1")


def test_updates_of_very_many_empty_vectors_are_refused() -> None:
    """A thousand updates of a thousand would be a million objects, of a message of 100 kB."""
    empty = {"model": {str(key): Vector(np.zeros(0, np.float32)) for key in range(1000)}}
    encoded = codec.encode(updates(payloads=[empty] * 2), "run-1")
    column = np.arange(1, 1001)
    header = codec.encode_header(
        Updates(column, column, column, np.full(1000, 0.5), {}), "run-1", codec.pack_tensor_specs({})
    )
    entries = encoded.header[encoded.header.index(b"\xdc\x03\xe8") :]
    with pytest.raises(WireError, match="updates: vectors: 1000000 does not fit"):
        codec.decode(header[:-1] + entries, [b""] * 1000, "run-1")


def test_a_column_that_is_no_row_of_numbers_is_refused() -> None:
    column = np.array([7, 8]).tobytes()
    header = codec.encode(visits(), "run-1").header.replace(b"\xc4\x10" + column, b"\xc4\x0f" + column[:15], 1)
    with pytest.raises(WireError, match=r"visits: sequences: b'.*' does not fit"):
        codec.decode(header, [], "run-1", {})
