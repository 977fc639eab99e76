"""What people see: a live board on a terminal, plain lines otherwise. Only this file and `cli` import rich.

What comes out of a sandbox is hostile: control characters are shown, never obeyed, and rich's markup is off.
"""

import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rollouts.backends.base import Finding
from rollouts.planning import Plan
from rollouts.results import RunResult, Status
from rollouts.store import shown_path
from rollouts.summary import SummaryRow
from rollouts.terminal import printable, silence

HEARTBEAT_S = 30.0
"""How often a plain log says that things go on."""
BOARD_ROWS = 8


class RunConsole:
    """Tells about a batch while it runs. Verbosity 0: the board; 1: plain progress; 2: all output too."""

    def __init__(self, verbosity: int, out: TextIO, err: TextIO) -> None:
        self._verbosity = verbosity
        self._out, self._err = _console(out), _console(err)
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._total = self._completed = 0
        self._parallel = 1
        self._began = time.monotonic()
        self._closed = threading.Event()
        self._running: dict[str, tuple[RunResult, float]] = {}
        self._partial: dict[str, bytes] = {}
        self._built: set[str] = set()

    def planned(self, plan: Plan) -> None:
        """The first line: what was asked for."""
        name, config = plan.benchmark.name, shown_path(plan.config)
        self._say(f"[rollouts] config={config} name={name} tasks={plan.tasks} parallel={plan.parallel}")

    def building(self, task_id: str, data: bytes) -> None:
        """Images take their time: say which one, and with -vv everything the build says."""
        if self._verbosity >= 2:
            self.output(task_id, data)
            return
        line = data.decode("utf-8", "replace").partition("\n")[0]
        with self._lock:
            if line not in self._built and line.startswith(("building", "pulling")):
                self._built.add(line)
                self._print(self._err, f"[rollouts] {printable(line)}")

    def created(self, folder: Path, plan: Plan) -> None:
        """The batch is on disk and begins."""
        self._total, self._parallel = len(plan.specs), min(plan.parallel, len(plan.specs))
        self._say(f"[rollouts] output={shown_path(folder)}")
        if self._verbosity == 0:
            self._say("[rollouts] Running in quiet mode - use -vv for full output")
        self._say(f"[rollouts] Starting {self._total} tasks with parallel={plan.parallel}")
        self._began = time.monotonic()
        if self._verbosity == 0 and self._out.is_terminal:
            self._live = Live(get_renderable=self._board, console=self._out, refresh_per_second=8, transient=True)
            self._live.start()
        elif self._verbosity == 0:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def started(self, result: RunResult) -> None:
        """A run begins."""
        with self._lock:
            self._running[result.run_id] = (result, time.monotonic())
        if self._verbosity >= 1:
            again = f", attempt {result.attempt}" if result.attempt > 1 else ""
            self._say(f"Task {result.run_id} started ({result.task_id}, {result.model}{again})")

    def ended(self, result: RunResult) -> None:
        """A run is over."""
        self._flush(result.run_id)
        with self._lock:
            self._running.pop(result.run_id, None)
            self._completed += 1
        fine = result.status is Status.LAUNCHED
        said = f"Task {result.run_id} completed ({result.status})"
        if not fine and result.error is not None:
            said += f": {printable(result.error.message)}"
        if self._verbosity >= 1:
            self._say(f"{said} {self._progress()}")
        else:
            self._say(f"{'✓' if fine else '✗'} {said}")

    def retrying(self, result: RunResult, attempts_left: int) -> None:
        """A fault of the machine: the run waits for another try."""
        self._flush(result.run_id)
        with self._lock:
            self._running.pop(result.run_id, None)
        reason = printable(result.error.message) if result.error else result.status
        self.warn(f"{result.run_id} is tried again ({attempts_left} left): {reason}")

    def warn(self, text: str) -> None:
        """Something to know that is not the answer."""
        self._print(self._err, f"[rollouts] warning: {printable(text)}")

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
                self._print(self._err, f"{run_id} | {printable(line.decode('utf-8', 'replace').rstrip(chr(13)))}")

    def close(self, results: Sequence[RunResult] | None, *, stopped: bool = False) -> None:
        """The last line. None: the batch never began."""
        with self._lock:
            self._closed.set()
        if self._live is not None:
            self._live.stop()
            self._live = None
        if results is None:
            return
        ended = [result for result in results if result.status.is_end and result.status is not Status.CANCELLED]
        launched = sum(result.status is Status.LAUNCHED for result in results)
        mark = "" if self._verbosity >= 1 else "✓ " if launched == len(results) else "✗ "
        if stopped or len(ended) < len(results):
            self._say(f"{mark}Stopped: {len(ended)}/{len(results)} tasks completed, {launched} launched")
        elif launched < len(results):
            self._say(f"{mark}All {len(results)} tasks completed, {launched} launched, {len(results) - launched} not")
        else:
            self._say(f"{mark}All {len(results)} tasks completed!")

    def _flush(self, run_id: str) -> None:
        if self._partial.get(run_id):
            self.output(run_id, b"\n")

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
        return f"Running tasks... {self._completed}/{self._total} completed{guess}"

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
            table.add_row(
                "", Text(result.run_id), Text(printable(result.task_id)), Text(printable(result.model)), elapsed
            )
        if len(running) > BOARD_ROWS:
            table.add_row("", f"… and {len(running) - BOARD_ROWS} more")
        return Group(self._spinner, table)

    _spinner: Spinner | None = None

    def _say(self, text: str) -> None:
        self._print(self._out, text)

    def _print(self, console: Console, text: str) -> None:
        with self._lock:
            if self._live is not None:
                console = self._out  # it knows how to write above the board
            try:
                console.print(Text(text), soft_wrap=True)
            except OSError:
                console.on_broken_pipe()  # a full disk behind `run >log` must not end the batch


class _Console(Console):
    """Whoever read our output may have left (`| head`): the batch goes on without a reader."""

    def on_broken_pipe(self) -> None:
        """Say nothing more; not even what is still buffered when Python ends."""
        self.quiet = True
        with contextlib.suppress(OSError):
            silence(self.file)


def _console(stream: TextIO) -> Console:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() else 200
    return _Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


def _about(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _table(*columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=column in right)
    return table


def show_summary(manifest: dict[str, Any], rows: Sequence[SummaryRow]) -> None:
    """The table of `summarize`."""
    out = _console(sys.stdout)
    finished = manifest["finished_at"] or "not finished"
    head = f"{manifest['name']} {manifest['created_at']}  backend={manifest['backend']}  finished={finished}"
    out.print(Text(printable(head)), soft_wrap=True)
    numbers = ("runs", "launched", "median time", "files", "+lines", "-lines")
    table = _table("task", "model", "agent", *numbers[:2], "not launched", *numbers[2:], right=numbers)
    for row in rows:
        others = ", ".join(f"{count} {name}" for name, count in sorted(row.status.items()) if name != Status.LAUNCHED)
        table.add_row(
            Text(row.task_id),
            Text(printable(row.model)),
            Text(row.agent),
            str(row.runs),
            str(row.launched),
            others or "-",
            "-" if row.median_duration_s is None else f"{row.median_duration_s:.1f} s",
            "-" if row.median_files is None else f"{row.median_files:g}",
            f"+{row.lines_added}",
            f"-{row.lines_removed}",
        )
    out.print(table)
    runs, launched = sum(row.runs for row in rows), sum(row.launched for row in rows)
    seconds = sum(row.total_duration_s for row in rows)
    out.print(Text(f"{runs} runs, {launched} launched, {seconds:.1f} s of agents' time"))


def show_batches(rows: Iterable[dict[str, Any]]) -> None:
    """The table of `list`."""
    table = _table("name", "stamp", "backend", "runs", "launched", "finished", right=("runs", "launched"))
    for row in rows:
        launched = str(row["status"].get(Status.LAUNCHED, 0))
        finished = row["finished_at"] or "not finished"
        cells = (row["name"], row["stamp"], row["backend"], row["runs"], launched, finished)
        table.add_row(*(Text(printable(str(cell))) for cell in cells))
    _console(sys.stdout).print(table)


def show_findings(findings: Iterable[Finding]) -> None:
    """The table of `doctor`."""
    table = _table("", "what", "found", "what to do")
    for finding in findings:
        mark = Text("✓", "green") if finding.ok else Text("-") if finding.optional else Text("✗", "red")
        table.add_row(mark, finding.name, Text(printable(finding.detail)), Text(printable(finding.advice)))
    _console(sys.stdout).print(table)


def show_plan(plan: dict[str, Any]) -> None:
    """What `--dry-run` prints."""
    out = _console(sys.stdout)
    table = _table("index", "task", "model", "agent", "rollout", "limit", right=("index", "rollout", "limit"))
    for run in plan["runs"]:
        model = Text(printable(run["model"]))
        limit = f"{run['timeout_s']:g} s"
        table.add_row(str(run["index"]), run["task_id"], model, run["agent"], str(run["rollout"]), limit)
    out.print(table)
    images = plan["images_to_build"]
    built = (
        "unknown, no engine answers"
        if images is None
        else f"{len(images)}" + (f" ({', '.join(images)})" if images else "")
    )
    cost = "no limit set" if plan["max_cost_usd"] is None else f"${plan['max_cost_usd']:.2f}"
    line = f"{len(plan['runs'])} runs on {plan['backend']}, parallel={plan['parallel']}"
    out.print(Text(f"{line}; images to build: {built}; most it can cost: {cost}"), soft_wrap=True)
    for line in plan["missing_environment_variables"]:
        out.print(Text(f"warning: {line}"), soft_wrap=True)
