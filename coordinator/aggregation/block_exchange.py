"""Block exchange: the blocks that are downloaded and uploaded.

Written as ``everything``, ``parameters`` (all but running statistics), ``nothing``, ``without:NAME,..``,
``without-last:COUNT``, ``last:ALPHA`` or ``without-layers:NAME``: all but the layers whose last name is NAME, where a
method has keys for layers.
"""

from __future__ import annotations

from edge.protocol.payload import BUFFERS, LAYER, Layout

EVERYTHING = "everything"
NOTHING = "nothing"
PARAMETERS = "parameters"


def exchanged_keys(text: str, layout: Layout) -> tuple[str, ...]:
    """The model's keys that ``text`` names, in model order; ValueError for an unknown block or form."""
    form, _, argument = text.partition(":")
    if text == EVERYTHING:
        return layout.keys()
    if text == NOTHING:
        return ()
    if text == PARAMETERS:
        return tuple(key for key in layout.sizes if not key.endswith(BUFFERS))
    if form == "without" and argument:
        excluded = [name.strip() for name in argument.split(",")]
        unknown = [name for name in excluded if name not in layout.names]
        if unknown:
            raise ValueError(f"{text!r}: no block {unknown[0]!r}; the model has {', '.join(layout.names)}")
        return layout.keys(name for name in layout.names if name not in excluded)
    if form == "last" and argument in map(str, range(1, len(layout) + 1)):
        return layout.last(int(argument))
    if form == "without-layers" and argument:
        last_names = {key: key.removesuffix(BUFFERS).partition(LAYER)[2].rpartition(".")[2] for key in layout.sizes}
        return tuple(key for key, name in last_names.items() if name != argument)  # '' for a whole block
    if form == "without-last" and argument in map(str, range(len(layout) + 1)):
        return layout.keys(layout.names[: len(layout) - int(argument)])
    raise ValueError(
        f"{text!r}: must be {EVERYTHING!r}, {PARAMETERS!r}, {NOTHING!r}, 'without:BLOCK,..', 'without-last:0' to "
        f"'without-last:{len(layout)}', or 'last:1' to 'last:{len(layout)}'"
    )
