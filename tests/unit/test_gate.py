"""The way to one provider: who waits, who goes ahead, and who comes back when. By a clock of the test's own."""

import threading

import pytest

from rollouts.gate import Gate, Question, TooBusy, gate_of


class Clock(threading.Event):
    """Time that passes only by waiting; also the stop that never comes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> Gate:
    return Gate("provider", clock=clock)


def test_nobody_waits_while_all_is_well(gate: Gate, clock: Clock) -> None:
    with gate.question(clock) as question:
        question.wait()
        question.answered()
        question.wait()
    assert clock.now == 0.0


def test_a_refusal_holds_all_others_as_long_as_the_provider_asked(gate: Gate, clock: Clock) -> None:
    with gate.question(clock) as refused, gate.question(clock) as other:
        refused.wait()
        refused.refused(7.0)
        other.wait()
        assert 7.0 <= clock.now < 7.1


def test_the_longest_wait_counts(gate: Gate, clock: Clock) -> None:
    with gate.question(clock) as one, gate.question(clock) as other:
        one.refused(7.0)
        other.refused(3.0)
        other.wait()
        assert 7.0 <= clock.now < 7.1


def test_one_question_goes_ahead_and_the_others_wait_for_its_answer(gate: Gate, clock: Clock) -> None:
    with gate.question(clock) as ahead, gate.question(clock) as other:
        ahead.refused(1.0)
        ahead.wait()
        assert not gate._may_pass(other)
        ahead.answered()
        other.wait()


def test_who_goes_ahead_and_is_refused_lets_another_try(gate: Gate, clock: Clock) -> None:
    with gate.question(clock) as ahead, gate.question(clock) as other:
        ahead.refused(1.0)
        ahead.wait()
        ahead.refused(2.0)
        other.wait()
        assert 3.0 <= clock.now < 3.2


def test_who_goes_ahead_and_fails_otherwise_may_try_again_until_it_gives_up(gate: Gate, clock: Clock) -> None:
    with gate.question(clock) as other:
        with gate.question(clock) as ahead:
            ahead.refused(1.0)
            ahead.wait()
            ahead.wait()
            assert not gate._may_pass(other)
        assert gate._may_pass(other)


def test_an_old_answer_does_not_end_a_wait(gate: Gate, clock: Clock) -> None:
    with gate.question(clock) as slow, gate.question(clock) as refused:
        slow.wait()
        refused.refused(5.0)
        slow.answered()
        assert not gate._may_pass(slow)


def test_those_who_waited_come_back_at_moments_of_their_own(gate: Gate, clock: Clock) -> None:
    waiting = [gate.question(clock) for _ in range(16)]
    questions = [context.__enter__() for context in waiting]
    questions[0].refused(1.0)
    for question in questions[1:]:
        question._waited = True
    questions[0].wait()
    questions[0].answered()
    reopened_at = clock.now
    moments: list[tuple[float, Question]] = []
    while left := [question for question in questions[1:] if question not in [who for _, who in moments]]:
        moments += [(clock.now, question) for question in left if gate._may_pass(question)]
        clock.wait(0.01)
    times = [moment for moment, _ in moments]
    assert len({round(moment, 1) for moment in times}) > 4
    assert max(times) <= reopened_at + 16 * 0.1 + 0.02


def test_a_provider_that_never_has_time_is_given_up(gate: Gate, clock: Clock) -> None:
    with gate.question(clock) as question, gate.question(clock) as other:
        question.refused(60.0)
        for _ in range(4):
            question.wait()
            question.refused(60.0)
        with pytest.raises(TooBusy, match="provider asks to wait for more than 300 s"):
            other.wait()


def test_a_stop_ends_a_wait_at_once(gate: Gate, clock: Clock) -> None:
    with gate.question(clock) as question:
        question.refused(60.0)
        clock.set()
        question.wait()
    assert clock.now < 1.0


def test_a_wait_is_told_once_with_how_many_it_holds(gate: Gate, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with gate.question(clock) as one, gate.question(clock) as two:
        one.refused(6.2)
        two.refused(6.2)
        one.wait()
        one.refused(6.2)
        assert caplog.messages == ["provider asks to wait 7 s; 2 questions on hold"]
        one.wait()
        one.answered()
        one.refused(1.0)
        assert len(caplog.messages) == 2


def test_a_provider_has_one_gate() -> None:
    assert gate_of("127.0.0.1:9") is gate_of("127.0.0.1:9")
    assert gate_of("127.0.0.1:9") is not gate_of("127.0.0.1:10")
