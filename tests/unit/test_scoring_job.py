"""One scoring job: how a task's tests are run, and what the steps of its box mean."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rollouts.backends.base import Backend, BoxPaths, Ended, Image, Job, JobResult, LogSink
from rollouts.config import Limits
from rollouts.errors import JobCancelled
from rollouts.scoring.box_result import BoxResult
from rollouts.scoring.job import ScoringBox
from rollouts.scoring.rubric import Observed
from rollouts.scoring.runner import TestPlan as Plan
from rollouts.scoring.runner import plan_tests
from rollouts.scoring.tests import MUST_FAIL, Step
from rollouts.scoring.tests import TestStatus as Status
from rollouts.scoring.tree import scored_tree
from rollouts.task_folder import load_task
from rollouts.tasks import Task
from tests.samples import make_task
from tests.scored import make_base, plain

P, F, E = Status.PASSED, Status.FAILED, Status.ERROR
SAMPLES = Path(__file__).parents[2] / "data/tasks/prepared"


def task_of(folder: Path, *scripts: str, files: Any = None, meta: Any = None, **evaluation: Any) -> Task:
    rubrics = {"rubrics": [{"id": "r"}]} if scripts else {}
    described = [{"path": path, "rubric_id": "r", "content": "x"} for path in scripts]
    parts = {**rubrics, "test_scripts": described, **evaluation}
    return make_task(folder / "t", files=files or {}, meta={"evaluation": parts, **(meta or {})})


# --- plans --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("c_ring_buffer", Plan(command="sh tests/run.sh")),
        ("js_slugify", Plan(command="node tests/run.js")),
        ("shell_log_rotate", Plan(command="sh tests/run.sh")),
        (
            "csv_report",
            Plan(
                python=(
                    "tests/test_amounts.py",
                    "tests/test_grouping.py",
                    "tests/test_markdown.py",
                    "tests/test_cli.py",
                    "tests/test_report.py",
                )
            ),
        ),
        (
            "fix_duration_parser",
            Plan(
                python=(
                    "tests/test_parsing.py",
                    "tests/test_rejected.py",
                    "tests/test_formatting.py",
                    "tests/test_formatter.py",
                    "tests/test_parser.py",
                )
            ),
        ),
        (
            "lru_cache_ttl",
            Plan(
                python=(
                    "tests/test_ttl.py",
                    "tests/test_unchanged.py",
                    "tests/test_readme.py",
                    "tests/test_cache.py",
                )
            ),
        ),
    ],
)  # fmt: skip
def test_the_sample_tasks_are_tested_as_they_should_be(name: str, expected: Plan) -> None:
    assert plan_tests(load_task(SAMPLES / name)) == expected


def test_every_sample_task_is_planned() -> None:
    assert not [path.name for path in SAMPLES.iterdir() if plan_tests(load_task(path)).is_empty]


HIDDEN = {
    "tests/test_h.py": "",
    "tests/h_test.py": "",
    "tests/helper.py": "",
    "tests/data.txt": "",
    "tests/conftest.py": "",
}


@pytest.mark.parametrize(
    ("scripts", "files", "evaluation", "expected"),
    [
        ((), {}, {}, Plan()),
        ((), HIDDEN, {}, Plan(python=("tests/h_test.py", "tests/test_h.py"))),
        ((), {"tests/run.sh": ""}, {}, Plan()),
        ((), {}, {"command": "make"}, Plan(command="make")),
        ((), HIDDEN, {"command": "make"}, Plan(command="make")),
        (("tests/test_a.py", "a.sh"), {}, {}, Plan(python=("tests/test_a.py",), scripts=("a.sh",))),
        (("tests/check.py",), HIDDEN, {},
         Plan(python=("tests/h_test.py", "tests/test_h.py"), scripts=("tests/check.py",))),
        (("a.js", "b.sh"), {}, {}, Plan(scripts=("a.js", "b.sh"))),
        (("a.js", "b.js"), {}, {"command": "node {path}"}, Plan(command="node {path}", scripts=("a.js", "b.js"))),
        (("a.js", "b.js"), {}, {"command": "npm test"}, Plan(command="npm test")),
        ((), {}, {"fail_to_pass": ["some name"]}, Plan(python=(".",))),
        ((), HIDDEN, {"fail_to_pass": ["some name"]}, Plan(python=("tests/h_test.py", "tests/test_h.py"))),
        ((), {}, {"pass_to_pass": ["tests/test_a.py::x"]}, Plan(python=("tests/test_a.py",))),
        ((), {}, {"fail_to_pass": ["tests/admin/tests.py::C::x", "t/test_b.py::y"]},
         Plan(python=("tests/admin/tests.py", "t/test_b.py"))),
        (("tests/check.py",), {}, {"fail_to_pass": ["tests/check.py::adds"]}, Plan(scripts=("tests/check.py",))),
        (("tests/test_a.py",), {}, {"fail_to_pass": ["tests/test_a.py::x"], "pass_to_pass": ["tests/test_b.py::x"]},
         Plan(python=("tests/test_a.py", "tests/test_b.py"))),
    ],
)  # fmt: skip
def test_a_plan(
    scripts: tuple[str, ...], files: dict[str, str], evaluation: dict[str, Any], expected: Plan, tmp_path: Path
) -> None:
    plan = plan_tests(task_of(tmp_path, *scripts, files=files, **evaluation))
    assert plan == expected
    assert plan.is_empty == (plan == Plan())


# --- what goes into the box ---------------------------------------------------------------------------------------


def scoring_box(folder: Path, *scripts: str, **parts: Any) -> ScoringBox:
    task = task_of(folder, *scripts, **parts)
    base = make_base(folder / "base", {"a.py": plain("x\n"), "pkg/b.py": plain("x\n")})
    plan = plan_tests(task)
    tree = scored_tree(task, base.start, {}, plan.python)
    image = Image(task_id="t", tree=folder, base_git=folder, source_digest="", instructions="")
    return ScoringBox(task, image, Limits(), tree, b"patch", plan, "job", "run", "batch", folder)


def box_files(folder: Path, *scripts: str, **parts: Any) -> dict[str, bytes]:
    return dict(scoring_box(folder, *scripts, **parts)._files("/app/my repo", "/rollouts/my in"))


def steps_of(files: dict[str, bytes]) -> dict[str, str]:
    return {name: data.decode() for name, data in files.items() if name[:1].isdigit()}


def test_a_box_gets_its_steps_in_order(tmp_path: Path) -> None:
    files = box_files(
        tmp_path, "tests/test_a.py", "b c.sh", "d.py", "e.mjs", "f", setup="make deps", metrics="sh measure.sh"
    )
    assert steps_of(files) == {
        "0000-setup.sh": "make deps",
        "0001-pytest.sh": "sh '/rollouts/my in/run_pytest.sh' '/rollouts/my in'\n",
        "0002-script0.sh": "sh './b c.sh'\n",
        "0003-script1.sh": '"${ROLLOUTS_PYTHON:-python3}" ./d.py\n',
        "0004-script2.sh": "node ./e.mjs\n",
        "0005-script3.sh": "./f\n",
        "0006-metrics.sh": "sh measure.sh",
    }
    assert files["diff.patch"] == b"patch"
    assert {"score.sh", "removals", "folders", "tree.tar", "run_pytest.sh", "run_pytest.py", "pytest.json"} <= set(
        files
    )


def test_pytest_is_told_its_files_and_its_settings(tmp_path: Path) -> None:
    settings = json.loads(box_files(tmp_path, "tests/test_a.py")["pytest.json"])
    assert settings["options"][-4:] == ["--rootdir", "/app/my repo", "-c", "/rollouts/my in/pytest.ini"]
    assert settings["files"] == ["/app/my repo/tests/test_a.py"]
    assert int(settings["seed"], 16) >= 0


def test_pytest_that_looks_by_itself_is_given_the_repository(tmp_path: Path) -> None:
    settings = json.loads(box_files(tmp_path, fail_to_pass=["x"])["pytest.json"])
    assert settings["files"] == ["/app/my repo"]


def test_a_command_is_one_step_and_needs_no_pytest(tmp_path: Path) -> None:
    files = box_files(tmp_path, "tests/test_a.py", command="make test")
    assert steps_of(files) == {"0000-tests.sh": "make test"}
    assert not {"run_pytest.py", "pytest.json"} & set(files)


def test_a_command_with_a_path_is_run_for_each_script_from_the_top(tmp_path: Path) -> None:
    meta = {"repo": {"git_url": "/x", "subdir": "pkg/deep"}}
    files = box_files(tmp_path, "a b.js", "c.js", command="node --test {path} # {path}", meta=meta)
    assert steps_of(files) == {
        "0000-script0.sh": "cd ../.. || exit 1\nnode --test './a b.js' # './a b.js'\n",
        "0001-script1.sh": "cd ../.. || exit 1\nnode --test ./c.js # ./c.js\n",
    }


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("evaluate.py", "\"${ROLLOUTS_PYTHON:-python3}\" '/rollouts/my in/evaluate.py'\n"),
        ("evaluate.sh", "sh '/rollouts/my in/evaluate.sh'\n"),
    ],
)
def test_a_tasks_own_measures_are_the_last_step(name: str, command: str, tmp_path: Path) -> None:
    files = box_files(tmp_path, files={name: "x"}, command="true")
    assert steps_of(files) == {"0000-tests.sh": "true", "0001-metrics.sh": command}
    assert files[name] == b"x"


@pytest.mark.parametrize("name", ["0000-setup.sh", "0001-script0.sh"])
def test_every_step_is_a_shell_script(name: str, tmp_path: Path) -> None:
    files = box_files(tmp_path, "a'b\".sh", setup="true")
    done = subprocess.run(["sh", "-n"], input=files[name], capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")


class FakeBackend:
    """Says what it was told to, with the word of the job, and ends so."""

    def __init__(self, said: bytes, ended: Ended = Ended.EXITED) -> None:
        self.said, self.ended = said, ended
        self.jobs: list[Job] = []
        self.freed = 0

    def paths(self, job_id: str, image: Image) -> BoxPaths:
        return BoxPaths("/app/repo", "/app/repo", "/rollouts", "/home/agent")

    def run(self, job: Job, sink: LogSink) -> JobResult:
        self.jobs.append(job)
        assert job.stdout is not None
        job.stdout(self.said.replace(b"@", (job.secret or "").encode()))
        return JobResult(self.ended, 0, 1.0, {}, None, free=self.free)

    def free(self) -> None:
        self.freed += 1


SAID = b"@ begin tree\n@ end tree 0\n@ begin tests\nnot ok 1 - a\n@ end tests 1\nlast words"


def test_a_box_is_alone_and_its_word_is_secret(tmp_path: Path) -> None:
    backend, log = FakeBackend(SAID), list[bytes]()

    def keep(data: bytes) -> None:
        log.append(data)

    scored = scoring_box(tmp_path, command="make test", timeout_s=7.0)
    result = scored.run(cast(Backend, backend), keep)
    assert result.observed() == Observed({"a": F})
    (job,) = backend.jobs
    assert (job.network, job.capture, job.timeout_s, backend.freed) == ("none", False, 7.0, 0)
    assert job.secret is not None
    assert len(job.secret) == 32
    assert job.secret not in repr((job.argv, job.env, job.files))
    assert b"".join(log) == b"not ok 1 - a\nlast words"
    scored.run(cast(Backend, backend), keep)
    assert backend.jobs[1].secret != job.secret


def test_a_box_that_was_cancelled_gives_no_verdict(tmp_path: Path) -> None:
    backend = FakeBackend(SAID, Ended.CANCELLED)
    with pytest.raises(JobCancelled):
        scoring_box(tmp_path, command="make test").run(cast(Backend, backend), lambda data: None)
    assert backend.freed == 1


# --- what came out ------------------------------------------------------------------------------------------------

TREE = Step("tree", 0)


def tap_step(name: str, code: int | None, *lines: str) -> Step:
    step = Step(name, code)
    for line in lines:
        step.tap.take(f"{line}\n".encode())
    return step


def pytest_step(code: int | None = 0, results: dict[str, Status] | None = None, **parts: Any) -> Step:
    parts = {"runner": True, "status": code, "results": {"t.py::a": P} if results is None else results, **parts}
    return Step("pytest", code, **parts)


def box(
    folder: Path, plan: Plan, *steps: Step, ended: Ended = Ended.EXITED, junit: bytes | None = None, **evaluation: Any
) -> BoxResult:
    outputs = {}
    if junit is not None:
        (folder / "results.xml").write_bytes(junit)
        outputs = {"results.xml": folder / "results.xml"}
    result = JobResult(ended, 0, 1.0, outputs, None)
    return BoxResult(plan, task_of(folder, **evaluation), steps, result)


PYTEST, COMMAND, SCRIPT = Plan(python=("t.py",)), Plan(command="make test"), Plan(scripts=("a.sh", "b.sh"))


def test_results_of_pytest_are_believed_when_all_is_well(tmp_path: Path) -> None:
    assert box(tmp_path, PYTEST, TREE, pytest_step()).observed() == Observed({"t.py::a": P})
    failed = pytest_step(1, {"t.py::a": P, "t.py::b": F})
    assert box(tmp_path, PYTEST, TREE, failed).observed() == Observed({"t.py::a": P, "t.py::b": F})


@pytest.mark.parametrize(
    ("step", "doubt"),
    [
        (pytest_step(None), "the tests did not come to their end"),
        (pytest_step(0, bent=MUST_FAIL), MUST_FAIL),
        (pytest_step(0, status=None), "the tests ended their own process, with exit code 0"),
        (pytest_step(137, status=None), "the tests ended their own process, with exit code 137"),
        (pytest_step(0, status=1), "pytest ended with 1, its process with 0"),
        (pytest_step(1), "pytest counts failures, but told of none"),
        (pytest_step(1, {"a": Status.SKIPPED}), "pytest counts failures, but told of none"),
        (pytest_step(2), "pytest did not come to its end (status 2)"),
        (pytest_step(3, {"a": F}), "pytest did not come to its end (status 3)"),
    ],
)
def test_a_doubt_about_pytest(step: Step, doubt: str, tmp_path: Path) -> None:
    assert box(tmp_path, PYTEST, TREE, step).observed().bent == (doubt,)


@pytest.mark.parametrize(
    ("steps", "trouble"),
    [
        ([], "the patched files could not be put into the box"),
        ([Step("tree", 1)], "the patched files could not be put into the box"),
        ([Step("tree")], "the patched files could not be put into the box"),
        ([TREE, Step("setup", 3)], "evaluation.setup exited with 3"),
        ([TREE, Step("setup")], "evaluation.setup exited with None"),
        ([TREE, Step("pytest", 97)], "there is no Python with pytest in the box"),
        ([TREE, pytest_step(5, {})], "pytest ran no test (status 5)"),
        ([TREE, pytest_step(4, {})], "pytest ran no test (status 4)"),
    ],
)
def test_a_trouble_of_the_box_or_of_pytest(steps: list[Step], trouble: str, tmp_path: Path) -> None:
    observed = box(tmp_path, PYTEST, *steps).observed()
    assert observed.trouble == trouble
    assert not observed.bent


def test_a_box_that_ended_early_is_not_believed(tmp_path: Path) -> None:
    both = Plan(python=("t.py",), scripts=("a.sh",))
    assert box(tmp_path, both, TREE, pytest_step()).observed().bent == ("the box ended before all tests were run",)
    ended = box(tmp_path, PYTEST, TREE, pytest_step(), ended=Ended.OUT_OF_MEMORY)
    assert ended.observed().bent == ("the tests ran out of memory",)


@pytest.mark.parametrize(
    ("plan", "steps", "expected"),
    [
        (PYTEST, [TREE, pytest_step(None)], True),
        (PYTEST, [TREE, pytest_step(), Step("metrics")], False),
        (SCRIPT, [TREE, Step("script0", 0)], True),
        (SCRIPT, [TREE, Step("script0", 0), Step("script1", 0), Step("metrics")], False),
        (Plan(), [TREE, Step("metrics")], False),
    ],
)
def test_a_time_limit_counts_when_it_ended_the_tests(
    plan: Plan, steps: list[Step], expected: bool, tmp_path: Path
) -> None:
    observed = box(tmp_path, plan, *steps, ended=Ended.TIMEOUT).observed()
    assert observed.timed_out is expected
    assert observed.trouble is None


def test_a_setup_that_does_not_end_may_be_the_tasks_fault(tmp_path: Path) -> None:
    observed = box(tmp_path, PYTEST, TREE, Step("setup"), ended=Ended.TIMEOUT).observed()
    assert observed == Observed(timed_out=True, trouble="evaluation.setup did not end within the time limit")


def test_a_tree_that_was_never_put_in_is_our_fault(tmp_path: Path) -> None:
    assert box(tmp_path, PYTEST, ended=Ended.TIMEOUT).observed().ours


def test_results_before_the_time_limit_are_kept(tmp_path: Path) -> None:
    observed = box(tmp_path, PYTEST, TREE, pytest_step(None, {"a": P}), ended=Ended.TIMEOUT).observed()
    assert observed == Observed({"a": P}, timed_out=True)


def test_scripts_are_named_in_their_results(tmp_path: Path) -> None:
    steps = [tap_step("script0", 1, "1..2", "ok 1 - x", "not ok 2 - y"), Step("script1", 0)]
    observed = box(tmp_path, SCRIPT, TREE, *steps).observed()
    assert observed.results == {"a.sh::x": P, "a.sh::y": F, "b.sh": P}
    assert observed.scripts == {"a.sh::x": "a.sh", "a.sh::y": "a.sh", "b.sh": "b.sh"}
    assert (observed.bent, observed.trouble) == ((), None)


def test_a_step_that_nobody_planned_has_no_script(tmp_path: Path) -> None:
    observed = box(tmp_path, SCRIPT, TREE, Step("script0", 0), Step("script1", 0), Step("script7", 1)).observed()
    assert observed.results == {"a.sh": P, "b.sh": P, "exit code": F}


@pytest.mark.parametrize("code", [0, 1, 2, 255])
def test_a_command_that_says_nothing_is_judged_by_its_exit_code(code: int, tmp_path: Path) -> None:
    observed = box(tmp_path, COMMAND, TREE, Step("tests", code)).observed()
    assert observed == Observed({"exit code": F if code else P}, by_exit_code=frozenset({"tests"}))


def test_a_command_that_is_to_write_junit_is_not_judged_by_its_exit_code(tmp_path: Path) -> None:
    plan = Plan(command='pytest --junitxml="$ROLLOUTS_JUNIT"')
    observed = box(tmp_path, plan, TREE, Step("tests", 0)).observed()
    assert observed == Observed(trouble="the test command told of no test (exit code 0)")


def test_with_lists_an_exit_code_alone_is_no_result(tmp_path: Path) -> None:
    observed = box(tmp_path, COMMAND, TREE, Step("tests", 0), fail_to_pass=["x"]).observed()
    assert observed == Observed(trouble="the test command told of no test (exit code 0)")


@pytest.mark.parametrize("lists", [{}, {"fail_to_pass": ["x"]}])
def test_tests_that_were_all_left_out_are_a_trouble(lists: dict[str, Any], tmp_path: Path) -> None:
    observed = box(tmp_path, COMMAND, TREE, tap_step("tests", 0, "1..0 # skip no compiler"), **lists).observed()
    assert observed.trouble == "the test command told of no test (exit code 0)"


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_is_not_there_is_a_trouble(code: int, tmp_path: Path) -> None:
    trouble = f"the test command could not be run (exit code {code})"
    assert box(tmp_path, COMMAND, TREE, Step("tests", code)).observed().trouble == trouble
    spoke = box(tmp_path, COMMAND, TREE, tap_step("tests", code, "not ok 1"))
    assert spoke.observed().trouble is None


@pytest.mark.parametrize(
    ("step", "doubt"),
    [
        (tap_step("tests", 1, "ok 1 - a"), "exit code 1 although no test failed"),
        (tap_step("tests", 139, "1..1", "ok 1 - a"), "exit code 139 although no test failed"),
        (tap_step("tests", 0, "1..2", "ok 1 - a"), "2 tests planned, 1 told of"),
        (tap_step("tests", 0, "ok 1 - a", "Bail out!"), "the tests bailed out"),
        (tap_step("tests", None, "1..1", "ok 1 - a"), "the tests did not come to their end"),
    ],
)
def test_a_doubt_about_tap(step: Step, doubt: str, tmp_path: Path) -> None:
    assert box(tmp_path, COMMAND, TREE, step).observed().bent == (doubt,)


def test_a_failed_test_with_exit_code_0_is_a_failure_all_the_same(tmp_path: Path) -> None:
    observed = box(tmp_path, COMMAND, TREE, tap_step("tests", 0, "ok 1 - a", "not ok 2 - b")).observed()
    assert observed == Observed({"a": P, "b": F})


def test_junit_comes_before_tap(tmp_path: Path) -> None:
    junit = b'<testsuite><testcase classname="c" name="a"/></testsuite>'
    step = tap_step("tests", 0, "ok 1 - other")
    assert box(tmp_path, COMMAND, TREE, step, junit=junit).observed() == Observed({"c::a": P})
    crashed = box(tmp_path, COMMAND, TREE, Step("tests", 1), junit=junit).observed()
    assert crashed.bent == ("exit code 1 although no test failed",)


def test_junit_that_is_none_is_told_of_once(tmp_path: Path) -> None:
    result = box(
        tmp_path, COMMAND, TREE, tap_step("tests", 0, "ok 1 - a"), junit=b"<?xml version='1.0' encoding='x'?><a/>"
    )
    assert result.observed().results == {"a": P}
    assert result.notes == ["results.xml is no JUnit XML: unknown encoding: x"]


def test_reasons_stand_once(tmp_path: Path) -> None:
    steps = [tap_step(f"script{number}", 1, "ok 1") for number in (0, 1)]
    assert box(tmp_path, SCRIPT, TREE, *steps).observed().bent == ("exit code 1 although no test failed",)


# --- metrics ------------------------------------------------------------------------------------------------------


def metrics_step(text: bytes, code: int | None = 0) -> Step:
    return replace(Step("metrics", code), text=bytearray(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"lines": 3}', {"lines": 3}),
        (b'{"custom_metrics": {"lines": 3}, "other": 1}', {"lines": 3}),
        (b'{"custom_metrics": 3}', {"custom_metrics": 3}),
    ],
)
def test_metrics_are_what_the_step_printed(text: bytes, expected: dict[str, int], tmp_path: Path) -> None:
    assert box(tmp_path, Plan(), TREE, metrics_step(text)).metrics() == expected


def test_without_a_step_there_are_no_metrics(tmp_path: Path) -> None:
    assert box(tmp_path, PYTEST, TREE, pytest_step()).metrics() == {}


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (metrics_step(b'{"a": 1}', None), "did not come to its end"),
        (metrics_step(b'{"a": 1}', 2), "exited with 2"),
        (metrics_step(b""), "it printed nothing"),
        (metrics_step(b"[1]"), r"expected a JSON object, got '\[1\]'"),
    ],
)
def test_metrics_of_no_use_are_refused(step: Step, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        box(tmp_path, Plan(), TREE, step).metrics()
