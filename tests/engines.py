"""A Docker engine of the tests' own, which may be stopped, restarted and killed. The one that others use never is.

It has processes, mounts and network to itself, behind a first process that ends when its stdin does. So it cannot meet
another engine, and nothing of it outlives the test, however that ends.
"""

import contextlib
import io
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import docker
import pytest

from rollouts.backends.docker import OWNER_LABEL
from rollouts.owner import claim, owner_of

BUSYBOX = "rollouts-test-busybox:latest"
"""The one image of such an engine: a shell and nothing else."""
START_LIMIT_S = 90.0
_PREFIX = "rt-engine-"
_PROGRAMS = {"dockerd": "docker.io", "unshare": "util-linux", "busybox": "busybox-static"}
_HOLDER = """
import os, signal, subprocess, sys

def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

signal.signal(signal.SIGCHLD, reap)
for _ in sys.stdin:
    subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
"""
"""The first process in there: starts an engine for each line, and buries the dead, or they would count as alive."""


@cache
def own_engine_trouble() -> str | None:
    """Why no engine of the tests' own can be started here."""
    if os.getuid() != 0:
        return "an engine of the tests' own needs root"
    missing = [package for program, package in _PROGRAMS.items() if not shutil.which(program)]
    return f"an engine of the tests' own needs {', '.join(missing)}; see .ci/engine" if missing else None


@contextlib.contextmanager
def own_engine(*, networked: bool = False) -> Iterator["OwnEngine"]:
    """An engine that leaves no trace. Where there can be none the test is skipped, or fails when `CI` is set."""
    trouble = own_engine_trouble()
    if trouble:
        pytest.fail(trouble) if os.environ.get("CI") else pytest.skip(trouble)
    _remove_left_behind()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))  # short: a socket's path has 107 bytes
    claim(folder)
    engine = OwnEngine(folder, networked=networked)
    try:
        engine.start()
        engine.take_in_busybox()
        yield engine
    finally:
        engine.close()


class OwnEngine:
    """One engine in a folder of its own."""

    def __init__(self, folder: Path, *, networked: bool) -> None:
        self.folder, self.host = folder, f"unix://{folder}/s"
        self._log = folder / "log"
        self._cgroup = _cgroup(folder)
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--net", "--mount-proc"]
        with self._log.open("wb") as log:
            self._holder = subprocess.Popen(
                [*command, sys.executable, "-c", _HOLDER, *self._dockerd(networked)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _dockerd(self, networked: bool) -> list[str]:
        places = {"host": self.host, "data-root": "d", "exec-root": "e", "pidfile": "p"}
        options = [f"--{name}={self.folder / value if name != 'host' else value}" for name, value in places.items()]
        cgroups = [f"--cgroup-parent=/{self._cgroup}", "--exec-opt=native.cgroupdriver=cgroupfs"]
        network = [] if networked else ["--bridge=none"]
        return ["dockerd", *options, *cgroups, *network, "--iptables=false", "--ip6tables=false"]

    @property
    def environ(self) -> dict[str, str]:
        """Variables for a command that is to use it."""
        return {"DOCKER_HOST": self.host, "ROLLOUTS_BASE_IMAGE": BUSYBOX}

    @contextlib.contextmanager
    def client(self) -> Iterator[docker.APIClient]:
        """A connection to it."""
        with contextlib.closing(docker.APIClient(base_url=self.host, version="auto", timeout=60)) as client:
            yield client

    def boxes(self) -> list[str]:
        """The containers that commands of ours made and have not removed."""
        with self.client() as client:
            return [box["Id"] for box in client.containers(all=True, filters={"label": OWNER_LABEL})]

    def is_answering(self) -> bool:
        """Asked by hand: docker-py loses a socket each time that nobody answers."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(10)
            wire.connect(self.host.removeprefix("unix://"))
            wire.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return wire.recv(64).split()[1:2] == [b"200"]
        return False

    # --- on and off ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Return once it answers. Files that a killed one left would stop the next."""
        for stale in ("p", "e/containerd/containerd.pid", "s"):
            (self.folder / stale).unlink(missing_ok=True)
        self.begin_start()
        self._wait(self.is_answering, "the engine answers")

    def begin_start(self) -> None:
        """Start it and return at once."""
        assert self._holder.stdin is not None
        self._holder.stdin.write(b"start\n")
        self._holder.stdin.flush()

    def stop(self) -> None:
        """End it as a service manager would: its containers end too."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would, in the middle of whatever it does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Off and on again."""
        self.stop()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        for pid in self._processes("dockerd"):
            os.kill(pid, number)
        self._wait(lambda: not self._processes("dockerd", "containerd"), "the engine has ended")

    def _processes(self, *names: str) -> list[int]:
        """Those of the engine's own, by name; containers of others on this machine have such processes too."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if Path(words[0]).name in names and any(str(self.folder) in word for word in words):
                    found.append(int(path.name))
        return found

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not condition():
            said = self._log.read_text(errors="replace")[-2000:]
            assert self._holder.poll() is None, f"the engine's holder is gone: {said}"
            assert time.monotonic() < deadline, f"waited in vain: {what}: {said}"
            time.sleep(0.02)

    def close(self) -> None:
        """Everything ends with the holder: the kernel sees to it before the holder's end is told."""
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        try:
            self._holder.wait(START_LIMIT_S)
        finally:
            self._holder.kill()
            self._holder.wait()
        _remove_traces(self.folder)

    def serve(self, folder: Path, port: int) -> str:
        """Have boxes with a network read files of that folder by HTTP; returns where. It ends with the engine."""
        (holder,) = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        server = ["busybox", "httpd", "-p", str(port), "-h", str(folder)]
        subprocess.run(["nsenter", f"--target={holder}", "--pid", "--mount", "--net", *server], check=True)
        with self.client() as client:
            subnet = client.inspect_network("bridge")["IPAM"]["Config"][0]["Subnet"]
        return f"{ipaddress.ip_network(subnet)[1]}:{port}"  # the engine's own end of the bridge

    # --- content -------------------------------------------------------------------------------------------------

    def take_in_busybox(self) -> None:
        """Give it the one image that tests need."""
        name, _, tag = BUSYBOX.partition(":")
        with self.client() as client:
            client.import_image_from_data(busybox_tar(), repository=name, tag=tag)


def busybox_tar() -> bytes:
    """The root of an image that has a shell and nothing else."""
    program = shutil.which("busybox") or ""
    content, out = Path(program).read_bytes(), io.BytesIO()
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for folder in ("bin", "tmp", "etc"):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        member = tarfile.TarInfo("bin/busybox")
        member.size, member.mode = len(content), 0o755
        archive.addfile(member, io.BytesIO(content))
        for name in set(applets) - {"busybox"}:
            member = tarfile.TarInfo(f"bin/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(member)
    return out.getvalue()


def _cgroup(folder: Path) -> str:
    return f"rollouts-{folder.name}"


def _remove_left_behind() -> None:
    """Engines die with the tests that started them; a test that was killed could not remove the files."""
    for folder in Path("/tmp").glob(f"{_PREFIX}*"):
        owner = owner_of(folder)
        if owner is not None and owner.is_dead():
            _remove_traces(folder)


def _remove_traces(folder: Path) -> None:
    """The files, and the control groups of containers that did not end by their engine's hand."""
    groups = Path("/sys/fs/cgroup")
    for top in [*groups.glob(f"*/{_cgroup(folder)}"), *groups.glob(_cgroup(folder))]:
        for group, _, _ in os.walk(top, topdown=False) if not top.parent.is_symlink() else ():
            with contextlib.suppress(OSError):
                os.rmdir(group)  # noqa: PTH106 - a text from `os.walk`
    deadline = time.monotonic() + 30
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=time.monotonic() < deadline)
