"""Results and verdicts → tables of numbers. Pure: no files, no clock."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rollouts.eval_manifest import Evaluated
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
    outcomes: dict[str, int]
    """How many verdicts of each kind; empty when nothing was scored."""
    mean_score: float | None
    """Over the runs that have a verdict."""

    @property
    def launched(self) -> int:
        """How many runs the agent finished with success."""
        return self.status.get(Status.LAUNCHED, 0)

    @property
    def scored(self) -> int:
        """How many runs have a verdict."""
        return sum(count for outcome, count in self.outcomes.items() if outcome != "error")

    @property
    def resolved(self) -> int:
        """How many runs solved the task."""
        return self.outcomes.get("resolved", 0)


def summarize_results(
    results: Iterable[RunResult], verdicts: Mapping[str, Evaluated] | None = None
) -> list[SummaryRow]:
    """A row per task, model and agent, in the order of the plan; `verdicts` by run id."""
    groups: dict[tuple[str, str, str], list[RunResult]] = {}
    for result in results:
        groups.setdefault((result.task_id, result.model, result.agent), []).append(result)
    return [_row(*key, group, verdicts or {}) for key, group in groups.items()]


def _row(
    task_id: str, model: str, agent: str, results: Sequence[RunResult], verdicts: Mapping[str, Evaluated]
) -> SummaryRow:
    durations = [result.duration_s for result in results if result.duration_s is not None]
    changes = [result.changes for result in results if result.changes is not None]
    lines = [verdicts[result.run_id] for result in results if result.run_id in verdicts]
    scores = [line.total_score for line in lines if line.has_verdict and line.total_score is not None]
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
        outcomes=dict(Counter(line.outcome for line in lines if line.outcome is not None)),
        mean_score=round(fmean(scores), 6) if scores else None,
    )
