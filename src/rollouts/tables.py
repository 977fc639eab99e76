"""Answers as tables, on stdout. Only this file and `console` import rich.

What comes out of a sandbox is hostile: control characters are shown, never obeyed, and rich's markup is off.
"""

import contextlib
import io
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollouts.backends.base import Finding
from rollouts.eval_manifest import Evaluated, mean_score
from rollouts.leftovers import Removed
from rollouts.results import Status
from rollouts.summary import SummaryRow
from rollouts.terminal import counted, printable_line, silence
from rollouts.validation import TaskCheck


class _Console(Console):
    """Whoever read our output may have left (`| head`): the batch goes on without a reader."""

    def on_broken_pipe(self) -> None:
        """Say nothing more; not even what is still buffered when Python ends."""
        self.quiet = True
        with contextlib.suppress(OSError):
            silence(self.file)


def open_console(stream: TextIO) -> Console:
    """Prints to `stream`: no markup, no colours out of texts, and no end when the reader leaves."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() else 200
    return _Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


def _table(*columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=column in right)
    return table


def show_summary(manifest: dict[str, Any], rows: Sequence[SummaryRow]) -> None:
    """The table of `summarize`."""
    out = open_console(sys.stdout)
    finished = manifest["finished_at"] or "not finished"
    head = f"{manifest['name']} {manifest['created_at']}  backend={manifest['backend']}  finished={finished}"
    out.print(_cell(head), soft_wrap=True)
    numbers = ("runs", "launched", "resolved", "score", "median time", "files", "+lines", "-lines")
    columns = ("runs", "launched", "not launched", "resolved", "not resolved", "score")
    table = _table("task", "model", "agent", *columns, *numbers[4:], right=numbers)
    for row in rows:
        table.add_row(
            *map(_cell, (row.task_id, row.model, row.agent)),
            str(row.runs),
            str(row.launched),
            _counts({name: count for name, count in row.status.items() if name != Status.LAUNCHED}),
            f"{row.resolved}/{row.scored}" if row.outcomes else "-",
            _counts({name: count for name, count in row.outcomes.items() if name != "resolved"}),
            _score(row.mean_score),
            "-" if row.median_duration_s is None else f"{row.median_duration_s:.1f} s",
            "-" if row.median_files is None else f"{row.median_files:g}",
            f"+{row.lines_added}",
            f"-{row.lines_removed}",
        )
    out.print(table)
    runs, launched = sum(row.runs for row in rows), sum(row.launched for row in rows)
    seconds = sum(row.total_duration_s for row in rows)
    scored, resolved = sum(row.scored for row in rows), sum(row.resolved for row in rows)
    verdicts = f", {resolved} of {scored} scored resolved" if scored else ", none scored yet"
    out.print(Text(f"{counted(runs, 'run')}, {launched} launched{verdicts}, {seconds:.1f} s of agents' time"))


def _cell(value: object) -> Text:
    """A text from elsewhere: one line, without markup, obeyed by no terminal."""
    return Text(printable_line(str(value)))


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "-"


def show_evaluation(lines: Sequence[Evaluated]) -> None:
    """The table of `eval`: what came of each task with each model."""
    out = open_console(sys.stdout)
    numbers = ("runs", "resolved", "score", "coverage", "flags")
    table = _table("task", "model", "agent", *numbers, "outcomes", right=numbers)
    groups: dict[tuple[str, str, str], list[Evaluated]] = {}
    for line in lines:
        groups.setdefault((line.task_id, line.model, line.agent), []).append(line)
    for (task_id, model, agent), group in groups.items():
        verdicts = [line for line in group if line.has_verdict]
        coverage = min((line.coverage for line in verdicts if line.coverage is not None), default=None)
        table.add_row(
            *map(_cell, (task_id, model, agent)),
            str(len(group)),
            f"{sum(line.resolved is True for line in group)}/{len(verdicts)}",
            _score(mean_score(group)),
            "-" if coverage is None else f"{coverage * 100:.0f} %",
            str(sum(line.flags for line in group)),
            _counts(Counter(line.outcome or "not scored" for line in group)),
        )
    out.print(table)
    resolved, verdicts_of_all = sum(line.resolved is True for line in lines), sum(line.has_verdict for line in lines)
    stale = sum(line.has_verdict and not line.is_settled for line in lines)
    earlier = f" ({stale} of them an earlier one)" if stale else ""
    said = f"{counted(len(lines), 'run')}, {verdicts_of_all} with a verdict{earlier}, {resolved} resolved"
    mean = mean_score(lines)
    out.print(Text(said if mean is None else f"{said}, mean score {mean:.3f}"))


def show_check(check: TaskCheck) -> None:
    """What `validate --run` says about one task."""
    out = open_console(sys.stdout)
    scores = ", ".join(f"{patch} {'/'.join(map(_score, found))}" for patch, found in check.scores.items())
    said = f"{check.task_id}: {scores}" if scores else check.task_id
    out.print(Text(f"{'✓' if check.is_fine else '✗'} {said}"), soft_wrap=True)
    for text in (*check.problems, *(f"flaky: {test}" for test in check.flaky)):
        out.print(_cell(f"  {text}"), soft_wrap=True)
    for text in check.warnings:
        out.print(_cell(f"  warning: {text}"), soft_wrap=True)


def show_batches(rows: Iterable[dict[str, Any]]) -> None:
    """The table of `list`."""
    table = _table("name", "stamp", "state", "backend", "runs", "launched", "finished", right=("runs", "launched"))
    for row in rows:
        launched = str(row["status"].get(Status.LAUNCHED, 0))
        finished = row["finished_at"] or "-"
        cells = (row["name"], row["stamp"], row["state"], row["backend"], row["runs"], launched, finished)
        table.add_row(*(_cell(cell) for cell in cells))
    open_console(sys.stdout).print(table)


def show_removed(removed: Removed, *, dry_run: bool, silent: bool = False) -> None:
    """What `clean` says about one thing."""
    if silent:
        return
    said = f"{'would remove' if dry_run else 'removed'} {removed.kind} {printable_line(removed.what)}"
    said += f" with {counted(removed.runs, 'run')}" if removed.runs else ""
    said += f" ({shown_size(removed.bytes)})" if removed.bytes is not None else ""
    open_console(sys.stdout).print(Text(said), soft_wrap=True)


def show_cleaned(removed: Sequence[Removed], *, dry_run: bool) -> None:
    """Its last line."""
    size = shown_size(sum(each.bytes or 0 for each in removed))
    said = f"{'would remove' if dry_run else 'removed'} {counted(len(removed), 'thing')}, {size}"
    open_console(sys.stdout).print(Text(said if removed else "nothing to remove"))


def shown_size(size: int) -> str:
    """For people."""
    return f"{size / 1e6:.1f} MB"


def show_findings(findings: Iterable[Finding]) -> None:
    """The table of `doctor`."""
    table = _table("", "what", "found", "what to do")
    for finding in findings:
        mark = Text("✓", "green") if finding.ok else Text("-") if finding.optional else Text("✗", "red")
        table.add_row(mark, finding.name, _cell(finding.detail), _cell(finding.advice))
    open_console(sys.stdout).print(table)


def show_plan(plan: dict[str, Any]) -> None:
    """What `--dry-run` prints."""
    out = open_console(sys.stdout)
    table = _table("index", "task", "model", "agent", "rollout", "limit", right=("index", "rollout", "limit"))
    for run in plan["runs"]:
        model = _cell(run["model"])
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
    kept = f"; {counted(plan['kept'], 'run')} kept" if "kept" in plan else ""
    out.print(Text(f"{line}{kept}; images to build: {built}; most it can cost: {cost}"), soft_wrap=True)
    for line in plan["missing_environment_variables"]:
        out.print(_cell(f"warning: {line}"), soft_wrap=True)
