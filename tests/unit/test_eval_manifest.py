"""eval_manifest.json: valid at every instant, and read as something that anybody may have written."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollouts import eval_manifest as module
from rollouts.eval_manifest import MANIFEST, EvalManifest, Evaluated, load_verdicts, manifest_head, mean_score
from tests.samples import make_benchmark


def line(run_id: str, outcome: str | None = "resolved", score: float | None = 1.0) -> Evaluated:
    resolved = None if outcome in (None, "error") else outcome == "resolved"
    return Evaluated(run_id, "t", "m", "a", f"data/runs/{run_id}", outcome, resolved, score, 1.0)


def manifest(folder: Path, *lines: Evaluated) -> EvalManifest:
    return EvalManifest(folder, manifest_head("bench", "S", "local", 2, make_benchmark()), lines)


def document(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return loaded


def test_lines_are_counted_and_come_back(tmp_path: Path) -> None:
    made = manifest(tmp_path, line("a", None, None), line("b", None, None))
    made.put(line("a"))
    made.put(line("b", "error", None))
    assert made.close(finished=True) == (line("a"), line("b", "error", None))
    found = document(tmp_path)
    assert (found["outcomes"], found["mean_score"]) == ({"error": 1, "resolved": 1}, 1.0)
    assert found["finished_at"] is not None
    assert load_verdicts(tmp_path) == {"a": line("a"), "b": line("b", "error", None)}


def test_an_evaluation_that_was_stopped_is_not_finished(tmp_path: Path) -> None:
    manifest(tmp_path, line("a")).close(finished=False)
    assert document(tmp_path)["finished_at"] is None


def test_a_batch_without_runs_is_a_valid_document(tmp_path: Path) -> None:
    manifest(tmp_path).close(finished=True)
    assert document(tmp_path)["results"] == []


def test_it_is_written_now_and_then_and_not_for_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("rollouts.eval_manifest.time.monotonic", lambda: clock[0])
    made = manifest(tmp_path, line("a", None, None))
    made.put(line("a"))
    assert not (tmp_path / MANIFEST).exists()
    clock[0] += module.MANIFEST_EVERY_S + 0.1
    made.put(line("b"))
    assert document(tmp_path)["outcomes"] == {"resolved": 2}
    made.put(line("c"))
    assert document(tmp_path)["outcomes"] == {"resolved": 2}


def test_a_mean_is_over_verdicts_alone() -> None:
    assert mean_score([line("a", "resolved", 1.0), line("b", "tests_failed", 0.5), line("c", "error", None)]) == 0.75
    assert mean_score([line("a", None, None)]) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"results": 1}', '{"results": [{}]}', '{"results": [1]}', '{"results": null}', "\xff",
        json.dumps({"results": [{**vars(line("a")), "total_score": "1"}]}),
        json.dumps({"results": [{**vars(line("a")), "outcome": "great"}]}),
        json.dumps({"results": [{**vars(line("a")), "flags": True}]}),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_and_counts_as_nothing(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / MANIFEST).write_text(text, encoding="latin-1")
    assert load_verdicts(tmp_path) == {}
    assert "cannot be read; `eval` makes it again" in caplog.text


def test_a_batch_that_was_never_scored_has_no_verdicts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_verdicts(tmp_path) == {}
    assert not caplog.text


def test_keys_of_later_versions_are_let_go(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"results": [{**vars(line("a")), "later": 1}]}))
    assert load_verdicts(tmp_path) == {"a": line("a")}
