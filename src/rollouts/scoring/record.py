"""One run's verdict on disk: `evaluation_results.json`, `scoring_results.md` and `logs/eval.log` in the run's folder.

`evaluation_results.json` is written last and whole, so a run either has its verdict or is still to be scored.
"""

import json
import shutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from rollouts.errors import JobCancelled, RolloutsError, SandboxFailed, StoreError
from rollouts.eval_manifest import Evaluated
from rollouts.files import remove_stale, write_json, write_whole
from rollouts.logs import LogFile, Scrubber
from rollouts.outage import MAX_EXCUSED
from rollouts.results import RunError, RunResult, Status
from rollouts.schedule import backoff_s
from rollouts.scoring.score import Place, Scorer
from rollouts.scoring.scorecard import scorecard
from rollouts.scoring.verdict import SCHEMA, Outcome, Scored
from rollouts.store import now
from rollouts.tasks import Task
from rollouts.terminal import counted
from rollouts.workspace import count_changes, file_changes

RESULTS = "evaluation_results.json"
MAX_RESULTS_BYTES = 256 * 1024 * 1024
CARD = "scoring_results.md"
_OF_THE_RUN = ("run_id", "task_id", "model", "agent", "run_dir")
_OUR_WORDS = ("run_id", "task_id", "outcome", "status", "judged_by", "kind", "action", "type", "stage", "backend")
_UNSCORED = (Status.SANDBOX_FAILED, Status.CANCELLED)
"""Ends that say nothing about the model: there is nothing to score."""


def unscored(result: RunResult, error: str | None = None) -> Evaluated:
    """A run that has no verdict: it was not scored, or could not be."""
    outcome = Outcome.ERROR.value if error else None
    return Evaluated(result.run_id, result.task_id, result.model, result.agent, result.run_dir, outcome, error=error)


def not_scored(result: RunResult, folder: Path, why: str) -> Evaluated:
    """A run that could not be scored today. An error of ours never takes the place of a verdict."""
    known = load_evaluation(folder)
    if known is not None and known["outcome"] != Outcome.ERROR:
        return replace(line_of(result, known), error=f"not scored again: {why}")
    return unscored(result, why)


def line_of(result: RunResult, evaluation: Mapping[str, Any]) -> Evaluated:
    """The line of a run whose `evaluation_results.json` this is."""
    error = evaluation.get("error")
    return Evaluated(
        run_id=result.run_id,
        task_id=result.task_id,
        model=result.model,
        agent=result.agent,
        run_dir=result.run_dir,
        outcome=evaluation["outcome"],
        resolved=evaluation["resolved"],
        total_score=evaluation["total_score"],
        coverage=evaluation["coverage"],
        flags=len(evaluation["flags"]),
        error=str(error.get("message")) if isinstance(error, dict) else None,
    )


class Recorder:
    """Scores runs and puts the verdicts into their folders. Safe to ask from many threads."""

    def __init__(
        self,
        scorer: Scorer,
        backend: str,
        retries: int,
        stopped: Callable[[float], bool],
        was_away: Callable[[], bool],
        secrets: tuple[str, ...] = (),
    ) -> None:
        """`stopped` waits so many seconds, or until all must end: then it says so. `was_away`: see `Outage.wait`.

        A scoring box is told no secret, but a patch may bring one in parts that its code puts together.
        """
        self._scorer, self._backend, self._retries, self._stopped = scorer, backend, retries, stopped
        self._was_away, self._secrets = was_away, secrets

    def known(self, result: RunResult, task: Task, folder: Path) -> Evaluated | None:
        """The verdict that is there already, unless the patch or the task's evaluation changed since.

        What a process left that was killed while it scored the run is removed on the way.
        """
        _remove_leftovers(folder)
        evaluation = load_evaluation(folder)
        patch = folder / "artifacts" / "diff.patch"
        if evaluation is None or evaluation["outcome"] == Outcome.ERROR or not patch.is_file():
            return None
        if any(rubric["judged_by"] == "judge" and rubric["score"] is None for rubric in _rubrics(evaluation)):
            return None  # the judge may have an answer now
        current = (self._scorer.digest(task), sha256(patch.read_bytes()).hexdigest())
        same = (evaluation.get("evaluation_digest"), evaluation.get("patch_sha256")) == current
        return line_of(result, evaluation) if same else None

    def score(
        self, result: RunResult, task: Task, folder: Path, batch: str, echo: Callable[[bytes], None]
    ) -> Evaluated:
        """Score one run. Never raises for the run's own troubles; JobCancelled when all must end."""
        try:
            _remove_leftovers(folder)
            patch, scored = self._logged(result, task, folder, batch, echo)
            return self._write(result, task, folder, patch, scored)
        except OSError as exc:  # a folder that cannot be written, a full disk
            raise StoreError(f"{exc.filename or folder}: cannot be written: {exc.strerror or exc}") from exc

    def _logged(
        self, result: RunResult, task: Task, folder: Path, batch: str, echo: Callable[[bytes], None]
    ) -> tuple[bytes, Scored]:
        log_path, outputs = folder / "logs" / "eval.log", folder / ".scoring"
        for place in (log_path.parent, outputs):  # the second marks that the first may hold something temporary
            place.mkdir(parents=True, exist_ok=True)
        log_path.unlink(missing_ok=True)
        log, scrub = LogFile(log_path, self._secrets), Scrubber(self._secrets)

        def sink(data: bytes) -> None:
            log(data)
            echo(scrub(data))

        try:
            patch, scored = self._scored(result, task, folder, Place(result.run_id, batch, outputs, sink))
            sink(f"\n[scored] {scored.outcome}, score {scored.total_score}\n".encode())
            return patch, scored
        finally:
            echo(scrub.rest())
            log.close()
            shutil.rmtree(outputs, ignore_errors=True)

    def _scored(self, result: RunResult, task: Task, folder: Path, place: Place) -> tuple[bytes, Scored]:
        patch = folder / "artifacts" / "diff.patch"
        why = _why_not(result, patch)
        if why is not None:
            return b"", failed(*why)
        content = patch.read_bytes()
        attempt = excused = 0
        while True:
            attempt += 1
            try:
                return content, self._scorer.score(task, content, place)
            except JobCancelled:
                raise
            except SandboxFailed as exc:
                place.log(f"[scoring] attempt {attempt}: {exc}\n".encode())
                failure = failed(type(exc).__name__, str(exc))
                if type(exc) is not SandboxFailed:
                    break
                excused += excused < MAX_EXCUSED and self._was_away()
                if attempt - excused > self._retries or self._stopped(backoff_s(max(1, attempt - excused))):
                    break
            except RolloutsError:
                raise
            except Exception as exc:  # noqa: BLE001 - one run's trouble must not stop the others
                place.log("".join(traceback.format_exception(exc)).encode())
                failure = failed(type(exc).__name__, str(exc) or type(exc).__name__)
                break
        return content, failure

    def _write(self, result: RunResult, task: Task, folder: Path, patch: bytes, scored: Scored) -> Evaluated:
        digest = None if scored.outcome is Outcome.ERROR else self._scorer.digest(task)
        evaluation = _scrubbed(_document(result, scored, patch, self._backend, digest), Scrubber(self._secrets))
        if scored.outcome is Outcome.ERROR:
            kept = not_scored(result, folder, evaluation["error"]["message"] if evaluation["error"] else "unknown")
            if kept.has_verdict:
                return kept
        changes = file_changes(patch)
        write_whole(folder / CARD, scorecard(evaluation, task.title, changes).encode(), durable=False)
        write_json(folder / RESULTS, evaluation)
        return line_of(result, evaluation)


def _remove_leftovers(folder: Path) -> None:
    """Of a process that was killed while it scored this run."""
    remove_stale(folder)
    (folder / "logs" / ".eval.log.tail").unlink(missing_ok=True)
    shutil.rmtree(folder / ".scoring", ignore_errors=True)


def failed(kind: str, message: str) -> Scored:
    """No verdict, through no fault of the patch."""
    return Scored(Outcome.ERROR, None, 0.0, error=RunError("scoring", kind, " ".join(message.split())))


def _why_not(result: RunResult, patch: Path) -> tuple[str, str] | None:
    """Why a run cannot be scored, as type and message."""
    if result.status in _UNSCORED:
        reason = f": {result.error.message}" if result.error else ""
        return "RunFailed", f"the run itself ended as {result.status}{reason}"
    if not patch.is_file():
        return "PatchMissing", "the run's artifacts/diff.patch is missing"
    if result.changes is not None:
        there = asdict(count_changes(patch))
        if there != dict(result.changes):
            amounts = f"{_amount(there)} now, {_amount(result.changes)} then"
            return "PatchChanged", f"artifacts/diff.patch is not what the run recorded: {amounts}"
    return None


def _amount(changes: Mapping[str, int]) -> str:
    return f"{counted(changes['files'], 'file')}, +{changes['lines_added']} -{changes['lines_removed']}"


def _document(result: RunResult, scored: Scored, patch: bytes, backend: str, digest: str | None) -> dict[str, Any]:
    told = scored.to_json()
    changes = dict(result.changes) if result.changes else {}
    told["standard_metrics"] = {**told["standard_metrics"], "patch_bytes": len(patch), **changes}
    return {
        "schema": SCHEMA,
        "run_id": result.run_id,
        "task_id": result.task_id,
        "model": result.model,
        "agent": result.agent,
        **told,
        "agent_metrics": {
            "status": result.status.value,
            "launch_rc": result.launch_rc,
            "attempt": result.attempt,
            "duration_s": result.duration_s,
            "usage": result.usage,
        },
        "patch_sha256": sha256(patch).hexdigest(),
        "evaluation_digest": digest,
        "backend": backend,
        "evaluated_at": now(),
        "duration_s": scored.duration_s,
    }


def _scrubbed(value: Any, scrub: Scrubber) -> Any:
    """Plain data without secrets in its texts; words of ours stay, whatever a secret is."""
    if isinstance(value, str):
        return scrub.text(value)
    if isinstance(value, list | tuple):
        return [_scrubbed(item, scrub) for item in value]
    if isinstance(value, dict):
        return {
            key if key in _OUR_WORDS else scrub.text(key): item if key in _OUR_WORDS else _scrubbed(item, scrub)
            for key, item in value.items()
        }
    return value


def _rubrics(evaluation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rubrics: list[Mapping[str, Any]] = evaluation["evaluation"]["rubrics"]
    return rubrics


def load_evaluation(folder: Path) -> dict[str, Any] | None:
    """A run's `evaluation_results.json`; None when there is none that can be read."""
    path = folder / RESULTS
    try:
        if not path.is_file() or path.stat().st_size > MAX_RESULTS_BYTES:
            return None
        value: dict[str, Any] = json.loads(path.read_text())
        if value["run_id"] != folder.name:
            return None
        Evaluated.from_json({**dict.fromkeys(_OF_THE_RUN, ""), **value, "flags": len(value["flags"]), "error": None})
        for rubric in _rubrics(value):
            _ = rubric["judged_by"], rubric["score"]
        if value["outcome"] is None or type(value["flags"]) is not list:
            return None
        if (value["outcome"] == Outcome.ERROR) is not isinstance(value["error"], dict):
            return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return value
