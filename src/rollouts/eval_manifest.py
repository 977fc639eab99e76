"""`eval_manifest.json`: a line for each run of a batch, gathered from the runs' own verdicts."""

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollouts.config import Benchmark
from rollouts.files import encode, remove_stale, write_whole
from rollouts.scoring.verdict import Outcome
from rollouts.store import now

log = logging.getLogger(__name__)

MANIFEST = "eval_manifest.json"
MANIFEST_EVERY_S = 1.0
SHARE_OF_TIME = 0.05
"""The most that writing it may take of the time between two writings: a large batch is written less often."""
MAX_BYTES = 512 * 1024 * 1024
SCHEMA = 1


@dataclass(frozen=True)
class Evaluated:
    """A run's line in `eval_manifest.json` and in the tables."""

    run_id: str
    task_id: str
    model: str
    agent: str
    run_dir: str
    outcome: str | None
    """None: not scored yet."""
    resolved: bool | None = None
    total_score: float | None = None
    coverage: float | None = None
    flags: int = 0
    error: str | None = None
    """Why there is no verdict; beside an earlier verdict, why the run was not scored again."""

    @property
    def has_verdict(self) -> bool:
        """Whether anything is known about the patch."""
        return self.outcome is not None and self.outcome != Outcome.ERROR

    @property
    def is_settled(self) -> bool:
        """Whether the verdict is today's: beside an earlier one may stand why the run was not scored again."""
        return self.has_verdict and self.error is None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Evaluated":
        """Back from plain data; raises ValueError, KeyError or TypeError for what is none."""
        line = Evaluated(**{name: data[name] for name in Evaluated.__dataclass_fields__})
        if line.outcome is not None:
            Outcome(line.outcome)
        for share in (line.total_score, line.coverage):
            if share is not None and not (type(share) in (int, float) and 0 <= share <= 1):
                raise ValueError
        if type(line.flags) is not int or not isinstance(line.run_id, str):
            raise TypeError
        resolved = line.outcome == Outcome.RESOLVED if line.has_verdict else None
        if line.resolved is not resolved or (line.total_score is None) is line.has_verdict:
            raise ValueError
        return line


def mean_score(lines: Sequence[Evaluated]) -> float | None:
    """Over the runs that have a verdict."""
    scores = [line.total_score for line in lines if line.has_verdict and line.total_score is not None]
    return sum(scores) / len(scores) if scores else None


def load_verdicts(folder: Path) -> dict[str, Evaluated]:
    """The lines of a batch's `eval_manifest.json` by run id; empty when it was never scored."""
    path = folder / MANIFEST
    try:
        if path.exists() and (not path.is_file() or path.stat().st_size > MAX_BYTES):
            raise ValueError
        document = json.loads(path.read_text())
        lines = [Evaluated.from_json(line) for line in document["results"]]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        log.warning("%s: cannot be read; `eval` makes it again", folder / MANIFEST)
        return {}
    return {line.run_id: line for line in lines}


class EvalManifest:
    """`eval_manifest.json`: valid at every instant, at most a second behind while runs are scored."""

    def __init__(self, folder: Path, head: Mapping[str, Any], lines: Sequence[Evaluated]) -> None:
        self._path, self._head = folder / MANIFEST, dict(head)
        self._lines = {line.run_id: line for line in lines}
        self._lock = threading.Lock()
        self._next = time.monotonic() + MANIFEST_EVERY_S
        remove_stale(folder)

    def put(self, line: Evaluated) -> None:
        """Take a run's line in."""
        with self._lock:
            self._lines[line.run_id] = line
            if time.monotonic() > self._next:
                self._write(None)

    def close(self, *, finished: bool) -> tuple[Evaluated, ...]:
        """Write it a last time."""
        with self._lock:
            self._write(now() if finished else None)
            return tuple(self._lines.values())

    def _write(self, finished_at: str | None) -> None:
        began, lines = time.monotonic(), list(self._lines.values())
        outcomes = Counter(line.outcome or "not_scored" for line in lines)
        head = {
            **self._head,
            "finished_at": finished_at,
            "outcomes": dict(sorted(outcomes.items())),
            "mean_score": mean_score(lines),
        }
        results = ",\n".join(f"    {encode(vars(line))}" for line in lines)
        text = json.dumps(head, indent=2, ensure_ascii=False)
        write_whole(self._path, f'{text[:-2]},\n  "results": [\n{results}\n  ]\n}}\n'.encode())
        ended = time.monotonic()
        self._next = ended + max(MANIFEST_EVERY_S, (ended - began) / SHARE_OF_TIME)


def manifest_head(name: str, stamp: str, backend: str, parallel: int, benchmark: Benchmark) -> dict[str, Any]:
    """What `eval_manifest.json` says besides the runs."""
    return {
        "schema": SCHEMA,
        "name": name,
        "created_at": stamp,
        "backend": backend,
        "parallel": parallel,
        "pass_threshold": benchmark.pass_threshold,
        "judge": benchmark.judge.model if benchmark.judge else None,
        "evaluated_at": now(),
    }
