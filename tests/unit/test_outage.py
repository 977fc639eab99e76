"""An engine that is away: all wait together, are told once, and give up together."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollouts import outage as outage_module
from rollouts.errors import BackendUnavailable, ExitCode, JobCancelled
from rollouts.outage import Outage


class Engine:
    """Answers as scripted; the last answer stays."""

    name = "docker"

    def __init__(self, *answers: bool) -> None:
        self._answers: Iterator[bool] = iter(answers)
        self._last = answers[-1]
        self._lock = threading.Lock()
        self.cancelled = threading.Event()

    def is_answering(self) -> bool:
        with self._lock:
            return next(self._answers, self._last)


def outage(engine: Engine) -> tuple[Outage, list[str]]:
    said: list[str] = []
    return Outage(engine, said.append), said  # type: ignore[arg-type] # a fake


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage_module, "ASK_EVERY_S", 0.001)


def test_an_engine_that_answers_was_not_away() -> None:
    waiting, said = outage(Engine(True))
    assert waiting.wait() is False
    assert said == []


def test_one_that_comes_back_was_away_and_that_is_told() -> None:
    waiting, said = outage(Engine(False, False, False, False, True))
    assert waiting.wait() is True
    assert said[0] == "docker does not answer; waiting up to 300 s for it"
    assert said[1].startswith("docker answers again after ")
    assert len(said) == 2


def test_many_who_wait_are_told_once() -> None:
    engine = Engine(*[False] * 60, True)
    waiting, said = outage(engine)
    with ThreadPoolExecutor(8) as pool:
        waited = list(pool.map(lambda _: waiting.wait(), range(8)))
    assert any(waited)
    assert len([line for line in said if "does not answer" in line]) == 1


def test_one_that_stays_away_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage_module, "OUTAGE_LIMIT_S", 0.02)
    waiting, _ = outage(Engine(False))
    with pytest.raises(BackendUnavailable, match="resume") as caught:
        waiting.wait()
    assert caught.value.exit_code is ExitCode.BACKEND_UNAVAILABLE


def test_nobody_waits_once_all_must_end() -> None:
    engine = Engine(False)
    engine.cancelled.set()
    waiting, said = outage(engine)
    with pytest.raises(JobCancelled):
        waiting.wait()
    assert said == []
