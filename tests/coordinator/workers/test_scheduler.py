"""The state machine that hands out tasks, told as stories of events and instructions."""

from coordinator.workers.instructions import (
    Cancel,
    Collect,
    Collected,
    Deliver,
    Dismiss,
    GiveUp,
    Instruction,
    Late,
    Recall,
    Repeat,
    Retire,
    Send,
    Start,
)
from coordinator.workers.scheduler import MOST_IN_HAND, Leases


def crew(workers: int) -> Leases:
    """Leases whose workers are all ready."""
    leases = Leases(workers)
    assert leases.begin() == [Start(worker) for worker in range(workers)]
    for worker in range(workers):
        assert leases.ready(worker) == []
    return leases


def submit(leases: Leases, *sequences: int, name: str = "task", flops: float = 0.0) -> list[Instruction]:
    """New tasks, submitted at once."""
    return leases.submitted([(sequence, name, flops) for sequence in sequences])


def seasoned(workers: int, seconds: float = 0.02) -> Leases:
    """Leases that have seen one task of 100 FLOPs, number 0, which took so long."""
    leases = crew(workers)
    submit(leases, 0, flops=100.0)
    assert leases.answered(0, 0, seconds) == [Deliver(0)]
    return leases


def test_tasks_wait_for_workers() -> None:
    leases = Leases(1)
    leases.begin()
    assert submit(leases, 1) == []
    assert leases.ready(0) == [Send(0, 1)]


def test_tasks_of_unknown_length_go_out_one_at_a_time_in_submission_order() -> None:
    leases = crew(2)
    assert submit(leases, 1) == [Send(0, 1)]
    assert submit(leases, 2) == [Send(1, 2)]
    assert submit(leases, 3) == []
    assert submit(leases, 4) == []
    assert leases.answered(1, 2) == [Deliver(2), Send(1, 3)]
    assert leases.answered(0, 1) == [Deliver(1), Send(0, 4)]


def test_a_dead_workers_task_goes_to_the_front_and_the_worker_is_replaced() -> None:
    leases = crew(2)
    for sequence in (1, 2, 3):
        submit(leases, sequence)
    assert leases.died(0, "SIGKILL") == [Repeat(0, 1, "SIGKILL"), Start(2)]
    assert leases.answered(1, 2) == [Deliver(2), Send(1, 1)]  # before task 3
    assert leases.ready(2) == [Send(2, 3)]


def test_a_reply_that_came_just_after_its_workers_death_counts_once() -> None:
    leases = crew(2)
    submit(leases, 1)
    assert leases.died(0, "SIGKILL") == [Repeat(0, 1, "SIGKILL"), Start(2), Send(1, 1)]
    assert leases.answered(0, 1) == [Deliver(1), Cancel(1, 1)]
    assert submit(leases, 2) == []  # worker 1 still works on task 1
    assert leases.dropped(1, 1) == [Send(1, 2)]


def test_a_reply_in_time_takes_the_task_off_the_queue() -> None:
    leases = crew(1)
    submit(leases, 1)
    leases.died(0, "SIGKILL")
    assert leases.answered(0, 1) == [Deliver(1)]
    assert leases.ready(1) == []


def test_a_reply_to_a_task_that_was_never_in_that_hand_does_not_count() -> None:
    leases = crew(2)
    submit(leases, 1)
    assert leases.answered(1, 1) == [Late(1, 1)]
    assert leases.answered(1, 99) == [Late(1, 99)]


def test_a_failed_task_is_tried_again_by_a_living_worker() -> None:
    leases = crew(1)
    submit(leases, 1)
    assert leases.failed(0, 1, "MemoryError") == [Repeat(0, 1, "MemoryError"), Send(0, 1)]
    assert leases.answered(0, 1) == [Deliver(1)]


def test_a_task_that_failed_waits_for_a_worker_that_has_not_tried_it() -> None:
    leases = crew(2)
    for sequence in (1, 2, 3):
        submit(leases, sequence)
    assert leases.failed(0, 1, "no") == [Repeat(0, 1, "no"), Send(0, 3)]  # the next one instead
    assert leases.answered(0, 3) == [Deliver(3)]
    assert leases.answered(1, 2) == [Deliver(2), Send(1, 1)]


def test_a_task_that_failed_everywhere_is_tried_again_anywhere() -> None:
    leases = crew(2)
    submit(leases, 1, name="client 4, round 2, train")
    assert leases.failed(0, 1, "no") == [Repeat(0, 1, "no"), Send(1, 1)]
    assert leases.failed(1, 1, "no") == [Repeat(1, 1, "no"), Send(0, 1)]
    gone = "client 4, round 2, train: given up after 3 workers; the last: no"
    assert leases.failed(0, 1, "no") == [GiveUp(0, gone, 1)]


def test_a_task_that_failed_waits_for_the_replacement_of_a_worker_that_died() -> None:
    leases = crew(2)
    submit(leases, 1)
    submit(leases, 2)
    assert leases.failed(0, 1, "no") == [Repeat(0, 1, "no")]
    assert leases.died(1, "SIGKILL") == [Repeat(1, 2, "SIGKILL"), Start(2), Send(0, 2)]
    assert leases.answered(0, 2) == [Deliver(2)]  # worker 2 will be ready soon
    assert leases.ready(2) == [Send(2, 1)]


def test_a_task_that_failed_is_not_given_to_the_replacement_in_the_same_place() -> None:
    leases = crew(2)
    submit(leases, 1)
    submit(leases, 2)
    assert leases.failed(0, 1, "no") == [Repeat(0, 1, "no")]
    assert leases.died(0, "SIGKILL") == [Start(2)]
    assert leases.ready(2) == []  # it has the same GPU
    assert leases.answered(1, 2) == [Deliver(2), Send(1, 1)]


def test_who_fails_over_three_tasks_in_a_row_is_dismissed_and_gets_no_fourth() -> None:
    leases = crew(2)
    for sequence in range(1, 7):
        submit(leases, sequence)
    assert leases.failed(0, 1, "no") == [Repeat(0, 1, "no"), Send(0, 3)]
    assert leases.failed(0, 3, "no") == [Repeat(0, 3, "no"), Send(0, 4)]
    why = "it failed over 3 tasks in a row; the last: no"
    assert leases.failed(0, 4, "no") == [Repeat(0, 4, "no"), Dismiss(0, why)]
    assert leases.died(0, "SIGTERM") == [Start(2)]  # nothing was in its hand, so nothing is to blame
    assert leases.ready(2) == [Send(2, 5)]
    assert leases.answered(1, 2) == [Deliver(2), Send(1, 4)]


def test_a_success_in_between_forgives_what_failed_before() -> None:
    leases = crew(2)
    for sequence in range(1, 7):
        submit(leases, sequence)
    leases.failed(0, 1, "no")
    leases.failed(0, 3, "no")
    assert leases.answered(0, 4) == [Deliver(4), Send(0, 5)]
    assert leases.failed(0, 5, "no") == [Repeat(0, 5, "no"), Send(0, 6)]


def test_a_task_that_failed_does_not_wait_for_a_guest_that_is_not_ready() -> None:
    leases = crew(1)
    submit(leases, 1)
    assert leases.joined("alice") == 1
    assert leases.failed(0, 1, "no") == [Repeat(0, 1, "no"), Send(0, 1)]


def test_a_task_that_ends_three_workers_is_named() -> None:
    leases = crew(1)
    submit(leases, 1, name="client 4, round 2, train")
    leases.died(0, "worker 0 was ended by SIGKILL")
    leases.ready(1)
    leases.failed(1, 1, "worker 1: ValueError: no")
    assert leases.died(1, "worker 1 was ended by SIGSEGV") == [
        GiveUp(1, "client 4, round 2, train: given up after 3 workers; the last: worker 1 was ended by SIGSEGV", 1),
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


def test_an_idle_worker_comes_before_a_hand_that_could_be_filled() -> None:
    leases = seasoned(2)
    assert submit(leases, 1, flops=100.0) == [Send(0, 1)]
    assert submit(leases, *range(2, 7), flops=100.0) == [Send(1, 2), Send(0, 3)]


def test_a_hand_is_filled_up_to_a_tenth_of_a_second_and_refilled() -> None:
    leases = seasoned(1)  # 20 ms a task: five in hand, one of them in progress
    assert submit(leases, *range(1, 21), flops=100.0) == [Send(0, n) for n in (1, 2, 3, 4, 5)]
    assert leases.answered(0, 1, 0.02) == [Deliver(1), Send(0, 6)]
    assert leases.answered(0, 2, 0.02) == [Deliver(2), Send(0, 7)]


def test_no_task_goes_out_before_it_is_known_how_long_such_tasks_take() -> None:
    leases = crew(1)
    assert submit(leases, *range(1, 21), flops=100.0) == [Send(0, 1)]
    assert leases.answered(0, 1, 0.02) == [Deliver(1), *(Send(0, n) for n in (2, 3, 4, 5, 6))]


def test_the_pace_is_that_of_all_replies_so_far() -> None:
    leases = seasoned(1)
    submit(leases, 1, flops=300.0)
    leases.answered(0, 1, 0.14)  # 400 FLOPs in 0.16 s: 40 ms a task, so that two fit
    assert submit(leases, *range(2, 22), flops=100.0) == [Send(0, 2), Send(0, 3)]


def test_a_task_of_unknown_length_is_alone_in_its_hand() -> None:
    leases = seasoned(1)
    submit(leases, 1)
    assert submit(leases, *range(2, 22), flops=100.0) == []
    assert leases.answered(0, 1) == [Deliver(1), *(Send(0, n) for n in (2, 3, 4, 5, 6))]
    submit(leases, 22)


def test_long_tasks_go_out_one_at_a_time() -> None:
    leases = seasoned(2, seconds=0.06)  # two of them are longer than a hand may be
    assert submit(leases, *range(1, 21), flops=100.0) == [Send(0, 1), Send(1, 2)]


def test_a_hand_of_very_short_tasks_has_an_end() -> None:
    leases = seasoned(1, seconds=1e-9)
    assert MOST_IN_HAND == 64
    assert submit(leases, *range(1, 1001), flops=100.0) == [Send(0, n) for n in range(1, 65)]


def test_fewer_and_fewer_tasks_wait_in_hands_as_the_queue_empties() -> None:
    leases = seasoned(2, seconds=0.001)
    sent = submit(leases, *range(1, 25), flops=100.0)
    hands: dict[int, list[int]] = {0: [], 1: []}
    waiting = []
    while True:
        for instruction in sent:
            if isinstance(instruction, Send):
                hands[instruction.worker].append(instruction.sequence)
        queued = 24 - max(hands[0] + hands[1])
        waiting.append((queued, len(hands[0]) - 1, len(hands[1]) - 1))
        if not queued:
            break
        busier = max(hands, key=lambda worker: len(hands[worker]))
        sent = leases.answered(busier, hands[busier].pop(0), 0.001)
    assert waiting[0] == (15, 4, 3)  # 4: before the last of them 19 were queued, 19 // 4; 3: 16 // 4, and 15 are left
    assert all(first <= left // 4 + 1 and second <= left // 4 + 1 for left, first, second in waiting)
    assert waiting[-1] == (0, 0, 0)


def test_a_death_strikes_the_task_in_progress_alone() -> None:
    leases = seasoned(1)
    assert submit(leases, *range(1, 21), flops=100.0) == [Send(0, n) for n in (1, 2, 3, 4, 5)]
    leases.answered(0, 1, 0.02)
    assert leases.died(0, "SIGKILL") == [Repeat(0, 2, "SIGKILL"), Start(1)]
    assert leases.ready(1) == [Send(1, n) for n in (2, 3, 4, 5, 6)]  # in their order, before what has not been out
    assert leases.died(1, "SIGKILL") == [Repeat(1, 2, "SIGKILL"), Start(2)]
    leases.ready(2)
    leases.answered(2, 2, 0.02)
    assert leases.died(2, "SIGKILL") == [Repeat(2, 3, "SIGKILL"), Start(3)]  # its first strike


def test_an_error_strikes_its_own_task_wherever_it_is_in_the_hand() -> None:
    leases = seasoned(1)
    submit(leases, *range(1, 21), flops=100.0)
    assert leases.failed(0, 3, "WireError") == [Repeat(0, 3, "WireError"), Send(0, 3)]
    assert leases.died(0, "SIGKILL") == [Repeat(0, 1, "SIGKILL"), Start(1)]
    assert leases.ready(1) == [Send(1, n) for n in (1, 2, 4, 5, 3)]


def test_cancelled_tasks_are_neither_repeated_nor_delivered() -> None:
    leases = crew(3)
    submit(leases, 1, 2, 3, 4)
    assert leases.cancelled([1, 2, 3, 4]) == [Cancel(0, 1), Cancel(1, 2), Cancel(2, 3)]
    assert submit(leases, 5) == []  # all are still busy
    assert leases.answered(0, 1) == [Late(0, 1), Send(0, 5)]  # its reply crossed the cancel
    assert leases.dropped(0, 1) == []  # its pong, too, and task 5 stays in its hand
    assert leases.died(1, "SIGKILL") == [Start(3)]
    assert leases.dropped(2, 3) == []
    assert submit(leases, 6) == [Send(2, 6)]
    assert leases.answered(0, 5) == [Deliver(5)]


def test_what_is_not_cancelled_stays_in_hand_and_in_the_queue() -> None:
    leases = seasoned(1)
    assert submit(leases, *range(1, 9), flops=100.0) == [Send(0, 1), Send(0, 2), Send(0, 3)]
    assert leases.cancelled([1, 3, 5, 7, 99]) == [Cancel(0, 1), Cancel(0, 3)]
    assert leases.dropped(0, 3) == []
    assert leases.dropped(0, 1) == [Send(0, 4)]
    assert leases.answered(0, 2, 0.02) == [Deliver(2), Send(0, 6)]
    assert leases.answered(0, 4, 0.02) == [Deliver(4)]
    assert leases.answered(0, 6, 0.02) == [Deliver(6), Send(0, 8)]


def test_cancelled_tasks_of_a_dead_workers_hand_are_forgotten() -> None:
    leases = seasoned(1)
    submit(leases, *range(1, 21), flops=100.0)
    leases.cancelled([1, 3])
    assert leases.died(0, "SIGKILL") == [Start(1)]  # the task in progress was cancelled, so that nobody is to blame
    assert leases.ready(1) == [Send(1, n) for n in (2, 4, 5, 6, 7)]


# --- updates that workers have added up -------------------------------------------------------------------------------


def deposited(leases: Leases, worker: int, *sequences: int) -> None:
    """These tasks, which are in this worker's hand one after another, are answered as deposits."""
    for sequence in sequences:
        assert leases.answered(worker, sequence, deposited=True)[0] == Deliver(sequence)


def test_deposits_are_over_when_their_worker_has_given_its_sums_away() -> None:
    leases = crew(2)
    submit(leases, 1, 2, 3)
    deposited(leases, 0, 1, 3)
    deposited(leases, 1, 2)
    assert leases.collect([1, 2, 3]) == [Collect(0, 1), Collect(1, 2)]
    assert leases.collect([1, 2, 3]) == []  # both have been asked
    assert leases.collected(0) == [Collected(0, (1, 3))]
    assert leases.collected(1) == [Collected(1, (2,))]
    assert leases.collect([1, 2, 3]) == []
    assert leases.died(0, "SIGKILL") == [Start(2)]


def test_the_deposits_of_a_dead_worker_go_to_the_front_and_nobody_is_to_blame() -> None:
    leases = crew(1)
    submit(leases, 1, 2, 3, 4)
    deposited(leases, 0, 1, 2)
    assert leases.died(0, "SIGKILL") == [Repeat(0, 3, "SIGKILL"), Recall(0, (1, 2), "SIGKILL"), Start(1)]
    assert leases.ready(1) == [Send(1, 1)]
    for worker in (1, 2, 3):  # without a strike a task may be lost more than three times
        deposited(leases, worker, 1)
        assert leases.answered(worker, 2, deposited=True) == [Deliver(2), Send(worker, 3)]
        assert leases.answered(worker, 3, deposited=True) == [Deliver(3), Send(worker, 4)]
        assert leases.answered(worker, 4, deposited=True) == [Deliver(4)]
        assert leases.died(worker, "SIGKILL") == [Recall(worker, (1, 2, 3, 4), "SIGKILL"), Start(worker + 1)]
        assert leases.ready(worker + 1) == [Send(worker + 1, 1)]


def test_lost_deposits_go_to_workers_that_are_idle() -> None:
    leases = crew(2)
    submit(leases, 1, 2)
    deposited(leases, 0, 1)
    deposited(leases, 1, 2)
    assert leases.died(0, "SIGKILL") == [Recall(0, (1,), "SIGKILL"), Start(2), Send(1, 1)]
    deposited(leases, 1, 1)
    assert leases.collect([1, 2]) == [Collect(1, 2)]
    assert leases.collected(1) == [Collected(1, (2, 1))]


def test_a_deposit_that_is_heard_of_after_its_workers_death_does_not_count() -> None:
    leases = crew(2)
    submit(leases, 1)
    assert leases.died(0, "SIGKILL") == [Repeat(0, 1, "SIGKILL"), Start(2), Send(1, 1)]
    assert leases.answered(0, 1, deposited=True) == [Late(0, 1)]
    assert leases.answered(1, 1, deposited=True) == [Deliver(1)]
    assert leases.collect([1]) == [Collect(1, 1)]


def test_the_sums_of_a_dead_worker_do_not_count() -> None:
    leases = crew(2)
    submit(leases, 1, 2)
    deposited(leases, 0, 1)
    deposited(leases, 1, 2)
    assert leases.collect([1, 2]) == [Collect(0, 1), Collect(1, 2)]
    assert leases.died(0, "SIGKILL") == [Recall(0, (1,), "SIGKILL"), Start(2), Send(1, 1)]
    assert leases.collected(0) == []
    assert leases.collected(1) == [Collected(1, (2,))]  # sent before task 1 came
    deposited(leases, 1, 1)
    assert leases.collect([1, 2]) == [Collect(1, 1)]


def test_a_worker_is_asked_for_the_deposits_of_one_order_only() -> None:
    leases = crew(2)
    submit(leases, 1)
    submit(leases, 2)
    deposited(leases, 0, 1)
    deposited(leases, 1, 2)
    assert leases.collect([2]) == [Collect(1, 2)]


def test_cancelled_deposits_are_forgotten() -> None:
    leases = crew(1)
    submit(leases, 1, 2)
    deposited(leases, 0, 1)
    assert leases.cancelled([1, 2]) == [Cancel(0, 2)]
    assert leases.collect([1, 2]) == []
    assert leases.died(0, "SIGKILL") == [Start(1)]
    assert leases.ready(1) == []


def test_sums_that_come_after_their_order_was_cancelled_are_empty_to_us() -> None:
    leases = crew(1)
    submit(leases, 1)
    deposited(leases, 0, 1)
    assert leases.collect([1]) == [Collect(0, 1)]
    leases.cancelled([1])
    assert leases.collected(0) == [Collected(0, ())]


def test_three_deaths_in_a_row_over_giving_sums_away_end_the_run() -> None:
    leases, ended = crew(1), []
    submit(leases, 1)
    for worker in (0, 1, 2):
        deposited(leases, worker, 1)
        assert leases.collect([1]) == [Collect(worker, 1)]
        ended = leases.died(worker, "SIGKILL")
        leases.ready(worker + 1)
    reason = "3 workers in a row ended before they had given their sums away; the last: SIGKILL"
    assert ended == [Recall(2, (1,), "SIGKILL"), GiveUp(2, reason), Start(3)]


def test_a_worker_that_gives_its_sums_away_begins_the_count_of_such_deaths_anew() -> None:
    leases = crew(1)
    for worker in range(5):
        submit(leases, worker)
        deposited(leases, worker, worker)
        leases.collect([worker])
        if worker == 2:
            leases.collected(2)
        leases.cancelled([worker])
        assert leases.died(worker, "SIGKILL") == [Start(worker + 1)]
        leases.ready(worker + 1)


# --- too little memory ------------------------------------------------------------------------------------------------


def test_a_worker_that_lacked_memory_leaves_and_its_task_waits_until_it_has_ended() -> None:
    leases = crew(3)
    submit(leases, 1, 2, 3, 4)
    assert leases.lacked_memory(1, 2, "no room") == [Repeat(1, 2, "no room"), Retire(1, "no room")]
    assert leases.answered(0, 1) == [Deliver(1)]  # and gets nothing: the memory is not free yet
    assert leases.died(1, "SIGTERM") == [Send(0, 2)]  # before task 4, and without a Start
    assert leases.answered(2, 3) == [Deliver(3), Send(2, 4)]


def test_a_guest_that_is_not_ready_is_nobody_who_could_go_on_alone() -> None:
    leases = crew(1)
    submit(leases, 1)
    leases.joined("alice")
    assert leases.lacked_memory(0, 1, "no room") == [Repeat(0, 1, "no room"), Send(0, 1)]  # and a strike


def test_lacking_memory_is_no_strike() -> None:
    leases = crew(5)
    submit(leases, 1)
    for worker in range(4):
        assert leases.lacked_memory(worker, 1, "no room") == [Repeat(worker, 1, "no room"), Retire(worker, "no room")]
        assert leases.died(worker, "SIGTERM") == [Send(worker + 1, 1)]
    assert leases.answered(4, 1) == [Deliver(1)]


def test_the_last_worker_gets_strikes() -> None:
    leases = crew(2)
    submit(leases, 1, name="client 4, round 2, train")
    leases.lacked_memory(0, 1, "no room")
    leases.died(0, "SIGTERM")
    assert leases.lacked_memory(1, 1, "no room") == [Repeat(1, 1, "no room"), Send(1, 1)]
    assert leases.lacked_memory(1, 1, "no room") == [Repeat(1, 1, "no room"), Send(1, 1)]
    reason = "client 4, round 2, train: given up after 3 workers; the last: no room"
    assert leases.lacked_memory(1, 1, "no room") == [GiveUp(1, reason, 1)]


def test_of_all_that_lack_memory_at_once_one_leaves() -> None:
    leases = crew(4)
    submit(leases, 0, 1, 2, 3)
    assert leases.lacked_memory(2, 2, "no room") == [Repeat(2, 2, "no room"), Retire(2, "no room")]
    assert leases.lacked_memory(0, 0, "no room") == [Repeat(0, 0, "no room")]
    assert leases.died(2, "SIGTERM") == [Send(0, 0)]
    # Task 3 was handed out when there were four; task 0 when there were three.
    assert leases.lacked_memory(3, 3, "no room") == [Repeat(3, 3, "no room"), Send(3, 3)]
    assert leases.lacked_memory(0, 0, "no room") == [Repeat(0, 0, "no room"), Retire(0, "no room")]
    assert leases.lacked_memory(3, 3, "no room") == [Repeat(3, 3, "no room")]
    assert leases.died(0, "SIGTERM") == [Send(3, 3)]


def test_what_waits_in_the_hand_of_one_that_leaves_goes_back_with_its_deposits() -> None:
    leases = seasoned(2)
    assert submit(leases, *range(1, 9), flops=10.0) == [Send(0, 1), Send(1, 2), Send(0, 3), Send(1, 4)]
    assert leases.answered(0, 1, deposited=True) == [Deliver(1), Send(0, 5)]
    assert leases.lacked_memory(0, 3, "no room") == [Repeat(0, 3, "no room"), Retire(0, "no room")]
    assert leases.died(0, "SIGTERM") == [Recall(0, (1,), "SIGTERM"), Send(1, 1)]
    assert leases.answered(1, 2) == [Deliver(2), Send(1, 5)]
    assert leases.answered(1, 4) == [Deliver(4), Send(1, 3)]  # before 6, 7 and 8


def test_a_task_that_was_cancelled_meanwhile_is_not_repeated() -> None:
    leases = crew(2)
    submit(leases, 1)
    assert leases.cancelled([1]) == [Cancel(0, 1)]
    assert leases.lacked_memory(0, 1, "no room") == [Retire(0, "no room")]
    assert leases.died(0, "SIGTERM") == []
    assert leases.lacked_memory(0, 1, "no room") == [Late(0, 1)]


def test_another_death_while_one_leaves_is_replaced() -> None:
    leases = crew(3)
    submit(leases, 1)
    leases.lacked_memory(0, 1, "no room")
    assert leases.died(1, "SIGKILL") == [Start(3)]
    assert leases.ready(3) == []
    assert leases.died(0, "SIGTERM") == [Send(2, 1)]


# --- guests -----------------------------------------------------------------------------------------------------------


def test_a_guest_is_given_work_like_any_other() -> None:
    leases = crew(1)
    assert leases.joined("alice") == 1
    assert submit(leases, 1, 2) == [Send(0, 1)]
    assert leases.ready(1) == [Send(1, 2)]
    assert leases.answered(1, 2) == [Deliver(2)]


def test_nobody_is_started_for_a_guest_that_is_lost_and_its_task_gets_no_strike() -> None:
    leases = Leases(0)
    assert leases.begin() == submit(leases, 1) == []
    for guest in range(5):
        assert leases.joined("alice") == guest
        assert leases.ready(guest) == [Send(guest, 1)]
        assert leases.died(guest, "unreachable") == [Repeat(guest, 1, "unreachable")]
    for guest in range(5, 10):  # nor do guests that are lost before they are ready end the run
        assert leases.joined("alice") == guest
        assert leases.died(guest, "unreachable") == []


def test_what_a_lost_guest_had_in_hand_and_in_its_sums_goes_to_the_front() -> None:
    leases = seasoned(1)
    assert leases.joined("alice") == 1
    assert leases.ready(1) == []
    assert submit(leases, *range(1, 9), flops=10.0) == [Send(0, 1), Send(1, 2), Send(0, 3), Send(1, 4)]
    assert leases.answered(1, 2, deposited=True) == [Deliver(2), Send(1, 5)]
    assert leases.collect([2]) == [Collect(1, 2)]
    assert leases.died(1, "unreachable") == [
        Repeat(1, 4, "unreachable"),
        Repeat(1, 5, "unreachable"),
        Recall(1, (2,), "unreachable"),
        Send(0, 4),
    ]
    assert leases.collected(1) == []
    assert [leases.answered(0, sequence)[1:] for sequence in (1, 3)] == [[Send(0, 5)], [Send(0, 2)]]


def test_a_guest_that_lacks_memory_leaves_and_is_counted_out_once() -> None:
    leases = crew(1)
    leases.joined("alice")
    leases.ready(1)
    submit(leases, 1, 2)
    assert leases.lacked_memory(1, 2, "no room") == [Repeat(1, 2, "no room"), Retire(1, "no room")]
    assert leases.died(1, "sent away") == []
    assert leases.answered(0, 1) == [Deliver(1), Send(0, 2)]
    # The one that is left is the last: it stays.
    assert leases.lacked_memory(0, 2, "no room") == [Repeat(0, 2, "no room"), Send(0, 2)]
