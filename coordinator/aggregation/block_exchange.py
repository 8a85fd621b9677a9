"""Which blocks go down and up: ``everything``, ``nothing``, ``without:NAME,..`` or ``last:ALPHA``."""

from __future__ import annotations

from edge.protocol.payload import Layout

EVERYTHING = "everything"
NOTHING = "nothing"


def exchanged_keys(text: str, layout: Layout) -> tuple[str, ...]:
    """The keys that ``text`` names in this model, in model order.

    Raises ValueError for a block that the model does not have, or a form that is none of the four.
    """
    form, _, argument = text.partition(":")
    if text == EVERYTHING:
        return layout.keys()
    if text == NOTHING:
        return ()
    if form == "without" and argument:
        left_out = [name.strip() for name in argument.split(",")]
        unknown = [name for name in left_out if name not in layout.names]
        if unknown:
            raise ValueError(f"{text!r}: no block {unknown[0]!r}; the model has {', '.join(layout.names)}")
        return layout.keys(name for name in layout.names if name not in left_out)
    if form == "last" and argument in map(str, range(1, len(layout) + 1)):
        return layout.last(int(argument))
    raise ValueError(
        f"{text!r} is none of {EVERYTHING!r}, {NOTHING!r}, 'without:BLOCK,..', 'last:1' .. 'last:{len(layout)}'"
    )
