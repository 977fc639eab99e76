"""What people see while runs go on: a live board on a terminal, plain lines otherwise."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rollouts.eval_manifest import Evaluated
from rollouts.evaluation import EvalOutcome
from rollouts.planning import Plan
from rollouts.results import RunResult, Status
from rollouts.store import BatchPlace, shown_path
from rollouts.tables import open_console
from rollouts.terminal import counted, printable_line

HEARTBEAT_S = 30.0
"""How often a plain log says that things go on."""
BOARD_ROWS = 8


class _Progress:
    """What all commands that take their time share. Verbosity 0: the board; 1: plain progress; 2: all output too."""

    doing = "Running tasks"

    def __init__(self, verbosity: int, out: TextIO, err: TextIO) -> None:
        self._verbosity = verbosity
        self._out, self._err = open_console(out), open_console(err)
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._spinner: Spinner | None = None
        self._total = self._completed = 0
        self._parallel = 1
        self._began = time.monotonic()
        self._closed = threading.Event()
        self._running: dict[str, tuple[RunResult, float]] = {}
        self._partial: dict[str, bytes] = {}
        self._built: set[str] = set()

    def building(self, task_id: str, data: bytes) -> None:
        """Images take their time: say which one, and with -vv everything the build says."""
        if self._verbosity >= 2:
            self.output(task_id, data)
            return
        line = data.decode("utf-8", "replace").partition("\n")[0]
        with self._lock:
            if line not in self._built and line.startswith(("building", "pulling")):
                self._built.add(line)
                self._print(self._err, f"[rollouts] {line}")

    def warn(self, text: str) -> None:
        """Something to know that is not the answer."""
        self._print(self._err, f"[rollouts] warning: {text}")

    def output(self, run_id: str, data: bytes) -> None:
        """With -vv, every line a sandbox prints, behind its run's id."""
        if self._verbosity < 2:
            return
        with self._lock:
            *lines, rest = (self._partial.get(run_id, b"") + data).split(b"\n")
            if len(rest) > 8192:
                lines, rest = [*lines, rest], b""
            self._partial[run_id] = rest
            for line in lines:
                self._print(self._err, f"{run_id} | {line.decode('utf-8', 'replace').rstrip(chr(13))}")

    def _start(self, total: int, parallel: int) -> None:
        self._total, self._parallel = total, min(parallel, total)
        self._began = time.monotonic()
        if self._verbosity == 0 and self._out.is_terminal:
            self._live = Live(get_renderable=self._board, console=self._out, refresh_per_second=8, transient=True)
            self._live.start()
        elif self._verbosity == 0:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def _stop(self) -> None:
        with self._lock:
            self._closed.set()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _begins(self, result: RunResult) -> None:
        with self._lock:
            self._running[result.run_id] = (result, time.monotonic())

    def _ends(self, run_id: str, *, completed: bool) -> None:
        if self._partial.get(run_id):
            self.output(run_id, b"\n")
        with self._lock:
            self._running.pop(run_id, None)
            self._completed += completed

    def _progress(self) -> str:
        left = self._seconds_left()
        return f"[{self._completed}/{self._total}{f', {_about(left)} left' if left is not None else ''}]"

    def _seconds_left(self) -> float | None:
        """Known once each slot has finished a run: earlier guesses are only noise."""
        if self._completed < self._parallel or self._completed == self._total:
            return None
        return (time.monotonic() - self._began) / self._completed * (self._total - self._completed)

    def _beat(self) -> None:
        """In a plain log, say from time to time that things go on, however long the runs take."""
        while not self._closed.wait(HEARTBEAT_S):
            with self._lock:
                if not self._closed.is_set():
                    self._say(self._running_line())

    def _running_line(self) -> str:
        left = self._seconds_left()
        guess = f", {_about(left)} left" if left is not None and left >= 5 else ""
        return f"{self.doing}... {self._completed}/{self._total} completed{guess}"

    def _board(self) -> RenderableType:
        with self._lock:
            running = list(self._running.values())
            line = Spinner("dots", text=Text(self._running_line()))
        if self._spinner is None:
            self._spinner = line
        self._spinner.update(text=line.text)
        table = Table.grid(padding=(0, 2))
        for result, since in running[:BOARD_ROWS]:
            elapsed = _clock(time.monotonic() - since)
            names = (result.run_id, result.task_id, result.model)
            table.add_row("", *(Text(printable_line(name)) for name in names), elapsed)
        if len(running) > BOARD_ROWS:
            table.add_row("", f"… and {len(running) - BOARD_ROWS} more")
        return Group(self._spinner, table)

    def _say(self, text: str) -> None:
        self._print(self._out, text)

    def _print(self, console: Console, text: str) -> None:
        """One line, whatever is in it: texts come out of boxes, and out of files that anyone may have edited."""
        with self._lock:
            if self._live is not None:
                console = self._out  # it knows how to write above the board
            try:
                console.print(Text(printable_line(text)), soft_wrap=True)
            except OSError:
                console.on_broken_pipe()  # a full disk behind `run >log` must not end the batch


class RunConsole(_Progress):
    """Tells about a batch while it runs."""

    _advice = ""

    def planned(self, plan: Plan) -> None:
        """The first line: what was asked for."""
        name, config = plan.benchmark.name, shown_path(plan.config)
        self._say(f"[rollouts] config={config} name={name} tasks={plan.tasks} parallel={plan.parallel}")

    def resuming(self, missing: int, kept: int, unscored: int) -> None:
        """What is left to do of a batch that is there already."""
        if missing or unscored:
            verdicts = f", {unscored} to score" if unscored else ""
            self._say(f"[rollouts] Resuming: {counted(kept, 'task')} kept, {missing} to do{verdicts}")
        else:
            self._say(f"[rollouts] Nothing to resume: {counted(kept, 'task')} kept")

    def created(self, folder: Path, plan: Plan) -> None:
        """The batch is on disk and begins."""
        self._advice = f"; go on with: rollouts resume {plan.benchmark.name} --rollout {folder.name}"
        self._say(f"[rollouts] output={shown_path(folder)}")
        if self._verbosity == 0:
            self._say("[rollouts] Running in quiet mode - use -vv for full output")
        self._say(f"[rollouts] Starting {len(plan.specs)} tasks with parallel={plan.parallel}")
        self._start(len(plan.specs), plan.parallel)

    def started(self, result: RunResult) -> None:
        """A run begins."""
        self._begins(result)
        if self._verbosity >= 1:
            again = f", attempt {result.attempt}" if result.attempt > 1 else ""
            self._say(f"Task {result.run_id} started ({result.task_id}, {result.model}{again})")

    def ended(self, result: RunResult) -> None:
        """A run is over."""
        self._ends(result.run_id, completed=True)
        fine = result.status is Status.LAUNCHED
        said = f"Task {result.run_id} completed ({result.status})"
        if not fine and result.error is not None:
            said += f": {result.error.message}"
        if self._verbosity >= 1:
            self._say(f"{said} {self._progress()}")
        else:
            self._say(f"{'✓' if fine else '✗'} {said}")

    def scored(self, line: Evaluated) -> None:
        """With `--eval`, a run that is over has its verdict."""
        self._ends(line.run_id, completed=False)
        self._say(_verdict(line, self._verbosity))

    def retrying(self, result: RunResult, attempts_left: int, wait_s: float) -> None:
        """A fault of the machine: the run waits for another try."""
        self._ends(result.run_id, completed=False)
        reason = result.error.message if result.error else result.status
        left = f"{attempts_left} more after that" if attempts_left else "the last time"
        self.warn(f"{result.run_id} is tried again in {wait_s:.1f} s, {left}: {reason}")

    def close(self, results: Sequence[RunResult] | None, *, stopped: bool = False) -> None:
        """The last line. None: the batch never began."""
        self._stop()
        if results is None:
            return
        ended = [result for result in results if result.status.is_end and result.status is not Status.CANCELLED]
        launched = sum(result.status is Status.LAUNCHED for result in results)
        fine = launched == len(results) and not stopped
        mark = "" if self._verbosity >= 1 else "✓ " if fine else "✗ "
        if stopped or len(ended) < len(results):
            self._say(f"{mark}Stopped: {len(ended)}/{len(results)} tasks completed, {launched} launched{self._advice}")
        elif launched < len(results):
            self._say(f"{mark}All {len(results)} tasks completed, {launched} launched, {len(results) - launched} not")
        else:
            self._say(f"{mark}All {len(results)} tasks completed!")


class EvalConsole(_Progress):
    """Tells about a batch while it is scored."""

    doing = "Scoring runs"

    def planned(self, place: BatchPlace, runs: int, left_alone: int, backend: str, parallel: int) -> None:
        """The first line: what is to be done."""
        self._say(f"[rollouts] eval={place.name}/{place.stamp} runs={runs} backend={backend} parallel={parallel}")
        if left_alone:
            self._say(f"[rollouts] {counted(left_alone, 'run')} with a verdict already; --force scores again")
        self._start(max(1, runs), parallel)

    def started(self, result: RunResult) -> None:
        """A run's patch goes into its box."""
        self._begins(result)
        if self._verbosity >= 1:
            self._say(f"Run {result.run_id} is being scored ({result.task_id}, {result.model})")

    def scored(self, line: Evaluated) -> None:
        """A run has its verdict."""
        self._ends(line.run_id, completed=True)
        said = _verdict(line, self._verbosity)
        self._say(f"{said} {self._progress()}" if self._verbosity >= 1 else said)

    def close(self, outcome: EvalOutcome | None) -> None:
        """What was not scored. None: nothing was."""
        self._stop()
        if outcome is None:
            return
        if outcome.waiting:
            self.warn(f"{counted(outcome.waiting, 'run')} not ended; score what ends later with the same command")
        without = sum(not line.has_verdict for line in outcome.lines) - outcome.waiting
        if without > 0:
            self.warn(f"{counted(without, 'run')} without a verdict, for the reasons above")
        if stale := sum(line.has_verdict and not line.is_settled for line in outcome.lines):
            self.warn(f"{counted(stale, 'run')} not scored again; what was known stays")
        if outcome.gate:
            self.warn(f"--fail-under: {outcome.gate}")


def _verdict(line: Evaluated, verbosity: int) -> str:
    score = "no score" if line.total_score is None else f"score {line.total_score:.2f}"
    flags = f", {counted(line.flags, 'flag')}" if line.flags else ""
    done = "scored" if line.is_settled or not line.has_verdict else "keeps its verdict"
    said = f"Run {line.run_id} {done} ({line.outcome}, {score}{flags})"
    if line.error:
        said += f": {line.error}"
    return said if verbosity >= 1 else f"{'✓' if line.resolved and line.is_settled else '✗'} {said}"


def _about(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
