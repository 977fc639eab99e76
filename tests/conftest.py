"""The rule for tests that need an engine, and the check that no test leaves a box behind.

A test marked `docker` is skipped, with the way to an engine as its reason, when none answers; with `CI` set it fails
instead, so that a build without an engine is never green by accident.
"""

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from rollouts.backends.docker import OWNER_LABEL, RUN_LABEL
from rollouts.owner import Owner
from tests.boxes import base_image, engine_trouble


def pytest_configure() -> None:
    """What commands that tests start get from here, however the tests themselves were started."""
    os.environ["ROLLOUTS_BASE_IMAGE"] = base_image()
    _have_own_temporary_folder()
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored behind `&` and `nohup`, and so by whatever we start
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _have_own_temporary_folder() -> None:
    """Local boxes lie there: beside those of other tests, commands would tell of what they find there and remove."""
    system = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", os.environ.get("ROLLOUTS_TESTS_TEMP", system))
    os.environ.setdefault("ROLLOUTS_TESTS_TEMP", system)
    own = Path(tempfile.mkdtemp(prefix="rt-", dir=os.environ["ROLLOUTS_TESTS_TEMP"]))  # short: sockets lie there too
    own.chmod(0o1777)
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture asks an engine for something."""
    trouble = engine_trouble() if item.get_closest_marker("docker") else None
    if trouble and os.environ.get("CI"):
        pytest.fail(f"CI is set, so this test must run: {trouble}", pytrace=False)
    if trouble:
        pytest.skip(trouble)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line how much was not tested; the lines of `-ra` are easy to overlook."""
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if ".ci/engine" in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests that need a Docker engine were SKIPPED", yellow=True)


@pytest.fixture(scope="session")
def engine_image() -> str:
    """The base image on the engine; only for tests marked `docker`."""
    return base_image()


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """No container and no local box of this process or its children outlives a module."""
    yield
    here = [item for item in request.session.items if item.path == request.path]
    if any(item.get_closest_marker("docker") for item in here) and engine_trouble() is None:
        with contextlib.closing(docker.from_env()) as client:
            owned = client.api.containers(all=True, filters={"label": OWNER_LABEL})
        left = [box["Labels"][RUN_LABEL] for box in owned if _is_ours(box["Labels"][OWNER_LABEL])]
        assert not left, f"containers left behind: {left}"
    boxes = Path(tempfile.gettempdir()) / f"rollouts-{os.getuid()}"
    assert not list(boxes.glob(f"*-{os.getpid()}")), "local boxes left behind"


def _is_ours(label: str) -> bool:
    owner = Owner.decode(label)
    if owner is None or owner.host != Owner.current().host or owner.is_dead():
        return False
    pid = owner.pid
    while pid > 1 and pid != os.getpid():
        pid = _parent(pid)
    return pid == os.getpid()


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
