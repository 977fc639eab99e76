"""`eval`, `run --eval` and `validate --run` as a user meets them: verdicts, files, exit codes, bad input, signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.command_line import SAMPLES, SCRIPT, Project, Ran
from tests.model_server import completion, refusal, serve

PATIENCE_S = 120.0
TIMES = ("backend", "evaluated_at", "duration_s")
"""What may differ between two evaluations of the same patch."""
FIX = "sed -i s/hello/world/ hello.txt"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def task(project: Project, evaluation: Mapping[str, Any] | None = None, name: str = "greet", **parts: str) -> Path:
    """A task that is solved when hello.txt says `world`; `evaluation` comes on top of its own."""
    checks = 'grep -qx world hello.txt && echo "ok 1 - world" || echo "not ok 1 - world"\n'
    own = {
        "rubrics": [{"id": "words", "criterion": "It greets the world"}],
        "test_scripts": [{"path": "tests/check.sh", "rubric_id": "words", "content": f"{checks}echo 1..1\n"}],
        "command": "sh tests/check.sh",
        "fail_to_pass": ["world"],
        **(evaluation or {}),
    }
    meta = {"task_id": name, "lm": {"instructions": "Greet the world.\n"}, "evaluation": own}
    solution = "--- a/hello.txt\n+++ b/hello.txt\n@@ -1 +1 @@\n-hello\n+world\n"
    return project.task(name, **{"tb_meta.json": json.dumps(meta), "solution.patch": solution, **parts})


def run(project: Project, command: str = FIX, *, runs: int = 1, more: str = "", options: tuple[str, ...] = ()) -> Ran:
    """A batch of runs of a command on that task."""
    text = f"agent = \"command\"\ncommand = '''{command}'''\nparallel = 2\nretries = 0\n{more}\n"
    project.config(f'{text}[[tasks]]\nprepared_dir = "tasks/greet"\nrollouts = {runs}\n')
    return project("run", "bench.toml", "--backend", "local", *options)


def evaluation(project: Project, index: int = 0) -> dict[str, Any]:
    stamp = project.manifest()["created_at"]
    loaded: dict[str, Any] = json.loads(
        folder(project, f"{stamp}-{index}").joinpath("evaluation_results.json").read_text()
    )
    return loaded


def folder(project: Project, run_id: str) -> Path:
    return project.folder / "data/runs" / run_id


def eval_manifest(project: Project) -> dict[str, Any]:
    newest = max((project.folder / "data/rollouts/bench").iterdir())
    loaded: dict[str, Any] = json.loads((newest / "eval_manifest.json").read_text())
    return loaded


# --- the sample tasks ----------------------------------------------------------------------------------------------


NEEDED = {"js_slugify": "node", "c_ring_buffer": "cc"}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """All sample tasks, tried by the oracle and by nobody, in local sandboxes."""
    project = Project(tmp_path_factory.mktemp("samples"))
    shutil.copytree(SAMPLES, project.folder / "data/tasks/prepared", symlinks=True)
    project.config('parallel = 2\n[[tasks]]\nprepared_dir = "data/tasks/prepared/*"\nmodels = ["oracle", "nop"]\n')
    ran = project("run", "bench.toml", "--backend", "local")
    assert ran.code == 0, ran.err
    return project


@pytest.fixture(scope="module")
def locally_scored(samples: Project) -> dict[str, tuple[dict[str, Any], str]]:
    ran = samples("eval", "bench", "--backend", "local")
    assert ran.code in (0, 3), ran.err
    return read_all(samples)


def read_all(project: Project) -> dict[str, tuple[dict[str, Any], str]]:
    found = {}
    for path in sorted((project.folder / "data/runs").iterdir()):
        text = (path / "evaluation_results.json").read_text()
        found[path.name] = (json.loads(text), (path / "scoring_results.md").read_text())
    return found


def tasks_that_can_run_here() -> set[str]:
    names = {path.name for path in SAMPLES.iterdir()}
    return {name for name in names if name not in NEEDED or shutil.which(NEEDED[name])}


def test_the_oracle_gets_everything_and_nobody_gets_nothing(
    locally_scored: dict[str, tuple[dict[str, Any], str]],
) -> None:
    here = tasks_that_can_run_here()
    scores = {(found["task_id"], found["model"]): found for found, _ in locally_scored.values()}
    assert len(scores) == 2 * len(list(SAMPLES.iterdir()))
    for (name, model), found in scores.items():
        if name not in here:
            continue
        assert found["total_score"] == found["evaluation"]["total_score"] == (1.0 if model == "oracle" else 0.0)
        assert found["outcome"] == ("resolved" if model == "oracle" else "no_patch")
        assert found["coverage"] == (0.9 if name == "csv_report" else 1.0)
        assert found["flags"] == []
    metrics = scores["lru_cache_ttl", "oracle"]["custom_metrics"]
    assert metrics["readme_mentions_ttl"] is True


@pytest.mark.docker
def test_docker_gives_the_same_files_byte_for_byte(
    samples: Project, locally_scored: dict[str, tuple[dict[str, Any], str]]
) -> None:
    ran = samples("eval", "bench", "--backend", "docker", "--force", limit_s=600)
    assert ran.code == 0, ran.err
    here = tasks_that_can_run_here()
    for run_id, (found, card) in read_all(samples).items():
        if found["task_id"] not in here:
            continue
        before, card_before = locally_scored[run_id]
        assert found["backend"] == "docker"
        assert json.dumps({**found, **dict.fromkeys(TIMES)}) == json.dumps({**before, **dict.fromkeys(TIMES)})
        assert card == card_before


def test_the_seed_s_reading_of_scores_works(
    samples: Project, locally_scored: dict[str, tuple[dict[str, Any], str]]
) -> None:
    batch = max((samples.folder / "data/rollouts/bench").iterdir())
    script = (
        "import json, sys\nfrom pathlib import Path\n"
        "manifest = json.loads((Path(sys.argv[1]) / 'manifest.json').read_text())\n"
        "for result in manifest['results']:\n"
        "    data = json.loads((Path(result['run_dir']) / 'evaluation_results.json').read_text())\n"
        "    print(result['task_dir'], data.get('total_score', 'N/A'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(batch)], cwd=samples.folder, capture_output=True, text=True, check=True
    )
    assert "data/tasks/prepared/fix_duration_parser 1.0" in done.stdout


# --- what it writes and says -----------------------------------------------------------------------------------------


def test_a_verdict_has_its_files_and_a_table(project: Project) -> None:
    task(project)
    assert run(project).code == 0
    ran = project("eval", "bench", "--latest")
    assert ran.code == 0, ran.err
    assert "1 run, 1 with a verdict, 1 resolved, mean score 1.000" in ran.out
    assert "scored (resolved, score 1.00)" in ran.err
    found = evaluation(project)
    assert set(found) >= {
        "schema", "total_score", "evaluation", "outcome", "standard_metrics", "custom_metrics", "test_results",
        "resolved", "flags", "agent_metrics", "error",
    }  # fmt: skip
    assert found["test_results"] == [
        {"id": "world", "status": "passed", "expected": "fail_to_pass", "rubrics": ["words"]}
    ]
    assert found["agent_metrics"]["status"] == "launched"
    place = folder(project, found["run_id"])
    card = (place / "scoring_results.md").read_text()
    assert "100.0 % · **resolved**" in card
    assert "| `hello.txt` | +1 | -1 |" in card
    assert "ok 1 - world" in (place / "logs/eval.log").read_text()
    assert not (place / ".scoring").exists()
    manifest = eval_manifest(project)
    assert manifest["outcomes"] == {"resolved": 1}
    assert manifest["finished_at"] is not None
    assert "1 of 1 scored resolved" in project("summarize", "bench").out


def test_json_is_one_document_on_stdout(project: Project) -> None:
    task(project)
    run(project)
    document = project("eval", "bench", "--json").json()
    assert document["results"][0]["total_score"] == 1.0
    assert document["schema"] == 1


def test_verdicts_are_kept_until_the_patch_s_judgement_would_change(project: Project) -> None:
    task(project)
    run(project, runs=2)
    assert project("eval", "bench").code == 0
    first = evaluation(project)["evaluated_at"]
    again = project("eval", "bench")
    assert "2 runs with a verdict already" in again.err
    assert evaluation(project)["evaluated_at"] == first
    assert project("eval", "bench", "--force", "--only", "*-0").code == 0
    forced = evaluation(project)["evaluated_at"]
    assert forced > first
    assert evaluation(project, 1)["evaluated_at"] < forced
    assert len(eval_manifest(project)["results"]) == 2
    task(project, {"fail_to_pass": ["world", "another"]})
    changed = project("eval", "bench")
    assert changed.code == 0
    assert evaluation(project)["outcome"] == "tests_failed"
    assert evaluation(project)["total_score"] == 0.5


def test_a_mean_below_the_gate_is_exit_5(project: Project) -> None:
    task(project)
    run(project, "true")
    assert project("eval", "bench").code == 0
    below = project("eval", "bench", "--fail-under", "0.5")
    assert below.code == 5
    assert "the mean score 0.0000 is below 0.5" in below.err
    assert project("eval", "bench", "--fail-under", "0").code == 0


def test_run_with_eval_scores_each_run_while_others_still_run(project: Project) -> None:
    task(project)
    late = "case $(ls -d /app/repo 2>/dev/null; echo $ROLLOUTS_JOB) in *-1.*) sleep 4;; esac"
    ran = run(project, f"{FIX}; {late}", runs=2, options=("--eval",))
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    stamp = project.manifest()["created_at"]
    scored = lines.index(f"✓ Run {stamp}-0 scored (resolved, score 1.00)")
    assert scored < lines.index(f"✓ Task {stamp}-1 completed (launched)")
    assert lines[-1] == "2 runs, 2 with a verdict, 2 resolved, mean score 1.000"
    assert eval_manifest(project)["outcomes"] == {"resolved": 2}
    assert "2 runs with a verdict already" in project("eval", "bench").err


# --- outcomes ------------------------------------------------------------------------------------------------------


OUTCOMES = {
    "no patch": ("true", {}, "no_patch", 0.0, ""),
    "a useless patch": ("echo x >>other.txt", {}, "tests_failed", 0.0, ""),
    "tests that hang": (FIX, {"command": "sleep 30", "timeout_s": 1}, "timeout", 0.0, "time limit of 1 s"),
    "a setup": (FIX, {"setup": "test ! -e bad.txt"}, "resolved", 1.0, ""),
    "a patch that breaks the setup": (
        f"{FIX}; touch bad.txt",
        {"setup": "test ! -e bad.txt"},
        "tests_failed",
        0.0,
        "evaluation.setup exited with 1",
    ),
    "a setup that is broken": (FIX, {"setup": "exit 7"}, "error", None, "evaluation.setup exited with 7"),
    "no runner": (FIX, {"command": "no-such-program"}, "error", None, "could not be run (exit code 127)"),
    "no tests": (FIX, {"command": "echo nothing"}, "error", None, "told of no test"),
    "an exit code that no test explains": (
        f"{FIX}; touch bad.txt",
        {"command": "sh tests/check.sh; test ! -e bad.txt"},
        "tests_failed",
        0.0,
        "exit code 1 although no test failed",
    ),
}


@pytest.mark.parametrize(("command", "more", "outcome", "score", "said"), OUTCOMES.values(), ids=OUTCOMES)
def test_each_outcome_is_told_apart(
    project: Project, command: str, more: dict[str, Any], outcome: str, score: float | None, said: str
) -> None:
    task(project, more)
    assert run(project, command).code == 0
    ran = project("eval", "bench")
    found = evaluation(project)
    assert (found["outcome"], found["total_score"]) == (outcome, score), found
    assert ran.code == (1 if outcome == "error" else 0)
    told = [*found["notes"], (found["error"] or {}).get("message", "")]
    assert any(said in text for text in told), told


def test_a_source_that_changed_since_the_run_is_a_patch_that_does_not_apply(project: Project) -> None:
    where = task(project)
    run(project)
    (where / "repo/hello.txt").write_text("quite another text\n")
    assert project("eval", "bench").code == 0
    found = evaluation(project)
    assert (found["outcome"], found["total_score"]) == ("apply_failed", 0.0)
    assert "hello.txt" in found["notes"][0]


def test_a_run_that_failed_through_no_fault_of_its_model_has_no_verdict(project: Project) -> None:
    task(project)
    run(project)
    stamp = project.manifest()["created_at"]
    journal = project.folder / "data/rollouts/bench" / stamp / "events.jsonl"
    journal.write_text(journal.read_text().replace('"status": "launched"', '"status": "sandbox_failed"'))
    ran = project("eval", "bench")
    assert ran.code == 1
    found = evaluation(project)
    assert (found["outcome"], found["total_score"], found["resolved"]) == ("error", None, None)
    assert found["error"]["message"] == "the run itself ended as sandbox_failed"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo not json", "expected a JSON object"),
        ("exit 3", "exited with 3"),
        ("echo '[1]'", "expected a JSON object"),
        ("echo '{\"x\": NaN}'", "expected a JSON object"),
        ("true", "printed nothing"),
    ],
)
def test_metrics_that_are_none_are_reported_and_harmless(project: Project, script: str, said: str) -> None:
    task(project, {}, **{"evaluate.sh": script})
    run(project)
    assert project("eval", "bench").code == 0
    found = evaluation(project)
    assert (found["total_score"], found["custom_metrics"]) == (1.0, {})
    assert any(said in note for note in found["notes"]), found["notes"]


def test_metrics_see_the_patch_and_the_patched_tree(project: Project) -> None:
    script = (
        'echo "some words"; printf \'{"word": "%s", "lines": %s}\\n\' "$(cat hello.txt)" "$(grep -c ^ $ROLLOUTS_PATCH)"'
    )
    task(project, {}, **{"evaluate.sh": script})
    run(project)
    assert project("eval", "bench").code == 0
    assert evaluation(project)["custom_metrics"] == {"word": "world", "lines": 7}


# --- the judge -----------------------------------------------------------------------------------------------------


def judged_task(project: Project) -> None:
    rubrics = [{"id": "words", "weight": 3}, {"id": "style", "criterion": "It is brief", "weight": 1}]
    task(project, {"rubrics": rubrics})


def test_a_judge_scores_what_no_test_covers(project: Project) -> None:
    judged_task(project)
    answer = json.dumps({"score": 0.5, "reasons": "short enough", "evidence": ["+world", "not in it"]})
    with serve(completion(answer)) as server:
        table = f'[judge]\nmodel = "m"\nbase_url = "{server.address}"\napi_key_env = "JUDGE_KEY"\n'
        assert run(project, more=table).code == 0
        refused = project("eval", "bench")
        assert refused.code == 2
        assert "JUDGE_KEY" in refused.err
        env = {"JUDGE_KEY": "sk-canary-123456"}
        assert project("eval", "bench", env=env).code == 0
        found = evaluation(project)
        assert found["total_score"] == 0.875
        assert found["coverage"] == 1.0
        style = found["evaluation"]["rubrics"][1]
        assert (style["judged_by"], style["reason"], style["evidence"]) == ("judge", "short enough", ["+world"])
        assert project("eval", "bench", "--force", env=env).code == 0
        assert len(server.asked) == 1, "the same patch is judged once"
    for path in project.folder.rglob("*"):
        assert not path.is_file() or b"sk-canary-123456" not in path.read_bytes(), path


def test_a_judge_that_fails_is_null_and_not_zero(project: Project) -> None:
    judged_task(project)
    with serve(refusal(401, "go away")) as server:
        table = f'[judge]\nmodel = "m"\nbase_url = "{server.address}"\napi_key_env = ""\n'
        assert run(project, more=table).code == 0
        assert project("eval", "bench").code == 0
    found = evaluation(project)
    assert (found["total_score"], found["coverage"]) == (1.0, 0.75)
    style = found["evaluation"]["rubrics"][1]
    assert style["score"] is None
    assert "401" in style["reason"]


def test_a_judge_named_later_is_read_from_another_file(project: Project) -> None:
    judged_task(project)
    run(project)
    assert project("eval", "bench").code == 0
    assert evaluation(project)["coverage"] == 0.75
    with serve(completion('{"score": 1, "reasons": "", "evidence": []}')) as server:
        table = f'[judge]\nmodel = "m"\nbase_url = "{server.address}"\napi_key_env = ""\n'
        config = project.config(f'{table}[[tasks]]\nprepared_dir = "tasks/greet"\nagent = "nop"\n', "later.toml")
        assert project("eval", "bench", "--config", config).code == 0
    assert evaluation(project)["coverage"] == 1.0


# --- bad input -----------------------------------------------------------------------------------------------------


def test_a_lost_or_damaged_patch_is_our_fault_and_takes_no_verdict_away(project: Project) -> None:
    task(project)
    run(project, runs=2)
    patch = folder(project, project.manifest()["results"][0]["run_id"]) / "artifacts/diff.patch"
    whole = patch.read_bytes()
    patch.write_bytes(whole[: len(whole) // 2])
    cut = project("eval", "bench")
    assert cut.code == 3
    assert "is not what the run recorded" in evaluation(project)["error"]["message"]
    assert evaluation(project, 1)["outcome"] == "resolved"
    patch.unlink()
    assert project("eval", "bench").code == 3
    assert evaluation(project)["error"]["message"] == "the run's artifacts/diff.patch is missing"
    patch.write_bytes(whole)
    assert project("eval", "bench").code == 0
    patch.unlink()
    lost = project("eval", "bench")
    assert lost.code == 3
    assert "not scored again: the run's artifacts/diff.patch is missing" in lost.err
    assert evaluation(project)["outcome"] == "resolved", "the verdict stays"


def test_a_missing_task_folder_is_told_and_the_other_tasks_are_scored(project: Project) -> None:
    task(project)
    task(project, name="other")
    project.config(
        f'agent = "command"\ncommand = "{FIX}"\n'
        '[[tasks]]\nprepared_dir = "tasks/greet"\n[[tasks]]\nprepared_dir = "tasks/other"\n'
    )
    assert project("run", "bench.toml", "--backend", "local").code == 0
    shutil.move(project.folder / "tasks/other", project.folder / "gone")
    some = project("eval", "bench")
    assert some.code == 3
    assert "tasks/other: no such task folder" in some.err
    assert [line["outcome"] for line in eval_manifest(project)["results"]] == ["resolved", "error"]
    shutil.move(project.folder / "tasks/greet", project.folder / "gone2")
    before = eval_manifest(project)
    none = project("eval", "bench", "--force")
    assert none.code == 2
    assert none.err.splitlines() == ["tasks/greet: no such task folder", "tasks/other: no such task folder"]
    assert eval_manifest(project) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("benhc",), "did you mean bench?"),
        (("bench", "--rollout", "20200101__00-00-00"), "no batch 20200101__00-00-00; the newest are"),
        (("bench", "--rollout", "20200101"), "no batch 20200101; the newest are"),
        (("bench", "--only", "nothing"), "--only: nothing matches 'nothing'"),
        (("bench", "--backend", "dcoker"), "--backend: expected one of docker, modal, local"),
        (("bench", "--config", "none.toml"), "none.toml: no such file"),
        (("../x",), "is not the name of a benchmark"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_2(
    project: Project, arguments: tuple[str, ...], said: str
) -> None:
    task(project)
    run(project)
    ran = project("eval", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not list(project.folder.glob("data/rollouts/*/*/eval_manifest.json"))


def test_no_engine_is_exit_4_and_touches_nothing(project: Project) -> None:
    task(project)
    run(project)
    ran = project("eval", "bench", "--backend", "docker", env={"DOCKER_HOST": "unix:///nonexistent.sock"})
    assert ran.code == 4
    assert "cannot reach the engine" in ran.err.splitlines()[-1]
    assert project("eval", "bench").code == 0
    known = project("eval", "bench", "--backend", "docker", env={"DOCKER_HOST": "unix:///nonexistent.sock"})
    assert known.code == 0, "what is known needs no engine"


def test_a_damaged_verdict_is_made_again(project: Project) -> None:
    task(project)
    run(project)
    assert project("eval", "bench").code == 0
    place = folder(project, evaluation(project)["run_id"])
    (place / "evaluation_results.json").write_text('{"outcome": "reso')
    assert project("eval", "bench").code == 0
    assert evaluation(project)["outcome"] == "resolved"


def test_one_process_at_a_time_scores_a_batch(project: Project) -> None:
    task(project)
    run(project)
    batch = max((project.folder / "data/rollouts/bench").iterdir())
    with FileLock(batch / ".eval.lock"):
        ran = project("eval", "bench")
    assert ran.code == 1
    assert ran.err.strip().endswith("another process scores this batch")


# --- interruptions -------------------------------------------------------------------------------------------------


def start(project: Project, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def verdicts(project: Project) -> list[Path]:
    return sorted(project.folder.glob("data/runs/*/evaluation_results.json"))


SLOW = {"setup": "case $ROLLOUTS_JOB in *-0.eval*) ;; *) sleep 30 ;; esac"}
"""The first run is scored at once, the others take their time."""


def test_a_killed_evaluation_goes_on_where_it_was(project: Project) -> None:
    task(project, SLOW)
    run(project, runs=3)
    process = start(project, "eval", "bench")
    wait_for(lambda: len(verdicts(project)) == 1, process)
    process.kill()
    process.communicate()
    done = evaluation(project)["evaluated_at"]
    ran = project("eval", "bench", "--only", "*-0")
    assert ran.code == 0
    assert "1 run with a verdict already" in ran.err
    assert evaluation(project)["evaluated_at"] == done
    task(project)
    assert project("eval", "bench").code == 0
    assert [line["outcome"] for line in eval_manifest(project)["results"]] == ["resolved"] * 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_evaluation_keeps_what_was_scored(project: Project, number: signal.Signals, code: int) -> None:
    task(project, SLOW)
    run(project, runs=3)
    process = start(project, "eval", "bench")
    wait_for(lambda: len(verdicts(project)) == 1, process)
    begin = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert time.monotonic() - begin < 15
    assert "stopping: open sandboxes are ended and runs scored so far are kept" in err
    assert "3 runs, 1 with a verdict" in out
    manifest = eval_manifest(project)
    assert manifest["finished_at"] is None
    assert [line["outcome"] for line in manifest["results"]] == ["resolved", None, None]


def test_a_batch_that_still_runs_is_scored_as_far_as_it_is(project: Project) -> None:
    task(project)
    project.config(
        'agent = "command"\nparallel = 2\n'
        f"command = '{FIX}; case $ROLLOUTS_JOB in *-1.*) echo ready; sleep 60;; esac'\n"
        '[[tasks]]\nprepared_dir = "tasks/greet"\nrollouts = 2\n'
    )
    process = start(project, "run", "bench.toml", "--backend", "local")
    try:
        wait_for(lambda: bool(list(project.folder.glob("data/runs/*-0/result.json"))), process)
        wait_for(
            lambda: "ready" in "".join(p.read_text() for p in project.folder.glob("data/runs/*-1/logs/agent.log")),
            process,
        )
        ran = project("eval", "bench")
        assert ran.code == 3
        assert "1 run not ended" in ran.err
        assert [line["outcome"] for line in eval_manifest(project)["results"]] == ["resolved", None]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


# --- validate --run ------------------------------------------------------------------------------------------------


def test_a_good_task_is_fine(project: Project) -> None:
    task(project)
    ran = project("validate", "--run", "tasks/greet", "--backend", "local")
    assert (ran.code, ran.out) == (0, "✓ greet: empty 0.00/0.00/0.00, solution 1.00/1.00/1.00\n")
    assert not (project.folder / "data/runs").exists()
    assert project("validate", "tasks/greet").out == "tasks/greet: fine\n"


@pytest.mark.parametrize(
    ("changes", "parts", "said"),
    [
        ({"command": "echo ok - world", "fail_to_pass": []}, {}, "the untouched repository is resolved"),
        ({"pass_to_pass": ["world"], "fail_to_pass": []}, {}, "does not pass world, which pass_to_pass names"),
        ({"fail_to_pass": ["world", "wrold"]}, {}, "the solution does not pass wrold (missing)"),
        ({}, {"solution.patch": "nonsense\n"}, "the solution is not resolved but apply_failed"),
        ({"setup": "exit 7"}, {}, "cannot be scored: evaluation.setup exited with 7"),
    ],
)
def test_what_is_wrong_with_a_task_is_named(
    project: Project, changes: dict[str, Any], parts: dict[str, str], said: str
) -> None:
    task(project, changes, **parts)
    ran = project("validate", "--run", "tasks/greet", "--backend", "local")
    assert ran.code == 1
    assert said in ran.out


def test_flaky_tests_are_named(project: Project) -> None:
    flaky = 'case $ROLLOUTS_JOB in *solution1*) echo "not ok 2 - now and then" ;; *) echo "ok 2 - now and then" ;; esac'
    script = f'grep -qx world hello.txt && echo "ok 1 - world" || echo "not ok 1 - world"\n{flaky}\n'
    scripts = [{"path": "tests/check.sh", "rubric_id": "words", "content": script}]
    task(project, {"test_scripts": scripts, "pass_to_pass": ["now and then"]})
    ran = project("validate", "--run", "tasks/greet", "--backend", "local", "--json")
    assert ran.code == 1
    assert ran.json()["tasks"][0]["flaky"] == ["now and then"]


def test_every_task_of_a_benchmark_is_tried_once(project: Project) -> None:
    task(project)
    task(project, {"command": "echo ok - world"}, name="bad")
    project.config(
        '[[tasks]]\nprepared_dir = "tasks/*"\nmodels = ["oracle", "nop"]\n'
        '[[tasks]]\nprepared_dir = "tasks/greet"\nmodel = "gpt"\n'
    )
    ran = project("validate", "--run", "bench.toml", "--backend", "local")
    assert ran.code == 3
    assert sorted(line[0] for line in ran.out.splitlines() if not line.startswith(" ")) == ["✓", "✗"]
    assert project("validate", "--run", "bench.toml", "--backend", "local", "--only", "greet").code == 0


def test_the_environment_is_the_task_s_alone(project: Project) -> None:
    script = 'env | grep -c CANARY_OF_THE_HOST | grep -qx 0 && echo "ok - world"\n'
    task(project, {"test_scripts": [{"path": "tests/check.sh", "rubric_id": "words", "content": script}]})
    run(project)
    assert project("eval", "bench", env={"CANARY_OF_THE_HOST": "1"}).code == 0
    assert evaluation(project)["outcome"] == "resolved"
    assert "CANARY_OF_THE_HOST" not in os.environ
