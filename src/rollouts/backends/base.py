"""The sandbox contract: a backend runs jobs, each in a fresh box of its own, from start to end.

There is no exec into a living box. A job's files go in before it starts, its output is streamed while it runs, and what
it is asked for comes out when it ends. That is the one shape which Docker, Modal and batch systems share.

What a reader would get wrong: a job that exits non-zero, runs over time or out of memory is a *result*. `SandboxFailed`
is raised only for what is not the job's own doing.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

from rollouts.backends.disk_use import LOOK_EVERY_S
from rollouts.backends.handout import Handout
from rollouts.config import DockerSettings, Limits, Profile
from rollouts.digests import digest_of
from rollouts.errors import ImageFailed, JobCancelled

BOX_APP = "/app"
BOX_REPO = "/app/repo"
"""Where the task's repository lies in a box, unless its `environment.workdir` says otherwise."""
BOX_TOOLS = "/rollouts"
"""What we put into a box for ourselves: supervisor, capture script, instructions, the recorded base."""
BOX_HOME = "/home/agent"
BOX_TOOL_FILES = ("supervise.sh", "capture.sh")

GRACE_S = 5.0
"""Between asking a job to end and killing it."""
STOP_LIMIT_S = 10.0
"""How long a box may take, once it was asked to end, to end its command and hand out what there is."""
START_LIMIT_S = 120.0
"""How long a box may take until its supervisor says that the command begins."""
HANDOUT_LIMIT_S = 120.0
"""How long a box may take to capture and hand out what it was asked for, before it is ended from outside."""


def sandbox_file(name: str) -> Path:
    """The in-box script of that name: inside the installed package, or in a checkout's `sandbox/`."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "sandbox" / name
    return installed if installed.exists() else package.parents[1] / "sandbox" / name


@dataclass(frozen=True)
class Image:
    """The recipe of a box's file system. Equal digests mean equal content, so an image is built once and kept."""

    task_id: str
    tree: Path
    """The repository as the agent finds it, its one-commit `.git` included."""
    base_git: Path
    """The recorded base that patches are made against; put where the agent cannot change it."""
    source_digest: str
    """Names the content of `tree` and `base_git`."""
    instructions: str
    base: str | None = None
    """The task's own base image; None means the backend's default."""
    dockerfile: Path | None = None
    """Built instead of `base` when given, with `dockerfile_context` but for `dockerfile_hidden`."""
    dockerfile_context: Path | None = None
    dockerfile_hidden: tuple[str, ...] = ()
    """Names at the context's top that must not reach the build: what is hidden from agents."""
    dockerfile_digest: str = ""
    install: str | None = None
    """A shell command that installs the agent; one layer for all tasks that share a base."""
    overlay: Path | None = None
    """Files that go to `/app`, beside the repository."""
    overlay_digest: str = ""
    workdir: str = BOX_REPO
    subdir: str | None = None
    """The folder of the repository in which the agent starts."""
    user: str | None = None
    as_root: bool = False
    """Whether the agent is root in its box unless `user` names another; for backends that can give it that."""

    @property
    def box_user(self) -> str | None:
        """Who the agent is, as far as the task or the profile says."""
        return self.user or ("0:0" if self.as_root else None)

    def digest(self, *extra: str) -> str:
        """Name the content; `extra` is what the backend adds to the recipe (its default base, its scripts)."""
        parts = (self.source_digest, self.instructions, self.base, self.dockerfile_digest, self.install)
        return digest_of(*parts, self.overlay_digest, self.workdir, self.box_user, *extra)[:24]


@dataclass(frozen=True)
class BoxPaths:
    """Where things lie, as the job sees them."""

    repo: str
    cwd: str
    tools: str
    home: str

    @property
    def instructions(self) -> str:
        """The text that the agent is told."""
        return f"{self.tools}/instructions.md"

    @property
    def inputs(self) -> str:
        """The folder with the job's own files."""
        return f"{self.tools}/in"

    @property
    def outputs(self) -> str:
        """The folder in which the job may leave `notes.md`."""
        return f"{self.tools}/out"

    def environment(self) -> dict[str, str]:
        """The same for the job's own eyes."""
        return {
            "HOME": self.home,
            "ROLLOUTS_REPO": self.repo,
            "ROLLOUTS_INSTRUCTIONS": self.instructions,
            "ROLLOUTS_OUT": self.outputs,
        }


class LogSink(Protocol):
    """Takes output as it comes. Must be quick and must not raise."""

    def __call__(self, data: bytes) -> None: ...


@dataclass(frozen=True)
class Job:
    """One command in one fresh box."""

    job_id: str
    """Unique among jobs that live at the same time; part of the box's name."""
    run_id: str
    batch: str
    image: Image
    argv: tuple[str, ...]
    env: Mapping[str, str]
    limits: Limits
    timeout_s: float
    network: Literal["none", "gateway", "open"]
    outputs_dir: Path
    """Where on the host the files that the box hands out are put."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Put into the box's inputs folder before the command starts; for what belongs to one run only."""
    capture: bool = True
    """Whether a patch of the repository is wanted."""
    secret: str | None = None
    """The one line of the command's stdin: for what neither a file nor a variable may hold."""
    profile: Profile = "strict"
    stdout: LogSink | None = None
    """Takes what the command prints on stdout, apart from its stderr. None: both go to the log."""

    @property
    def hard_limit_s(self) -> float:
        """When a box is ended from outside, counted from the command's start, whatever happens inside."""
        return self.timeout_s + 2 * GRACE_S

    @property
    def ttl_s(self) -> float:
        """When a box ends itself, should nobody be left outside: later than anyone outside would have done it."""
        return START_LIMIT_S + self.hard_limit_s + HANDOUT_LIMIT_S

    @property
    def handout_ttl_s(self) -> float:
        """The same from the command's end on."""
        return 2 * HANDOUT_LIMIT_S

    def stdin(self, word: str) -> bytes:
        """What the supervisor reads first."""
        return f"{word}\n".encode() + (b"" if self.secret is None else f"{self.secret}\n".encode())

    def supervisor(self, paths: BoxPaths, *, boxed: bool, unpack: bool, capture: bool) -> list[str]:
        """The box's main process: our supervisor with the job's command in it."""
        options = [
            "--limit",
            _digits(self.timeout_s),
            "--grace",
            _digits(GRACE_S),
            "--ttl",
            _digits(self.ttl_s),
            "--handout-ttl",
            _digits(self.handout_ttl_s),
            "--tools",
            paths.tools,
            "--cwd",
            paths.cwd,
        ]
        options += ["--boxed"] * boxed + ["--unpack"] * unpack
        options += ["--secret"] * (self.secret is not None) + ["--stdout"] * (self.stdout is not None)
        options += ["--capture", paths.repo] if capture and self.capture else []
        return ["/bin/sh", f"{paths.tools}/supervise.sh", *options, "--", *self.argv]


def _digits(seconds: float) -> str:
    """As every `sleep` reads it."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


class Ended(StrEnum):
    """How a job came to its end."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class JobResult:
    """What a job left behind. Its box stays until `free` is called, so that results can be saved first."""

    ended: Ended
    exit_code: int | None
    """The command's own code; None when it did not live to tell."""
    duration_s: float
    """The command's own wall clock: without making the box, without capturing."""
    outputs: Mapping[str, Path]
    """Files the box handed out, by name."""
    workspace: Path | None
    """The repository as the job left it, when the box did not make the patch itself: make it on the host."""
    notes: tuple[str, ...] = ()
    """What the box or the backend wants said in `sandbox.log`."""
    free: Callable[[], None] = lambda: None
    """Give the box back. Returns at once; the work is done behind."""


@dataclass(frozen=True)
class Finding:
    """One thing that `doctor` looked at, and what to do when it is not as it should be."""

    name: str
    ok: bool
    detail: str
    advice: str = ""
    optional: bool = False
    """Whether all is well without it."""


@dataclass(frozen=True)
class BuiltImage:
    """An image that this tool built and that can be built again."""

    name: str
    bytes: int
    """What removing it frees, once those before it are gone."""
    unfinished: bool = False
    """Whether it is a step of a build that was given up: nothing will ever use it."""


class Backend(ABC):
    """Runs jobs, each in a box of its own. The only thing that knows how to make and free one."""

    name: str

    def __init__(self, settings: DockerSettings, cache_dir: Path) -> None:
        self.settings = settings
        self.cache_dir = cache_dir
        self.cancelled = threading.Event()
        self.secrets: tuple[str, ...] = ()
        """Values that nothing which is kept may hold."""

    @abstractmethod
    def check(self) -> None:
        """Raise `BackendUnavailable`, saying what to do, unless boxes can be made here."""

    @abstractmethod
    def findings(self) -> list[Finding]:
        """What this machine has for this backend; the first one tells whether it can be used. Never raises."""

    @abstractmethod
    def prepare(self, image: Image, sink: LogSink) -> None:
        """Build or find the image. Once, however many threads ask at the same time; raises `ImageFailed`."""

    @abstractmethod
    def is_prepared(self, image: Image) -> bool:
        """Whether `prepare` would have nothing to build."""

    @abstractmethod
    def paths(self, job_id: str, image: Image) -> BoxPaths:
        """Where things will lie in that job's box."""

    @abstractmethod
    def run(self, job: Job, sink: LogSink) -> JobResult:
        """Run one job to its end. A non-zero exit, running over time or out of memory is a result.

        So is being cancelled. Raises SandboxFailed for what is not the job's own doing, and JobCancelled when it was
        cancelled before it began. Safe to call from many threads.
        """

    @abstractmethod
    def reap(self, *, dry_run: bool = False) -> list[str]:
        """Remove what dead processes of ours left behind, and say what; never anyone else's.

        With `dry_run` only say it. Raises BackendUnavailable when nobody can be asked.
        """

    def removable_images(self) -> list[BuiltImage]:
        """Images that were built here and that nothing uses, in an order in which they can be removed."""
        return []

    def remove_image(self, image: BuiltImage) -> bool:
        """Remove it; False when something uses it by now. Raises SandboxFailed when it cannot be removed."""
        raise NotImplementedError

    def is_answering(self) -> bool:
        """Whether boxes can be made now: quick, and right also after an engine came back. Never raises."""
        return True

    def disks(self) -> list[Path]:
        """Folders of this machine in which boxes take up space."""
        return []

    def versions(self) -> dict[str, str]:
        """What the manifest records of the machine beneath."""
        return {}

    def cancel(self) -> None:
        """Ask every running job to end: what it did so far is its result. Later ones raise JobCancelled."""
        self.cancelled.set()

    def kill(self) -> None:
        """End every box of this process at once and keep nothing: it is about to leave. Never raises."""
        self.cancelled.set()

    def close(self) -> None:
        """Wait for boxes that are being freed."""

    def _raise_if_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise JobCancelled


_TIME_IS_OVER = "the job's time is over"


class Watch:
    """Tells when a box must be ended from outside: the same rule for every backend."""

    def __init__(
        self, job: Job, handout: Handout, clock: Callable[[], float], cancelled: threading.Event | None = None
    ) -> None:
        self._job, self._handout, self._clock = job, handout, clock
        self._cancelled = cancelled or threading.Event()
        self._started = clock()
        self._stopping_since: float | None = None
        self._late_since: float | None = None
        self.asked = False
        """Whether the box was asked to end; set by the backend when it has done so."""
        self.timed_out = False
        """Recorded before the box is killed: an exit code does not tell a timeout."""

    def wants_stop(self) -> bool:
        """Whether the box should be asked to end now, so that it hands out what its command did so far."""
        runs = self._handout.began is not None and self._handout.ended_at is None
        return self._cancelled.is_set() and self._job.capture and runs and not self.asked

    def overdue(self, *, more_waits: bool = False) -> str | None:
        """Why the box must end now, or None.

        `more_waits`: something the box said was not read yet. After we were stopped ourselves it may say that all went
        well, so it is read first; but a box that talks without end is not listened to for ever.
        """
        now, handout = self._clock(), self._handout
        if handout.broken:
            return f"the handout broke off: {handout.broken}"
        if self._cancelled.is_set() and (not self._job.capture or handout.began is None):
            return "it was ended: everything stops"
        late = self._late(now)
        if late is None:
            self._late_since = None
            return None
        self._late_since = now if self._late_since is None else self._late_since
        if more_waits and now <= self._late_since + GRACE_S:
            return None
        self.timed_out = late == _TIME_IS_OVER
        return late

    def _late(self, now: float) -> str | None:
        """Which of its times the box has exceeded."""
        handout = self._handout
        if self._cancelled.is_set() and (unwilling := self._unwilling(now)):
            return unwilling
        if handout.began is None:
            return "the box did not start in time" if now > self._started + START_LIMIT_S else None
        if handout.ended_at is None:
            return _TIME_IS_OVER if now > handout.began + self._job.hard_limit_s else None
        return "handing out took too long" if now > handout.ended_at + HANDOUT_LIMIT_S else None

    def written_too_much(self, written_bytes: Callable[[], int]) -> str | None:
        """Why the box must end, asked for only when it has run for a while: most are gone by then."""
        handout, limit_mb = self._handout, self._job.limits.disk_mb
        runs = handout.began is not None and handout.ended_at is None
        if not runs or self.duration_s() < LOOK_EVERY_S or written_bytes() <= limit_mb * 1024 * 1024:
            return None
        return f"wrote more than {limit_mb} MB, limits.disk_mb"

    def _unwilling(self, now: float) -> str | None:
        """Why a box need not be waited for any more once all are to end: it had its time."""
        self._stopping_since = self._stopping_since or now
        late = now > self._stopping_since + STOP_LIMIT_S
        return f"it did not end within {STOP_LIMIT_S:g} s of being asked to" if late else None

    def is_cancelled(self) -> bool:
        """Whether it ended because all were to end. A command that ended by itself just before counts as what it is."""
        handout = self._handout
        told = handout.done or (handout.ended_at is not None and self._job.capture)
        return self._cancelled.is_set() and not self.timed_out and (handout.was_asked or not told)

    def was_stopped_by_others(self) -> bool:
        """Whether someone else asked the supervisor to end: not us."""
        return self._handout.was_asked and not self._cancelled.is_set()

    def how_it_ended(self, *, out_of_memory: bool) -> Ended:
        """The verdict, by our own record first."""
        if out_of_memory:
            return Ended.OUT_OF_MEMORY
        if self.is_cancelled():
            return Ended.CANCELLED
        return Ended.TIMEOUT if self.is_timeout() else Ended.EXITED

    def ended_by_itself(self) -> bool:
        """Whether the supervisor says so and handed all out: then whatever we held against the box came too late."""
        return self._handout.done and self._handout.how == "exited"

    def is_timeout(self) -> bool:
        """By our own record, or by the supervisor's word where our clock agrees: a job could send it the signal.

        Counted from when we started the box: its lines may have waited for us, and then all come in one instant.
        """
        spent_s = (self._handout.ended_at or self._clock()) - self._started
        on_time = spent_s >= self._job.timeout_s - 1.0
        return (self.timed_out and not self.ended_by_itself()) or (self._handout.timed_out and on_time)

    def duration_s(self) -> float:
        """The command's own time, as far as it is known: if we were stopped meanwhile, no more than it can have had."""
        began = self._handout.began or self._started
        seen_s = min((self._handout.ended_at or self._clock()) - began, self._job.hard_limit_s)
        return max(seen_s, self._job.timeout_s) if self.is_timeout() else seen_s


class Once:
    """Does a piece of work once per key, however many threads ask; the others wait and share how it ended."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._keys: dict[str, tuple[threading.Event, list[Exception]]] = {}

    def __call__(self, key: str, work: Callable[[], None]) -> None:
        """Do `work` for `key` unless it was done. What it raises is raised for all who asked.

        An ImageFailed is remembered, because it would come again; after anything else the next to ask tries again.
        Nobody waits for work that was cancelled: it runs in a thread that ends with the program.
        """
        with self._lock:
            first = key not in self._keys
            done, failures = self._keys.setdefault(key, (threading.Event(), []))
        if first:
            threading.Thread(target=self._do, args=(key, work, done, failures), name=f"once-{key}", daemon=True).start()
        while not done.wait(0.2):
            if self._cancelled.is_set():
                raise JobCancelled
        if failures:
            raise failures[0]

    def _do(self, key: str, work: Callable[[], None], done: threading.Event, failures: list[Exception]) -> None:
        try:
            work()
        except Exception as exc:  # noqa: BLE001 - raised again in the threads that wait
            failures.append(exc)
        finally:
            if failures and not isinstance(failures[0], ImageFailed):
                with self._lock:
                    del self._keys[key]
            done.set()
