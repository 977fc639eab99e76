"""Boxes in a Docker engine, through docker-py. Everything that knows the engine is in this file and `docker_images`.

The engine is the slow part, so the number of calls per run is what we control: create, attach, start and remove. Files
go in and come out on the attached stream; the container's own state is asked for only when something went wrong.
"""

import contextlib
import io
import logging
import os
import select
import socket
import struct
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from threading import Thread
from typing import Any

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import LogConfig, Ulimit

from rollouts.archive import unpack
from rollouts.backends.base import (
    BOX_HOME,
    BOX_TOOLS,
    Backend,
    BoxPaths,
    BuiltImage,
    Ended,
    Finding,
    Image,
    Job,
    JobResult,
    LogSink,
    Once,
    Watch,
)
from rollouts.backends.disk_use import DiskUse
from rollouts.backends.docker_images import DockerImages
from rollouts.backends.handout import Handout
from rollouts.backends.image_tree import removable
from rollouts.config import DockerSettings
from rollouts.errors import BackendUnavailable, SandboxFailed
from rollouts.image_uses import images_in_use
from rollouts.owner import Owner

log = logging.getLogger(__name__)

API_LIMIT_S = 120
PING_LIMIT_S = 2.5
LOOK_EVERY_S = 0.25
"""How often a box's time and the wish to cancel are looked at."""
END_LIMIT_S = 30.0
"""How long the engine may take to end a container that was killed."""
ULIMITS = (("nofile", 4096), ("core", 0))
QUOTA_DRIVERS = ("btrfs", "zfs", "devicemapper")
COMPAT_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL"]
"""What installing packages needs, as root in the box."""
OWNER_LABEL, BATCH_LABEL, RUN_LABEL = "rollouts.owner", "rollouts.batch", "rollouts.run"
ENGINE_TROUBLE = (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError)


class DockerBackend(Backend):
    """Runs jobs as containers of one engine."""

    name = "docker"

    def __init__(self, settings: DockerSettings, cache_dir: Path) -> None:
        super().__init__(settings, cache_dir)
        self._teardown = ThreadPoolExecutor(4, thread_name_prefix="teardown")
        self._once = Once(self.cancelled)
        self._disk = DiskUse(self._written)
        self._engine_limits_disk: bool | None = None
        """Whether the engine itself holds containers to a size; None until that is known."""
        self._making: set[str] = set()
        """Jobs whose container is being made: it may be there before we know its id."""
        self._left: set[str] = set()
        """Containers that could not be removed, and runs that may have one of which the engine never told."""

    @cached_property
    def _api(self) -> docker.APIClient:
        """Safe for many threads: each call takes a connection of its own out of a large pool."""
        try:
            client = docker.from_env(timeout=API_LIMIT_S, max_pool_size=1024)
            client.api.ping()
        except ENGINE_TROUBLE as exc:
            raise BackendUnavailable(_why_unreachable(exc)) from exc
        return client.api

    @cached_property
    def _images(self) -> DockerImages:
        return DockerImages(self._api, self.settings.base_image, self.cache_dir, self.cancelled, lambda: self.secrets)

    def check(self) -> None:
        """An engine answers."""
        with _telling():
            self._api.ping()

    def is_answering(self) -> bool:
        """A ping, twice: a connection that was kept open may be one to an engine that is gone since."""
        for _ in range(2):
            with contextlib.suppress(BackendUnavailable, *ENGINE_TROUBLE):
                return self._api.get(f"{self._api.base_url}/_ping", timeout=PING_LIMIT_S).ok
        return False

    def versions(self) -> dict[str, str]:
        """The engine's."""
        with _telling():
            version = self._api.version()
        return {
            "docker": version["Version"],
            "docker_api": version["ApiVersion"],
            "base_image": self.settings.base_image,
        }

    def findings(self) -> list[Finding]:
        """The engine, then the default base image."""
        try:
            version = self._api.version()
            base = self._images.has_base()
        except BackendUnavailable as exc:
            where, _, advice = str(exc).removeprefix("docker: ").partition("; ")
            return [Finding("docker engine", False, where, advice)]
        except ENGINE_TROUBLE as exc:
            return [Finding("docker engine", False, _explain(exc), "restart Docker")]
        advice = "" if base else "it is pulled when first needed; without a registry set $ROLLOUTS_BASE_IMAGE"
        return [
            Finding("docker engine", True, f"{version['Version']} (API {version['ApiVersion']})"),
            Finding("base image", base, self.settings.base_image, advice),
        ]

    def prepare(self, image: Image, sink: LogSink) -> None:
        """Build it unless the engine has it."""
        try:
            self._once(image.digest(), lambda: self._images.build(image, sink))
        except ENGINE_TROUBLE as exc:
            raise SandboxFailed(f"the engine failed: {_explain(exc)}") from exc

    def is_prepared(self, image: Image) -> bool:
        """Whether the engine has it already."""
        return self._images.has(image)

    def paths(self, job_id: str, image: Image) -> BoxPaths:
        """The same in every box of an image."""
        cwd = f"{image.workdir}/{image.subdir}" if image.subdir else image.workdir
        return BoxPaths(image.workdir, cwd, BOX_TOOLS, BOX_HOME)

    def run(self, job: Job, sink: LogSink) -> JobResult:
        """One container, removed when the result is freed."""
        container = self._make(job)
        try:
            self._raise_if_cancelled()
            return _Container(self, self._api, container, job, sink).run()
        except ENGINE_TROUBLE as exc:
            self._free(container)
            raise SandboxFailed(f"the engine failed: {_explain(exc)}") from exc
        except BaseException:
            self._free(container)
            raise

    def _make(self, job: Job) -> str:
        self._making.add(job.job_id)
        try:
            self._raise_if_cancelled()
            return self._create(job)
        except ENGINE_TROUBLE as exc:
            self._left.add(job.run_id)
            raise SandboxFailed(f"the container could not be made: {_explain(exc)}") from exc
        finally:
            self._making.discard(job.job_id)

    def _create(self, job: Job) -> str:
        try:
            return self._create_limited(job)
        except ImageNotFound:  # removed by someone since it was built
            self._images.build(job.image, lambda data: None)
            return self._create_limited(job)

    def _create_limited(self, job: Job) -> str:
        """With a limit of its size where the engine takes one."""
        try:
            made = self._api.create_container_from_config(self._config(job), None)  # type: ignore[no-untyped-call] # docker's stubs lack it
        except APIError as exc:
            if not self._engine_limits_disk or "storage" not in _explain(exc):
                raise
            self._engine_limits_disk = False  # its storage could, but was not set up for it
            made = self._api.create_container_from_config(self._config(job), None)  # type: ignore[no-untyped-call] # as above
        return str(made["Id"])

    def _config(self, job: Job) -> dict[str, Any]:
        paths = self.paths(job.job_id, job.image)
        memory, disk = job.limits.memory_mb * 1024 * 1024, job.limits.disk_mb * 1024 * 1024
        compat = job.profile == "compat"
        host = self._api.create_host_config(
            init=True,
            network_mode="bridge" if job.network == "open" else "none",
            cap_drop=["ALL"],
            cap_add=COMPAT_CAPABILITIES if compat else [],
            security_opt=["no-new-privileges"],
            pids_limit=job.limits.pids,
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=min(round(job.limits.cpus * 1e9), self._cpus * 10**9),
            tmpfs={"/tmp": "rw,exec,nosuid,nodev,size=512m"},
            ulimits=[Ulimit(name=name, soft=most, hard=most) for name, most in (*ULIMITS, ("fsize", disk))],
            storage_opt={"size": str(disk)} if self._can_limit_disk() else None,
            log_config=LogConfig(type="none"),  # we read the attached stream; a log beside it costs 20 times as much
        )
        config: dict[str, Any] = self._api.create_container_config(
            self._images.tag(job.image),
            command=[],
            entrypoint=job.supervisor(paths, boxed=True, unpack=bool(job.files), capture=not compat),
            environment={**job.env, **paths.environment()},
            host_config=host,
            labels={OWNER_LABEL: Owner.current().encode(), BATCH_LABEL: job.batch, RUN_LABEL: job.run_id},
            stdin_open=True,
        )
        config["StdinOnce"] = config["AttachStdin"] = True
        return config

    def _can_limit_disk(self) -> bool:
        if self._engine_limits_disk is None:
            self._engine_limits_disk = can_limit_disk(self._info)
        return self._engine_limits_disk

    def _written(self) -> dict[str, int]:
        """What the containers of this process have written, in one call for all."""
        own = {"label": f"{OWNER_LABEL}={Owner.current().encode()}"}
        found = self._api.containers(size=True, filters=own)
        return {container["Id"]: int(container.get("SizeRw") or 0) for container in found}

    @cached_property
    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = self._api.info()
        return info

    @property
    def _cpus(self) -> int:
        """The engine refuses to give more than it has."""
        return int(self._info["NCPU"])

    def disks(self) -> list[Path]:
        """The engine's own folder, when the engine is on this machine."""
        is_here = self._api.base_url.startswith("http+docker://") and "DockerRootDir" in self._info
        folder = Path(self._info["DockerRootDir"]) if is_here else None
        return [folder] if folder is not None and folder.is_dir() else []

    def reap(self, *, dry_run: bool = False) -> list[str]:
        """Remove containers whose owner is dead."""
        with _telling():
            found = self._api.containers(all=True, filters={"label": OWNER_LABEL})
        left = [container for container in found if _is_abandoned(container)]
        for container in () if dry_run else left:
            self._remove(container["Id"])
        return [f"{container['Id'][:12]} ({container['Labels'].get(RUN_LABEL, '?')})" for container in left]

    def kill(self) -> None:
        """Remove all containers of this process, until there are none and none is being made."""
        super().kill()
        if "_api" not in self.__dict__:
            return
        deadline = time.monotonic() + END_LIMIT_S
        own = {"label": f"{OWNER_LABEL}={Owner.current().encode()}"}
        with contextlib.suppress(*ENGINE_TROUBLE):
            while (found := self._api.containers(all=True, filters=own)) or self._making:
                if time.monotonic() > deadline:
                    return
                removers = [Thread(target=self._remove, args=(each["Id"],), daemon=True) for each in found]
                for remover in removers:
                    remover.start()
                for remover in removers:
                    remover.join()
                time.sleep(0.05)

    def removable_images(self) -> list[BuiltImage]:
        """Those that no container, stopped or not, and no process of this data folder uses."""
        with _telling():
            listed = self._api.images(all=True)
            used = [container["ImageID"] for container in self._api.containers(all=True)]
        return removable(listed, used, images_in_use(self.cache_dir), time.time())

    def remove_image(self, image: BuiltImage) -> bool:
        """Without force: the engine keeps what a container uses by now."""
        try:
            self._api.remove_image(image.name)
        except NotFound:
            return True
        except APIError as exc:
            if exc.status_code == 409:
                return False
            raise SandboxFailed(_explain(exc)) from exc
        except ENGINE_TROUBLE as exc:
            raise SandboxFailed(_explain(exc)) from exc
        return True

    def _free(self, container: str) -> None:
        self._teardown.submit(self._remove, container)

    def _remove(self, container: str) -> None:
        """Kill and remove: no stop grace, nothing in the box is worth waiting for."""
        try:
            self._api.remove_container(container, v=True, force=True)
        except NotFound:
            log.debug("container %s was gone already", container[:12])
        except ENGINE_TROUBLE as exc:
            if isinstance(exc, APIError) and exc.status_code == HTTPStatus.CONFLICT:
                return  # someone else is removing it
            log.warning("container %s could not be removed yet: %s", container[:12], _explain(exc))
            self._left.add(container)

    def close(self) -> None:
        """Wait until all containers are gone."""
        self._teardown.shutdown(wait=True)
        if "_images" in self.__dict__:
            self._images.close()
        self._remove_left()
        if "_api" in self.__dict__:
            self._api.close()

    def _remove_left(self) -> None:
        """An engine that was away may be back; it knows best what is left there."""
        if not self._left or not self.is_answering():
            return
        with contextlib.suppress(*ENGINE_TROUBLE):
            own = {"label": f"{OWNER_LABEL}={Owner.current().encode()}"}
            for found in self._api.containers(all=True, filters=own):
                if not self._left.isdisjoint((found["Id"], found["Labels"][RUN_LABEL])):
                    self._remove(found["Id"])


class _Container:
    """One container while it runs."""

    def __init__(self, backend: DockerBackend, api: docker.APIClient, container: str, job: Job, sink: LogSink) -> None:
        self._backend, self._api, self._id, self._job, self._sink = backend, api, container, job, sink
        self._handout = Handout(job.outputs_dir, time.monotonic, job.stdout or sink)
        self._watch = Watch(job, self._handout, time.monotonic, backend.cancelled)
        self._why: str | None = None
        self._frames = bytearray()

    def run(self) -> JobResult:
        params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        stream = self._api.attach_socket(self._id, params=params)  # before the start, so that nothing is missed
        wire: socket.socket = getattr(stream, "_sock", stream)
        try:
            started = time.time()
            self._api.start(self._id)
            wire.settimeout(API_LIMIT_S)
            wire.sendall(self._job.stdin(self._handout.word) + (_tar(self._job.files) if self._job.files else b""))
            wire.shutdown(socket.SHUT_WR)
            self._attend(wire)
        finally:
            stream.close()
            wire.close()  # the stream is only a view of it
            self._handout.close()
        return self._result(started)

    def _attend(self, wire: socket.socket) -> None:
        """Pass output on until the box has ended, if need be by us.

        The handout's end may overtake a megabyte of output: the engine keeps a queue for each of the two pipes.
        """
        poll = select.poll()  # `select.select` takes no descriptor above 1,023
        poll.register(wire, select.POLLIN)
        next_look = time.monotonic() + LOOK_EVERY_S
        kill_by = None
        while True:
            came = poll.poll(LOOK_EVERY_S * 1000)
            if came:
                data = wire.recv(262144)
                if not data:
                    return
                self._take(data)
            elif self._handout.done:
                return
            if time.monotonic() < next_look:
                continue
            next_look = time.monotonic() + LOOK_EVERY_S
            if kill_by is None and self._must_end(more_waits=bool(came or poll.poll(0))):
                kill_by = time.monotonic() + END_LIMIT_S
                self._signal("KILL")
            elif kill_by is None and self._watch.wants_stop():
                self._watch.asked = True
                self._signal("TERM")
            elif kill_by is not None and time.monotonic() > kill_by:
                raise SandboxFailed(f"the engine did not end the container within {END_LIMIT_S:.0f} s")

    def _must_end(self, *, more_waits: bool) -> bool:
        self._why = self._watch.overdue(more_waits=more_waits)
        if self._why is None and not self._backend._engine_limits_disk:
            self._why = self._watch.written_too_much(lambda: self._backend._disk.bytes_of(self._id))
        return self._why is not None

    def _signal(self, name: str) -> None:
        """To the init process, which passes it on to the supervisor. It may have ended meanwhile."""
        with contextlib.suppress(APIError):
            self._api.kill(self._id, signal=name)

    def _take(self, data: bytes) -> None:
        """The stream comes in frames: which pipe, how many bytes, the bytes."""
        self._frames += data
        start = 0
        while len(self._frames) - start >= 8:
            kind, size = struct.unpack_from(">BxxxL", self._frames, start)
            if len(self._frames) - start - 8 < size:
                break
            content = bytes(self._frames[start + 8 : start + 8 + size])
            self._handout.feed(content) if kind == 1 else self._sink(content)
            start += 8 + size
        del self._frames[:start]

    def _result(self, started: float) -> JobResult:
        handout, watch = self._handout, self._watch
        fine = handout.done and handout.exit_code == 0
        state = {} if fine else self._final_state()
        out_of_memory = bool(state.get("OOMKilled")) and not watch.is_timeout()
        if handout.began is None and not out_of_memory:
            self._backend._raise_if_cancelled()
            said = "; ".join(handout.notes) or self._why or state.get("Error") or f"exit code {state.get('ExitCode')}"
            raise SandboxFailed(f"the sandbox did not start: {said}")
        told = handout.done and not watch.was_stopped_by_others()
        ours = told or self._why is not None or out_of_memory or watch.is_cancelled()
        if not ours and self._was_killed(started):
            raise SandboxFailed("the container was killed from outside, or its engine was")
        ended = watch.how_it_ended(out_of_memory=out_of_memory)
        outputs = dict(handout.files) if handout.done else {}
        lost = self._job.capture and "diff.patch" not in outputs
        return JobResult(
            ended=ended,
            exit_code=handout.exit_code if ended is Ended.EXITED else None,
            duration_s=watch.duration_s(),
            outputs=outputs,
            workspace=self._take_out() if lost else None,
            notes=(*handout.notes, *((self._why,) if self._why and not watch.ended_by_itself() else ())),
            free=lambda: self._backend._free(self._id),
        )

    def _final_state(self) -> dict[str, Any]:
        """How the container ended. Its stream is over, so this is a matter of moments."""
        deadline = time.monotonic() + END_LIMIT_S
        while True:
            state: dict[str, Any] = self._api.inspect_container(self._id)["State"]
            if not state["Running"]:
                return state
            if time.monotonic() > deadline:
                raise SandboxFailed(f"the container did not end within {END_LIMIT_S:.0f} s")
            time.sleep(0.02)

    def _was_killed(self, started: float) -> bool:
        """The supervisor is gone without a word. If someone killed the container, the engine has seen it.

        An engine that has not even seen it end was not there: it was started again since, and forgot all it had seen.
        """
        events = self._api.events(
            since=int(started) - 1,
            until=int(time.time()) + 1,
            filters={"container": self._id, "event": ["die", "kill", "stop"]},
            decode=True,
        )
        seen = {event["Action"] for event in events}
        return "die" not in seen or not seen.isdisjoint(("kill", "stop"))

    def _take_out(self) -> Path:
        """Get the repository out of the stopped container, so that the patch can be made outside."""
        target = Path(tempfile.mkdtemp(prefix=".workspace-", dir=self._job.outputs_dir)) / "tree"
        try:
            chunks, _ = self._api.get_archive(self._id, self._job.image.workdir, chunk_size=1024 * 1024)
            unpack(chunks, target)
            deque(chunks, maxlen=0)  # the padding behind an archive; unread it would hold the connection
        except NotFound:
            log.debug("%s: the repository itself is gone: everything was deleted", self._job.run_id)
        except tarfile.TarError as exc:
            raise SandboxFailed(f"the repository could not be taken out of the box: {exc}") from exc
        return target


def _is_abandoned(container: dict[str, Any]) -> bool:
    """By its owner; unless the engine is at it already."""
    owner = Owner.decode(container["Labels"][OWNER_LABEL])
    return owner is not None and owner.is_dead() and container.get("State") != "removing"


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Outside of runs, an engine in trouble ends the program with its own words."""
    try:
        yield
    except ENGINE_TROUBLE as exc:
        raise BackendUnavailable(_why_unreachable(exc)) from exc


def can_limit_disk(info: Mapping[str, Any]) -> bool:
    """Whether an engine says of itself that its storage knows quotas; it may still refuse."""
    driver, status = info.get("Driver"), dict(info.get("DriverStatus") or ())
    return driver in QUOTA_DRIVERS or (driver == "overlay2" and status.get("Backing Filesystem") == "xfs")


def _tar(files: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def _explain(exc: BaseException) -> str:
    text = str(getattr(exc, "explanation", None) or exc)
    return " ".join(text.split())[:500]


def _why_unreachable(exc: BaseException) -> str:
    where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    text = str(exc)
    if "Permission denied" in text or "PermissionError" in text:
        advice = "permission denied; add your user to the group docker, or set DOCKER_HOST to an engine of your own"
    elif "FileNotFoundError" in text or "Connection refused" in text or "No such file" in text:
        advice = "no engine is running there; start Docker, set DOCKER_HOST, or use --backend local"
    else:
        advice = f"{_explain(exc)}; start Docker, set DOCKER_HOST, or use --backend local"
    return f"docker: cannot reach the engine at {where}: {advice}"
