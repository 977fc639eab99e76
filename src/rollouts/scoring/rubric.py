"""Test results and judgements → rubric scores, a total and an outcome. Pure: no files, no boxes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from rollouts.scoring.judge import Judgement
from rollouts.scoring.tests import MAX_ID_CHARACTERS, Results, TestStatus
from rollouts.scoring.verdict import Outcome, RubricScore, TestResult
from rollouts.tasks import Evaluation, Rubric

IMPLIED = Rubric(id="tests", criterion="Every test passes")
"""What is judged when a task names no rubric."""
NOBODY = "no test script judges it, and there is no [judge]"


@dataclass(frozen=True)
class Observed:
    """What the tests said in their box."""

    results: Results = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    """By test id the test script it came out of, where that is known."""
    bent: tuple[str, ...] = ()
    """Why the results cannot be believed."""
    trouble: str | None = None
    """Why the tests could not be run at all. May be the patch's doing, or the task's."""
    timed_out: bool = False
    by_exit_code: frozenset[str] = frozenset()
    """Steps that told of no test one by one, so that only their exit codes count."""
    ours: bool = False
    """The trouble is not held against the patch, whoever caused it."""


def rubrics_of(evaluation: Evaluation) -> tuple[Rubric, ...]:
    """What is judged: the task's rubrics; else those that its test scripts speak of; else one for all tests."""
    named = dict.fromkeys(script.rubric_id for script in evaluation.test_scripts)
    spoken_of = tuple(Rubric.model_construct(id=name, criterion=IMPLIED.criterion, weight=1.0) for name in named)
    return evaluation.rubrics or spoken_of or (IMPLIED,)


def test_results(evaluation: Evaluation, observed: Observed) -> tuple[TestResult, ...]:
    """Every test that counts or was seen, in a fixed order; an expected one that nobody heard of is `missing`."""
    expected = {
        **dict.fromkeys(evaluation.pass_to_pass, "pass_to_pass"),
        **dict.fromkeys(evaluation.fail_to_pass, "fail_to_pass"),
    }
    seen = {test_id: status for test_id, status in sorted(observed.results.items()) if test_id not in expected}
    told = {test_id: observed.results.get(test_id[:MAX_ID_CHARACTERS], TestStatus.MISSING) for test_id in expected}
    covered = {_script_of(test_id, observed) for test_id in told}
    beside = [test_id for test_id in seen if told and _script_of(test_id, observed) not in covered]
    rubrics = _rubrics_of(evaluation, observed, told or seen, beside)
    return tuple(
        TestResult(test_id, status.value, expected.get(test_id), rubrics.get(test_id, ()))
        for test_id, status in {**told, **seen}.items()
    )


def _rubrics_of(
    evaluation: Evaluation, observed: Observed, counting: Iterable[str], beside: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Which rubrics each counting test counts for; `beside`: tests of scripts that no list says a word about."""
    by_script: dict[str, list[str]] = {}
    for script in evaluation.test_scripts:
        by_script.setdefault(script.path, []).append(script.rubric_id)
    everyone = list(dict.fromkeys(script.rubric_id for script in evaluation.test_scripts))
    everyone = everyone or [rubric.id for rubric in rubrics_of(evaluation)]
    found = {test_id: by_script.get(_script_of(test_id, observed), []) for test_id in counting}
    if not any(found.values()):  # ids that name no file, as in TAP: they count for all that is judged by tests
        found = dict.fromkeys(found, everyone)
    else:
        found |= {test_id: by_script.get(_script_of(test_id, observed), []) for test_id in beside}
    return {test_id: tuple(dict.fromkeys(rubrics)) for test_id, rubrics in found.items()}


def _script_of(test_id: str, observed: Observed) -> str:
    return observed.scripts.get(test_id) or test_id.partition("::")[0]


def rubric_scores(
    evaluation: Evaluation,
    tests: Sequence[TestResult],
    judgements: Mapping[str, Judgement],
    *,
    tested: bool,
    zero: bool = False,
) -> tuple[RubricScore, ...]:
    """Each rubric's score. `tested`: the task has tests, whether or not they told of any.

    With `zero` no test earned any: there is no patch, or the results are not to be believed.
    """
    rubrics = rubrics_of(evaluation)
    by_tests = {script.rubric_id for script in evaluation.test_scripts}
    by_tests |= {rubric_id for test in tests for rubric_id in test.rubrics}
    if tested and not evaluation.test_scripts:
        by_tests |= {rubric.id for rubric in rubrics}
    return tuple(
        _by_tests(rubric, tests, zero) if rubric.id in by_tests else _by_judge(rubric, judgements.get(rubric.id))
        for rubric in rubrics
    )


def judged_rubrics(evaluation: Evaluation, *, tested: bool) -> tuple[Rubric, ...]:
    """Those that no test script speaks for; none when the tests speak for all of them."""
    by_tests = {script.rubric_id for script in evaluation.test_scripts}
    if tested and not by_tests:
        return ()
    return tuple(rubric for rubric in evaluation.rubrics if rubric.id not in by_tests)


def _by_tests(rubric: Rubric, tests: Sequence[TestResult], zero: bool) -> RubricScore:
    own = [test for test in tests if rubric.id in test.rubrics]
    passed = sum(test.status == TestStatus.PASSED for test in own)
    score = 0.0 if zero or not own else round(passed / len(own), 6)
    counts = (None, None) if not own else (0 if zero else passed, len(own))
    return RubricScore(rubric.id, rubric.criterion, rubric.weight, score, "tests", *counts)


def _by_judge(rubric: Rubric, judgement: Judgement | None) -> RubricScore:
    if judgement is None:
        return RubricScore(rubric.id, rubric.criterion, rubric.weight, None, "nobody", reason=NOBODY)
    reason = judgement.reasons if judgement.error is None else judgement.error
    return RubricScore(
        rubric.id, rubric.criterion, rubric.weight, judgement.score, "judge", reason=reason, evidence=judgement.evidence
    )


def total_of(rubrics: Sequence[RubricScore]) -> tuple[float | None, float]:
    """The weighted mean over what could be scored, and its share of all weight."""
    scored = [(Fraction(rubric.weight), Fraction(rubric.score)) for rubric in rubrics if rubric.score is not None]
    if not scored:
        return None, 0.0
    weight = sum(weight for weight, _ in scored)
    everything = sum(Fraction(rubric.weight) for rubric in rubrics)
    total = sum(weight * score for weight, score in scored) / weight
    return round(float(total), 6), round(float(weight / everything), 6)


def outcome_of(observed: Observed, tests: Sequence[TestResult]) -> Outcome:
    """By the expected tests when there are lists, else by all: each must have passed, and the results be believable."""
    if observed.timed_out:
        return Outcome.TIMEOUT
    counting = [test for test in tests if test.expected] or tests
    passed = bool(counting) and all(test.status == TestStatus.PASSED for test in counting)
    return Outcome.RESOLVED if passed and not observed.bent and observed.trouble is None else Outcome.TESTS_FAILED


def standard_metrics(tests: Sequence[TestResult]) -> dict[str, int | None]:
    """Counts that every task has."""
    counting = [test for test in tests if test.expected] or list(tests)
    metrics: dict[str, int | None] = {
        "tests_total": len(counting),
        "tests_passed": sum(test.status == TestStatus.PASSED for test in counting),
    }
    for name in ("fail_to_pass", "pass_to_pass"):
        own = [test for test in tests if test.expected == name]
        metrics[f"{name}_total"] = len(own)
        metrics[f"{name}_passed"] = sum(test.status == TestStatus.PASSED for test in own)
    return metrics
