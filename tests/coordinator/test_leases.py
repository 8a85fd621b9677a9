"""The state machine that hands out tasks, told as stories of events and instructions."""

from coordinator.leases import Cancel, Deliver, GiveUp, Late, Leases, Repeat, Send, Shelves, Start


def crew(workers: int) -> Leases:
    """Leases whose workers are all ready."""
    leases = Leases(workers)
    assert leases.begin() == [Start(worker) for worker in range(workers)]
    for worker in range(workers):
        assert leases.ready(worker) == []
    return leases


def test_tasks_wait_for_workers() -> None:
    leases = Leases(1)
    leases.begin()
    assert leases.submitted(1, "first") == []
    assert leases.ready(0) == [Send(0, 1)]


def test_one_task_at_a_time_in_submission_order() -> None:
    leases = crew(2)
    assert leases.submitted(1, "first") == [Send(0, 1)]
    assert leases.submitted(2, "second") == [Send(1, 2)]
    assert leases.submitted(3, "third") == []
    assert leases.submitted(4, "fourth") == []
    assert leases.answered(1, 2) == [Deliver(2), Send(1, 3)]
    assert leases.answered(0, 1) == [Deliver(1), Send(0, 4)]


def test_a_dead_workers_task_goes_to_the_front_and_the_worker_is_replaced() -> None:
    leases = crew(2)
    for sequence in (1, 2, 3):
        leases.submitted(sequence, "task")
    assert leases.died(0, "SIGKILL") == [Repeat(0, 1, "SIGKILL"), Start(2)]
    assert leases.answered(1, 2) == [Deliver(2), Send(1, 1)]  # before task 3
    assert leases.ready(2) == [Send(2, 3)]


def test_a_reply_that_came_just_after_its_workers_death_counts_once() -> None:
    leases = crew(2)
    leases.submitted(1, "task")
    assert leases.died(0, "SIGKILL") == [Repeat(0, 1, "SIGKILL"), Start(2), Send(1, 1)]
    assert leases.answered(0, 1) == [Deliver(1)]
    assert leases.submitted(2, "next") == []  # worker 1 still works on task 1
    assert leases.answered(1, 1) == [Late(1, 1), Send(1, 2)]


def test_a_reply_in_time_takes_the_task_off_the_queue() -> None:
    leases = crew(1)
    leases.submitted(1, "task")
    leases.died(0, "SIGKILL")
    assert leases.answered(0, 1) == [Deliver(1)]
    assert leases.ready(1) == []


def test_a_reply_to_a_task_that_was_never_in_that_hand_does_not_count() -> None:
    leases = crew(2)
    leases.submitted(1, "task")
    assert leases.answered(1, 1) == [Late(1, 1)]
    assert leases.answered(1, 99) == [Late(1, 99)]


def test_a_failed_task_is_tried_again_by_a_living_worker() -> None:
    leases = crew(1)
    leases.submitted(1, "task")
    assert leases.failed(0, 1, "MemoryError") == [Repeat(0, 1, "MemoryError"), Send(0, 1)]
    assert leases.answered(0, 1) == [Deliver(1)]


def test_a_task_that_ends_three_workers_is_named() -> None:
    leases = crew(1)
    leases.submitted(1, "client 4, round 2, train")
    leases.died(0, "worker 0 was ended by SIGKILL")
    leases.ready(1)
    leases.failed(1, 1, "worker 1: ValueError: no")
    assert leases.died(1, "worker 1 was ended by SIGSEGV") == [
        GiveUp(1, "client 4, round 2, train: given up after 3 workers; the last: worker 1 was ended by SIGSEGV"),
        Start(2),
    ]


def test_three_deaths_in_a_row_before_ready_end_the_run() -> None:
    leases = Leases(2)
    leases.begin()
    assert leases.died(0, "exit code 1") == [Start(2)]
    assert leases.died(1, "exit code 1") == [Start(3)]
    assert leases.ready(2) == []  # one that works: counting starts again
    assert leases.died(3, "exit code 1") == [Start(4)]
    assert leases.died(4, "exit code 1") == [Start(5)]
    assert leases.died(5, "exit code 9") == [
        GiveUp(5, "3 workers in a row ended before they were ready; the last: exit code 9")
    ]


def test_an_idle_worker_that_dies_is_replaced() -> None:
    assert crew(1).died(0, "SIGTERM") == [Start(1)]


def test_a_worker_dies_once() -> None:
    leases = crew(1)
    leases.died(0, "SIGTERM")
    assert leases.died(0, "SIGTERM") == []


def test_cancelled_tasks_are_neither_repeated_nor_delivered() -> None:
    leases = crew(3)
    for sequence in (1, 2, 3, 4):
        leases.submitted(sequence, "task")
    assert leases.cancelled() == [Cancel(0, 1), Cancel(1, 2), Cancel(2, 3)]
    assert leases.submitted(5, "next") == []  # all are still busy
    assert leases.answered(0, 1) == [Late(0, 1), Send(0, 5)]  # its reply crossed the cancel
    assert leases.dropped(0, 1) == []  # its pong, too, and task 5 stays in its hand
    assert leases.died(1, "SIGKILL") == [Start(3)]
    assert leases.dropped(2, 3) == []
    assert leases.submitted(6, "next") == [Send(2, 6)]
    assert leases.answered(0, 5) == [Deliver(5)]


A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def test_each_version_is_sent_to_a_worker_once() -> None:
    shelves = Shelves()
    shelves.submitted({("model", "stem"): A, ("model", "head"): B})
    shelves.submitted({("model", "head"): B})
    assert shelves.delivery(0, [A, B]) == ([A, B], [])
    assert shelves.delivery(0, [B]) == ([], [])
    assert shelves.delivery(1, [B]) == ([B], [])


def test_a_version_outlives_its_tasks_until_a_newer_one_takes_its_place() -> None:
    shelves = Shelves()
    shelves.submitted({("model", "head"): A})
    shelves.delivery(0, [A])
    shelves.over([A])
    shelves.submitted({("model", "stem"): B})
    assert shelves.delivery(0, [B]) == ([B], [])  # A is still the newest head
    shelves.submitted({("model", "head"): C})
    assert shelves.delivery(0, [C]) == ([C], [A])
    assert shelves.kept() == {B, C}


def test_a_version_that_an_open_task_needs_is_not_forgotten() -> None:
    shelves = Shelves()
    shelves.submitted({("model", "head"): A})
    shelves.submitted({("model", "head"): A})
    shelves.submitted({("model", "head"): B})
    shelves.over([A])
    shelves.delivery(0, [A])
    assert shelves.delivery(0, [B]) == ([B], [])
    shelves.over([A])
    assert shelves.delivery(0, [B]) == ([], [A])


def test_a_replacement_starts_with_an_empty_shelf() -> None:
    shelves = Shelves()
    shelves.submitted({("model", "head"): A})
    shelves.delivery(0, [A])
    shelves.gone(0)
    assert shelves.delivery(0, [A]) == ([A], [])
