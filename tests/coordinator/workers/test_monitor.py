"""When the terms of remote workers are over, told with made-up clocks."""

from coordinator.workers.monitor import TermClock
from coordinator.workers.scheduler import GETTING_READY

AGENT = 4


def checked(clock: TermClock, now: float, terms: dict[int, float], file_sent_at: float = -1.0) -> object:
    """One check of a node agent, the only remote worker."""
    clock.begin_check(now, [AGENT])
    return clock.late(AGENT, terms, now, file_sent_at)


def test_any_running_task_of_a_node_agent_may_be_late_whatever_the_others_do() -> None:
    clock, terms = TermClock(), {1: 20.0, 2: 20.0, 3: 20.0}
    assert [checked(clock, now, terms) for now in (0.0, 8.0)] == [None, None]
    moved_on = {1: 20.0, 3: 20.0, 5: 20.0}  # task 2 was answered, and task 5 runs in its place since 16 s
    assert [checked(clock, now, moved_on) for now in (16.0, 20.0)] == [None, None]
    assert checked(clock, 21.0, {5: 20.0, 3: 20.0}) == (3, 20.0)
    assert checked(clock, 22.0, {5: 20.0}) is None
    assert [checked(clock, now, {5: 20.0}) for now in (31.0, 37.0)] == [None, (5, 20.0)]


def test_terms_begin_anew_after_a_pause_of_this_process_and_for_each_worker() -> None:
    clock = TermClock()
    assert [checked(clock, now, {1: 15.0}) for now in (0.0, 8.0)] == [None, None]
    assert [checked(clock, now, {1: 15.0}) for now in (20.0, 28.0, 36.0)] == [None, None, (1, 15.0)]
    clock.begin_check(37.0, [])
    assert checked(clock, 38.0, {1: 15.0}) is None


def test_nobody_is_late_in_getting_ready_while_files_are_sent() -> None:
    clock, terms = TermClock(), {GETTING_READY: 15.0}
    assert [checked(clock, now, terms, file_sent_at=12.0) for now in (0.0, 9.0, 18.0, 27.0)] == [None] * 4
    assert checked(clock, 28.0, terms, file_sent_at=12.0) == (GETTING_READY, 15.0)
