"""What only the docker backend has: images in layers, and an engine that may be missing, closed or gone half-way."""

import contextlib
import gc
import os
import resource
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest
from docker.errors import APIError

from rollouts.backends import docker as docker_module
from rollouts.backends.base import Ended
from rollouts.backends.docker import DockerBackend
from rollouts.config import DockerSettings
from rollouts.errors import BackendUnavailable, ImageFailed, JobCancelled, SandboxFailed
from tests.boxes import (
    PATIENCE_S,
    TREE,
    Collector,
    Kind,
    Lab,
    containers_of,
    forget_image,
    make_image,
    open_kind,
    wait_until,
)
from tests.engines import BUSYBOX, busybox_tar

needs_engine = pytest.mark.docker


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A backend of the test's own, with the tiny task's image."""
    lab = Lab(Kind.DOCKER, open_kind(Kind.DOCKER, tmp_path / "cache"), make_image(tmp_path / "tiny"), tmp_path)
    yield lab
    lab.close()


@pytest.fixture
def unique() -> str:
    """Makes an image's content new, so that it must be built."""
    return uuid.uuid4().hex


# --- images ------------------------------------------------------------------------------------------------------


@needs_engine
def test_a_user_that_the_image_lacks_is_told_before_any_box_is_made(lab: Lab, tmp_path: Path) -> None:
    image = make_image(tmp_path / "task", environment={"user": "ghost"})
    with pytest.raises(ImageFailed, match="ghost") as caught:
        lab.run_job(lab.job("true", image=image))
    assert "\n" not in str(caught.value)


@needs_engine
def test_the_job_runs_as_the_user_that_the_task_names(lab: Lab, tmp_path: Path) -> None:
    image = make_image(tmp_path / "task", environment={"user": "nobody"})
    ran = lab.run_job(lab.job('id -un; echo x >x; echo y >"$HOME/y" && echo n >"$ROLLOUTS_OUT/notes.md"', image=image))
    assert (ran.result.exit_code, ran.log) == (0, b"nobody\n")
    assert lab.tree_after(ran.patch) == {**TREE, "x": b"x\n"}


@needs_engine
def test_the_repository_lies_where_the_task_wants_it(lab: Lab, tmp_path: Path) -> None:
    image = make_image(tmp_path / "task", environment={"workdir": "/srv/deep/code"})
    ran = lab.run_job(lab.job("pwd; rm gone.txt", image=image))
    assert ran.log == b"/srv/deep/code\n"
    assert lab.tree_after(ran.patch) == {name: content for name, content in TREE.items() if name != "gone.txt"}


@pytest.fixture(scope="module")
def busybox() -> str:
    """An image that has a shell and nothing else."""
    if not shutil.which("busybox"):
        pytest.fail("no busybox; CI installs busybox-static") if os.environ.get("CI") else pytest.skip("no busybox")
    with contextlib.closing(docker.from_env()) as client:
        if not client.images.list(BUSYBOX):  # once: each import would be a new image
            name, _, tag = BUSYBOX.partition(":")
            client.api.import_image_from_data(busybox_tar(), repository=name, tag=tag)
    return BUSYBOX


@needs_engine
def test_an_image_without_git_still_gives_the_patch(lab: Lab, tmp_path: Path, busybox: str) -> None:
    image = make_image(tmp_path / "task", environment={"image": busybox})
    script = "command -v git && exit 9; cat $ROLLOUTS_OUT/../in/f >>README.md; rm gone.txt; ln data.bin twin; exit 3"
    ran = lab.run_job(lab.job(script, image=image, files={"f": b"in\n"}))
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 3)
    expected = {**TREE, "README.md": b"hello\nin\n", "twin": TREE["data.bin"]}
    del expected["gone.txt"]
    assert lab.tree_after(ran.patch) == expected


@needs_engine
def test_an_image_without_git_ends_its_job_at_the_time_limit(lab: Lab, tmp_path: Path, busybox: str) -> None:
    image = make_image(tmp_path / "task", environment={"image": busybox})
    ran = lab.run_job(lab.job("echo x >x; sleep 60", image=image, timeout_s=1.0))
    assert ran.result.ended is Ended.TIMEOUT
    assert lab.tree_after(ran.patch) == {**TREE, "x": b"x\n"}


@needs_engine
def test_an_image_with_a_small_shell_does_as_it_is_asked_too(lab: Lab, tmp_path: Path, busybox: str) -> None:
    image = make_image(tmp_path / "task", environment={"image": busybox})
    running = lab.start("trap 'echo tidy >tidy; exit 0' TERM; echo started; while :; do sleep 0.1; done", image=image)
    lab.backend.cancel()
    ran = lab.ran(running)
    assert ran.result.ended is Ended.CANCELLED
    assert lab.tree_after(ran.patch) == {**TREE, "tidy": b"tidy\n"}


@needs_engine
def test_a_container_that_someone_else_stops_is_not_the_jobs_fault(lab: Lab) -> None:
    running = lab.start("echo started; sleep 60")
    with contextlib.closing(docker.from_env()) as client:
        client.api.stop(containers_of(running.job.run_id)[0])
    with pytest.raises(SandboxFailed, match="killed from outside"):
        running.end()


@needs_engine
@pytest.mark.parametrize("place", ["Dockerfile", "tests/Dockerfile", "docker/own.Dockerfile"])
def test_a_dockerfile_cannot_see_what_is_hidden_from_agents(lab: Lab, tmp_path: Path, place: str) -> None:
    hidden = {"tests/test_it.py": b"x", "solution.patch": b"", "evaluate.sh": b"exit 0\n", "overrides.json": b"{}"}
    dockerfile = b"ARG BASE_IMAGE\nFROM $BASE_IMAGE\nCOPY . /everything\n"
    beside = {place: dockerfile, ".dockerignore": b"!tests\n!solution.patch\n", "seen.txt": b"seen\n", **hidden}
    image = make_image(tmp_path / "task", files=beside, environment={"dockerfile": place})
    ran = lab.run_job(lab.job("ls -A /everything; exit 0", image=image))
    assert ran.result.exit_code == 0
    seen = {"repo", "seen.txt", ".rollouts.Dockerfile"} | ({place.split("/")[0]} - {"tests"})
    assert set(ran.log.decode().split()) == seen


@needs_engine
def test_an_agent_is_installed_once_for_all_tasks_of_a_base(lab: Lab, tmp_path: Path, unique: str) -> None:
    install, said = f"echo {unique} >/usr/local/share/agent", Collector()
    images = [
        make_image(tmp_path / name, install=install, files={"repo/name": f"{name} {unique}".encode()})
        for name in ("one", "two")
    ]
    for image in images:
        lab.backend.prepare(image, said)
    assert bytes(said.data).count(b"building rollouts/agent") == 1
    assert bytes(said.data).count(b"building rollouts/task") == 2
    assert lab.run_job(lab.job("cat /usr/local/share/agent", image=images[1])).log.decode() == f"{unique}\n"
    lab.backend.close()
    for image in images:
        forget_image(lab.backend, image)
    _forget_layers(unique)


@needs_engine
def test_an_image_that_does_not_build_says_why_in_one_line(lab: Lab, tmp_path: Path) -> None:
    dockerfile = b"ARG BASE_IMAGE\nFROM $BASE_IMAGE\nRUN echo first; echo the reason >&2; exit 41\n"
    image = make_image(tmp_path / "task", files={"Dockerfile": dockerfile})
    for _ in range(2):
        with pytest.raises(ImageFailed, match=r"does not build.*41.*the reason") as caught:
            lab.backend.prepare(image, Collector())
        assert "\n" not in str(caught.value)
    assert not lab.backend.is_prepared(image)


@needs_engine
def test_a_dockerfile_that_cannot_be_read_is_a_failed_image(lab: Lab, tmp_path: Path) -> None:
    image = make_image(tmp_path / "task", files={"Dockerfile": b"FORM nothing\n"})
    with pytest.raises(ImageFailed, match=r"does not build.*FORM"):
        lab.backend.prepare(image, Collector())


@needs_engine
def test_a_missing_base_image_comes_with_advice(tmp_path: Path) -> None:
    nowhere = DockerSettings(base_image="localhost:1/no/such:image")
    with contextlib.closing(open_kind(Kind.DOCKER, tmp_path / "cache", nowhere)) as backend:
        image = make_image(tmp_path / "task")
        assert not backend.is_prepared(image)
        with pytest.raises(SandboxFailed, match=r"localhost:1/no/such:image.*ROLLOUTS_BASE_IMAGE") as caught:
            backend.prepare(image, Collector())
        assert "\n" not in str(caught.value)


# --- boxes -------------------------------------------------------------------------------------------------------


@needs_engine
def test_a_container_is_made_with_all_its_walls(lab: Lab) -> None:
    running = lab.start("echo started; sleep 60")
    with contextlib.closing(docker.from_env()) as client:
        found = client.api.inspect_container(containers_of(running.job.run_id)[0])
        client.api.kill(found["Id"])
    with pytest.raises(SandboxFailed):
        running.end()
    host = found["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["NetworkMode"] == "none"
    assert host["Memory"] == host["MemorySwap"] == running.job.limits.memory_mb * 1024 * 1024
    assert host["PidsLimit"] == running.job.limits.pids
    assert host["Init"] is True
    assert not host["Privileged"]
    assert not host["Binds"]
    assert not found["Mounts"]
    assert found["Config"]["User"] == "1000:1000"


@needs_engine
def test_a_container_removed_from_outside_is_not_the_jobs_fault(lab: Lab) -> None:
    running = lab.start("echo started; sleep 60")
    with contextlib.closing(docker.from_env()) as client:
        client.api.remove_container(containers_of(running.job.run_id)[0], force=True)
    with pytest.raises(SandboxFailed):
        running.end()


@needs_engine
def test_a_container_that_is_being_made_while_all_are_killed_is_removed_too(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(lab.backend, DockerBackend)
    job, begun, go_on = lab.job("true"), threading.Event(), threading.Event()
    api = lab.backend._api
    make = api.create_container_from_config

    def make_slowly(*arguments: object) -> object:
        begun.set()
        go_on.wait(PATIENCE_S)
        return make(*arguments)  # type: ignore[no-untyped-call] # docker's stubs lack it

    lab.backend.prepare(job.image, Collector())
    monkeypatch.setattr(api, "create_container_from_config", make_slowly)
    with ThreadPoolExecutor(2) as pool:
        ended = pool.submit(lab.backend.run, job, Collector())
        assert begun.wait(PATIENCE_S)
        killed = pool.submit(lab.backend.kill)
        wait_until(lab.backend.cancelled.is_set, "it is being killed")
        go_on.set()
        killed.result(PATIENCE_S)
        with pytest.raises((JobCancelled, SandboxFailed)):
            ended.result(PATIENCE_S)
    wait_until(lambda: not containers_of(job.run_id), "the container is removed")


@needs_engine
def test_more_than_a_thousand_open_files_do_not_stop_a_job(lab: Lab) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this machine does not allow so many open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert lab.run("echo fine").log == b"fine\n"
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@needs_engine
def test_no_connection_is_left_open_when_all_is_done(lab: Lab) -> None:
    folder = Path("/proc/self/fd")
    before = {path.name for path in folder.iterdir()}
    for script in ("true", "kill -9 -1"):
        lab.run(script)
    lab.backend.close()
    assert {path.name for path in folder.iterdir()} <= before


# --- no engine ---------------------------------------------------------------------------------------------------

loses_sockets = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""docker-py forgets to close a socket that it could not connect."""


@pytest.fixture
def _sockets_lost_here() -> Iterator[None]:
    """So that they are found in the test that lost them."""
    yield
    gc.collect()


@loses_sockets
@pytest.mark.usefixtures("_sockets_lost_here")
def test_an_engine_that_is_not_there_is_told_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with contextlib.closing(open_kind(Kind.DOCKER, tmp_path)) as backend:
        with pytest.raises(BackendUnavailable, match=r"/nonexistent/docker.sock.*--backend local"):
            backend.check()
        finding = backend.findings()[0]
        assert not finding.ok
        assert "local" in finding.advice


@loses_sockets
@pytest.mark.usefixtures("_sockets_lost_here")
def test_an_engine_that_refuses_access_is_told_with_advice(
    socket_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = socket_folder / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    backend = open_kind(Kind.DOCKER, tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0)
        with _as_nobody(), pytest.raises(BackendUnavailable, match=r"permission denied.*group docker"):
            backend.check()
    backend.close()


@contextlib.contextmanager
def _as_nobody() -> Iterator[None]:
    """Root may open any socket, so be someone else for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a short name, as sockets need, that others may enter."""
    with tempfile.TemporaryDirectory(prefix="rt-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


# --- an engine that goes away ------------------------------------------------------------------------------------


class EngineProxy:
    """Stands between a backend and the real engine, and can be cut and restored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.restore()

    def restore(self) -> None:
        """Be there."""
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.path))
        self._server.listen()
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def cut(self) -> None:
        """Be gone, with everything under way."""
        self.path.unlink(missing_ok=True)
        with self._lock:
            ends, self._open = [self._server, *self._open], []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = server.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(_engine_socket())
                with self._lock:
                    self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def _engine_socket() -> str:
    return os.environ.get("ROLLOUTS_TEST_REAL_ENGINE", "/var/run/docker.sock")


@pytest.fixture
def proxy(socket_folder: Path) -> Iterator[EngineProxy]:
    """An engine that the test can take away."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        pytest.skip("the engine is not on a socket of this machine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLOUTS_TEST_REAL_ENGINE", host.removeprefix("unix://"))
        proxy = EngineProxy(socket_folder / "proxy.sock")
        yield proxy
        proxy.cut()


@pytest.fixture
def far_lab(proxy: EngineProxy, tmp_path: Path) -> Iterator[Lab]:
    """A backend that reaches its engine through the proxy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{proxy.path}")
        backend = open_kind(Kind.DOCKER, tmp_path / "cache")
        backend.check()
    lab = Lab(Kind.DOCKER, backend, make_image(tmp_path / "tiny"), tmp_path)
    yield lab
    lab.close()


@needs_engine
@loses_sockets
@pytest.mark.usefixtures("_sockets_lost_here")
def test_an_engine_gone_mid_run_is_a_failed_sandbox_and_the_next_run_works(far_lab: Lab, proxy: EngineProxy) -> None:
    running = far_lab.start("echo started; sleep 60")
    begin = time.monotonic()
    proxy.cut()
    with pytest.raises(SandboxFailed, match="engine failed"):
        running.end()
    assert time.monotonic() - begin < PATIENCE_S
    with pytest.raises(SandboxFailed, match="container could not be made"):
        far_lab.backend.run(far_lab.job("true"), Collector())
    proxy.restore()
    with contextlib.closing(docker.from_env()) as client:
        for container in containers_of(running.job.run_id):
            with contextlib.suppress(APIError):  # the backend may be at it, now that the engine is back
                client.api.remove_container(container, force=True)
    wait_until(lambda: not containers_of(running.job.run_id), "the container is removed")
    assert far_lab.run("echo again").log == b"again\n"


@needs_engine
@loses_sockets
@pytest.mark.usefixtures("_sockets_lost_here")
def test_whether_an_engine_answers_is_known_while_it_is_gone_and_at_once_when_it_is_back(
    far_lab: Lab, proxy: EngineProxy
) -> None:
    with ThreadPoolExecutor(4) as pool:  # leaves several open connections behind, all of them to be dead soon
        assert all(pool.map(lambda _: far_lab.backend.is_answering(), range(8)))
    proxy.cut()
    assert not far_lab.backend.is_answering()
    proxy.restore()
    assert far_lab.backend.is_answering()


@loses_sockets
@pytest.mark.usefixtures("_sockets_lost_here")
def test_an_engine_that_hangs_does_not_answer(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections and says nothing, like one that was stopped."""
    backend = DockerBackend(DockerSettings(), socket_folder)
    backend.__dict__["_api"] = docker.APIClient(f"unix://{socket_folder}/docker.sock", version="1.41")
    monkeypatch.setattr(docker_module, "PING_LIMIT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{socket_folder}/docker.sock")
        server.listen()
        assert not backend.is_answering()
    backend.close()


@needs_engine
@loses_sockets
@pytest.mark.usefixtures("_sockets_lost_here")
def test_an_engine_gone_while_an_image_builds_is_worth_another_try(
    far_lab: Lab, proxy: EngineProxy, unique: str, tmp_path: Path
) -> None:
    install = f"echo {unique}; [ -e /tmp/no ] || sleep 3"
    image, said = make_image(tmp_path / "slow", install=install), Collector()
    failures: list[BaseException] = []

    def prepare() -> None:
        try:
            far_lab.backend.prepare(image, said)
        except BaseException as exc:  # noqa: BLE001 - looked at below
            failures.append(exc)

    thread = threading.Thread(target=prepare)
    thread.start()
    said.wait_for(f"\n{unique}\n".encode())
    proxy.cut()
    thread.join(PATIENCE_S)
    assert [type(failure) for failure in failures] == [SandboxFailed]
    proxy.restore()
    far_lab.backend.prepare(image, said)
    assert far_lab.backend.is_prepared(image)
    forget_image(far_lab.backend, image)
    _forget_layers(unique)


def _forget_layers(unique: str) -> None:
    """Remove agent layers whose installation holds a word of this test's own."""
    with contextlib.closing(docker.from_env()) as client:
        for found in client.images.list("rollouts/agent"):
            if any(unique in step["CreatedBy"] for step in found.history()):
                client.images.remove(found.tags[0], force=True)


def test_a_backend_that_was_never_used_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    backend = DockerBackend(DockerSettings(), tmp_path)
    backend.close()
