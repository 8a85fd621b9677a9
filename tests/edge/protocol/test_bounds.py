"""Texts of a run's files have escapes in place of what a terminal obeys, so that they can be read again."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.bounds import escaped
from edge.protocol.home import shared
from scenarios.run.run_records import Record, parsed

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_control_characters_become_escapes_and_lines_stay() -> None:
    value = {"of\x1b": ["a\x1b[31mb", "c\nd\te", {"x": "\x00\x7f\x9f"}], "numbers": [1, 2.5], "none": None}
    assert escaped(value) == {
        "of\\x1b": ["a\\x1b[31mb", "c\nd\te", {"x": "\\x00\\x7f\\x9f"}],
        "numbers": [1, 2.5],
        "none": None,
    }
    assert shared("\x1b") == "\\x1b"


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_readers_take_whatever_is_escaped(value: dict[str, object]) -> None:
    parsed(json.dumps(escaped(value)), Record)
