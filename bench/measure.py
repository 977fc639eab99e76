"""What all parts share: rounds that alternate, medians, and the rows of the table.

Only figures of one round are compared with each other: this machine or its neighbours may be slow for a while, and then
both sides of the round are.
"""

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_TASK = ROOT / "data/tasks/prepared/fix_duration_parser"


@dataclass(frozen=True)
class Cost:
    """What one measured piece of work took."""

    wall_s: float
    cpu_s: float
    """Of the measured process and the children it waited for, user and system."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure, what it was made from, and the bound it must keep, if it has one."""

    name: str
    value: float
    unit: str
    made_from: str
    bound: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the bound was missed."""
        return self.bound is not None and self.value > self.bound

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "over": self.is_over}


def stopwatch() -> Callable[[], Cost]:
    """Start one; calling it tells what was spent since."""
    wall, cpu = time.perf_counter(), _cpu_s()
    return lambda: Cost(time.perf_counter() - wall, _cpu_s() - cpu)


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def timed(work: Callable[[], object]) -> Cost:
    """Do it and tell what it took."""
    spent = stopwatch()
    work()
    return spent()


Pairs = Sequence[tuple[Cost, Cost]]


def alternate(first: Callable[[], Cost], second: Callable[[], Cost], rounds: int) -> Pairs:
    """Measure both in each round; who begins changes from round to round, so that a drift hits both alike."""
    pairs = []
    for number in range(rounds):
        if number % 2:
            after, before = second(), first()
        else:
            before, after = first(), second()
        pairs.append((before, after))
    return pairs


def wall_ratio(name: str, pairs: Pairs, per: int = 1, bound: float | None = None) -> Row:
    """How many times longer the first took than the second; the raw medians per piece of work beside it."""
    return _ratio(name, [(first.wall_s, second.wall_s) for first, second in pairs], per, bound)


def cpu_ratio(name: str, pairs: Pairs, per: int = 1, bound: float | None = None) -> Row:
    """The same for CPU time."""
    return _ratio(name, [(first.cpu_s, second.cpu_s) for first, second in pairs], per, bound)


def _ratio(name: str, pairs: Sequence[tuple[float, float]], per: int, bound: float | None) -> Row:
    ratio = statistics.median(first / second for first, second in pairs)
    first, second = (statistics.median(side) * 1000 / per for side in zip(*pairs, strict=True))
    return Row(name, ratio, "x", f"{first:.0f} ms / {second:.0f} ms", bound)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for this measurement alone, on the disk of $TMPDIR."""
    with TemporaryDirectory(prefix="rollouts-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def fsync_ms() -> float:
    """What making 4 kB safe costs here: tells a memory file system, where it is free, from a disk."""
    with scratch_folder() as folder, (folder / "probe").open("wb", buffering=0) as stream:

        def write() -> None:
            stream.write(bytes(4096))
            os.fsync(stream.fileno())

        return statistics.median(timed(write).wall_s for _ in range(20)) * 1000
