"""The page of a decision: what is on it, without runs."""

from __future__ import annotations

from itertools import product

from scenarios.run.progress import Mean
from scenarios.studies.decide import pages
from scenarios.studies.decide.answer import CandidateRow, DecisionAnswer, Effort, Place, Sought


def decided(**places: tuple[str | None, list[str]]) -> DecisionAnswer:
    """An answer with two candidates and a map of four places."""
    names = {"a": "method=fedavg", "b": "method=fedbr"}
    found = []
    for (links, devices), (chosen, unknown) in zip(product((0.5, 1.0), repeat=2), places.values(), strict=True):
        name = None if chosen is None else names[chosen]
        found.append(Place(links, devices, name, [names[each] for each in unknown]))
    return DecisionAnswer(
        scenario="digits",
        overrides=[],
        objective=Sought("", 0.9, "bytes", {"bytes": 50e6}),
        seeds=[0, 1],
        candidates=[row(name, [], 0) for name in names.values()],
        runs_of={},
        effort=Effort(*[0] * 11),
        map=found,
    )


def row(name: str, nbytes: list[float | None], reached: int) -> CandidateRow:
    """A candidate that takes so many bytes to the target."""
    return CandidateRow(
        name=name,
        method=name[7:],
        settings={"method": name[7:]},
        trained_as=name,
        state="finalist",
        why="",
        rung=0,
        seeds=[0, 1],
        rounds=[],
        accuracy=Mean.of([0.9, 0.9]),
        reached=reached,
        value=Mean.of(nbytes),
        spent={"bytes": Mean.of(nbytes)},
    )


def test_a_map_tells_open_places_from_those_where_nothing_reaches_the_target() -> None:
    ((name, html, caption),) = pages.figures(decided(w=(None, ["b"]), x=(None, []), y=("a", []), z=("b", [])), [])
    assert name == "flips"
    assert caption.endswith("–: none reaches the target. ?: a finalist would have to be trained there.")
    # Each is drawn wide and narrow; 1 is a factor of both axes, too.
    assert [html.count(f">{text}</text>") for text in ("?", "–", "1", "2", "1 fedavg", "2 fedbr")] == [2, 2, 6, 2, 2, 2]
