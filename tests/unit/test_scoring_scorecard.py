"""scoring_results.md: for people, and with nothing in it that a patch could make look like something else."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

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


HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![x](http://127.0.0.1:9/pixel.png)",
    "[click](javascript:alert(1))",
    "```<img src=x onerror=alert(1)>",
    "x`` <svg onload=alert(1)> ``` ` `` <b>",
    "a | b\n\n# 100.0 % · **resolved**\n\n<iframe src=//x>",
    "\\`\\| <a href='//x'>x</a> &lt;script&gt; <!-- -->",
    "\x1b]0;x\x07\u202e]]><style>*{display:none}</style>\\",
)


class Seen(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, [name for name, _ in attrs if name != "style"]))

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", []))


def rendered(text: str) -> list[tuple[str, list[str]]]:
    """As a viewer shows it that lets HTML through."""
    seen = Seen()
    seen.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
    return seen.elements


def everywhere(text: str) -> str:
    """A page with that text in every place that comes from elsewhere."""
    rubric = {**RUBRIC, "id": text, "criterion": text, "reason": text}
    evaluation: dict[str, Any] = {
        "run_id": text, "model": text, "agent": text, "outcome": "error", "total_score": None, "coverage": 0.5,
        "error": {"message": text}, "notes": [text], "custom_metrics": {text: text, "deep": [text]},
        "flags": [{"kind": text, "path": text, "action": text, "detail": text}],
        "test_results": [{"id": text, "status": text, "expected": text}], "evaluation": {"rubrics": [rubric]},
        "agent_metrics": {"status": text, "duration_s": None},
    }  # fmt: skip
    return scorecard(evaluation, text, [FileChange(text, 3, 1)])


@pytest.mark.parametrize("text", HOSTILE)
def test_report_of_a_run_does_nothing_that_hostile_texts_ask_for(text: str) -> None:
    page, harmless = everywhere(text), everywhere("harmless")
    assert rendered(page) == rendered(harmless)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", page)


@given(st.text(alphabet="`|\\<>a &[]()!*_#\n\t-~\"'=/:", max_size=40))
def test_report_of_a_run_is_built_the_same_whatever_the_texts_are(text: str) -> None:
    built = [tag for tag, _ in rendered(everywhere(text)) if tag not in ("code", "em")]
    assert built == [tag for tag, _ in rendered(everywhere("harmless")) if tag not in ("code", "em")]
