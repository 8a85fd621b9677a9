"""The blocks of a model: made by its row, cut, and perhaps wrapped by a method.

`edge.training.block_model` puts their numbers into flat vectors.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edge.models.layers import take_places_first
from edge.models.registry import MODELS, ModelRow, model
from edge.models.user_module import make_module, stages_of
from edge.protocol.config import ModelConfig
from edge.protocol.options.base import Options
from edge.protocol.payload import ITEM_NBYTES
from edge.protocol.plugins import PluginOptions, error_text

Block = tuple[str, nn.Module]
"""(name, module)"""


def load_dotted(name: str) -> Any:
    """The object that ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def build(
    config: ModelConfig, classes: int, inputs: int, continues: bool = False, weights: Path | None = None
) -> list[Block]:
    """The blocks of a model, initialised by torch's defaults from its current random state.

    ``inputs``: channels, features, or the size of the vocabulary. ``continues``: whether every token of a sequence has
    an output; ``weights``: the file that `pretrained.flat_file` has made of ``model.weights``; without it, and under
    torch's device without memory, no numbers are read. ValueError if the model cannot be cut into these
    blocks, or cannot have the width.
    """
    row = model(config.name)
    row.check_width(config.width)
    width = row.width if config.width is None else config.width
    stages: list[tuple[str, list[nn.Module]]]
    if row.children:
        stages = stages_of(row, make_module(row, classes, inputs, width))
    else:
        norm = () if row.norm is None else (config.norm or row.norm,)
        made: dict[str, Any] = (
            {} if row.options is PluginOptions else {"options": row.options.model_validate(config.options)}
        )
        if continues:
            made["continues"] = _can_continue(row)
        if config.weights is not None:
            made["is_filled"] = True
        stages = load_dotted(row.stages)(classes, inputs, width, *norm, **made)
        _check_names(row, [name for name, _ in stages])
    if weights is not None:
        fill([unit for _, units in stages for unit in units], weights)
    take_places_first(unit for _, units in stages for unit in units)
    if config.blocks == "stages":
        return [(name, units[0] if len(units) == 1 else nn.Sequential(*units)) for name, units in stages]
    units = [unit for _, stage in stages for unit in stage]
    sizes = [sum(p.numel() for p in unit.parameters()) for unit in units]
    count = row.block_count(config.blocks)
    cuts = [0, *balanced_cuts(sizes, count), len(units)]
    return [(f"b{i + 1}", nn.Sequential(*units[cuts[i] : cuts[i + 1]])) for i in range(count)]


def _can_continue(row: ModelRow) -> bool:
    """True; ValueError for a model with one output for all of a sequence."""
    if row.continues:
        return True
    others = ", ".join(other.name for other in MODELS.values() if other.continues)
    raise ValueError(f"model.name = {row.name!r}: has no output at every token, as train.loss needs; choose {others}")


def fill(modules: Sequence[nn.Module], file: Path) -> None:
    """Map the numbers of a file of `pretrained.flat_file`: of the parameters without memory, or of all, in their order.

    Nothing is written to the file, whatever becomes of the parameters. ValueError for a file of another model.
    """
    known = list(dict.fromkeys(each for module in modules for each in module.parameters()))
    unfilled = [each for each in known if each.is_meta] or known
    wanted, held = sum(each.numel() for each in unfilled), file.stat().st_size // ITEM_NBYTES
    is_drawn = len(unfilled) < len(known)
    if held != wanted and not (is_drawn and held > wanted):
        raise ValueError(
            f"model.weights: holds {held:,} numbers, and the model has {wanted:,}; its tokens must be those of the "
            "data (data.text.tokenizer)"
        )
    storage = torch.UntypedStorage.from_file(str(file), False, held * ITEM_NBYTES)
    mapped = torch.empty(0, dtype=torch.float32).set_(storage)  # type: ignore[arg-type]
    pieces = torch.split(mapped[:wanted], [each.numel() for each in unfilled])
    filled = {each: nn.Parameter(piece.view(each.shape)) for each, piece in zip(unfilled, pieces, strict=True)}
    for part in (part for module in modules for part in module.modules()):
        for name, each in part._parameters.items():
            if each in filled:  # tied ones are in several places
                part._parameters[name] = filled[each]


def _check_names(row: ModelRow, names: Sequence[str]) -> None:
    """ValueError for stages of other names than the blocks of the model's row, by which methods choose them."""
    if tuple(names) != row.blocks:
        raise ValueError(
            f"model.name = {row.name!r}: its row has the blocks {', '.join(row.blocks)}, but {row.stages} gives "
            f"{', '.join(names)}; name these in the row's blocks"
        )


def method_blocks(
    config: ModelConfig,
    classes: int,
    inputs: int,
    wrapper: tuple[str, Options] | None,
    continues: bool = False,
    weights: Path | None = None,
) -> list[Block]:
    """The blocks of a model as a method changes it; ``wrapper``: its ``wrap_model`` and options, if it has one.

    ValueError as of `build` and `wrapped`, and, naming the model, for one that the method does not take.
    """
    blocks = build(config, classes, inputs, continues, weights)
    if wrapper is None:
        return blocks
    width = model(config.name).width if config.width is None else config.width
    try:
        return wrapped(blocks, *wrapper, classes, width)
    except ValueError as error:
        if isinstance(error.__cause__, ValueError):
            raise ValueError(f"model.name = {config.name!r}: {error.__cause__}") from error
        raise


def wrapped(blocks: list[Block], wrapper: str, options: Options, classes: int, width: int | None) -> list[Block]:
    """The blocks that a method's ``wrap_model`` (``module:function``) makes of a model's.

    ValueError if it names a block twice, or leaves none.
    """
    try:
        made: list[Block] = load_dotted(wrapper)(blocks, options, classes, width)
        names = [name for name, _ in made]
    except Exception as error:  # a user's function may raise anything
        raise ValueError(f"method: wrap_model {wrapper!r}: {error_text(error)}") from error
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{wrapper} must make blocks of distinct names; it makes {', '.join(names) or 'none'}")
    return made


def balanced_cuts(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """Positions that cut a row of units into ``count`` consecutive parts of the most equal sizes.

    Minimises the sum of squared part sizes over all cuts; ties go to the earlier cut.
    """
    ends = [0, *accumulate(sizes)]

    @cache
    def best(start: int, parts: int) -> tuple[int, tuple[int, ...]]:
        """Cost and cuts of the units from ``start`` on."""
        if parts == 1:
            return (ends[-1] - ends[start]) ** 2, ()
        candidates = []
        for cut in range(start + 1, len(sizes) - parts + 2):
            cost, later = best(cut, parts - 1)
            candidates.append(((ends[cut] - ends[start]) ** 2 + cost, (cut, *later)))
        return min(candidates)

    return best(0, count)[1]
