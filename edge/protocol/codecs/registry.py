"""All stages of codecs, under the names that scenarios use. No state.

A stage of your own needs no entry: a scenario names its row as ``my_package.my_stage:ROW``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from edge.protocol.codecs.codec import (
    Codec,
    CodecRow,
    EntropyCoder,
    NumberFormat,
    PlainStages,
    Reduction,
    Tensors,
    size,
)
from edge.protocol.codecs.elias import Elias, EliasOptions
from edge.protocol.codecs.halves import BFloat16, Float16, HalfOptions
from edge.protocol.codecs.low_rank import PowerSGD, PowerSGDOptions
from edge.protocol.codecs.quantize import Quantize, QuantizeOptions, Ternary, TernaryOptions
from edge.protocol.codecs.sign import Sign, SignOptions
from edge.protocol.codecs.sparse import RandK, RandKOptions, TopK, TopKOptions
from edge.protocol.codecs.zstd import Zstd, ZstdOptions
from edge.protocol.plugins import error_text, find
from edge.protocol.spelling import nearest

CODECS: dict[str, CodecRow] = {
    row.name: row
    for row in (
        CodecRow(
            "topk",
            "the numbers of largest magnitude, with their indices",
            "Stich et al., Sparsified SGD with Memory, NeurIPS 2018",
            TopKOptions,
            TopK,
            "‖v - v'‖² ≤ (1 - k/n)·‖v‖²",
        ),
        CodecRow(
            "randk",
            "numbers at drawn indices, which need not travel",
            "Stich et al., Sparsified SGD with Memory, NeurIPS 2018",
            RandKOptions,
            RandK,
            "E‖v - v'‖² = (n/k - 1)·‖v‖², unscaled (1 - k/n)·‖v‖²",
        ),
        CodecRow(
            "powersgd",
            "P and Q of each matrix, by a step of power iteration",
            "Vogels et al., PowerSGD, NeurIPS 2019",
            PowerSGDOptions,
            PowerSGD,
            "v' = v for matrices of rank r, once Q has converged",
        ),
        CodecRow(
            "fp16",
            "2 bytes a number, of 11 significant bits, at most 65504",
            "IEEE 754-2008, binary16; Micikevicius et al., Mixed Precision Training, ICLR 2018",
            HalfOptions,
            Float16,
            "|v - v'| ≤ 2^-11·|v|",
        ),
        CodecRow(
            "bf16",
            "2 bytes a number, of 8 significant bits, with the range of float32",
            "Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, arXiv 2019",
            HalfOptions,
            BFloat16,
            "|v - v'| ≤ 2^-8·|v|",
        ),
        CodecRow(
            "quantize",
            "integer levels of a norm per bucket, rounded at random",
            "Alistarh et al., QSGD, NeurIPS 2017",
            QuantizeOptions,
            Quantize,
            "E‖v - v'‖² ≤ min(n/s², √n/s)·‖v‖² of each bucket of n (l2)",
        ),
        CodecRow(
            "ternary",
            "-norm, 0 or norm, rounded at random; five numbers in a byte",
            "Wen et al., TernGrad, NeurIPS 2017",
            TernaryOptions,
            Ternary,
            "E‖v - v'‖² = ‖v‖∞·‖v‖₁ - ‖v‖², of v as clipped",
        ),
        CodecRow(
            "sign",
            "signs, and the mean magnitude",
            "Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019",
            SignOptions,
            Sign,
            "‖v - v'‖² = ‖v‖² - ‖v‖₁²/n",
        ),
        CodecRow(
            "zstd",
            "the bytes of the stages before, shortened by zstd",
            "Collet and Kucherawy, RFC 8878, 2021",
            ZstdOptions,
            Zstd,
            "v' = v",
        ),
        CodecRow(
            "elias",
            "the indices and levels of the stages before, as Rice and omega codes",
            "Alistarh et al., QSGD, NeurIPS 2017; gaps: Sattler et al., IEEE TNNLS 2020",
            EliasOptions,
            Elias,
            "v' = v",
        ),
    )
}

CLASSES = {Reduction: "a reduction", NumberFormat: "a number format", EntropyCoder: "an entropy coder"}
"""Of stages, in the order of a chain, and one of each in words"""


def codec_row(name: str) -> CodecRow:
    """The row of a shipped name or of ``module:ROW``; ValueError with the nearest name."""
    return find(name, CODECS, CodecRow, "codec")


def make_codec(stages: Sequence[Mapping[str, Any]]) -> Codec:
    """The chain of these stages, each ``{"kind": NAME, OPTION: VALUE, ..}``; without any, numbers travel as they are.

    ValueError for an unknown kind or option, an option out of its range, and stages that do not fit one another.
    """
    rows = [_row(stage) for stage in stages]
    classes = list(CLASSES)
    ranks = [next(rank for rank, each in enumerate(classes) if issubclass(row.stage, each)) for row in rows]
    for (row, rank), (after, after_rank) in pairwise(zip(rows, ranks, strict=True)):
        noun, after_noun = CLASSES[classes[rank]], CLASSES[classes[after_rank]]
        if rank == after_rank:
            raise ValueError(f"{row.name} and {after.name} are both {noun}; a codec has one at most")
        if rank > after_rank:
            raise ValueError(
                f"{after.name} is {after_noun}, and stands behind {row.name}, {noun}; "
                "the order is: fewer numbers, their format, entropy coding"
            )
    made = [row.stage(_options(row, stage)) for row, stage in zip(rows, stages, strict=True)]
    if made and isinstance(made[-1], EntropyCoder) and made[-1].needs_integers:
        codec = Codec(made[:-1])
        if not (codec.reduction.has_indices or codec.number_format.has_integers):
            has = ("has_indices", "has_integers")
            of = [row.name for row in CODECS.values() if any(getattr(row.stage, each, False) for each in has)]
            before = " and ".join(row.name for row in rows[:-1]) or "a vector"
            raise ValueError(f"{rows[-1].name} codes integers, and {before} has none; {', '.join(of)} have some")
    return Codec(made)


def for_feedback(stages: Sequence[Mapping[str, Any]], feeds_back: bool) -> list[dict[str, Any]]:
    """The stages with the defaults that depend on whether errors are fed back."""
    return [
        {"unbiased": not feeds_back, **stage} if _row(stage).options is RandKOptions else {**stage} for stage in stages
    ]


def why_no_feedback(stages: Sequence[Mapping[str, Any]]) -> str | None:
    """Why errors of this chain cannot be fed back, or None."""
    codec, names = make_codec(for_feedback(stages, feeds_back=True)), ", ".join(_row(stage).name for stage in stages)
    if isinstance(codec.reduction, RandK) and codec.reduction.is_unbiased and codec.reduction.options.ratio < 1:
        why, choose = (
            "with unbiased = true numbers are scaled by n/k",
            "unbiased = false, or codec.error_feedback = false",
        )
    else:
        try:
            if codec.contracts:
                return None
        except Exception as error:  # a user's own stage may raise anything
            raise ValueError(f"{names}: {error_text(error)}") from error
        why, choose = "what comes back has more noise than numbers", "codec.error_feedback = false"
    return f"{names}: {why}, so that residuals would grow with every visit; choose {choose}"


def smallest_chain(name: str) -> list[dict[str, Any]]:
    """A chain with the stage of this name: alone, or behind quantize if it codes integers. ValueError: `codec_row`."""
    needs_integers = getattr(codec_row(name).stage, "needs_integers", False)
    return [{"kind": "quantize"}] * needs_integers + [{"kind": name}]


def stage_nbytes(stages: Sequence[Mapping[str, Any]], tensors: Tensors) -> list[tuple[str, float]]:
    """(shipped kind whose time it takes, bytes that reach it) of each stage, as `costmodel.fleet.codec_costs` counts.

    4 bytes for each number; an entropy coder of integers has 4 for each of these, and any other the bytes of the frame.
    """
    codec, counted = make_codec(stages), list[tuple[str, float]]()
    chain = PlainStages(codec.reduction, codec.number_format, tensors)
    for stage in stages:
        row, numbers = _row(stage), chain.count
        if issubclass(row.stage, Reduction):
            nbytes = 4 * size(tensors)
        elif not issubclass(row.stage, EntropyCoder):
            nbytes = 4 * numbers
        elif row.stage.needs_integers:
            indices = numbers if chain.reduction.has_indices and chain.side_nbytes else 0
            nbytes = 4 * (indices + numbers * chain.number_format.has_integers)
        else:
            nbytes = chain.nbytes
        counted.append((row.costs_like or row.name, float(nbytes)))
    return counted


def _row(stage: Mapping[str, Any]) -> CodecRow:
    if not isinstance(stage.get("kind"), str):
        raise ValueError(f"a stage of a codec needs a kind: {', '.join(CODECS)}")
    row = codec_row(stage["kind"])
    if not issubclass(row.stage, tuple(CLASSES)):
        raise ValueError(f"{row.name}: its stage {row.stage.__name__} is neither {', nor '.join(CLASSES.values())}")
    return row


def _options(row: CodecRow, stage: Mapping[str, Any]) -> Any:
    given = {name: value for name, value in stage.items() if name != "kind"}
    fields = row.options.model_fields
    if unknown := [name for name in given if name not in fields]:
        hint = nearest(unknown[0], fields) if fields else "it has no options"
        raise ValueError(f"{row.name}: no option {unknown[0]!r}; {hint}")
    try:
        return row.options.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = " = ".join((*map(str, first["loc"]), repr(first["input"]))) if first["loc"] else "options"
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{row.name}: {place}: {message[0].lower()}{message[1:]}") from error
