"""How visits of a run differ beside their method's own choices, and how that travels."""

from __future__ import annotations

import pytest

from coordinator.aggregation.server import Download
from coordinator.methods.spec import Traffic
from edge.protocol import serialization
from edge.protocol.messages import Evaluate, Message, Train
from edge.protocol.variant import PLAIN, Variant, split
from edge.protocol.wire import WireError

PART = Variant(0.5, 3, 8)
NUMBERS = {"rate": 0.5, "window": 3, "codec levels": 8}


def test_its_numbers_are_named_in_the_order_of_its_fields() -> None:
    assert list(PART.named().items()) == [*NUMBERS.items()]
    assert (Variant(window=0).named(), PLAIN.named()) == ({"window": 0}, {})


def test_what_is_not_of_the_variant_is_of_the_method() -> None:
    assert split({"alpha": 2, **NUMBERS}) == ({"alpha": 2}, PART)
    assert split({"alpha": 2}) == ({"alpha": 2}, PLAIN)


def test_without_a_rate_a_visit_has_the_whole_model() -> None:
    assert (PART.share, Variant(window=3).share) == (0.5, 1.0)


def through(message: Message) -> Message:
    encoded = serialization.encode(message, "run-1")
    return serialization.decode(encoded.header, encoded.frames, "run-1")


@pytest.mark.parametrize("kind", [Train, Evaluate])
def test_it_travels_among_the_choices(kind: type[Message]) -> None:
    def made(choice: dict[str, float], variant: Variant) -> Message:
        if kind is Train:
            return Train(1, 2, 0.1, choice, {}, variant)
        return Evaluate(0, 1, 2, {}, choice=choice, variant=variant)

    apart, together = made({"alpha": 2}, PART), made({"alpha": 2, **NUMBERS}, PLAIN)
    assert serialization.encode(apart, "run-1").header == serialization.encode(together, "run-1").header
    assert through(apart) == apart


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"rate": 0}, "Expected `float` > 0.0"),
        ({"rate": 1.5}, "Expected `float` <= 1.0"),
        ({"window": -1}, "Expected `int` >= 0"),
        ({"window": 0.5}, "Expected `int | null`, got `float`"),
        ({"codec levels": 0}, "Expected `int` >= 1"),
    ],
)
def test_numbers_that_no_variant_has_are_refused(numbers: dict[str, float], reason: str) -> None:
    header = serialization.encode(Train(1, 2, 0.1, numbers, {}), "run-1").header
    with pytest.raises(WireError, match=reason.replace("|", r"\|")):
        serialization.decode(header, (), "run-1")


@pytest.mark.parametrize("name", NUMBERS)
def test_no_choice_of_a_method_has_the_name_of_a_field(name: str) -> None:
    with pytest.raises(ValueError, match=f"choice: {name}: is the name of what the run chooses for a visit; rename it"):
        Traffic(choices=("alpha", name))
    with pytest.raises(ValueError, match=f"choice: {name}: "):
        Download(0, {}, {name: 1})
