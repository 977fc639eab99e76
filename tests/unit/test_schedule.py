"""The schedule: at most so many at once, retries outside the slots, and no failure lost."""

import threading
import time
from collections.abc import Callable

import pytest

from rollouts import schedule as schedule_module
from rollouts.schedule import Schedule, backoff_s


def run(work: Callable[[int, int], float | None], count: int, parallel: int) -> None:
    Schedule(work, parallel).run(range(count))


def test_everything_is_done_once_and_in_order() -> None:
    done: list[int] = []

    def work(item: int, attempt: int) -> float | None:
        done.append(item)
        return None

    run(work, 20, 1)
    assert done == list(range(20))


def test_nothing_to_do_is_done_at_once() -> None:
    run(lambda item, attempt: None, 0, 4)


@pytest.mark.parametrize("parallel", [1, 2, 5, 50])
def test_at_most_so_many_run_at_once_and_as_many_as_may(parallel: int) -> None:
    lock, running, most = threading.Lock(), 0, 0
    wanted = min(parallel, 8)
    all_in = threading.Barrier(wanted)

    def work(item: int, attempt: int) -> float | None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_in.wait(5)  # breaks unless that many are in at the same time
        with lock:
            running -= 1
        return None

    run(work, wanted * 2 if parallel < 8 else 8, parallel)
    assert most == wanted


def test_an_item_is_tried_again_as_long_as_it_wants() -> None:
    tries: list[tuple[int, int]] = []

    def work(item: int, attempt: int) -> float | None:
        tries.append((item, attempt))
        return 0.01 if item == 1 and attempt < 3 else None

    run(work, 3, 1)
    assert sorted(tries) == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]


def test_an_item_that_waits_for_its_retry_holds_no_slot() -> None:
    order: list[tuple[int, int]] = []

    def work(item: int, attempt: int) -> float | None:
        order.append((item, attempt))
        return 0.2 if item == 0 and attempt == 1 else None

    run(work, 4, 1)
    assert order == [(0, 1), (1, 1), (2, 1), (3, 1), (0, 2)]


def test_a_stopped_schedule_starts_nothing_new_and_waits_for_what_runs() -> None:
    done: list[int] = []

    def work(item: int, attempt: int) -> float | None:
        if item == 1:
            schedule.stop()
        time.sleep(0.005)
        done.append(item)
        return 0.01

    schedule: Schedule[int] = Schedule(work, 2)
    schedule.run(range(50))
    assert 1 in done
    assert len(done) <= 4


def test_a_schedule_stopped_before_it_runs_does_nothing() -> None:
    schedule: Schedule[int] = Schedule(lambda item, attempt: pytest.fail("started"), 2)
    schedule.stop()
    schedule.run(range(5))


@pytest.mark.parametrize("failure", [ValueError("boom"), KeyboardInterrupt()])
def test_what_the_work_raises_surfaces_and_stops_the_rest(failure: BaseException) -> None:
    started: list[int] = []

    def work(item: int, attempt: int) -> float | None:
        started.append(item)
        if item == 2:
            raise failure
        return None

    with pytest.raises(type(failure)) as caught:
        run(work, 1000, 1)
    assert caught.value is failure
    assert started == [0, 1, 2]


def test_waiting_grows_up_to_a_cap_and_is_never_the_same_for_all() -> None:
    waits = [[backoff_s(attempt) for _ in range(50)] for attempt in range(1, 12)]
    assert all(0.5 * 2 ** (n - 1) <= wait <= 2 ** (n - 1) for n, group in enumerate(waits[:6], 1) for wait in group)
    assert max(waits[-1]) <= schedule_module.BACKOFF_CAP_S
    assert all(len(set(group)) > 10 for group in waits)
