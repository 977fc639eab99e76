"""How a run ended: the record that console, manifest, result.json and exit code are all made from."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from rollouts.errors import ExitCode


class Status(StrEnum):
    """Where a run stands. `sandbox_failed` and `cancelled` say nothing about the model."""

    PENDING = "pending"
    RUNNING = "running"
    LAUNCHED = "launched"
    AGENT_FAILED = "agent_failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    BUDGET_EXCEEDED = "budget_exceeded"
    SANDBOX_FAILED = "sandbox_failed"
    CANCELLED = "cancelled"

    @property
    def is_end(self) -> bool:
        """Whether a run that stands so has ended."""
        return self not in (Status.PENDING, Status.RUNNING)


UNFINISHED = frozenset({Status.PENDING, Status.RUNNING, Status.CANCELLED, Status.SANDBOX_FAILED})
"""Where a run stands that says nothing about the model yet: what `resume` does again."""


class Stage(StrEnum):
    """What was being done when something went wrong."""

    SOURCE = "source"
    IMAGE = "image"
    SANDBOX = "sandbox"
    AGENT = "agent"
    ARTIFACTS = "artifacts"


@dataclass(frozen=True)
class RunError:
    """What went wrong, for people and for scripts."""

    stage: str
    type: str
    message: str


@dataclass(frozen=True)
class RunResult:
    """One run's entry in `manifest.json`. The names are a contract: other people's scripts read them."""

    task_dir: str
    run_id: str
    status: Status
    launch_rc: int | None
    run_dir: str
    task_id: str
    model: str
    agent: str
    rollout: int
    key: str
    overrides: str | None = None
    attempt: int = 0
    started_at: str | None = None
    finished_at: str | None = None
    duration_s: float | None = None
    usage: Mapping[str, Any] | None = None
    changes: Mapping[str, int] | None = None
    error: RunError | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain data. Written out: a batch does this for every run, and `asdict` is ten times as slow."""
        data = {name: getattr(self, name) for name in _FIELDS}
        if self.error is not None:
            data["error"] = asdict(self.error)
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "RunResult":
        """Back from plain data; keys of later versions are let go.

        Anyone may have edited it: raises KeyError, TypeError or ValueError for what is none.
        """
        known = {name: data[name] for name in _FIELDS if name in data}
        if not all(isinstance(known[name], str) for name in _TEXTS) or not isinstance(known["rollout"], int):
            raise TypeError
        for name in ("attempt", "launch_rc", "duration_s"):
            if not isinstance(known.get(name), int | float | None) or isinstance(known.get(name), bool):
                raise TypeError
        error = RunError(**known["error"]) if known.get("error") else None
        if error is not None and not all(isinstance(text, str) for text in asdict(error).values()):
            raise TypeError
        return RunResult(**{**known, "status": Status(known["status"]), "error": error})

    def begun(self, attempt: int, started_at: str) -> "RunResult":
        """The same run at the start of an attempt: nothing of an earlier one is left."""
        blank = RunResult(**{name: getattr(self, name) for name in _OF_THE_PLAN}, status=Status.RUNNING, launch_rc=None)
        return replace(blank, attempt=attempt, started_at=started_at)

    def cancelled(self) -> "RunResult":
        """The same run, ended because the batch was stopped."""
        return replace(self, status=Status.CANCELLED)


_TEXTS = ("task_dir", "run_id", "run_dir", "task_id", "model", "agent", "key")
_FIELDS = tuple(RunResult.__dataclass_fields__)
_OF_THE_PLAN = ("task_dir", "run_id", "run_dir", "task_id", "model", "agent", "rollout", "key", "overrides")


def exit_code_of(results: Iterable[RunResult]) -> ExitCode:
    """0 when every run is `launched`, 1 when none is, 3 when some are not."""
    launched = Counter(result.status is Status.LAUNCHED for result in results)
    if not launched[False]:
        return ExitCode.OK
    return ExitCode.SOME_FAILED if launched[True] else ExitCode.NONE_SUCCEEDED
