"""Boxes on this machine without an engine: bubblewrap when it works here, else a plain process group.

Bubblewrap gives a box its own mounts, processes and, unless the network is `open`, its own network. It limits neither
memory nor processes: `prlimit` and a watch over the box's memory do. A plain process is not isolated at all; that is
said on stderr. Either way the repository stays on this disk, so patches are always made from outside the box.
"""

import contextlib
import hashlib
import logging
import os
import re
import resource
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path, PurePosixPath

from rollouts.backends.base import (
    BOX_HOME,
    BOX_TOOLS,
    Backend,
    BoxPaths,
    Ended,
    Finding,
    Image,
    Job,
    JobResult,
    LogSink,
    Watch,
    sandbox_file,
)
from rollouts.backends.bubblewrap import FIRST_BOX_UID, USER_UID, Isolation, bubblewrap, mounts, works
from rollouts.backends.disk_use import DiskUse
from rollouts.backends.handout import Handout
from rollouts.backends.processes import box_main, kill_marked, memory_bytes
from rollouts.config import DockerSettings
from rollouts.errors import ImageFailed, SandboxFailed
from rollouts.files import is_alive, remove_tree
from rollouts.owner import OWNER_FILE, claim, is_left_behind, owner_of

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
"""How often a box's memory, its time and the wish to cancel are looked at."""
DU_LIMIT_S = 120.0
PIPE_LIMIT_BYTES = 1024 * 1024
"""The most that a pipe may hold."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEW = ".new-"
"""How folders of boxes begin that do not say yet whose they are."""
_TAKEN = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt", "/tmp", "/run", "/var/tmp", "/home")


class LocalBackend(Backend):
    """Runs jobs as processes of this machine."""

    name = "local"

    def __init__(self, settings: DockerSettings, cache_dir: Path, isolation: Isolation | None = None) -> None:
        super().__init__(settings, cache_dir)
        self._wanted = isolation
        self._told = False
        self._open: dict[Path, int] = {}
        """Boxes that run, each with the process group that it is."""
        self._disk = DiskUse(self._written)
        self._trees: dict[Path, Path] = {}
        """What each box that runs was copied from: that much it did not write."""
        self._teardown = ThreadPoolExecutor(2, thread_name_prefix="teardown")
        self._boxes = Path(tempfile.gettempdir()) / f"rollouts-{os.getuid()}"

    @cached_property
    def isolation(self) -> Isolation:
        """The best that works here, found out by trying."""
        if self._wanted is not None:
            return self._wanted
        candidates = [Isolation.ROOT, Isolation.USER] if os.getuid() == 0 else [Isolation.USER]
        return next((kind for kind in candidates if works(kind)), Isolation.NONE)

    def check(self) -> None:
        """Nothing is needed; but no isolation is worth a warning."""
        if self.isolation is Isolation.NONE:
            log.warning("no bubblewrap here: sandboxes are plain processes, nothing is isolated")

    def findings(self) -> list[Finding]:
        """It always works; how well it isolates is what differs."""
        advice = "" if self.isolation is not Isolation.NONE else "install bubblewrap, so that sandboxes are isolated"
        return [
            Finding("local sandbox", True, "works without an engine"),
            Finding("bubblewrap", self.isolation is not Isolation.NONE, f"isolation: {self.isolation.value}", advice),
        ]

    def prepare(self, image: Image, sink: LogSink) -> None:
        """There is nothing to build: each box gets a copy of the tree, and this machine's programs."""
        if any(PurePosixPath(image.workdir).is_relative_to(folder) for folder in _TAKEN):
            raise ImageFailed(
                f"{image.task_id}: environment.workdir: {image.workdir} is the system's own; choose another"
            )
        wishes = {"a Dockerfile": image.dockerfile, "environment.image": image.base, "environment.user": image.user}
        ignored = [name for name, value in {**wishes, "install": image.install}.items() if value]
        if ignored and not self._told:
            self._told = True
            log.warning("local sandboxes use this machine's programs; not used: %s", ", ".join(ignored))

    def is_prepared(self, image: Image) -> bool:
        """Always."""
        return True

    def disks(self) -> list[Path]:
        """Where boxes lie."""
        return [self._boxes.parent]

    def versions(self) -> dict[str, str]:
        """The kind of isolation is what matters about this machine."""
        return {"isolation": self.isolation.value}

    def paths(self, job_id: str, image: Image) -> BoxPaths:
        """Fixed within bubblewrap; the real ones for a plain process."""
        if self.isolation is Isolation.NONE:
            box = self._box(job_id)
            repo, tools, home = f"{box}/app/repo", f"{box}/tools", f"{box}/home"
        else:
            repo, tools, home = image.workdir, BOX_TOOLS, BOX_HOME
        return BoxPaths(repo, f"{repo}/{image.subdir}" if image.subdir else repo, tools, home)

    def _box(self, job_id: str) -> Path:
        return self._boxes / f"{job_id}-{os.getpid()}"

    def run(self, job: Job, sink: LogSink) -> JobResult:
        """One process tree, one folder."""
        self._raise_if_cancelled()
        box = self._box(job.job_id)
        try:
            self._make_owned(box)
            return self._run_in(box, job, sink)
        except OSError as exc:
            raise SandboxFailed(f"cannot make a sandbox at {box}: {exc.strerror or exc}") from exc

    def _run_in(self, box: Path, job: Job, sink: LogSink) -> JobResult:
        """In a box that this call made: only such a one may be freed when something goes wrong."""
        try:
            uid = self._lay_out(box, job)
            command = self._command(box, job, uid)
            return _BoxProcess(self, box, job, sink).run(command, self._environment(box, job))
        except BaseException:
            self._free(box)
            raise

    def _lay_out(self, box: Path, job: Job) -> int | None:
        """Fill the folder; returns the user id that it belongs to when that is not ours."""
        for name in ("app", "tools", "tools/in", "tools/out", "home"):
            (box / name).mkdir()
        if job.image.overlay:
            shutil.copytree(job.image.overlay, box / "app", symlinks=True, dirs_exist_ok=True)
        _copy(job.image.tree, box / "app/repo")
        shutil.copy(sandbox_file("supervise.sh"), box / "tools/supervise.sh")
        (box / "tools/instructions.md").write_text(job.image.instructions)
        for name, content in job.files.items():
            (box / "tools/in" / name).write_bytes(content)
        if self.isolation is not Isolation.ROOT:
            _write_users(box, USER_UID)
            return None
        uid = FIRST_BOX_UID + int.from_bytes(hashlib.sha256(str(box).encode()).digest()[:4]) % 1_000_000_000
        for path in (box / "app", box / "tools", box / "home"):
            _give(path, uid)
        _write_users(box, uid)
        return uid

    def _make_owned(self, box: Path) -> None:
        """A box has an owner at every instant of its life, so that it is clear whose it is whenever we are killed."""
        self._boxes.mkdir(mode=0o711, exist_ok=True)
        if not self._boxes_are_ours():
            raise SandboxFailed(f"{self._boxes} belongs to someone else; set TMPDIR to a folder of your own")
        new = Path(tempfile.mkdtemp(prefix=f"{_NEW}{os.getpid()}-", dir=self._boxes))
        try:
            claim(new)
            new.rename(box)
        except OSError:
            remove_tree(new)
            raise

    def _environment(self, box: Path, job: Job) -> dict[str, str]:
        """Values go here and never into an argument, where every user of the machine could read them."""
        own_tools = f"{sys.prefix}/bin"
        path = f"{_PATH}:{own_tools}" if self.isolation is not Isolation.NONE else os.environ.get("PATH", _PATH)
        base = {"PATH": path, "LANG": "C.UTF-8", "ROLLOUTS_PYTHON": f"{own_tools}/python3"}
        paths = self.paths(job.job_id, job.image)
        return {**base, **job.env, **paths.environment(), "ROLLOUTS_JOB": box.name}

    def _command(self, box: Path, job: Job, uid: int | None) -> list[str]:
        boxed = self.isolation is not Isolation.NONE
        paths = self.paths(job.job_id, job.image)
        supervisor = job.supervisor(paths, boxed=boxed, unpack=False, capture=False)
        pids = _at_most(job.limits.pids, resource.RLIMIT_NPROC)
        fsize = _at_most(job.limits.disk_mb * 1024 * 1024, resource.RLIMIT_FSIZE)
        limits = [f"--fsize={fsize}:{fsize}"]
        limits += [f"--nproc={pids}:{pids}", "--core=0:0", "--nofile=4096:4096"] if boxed else []
        limited = [_program("prlimit"), *limits] if shutil.which("prlimit") else []
        if not boxed:
            return [*limited, *supervisor]
        if uid is not None:
            dropped = [_program("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"]
            supervisor = [*dropped, "--bounding-set=-all", "--inh-caps=-all", *supervisor]
        return [
            *bubblewrap(self.isolation, job.network == "open"),
            *mounts(box, job.image),
            "--",
            *limited,
            *supervisor,
        ]

    def _written(self) -> dict[str, int]:
        """What the boxes that run have written, in one walk over all."""
        trees = dict(self._trees)
        sizes = _sizes({*trees, *trees.values()})
        return {str(box): sizes[box] - sizes.get(tree, 0) for box, tree in trees.items() if box in sizes}

    def _boxes_are_ours(self) -> bool:
        """The name can be guessed: neither another's folder nor a link is ours."""
        try:
            state = self._boxes.lstat()
        except FileNotFoundError:
            return False
        return state.st_uid == os.getuid() and stat.S_ISDIR(state.st_mode)

    def reap(self, *, dry_run: bool = False) -> list[str]:
        """Remove the folders of dead processes. Their boxes died with them, unless they were plain processes."""
        if not self._boxes_are_ours():
            return []
        left = [box for box in sorted(self._boxes.iterdir()) if _is_abandoned(box)]
        for box in () if dry_run else left:
            kill_marked(box.name)
            _remove(box)
        return [str(box) for box in left]

    def kill(self) -> None:
        """Kill first, tidy up then: there may be no time left for that."""
        super().kill()
        boxes = dict(self._open)
        for box, group in boxes.items():
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)
            if self.isolation is Isolation.NONE:
                kill_marked(box.name)
        for box in boxes:
            _remove(box)

    def _free(self, box: Path) -> None:
        self._teardown.submit(_remove, box)

    def close(self) -> None:
        """Wait until all folders are gone."""
        self._teardown.shutdown(wait=True)


class _BoxProcess:
    """One box while it runs."""

    def __init__(self, backend: LocalBackend, box: Path, job: Job, sink: LogSink) -> None:
        self._backend, self._box, self._job, self._sink = backend, box, job, sink
        self._handout = Handout(job.outputs_dir, time.monotonic, job.stdout or sink)
        self._watch = Watch(job, self._handout, time.monotonic, backend.cancelled)
        self._out_of_memory = False
        self._why: str | None = None
        self._plain = backend.isolation is Isolation.NONE

    def run(self, command: list[str], env: dict[str, str]) -> JobResult:
        self._backend._raise_if_cancelled()
        process = subprocess.Popen(
            command,
            env=env,
            cwd=self._box,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._backend._open[self._box] = process.pid
        self._backend._trees[self._box] = self._job.image.tree
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(self._job.stdin(self._handout.word))
                process.stdin.flush()
            self._attend(process)
        finally:
            self._end(process)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            self._handout.close()
        return self._result(process.returncode)

    def _attend(self, process: subprocess.Popen[bytes]) -> None:
        """Pass output on until the box has ended or must be ended."""
        with selectors.DefaultSelector() as selector:
            for pipe, take in ((process.stdout, self._handout.feed), (process.stderr, self._sink)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, take)
            next_look = time.monotonic() + LOOK_EVERY_S
            while selector.get_map():
                came = selector.select(max(0.0, next_look - time.monotonic()))
                for key, _ in came:
                    data = os.read(key.fd, 65536)
                    key.data(data) if data else selector.unregister(key.fileobj)
                if (self._handout.done or self._plain) and process.poll() is not None:
                    self._drain(process)
                    return
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + LOOK_EVERY_S
                    if self._must_end(process.pid, more_waits=bool(came or selector.select(0))):
                        return
                    if self._watch.wants_stop():
                        self._ask_to_end(process.pid)

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        """What was written just before the end is still in the pipes; a process that got away may write for ever."""
        for pipe, take in ((process.stdout, self._handout.feed), (process.stderr, self._sink)):
            assert pipe is not None
            left = PIPE_LIMIT_BYTES
            with contextlib.suppress(BlockingIOError):
                while left > 0 and (data := os.read(pipe.fileno(), 65536)):
                    take(data)
                    left -= len(data)

    def _must_end(self, pid: int, *, more_waits: bool) -> bool:
        self._why = self._watch.overdue(more_waits=more_waits)
        if memory_bytes(pid) > self._job.limits.memory_mb * 1024 * 1024:
            self._out_of_memory = True
            self._why = f"more than {self._job.limits.memory_mb} MB of memory"
        if self._why is None:
            self._why = self._watch.written_too_much(lambda: self._backend._disk.bytes_of(str(self._box)))
        return self._why is not None

    def _ask_to_end(self, pid: int) -> None:
        """The supervisor, not bubblewrap around it: that one would end the box."""
        supervisor = pid if self._plain else box_main(pid)
        if supervisor is not None:
            self._watch.asked = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGTERM)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        if self._plain:
            kill_marked(self._box.name)
        process.wait()
        self._backend._open.pop(self._box, None)
        self._backend._trees.pop(self._box, None)

    def _result(self, returncode: int) -> JobResult:
        handout, watch = self._handout, self._watch
        if handout.began is None and not self._out_of_memory:
            self._backend._raise_if_cancelled()
            said = "; ".join(handout.notes) or self._why or f"exit code {returncode}"
            raise SandboxFailed(f"the sandbox did not start: {said}")
        if self._why is None and not handout.done and not watch.is_cancelled() and returncode < 0:
            raise SandboxFailed(f"the sandbox was killed from outside (signal {-returncode})")
        ended = watch.how_it_ended(out_of_memory=self._out_of_memory)
        return JobResult(
            ended=ended,
            exit_code=handout.exit_code if ended is Ended.EXITED else None,
            duration_s=watch.duration_s(),
            outputs=dict(handout.files) if handout.broken is None else {},
            workspace=self._box / "app/repo",
            notes=(*handout.notes, *((self._why,) if self._why else ())),
            free=lambda: self._backend._free(self._box),
        )


def _program(name: str) -> str:
    """By its full path: the job's own PATH must not matter to us."""
    return shutil.which(name) or name


def _at_most(wanted: int, which: int) -> int:
    """A limit that may be set: none can be raised above what we have ourselves."""
    _, most = resource.getrlimit(which)
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most)


def _sizes(folders: Iterable[Path]) -> dict[Path, int]:
    """Bytes on disk below each folder. What cannot be read is not counted; a link is not followed."""
    command = ["du", "-s", "-k", "-x", "--", *map(str, folders)]
    done = subprocess.run(command, capture_output=True, start_new_session=True, timeout=DU_LIMIT_S)
    rows = (line.partition(b"\t") for line in done.stdout.splitlines())
    return {Path(os.fsdecode(name)): int(size) * 1024 for size, _, name in rows if size.isdigit()}


def _copy(tree: Path, target: Path) -> None:
    """`cp` copies thousands of files in the time that Python needs for hundreds."""
    command = ["cp", "-R", "-p", "-P", str(tree), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        raise SandboxFailed(f"cannot copy the task's source: {' '.join(done.stderr.split())[:300]}")


def _write_users(box: Path, uid: int) -> None:
    """Programs look their user up by number; the machine's own users are none of a box's business."""
    (box / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\nagent:x:{uid}:{uid}::{BOX_HOME}:/bin/sh\n")
    (box / "group").write_text(f"root:x:0:\nagent:x:{uid}:\n")


def _give(folder: Path, uid: int) -> None:
    os.chown(folder, uid, uid)
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(root, name), uid, uid, follow_symlinks=False)


def _is_abandoned(box: Path) -> bool:
    """By its owner. A box without one is being removed: it is made with it, and it goes last.

    One that is still being made may not have its owner yet, or not all of it; it has its process in its name.
    """
    made = re.fullmatch(rf".+-\d+|{re.escape(_NEW)}(\d+)-.+", box.name)
    if made is None or box.is_symlink() or not box.is_dir():
        return False  # nothing that we make
    if owner_of(box) is None and (made[1] is None or not is_alive(int(made[1]))):
        return True
    return is_left_behind(box)


def _remove(box: Path) -> None:
    """The owner's name goes last, so that whoever finds the rest knows whose it was."""
    try:
        for part in box.iterdir() if box.is_dir() else ():
            if part.name != OWNER_FILE:
                remove_tree(part)
        remove_tree(box)
    except OSError as exc:
        log.warning("%s is left behind until the next start: %s", box, exc.strerror)
