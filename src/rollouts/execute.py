"""One run, start to end. The one place that turns an exception into a result, with the stage it happened in."""

import contextlib
import os
import shutil
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rollouts.backends.base import Backend, Ended, Job, JobResult, LogSink
from rollouts.errors import JobCancelled, RolloutsError, SandboxFailed, StoreError
from rollouts.files import cannot_write, make_folder, move_whole, remove_stale, sync_folder, write_json, write_whole
from rollouts.logs import LogFile, Scrubber, scrub_file, tail_of
from rollouts.plan import RunSpec
from rollouts.prepare import Preparation
from rollouts.results import RunError, RunResult, Stage, Status
from rollouts.store import now
from rollouts.workspace import Changes, capture_patch, count_changes, repo_info

LAST_WORDS_BYTES = 4096
NOTES_LIMIT_BYTES = 1024 * 1024
"""Of what the agent wrote about its work."""
NAMES_SHOWN, NAMES_LIMIT_BYTES = 100, 64 * 1024
"""Of files that were left out of a patch."""
_OF_ONE_ATTEMPT = ("artifacts", "logs", "result.json", "evaluation_results.json", "scoring_results.md")
_STATUS = {
    Ended.TIMEOUT: Status.TIMEOUT,
    Ended.OUT_OF_MEMORY: Status.OUT_OF_MEMORY,
    Ended.CANCELLED: Status.CANCELLED,
}


@dataclass(frozen=True)
class Finished:
    """A run's result, already in its folder, and the way to give its box back once the batch knows of it."""

    result: RunResult
    free: Callable[[], None] = lambda: None


class RunFolder:
    """`data/runs/<run_id>/` while a run writes it."""

    def __init__(self, path: Path, attempt: int, secrets: tuple[str, ...]) -> None:
        self.path, self.secrets = path, secrets
        self.artifacts, self.logs, self.outputs = path / "artifacts", path / "logs", path / ".outputs"
        shutil.rmtree(self.outputs, ignore_errors=True)
        for folder in (path, self.artifacts):
            remove_stale(folder)
        make_folder(path)
        self._put_aside(attempt - 1)
        for folder in (self.artifacts, self.logs, self.outputs):
            folder.mkdir(exist_ok=True)
        self.agent_log = LogFile(self.logs / "agent.log", secrets)
        self.sandbox_log = LogFile(self.logs / "sandbox.log", secrets)

    def _put_aside(self, earlier: int) -> None:
        """An attempt is never overwritten. One that was being put aside when its process died is put aside whole."""
        left = [self.path / name for name in _OF_ONE_ATTEMPT if (self.path / name).exists()]
        if not left:
            return
        attempts = self.path / "attempts"
        newest = max((int(path.name) for path in attempts.glob("*") if path.name.isdecimal()), default=0)
        is_half_done = newest > 0 and not any((attempts / str(newest) / path.name).exists() for path in left)
        aside = attempts / str(newest if is_half_done else max(earlier, newest + 1))
        make_folder(aside)
        for path in left:
            path.rename(aside / path.name)
        sync_folder(aside)

    def note(self, text: str) -> None:
        """A line in `sandbox.log`."""
        self.sandbox_log(f"{now()} {text}\n".encode())

    def close(self) -> None:
        """Only what is worth keeping stays."""
        self.agent_log.close()
        self.sandbox_log.close()
        shutil.rmtree(self.outputs, ignore_errors=True)


def execute_run(
    spec: RunSpec, begun: RunResult, folder: Path, preparation: Preparation, backend: Backend, echo: LogSink
) -> Finished:
    """Run one spec to its end. Never raises for the run's own troubles; `begun` is its record so far."""
    secrets = preparation.secrets
    run, scrub = _open_folder(folder, begun.attempt, secrets), Scrubber(secrets)
    stage, trouble = Stage.SOURCE, ""
    free: Callable[[], None] = lambda: None  # noqa: E731 - replaced as soon as there is a box
    try:
        source = preparation.source(spec.task)
        stage = Stage.IMAGE
        image = preparation.ready(spec, run.sandbox_log)
        stage = Stage.SANDBOX
        job = _job(spec, begun, preparation, backend, run)
        run.note(f"starting on {backend.name}, limit {spec.timeout_s:g} s")
        ended = backend.run(job, _both(run.agent_log, lambda data: echo(scrub(data))))
        echo(scrub.rest())
        free = ended.free
        for note in ended.notes:
            run.note(note)
        run.note(f"ended: {ended.ended}, exit code {ended.exit_code}, {ended.duration_s:.2f} s")
        stage = Stage.ARTIFACTS
        write_json(run.artifacts / "repo_info.json", repo_info(source, spec.task))
        changes = _keep(run, ended, image.base_git)
        result = _finished(begun, ended, changes, secrets)
    except JobCancelled:
        result = begun.cancelled()
    except RolloutsError:  # the disk or the data folder: no run could go on
        with contextlib.suppress(StoreError):
            run.close()
        free()
        raise
    except Exception as exc:  # noqa: BLE001 - one run's trouble must not stop the others
        trouble = "" if isinstance(exc, SandboxFailed) else "".join(traceback.format_exception(exc))
        result = _failed(begun, stage, exc, secrets)
        if backend.cancelled.is_set():  # a second signal takes boxes away while we look into them
            result = begun.cancelled()
    result = replace(result, finished_at=now())
    try:
        if trouble:
            run.note(trouble)
        if result.error:
            run.note(f"{result.status}: {result.error.stage}: {result.error.message}")
        run.close()
        write_json(folder / "result.json", result.to_json())
    except BaseException:
        free()
        raise
    return Finished(result, free)


def _open_folder(folder: Path, attempt: int, secrets: tuple[str, ...]) -> RunFolder:
    try:
        return RunFolder(folder, attempt, secrets)
    except OSError as exc:
        raise cannot_write(folder, exc) from exc


def _both(first: LogSink, second: LogSink) -> LogSink:
    def sink(data: bytes) -> None:
        first(data)
        second(data)

    return sink


def _job(spec: RunSpec, begun: RunResult, preparation: Preparation, backend: Backend, run: RunFolder) -> Job:
    batch = f"{preparation.benchmark.name}/{begun.run_id.rpartition('-')[0]}"
    image, agent = preparation.image(spec), preparation.agent(spec)
    job_id = f"{begun.run_id}.{begun.attempt}"
    command = agent.command(spec, backend.paths(job_id, image))
    passed = {name: os.environ[name] for name in agent.env_names if name in os.environ}
    return Job(
        job_id=job_id,
        run_id=begun.run_id,
        batch=batch,
        image=image,
        argv=command.argv,
        env={"ROLLOUTS_MODEL": spec.model, **passed, **command.env, **spec.env},
        limits=spec.limits,
        timeout_s=spec.timeout_s,
        network=spec.network.mode,
        profile=spec.profile,
        outputs_dir=run.outputs,
        files=command.files,
    )


def _keep(run: RunFolder, ended: JobResult, base_git: Path) -> Changes | None:
    """Put what came out of the box in its place. A partial patch, after a timeout or a crash, is a result too."""
    outputs = dict(ended.outputs)
    if "diff.patch" not in outputs and ended.workspace is not None:
        outputs |= capture_patch(base_git, ended.workspace, run.outputs)
    if "skipped.txt" in outputs:
        run.note(f"left out of the patch: {_shortened(outputs['skipped.txt'])}")
    _keep_notes(run, outputs.get("notes.md"))
    if "diff.patch" not in outputs:
        raise SandboxFailed("no patch came out of the box")
    patch = outputs["diff.patch"]
    if run.secrets and scrub_file(patch, run.secrets):
        run.note("a secret stood in the patch and was taken out of it")
    changes = count_changes(patch)
    move_whole(patch, run.artifacts / "diff.patch")
    return changes


def _shortened(skipped: Path) -> str:
    """The names in a file, as many as anyone reads; it may have been made to be huge."""
    with skipped.open("rb") as stream:
        names = stream.read(NAMES_LIMIT_BYTES).decode("utf-8", "replace").splitlines()
    more = len(names) > NAMES_SHOWN or skipped.stat().st_size > NAMES_LIMIT_BYTES
    return ", ".join(names[:NAMES_SHOWN]) + (" and more" if more else "")


def _keep_notes(run: RunFolder, notes: Path | None) -> None:
    """The agent's own notes, else its last words."""
    if notes is not None:
        with notes.open("rb") as stream:
            content = stream.read(NOTES_LIMIT_BYTES)
            if cut := notes.stat().st_size - len(content):
                content += f"\n[… {cut} bytes left out here …]\n".encode()
    else:
        content = tail_of(run.agent_log.path, LAST_WORDS_BYTES).encode()
    scrub = Scrubber(run.secrets)
    write_whole(run.artifacts / "notes.md", scrub(content) + scrub.rest())


def _finished(begun: RunResult, ended: JobResult, changes: Changes | None, secrets: tuple[str, ...]) -> RunResult:
    status = _STATUS.get(ended.ended) or (Status.LAUNCHED if ended.exit_code == 0 else Status.AGENT_FAILED)
    return replace(
        begun,
        status=status,
        launch_rc=ended.exit_code,
        duration_s=round(ended.duration_s, 3),
        changes=asdict(changes) if changes else None,
        error=_what_happened(status, ended, secrets),
    )


def _what_happened(status: Status, ended: JobResult, secrets: tuple[str, ...]) -> RunError | None:
    match status:
        case Status.LAUNCHED | Status.CANCELLED:
            return None
        case Status.TIMEOUT:
            message = f"the agent was ended at its time limit, after {ended.duration_s:.1f} s"
        case Status.OUT_OF_MEMORY:
            message = "the sandbox ran out of memory"
        case _ if ended.exit_code is None:
            message = ended.notes[-1] if ended.notes else "the agent ended its own sandbox"
        case _:
            message = f"the agent exited with {ended.exit_code}"
    return RunError(Stage.AGENT, status, Scrubber(secrets).text(message))


def _failed(begun: RunResult, stage: Stage, exc: Exception, secrets: tuple[str, ...]) -> RunResult:
    message = Scrubber(secrets).text(str(exc) or type(exc).__name__)
    error = RunError(stage, type(exc).__name__, " ".join(message.split()))
    return replace(begun, status=Status.SANDBOX_FAILED, error=error)
