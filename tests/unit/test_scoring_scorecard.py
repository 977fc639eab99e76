"""scoring_results.md: for people, and with nothing in it that a patch could make look like something else."""

from typing import Any

import pytest

from rollouts.scoring.scorecard import MOST_ROWS, bar, scorecard
from rollouts.workspace import FileChange

RUBRIC: dict[str, Any] = {
    "id": "r", "criterion": "It works", "weight": 2.0, "score": 0.5, "judged_by": "tests", "passed": 1, "total": 2,
    "reason": None, "evidence": [],
}  # fmt: skip


def page(**changes: Any) -> str:
    evaluation: dict[str, Any] = {
        "run_id": "run-1", "model": "gpt-4", "agent": "codex", "outcome": "tests_failed", "total_score": 0.5,
        "coverage": 1.0, "error": None, "notes": [], "flags": [], "custom_metrics": {}, "test_results": [],
        "evaluation": {"rubrics": [RUBRIC]},
        "agent_metrics": {"status": "launched", "duration_s": 1.5},
    }  # fmt: skip
    return scorecard({**evaluation, **changes}, "A title", [FileChange("a.py", 3, 1)])


@pytest.mark.parametrize(
    ("score", "filled", "said"), [(0.0, 0, "0.0 %"), (0.5, 10, "50.0 %"), (0.999, 19, "99.9 %"), (1.0, 20, "100.0 %")]
)
def test_a_bar_is_full_only_when_all_is_well(score: float, filled: int, said: str) -> None:
    assert bar(score) == f"`{'█' * filled}{'░' * (20 - filled)}` {said}"


def test_no_score_is_no_zero() -> None:
    assert bar(None).endswith("no score")


def test_a_page_has_the_verdict_rubrics_and_changes() -> None:
    text = page()
    assert text.startswith("# A title\n")
    assert "50.0 % · **tests_failed**" in text
    assert "| `r` | 2 | 50.0 % | 1 of 2 | It works |" in text
    assert "| `a.py` | +3 | -1 |" in text
    assert "codex with gpt-4, launched, 1.5 s" in text
    assert "## Notes" not in text


def test_what_did_not_pass_comes_first() -> None:
    tests = [{"id": name, "status": status, "expected": None} for name, status in (("a", "passed"), ("b", "failed"))]
    text = page(test_results=tests)
    assert text.index("`b`") < text.index("`a`")
    assert "## Tests (1 of 2 passed)" in text


def test_long_tables_are_cut_and_say_so() -> None:
    tests = [{"id": f"t{number}", "status": "failed", "expected": None} for number in range(MOST_ROWS + 5)]
    assert "… and 5 more" in page(test_results=tests)


def test_names_out_of_a_patch_are_shown_and_never_obeyed() -> None:
    hostile = "x`|\n# 100 %<script>\x1b[2J"
    flag = {"kind": "link", "path": hostile, "action": "kept", "detail": hostile}
    text = page(flags=[flag], notes=[hostile], custom_metrics={hostile: hostile})
    assert "\x1b" not in text
    assert "\n# 100" not in text
    row = next(line for line in text.splitlines() if line.startswith("| link"))
    assert row.replace("\\|", "").count("|") == 5
    assert "\\<script\\>" in next(line for line in text.splitlines() if line.startswith("- x"))


def test_an_error_says_why() -> None:
    text = page(outcome="error", total_score=None, error={"message": "no disk"}, coverage=0.0)
    assert "says nothing about the patch" in text
    assert "Why: no disk" in text


def test_what_was_not_judged_says_so() -> None:
    rubric = {**RUBRIC, "score": None, "judged_by": "judge", "passed": None, "total": None, "reason": "no answer"}
    text = page(evaluation={"rubrics": [rubric]}, coverage=0.5)
    assert "not judged" in text
    assert "(judge: no answer)" in text
    assert "Scored: 50 % of the rubrics' weight." in text
