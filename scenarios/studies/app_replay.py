"""Replays the run of a Flower app on another fleet: its ServerApp is played again, and gets the recorded replies.

Nothing is trained and nothing written. A replay in which the app sends another message than the run did, since a reply
came too late or a node was away, is refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coordinator.records.schema import AggregatorRow, RoundRow, VisitRow
from coordinator.rounds.app_rounds import APP, EndedAppRound
from coordinator.rounds.budget import TARGET
from coordinator.rounds.run import RunFailed
from costmodel.clock import Clock
from costmodel.fleet.carbon import Intensity
from costmodel.fleet.fleet import Fleet
from edge.protocol import app_records
from scenarios.config.load import Loaded
from scenarios.run import app_run
from scenarios.run.app_folder import FlowerApp
from scenarios.run.setup import RunInputs
from scenarios.studies.replayed_run import OtherVisits, RecordedRounds


class ReplayedApp:
    """A replay that has ended."""

    def __init__(self, ready: PreparedApp) -> None:
        self.record, self.loaded, self.fresh = ready.record, ready.loaded, ready.fresh
        self.carbon = ready.carbon
        self._contents = {row.round: row.model_sha256 for row in self.record.rounds}
        self.rounds_done: list[RoundRow] = []
        self.visits_done: list[VisitRow] = []
        self.messages_done: list[AggregatorRow] = []
        """None: apps have no aggregators"""
        self.other_end: str | None = None
        """The difference, if a budget ends the replay elsewhere than the record"""
        self.rounds = 0

    def commit(self, ended: EndedAppRound) -> None:
        """As of `coordinator.rounds.app_rounds.AppRecorder`. `OtherVisits` if the app got other replies in a round."""
        if ended.stopped_by in (None, APP) and self._contents.get(ended.row.round) != ended.row.model_sha256:
            raise OtherVisits(f"round {ended.row.round + 1}: the app would get other replies in time", self.fresh)
        self.rounds_done.append(ended.row)
        self.visits_done += list(ended.record.visits.in_order())


@dataclass(frozen=True)
class PreparedApp:
    """The run of an app that is read once, and can be replayed on several fleets."""

    record: RecordedRounds
    loaded: Loaded
    """The scenario with the overrides"""
    app: FlowerApp
    folder: Path
    """The folder of the run"""
    fresh: str
    """The command that runs the app anew"""
    carbon: Intensity | None
    """That of the run, unless an override changes it"""

    @cached_property
    def fleet(self) -> Fleet:
        """As the scenario draws it."""
        return RunInputs(self.loaded).drawn_fleet

    def play(self, fleet: Fleet, may_end_elsewhere: bool = False) -> ReplayedApp:
        """The run, replayed to its end on a fleet. `OtherVisits` if the app sends other messages on it."""
        new, scenario = ReplayedApp(self), self.loaded.scenario
        target = scenario.stop.goal if self.record.stopped_by == TARGET else None
        folder = self.folder / app_records.FOLDER
        with app_run.ServerAppProcess(self.app, scenario.seed, folder, Path(os.devnull), writes=False) as server:
            rounds = app_run.rounds_of(self.loaded, Clock(fleet), server, folder, new, target)
            try:
                stopped_by = rounds.run()
            except RunFailed as error:
                raise OtherVisits(str(error), self.fresh) from None
        new.rounds = rounds.committed.rounds
        if len(new.rounds_done) != len(self.record.rounds):
            new.other_end = f"round {new.rounds + 1}: the replay ends here: {stopped_by}"
            if not may_end_elsewhere:
                raise OtherVisits(new.other_end, self.fresh)
        return new
