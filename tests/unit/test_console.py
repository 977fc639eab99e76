"""What people see while a batch runs: the exact lines, on the right stream, and nothing obeyed that a box says."""

import io
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollouts import console as console_module
from rollouts.console import EvalConsole, RunConsole
from rollouts.errors import ExitCode
from rollouts.eval_manifest import Evaluated
from rollouts.evaluation import EvalOutcome
from rollouts.planning import Plan
from rollouts.results import RunError, RunResult, Stage, Status
from rollouts.store import BatchPlace
from tests.samples import make_benchmark, make_result, make_spec, make_task

IDS = [f"20260101__00-00-00-{n}" for n in range(3)]
FOLDER = Path("data/rollouts/hello/20260101__00-00-00")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    spec = make_spec(make_task(tmp_path / "t"))
    benchmark = make_benchmark(name="hello", parallel=2)
    return Plan(Path("configs/hello.toml"), benchmark, tuple(replace(spec, index=n) for n in range(3)), "local")


def runs(*statuses: Status) -> list[RunResult]:
    return [
        make_result(
            run_id=run_id,
            status=status,
            attempt=1,
            error=None if status is Status.LAUNCHED else RunError(Stage.AGENT, status, "it \x1b[31mwent\nwrong"),
        )
        for run_id, status in zip(IDS, statuses, strict=False)
    ]


class Said:
    """What a console wrote, by stream."""

    def __init__(self, verbosity: int, out: io.StringIO | None = None) -> None:
        self.out, self.err = out or io.StringIO(), io.StringIO()
        self.console = RunConsole(verbosity, self.out, self.err)

    def run(self, plan: Plan, results: list[RunResult]) -> None:
        self.console.planned(plan)
        self.console.created(FOLDER, plan)
        for result in results:
            self.console.started(replace(result, status=Status.RUNNING, error=None))
            self.console.output(result.run_id, b"hello\nhalf a line")
            self.console.ended(result)
        self.console.close(results)

    @property
    def out_lines(self) -> list[str]:
        return self.out.getvalue().splitlines()

    @property
    def err_lines(self) -> list[str]:
        return self.err.getvalue().splitlines()


HEAD = [
    "[rollouts] config=configs/hello.toml name=hello tasks=1 parallel=2",
    "[rollouts] output=data/rollouts/hello/20260101__00-00-00",
]
LAUNCHED = [Status.LAUNCHED] * 3


def test_quiet_mode_says_the_documented_lines(plan: Plan) -> None:
    said = Said(0)
    said.run(plan, runs(*LAUNCHED))
    assert said.out_lines == [
        *HEAD,
        "[rollouts] Running in quiet mode - use -vv for full output",
        "[rollouts] Starting 3 tasks with parallel=2",
        *(f"✓ Task {run_id} completed (launched)" for run_id in IDS),
        "✓ All 3 tasks completed!",
    ]
    assert said.err_lines == []


def test_quiet_mode_marks_what_went_wrong(plan: Plan) -> None:
    said = Said(0)
    said.run(plan, runs(Status.LAUNCHED, Status.TIMEOUT, Status.SANDBOX_FAILED))
    assert said.out_lines[4:] == [
        f"✓ Task {IDS[0]} completed (launched)",
        rf"✗ Task {IDS[1]} completed (timeout): it \x1b[31mwent\nwrong",
        rf"✗ Task {IDS[2]} completed (sandbox_failed): it \x1b[31mwent\nwrong",
        "✗ All 3 tasks completed, 1 launched, 2 not",
    ]


def test_a_stopped_batch_is_not_called_completed(plan: Plan) -> None:
    said = Said(0)
    said.console.planned(plan)
    said.console.created(FOLDER, plan)
    said.console.close(runs(Status.LAUNCHED, Status.CANCELLED, Status.PENDING))
    advice = f"go on with: rollouts resume hello --rollout {FOLDER.name}"
    assert said.out_lines[-1] == f"✗ Stopped: 1/3 tasks completed, 1 launched; {advice}"


def test_a_batch_that_never_began_has_no_last_line(plan: Plan) -> None:
    said = Said(0)
    said.console.planned(plan)
    said.console.close(None)
    assert said.out_lines == HEAD[:1]


def test_verbose_mode_has_plain_lines_without_icons(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    said = Said(1)
    said.run(plan, runs(*LAUNCHED))
    assert said.out_lines == [
        *HEAD,
        "[rollouts] Starting 3 tasks with parallel=2",
        f"Task {IDS[0]} started (t, gpt-4)",
        f"Task {IDS[0]} completed (launched) [1/3]",
        f"Task {IDS[1]} started (t, gpt-4)",
        f"Task {IDS[1]} completed (launched) [2/3, about 1 s left]",
        f"Task {IDS[2]} started (t, gpt-4)",
        f"Task {IDS[2]} completed (launched) [3/3]",
        "All 3 tasks completed!",
    ]
    assert said.err_lines == []
    assert not set(said.out.getvalue()) & set("✓✗⠋")


def test_very_verbose_mode_shows_all_output_behind_its_run(plan: Plan) -> None:
    said = Said(2)
    said.console.building("t", b"Step 1/2\n")
    said.run(plan, runs(*LAUNCHED))
    assert said.err_lines[:3] == ["t | Step 1/2", f"{IDS[0]} | hello", f"{IDS[0]} | half a line"]
    assert len(said.err_lines) == 7


def test_output_of_a_box_is_never_obeyed(plan: Plan) -> None:
    said = Said(2)
    said.console.output("r", b"\x1b]0;owned\x07 [bold red]x[/] \xff :smile: \r\n")
    assert said.err_lines == [r"r | \x1b]0;owned\x07 [bold red]x[/] � :smile: "]


def test_lines_cut_anywhere_are_put_together_and_endless_ones_are_let_out(plan: Plan) -> None:
    said = Said(2)
    for byte in "één\ntwo".encode():
        said.console.output("r", bytes([byte]))
    assert said.err_lines == ["r | één"]
    said.console.output("r", b"x" * 10_000)
    assert len(said.err_lines[-1]) == len("r | two") + 10_000


def test_quiet_modes_say_which_image_is_built_once(plan: Plan) -> None:
    for verbosity in (0, 1):
        said = Said(verbosity)
        for data in (b"building task t\nmore", b"Step 1/2\n", b"", b"\n", b"building task t\n", b"pulling x\x1b[2J\n"):
            said.console.building("t", data)
        assert said.err_lines == ["[rollouts] building task t", r"[rollouts] pulling x\x1b[2J"]
        assert said.out_lines == []


def test_retries_and_warnings_go_to_stderr(plan: Plan) -> None:
    said = Said(0)
    failed = runs(Status.SANDBOX_FAILED)[0]
    said.console.retrying(failed, 2, 1.25)
    said.console.retrying(failed, 0, 3.0)
    said.console.warn("watch \x1b[2J out")
    assert said.err.getvalue() == (
        f"[rollouts] warning: {IDS[0]} is tried again in 1.2 s, 2 more after that: it \\x1b[31mwent\\nwrong\n"
        f"[rollouts] warning: {IDS[0]} is tried again in 3.0 s, the last time: it \\x1b[31mwent\\nwrong\n"
        "[rollouts] warning: watch \\x1b[2J out\n"
    )
    assert said.out_lines == []


def test_a_second_attempt_is_called_one(plan: Plan) -> None:
    said = Said(1)
    said.console.started(make_result(run_id=IDS[0], attempt=2))
    assert said.out_lines == [f"Task {IDS[0]} started (t, gpt-4, attempt 2)"]


def test_a_long_quiet_log_says_now_and_then_that_things_go_on(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "HEARTBEAT_S", 0.01)
    said = Said(0)
    said.console.planned(plan)
    said.console.created(FOLDER, plan)
    wait_for(lambda: said.out_lines.count("Running tasks... 0/3 completed") >= 2)
    results = runs(*LAUNCHED)
    said.console.started(replace(results[0], status=Status.RUNNING))
    said.console.ended(results[0])
    wait_for(lambda: said.out_lines[-1] == "Running tasks... 1/3 completed")
    said.console.close(results)
    wait_for(lambda: not heartbeats())
    assert said.out_lines[:4] == [
        *HEAD,
        "[rollouts] Running in quiet mode - use -vv for full output",
        "[rollouts] Starting 3 tasks with parallel=2",
    ]
    assert said.err_lines == []
    length = len(said.out_lines)
    time.sleep(0.05)
    assert len(said.out_lines) == length


def wait_for(condition: Callable[[], bool]) -> None:
    """Give other threads ten seconds."""
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)


def heartbeats() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_a_short_batch_has_no_heartbeat_in_its_log(plan: Plan) -> None:
    said = Said(0)
    said.run(plan, runs(*LAUNCHED))
    assert not [line for line in said.out_lines if line.startswith("Running tasks")]
    wait_for(lambda: not heartbeats())


@pytest.mark.parametrize("verbosity", [1, 2])
def test_a_log_with_every_start_needs_no_heartbeat(verbosity: int, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "HEARTBEAT_S", 0.001)
    wait_for(lambda: not heartbeats())
    said = Said(verbosity)
    said.console.created(FOLDER, plan)
    assert not heartbeats()
    said.console.close(None)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_live_board(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    wait_for(lambda: not heartbeats())
    said = Said(0, Terminal())
    said.console.planned(plan)
    said.console.created(FOLDER, plan)
    assert not heartbeats()
    said.console.started(make_result(run_id=IDS[0], task_id="task\x1b]0;x"))
    board = said.console._board()
    said.console._out.print(board)
    said.console.close(runs(*LAUNCHED))
    text = said.out.getvalue()
    assert "Running tasks... 0/3 completed" in text
    assert IDS[0] in text
    assert r"task\x1b]0;x" in text
    assert "All 3 tasks completed!" in text


def test_many_threads_may_talk_at_once(plan: Plan) -> None:
    said = Said(2)

    def talk(run_id: str) -> None:
        for _ in range(20):
            said.console.output(run_id, b"12345\n67890\n")

    threads = [threading.Thread(target=talk, args=(f"r{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(said.err_lines) == {f"r{n} | {text}" for n in range(4) for text in ("12345", "67890")}
    assert len(said.err_lines) == 160


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_left_does_not_end_the_batch(plan: Plan) -> None:
    said = Said(0, Gone())
    said.run(plan, runs(*LAUNCHED))


@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_a_full_disk_behind_stdout_does_not_end_the_batch(verbosity: int, plan: Plan) -> None:
    err = io.StringIO()
    with Path("/dev/full").open("w") as full:
        console = RunConsole(verbosity, full, err)
        console.planned(plan)
        console.created(FOLDER, plan)
        for result in runs(*LAUNCHED):
            console.started(replace(result, status=Status.RUNNING))
            console.ended(result)
        console.warn("still heard")
        console.close(runs(*LAUNCHED))
    assert err.getvalue() == "[rollouts] warning: still heard\n"


def test_a_full_disk_behind_stderr_does_not_end_the_batch(plan: Plan) -> None:
    out = io.StringIO()
    with Path("/dev/full").open("w") as full:
        console = RunConsole(2, out, full)
        console.output("r", b"hello\n" * 1000)
        console.warn("unheard")
        console.planned(plan)
    assert out.getvalue().splitlines() == HEAD[:1]


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "about 1 s"), (89, "about 89 s"), (600, "about 10 min"), (7200, "about 2.0 h")]
)
def test_times_left_are_rounded(seconds: float, said: str) -> None:
    assert console_module._about(seconds) == said


PLACE = BatchPlace("bench", "20260101__00-00-00", FOLDER)


def verdict(run_id: str, outcome: str | None = "resolved", score: float | None = 1.0, **changes: Any) -> Evaluated:
    resolved = None if outcome in (None, "error") else outcome == "resolved"
    return Evaluated(run_id, "t", "gpt-4", "codex", f"data/runs/{run_id}", outcome, resolved, score, 1.0, **changes)


def test_scoring_tells_of_each_verdict_and_of_what_has_none() -> None:
    err = io.StringIO()
    console = EvalConsole(0, err, err)
    console.planned(PLACE, 4, 1, "local", 2)
    lines = (
        verdict("r0"),
        verdict("r1", "tests_failed", 0.25, flags=2),
        verdict("r2", "error", None, error="no \x1b[2J disk"),
        verdict("r3", None, None),
    )
    for line in lines[:3]:
        console.started(make_result(run_id=line.run_id))
        console.scored(line)
    console.close(EvalOutcome(FOLDER, lines, ExitCode.GATE_FAILED, waiting=1, gate="the mean score is low"))
    assert err.getvalue().splitlines() == [
        "[rollouts] eval=bench/20260101__00-00-00 runs=4 backend=local parallel=2",
        "[rollouts] 1 run with a verdict already; --force scores again",
        "✓ Run r0 scored (resolved, score 1.00)",
        "✗ Run r1 scored (tests_failed, score 0.25, 2 flags)",
        r"✗ Run r2 scored (error, no score): no \x1b[2J disk",
        "[rollouts] warning: 1 run not ended; score what ends later with the same command",
        "[rollouts] warning: 1 run without a verdict, for the reasons above",
        "[rollouts] warning: --fail-under: the mean score is low",
    ]


def test_verbose_scoring_has_plain_lines() -> None:
    err = io.StringIO()
    console = EvalConsole(1, err, err)
    console.planned(PLACE, 1, 0, "local", 1)
    console.started(make_result(run_id="r0"))
    console.scored(verdict("r0"))
    console.close(None)
    assert err.getvalue().splitlines()[1:] == [
        "Run r0 is being scored (t, gpt-4)",
        "Run r0 scored (resolved, score 1.00) [1/1]",
    ]


def test_a_run_scored_at_its_end_says_so(plan: Plan) -> None:
    said = Said(0)
    said.console.scored(verdict(IDS[0]))
    assert said.out.getvalue() == f"✓ Run {IDS[0]} scored (resolved, score 1.00)\n"
