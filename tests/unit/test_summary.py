"""Summaries: a row per task, model and agent, with numbers that can be checked by hand."""

from rollouts.results import Status
from rollouts.summary import SummaryRow, summarize_results
from tests.samples import make_result


def test_runs_are_grouped_in_the_order_of_the_plan() -> None:
    results = [
        make_result(task_id="b", model="m"),
        make_result(task_id="a", model="m"),
        make_result(task_id="b", model="n"),
        make_result(task_id="b", model="m", agent="other"),
        make_result(task_id="b", model="m"),
    ]
    rows = summarize_results(results)
    assert [(row.task_id, row.model, row.agent, row.runs) for row in rows] == [
        ("b", "m", "codex", 2),
        ("a", "m", "codex", 1),
        ("b", "n", "codex", 1),
        ("b", "m", "other", 1),
    ]


def test_numbers_are_counted_summed_and_halved() -> None:
    results = [
        make_result(duration_s=1.0, changes={"files": 1, "lines_added": 5, "lines_removed": 0}),
        make_result(duration_s=2.0, changes={"files": 4, "lines_added": 1, "lines_removed": 2}),
        make_result(duration_s=9.0, status=Status.TIMEOUT, changes={"files": 2, "lines_added": 1, "lines_removed": 1}),
        make_result(status=Status.SANDBOX_FAILED),
    ]
    assert summarize_results(results) == [
        SummaryRow(
            task_id="t",
            model="gpt-4",
            agent="codex",
            runs=4,
            status={"launched": 2, "timeout": 1, "sandbox_failed": 1},
            median_duration_s=2.0,
            total_duration_s=12.0,
            median_files=2,
            lines_added=7,
            lines_removed=3,
            outcomes={},
            mean_score=None,
        )
    ]
    assert summarize_results(results)[0].launched == 2


def test_what_is_not_known_is_not_made_up() -> None:
    row = summarize_results([make_result(status=Status.PENDING)])[0]
    assert (row.median_duration_s, row.median_files, row.launched) == (None, None, 0)


def test_no_runs_make_no_rows() -> None:
    assert summarize_results([]) == []
