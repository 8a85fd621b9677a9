"""The state machine that hands out tasks, told as stories of events and instructions."""

from coordinator.workers.assignment import MAX_PREFETCH
from coordinator.workers.instructions import (
    Abort,
    CancelTask,
    DeliverPartial,
    DeliverReply,
    DropReply,
    Instruction,
    InvalidatePartial,
    ReplaceWorker,
    RequestPartial,
    Requeue,
    RetireWorker,
    SendTask,
    StartWorker,
)
from coordinator.workers.scheduler import TaskScheduler


class OneReplyScheduler(TaskScheduler):
    """With an event for one reply."""

    def answered(self, worker: int, sequence: int, seconds: float = 0.0, in_partial: bool = False) -> list[Instruction]:
        """The reply's verdict, and what follows."""
        verdicts, more = self.answered_all(worker, [(sequence, seconds, in_partial)])
        return [*verdicts, *more]


def registry(workers: int) -> OneReplyScheduler:
    """scheduler whose workers are all ready."""
    scheduler = OneReplyScheduler(workers)
    assert scheduler.begin() == [StartWorker(worker) for worker in range(workers)]
    for worker in range(workers):
        assert scheduler.ready(worker) == []
    return scheduler


def submit(scheduler: TaskScheduler, *sequences: int, name: str = "task", flops: float = 0.0) -> list[Instruction]:
    """New tasks, submitted at once."""
    return scheduler.submitted([(sequence, name, flops) for sequence in sequences])


def seasoned(workers: int, seconds: float = 0.04) -> OneReplyScheduler:
    """scheduler that have seen one task of 100 FLOPs, number 0, which took so long."""
    scheduler = registry(workers)
    submit(scheduler, 0, flops=100.0)
    assert scheduler.answered(0, 0, seconds) == [DeliverReply(0)]
    return scheduler


def test_tasks_of_unknown_length_go_out_one_at_a_time_in_submission_order() -> None:
    scheduler = registry(2)
    assert submit(scheduler, 1) == [SendTask(0, 1)]
    assert submit(scheduler, 2) == [SendTask(1, 2)]
    assert submit(scheduler, 3) == []
    assert submit(scheduler, 4) == []
    assert scheduler.answered(1, 2) == [DeliverReply(2), SendTask(1, 3)]
    assert scheduler.answered(0, 1) == [DeliverReply(1), SendTask(0, 4)]


def test_a_dead_workers_task_goes_to_the_front_and_the_worker_is_replaced() -> None:
    scheduler = registry(2)
    for sequence in (1, 2, 3):
        submit(scheduler, sequence)
    assert scheduler.died(0, "SIGKILL") == [Requeue(0, 1, "SIGKILL"), StartWorker(2)]
    assert scheduler.answered(1, 2) == [DeliverReply(2), SendTask(1, 1)]  # before task 3
    assert scheduler.ready(2) == [SendTask(2, 3)]


def test_a_late_reply_counts_once_and_takes_the_task_off_the_queue_if_it_was_ever_in_that_hand() -> None:
    scheduler = registry(2)
    submit(scheduler, 1)
    assert scheduler.died(0, "SIGKILL") == [Requeue(0, 1, "SIGKILL"), StartWorker(2), SendTask(1, 1)]
    assert scheduler.answered(0, 1) == [DeliverReply(1), CancelTask(1, 1)]
    assert submit(scheduler, 2) == []  # worker 1 still works on task 1
    assert scheduler.dropped(1, 1) == [SendTask(1, 2)]
    scheduler = registry(1)
    submit(scheduler, 1)
    scheduler.died(0, "SIGKILL")
    assert scheduler.answered(0, 1) == [DeliverReply(1)]
    assert scheduler.ready(1) == []
    scheduler = registry(2)
    submit(scheduler, 1)
    assert scheduler.answered(1, 1) == [DropReply(1, 1)]
    assert scheduler.answered(1, 99) == [DropReply(1, 99)]


def test_a_task_that_failed_waits_for_a_worker_that_has_not_tried_it_and_is_then_tried_again_anywhere() -> None:
    scheduler = registry(1)
    submit(scheduler, 1)
    assert scheduler.failed(0, 1, "MemoryError") == [Requeue(0, 1, "MemoryError"), SendTask(0, 1)]
    assert scheduler.answered(0, 1) == [DeliverReply(1)]
    scheduler = registry(2)
    for sequence in (1, 2, 3):
        submit(scheduler, sequence)
    assert scheduler.failed(0, 1, "no") == [Requeue(0, 1, "no"), SendTask(0, 3)]  # the next one instead
    assert scheduler.answered(0, 3) == [DeliverReply(3)]
    assert scheduler.answered(1, 2) == [DeliverReply(2), SendTask(1, 1)]
    scheduler = registry(2)
    submit(scheduler, 1, name="client 4, round 2, train")
    assert scheduler.failed(0, 1, "no") == [Requeue(0, 1, "no"), SendTask(1, 1)]
    assert scheduler.failed(1, 1, "no") == [Requeue(1, 1, "no"), SendTask(0, 1)]
    gone = "client 4, round 2, train: given up after 3 workers; the last: no"
    assert scheduler.failed(0, 1, "no") == [Abort(0, gone, 1)]


def test_a_task_that_failed_waits_for_replacements_in_another_place_but_for_no_remote_worker() -> None:
    scheduler = registry(2)
    submit(scheduler, 1)
    submit(scheduler, 2)
    assert scheduler.failed(0, 1, "no") == [Requeue(0, 1, "no")]
    assert scheduler.died(1, "SIGKILL") == [Requeue(1, 2, "SIGKILL"), StartWorker(2), SendTask(0, 2)]
    assert scheduler.answered(0, 2) == [DeliverReply(2)]  # worker 2 will be ready soon
    assert scheduler.ready(2) == [SendTask(2, 1)]
    scheduler = registry(2)
    submit(scheduler, 1)
    submit(scheduler, 2)
    assert scheduler.failed(0, 1, "no") == [Requeue(0, 1, "no")]
    assert scheduler.died(0, "SIGKILL") == [StartWorker(2)]
    assert scheduler.ready(2) == []  # it has the same GPU
    assert scheduler.answered(1, 2) == [DeliverReply(2), SendTask(1, 1)]
    scheduler = registry(1)
    submit(scheduler, 1)
    assert scheduler.joined("alice") == 1
    assert scheduler.failed(0, 1, "no") == [Requeue(0, 1, "no"), SendTask(0, 1)]


def test_who_fails_over_three_tasks_in_a_row_is_dismissed_unless_a_success_came_in_between() -> None:
    scheduler = registry(2)
    for sequence in range(1, 7):
        submit(scheduler, sequence)
    assert scheduler.failed(0, 1, "no") == [Requeue(0, 1, "no"), SendTask(0, 3)]
    assert scheduler.failed(0, 3, "no") == [Requeue(0, 3, "no"), SendTask(0, 4)]
    why = "it failed over 3 tasks in a row; the last: no"
    assert scheduler.failed(0, 4, "no") == [Requeue(0, 4, "no"), ReplaceWorker(0, why)]
    assert scheduler.died(0, "SIGTERM") == [StartWorker(2)]  # nothing was in its hand, so nothing is to blame
    assert scheduler.ready(2) == [SendTask(2, 5)]
    assert scheduler.answered(1, 2) == [DeliverReply(2), SendTask(1, 4)]
    scheduler = registry(2)
    for sequence in range(1, 7):
        submit(scheduler, sequence)
    scheduler.failed(0, 1, "no")
    scheduler.failed(0, 3, "no")
    assert scheduler.answered(0, 4) == [DeliverReply(4), SendTask(0, 5)]
    assert scheduler.failed(0, 5, "no") == [Requeue(0, 5, "no"), SendTask(0, 6)]


def test_a_task_that_ends_three_workers_is_named() -> None:
    scheduler = registry(1)
    submit(scheduler, 1, name="client 4, round 2, train")
    scheduler.died(0, "worker 0 was ended by SIGKILL")
    scheduler.ready(1)
    scheduler.failed(1, 1, "worker 1: ValueError: no")
    assert scheduler.died(1, "worker 1 was ended by SIGSEGV") == [
        Abort(1, "client 4, round 2, train: given up after 3 workers; the last: worker 1 was ended by SIGSEGV", 1),
        StartWorker(2),
    ]


def test_three_deaths_in_a_row_before_ready_end_the_run() -> None:
    scheduler = TaskScheduler(2)
    scheduler.begin()
    assert scheduler.died(0, "exit code 1") == [StartWorker(2)]
    assert scheduler.died(1, "exit code 1") == [StartWorker(3)]
    assert scheduler.ready(2) == []  # one that works: counting starts again
    assert scheduler.died(3, "exit code 1") == [StartWorker(4)]
    assert scheduler.died(4, "exit code 1") == [StartWorker(5)]
    assert scheduler.died(5, "exit code 9") == [
        Abort(5, "3 workers in a row ended before they were ready; the last: exit code 9")
    ]


def test_a_hand_is_filled_up_to_a_fifth_of_a_second_and_refilled() -> None:
    scheduler = seasoned(1)  # 40 ms a task: five in hand, one of them in progress
    assert submit(scheduler, *range(1, 21), flops=100.0) == [SendTask(0, n) for n in (1, 2, 3, 4, 5)]
    assert scheduler.answered(0, 1, 0.04) == [DeliverReply(1), SendTask(0, 6)]
    assert scheduler.answered(0, 2, 0.04) == [DeliverReply(2), SendTask(0, 7)]


def test_the_pace_is_that_of_all_replies_so_far_and_who_has_no_known_length_is_alone_in_a_hand() -> None:
    scheduler = registry(1)
    assert submit(scheduler, *range(1, 21), flops=100.0) == [SendTask(0, 1)]
    assert scheduler.answered(0, 1, 0.04) == [DeliverReply(1), *(SendTask(0, n) for n in (2, 3, 4, 5, 6))]
    scheduler = seasoned(1)
    submit(scheduler, 1, flops=300.0)
    scheduler.answered(0, 1, 0.28)  # 400 FLOPs in 0.32 s: 80 ms a task, so that two fit
    assert submit(scheduler, *range(2, 22), flops=100.0) == [SendTask(0, 2), SendTask(0, 3)]
    scheduler = seasoned(1)
    submit(scheduler, 1)
    assert submit(scheduler, *range(2, 22), flops=100.0) == []
    assert scheduler.answered(0, 1) == [DeliverReply(1), *(SendTask(0, n) for n in (2, 3, 4, 5, 6))]
    submit(scheduler, 22)


def test_long_tasks_go_out_one_at_a_time_and_a_hand_of_very_short_ones_has_an_end() -> None:
    scheduler = seasoned(2, seconds=0.12)  # two of them are longer than a hand may be
    assert submit(scheduler, *range(1, 21), flops=100.0) == [SendTask(0, 1), SendTask(1, 2)]
    scheduler = seasoned(1, seconds=1e-9)
    assert MAX_PREFETCH == 256
    assert submit(scheduler, *range(1, 1001), flops=100.0) == [SendTask(0, n) for n in range(1, 257)]


def test_a_node_agent_gets_as_many_tasks_as_it_has_workers_and_a_hand_for_each_of_them() -> None:
    scheduler = seasoned(1, seconds=0.08)  # two fit into a hand
    agent = scheduler.joined("alice", 3)
    scheduler.ready(agent)
    assert submit(scheduler, 1, 2, 3) == [SendTask(0, 1), SendTask(agent, 2), SendTask(agent, 3)]
    assert submit(scheduler, 4) == [SendTask(agent, 4)]
    queued = submit(scheduler, *range(5, 45))
    assert queued == []  # no hand is filled with work of unknown length
    assert scheduler.answered(agent, 3) == [DeliverReply(3), SendTask(agent, 5)]
    sent = scheduler.answered_all(agent, [(n, 0.1, False) for n in (2, 4, 5)])
    assert sent == ([DeliverReply(2), DeliverReply(4), DeliverReply(5)], [SendTask(agent, n) for n in (6, 7, 8)])
    assert scheduler.died(agent, "gone") == [Requeue(agent, n, "gone") for n in (6, 7, 8)]
    assert scheduler.answered(0, 1) == [DeliverReply(1), SendTask(0, 6)]


def test_fewer_and_fewer_tasks_wait_in_hands_as_the_queue_empties() -> None:
    scheduler = seasoned(2, seconds=0.001)
    sent = submit(scheduler, *range(1, 25), flops=100.0)
    hands: dict[int, list[int]] = {0: [], 1: []}
    waiting = []
    while True:
        for instruction in sent:
            if isinstance(instruction, SendTask):
                hands[instruction.worker].append(instruction.sequence)
        queued = 24 - max(hands[0] + hands[1])
        waiting.append((queued, len(hands[0]) - 1, len(hands[1]) - 1))
        if not queued:
            break
        busier = max(hands, key=lambda worker: len(hands[worker]))
        sent = scheduler.answered(busier, hands[busier].pop(0), 0.001)
    assert waiting[0] == (15, 4, 3)  # 4: before the last of them 19 were queued, 19 // 4; 3: 16 // 4, and 15 are left
    assert all(first <= left // 4 + 1 and second <= left // 4 + 1 for left, first, second in waiting)
    assert waiting[-1] == (0, 0, 0)


def test_a_death_with_several_tasks_in_hand_strikes_none_and_each_is_then_alone_in_a_hand() -> None:
    """Replies to the first of them may have been under way, so the one in progress is not known: here it is task 3."""
    scheduler = seasoned(1)
    assert submit(scheduler, *range(1, 21), flops=100.0) == [SendTask(0, n) for n in (1, 2, 3, 4, 5)]
    scheduler.answered(0, 1, 0.04)
    assert scheduler.died(0, "SIGKILL") == [Requeue(0, 2, "SIGKILL"), StartWorker(1)]
    assert scheduler.ready(1) == [SendTask(1, 2)]
    assert scheduler.answered(1, 2, 0.04) == [DeliverReply(2), SendTask(1, 3)]
    for worker in (1, 2):
        assert scheduler.died(worker, "SIGKILL") == [Requeue(worker, 3, "SIGKILL"), StartWorker(worker + 1)]
        assert scheduler.ready(worker + 1) == [SendTask(worker + 1, 3)]
    gone = "task: given up after 3 workers; the last: SIGKILL"
    assert scheduler.died(3, "SIGKILL") == [Abort(3, gone, 3), StartWorker(4)]
    assert scheduler.ready(4) == [SendTask(4, 4)]
    for number in (4, 5):
        assert scheduler.answered(4, number, 0.04) == [DeliverReply(number), SendTask(4, number + 1)]
    # what was not in that hand comes in hands again
    assert scheduler.answered(4, 6, 0.04) == [DeliverReply(6), *(SendTask(4, n) for n in (7, 8, 9, 10, 11))]


def test_cancelled_tasks_are_neither_repeated_nor_delivered() -> None:
    scheduler = registry(3)
    submit(scheduler, 1, 2, 3, 4)
    assert scheduler.cancelled([1, 2, 3, 4]) == [CancelTask(0, 1), CancelTask(1, 2), CancelTask(2, 3)]
    assert submit(scheduler, 5) == []  # all are still busy
    assert scheduler.answered(0, 1) == [DropReply(0, 1), SendTask(0, 5)]  # its reply crossed the cancel
    assert scheduler.dropped(0, 1) == []  # its pong, too, and task 5 stays in its hand
    assert scheduler.died(1, "SIGKILL") == [StartWorker(3)]
    assert scheduler.dropped(2, 3) == []
    assert submit(scheduler, 6) == [SendTask(2, 6)]
    assert scheduler.answered(0, 5) == [DeliverReply(5)]


# --- updates that workers have added up -------------------------------------------------------------------------------


def deposited(scheduler: OneReplyScheduler, worker: int, *sequences: int) -> None:
    """These tasks, which are in this worker's hand one after another, are answered as deposits."""
    for sequence in sequences:
        assert scheduler.answered(worker, sequence, in_partial=True)[0] == DeliverReply(sequence)


def test_deposits_are_over_when_their_worker_has_given_its_sums_away() -> None:
    scheduler = registry(2)
    submit(scheduler, 1, 2, 3)
    deposited(scheduler, 0, 1, 3)
    deposited(scheduler, 1, 2)
    assert scheduler.collect([1, 2, 3]) == [RequestPartial(0, 1), RequestPartial(1, 2)]
    assert scheduler.collect([1, 2, 3]) == []  # both have been asked
    assert scheduler.collected(0) == [DeliverPartial(0, (1, 3))]
    assert scheduler.collected(1) == [DeliverPartial(1, (2,))]
    assert scheduler.collect([1, 2, 3]) == []
    assert scheduler.died(0, "SIGKILL") == [StartWorker(2)]


def test_the_deposits_of_a_dead_worker_go_to_the_front_and_nobody_is_to_blame() -> None:
    scheduler = registry(1)
    submit(scheduler, 1, 2, 3, 4)
    deposited(scheduler, 0, 1, 2)
    assert scheduler.died(0, "SIGKILL") == [
        Requeue(0, 3, "SIGKILL"),
        InvalidatePartial(0, (1, 2), "SIGKILL"),
        StartWorker(1),
    ]
    assert scheduler.ready(1) == [SendTask(1, 1)]
    for worker in (1, 2, 3):  # without a strike a task may be lost more than three times
        deposited(scheduler, worker, 1)
        assert scheduler.answered(worker, 2, in_partial=True) == [DeliverReply(2), SendTask(worker, 3)]
        assert scheduler.answered(worker, 3, in_partial=True) == [DeliverReply(3), SendTask(worker, 4)]
        assert scheduler.answered(worker, 4, in_partial=True) == [DeliverReply(4)]
        assert scheduler.died(worker, "SIGKILL") == [
            InvalidatePartial(worker, (1, 2, 3, 4), "SIGKILL"),
            StartWorker(worker + 1),
        ]
        assert scheduler.ready(worker + 1) == [SendTask(worker + 1, 1)]


def test_lost_deposits_go_to_workers_that_are_idle_and_nothing_of_a_dead_worker_counts() -> None:
    scheduler = registry(2)
    submit(scheduler, 1, 2)
    deposited(scheduler, 0, 1)
    deposited(scheduler, 1, 2)
    assert scheduler.died(0, "SIGKILL") == [InvalidatePartial(0, (1,), "SIGKILL"), StartWorker(2), SendTask(1, 1)]
    deposited(scheduler, 1, 1)
    assert scheduler.collect([1, 2]) == [RequestPartial(1, 2)]
    assert scheduler.collected(1) == [DeliverPartial(1, (2, 1))]
    scheduler = registry(2)
    submit(scheduler, 1)
    assert scheduler.died(0, "SIGKILL") == [Requeue(0, 1, "SIGKILL"), StartWorker(2), SendTask(1, 1)]
    assert scheduler.answered(0, 1, in_partial=True) == [DropReply(0, 1)]
    assert scheduler.answered(1, 1, in_partial=True) == [DeliverReply(1)]
    assert scheduler.collect([1]) == [RequestPartial(1, 1)]
    scheduler = registry(2)
    submit(scheduler, 1, 2)
    deposited(scheduler, 0, 1)
    deposited(scheduler, 1, 2)
    assert scheduler.collect([1, 2]) == [RequestPartial(0, 1), RequestPartial(1, 2)]
    assert scheduler.died(0, "SIGKILL") == [InvalidatePartial(0, (1,), "SIGKILL"), StartWorker(2), SendTask(1, 1)]
    assert scheduler.collected(0) == []
    assert scheduler.collected(1) == [DeliverPartial(1, (2,))]  # sent before task 1 came
    deposited(scheduler, 1, 1)
    assert scheduler.collect([1, 2]) == [RequestPartial(1, 1)]


def test_cancelled_deposits_are_forgotten_and_a_worker_is_asked_for_those_of_one_order_only() -> None:
    scheduler = registry(1)
    submit(scheduler, 1, 2)
    deposited(scheduler, 0, 1)
    assert scheduler.cancelled([1, 2]) == [CancelTask(0, 2)]
    assert scheduler.collect([1, 2]) == []
    assert scheduler.died(0, "SIGKILL") == [StartWorker(1)]
    assert scheduler.ready(1) == []
    scheduler = registry(1)
    submit(scheduler, 1)
    deposited(scheduler, 0, 1)
    assert scheduler.collect([1]) == [RequestPartial(0, 1)]
    scheduler.cancelled([1])
    assert scheduler.collected(0) == [DeliverPartial(0, ())]
    scheduler = registry(2)
    submit(scheduler, 1)
    submit(scheduler, 2)
    deposited(scheduler, 0, 1)
    deposited(scheduler, 1, 2)
    assert scheduler.collect([2]) == [RequestPartial(1, 2)]


def test_three_deaths_in_a_row_over_giving_sums_away_end_the_run() -> None:
    scheduler, ended = registry(1), []
    submit(scheduler, 1)
    for worker in (0, 1, 2):
        deposited(scheduler, worker, 1)
        assert scheduler.collect([1]) == [RequestPartial(worker, 1)]
        ended = scheduler.died(worker, "SIGKILL")
        scheduler.ready(worker + 1)
    reason = "3 workers in a row ended before they had sent their sums; the last: SIGKILL"
    assert ended == [InvalidatePartial(2, (1,), "SIGKILL"), Abort(2, reason), StartWorker(3)]


# --- too little memory ------------------------------------------------------------------------------------------------


def test_a_worker_that_lacked_memory_leaves_and_its_task_waits_until_it_has_ended() -> None:
    scheduler = registry(3)
    submit(scheduler, 1, 2, 3, 4)
    assert scheduler.lacked_memory(1, 2, "no room") == [Requeue(1, 2, "no room"), RetireWorker(1, "no room")]
    assert scheduler.answered(0, 1) == [DeliverReply(1)]  # and gets nothing: the memory is not free yet
    assert scheduler.died(1, "SIGTERM") == [SendTask(0, 2)]  # before task 4, and without a Start
    assert scheduler.answered(2, 3) == [DeliverReply(3), SendTask(2, 4)]


def test_lacking_memory_is_a_strike_for_the_last_worker_that_is_ready_alone() -> None:
    scheduler = registry(5)
    submit(scheduler, 1, name="client 4, round 2, train")
    assert scheduler.joined("alice") == 5  # not ready: nobody who could go on alone
    for worker in range(4):
        repeat = Requeue(worker, 1, "no room")
        assert scheduler.lacked_memory(worker, 1, "no room") == [repeat, RetireWorker(worker, "no room")]
        assert scheduler.died(worker, "SIGTERM") == [SendTask(worker + 1, 1)]
    for _ in range(2):
        assert scheduler.lacked_memory(4, 1, "no room") == [Requeue(4, 1, "no room"), SendTask(4, 1)]
    reason = "client 4, round 2, train: given up after 3 workers; the last: no room"
    assert scheduler.lacked_memory(4, 1, "no room") == [Abort(4, reason, 1)]


def test_of_all_that_lack_memory_at_once_one_leaves() -> None:
    scheduler = registry(4)
    submit(scheduler, 0, 1, 2, 3)
    assert scheduler.lacked_memory(2, 2, "no room") == [Requeue(2, 2, "no room"), RetireWorker(2, "no room")]
    assert scheduler.lacked_memory(0, 0, "no room") == [Requeue(0, 0, "no room")]
    assert scheduler.died(2, "SIGTERM") == [SendTask(0, 0)]
    # Task 3 was handed out when there were four; task 0 when there were three.
    assert scheduler.lacked_memory(3, 3, "no room") == [Requeue(3, 3, "no room"), SendTask(3, 3)]
    assert scheduler.lacked_memory(0, 0, "no room") == [Requeue(0, 0, "no room"), RetireWorker(0, "no room")]
    assert scheduler.lacked_memory(3, 3, "no room") == [Requeue(3, 3, "no room")]
    assert scheduler.died(0, "SIGTERM") == [SendTask(3, 3)]


# --- remote workers ---------------------------------------------------------------------------------------------------


def test_nobody_is_started_for_a_remote_worker_that_is_lost_and_its_task_gets_no_strike() -> None:
    scheduler = TaskScheduler(0)
    assert scheduler.begin() == submit(scheduler, 1) == []
    for remote_worker in range(5):
        assert scheduler.joined("alice") == remote_worker
        assert scheduler.ready(remote_worker) == [SendTask(remote_worker, 1)]
        assert scheduler.died(remote_worker, "unreachable") == [Requeue(remote_worker, 1, "unreachable")]
    for remote_worker in range(5, 10):  # nor do remote workers that are lost before they are ready end the run
        assert scheduler.joined("alice") == remote_worker
        assert scheduler.died(remote_worker, "unreachable") == []


def test_what_a_lost_remote_worker_had_in_hand_and_in_its_sums_goes_to_the_front() -> None:
    scheduler = seasoned(1)
    assert scheduler.joined("alice") == 1
    assert scheduler.ready(1) == []
    assert submit(scheduler, *range(1, 9), flops=10.0) == [SendTask(n % 2, n + 1) for n in range(4)]
    assert scheduler.answered(1, 2, in_partial=True) == [DeliverReply(2), SendTask(1, 5)]
    assert scheduler.collect([2]) == [RequestPartial(1, 2)]
    assert scheduler.died(1, "unreachable") == [
        Requeue(1, 4, "unreachable"),
        Requeue(1, 5, "unreachable"),
        InvalidatePartial(1, (2,), "unreachable"),
        SendTask(0, 4),
    ]
    assert scheduler.collected(1) == []
    assert [scheduler.answered(0, sequence)[1:] for sequence in (1, 3)] == [[SendTask(0, 5)], [SendTask(0, 2)]]


def test_each_task_that_a_node_agent_runs_has_a_term_and_those_that_wait_there_have_none() -> None:
    scheduler = seasoned(1, seconds=1e-4)
    agent = scheduler.joined("alice", 3)
    scheduler.ready(agent)
    submit(scheduler, *range(1, 41), flops=100.0)
    assigned = [n for n in range(1, 41) if scheduler.is_assigned(agent, n)]
    assert len(assigned) > 3
    assert scheduler.terms(agent) == dict.fromkeys(assigned[:3], 180.0)
    scheduler.answered(agent, assigned[1], 1e-4)
    assert list(scheduler.terms(agent)) == [assigned[0], assigned[2], assigned[3]]


def test_a_node_agent_whose_workers_retire_gets_fewer_tasks_at_a_time() -> None:
    scheduler = registry(1)
    agent, slow = scheduler.joined("alice", 4), scheduler.joined("bob", 4)
    scheduler.shrank(slow, 2)
    scheduler.ready(agent)
    assert scheduler.workers == 5
    submit(scheduler, *range(1, 11))
    scheduler.shrank(agent, 2)
    assert (scheduler.workers, scheduler.capacity(agent)) == (3, 2)
    assert [len(scheduler.answered(agent, n)) - 1 for n in (2, 3, 4, 5)] == [0, 0, 1, 1]
    assert scheduler.ready(slow) == [SendTask(slow, 8), SendTask(slow, 9)]
    assert scheduler.workers == 5
    scheduler.died(agent, "gone")
    scheduler.died(slow, "gone")
    assert scheduler.workers == 1


def test_tasks_go_to_the_worker_that_has_what_they_need_unless_another_would_be_idle() -> None:
    scheduler = registry(2)
    tasks = [(sequence, "task", 0.0) for sequence in range(1, 6)]
    assert scheduler.submitted(tasks, {1: 1, 2: 0, 3: 1, 5: 7}) == [SendTask(0, 2), SendTask(1, 1)]
    assert scheduler.answered(0, 2) == [DeliverReply(2), SendTask(0, 4)]
    assert scheduler.answered(0, 4) == [DeliverReply(4), SendTask(0, 5)]  # worker 7 is lost
    assert scheduler.answered(0, 5) == [DeliverReply(5), SendTask(0, 3)]


def test_one_worker_does_the_tasks_that_belong_together_until_it_fails_one_or_dies() -> None:
    scheduler = registry(2)
    tasks = [(sequence, "task", 0.0) for sequence in range(1, 6)]
    together = dict.fromkeys((1, 2, 3, 4), b"order")
    assert scheduler.submitted(tasks, None, together) == [SendTask(0, 1), SendTask(1, 5)]
    assert scheduler.answered(1, 5) == [DeliverReply(5)]  # it stays idle
    assert scheduler.answered(0, 1) == [DeliverReply(1), SendTask(0, 2)]
    assert scheduler.died(0, "gone") == [Requeue(0, 2, "gone"), StartWorker(2), SendTask(1, 2)]
    assert scheduler.ready(2) == []
    assert scheduler.failed(1, 2, "broken") == [Requeue(1, 2, "broken"), SendTask(1, 3), SendTask(2, 2)]
