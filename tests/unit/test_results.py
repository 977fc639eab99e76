"""Results: what is written is what is read back, and the exit code says what the results say."""

import json

import pytest

from rollouts.errors import ExitCode
from rollouts.results import RunError, RunResult, Stage, Status, exit_code_of
from tests.samples import make_result

FAILED = [status for status in Status if status not in (Status.LAUNCHED, Status.PENDING, Status.RUNNING)]


def test_a_result_survives_json() -> None:
    result = make_result(
        status=Status.SANDBOX_FAILED,
        error=RunError(Stage.IMAGE, "ImageFailed", "no é"),
        changes={"files": 1, "lines_added": 2, "lines_removed": 3},
        usage={"cost_usd": None},
        duration_s=1.5,
        attempt=2,
    )
    assert RunResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_the_keys_that_other_programs_read_are_there() -> None:
    assert set(make_result().to_json()) >= {
        "task_dir", "run_id", "status", "launch_rc", "run_dir", "task_id", "model", "agent", "rollout", "attempt",
        "started_at", "finished_at", "duration_s", "usage", "changes", "error",
    }  # fmt: skip
    assert json.loads(json.dumps(make_result().to_json()))["status"] == "launched"


def test_keys_of_later_versions_are_let_go() -> None:
    assert RunResult.from_json({**make_result().to_json(), "from_the_future": 1}) == make_result()


def test_a_cancelled_run_keeps_what_is_known() -> None:
    assert make_result(attempt=2).cancelled() == make_result(attempt=2, status=Status.CANCELLED)


@pytest.mark.parametrize("status", list(Status))
def test_only_pending_and_running_are_no_ends(status: Status) -> None:
    assert status.is_end is (status.value not in ("pending", "running"))


def test_all_launched_is_success() -> None:
    assert exit_code_of([make_result(), make_result()]) is ExitCode.OK


@pytest.mark.parametrize("status", FAILED)
def test_none_launched_is_1_and_some_is_3(status: Status) -> None:
    bad = make_result(status=status)
    assert exit_code_of([bad, bad]) is ExitCode.NONE_SUCCEEDED
    assert exit_code_of([bad, make_result()]) is ExitCode.SOME_FAILED


def test_the_exit_codes_are_the_documented_numbers() -> None:
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4, 5, 130, 143]


@pytest.mark.parametrize(
    "change",
    [
        {"model": 3},
        {"model": None},
        {"task_dir": ["x"]},
        {"key": {}},
        {"rollout": "0"},
        {"attempt": "1"},
        {"launch_rc": "0"},
        {"duration_s": True},
        {"duration_s": [1]},
        {"error": {"stage": "agent", "type": "x", "message": 3}},
        {"error": {"stage": "agent"}},
        {"error": "x"},
        {"status": "launchd"},
        {"status": []},
    ],
)
def test_a_record_that_was_edited_into_something_else_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        RunResult.from_json({**make_result().to_json(), **change})


def test_an_attempt_begins_with_nothing_of_the_one_before() -> None:
    before = make_result(
        status=Status.AGENT_FAILED, launch_rc=1, attempt=1, started_at="a", finished_at="b", duration_s=3.0,
        usage={"prompts": 1}, changes={"files": 1}, error=RunError("agent", "agent_failed", "it exited"), overrides="o",
    )  # fmt: skip
    after = before.begun(2, "c")
    planned = make_result(status=Status.RUNNING, launch_rc=None, attempt=2, started_at="c", overrides="o")
    assert after == planned
