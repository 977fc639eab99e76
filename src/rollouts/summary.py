"""Results → tables of numbers. Pure: no files, no clock."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from rollouts.results import RunResult, Status


@dataclass(frozen=True)
class SummaryRow:
    """What came of one task with one model."""

    task_id: str
    model: str
    agent: str
    runs: int
    status: dict[str, int]
    """How many runs stand where; only what occurs."""
    median_duration_s: float | None
    total_duration_s: float
    median_files: float | None
    lines_added: int
    lines_removed: int

    @property
    def launched(self) -> int:
        """How many runs the agent finished with success."""
        return self.status.get(Status.LAUNCHED, 0)


def summarize_results(results: Iterable[RunResult]) -> list[SummaryRow]:
    """A row per task, model and agent, in the order of the plan."""
    groups: dict[tuple[str, str, str], list[RunResult]] = {}
    for result in results:
        groups.setdefault((result.task_id, result.model, result.agent), []).append(result)
    return [_row(*key, group) for key, group in groups.items()]


def _row(task_id: str, model: str, agent: str, results: Sequence[RunResult]) -> SummaryRow:
    durations = [result.duration_s for result in results if result.duration_s is not None]
    changes = [result.changes for result in results if result.changes is not None]
    return SummaryRow(
        task_id=task_id,
        model=model,
        agent=agent,
        runs=len(results),
        status=dict(Counter(result.status.value for result in results)),
        median_duration_s=round(median(durations), 3) if durations else None,
        total_duration_s=round(sum(durations), 3),
        median_files=median(change["files"] for change in changes) if changes else None,
        lines_added=sum(change["lines_added"] for change in changes),
        lines_removed=sum(change["lines_removed"] for change in changes),
    )
