"""Names of runs in a report: the method, and what else differs between their scenarios, in few words.

Runs whose scenarios are equal but for the seed are one group, and have one label. Nothing here reads a file: a scenario
comes as its resolved keys, flat (``train.lr``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from edge.protocol.plugins import display_name
from scenarios.config.tables import TomlValue

Settings = Mapping[str, TomlValue]
"""Dotted key -> value of a resolved scenario; a key that is not set is missing."""
METHOD, SERVER, POLICY = "method", "server", "rounds.policy"
PLAIN = "plain"
"""The server optimizer that only adds the mean update"""
FOLLOWERS = ("data.partition.seed", "fleet.seed")
"""Seeds of their own, by default the run's"""
MIXES = ("fleet.devices", "fleet.networks")
"""Tables of name -> share, which are compared as a whole"""
VAGUE = frozenset({"kind", "name", "max", "on", "off", "down", "up", "sigma", "count", "file", "step", "case"})
"""Last parts of keys that say nothing without the part before"""
MOST_NAMES = 3


def identities(scenarios: Sequence[Settings]) -> list[Settings]:
    """Each scenario without its seed: runs with equal ones are one group.

    Each of `FOLLOWERS` is left out where every run takes its own seed for it, as it is by default.
    """
    follow = (
        key for key in FOLLOWERS if all(each.get(key, each.get("seed")) == each.get("seed") for each in scenarios)
    )
    left_out = {"seed", *follow}
    found: list[Settings] = []
    for each in scenarios:
        own: dict[str, TomlValue] = {}
        mixes: dict[str, dict[str, TomlValue]] = {mix: {} for mix in MIXES}
        for key, value in each.items():
            mix = next((mix for mix in MIXES if key.startswith(f"{mix}.")), None)
            if mix is not None:
                mixes[mix][key[len(mix) + 1 :]] = value
            elif key not in left_out:
                own[key] = value
        found.append(own | {mix: shares for mix, shares in mixes.items() if shares})
    return found


def differing(groups: Sequence[Settings]) -> list[str]:
    """The keys whose values differ, or which only some have: method, server and policy first, then the fleet's."""
    known = dict.fromkeys(key for settings in groups for key in settings)
    found = [key for key in known if any(settings.get(key) != groups[0].get(key) for settings in groups)]
    first = (METHOD, SERVER, POLICY)
    rank = {key: first.index(key) if key in first else len(first) for key in found}
    return sorted(found, key=lambda key: (rank[key], not key.startswith("fleet.")))  # the scenario's order otherwise


def labels(groups: Sequence[Settings]) -> list[str]:
    """A label per identity: method, server optimizer unless plain, policy where they differ, then ``key=value``.

    A key is added only to labels that would be equal without it, until none are.
    """
    texts = [display_name(", ".join(own)) for own in _words(groups)[0]]
    # Values that are written alike, as long mixes of devices, still have names of their own.
    return [
        f"{text} #{texts[: index + 1].count(text)}" if texts.count(text) > 1 else text
        for index, text in enumerate(texts)
    ]


def unnamed(groups: Sequence[Settings]) -> list[str]:
    """The keys that differ, but are not in every label.

    Options that only some methods or policies have are no difference.
    """
    named = _words(groups)[1]
    return [
        key
        for key in differing(groups)
        if key not in (METHOD, SERVER, POLICY, *named)
        and (
            not any(part.endswith("_options") for part in key.split("."))
            or len({repr(each[key]) for each in groups if key in each}) > 1
        )
    ]


def _words(groups: Sequence[Settings]) -> tuple[list[list[str]], set[str]]:
    """(the words of each label, the keys beside method, server and policy that are in all of them)."""
    keys = differing(groups)
    words: list[list[str]] = []
    named = Counter[str]()
    for settings in groups:
        server, policy = settings.get(SERVER), settings.get(POLICY)
        servers = [f"server={server}"] if server not in (None, PLAIN) else []
        policies = [str(policy)] if POLICY in keys and policy is not None else []
        words.append([str(settings.get(METHOD)), *servers, *policies])
    for key in (key for key in keys if key not in (METHOD, SERVER, POLICY)):
        alike: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for index, own in enumerate(words):
            alike[tuple(own)].append(index)
        for members in alike.values():
            if any(groups[index].get(key) != groups[members[0]].get(key) for index in members):
                name = short(key, {known for settings in groups for known in settings})
                named[key] += len(members)
                for index in members:
                    words[index].append(f"{name}={value_text(groups[index].get(key))}")
    return words, {key for key, count in named.items() if count == len(groups)}


def short(key: str, known: set[str]) -> str:
    """The shortest end of a dotted key that no other key has, with two parts if the last alone is vague."""
    parts = key.split(".")
    for count in range(1 + (parts[-1] in VAGUE), len(parts)):
        end = ".".join(parts[-count:])
        if not any(other != key and (other == end or other.endswith(f".{end}")) for other in known):
            return end
    return key


def value_text(value: Any) -> str:
    """A value of a scenario in a label."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping) and "kind" in value:  # a stage of a codec: quantize(4,512,max)
        options = ",".join(value_text(option) for name, option in value.items() if name != "kind")
        return str(value["kind"]) + (f"({options})" if options else "")
    if isinstance(value, Mapping):
        names = [name if len(value) == 1 else f"{name} {value_text(share)}" for name, share in value.items()]
        rest = len(names) - MOST_NAMES
        return " + ".join(names[:MOST_NAMES]) + (f" + {rest} more" if rest > 0 else "")
    if isinstance(value, list | tuple):
        return "+".join(map(value_text, value)) or "none"
    return display_name(str(value))
