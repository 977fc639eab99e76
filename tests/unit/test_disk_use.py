"""Looking at what boxes have written: never in the way of those who ask, and not too often."""

import threading
from collections.abc import Mapping

import pytest

from rollouts.backends import disk_use
from rollouts.backends.disk_use import DiskUse
from tests.boxes import wait_until


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_use, "LOOK_EVERY_S", 0.0)


def test_who_asks_never_waits_and_hears_of_the_last_look() -> None:
    looking, go_on = threading.Event(), threading.Event()

    def measure() -> Mapping[str, int]:
        looking.set()
        go_on.wait(60)
        return {"a": 5}

    use = DiskUse(measure)
    assert use.bytes_of("a") == 0
    assert looking.wait(60)
    assert use.bytes_of("a") == 0, "the look is not over"
    go_on.set()
    wait_until(lambda: use.bytes_of("a") == 5, "the look is over")
    assert use.bytes_of("unknown") == 0


def test_boxes_are_looked_at_together_and_again_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[int]()
    monkeypatch.setattr(disk_use, "LOOK_EVERY_S", 1000.0)
    monkeypatch.setattr(disk_use, "LONGEST_PAUSE_S", 1000.0)

    def measure() -> Mapping[str, int]:
        looks.append(1)
        return {"a": 1, "b": 2}

    use = DiskUse(measure)
    wait_until(lambda: use.bytes_of("a") == 1 and use.bytes_of("b") == 2, "the first look is over")
    assert [use.bytes_of("a") for _ in range(100)] == [1] * 100
    assert looks == [1]


def test_a_look_that_fails_changes_nothing_and_the_next_one_counts() -> None:
    found: list[Mapping[str, int] | Exception] = [{"a": 1}, OSError("the engine is away"), {"a": 2}]

    def measure() -> Mapping[str, int]:
        next_one = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(next_one, Exception):
            raise next_one
        return next_one

    use = DiskUse(measure)
    seen = {0}

    def is_over() -> bool:
        seen.add(use.bytes_of("a"))
        return 2 in seen

    wait_until(is_over, "the look after the failed one")
    assert seen <= {0, 1, 2}
