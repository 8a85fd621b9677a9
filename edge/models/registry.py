"""The models, one row each. Adding one = one file that returns its stages + one row here. No torch in this table.

A model is a sequence of *stages*, each a list of *units* (the finest places where it can be cut).
`edge.training.blocks` turns them into M named blocks. The last stage is called ``head`` in every shipped model.

Any other module of torch becomes a model by a row of `module_row`, in a user's file without torch, that names the
module's class and those of its children that make up each block.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edge.data.registry import ExampleKind
from edge.protocol.config import CPU, Norm
from edge.protocol.options.causal_lm import CausalLmOptions
from edge.protocol.options.llama import LlamaOptions
from edge.protocol.plugins import PluginOptions, find, is_own

INPUTS = {"image": "channels", "features": "features", "series": "channels", "tokens": "vocabulary"}
"""Kind of examples -> the name of the number that a model's first layer depends on (`DataSet.inputs`)."""
GROUPS = 2
"""Normalisation groups of every GroupNorm, as in FedMLB's published code."""


@dataclass(frozen=True)
class Defaults:
    """Defaults of options that change the last bits of a result, by model and type of device. Measurements fill these
    tables, never a run.

    The figures below are times of a training step of 20 images on one core of an Intel Xeon with AVX512-BF16 and AMX
    (torch 2.15). On CUDA (NVIDIA H200, torch 2.11) contiguous images were as fast as any: channels_last takes 0.99-1.18
    of the time for cnn and 1.01-1.16 for resnet18 of width 64, in fp32, tf32 and bf16.
    """

    memory_format: str = "contiguous"
    """channels_last takes 0.85 of the time of contiguous for cnn, 0.89 for resnet18 of width 16, 0.93 of width 32; in
    bf16 0.86, 0.93 and 0.80, and 0.86 of width 64. In fp32 0.91 for vgg9, 0.92 for mobilenetv2, 0.67 for shufflenet and
    0.81 for squeezenet, and for the four of width 8, 8, 12 and 24: 0.77, 0.79, 0.72, 0.69."""
    precision: str = "fp32"
    """fp32 everywhere; bf16 is the user's choice. It takes 1.06 of the time for cnn, 0.75-0.82 for resnet18 of
    width 16, 0.48 of width 32, 0.45 of width 64. With graphs on CUDA tf32 takes 0.86 of the time of fp32 for cnn, bf16
    1.09; 0.60 and 0.57 for resnet18 of width 64."""
    pathways: str = "each"
    """With five pathways, sweep takes 0.93 of the time of each for resnet18 of width 16 and 0.97 of width 64 (0.86 in
    bf16), and 0.98 for cnn with four. With all pathways it takes 0.95 for vgg9, 0.93 for mobilenetv2, 0.96 for
    shufflenet and 0.97 for squeezenet. On CUDA it is the default of the models here: 0.70 for resnet18 of width 64, and
    0.76 in bf16."""
    contiguous_from: int | None = None
    """The least width with contiguous images in fp32; None: none. channels_last takes 1.03-1.07 of the time of
    contiguous for resnet18 of width 64, and 1.08 with FedMLB's pathways."""
    graphs: bool = False
    """True on CUDA for the models here: replayed steps in fp32 take 0.12 of the time of launched ones for digits-cnn,
    0.14 for cnn and 0.91 for resnet18 of width 64."""


ATTENTION = "attention"
"""A family for which few devices have a figure"""


@dataclass(frozen=True)
class ModelRow:
    """One model."""

    name: str
    title: str
    family: str
    """The dominant kind of arithmetic; a device's throughput depends on it."""
    stages: str
    """``module:function`` of (classes, inputs, width) -> list of (stage name, list of torch modules), with inputs as of
    `INPUTS`, and of ``norm`` where the row has one; or, with ``children``, the ``module:Class`` or ``module:function``
    that makes a torch module."""
    shape: tuple[int, ...]
    """The examples it is made for: (height, width) of images, (features,), (channels, length) or (length,); empty for
    any."""
    width: int | None
    """Channels or units of the first stage, with which all others scale; None if the model has no width."""
    flexible: bool
    """Whether examples of other sizes run through it."""
    blocks: tuple[str, ...]
    """Names of its stages."""
    units: int
    """Number of places where ``balanced:M`` may cut, plus one."""
    width_multiple: int = 1
    """Every width must be a multiple of this, so that all channels and groups are whole."""
    defaults: Mapping[str, Defaults] = field(default_factory=lambda: {CPU: Defaults("channels_last", pathways="sweep")})
    """By type of device; `Defaults()` for other types."""
    kind: ExampleKind = "image"
    """The examples that it takes."""
    children: tuple[tuple[str, ...], ...] = ()
    """The children of a torch module in each block, one after another; see `module_row`."""
    options: type[PluginOptions] = PluginOptions
    """The class of ``model.options``; where it is another class, ``stages`` takes ``options`` as well"""
    continues: bool = False
    """Whether ``stages`` takes ``continues``: for outputs at every token of a sequence, in place of one at the last"""
    files: str | None = None
    """The module that reads its pretrained numbers (``model.weights``): ``options_of(path)``, ``model.width`` and
    ``model.options`` of those; and ``numbers_of(path)``, its tensors in the order of its parameters. ``stages`` then
    takes ``is_filled``, and may leave numbers that are read without memory."""
    is_replayed: bool = True
    """Whether its steps can run as the kernels that one of them called"""
    norm: Norm | None = None
    """The model's own normalisation, ``batch``, ``group`` or ``none``, if ``model.norm`` can replace it; else None."""

    @property
    def families(self) -> tuple[str, ...]:
        """The names by which devices have a throughput for the model: of two the first that a device knows counts, and
        where nobody has measured attention, the figure of convolutions is taken."""
        return tuple(dict.fromkeys((self.name, self.family, "conv" if self.family == ATTENTION else self.family)))

    def on(self, device_type: str, width: int | None = None, precision: str | None = None) -> Defaults:
        """The defaults on a type of device (``cpu``, ``cuda``) for a width and precision, by default the model's."""
        defaults = self.defaults.get(device_type, Defaults())
        width, precision = width or self.width or 0, precision or defaults.precision
        most = defaults.contiguous_from
        is_wide = precision == "fp32" and most is not None and width >= most
        return replace(defaults, precision=precision, memory_format="contiguous" if is_wide else defaults.memory_format)

    def check_width(self, width: int | None) -> None:
        """ValueError for a ``model.width`` that the model cannot have, naming the key and the nearest width."""
        if width is None:
            return
        if self.width is None:
            raise ValueError(f"model.width = {width}: {self.name} has no width")
        if width % self.width_multiple:
            step = self.width_multiple
            near = max(1, round(width / step)) * step
            raise ValueError(f"model.width = {width}: {self.name} needs a multiple of {step}; the nearest is {near}")

    def check_norm(self, norm: Norm | None, width: int | None) -> None:
        """ValueError for a ``model.norm`` that the model cannot have, naming the key."""
        if norm is None:
            return
        if self.norm is None:
            raise ValueError(f"model.norm = {norm!r}: the layers of {self.name} are its own; leave the key out")
        channels = self.width if width is None else width
        if norm == "group" and channels is not None and channels % GROUPS:
            raise ValueError(f"model.norm = 'group': needs an even model.width, not {channels}; take {channels + 1}")

    def block_count(self, cut: str) -> int:
        """M under ``model.blocks = cut``. ValueError naming the key for a cut that it does not allow."""
        form, _, count = cut.partition(":")
        if cut == "stages":
            return len(self.blocks)
        if form == "balanced" and count in map(str, range(2, self.units + 1)):
            return int(count)
        others = f" or 'balanced:2' .. 'balanced:{self.units}'" if self.units > 1 else " alone"
        raise ValueError(f"model.blocks = {cut!r}: {self.name} takes 'stages'{others}")


def module_row(
    name: str,
    module: str,
    blocks: Sequence[str | Sequence[str]] | Mapping[str, str | Sequence[str]],
    *,
    title: str = "",
    kind: ExampleKind = "image",
    family: str = "conv",
    shape: tuple[int, ...] = (),
    width: int | None = None,
    width_multiple: int = 1,
    defaults: Mapping[str, Defaults] | None = None,
) -> ModelRow:
    """The row of a torch module whose forward is its children, one after another.

    ``module``: ``module:Class`` or ``module:function``, called with those of the arguments ``classes``, ``width`` and
    ``channels``, ``features`` or ``vocabulary`` (`INPUTS`) that it has. ``blocks``: the children of each block in the
    order of use, ``"conv"``, ``"conv+norm"`` or ``["conv", "norm"]``, with dots for children of children; a mapping
    gives blocks names of their own. ``shape``: the only shape of examples, by default any. ValueError for blocks that
    no module can have.
    """
    named = {_joined(block): block for block in blocks} if not isinstance(blocks, Mapping) else dict(blocks)
    children = tuple(tuple(block.split("+") if isinstance(block, str) else block) for block in named.values())
    if len(named) < len(blocks) or not named or not all(child for block in children for child in block or [""]):
        raise ValueError(f"blocks = {blocks!r}: must name the children of each block, and no block twice")
    if any("," in block or not block for block in named):
        raise ValueError(f"blocks = {blocks!r}: a name must not be empty, nor hold a comma")
    flexible, by_device = not shape, {} if defaults is None else defaults
    title = title or f"{module}, block by block"
    more: dict[str, Any] = {"width_multiple": width_multiple, "defaults": by_device, "kind": kind, "children": children}
    return ModelRow(name, title, family, module, shape, width, flexible, tuple(named), 1, **more)


def _joined(block: str | Sequence[str]) -> str:
    return block if isinstance(block, str) else "+".join(block)


_LENET = "conv1 conv2 fc1 fc2 head"
_DIGITS = "conv1 conv2 conv3 head"
_FOUR = "conv1 conv2 conv3 conv4 head"
_MNIST_LENET = "conv1 conv2 fc1 head"
_AUTOENCODER = "encoder1 encoder2 encoder3 encoder4 decoder1 decoder2 decoder3 head"
_PAIRS = "pair1 pair2 pair3 fc1 fc2 head"
_RESNET = "stem stage1 stage2 stage3 stage4 head"
_RESNET_56 = "stem stage1 stage2 stage3 head"
_VGG = "conv1 conv2 conv3 conv4 conv5 conv6 head"
_MOBILENET = "stem stage1 stage2 stage3 stage4 stage5 stage6 head"
_SHUFFLENET = "stem stage1 stage2 stage3 head"
_SQUEEZENET = "stem fire2 fire3 fire4 fire5 fire6 fire7 fire8 head"
_UNMEASURED: dict[str, Any] = {"width_multiple": 2, "defaults": {}}
_UNMEASURED_AND_FIXED: dict[str, Any] = {"flexible": False, "defaults": {}}
_ON_CPU = {CPU: Defaults("channels_last", pathways="sweep")}
_ON_GPU = {"cuda": Defaults(pathways="sweep", graphs=True)}
_TO_64 = {CPU: Defaults("channels_last", pathways="sweep", contiguous_from=64)}


def _row(
    name: str,
    title: str,
    side: int,
    width: int | None,
    units: int,
    blocks: str,
    family: str = "conv",
    flexible: bool = True,
    **more: Any,
) -> ModelRow:
    """A model in the module of its name, for square images; ``blocks``: its stages, separated by spaces."""
    more = {"norm": "group", "defaults": _ON_CPU, **more}
    more["defaults"] = more["defaults"] | _ON_GPU
    return ModelRow(
        name, title, family, _own(name), (side, side), width, flexible, tuple(blocks.split()), units, **more
    )


def _own(name: str) -> str:
    return f"edge.models.{name.replace('-', '_')}:stages"


def _flat(
    name: str, title: str, kind: ExampleKind, width: int | None, blocks: str, units: int, multiple: int = 1
) -> ModelRow:
    """A model of features, series or tokens of any number. Nothing is measured of its defaults, nor of its family:
    devices have no figure for dense and recurrent layers, so that of convolutions is taken. A step's fixed cost
    outweighs it by far in all but ``char-lstm``."""
    more: dict[str, Any] = {"defaults": _ON_GPU, "kind": kind, "width_multiple": multiple}
    return ModelRow(name, title, "conv", _own(name), (), width, True, tuple(blocks.split()), units, **more)


_AE = _row(
    "emnist-autoencoder",
    "Bottleneck autoencoder for EMNIST",
    32,
    1000,
    8,
    _AUTOENCODER,
    norm=None,
    **_UNMEASURED_AND_FIXED,
)
_ROWS = (
    _row("cnn", "LeNet-like CNN of pFedMB", 32, None, 5, _LENET, flexible=False, norm="none"),
    _row("digits-cnn", "CNN for 8x8", 8, 16, 4, _DIGITS, flexible=False, norm="none"),
    _row("heterofl-cnn", "HeteroFL's CNN for MNIST", 28, 64, 5, _FOUR, norm="batch", **_UNMEASURED),
    _row(
        "hierfavg-lenet", "HierFAVG's LeNet for MNIST", 32, None, 4, _MNIST_LENET, norm="none", **_UNMEASURED_AND_FIXED
    ),
    _row("hierfavg-cnn", "HierFAVG's CNN for CIFAR-10", 32, None, 6, _PAIRS, norm="batch", **_UNMEASURED_AND_FIXED),
    _AE,
    replace(
        _AE,
        name="emnist-autoencoder-wide",
        title="The same with an initialisation four times as wide",
        stages="edge.models.emnist_autoencoder:wide_stages",
    ),
    _row("resnet18", "ResNet-18", 32, 64, 10, _RESNET, width_multiple=2, defaults=_TO_64),
    _row("resnet18-imagenet", "ResNet-18 for 224x224", 224, 64, 10, _RESNET, norm="batch", **_UNMEASURED),
    _row("resnet56", "ResNet-56 of bottlenecks", 32, 16, 20, _RESNET_56, norm="batch", **_UNMEASURED),
    _row("vgg9", "VGG-9", 32, 32, 9, _VGG, width_multiple=2),
    _row("mobilenetv2", "MobileNetV2", 32, 32, 20, _MOBILENET, "depthwise", width_multiple=8),
    _row("shufflenet", "ShuffleNet V1, g = 3", 32, 24, 18, _SHUFFLENET, "depthwise", width_multiple=12),
    _row("squeezenet", "SqueezeNet", 32, 96, 10, _SQUEEZENET, width_multiple=12),
    _flat("mlp", "Perceptron with two hidden layers", "features", 64, "fc1 fc2 head", 3),
    _flat("softmax", "Multinomial logistic regression", "features", None, "head", 1),
    _flat("har-cnn", "CNN of three convolutions over time", "series", 32, "conv1 conv2 conv3 head", 4),
    _flat("text-cnn", "Embedding and two convolutions", "tokens", 16, "embedding conv1 conv2 head", 4),
    replace(
        _flat("char-lstm", "Two LSTM layers of LEAF", "tokens", 256, "embedding lstm1 lstm2 head", 4), continues=True
    ),
    replace(
        _flat("char-transformer", "Transformer of two layers", "tokens", 128, "embedding layer1 layer2 head", 4, 4),
        family=ATTENTION,
        continues=True,
    ),
    replace(
        _flat("llama", "Decoder of the llama class, of any size", "tokens", 64, "embedding lower upper head", 4),
        family=ATTENTION,
        options=LlamaOptions,
        continues=True,
        files="edge.models.llama_files",
    ),
    replace(
        _flat("transformers", "A causal model of transformers, in a folder", "tokens", None, "decoder", 1),
        stages="edge.models.causal_lm:stages",
        family=ATTENTION,
        options=CausalLmOptions,
        defaults={},
        continues=True,
        files="edge.models.causal_lm_files",
        is_replayed=False,
    ),
)
MODELS: dict[str, ModelRow] = {row.name: row for row in _ROWS}


def model(name: str) -> ModelRow:
    """The row of a model, by name or as ``module:ROW``; ValueError naming the key, with the nearest name."""
    if is_own(name) and _is_code(name):
        raise ValueError(
            f"model.name = {name!r}: is a class or function, not a model row. Name a row that a file without torch "
            "makes: from edge.models.registry import module_row; "
            f"ROW = module_row('my-model', {name!r}, blocks=('conv', 'head')), with the names of the children in the "
            "order of their use"
        )
    try:
        return find(name, MODELS, ModelRow, "model")
    except ValueError as error:
        raise ValueError(f"model.name: {error}") from None


def _is_code(name: str) -> bool:
    """Whether ``module:NAME`` is a class or function by the module's text, which is not run: it may import torch."""
    module, _, attribute = name.partition(":")
    try:
        spec = importlib.util.find_spec(module)
        source = Path(spec.origin).read_text() if spec is not None and spec.origin is not None else ""
        body = ast.parse(source).body
    except Exception:  # whatever is wrong with the module, importing it will tell
        return False
    return any(isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == attribute for each in body)
