"""Signals: the first asks, the second leaves, whatever the main thread is doing meanwhile."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from rollouts.errors import ExitCode
from rollouts.signals import KILL_LIMIT_S, Signals
from tests.boxes import ROOT, wait_until


class FakeBackend:
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED),
        (signal.SIGHUP, ExitCode.INTERRUPTED),
        (signal.SIGTERM, ExitCode.TERMINATED),
    ],
)
def test_the_first_signal_cancels_and_says_so(number: signal.Signals, code: ExitCode) -> None:
    backend, said = FakeBackend(), list[str]()
    before = signal.getsignal(number)
    with Signals(backend, said.append, "all is kept") as signals:  # type: ignore[arg-type]  # a fake
        os.kill(os.getpid(), number)
        wait_until(backend.cancelled.is_set, "the backend is told")
    assert signals.exit_code is code
    assert said == ["stopping: open sandboxes are ended and all is kept; again to leave at once"]
    assert signal.getsignal(number) is before


def test_a_signal_that_was_ignored_stays_so() -> None:
    backend = FakeBackend()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals(backend, lambda text: None, "") as signals:  # type: ignore[arg-type]  # a fake
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(backend.cancelled.is_set, "the other one is seen")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signals.exit_code is ExitCode.TERMINATED


def test_outside_the_main_thread_nothing_is_watched() -> None:
    def enter() -> None:
        with Signals(FakeBackend(), lambda text: None, ""):  # type: ignore[arg-type]  # a fake
            pass

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before


STUCK = """
    import threading, time
    from rollouts.signals import Signals

    class Backend:
        def cancel(self):
            print("cancelled", flush=True)
        def kill(self):
            print("killed", flush=True)
            {kill}

    def warn(text):
        {warn}

    with Signals(Backend(), warn, ""):
        print("ready", flush=True)
        held = threading.Lock()
        with held:
            {main}
"""


@pytest.mark.parametrize(
    ("main", "warn", "kill"),
    [
        ("time.sleep(60)", "pass", "pass"),
        ("time.sleep(60)", "time.sleep(60)", "pass"),
        ("time.sleep(60)", "raise OSError(5, 'no terminal')", "raise RuntimeError"),
        ("time.sleep(60)", "pass", "time.sleep(60)"),
        ("while True: pass", "pass", "pass"),
        ("threading.Thread(target=held.acquire).start(); time.sleep(60)", "pass", "held.acquire()"),
    ],
    ids=["idle", "mute terminal", "no terminal", "engine hangs", "busy", "lock held"],
)
def test_the_second_signal_leaves_whatever_hangs(main: str, warn: str, kill: str) -> None:
    code = textwrap.dedent(STUCK).format(main=main, warn=warn, kill=kill)
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == b"cancelled\n"
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == b"killed\n"
            assert process.wait(60) == ExitCode.TERMINATED
            assert time.monotonic() - begin < 5 * KILL_LIMIT_S
        finally:
            process.kill()
