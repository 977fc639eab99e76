"""Tables: what people read as the answer."""

import re

import pytest

from rollouts.backends.base import Finding
from rollouts.eval_manifest import Evaluated
from rollouts.leftovers import Removed
from rollouts.results import Status
from rollouts.summary import summarize_results
from rollouts.tables import (
    show_batches,
    show_check,
    show_cleaned,
    show_evaluation,
    show_findings,
    show_plan,
    show_removed,
    show_summary,
)
from rollouts.validation import TaskCheck
from tests.samples import make_result


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def verdict(outcome: str, score: float | None, **changes: object) -> Evaluated:
    resolved = None if outcome == "error" else outcome == "resolved"
    return Evaluated("r", "t", "gpt-4", "codex", "data/runs/r", outcome, resolved, score, 0.9, **changes)  # type: ignore[arg-type]


def test_a_summary_shows_counts_times_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        make_result(duration_s=1.0, changes={"files": 1, "lines_added": 5, "lines_removed": 2}),
        make_result(status=Status.TIMEOUT, duration_s=3.0),
    ]
    manifest = {"name": "hello", "created_at": "S", "backend": "local", "finished_at": None}
    show_summary(manifest, summarize_results(results))
    head, columns, row, total = capsys.readouterr().out.splitlines()
    assert head == "hello S  backend=local  finished=not finished"
    assert dict(zip(cells(columns), cells(row), strict=True)) == {
        "task": "t", "model": "gpt-4", "agent": "codex", "runs": "2", "launched": "1", "not launched": "1 timeout",
        "resolved": "-", "not resolved": "-", "score": "-", "median time": "2.0 s", "files": "1",
        "+lines": "+5", "-lines": "-2",
    }  # fmt: skip
    assert total == "2 runs, 1 launched, none scored yet, 4.0 s of agents' time"


def test_batches_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"name": "a", "stamp": "S", "state": "stopped", "backend": "local", "runs": 3, "finished_at": None}
    show_batches([{**row, "status": {"launched": 2}}])
    assert capsys.readouterr().out.splitlines()[1].split() == ["a", "S", "stopped", "local", "3", "2", "-"]


def test_findings_come_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    show_findings([Finding("git", True, "2.39"), Finding("disk", False, "full\x1b[2J", "free some")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["✓", "git", "2.39"]
    assert lines[2].split() == ["✗", "disk", r"full\x1b[2J", "free", "some"]


def test_a_plan_shows_runs_images_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    run = {"index": 0, "task_id": "t", "model": "m", "agent": "nop", "rollout": 0, "timeout_s": 60.0}
    plan = {"runs": [run], "images_to_build": ["t"], "max_cost_usd": 2.0, "backend": "docker", "parallel": 2}
    show_plan({**plan, "missing_environment_variables": ["KEY is not set"]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["0", "t", "m", "nop", "0", "60", "s"]
    assert lines[2:] == [
        "1 runs on docker, parallel=2; images to build: 1 (t); most it can cost: $2.00",
        "warning: KEY is not set",
    ]
    show_plan({**plan, "images_to_build": None, "max_cost_usd": None, "missing_environment_variables": []})
    assert "images to build: unknown, no engine answers; most it can cost: no limit set" in capsys.readouterr().out


def test_a_summary_shows_verdicts_once_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    results = [make_result(run_id="a"), make_result(run_id="b"), make_result(run_id="c")]
    verdicts = {"a": verdict("resolved", 1.0), "b": verdict("tests_failed", 0.5), "c": verdict("error", None)}
    manifest = {"name": "hello", "created_at": "S", "backend": "local", "finished_at": None}
    show_summary(manifest, summarize_results(results, verdicts))
    *_, row, total = capsys.readouterr().out.splitlines()
    assert cells(row)[3:8] == ["3", "3", "-", "1/2", "1 error, 1 tests_failed"]
    assert total == "3 runs, 3 launched, 1 of 2 scored resolved, 0.0 s of agents' time"


def test_an_evaluation_shows_scores_of_what_has_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    show_evaluation([verdict("resolved", 1.0), verdict("tests_failed", 0.0, flags=3), verdict("error", None)])
    _, row, total = capsys.readouterr().out.splitlines()
    assert cells(row) == ["t", "gpt-4", "codex", "3", "1/2", "0.50", "90 %", "3", "1 error, 1 resolved, 1 tests_failed"]
    assert total == "3 runs, 2 with a verdict, 1 resolved, mean score 0.500"


def test_a_checked_task_says_what_is_wrong_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    show_check(TaskCheck("t", "x", (), (), (), {"empty": [0.0], "solution": [1.0]}))
    show_check(TaskCheck("u", "x", ("bad \x1b[2J",), ("a::b",), ("no solution",), {"empty": [None]}))
    assert capsys.readouterr().out.splitlines() == [
        "✓ t: empty 0.00, solution 1.00",
        "✗ u: empty -",
        r"  bad \x1b[2J",
        "  flaky: a::b",
        "  warning: no solution",
    ]


def test_what_was_removed_is_told_line_by_line_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    things = [Removed("batch", "data/rollouts/a/S", 1_500_000, 2), Removed("box", "docker \x1b[2J")]
    for dry_run in (False, True):
        for each in things:
            show_removed(each, dry_run=dry_run)
        show_removed(things[0], dry_run=dry_run, silent=True)
        show_cleaned(things, dry_run=dry_run)
    show_cleaned([], dry_run=False)
    assert capsys.readouterr().out.splitlines() == [
        "removed batch data/rollouts/a/S with 2 runs (1.5 MB)",
        r"removed box docker \x1b[2J",
        "removed 2 things, 1.5 MB",
        "would remove batch data/rollouts/a/S with 2 runs (1.5 MB)",
        r"would remove box docker \x1b[2J",
        "would remove 2 things, 1.5 MB",
        "nothing to remove",
    ]
