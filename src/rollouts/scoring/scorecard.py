"""`scoring_results.md`: a verdict for people. Names out of patches are hostile, so they stand in code spans."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollouts.terminal import printable
from rollouts.workspace import FileChange

BAR_CELLS = 20
MOST_ROWS = 200
"""Longer tables are cut; the JSON beside has everything."""
_MARKS = {"passed": "✓", "failed": "✗", "error": "✗", "missing": "✗"}
_SENTENCES = {
    "resolved": "Every required test passed.",
    "tests_failed": "Not every required test passed.",
    "no_patch": "The agent changed nothing.",
    "apply_failed": "The patch does not apply to the task's source.",
    "timeout": "The tests did not end within their time limit.",
    "error": "It could not be scored; that says nothing about the patch.",
}


def scorecard(evaluation: Mapping[str, Any], title: str, changes: Sequence[FileChange]) -> str:
    """The whole page."""
    parts = [
        f"# {_text(title)}",
        _head(evaluation),
        _table("Rubrics", ("rubric", "weight", "score", "tests", "criterion"), _rubric_rows(evaluation)),
        _tests(evaluation["test_results"]),
        _table("Edits that could bend the verdict", ("kind", "path", "done", "detail"), _flag_rows(evaluation)),
        _list("Notes", evaluation["notes"]),
        _table("Custom metrics", ("metric", "value"), sorted(evaluation["custom_metrics"].items())),
        _table("Changes", ("file", "added", "removed"), [(c.path, f"+{c.added}", f"-{c.removed}") for c in changes]),
    ]
    return "\n".join(part for part in parts if part)


def bar(score: float | None) -> str:
    """A score as a row of cells."""
    if score is None:
        return f"`{'░' * BAR_CELLS}` no score"
    filled = int(score * BAR_CELLS + 1e-9)
    return f"`{'█' * filled}{'░' * (BAR_CELLS - filled)}` {score * 100:.1f} %"


def _head(evaluation: Mapping[str, Any]) -> str:
    lines = [
        "",
        f"{bar(evaluation['total_score'])} · **{evaluation['outcome']}**",
        "",
        _SENTENCES[evaluation["outcome"]],
    ]
    if evaluation["error"]:
        lines += ["", f"Why: {_text(evaluation['error']['message'])}"]
    coverage = evaluation["coverage"]
    if 0 < coverage < 1:
        lines += ["", f"Scored: {coverage * 100:.0f} % of the rubrics' weight."]
    agent = evaluation["agent_metrics"]
    seconds = "" if agent["duration_s"] is None else f", {agent['duration_s']:.1f} s"
    who = f"{evaluation['agent']} with {evaluation['model']}, {agent['status']}{seconds}"
    lines += ["", f"Run {_code(evaluation['run_id'])}: {_text(who)}", ""]
    return "\n".join(lines)


def _rubric_rows(evaluation: Mapping[str, Any]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for rubric in evaluation["evaluation"]["rubrics"]:
        score = "not judged" if rubric["score"] is None else f"{rubric['score'] * 100:.1f} %"
        tests = "" if rubric["total"] is None else f"{rubric['passed']} of {rubric['total']}"
        reason = f" ({rubric['judged_by']}: {rubric['reason']})" if rubric["reason"] else ""
        rows.append((rubric["id"], f"{rubric['weight']:g}", score, tests, f"{rubric['criterion']}{reason}"))
    return rows


def _tests(tests: Sequence[Mapping[str, Any]]) -> str:
    """Those that did not pass first: they are what one looks for."""
    ordered = sorted(tests, key=lambda test: test["status"] == "passed")
    rows = [(_MARKS.get(test["status"], "-"), test["id"], test["status"], test["expected"] or "") for test in ordered]
    passed = sum(test["status"] == "passed" for test in tests)
    return _table(f"Tests ({passed} of {len(tests)} passed)", ("", "test", "status", "expected"), rows)


def _flag_rows(evaluation: Mapping[str, Any]) -> list[tuple[object, ...]]:
    return [(flag["kind"], flag["path"], flag["action"], flag["detail"]) for flag in evaluation["flags"]]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    lines = [f"## {title}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    coded = {"test", "path", "file", "metric", "value", "rubric"}
    for row in rows[:MOST_ROWS]:
        cells = (_code(cell) if name in coded else _text(cell) for name, cell in zip(columns, row, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    if len(rows) > MOST_ROWS:
        lines.append(f"\n… and {len(rows) - MOST_ROWS} more")
    return "\n".join([*lines, ""])


def _list(title: str, notes: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", *(f"- {_text(note)}" for note in notes), ""]) if notes else ""


def _text(value: object) -> str:
    """Plain prose: neither markup nor a table's end."""
    text = printable(" ".join(str(value).split()))[:1000]
    for mark in "\\`*_[]<>|#~":
        text = text.replace(mark, f"\\{mark}")
    return re.sub(r"^(\d*)([-+=.)])(?=[-=\s]|$)", r"\1\\\2", text)  # at its start it would make a list, or a line


def _code(value: object) -> str:
    """A name, whatever is in it."""
    text = printable(" ".join(str(value).split()))[:300].replace("|", "\\|")
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}" if len(fence) == 1 and text else f"{fence} {text} {fence}"
