"""Results into scores: which tests count for which rubric, what a score is, and when there is none."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.scoring.judge import Judgement
from rollouts.scoring.rubric import (
    IMPLIED,
    NOBODY,
    Observed,
    judged_rubrics,
    outcome_of,
    rubric_scores,
    standard_metrics,
    total_of,
)
from rollouts.scoring.rubric import test_results as results_of
from rollouts.scoring.tests import TestStatus as Status
from rollouts.scoring.verdict import Outcome, RubricScore
from rollouts.scoring.verdict import TestResult as Result
from rollouts.tasks import Evaluation

P, F, E, S, M = Status.PASSED, Status.FAILED, Status.ERROR, Status.SKIPPED, Status.MISSING
TWO = [{"id": "one", "weight": 3.0}, {"id": "two", "weight": 1.0}]


def script(path: str, rubric: str) -> dict[str, str]:
    return {"path": path, "rubric_id": rubric, "content": "x"}


SCRIPTS = [script("tests/test_a.py", "one"), script("tests/test_b.py", "two")]


def evaluation(**keys: Any) -> Evaluation:
    return Evaluation.model_validate(keys)


def scored(
    judged: Evaluation, results: Mapping[str, Status], scripts: Mapping[str, str] | None = None, **options: Any
) -> dict[str, float | None]:
    tests = results_of(judged, Observed(dict(results), scripts or {}))
    return {rubric.id: rubric.score for rubric in rubric_scores(judged, tests, {}, tested=True, **options)}


# --- which tests count for what -----------------------------------------------------------------------------------


def test_tests_count_for_the_rubric_of_their_file() -> None:
    results = {"tests/test_a.py::x": P, "tests/test_a.py::C::y": F, "tests/test_b.py::x": P, "tests/test_c.py::x": F}
    tests = results_of(evaluation(rubrics=TWO, test_scripts=SCRIPTS), Observed(results))
    assert {test.id: test.rubrics for test in tests} == {
        "tests/test_a.py::x": ("one",),
        "tests/test_a.py::C::y": ("one",),
        "tests/test_b.py::x": ("two",),
        "tests/test_c.py::x": (),
    }
    assert scored(evaluation(rubrics=TWO, test_scripts=SCRIPTS), results) == {"one": 0.5, "two": 1.0}


def test_a_file_that_could_not_be_collected_counts_for_its_rubric() -> None:
    judged = evaluation(rubrics=TWO, test_scripts=SCRIPTS)
    assert scored(judged, {"tests/test_a.py": E, "tests/test_b.py::x": P}) == {"one": 0.0, "two": 1.0}


def test_ids_that_name_no_file_count_for_every_rubric_with_a_script() -> None:
    judged = evaluation(rubrics=[*TWO, {"id": "design"}], test_scripts=SCRIPTS)
    assert scored(judged, {"adds": P, "subtracts": F}) == {"one": 0.5, "two": 0.5, "design": None}


def test_results_of_a_known_script_count_for_its_rubric() -> None:
    judged = evaluation(rubrics=TWO, test_scripts=[script("a.sh", "one"), script("b.sh", "two")])
    results = {"a.sh::x": P, "b.sh": F, "odd": P}
    assert scored(judged, results, {"a.sh::x": "a.sh", "b.sh": "b.sh", "odd": "b.sh"}) == {"one": 1.0, "two": 0.5}


def test_a_rubric_may_have_several_scripts_and_a_script_several_rubrics() -> None:
    scripts = [script("a.py", "one"), script("b.py", "one"), script("b.py", "two"), script("b.py", "two")]
    judged = evaluation(rubrics=TWO, test_scripts=scripts)
    assert scored(judged, {"a.py::x": P, "b.py::x": F, "b.py::y": P}) == {"one": round(2 / 3, 6), "two": 0.5}


def test_without_scripts_tests_count_for_every_rubric() -> None:
    assert scored(evaluation(rubrics=TWO, command="make test"), {"a": P, "b": F}) == {"one": 0.5, "two": 0.5}


def test_a_task_without_rubrics_has_one_that_is_implied() -> None:
    judged = evaluation(fail_to_pass=["a"], pass_to_pass=["b"])
    tests = results_of(judged, Observed({"a": P, "b": F}))
    (rubric,) = rubric_scores(judged, tests, {}, tested=True)
    assert (rubric.id, rubric.weight, rubric.score, rubric.passed, rubric.total) == (IMPLIED.id, 1.0, 0.5, 1, 2)


# --- lists --------------------------------------------------------------------------------------------------------


def test_an_expected_test_that_nobody_heard_of_is_missing_and_not_passed() -> None:
    judged = evaluation(fail_to_pass=["t.py::a", "t.py::b"])
    tests = results_of(judged, Observed({"t.py::a": P}))
    assert [(test.id, test.status, test.expected) for test in tests] == [
        ("t.py::a", "passed", "fail_to_pass"),
        ("t.py::b", "missing", "fail_to_pass"),
    ]
    assert outcome_of(Observed(), tests) is Outcome.TESTS_FAILED
    assert scored(judged, {"t.py::a": P}) == {"tests": 0.5}


def test_with_lists_only_the_listed_tests_count() -> None:
    judged = evaluation(rubrics=[{"id": "one"}], test_scripts=[script("a.py", "one")], fail_to_pass=["a.py::x"])
    results = {"a.py::x": P, "a.py::y": F, "b.py::z": F}
    assert scored(judged, results) == {"one": 1.0}
    assert outcome_of(Observed(), results_of(judged, Observed(results))) is Outcome.RESOLVED


def test_a_script_that_the_lists_do_not_cover_counts_by_what_it_told() -> None:
    judged = evaluation(rubrics=TWO, test_scripts=SCRIPTS, fail_to_pass=["tests/test_a.py::x"])
    results = {"tests/test_a.py::x": P, "tests/test_b.py::y": P, "tests/test_b.py::z": F, "tests/test_c.py::x": F}
    assert scored(judged, results) == {"one": 1.0, "two": 0.5}
    assert scored(judged, {"tests/test_a.py::x": P}) == {"one": 1.0, "two": 0.0}
    assert outcome_of(Observed(), results_of(judged, Observed(results))) is Outcome.RESOLVED


def test_a_test_in_both_lists_is_one_that_had_to_be_mended() -> None:
    tests = results_of(evaluation(fail_to_pass=["a"], pass_to_pass=["a", "b"]), Observed({"a": P, "b": P}))
    assert [(test.id, test.expected) for test in tests] == [("a", "fail_to_pass"), ("b", "pass_to_pass")]


def test_results_have_one_order() -> None:
    judged = evaluation(fail_to_pass=["z", "m"], pass_to_pass=["q"])
    results = {"b": P, "z": P, "a": F, "q": P, "m": P}
    one = results_of(judged, Observed(results))
    assert one == results_of(judged, Observed(dict(reversed(results.items()))))
    assert [test.id for test in one] == ["q", "z", "m", "a", "b"]


# --- scores -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [status for status in Status if status is not P])
def test_only_a_pass_is_a_pass(status: Status) -> None:
    judged = evaluation(command="x")
    assert scored(judged, {"a": P, "b": status}) == {"tests": 0.5}
    assert outcome_of(Observed(), results_of(judged, Observed({"a": P, "b": status}))) is Outcome.TESTS_FAILED


def test_results_that_are_not_believed_earn_nothing() -> None:
    judged = evaluation(rubrics=TWO, test_scripts=SCRIPTS)
    tests = results_of(judged, Observed({"tests/test_a.py::x": P, "tests/test_b.py::x": P}))
    rubrics = rubric_scores(judged, tests, {}, tested=True, zero=True)
    assert [(rubric.score, rubric.passed, rubric.total) for rubric in rubrics] == [(0.0, 0, 1), (0.0, 0, 1)]
    assert total_of(rubrics) == (0.0, 1.0)


def test_a_rubric_that_nobody_judges_has_no_score() -> None:
    judged = evaluation(rubrics=[*TWO, {"id": "design", "weight": 4.0}], test_scripts=SCRIPTS)
    tests = results_of(judged, Observed({"tests/test_a.py::x": P, "tests/test_b.py::x": F}))
    rubrics = rubric_scores(judged, tests, {}, tested=True)
    assert (rubrics[2].score, rubrics[2].judged_by, rubrics[2].reason) == (None, "nobody", NOBODY)
    assert total_of(rubrics) == (0.75, 0.5)


def test_nobody_is_asked_about_rubrics_that_the_tests_speak_for() -> None:
    assert judged_rubrics(evaluation(rubrics=TWO), tested=True) == ()
    assert [rubric.id for rubric in judged_rubrics(evaluation(rubrics=TWO), tested=False)] == ["one", "two"]


def test_scripts_may_speak_for_rubrics_that_nobody_described() -> None:
    alone = evaluation(rubrics=[], test_scripts=SCRIPTS)
    tests = results_of(alone, Observed({"tests/test_a.py::x": P, "tests/test_b.py::x": F}))
    scores = {rubric.id: rubric.score for rubric in rubric_scores(alone, tests, {}, tested=True)}
    assert scores == {"one": 1.0, "two": 0.0}


def test_a_judge_speaks_for_what_no_script_does() -> None:
    judged = evaluation(rubrics=[*TWO, {"id": "design"}, {"id": "docs"}], test_scripts=SCRIPTS)
    assert [rubric.id for rubric in judged_rubrics(judged, tested=True)] == ["design", "docs"]
    judgements = {
        "design": Judgement(0.25, "so", ("quote",), None),
        "docs": Judgement(None, "", (), "no answer"),
        "one": Judgement(1.0, "not asked", (), None),
    }
    tests = results_of(judged, Observed({"tests/test_a.py::x": F, "tests/test_b.py::x": F}))
    one, _, design, docs = rubric_scores(judged, tests, judgements, tested=True)
    assert (one.score, one.judged_by) == (0.0, "tests")
    assert (design.score, design.judged_by, design.reason, design.evidence) == (0.25, "judge", "so", ("quote",))
    assert (docs.score, docs.judged_by, docs.reason) == (None, "judge", "no answer")


@pytest.mark.parametrize("tested", [True, False])
def test_tests_that_told_of_nothing_are_no_reason_for_no_score(tested: bool) -> None:
    """A patch that ends the tests' process must not turn its 0 into a null."""
    rubrics = rubric_scores(evaluation(rubrics=TWO), (), {}, tested=tested, zero=True)
    assert [rubric.score for rubric in rubrics] == [0.0 if tested else None] * 2
    assert total_of(rubrics) == ((0.0, 1.0) if tested else (None, 0.0))


def test_there_is_no_total_without_a_score() -> None:
    assert total_of([RubricScore("a", "", 1.0, None, "nobody")]) == (None, 0.0)
    assert total_of([]) == (None, 0.0)


def test_weights_count() -> None:
    rubrics = [RubricScore("a", "", 3.0, 1.0, "tests"), RubricScore("b", "", 1.0, 0.0, "tests")]
    assert total_of(rubrics) == (0.75, 1.0)
    assert total_of([*rubrics, RubricScore("c", "", 4.0, None, "nobody")]) == (0.75, 0.5)


SCORES = st.builds(
    RubricScore,
    st.just("r"),
    st.just(""),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.none() | st.floats(0, 1),
    st.just("tests"),
)


@given(st.lists(SCORES, max_size=6))
def test_a_total_stays_within_its_bounds(rubrics: Sequence[RubricScore]) -> None:
    total, coverage = total_of(rubrics)
    known = [rubric.score for rubric in rubrics if rubric.score is not None]
    assert 0 <= coverage <= 1
    assert (total is None) == (not known)
    if total is not None:
        assert min(known) - 1e-6 <= total <= max(known) + 1e-6
        assert 0 <= total <= 1


STATUSES = st.dictionaries(
    st.sampled_from(["a.py::x", "a.py::y", "b.py::x", "tap", "c.py::z"]), st.sampled_from(Status)
)
IDS = st.lists(st.sampled_from(["a.py::x", "b.py::x", "tap", "gone"]), max_size=3)


@given(STATUSES, IDS, IDS, st.lists(st.sampled_from(["a.py", "b.py"]), max_size=3), st.booleans())
def test_whatever_the_results_scores_and_outcome_agree(
    results: dict[str, Status], first: list[str], second: list[str], paths: list[str], zero: bool
) -> None:
    scripts = [script(path, rubric) for path, rubric in zip(paths, ["one", "two", "one"], strict=False)]
    judged = evaluation(rubrics=TWO, test_scripts=scripts, fail_to_pass=first, pass_to_pass=second)
    tests = results_of(judged, Observed(dict(results)))
    assert len({test.id for test in tests}) == len(tests)
    rubrics = rubric_scores(judged, tests, {}, tested=True, zero=zero)
    total, coverage = total_of(rubrics)
    assert 0 <= coverage <= 1
    assert total is None or 0 <= total <= 1
    if outcome_of(Observed(), tests) is Outcome.RESOLVED:
        assert all(test.status == P for test in tests if test.expected)
    metrics = standard_metrics(tests)
    assert (metrics["tests_passed"] or 0) <= (metrics["tests_total"] or 0)


# --- outcomes -----------------------------------------------------------------------------------------------------


def result(status: Status, expected: str | None = None) -> Result:
    return Result(f"{status}{expected}", status.value, expected, ())


@pytest.mark.parametrize(
    ("observed", "tests", "expected"),
    [
        (Observed(), [result(P)], Outcome.RESOLVED),
        (Observed(), [], Outcome.TESTS_FAILED),
        (Observed(), [result(P), result(F)], Outcome.TESTS_FAILED),
        (Observed(), [result(P, "fail_to_pass"), result(F)], Outcome.RESOLVED),
        (Observed(), [result(P, "fail_to_pass"), result(M, "pass_to_pass")], Outcome.TESTS_FAILED),
        (Observed(), [result(S, "pass_to_pass"), result(P)], Outcome.TESTS_FAILED),
        (Observed(bent=("why",)), [result(P)], Outcome.TESTS_FAILED),
        (Observed(trouble="why"), [result(P)], Outcome.TESTS_FAILED),
        (Observed(timed_out=True), [result(P)], Outcome.TIMEOUT),
        (Observed(timed_out=True, bent=("why",), trouble="why"), [], Outcome.TIMEOUT),
    ],
)
def test_an_outcome(observed: Observed, tests: list[Result], expected: Outcome) -> None:
    assert outcome_of(observed, tests) is expected


def test_counts_are_those_of_the_tests_that_count() -> None:
    tests = [result(P, "fail_to_pass"), result(F, "fail_to_pass"), result(P, "pass_to_pass"), result(F)]
    assert standard_metrics(tests) == {
        "tests_total": 3,
        "tests_passed": 2,
        "fail_to_pass_total": 2,
        "fail_to_pass_passed": 1,
        "pass_to_pass_total": 1,
        "pass_to_pass_passed": 1,
    }
    assert standard_metrics([result(P), result(F)])["tests_total"] == 2
    assert standard_metrics([])["tests_total"] == 0
