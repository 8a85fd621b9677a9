"""From TOML + ``extends`` + KEY=VALUE to a resolved scenario, or to one clear message.

Every error is a `ScenarioError` that names the file or override, the key, and the nearest valid choice.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from coordinator.asynchronous import POLICIES as ASYNCHRONOUS
from coordinator.methods import Method, resolve
from coordinator.methods.row import Options
from coordinator.optimisers import OPTIMISERS, ServerOptions
from costmodel.device import devices, networks
from costmodel.units import LARGEST, nearest
from edge.config import DataConfig, PartitionConfig
from edge.data.find import check_root, is_file
from edge.data.sets import DataSet, dataset
from edge.data.shares import check_partition
from edge.models import ModelRow, model
from edge.payload import BlockShape, Layout
from scenarios import fleets
from scenarios.errors import ScenarioError as ScenarioError
from scenarios.schema import LARGEST_INTEGER, Scenario, Section

FILES = Path(__file__).parent / "files"
COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Loaded:
    """A scenario with every default written out, and what its names stand for."""

    name: str
    scenario: Scenario
    method: Method
    options: Options
    server_options: ServerOptions
    dataset: DataSet
    model: ModelRow
    blocks: int
    """M"""


def shipped() -> list[str]:
    """Names of the scenarios that ship."""
    return sorted(path.stem for path in FILES.glob("*.toml"))


def load(name: str, overrides: Sequence[str] = (), method: str | None = None) -> Loaded:
    """The scenario of a shipped name or a TOML file, with KEY=VALUE overrides.

    With ``method``, that method takes the place of the scenario's own, and of ``method_options`` only what it has is
    kept.
    """
    path = find(name)
    try:
        return _load(path, overrides, method)
    except RecursionError:
        raise ScenarioError(f"{path.name}: tables or lists are nested too deeply") from None


def _load(path: Path, overrides: Sequence[str], method: str | None) -> Loaded:
    raw = _read(path, ())
    origin = dict.fromkeys((key for key, _ in _leaves(raw)), str(path.name))
    for override in overrides:
        key, value = parse(override)
        _put(raw, key, value)
        origin = {known: source for known, source in origin.items() if not known.startswith(f"{key}.")}
        origin[key] = COMMAND_LINE
    if method is not None:
        _put_method(raw, method)
    return _resolve(path.stem, raw, _Origin(path.name, origin))


def find(name: str) -> Path:
    """The file of a scenario."""
    if is_file(FILES / f"{name}.toml"):
        return FILES / f"{name}.toml"
    path = Path(name)
    if is_file(path):
        return path
    if path.suffix == ".toml" or "/" in name:
        raise ScenarioError(f"{name}: no such file")
    raise ScenarioError(f"no scenario {name!r}: {nearest(name, shipped())} (or name a TOML file)")


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ScenarioError(f"{path.name}: extends: the files extend each other in a circle")
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # also text that is not UTF-8, and an integer of thousands of digits
        raise ScenarioError(f"{path.name}: not valid TOML: {error}") from None
    base = raw.pop("extends", None)
    if base is None:
        return raw
    if not isinstance(base, str):
        raise ScenarioError(f"{path.name}: extends = {base!r}: must be the name of a scenario or a file")
    beside = path.parent / base
    try:
        parent = beside if is_file(beside) else find(base)
    except ScenarioError as error:
        raise ScenarioError(f"{path.name}: extends: {error}") from None
    return _merge(_read(parent, (*seen, path.resolve())), raw)


WHOLE = ("fleet.devices", "fleet.networks", "method_options", "server_options")
"""Tables that are replaced as one, since their keys are names rather than settings."""


def _merge(base: dict[str, Any], over: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value, f"{at}{key}.") if both and f"{at}{key}" not in WHOLE else value
    return merged


def _put_method(raw: dict[str, Any], name: str) -> None:
    raw["method"] = name
    try:
        known = resolve(name).options.model_fields
    except ValueError as error:
        raise ScenarioError(f"--methods: {error}") from None
    options = raw.get("method_options")
    if isinstance(options, dict):
        raw["method_options"] = {key: value for key, value in options.items() if key in known}


def parse(override: str) -> tuple[str, Any]:
    """Key and value of KEY=VALUE; a value that is not TOML is text."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(f"{override!r}: an override reads KEY=VALUE, for example train.lr=0.05")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text.strip()
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; lists in lists without end
        raise ScenarioError(f"{COMMAND_LINE}: {key.strip()}: {error}") from None


def _put(raw: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for table in tables:
        inner = raw.setdefault(table, {})
        if not isinstance(inner, dict):
            raise ScenarioError(f"{COMMAND_LINE}: {key}: {table} is a value, not a table")
        raw[table] = inner = dict(inner)
        raw = inner
    raw[last] = value


def _leaves(raw: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


class _Origin:
    """Which file or override said a key."""

    def __init__(self, default: str, keys: Mapping[str, str]) -> None:
        self.default, self.keys = default, keys

    def error(self, key: str, text: str) -> ScenarioError:
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            prefix = ".".join(parts[:length])
            inner = [source for known, source in self.keys.items() if known == prefix or known.startswith(f"{prefix}.")]
            if inner:
                return ScenarioError(f"{COMMAND_LINE if COMMAND_LINE in inner else inner[0]}: {text}")
        return ScenarioError(f"{self.default}: {text}")


def _resolve(name: str, raw: dict[str, Any], origin: _Origin) -> Loaded:
    _refuse_numbers(raw, origin)
    try:
        scenario = Scenario.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if not _is_branch(part))
        raise origin.error(key, _explain(first, key, known_keys(Scenario))) from None

    def valid(key: str, make: Any, *arguments: Any) -> Any:
        try:
            return make(*arguments)
        except ValidationError as error:
            first = error.errors()[0]
            inner = ".".join([key, *(str(part) for part in first["loc"] if not _is_branch(part))])
            fields = {f"{key}.{field}": f"{key}.{field}" for field in arguments[-1].model_fields}
            raise origin.error(inner, _explain(first, inner, fields)) from None
        except ValueError as error:
            raise origin.error(key, str(error)) from None

    method: Method = valid("method", lambda: _named("method", resolve, scenario.method))
    options: Options = valid(
        "method_options", lambda kind: kind.model_validate(scenario.method_options), method.options
    )
    valid("server", lambda: _check_server(scenario.server, method))
    server_options: ServerOptions = valid(
        "server_options",
        lambda kind: kind.model_validate(scenario.server_options),
        OPTIMISERS[scenario.server].options,
    )
    own = {"method_options": options.model_dump(), "server_options": server_options.model_dump()}
    _refuse_flags(raw, scenario.model_dump() | own, origin)
    data: DataSet = valid("data.name", dataset, scenario.data.name)
    valid("data.root", check_root, data, scenario.data.root)
    architecture: ModelRow = valid("model.name", model, scenario.model.name)
    blocks: int = valid("model.blocks", architecture.block_count, scenario.model.blocks)
    valid("method_options", lambda: method.check(options, blocks))
    if scenario.rounds.policy in ASYNCHRONOUS:
        valid("rounds.policy", lambda: method.check_asynchronous(options))
    valid("data.partition", lambda: check_partition(data_config(scenario), data))
    valid("data.partition.kind", lambda: _check_own_examples(method, scenario))
    valid("eval.subset", lambda: _check_subset(method, scenario))
    valid("train.nesterov", lambda: _check_nesterov(scenario))
    valid("aggregate.sum", lambda: _check_sum(method, options, scenario))
    valid("rounds.participants", lambda: _check_participants(scenario))
    valid("model.name", lambda: _check_shapes(architecture, data))
    valid("model.width", architecture.check_width, scenario.model.width)
    valid("fleet", lambda: _check_fleet(scenario))
    valid("travels", lambda: _check_travels(method, architecture, blocks, scenario))
    valid("method", lambda: _check_whole(method, options, architecture, blocks, scenario))
    update: dict[str, Any] = {
        "method": method.name,
        **own,
        "model": scenario.model.model_copy(update={"width": scenario.model.width or architecture.width}),
        "aggregate": scenario.aggregate.model_copy(
            update={"weights": scenario.aggregate.weights or method.objective.weights}
        ),
    }
    resolved = scenario.model_copy(update=update)
    return Loaded(name, resolved, method, options, server_options, data, architecture, blocks)


def _refuse_numbers(raw: Mapping[str, Any], origin: _Origin) -> None:
    """Refuse, before anything computes with it or writes it out, a number that is larger than any use for it."""
    for key, value in _leaves(raw):
        for number in _items(value):
            if isinstance(number, int) and abs(number) > LARGEST_INTEGER:
                raise origin.error(key, f"{key}: an integer must lie within -2^53 .. 2^53")
            if isinstance(number, float) and LARGEST < abs(number) < math.inf:
                raise origin.error(key, f"{key} = {number!r}: is too large")


def _refuse_flags(raw: Mapping[str, Any], resolved: Mapping[str, Any], origin: _Origin) -> None:
    """Pydantic reads true as 1: a flag where a number is due is refused here."""
    flags = {key for key, value in _leaves(resolved) if any(isinstance(item, bool) for item in _items(value))}
    for key, value in _leaves(raw):
        for item in _items(value):
            if isinstance(item, bool) and key not in flags:
                raise origin.error(key, f"{key} = {str(item).lower()}: must not be true or false")


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _named(key: str, make: Any, value: str) -> Any:
    try:
        return make(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def data_config(scenario: Scenario) -> DataConfig:
    """The data section as workers get it."""
    data = scenario.data.model_dump()
    return DataConfig(**{**data, "partition": PartitionConfig(**data["partition"])})


def _check_server(name: str, method: Method) -> None:
    if name not in OPTIMISERS:
        raise ValueError(f"server = {name!r}: {nearest(name, OPTIMISERS)}")
    for part in method.parts:
        if part.optimisers is not None and name not in part.optimisers:
            admitted = ", ".join(f'"{one}"' for one in part.optimisers)
            raise ValueError(f'server = "{name}": {part.name} makes its own server step and takes only {admitted}')


def _check_sum(method: Method, options: Options, scenario: Scenario) -> None:
    if scenario.aggregate.sum != "fixed_point":
        return
    who = method.looks_into_single_replies(options)
    if who is not None:
        raise ValueError(f'aggregate.sum = "fixed_point": {who} looks into single updates')
    for key, value in scenario.faults.model_dump(exclude_none=True).items():
        if value != "stop":
            raise ValueError(f'aggregate.sum = "fixed_point": faults.{key} = {value} looks into single updates')
    policy = scenario.rounds.policy
    if policy in ASYNCHRONOUS:
        raise ValueError(f'aggregate.sum = "fixed_point": rounds.policy = {policy} discounts updates one by one')


def _check_subset(method: Method, scenario: Scenario) -> None:
    if method.objective.evaluated == "clients" and scenario.eval.subset is not None:
        raise ValueError(
            f"eval.subset = {scenario.eval.subset}: {method.name} is scored on each client's own test examples, not on "
            "the set that this is a part of"
        )


def _check_own_examples(method: Method, scenario: Scenario) -> None:
    if method.objective.evaluated == "clients" and scenario.data.partition.kind == "file":
        raise ValueError(
            f"data.partition.kind = file shares no test examples among clients, but {method.name} is scored on those "
            "of each client"
        )


def _check_nesterov(scenario: Scenario) -> None:
    if scenario.train.nesterov and scenario.train.momentum == 0:
        raise ValueError("train.nesterov = true needs train.momentum above 0")


def _check_participants(scenario: Scenario) -> None:
    asked, clients = scenario.rounds.participants, scenario.data.clients
    if asked > clients:
        raise ValueError(f"rounds.participants = {asked}: there are only {clients} clients (data.clients)")


def _check_shapes(architecture: ModelRow, data: DataSet) -> None:
    if not architecture.flexible and architecture.shape != data.shape[1:]:
        height, width = data.shape[1:]
        made_for = "x".join(map(str, architecture.shape))
        raise ValueError(
            f"model.name = {architecture.name!r} is made for {made_for} images; {data.name} has {height}x{width}"
        )


def _check_fleet(scenario: Scenario) -> None:
    own_devices, own_networks = fleets.own_rows(scenario)
    for key, chosen, table in (
        ("fleet.devices", scenario.fleet.devices, {**devices(), **own_devices}),
        ("fleet.networks", scenario.fleet.networks, {**networks(), **own_networks}),
    ):
        for name in chosen:
            if name not in table:
                raise ValueError(f"{key}: {name!r}: {nearest(name, table)}")
        if isinstance(chosen, list) and len(chosen) != scenario.data.clients:
            raise ValueError(f"{key} names {len(chosen)} clients, but data.clients = {scenario.data.clients}")
        if not chosen:
            raise ValueError(f"{key} names nothing")
    rates = scenario.fleet.rates
    if rates is not None and not 0 < rates[0] <= rates[1] < math.inf:
        raise ValueError(f"fleet.rates = {list(rates)}: must be the lowest and the highest rate, both finite")
    varies = scenario.fleet.bandwidth
    if varies.kind == "ou" and varies.step < varies.tau / 1000:
        raise ValueError(
            f"fleet.bandwidth.step = {varies.step:g}: must be at least a thousandth of tau = {varies.tau:g}"
        )


def _check_travels(method: Method, architecture: ModelRow, blocks: int, scenario: Scenario) -> None:
    method.travels(_named_blocks(architecture, blocks, scenario), scenario.travels.down, scenario.travels.up)


def _check_whole(method: Method, options: Options, architecture: ModelRow, blocks: int, scenario: Scenario) -> None:
    layout = _named_blocks(architecture, blocks, scenario)
    method.check_whole(options, layout, scenario.travels.down, scenario.travels.up)


def _named_blocks(architecture: ModelRow, blocks: int, scenario: Scenario) -> Layout:
    stages = scenario.model.blocks == "stages"
    names = architecture.blocks if stages else tuple(f"b{number + 1}" for number in range(blocks))
    return Layout(tuple(BlockShape(name, 1) for name in names))


# --- messages ---------------------------------------------------------------------------------------------------------


def known_keys(section: type[BaseModel], at: str = "") -> dict[str, str]:
    """Every dotted key, and every name that other tools use for it, with the key it stands for."""
    keys: dict[str, str] = {}
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            keys |= known_keys(kind, f"{at}{name}.")
            keys[f"{at}{name}"] = f"{at}{name}"
        else:
            extra = field.json_schema_extra
            others = extra.get("also", []) if isinstance(extra, dict) else []
            assert isinstance(others, list)
            keys |= {f"{at}{other}": f"{at}{name}" for other in [name, *others]}
    return keys


def _is_branch(part: str | int) -> bool:
    """Pydantic puts the alternatives of a union into the place of an error; they are no keys."""
    kinds = ("int", "str", "float", "constrained-float", "none", "literal")
    return isinstance(part, int) or "[" in part or part in kinds


A_TABLE = "must be a table"
KINDS = {
    "model_type": A_TABLE,
    "dict_type": A_TABLE,
    "tuple_type": "must be a list",
    "missing": "too few values",
    "too_long": "too many values",
}
"""What pydantic says in Python's words, in TOML's."""


def _explain(error: ErrorDetails, key: str, known: Mapping[str, str]) -> str:
    if error["type"] == "extra_forbidden":
        return f"unknown key {key}{_did_you_mean(key, known)}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "literal_error":
        expected = str(error.get("ctx", {}).get("expected", ""))
        choices = [choice.strip("' ") for choice in expected.replace(" or ", ", ").split(", ")]
        near = difflib.get_close_matches(str(error["input"]), choices, n=1)
        message = f"must be one of {', '.join(choices)}" + (f"; did you mean {near[0]}?" if near else "")
    message = KINDS.get(error["type"], message)
    if key in ("fleet.devices", "fleet.networks") and message == A_TABLE:
        message += " of shares, or a list of names, one per client"
    return f"{key} = {error['input']!r}: {message[0].lower()}{message[1:]}"


def _did_you_mean(key: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if not near:
        last = key.rpartition(".")[2]
        by_last = {name.rpartition(".")[2]: name for name in known}
        near = [by_last[name] for name in difflib.get_close_matches(last, by_last, n=1, cutoff=0.7)]
    if near:
        return f", did you mean {known[near[0]]}?"
    table = key.rpartition(".")[0]
    inside = sorted({name for name in known.values() if name.rpartition(".")[0] == table})
    return f" (known here: {', '.join(inside) or 'none'})" if table else ""
