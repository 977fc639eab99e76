"""A run's verdict on disk: who is scored, what is kept, and what nobody can take away. The scorer here is a fake."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import ImageFailed, JobCancelled, SandboxFailed, StoreError
from rollouts.results import RunResult, Status
from rollouts.scoring.record import RESULTS, Recorder, failed, load_evaluation, not_scored
from rollouts.scoring.score import Place
from rollouts.scoring.verdict import Outcome, RubricScore, Scored
from rollouts.tasks import Task
from tests.samples import make_result, make_task, write_files

PATCH = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a\n+b\n+c\n"
CHANGES = {"files": 1, "lines_added": 2, "lines_removed": 1}
GOOD = Scored(Outcome.RESOLVED, 1.0, 1.0, rubrics=(RubricScore("r", "", 1.0, 1.0, "tests"),))
Answer = Scored | Exception


class FakeScorer:
    """Gives the answers it was made with, one after the other."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.asked = list(answers), 0

    def digest(self, task: Task) -> str:
        return "d"

    def score(self, task: Task, patch: bytes, place: Place) -> Scored:
        self.asked += 1
        place.outputs_dir.mkdir(exist_ok=True)
        (place.outputs_dir / "x").write_text("x")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            place.outputs_dir.joinpath("x").unlink()
            place.outputs_dir.rmdir()
            raise answer
        return answer


class Desk:
    """A run's folder and its task."""

    def __init__(self, folder: Path) -> None:
        self.task = make_task(folder / "task")
        self.folder = write_files(folder / make_result().run_id, {"artifacts/diff.patch": PATCH})
        self.result = make_result(changes=CHANGES)

    def score(self, *answers: Answer, result: RunResult | None = None, retries: int = 2) -> Any:
        self.scorer = FakeScorer(*answers)
        recorder = self.recorder(retries)
        return recorder.score(result or self.result, self.task, self.folder, "b", lambda data: None)

    def recorder(self, retries: int = 2, stopped: Callable[[float], bool] = lambda seconds: False) -> Recorder:
        return Recorder(self.scorer, "local", retries, stopped, lambda: False)  # type: ignore[arg-type] # a fake

    def known(self) -> Any:
        self.scorer = FakeScorer()
        return self.recorder().known(self.result, self.task, self.folder)

    def evaluation(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / RESULTS).read_text())
        return loaded


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_verdict_is_written_and_known_again(desk: Desk) -> None:
    line = desk.score(GOOD)
    assert (line.outcome, line.total_score, line.has_verdict) == ("resolved", 1.0, True)
    assert desk.known() == line
    assert desk.evaluation()["standard_metrics"] == {"patch_bytes": len(PATCH), **CHANGES}
    assert sorted(path.name for path in desk.folder.iterdir()) == [
        "artifacts", "evaluation_results.json", "logs", "scoring_results.md",
    ]  # fmt: skip


def test_a_changed_patch_or_evaluation_is_not_known(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.score(GOOD)
    monkeypatch.setattr(FakeScorer, "digest", lambda self, task: "another")
    assert desk.known() is None
    monkeypatch.undo()
    (desk.folder / "artifacts/diff.patch").write_text(PATCH.replace("+c", "+d"))
    assert desk.known() is None


def test_a_judge_that_had_no_answer_is_asked_again(desk: Desk) -> None:
    desk.score(Scored(Outcome.RESOLVED, 1.0, 0.5, rubrics=(RubricScore("r", "", 1.0, None, "judge"),)))
    assert desk.known() is None


def test_a_fault_of_the_machine_is_tried_again(desk: Desk) -> None:
    assert desk.score(SandboxFailed("gone"), SandboxFailed("gone"), GOOD).outcome == "resolved"
    assert desk.scorer.asked == 3
    log = (desk.folder / "logs/eval.log").read_text()
    assert log.count("[scoring] attempt") == 2


@pytest.mark.parametrize(
    ("trouble", "asked"), [(SandboxFailed("gone"), 3), (ImageFailed("no image"), 1), (ZeroDivisionError("ours"), 1)]
)
def test_what_does_not_go_away_is_an_error_without_a_score(desk: Desk, trouble: Exception, asked: int) -> None:
    line = desk.score(*[trouble] * 3)
    assert (line.outcome, line.total_score, line.error, desk.scorer.asked) == ("error", None, str(trouble), asked)
    assert desk.known() is None


def test_being_stopped_is_no_verdict(desk: Desk) -> None:
    with pytest.raises(JobCancelled):
        desk.score(JobCancelled())
    assert not (desk.folder / RESULTS).exists()


def test_an_error_never_takes_the_place_of_a_verdict(desk: Desk) -> None:
    desk.score(GOOD)
    before = desk.evaluation()
    line = desk.score(ImageFailed("no image"))
    assert (line.outcome, line.error) == ("resolved", "not scored again: no image")
    assert desk.evaluation() == before
    assert not_scored(desk.result, desk.folder, "why").has_verdict


def test_a_verdict_takes_the_place_of_an_error(desk: Desk) -> None:
    desk.score(ImageFailed("no image"))
    assert desk.score(GOOD).outcome == "resolved"
    assert desk.evaluation()["outcome"] == "resolved"


@pytest.mark.parametrize("status", [Status.SANDBOX_FAILED, Status.CANCELLED])
def test_ends_that_say_nothing_about_the_model_are_not_scored(desk: Desk, status: Status) -> None:
    line = desk.score(result=make_result(status=status))
    assert (line.outcome, line.error, desk.scorer.asked) == ("error", f"the run itself ended as {status}", 0)


@pytest.mark.parametrize("status", [Status.AGENT_FAILED, Status.TIMEOUT, Status.OUT_OF_MEMORY, Status.BUDGET_EXCEEDED])
def test_what_an_agent_did_until_it_failed_is_scored(desk: Desk, status: Status) -> None:
    assert desk.score(GOOD, result=make_result(status=status, changes=CHANGES)).outcome == "resolved"


def test_a_patch_that_is_not_what_was_recorded_is_not_scored(desk: Desk) -> None:
    (desk.folder / "artifacts/diff.patch").write_text(PATCH.replace("+c\n", ""))
    line = desk.score()
    assert "is not what the run recorded: 1 file, +1 -1 now, 1 file, +2 -1 then" in line.error


def test_a_folder_that_cannot_be_written_stops_the_program_in_one_line(desk: Desk) -> None:
    (desk.folder / "logs").write_text("a file")
    with pytest.raises(StoreError, match="cannot be written"):
        desk.score(GOOD)


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "great"}, {"total_score": "1"}, {"flags": 3}, {"run_id": "other"}, {"total_score": 7},
        {"resolved": "yes"}, {"outcome": []}, {"evaluation": None}, {"coverage": []},
        {"evaluation": {"rubrics": [1]}},
    ],
)  # fmt: skip
def test_a_verdict_that_makes_no_sense_counts_for_nothing(desk: Desk, change: dict[str, Any]) -> None:
    desk.score(GOOD)
    (desk.folder / RESULTS).write_text(json.dumps({**desk.evaluation(), **change}))
    assert load_evaluation(desk.folder) is None
    assert desk.known() is None


@pytest.mark.parametrize("text", ["", "[]", "1", "nonsense", "[" * 100_000])
def test_a_verdict_that_is_no_document_counts_for_nothing(desk: Desk, text: str) -> None:
    (desk.folder / RESULTS).write_text(text)
    assert load_evaluation(desk.folder) is None


def test_messages_are_one_line() -> None:
    error = failed("X", "two\nlines").error
    assert error is not None
    assert error.message == "two lines"
