"""Whether reports show nominal costs: only beside a method whose paper counts bytes otherwise than messages hold."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.methods.registry import resolve
from coordinator.methods.spec import ObjectiveSpec


def is_shown(methods: Iterable[str]) -> bool:
    """Whether one of these methods has a nominal period (`ObjectiveSpec.nominal_period`), as FedBR has.

    Of a method that cannot be loaded here nothing is known, so that it has none.
    """
    return any(map(_has_own, dict.fromkeys(methods)))


def _has_own(method: str) -> bool:
    try:
        return is_charged(resolve(method).objective)
    except ValueError:
        return False


def is_charged(spec: ObjectiveSpec) -> bool:
    """Whether a method has a nominal period."""
    return spec.costs.nominal_period(spec.options()) is not None
