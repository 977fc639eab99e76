"""What all backends share: names for images, the rule that ends a box, and work that is done once."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rollouts.backends import BACKENDS, open_backend
from rollouts.backends.base import (
    BOX_TOOL_FILES,
    GRACE_S,
    HANDOUT_LIMIT_S,
    START_LIMIT_S,
    STOP_LIMIT_S,
    BoxPaths,
    Ended,
    Image,
    Job,
    Once,
    Watch,
    sandbox_file,
)
from rollouts.backends.handout import Handout
from rollouts.config import DockerSettings, Limits
from rollouts.errors import BackendUnavailable, ImageFailed, JobCancelled, SandboxFailed

IMAGE = Image(task_id="t", tree=Path("tree"), base_git=Path("base"), source_digest="s", instructions="do it")
PATHS = BoxPaths("/app/repo", "/app/repo/sub", "/rollouts", "/home/agent")


def job(**changes: object) -> Job:
    plain = Job(
        job_id="b-0.1",
        run_id="b-0",
        batch="b",
        image=IMAGE,
        argv=("sh", "-c", "x"),
        env={},
        limits=Limits(),
        timeout_s=100.0,
        network="none",
        outputs_dir=Path("out"),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # a test's shorthand


def test_the_scripts_that_go_into_a_box_are_there() -> None:
    for name in BOX_TOOL_FILES:
        assert sandbox_file(name).read_text().startswith("#!/bin/sh\n")


def test_an_unknown_backend_is_told_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="the backend modal is not part of this version; use docker or local"):
        open_backend("modal", DockerSettings(), tmp_path)


def test_the_local_backend_can_be_opened_without_making_anything(tmp_path: Path) -> None:
    backend = open_backend("local", DockerSettings(), tmp_path / "cache")
    assert backend.name == "local"
    assert "local" in BACKENDS
    backend.close()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "changed",
    [
        replace(IMAGE, source_digest="x"),
        replace(IMAGE, instructions="x"),
        replace(IMAGE, base="x"),
        replace(IMAGE, dockerfile_digest="x"),
        replace(IMAGE, install="x"),
        replace(IMAGE, overlay_digest="x"),
        replace(IMAGE, workdir="/x"),
        replace(IMAGE, user="x"),
    ],
)
def test_each_content_of_an_image_has_a_digest_of_its_own(changed: Image) -> None:
    assert changed.digest() != IMAGE.digest()


def test_what_is_not_content_does_not_change_an_images_digest() -> None:
    assert replace(IMAGE, task_id="x", tree=Path("elsewhere")).digest() == IMAGE.digest()
    assert IMAGE.digest("base") != IMAGE.digest()


def test_the_supervisor_gets_limits_folders_and_the_command_last() -> None:
    words = job().supervisor(PATHS, boxed=True, unpack=True, capture=True)
    assert words[:2] == ["/bin/sh", "/rollouts/supervise.sh"]
    options, command = words[2 : words.index("--")], words[words.index("--") + 1 :]
    assert command == ["sh", "-c", "x"]
    assert options[options.index("--limit") + 1] == "100"
    assert options[options.index("--cwd") + 1] == "/app/repo/sub"
    assert options[options.index("--capture") + 1] == "/app/repo"
    assert {"--boxed", "--unpack"} <= set(options)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1_000_000.0, "1000000"), (2_592_000.0, "2592000"), (123_456_789.0, "123456789"), (1.5, "1.5"), (0.001, "0.001"),
     (10.0, "10"), (100.25, "100.25"), (1800.0, "1800")],
)  # fmt: skip
def test_the_limit_is_told_in_plain_digits(seconds: float, said: str) -> None:
    words = job(timeout_s=seconds).supervisor(PATHS, boxed=True, unpack=False, capture=False)
    assert words[words.index("--limit") + 1] == said


def test_a_job_without_capture_asks_for_none() -> None:
    assert "--capture" not in job(capture=False).supervisor(PATHS, boxed=False, unpack=False, capture=True)
    assert "--capture" not in job().supervisor(PATHS, boxed=False, unpack=False, capture=False)


def test_a_job_is_told_where_things_are() -> None:
    assert PATHS.environment() == {
        "HOME": "/home/agent",
        "ROLLOUTS_REPO": "/app/repo",
        "ROLLOUTS_INSTRUCTIONS": "/rollouts/instructions.md",
        "ROLLOUTS_OUT": "/rollouts/out",
    }


class Box:
    """A box whose time is moved by hand."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.now = 1000.0
        self.handout = Handout(folder, lambda: self.now, lambda data: None)
        self.cancelled = threading.Event()
        self.watch = Watch(job(**changes), self.handout, lambda: self.now, self.cancelled)

    def after(self, seconds: float) -> str | None:
        self.now += seconds
        return self.watch.overdue()

    def say(self, line: str) -> None:
        self.handout.feed(f"\n{self.handout.word} {line}\n".encode())


def test_a_box_must_start_in_time(tmp_path: Path) -> None:
    box = Box(tmp_path)
    assert box.after(START_LIMIT_S - 1) is None
    assert box.after(2) == "the box did not start in time"
    assert not box.watch.timed_out


def test_a_job_has_its_time_and_some_grace_from_its_own_start(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.after(START_LIMIT_S - 1)
    box.say("begin")
    assert box.after(100 + 2 * GRACE_S - 1) is None
    assert box.after(2) == "the job's time is over"
    assert box.watch.timed_out


def test_handing_out_has_its_own_time(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.say("begin")
    box.after(100)
    box.say("ended 0 exited")
    assert box.after(HANDOUT_LIMIT_S - 1) is None
    assert box.after(2) == "handing out took too long"
    assert not box.watch.timed_out
    assert box.watch.duration_s() == 100


def test_a_broken_handout_ends_the_box(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.handout.feed(b"nonsense\n")
    assert box.after(0) is None
    box.say("nonsense")
    assert "the handout broke off" in (box.after(0) or "")


def test_a_job_that_never_ended_has_lasted_until_now(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.say("begin")
    box.after(7)
    assert box.watch.duration_s() == 7


def test_a_running_box_is_asked_to_end_and_then_has_its_time(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.say("begin")
    assert not box.watch.wants_stop()
    box.cancelled.set()
    assert box.after(0) is None
    assert box.watch.wants_stop()
    box.watch.asked = True
    assert not box.watch.wants_stop()
    assert box.after(STOP_LIMIT_S - 1) is None
    assert box.after(2) == "it did not end within 10 s of being asked to"
    assert box.watch.how_it_ended(out_of_memory=False) is Ended.CANCELLED


@pytest.mark.parametrize(("changes", "lines"), [({}, []), ({"capture": False}, ["begin"])])
def test_a_box_that_has_nothing_to_hand_out_is_ended_at_once(
    changes: dict[str, object], lines: list[str], tmp_path: Path
) -> None:
    box = Box(tmp_path, **changes)
    for line in lines:
        box.say(line)
    box.cancelled.set()
    assert not box.watch.wants_stop()
    assert box.after(0) == "it was ended: everything stops"


@pytest.mark.parametrize(
    ("lines", "cancelled", "capture", "ended"),
    [
        ([], True, True, Ended.CANCELLED),
        (["ended 143 cancelled"], True, True, Ended.CANCELLED),
        (["ended 143 cancelled", "done"], True, True, Ended.CANCELLED),
        (["ended 143 cancelled", "done"], False, True, Ended.EXITED),
        (["ended 0 exited"], True, True, Ended.EXITED),
        (["ended 0 exited", "done"], True, True, Ended.EXITED),
        (["ended 0 exited"], True, False, Ended.CANCELLED),
        (["ended 0 exited", "done"], True, False, Ended.EXITED),
        (["ended 124 timeout", "done"], True, True, Ended.TIMEOUT),
    ],
)
def test_cancelled_is_what_ended_because_all_were_to_end(
    lines: list[str], cancelled: bool, capture: bool, ended: Ended, tmp_path: Path
) -> None:
    """Also one without a patch that was still handing out: half of its results are none."""
    box = Box(tmp_path, capture=capture)
    box.say("begin")
    box.after(100)
    if cancelled:
        box.cancelled.set()
    for line in lines:
        box.say(line)
    assert box.watch.how_it_ended(out_of_memory=False) is ended


def test_a_box_that_was_killed_at_its_limit_stays_a_timeout_when_all_are_to_end(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.say("begin")
    box.after(100 + 2 * GRACE_S + 1)
    box.cancelled.set()
    assert box.watch.how_it_ended(out_of_memory=False) is Ended.TIMEOUT


def test_what_a_box_said_while_nobody_listened_is_read_before_it_is_overdue(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.say("begin")
    box.now += 100 + 2 * GRACE_S + 7
    assert box.watch.overdue(more_waits=True) is None
    box.say("ended 0 exited")
    box.say("done")
    assert box.after(0) is None
    assert box.watch.how_it_ended(out_of_memory=False) is Ended.EXITED


@pytest.mark.parametrize("lines", [[], ["begin"], ["begin", "ended 0 exited"]])
def test_a_box_that_talks_without_end_is_not_listened_to_for_ever(lines: list[str], tmp_path: Path) -> None:
    box = Box(tmp_path)
    for line in lines:
        box.say(line)
    box.now += 1000
    assert box.watch.overdue(more_waits=True) is None
    box.now += GRACE_S + 1
    assert box.watch.overdue(more_waits=True) is not None


def test_a_box_of_which_nothing_is_wanted_is_not_listened_to_when_all_are_to_end(tmp_path: Path) -> None:
    box = Box(tmp_path, capture=False)
    box.say("begin")
    box.cancelled.set()
    assert box.watch.overdue(more_waits=True) == "it was ended: everything stops"


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_box_that_ended_by_itself_before_it_could_be_killed_is_no_timeout(cancelled: bool, tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.say("begin")
    assert box.after(100 + 2 * GRACE_S + 7) == "the job's time is over"
    if cancelled:
        box.cancelled.set()
    box.say("ended 0 exited")
    assert box.watch.how_it_ended(out_of_memory=False) is Ended.TIMEOUT
    box.say("done")
    assert box.watch.ended_by_itself()
    assert box.watch.how_it_ended(out_of_memory=False) is Ended.EXITED


def test_a_timeout_is_believed_also_when_all_of_it_is_read_in_one_instant(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.after(107)
    for line in ("begin", "ended 124 timeout", "done"):
        box.say(line)
    assert box.watch.how_it_ended(out_of_memory=False) is Ended.TIMEOUT
    assert box.watch.duration_s() == 100


def test_a_timeout_that_comes_too_early_is_not_believed_however_long_the_handout_takes(tmp_path: Path) -> None:
    box = Box(tmp_path)
    box.say("begin")
    box.after(50)
    box.say("ended 124 timeout")
    box.after(60)
    box.say("done")
    assert box.watch.how_it_ended(out_of_memory=False) is Ended.EXITED
    assert box.watch.duration_s() == 50


def test_a_box_lives_longer_by_itself_than_anyone_outside_would_let_it() -> None:
    words = job().supervisor(PATHS, boxed=True, unpack=False, capture=False)
    assert float(words[words.index("--ttl") + 1]) > START_LIMIT_S + job().hard_limit_s
    assert float(words[words.index("--handout-ttl") + 1]) > HANDOUT_LIMIT_S


def ask(once: Once, work: Callable[[], None], count: int) -> list[BaseException | None]:
    """Let many threads ask at the same time; how it ended for each."""
    ends: list[BaseException | None] = []
    together = threading.Barrier(count)

    def one() -> None:
        together.wait(10)
        try:
            once("key", work)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the test looks at it
            ends.append(exc)
        else:
            ends.append(None)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def test_work_is_done_once_however_many_ask() -> None:
    done: list[int] = []
    once = Once(threading.Event())
    assert ask(once, lambda: done.append(1), 6) == [None] * 6
    assert ask(once, lambda: done.append(2), 2) == [None] * 2
    assert done == [1]


def test_a_failure_is_shared_by_all_who_asked() -> None:
    done: list[int] = []

    def fail() -> None:
        done.append(1)
        raise ImageFailed("does not build")

    ends = ask(Once(threading.Event()), fail, 6)
    assert done == [1]
    assert [str(end) for end in ends] == ["does not build"] * 6
    assert {type(end) for end in ends} == {ImageFailed}


def test_an_unforeseen_failure_leaves_nobody_waiting() -> None:
    def fail() -> None:
        raise ValueError("unforeseen")

    ends = ask(Once(threading.Event()), fail, 4)
    assert [(type(end), str(end)) for end in ends] == [(ValueError, "unforeseen")] * 4


@pytest.mark.parametrize("failure", [SandboxFailed("engine gone"), ValueError("unforeseen")])
def test_what_may_be_better_next_time_is_tried_again(failure: Exception) -> None:
    once, done = Once(threading.Event()), []

    def work() -> None:
        done.append(1)
        if len(done) == 1:
            raise failure

    with pytest.raises(type(failure), match=str(failure)) as caught:
        once("key", work)
    assert caught.value is failure
    once("key", work)
    once("key", work)
    assert len(done) == 2


def test_an_image_that_does_not_build_is_not_built_again() -> None:
    once, done = Once(threading.Event()), []

    def work() -> None:
        done.append(1)
        raise ImageFailed("does not build")

    for _ in range(3):
        with pytest.raises(ImageFailed, match="does not build"):
            once("key", work)
    assert len(done) == 1


def test_keys_do_not_wait_for_each_other() -> None:
    once, first_in, let_go = Once(threading.Event()), threading.Event(), threading.Event()

    def wait() -> None:
        first_in.set()
        let_go.wait(10)

    slow = threading.Thread(target=lambda: once("a", wait))
    slow.start()
    first_in.wait(10)
    done: list[int] = []
    once("b", lambda: done.append(1))
    let_go.set()
    slow.join()
    assert done == [1]


def test_work_runs_in_a_thread_that_ends_with_the_program() -> None:
    seen: list[threading.Thread] = []
    Once(threading.Event())("key", lambda: seen.append(threading.current_thread()))
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon


def test_nobody_waits_for_work_once_it_is_cancelled() -> None:
    cancelled, begun, let_go, done = threading.Event(), threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        let_go.wait(60)
        done.set()

    def cancel() -> None:
        begun.wait(10)
        cancelled.set()

    once, canceller = Once(cancelled), threading.Thread(target=cancel)
    canceller.start()
    ends = ask(once, work, 5)
    canceller.join()
    assert [type(end) for end in ends] == [JobCancelled] * 5
    assert not done.is_set()
    with pytest.raises(JobCancelled):
        once("key", work)
    let_go.set()
    assert done.wait(10)
    once("key", lambda: pytest.fail("it was done before"))


def test_work_that_was_done_before_the_end_is_still_there_after_it() -> None:
    cancelled = threading.Event()
    once = Once(cancelled)
    once("key", lambda: None)
    cancelled.set()
    once("key", lambda: pytest.fail("it was done before"))
