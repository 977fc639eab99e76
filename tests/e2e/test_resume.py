"""`resume`: exactly what is missing is done, nothing that is finished is touched, and a changed benchmark is refused.

A batch is cut off by cutting its journal, which is what a `kill -9` leaves; real kills are in other files.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Project

CONFIG = """agent = "command"
backend = "local"
command = "echo part >>hello.txt"

[[tasks]]
prepared_dir = "tasks/greet"
rollouts = 2

[[tasks]]
prepared_dir = "tasks/other"
rollouts = 2
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.task("greet")
    project.task("other")
    project.config(CONFIG)
    return project


def batch_of(project: Project) -> Path:
    return max((project.folder / "data/rollouts/bench").iterdir())


def events(batch: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (batch / "events.jsonl").read_text().splitlines()]


def cut_off(project: Project, ended: int) -> Path:
    """Let the newest batch look as if its process had died right after so many ends, with the next run under way."""
    batch = batch_of(project)
    kept, ends = [], 0
    for event in events(batch):
        if event["event"] == "finished" or (ends == ended and event["event"] == "ended"):
            break
        kept.append(event)
        ends += event["event"] == "ended"
    (batch / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in kept))
    return batch


def interrupted(project: Project, ended: int = 2, *options: str) -> Path:
    assert project("run", "bench.toml", *options).code == 0
    return cut_off(project, ended)


def statuses(project: Project) -> list[tuple[str, int]]:
    return [(result["status"], result["attempt"]) for result in project.manifest()["results"]]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_exactly_what_is_missing_is_done(project: Project) -> None:
    batch = interrupted(project)
    done = [project.folder / f"data/runs/{batch.name}-{index}" for index in (0, 1)]
    before, journal = [contents(run) for run in done], (batch / "events.jsonl").read_bytes()
    ran = project("resume", "bench", "--latest")
    assert ran.code == 0, ran.err
    assert "[rollouts] Resuming: 2 tasks kept, 2 to do" in ran.out
    assert ran.out.endswith("✓ All 4 tasks completed!\n")
    assert [contents(run) for run in done] == before
    assert (batch / "events.jsonl").read_bytes().startswith(journal)
    added = [event for event in events(batch) if event["event"] == "started"][3:]
    assert [event["run_id"][-2:] for event in added] == ["-2", "-3"]
    assert statuses(project) == [("launched", 1), ("launched", 1), ("launched", 2), ("launched", 1)]
    assert project.manifest()["resumed"][0]["changed"] is False
    assert len((batch / "runs.txt").read_text().splitlines()) == 4
    assert len(list((batch / "task_results").iterdir())) == 4


def test_what_was_told_of_a_run_that_is_done_again_is_told_no_more(project: Project) -> None:
    batch = interrupted(project)
    project.config(CONFIG.replace("part", "another"))
    assert project("resume", "bench").code == 2
    told = [path.name for path in sorted((batch / "task_results").iterdir())]
    assert told == [f"{batch.name}-0.json", f"{batch.name}-1.json"]


def test_an_attempt_that_was_cut_off_is_kept(project: Project) -> None:
    batch = interrupted(project)
    left = contents(project.folder / f"data/runs/{batch.name}-2")
    assert project("resume", "bench").code == 0
    assert contents(project.folder / f"data/runs/{batch.name}-2/attempts/1") == left


def test_the_dry_run_says_what_is_missing_and_changes_nothing(project: Project) -> None:
    interrupted(project, 3)
    before = contents(project.folder)
    ran = project("resume", "bench", "--dry-run", "--json")
    assert ran.code == 0
    assert ([run["index"] for run in ran.json()["runs"]], ran.json()["kept"]) == ([3], 3)
    assert "1 runs on local, parallel=1; 3 runs kept" in project("resume", "bench", "--dry-run").out
    assert contents(project.folder) == before


def test_what_is_finished_is_left_alone(project: Project) -> None:
    assert project("run", "bench.toml").code == 0
    before = (batch_of(project) / "events.jsonl").read_bytes()
    ran = project("resume", "bench", "--retry-failed")
    assert ran.code == 0
    assert "[rollouts] Nothing to resume: 4 tasks kept" in ran.out
    assert (batch_of(project) / "events.jsonl").read_bytes() == before


def test_a_process_that_died_after_its_last_run_leaves_only_the_end_to_be_told(project: Project) -> None:
    batch = interrupted(project, 4)
    assert project("list", "--json").json()["batches"][0]["state"] == "stopped"
    assert project("resume", "bench").code == 0
    assert [event["event"] for event in events(batch)][-3:] == ["opened", "resumed", "finished"]
    assert project.manifest()["finished_at"] is not None
    assert project("list", "--json").json()["batches"][0]["state"] == "finished"


@pytest.mark.parametrize("status", ["agent_failed", "timeout", "out_of_memory", "budget_exceeded"])
def test_what_the_agent_failed_at_is_done_again_only_when_asked_for(project: Project, status: str) -> None:
    batch = interrupted(project, 4)
    journal = (batch / "events.jsonl").read_text()
    (batch / "events.jsonl").write_text(journal.replace('"launched"', f'"{status}"', 1))
    assert project("resume", "bench").code == 3
    assert statuses(project)[0] == (status, 1)
    assert project("resume", "bench", "--retry-failed").code == 0
    assert statuses(project) == [("launched", 2), *[("launched", 1)] * 3]


@pytest.mark.parametrize("status", ["cancelled", "sandbox_failed"])
def test_what_says_nothing_about_the_model_is_done_again(project: Project, status: str) -> None:
    batch = interrupted(project, 4)
    journal = (batch / "events.jsonl").read_text()
    (batch / "events.jsonl").write_text(journal.replace('"launched"', f'"{status}"', 1))
    assert project("resume", "bench").code == 0
    assert statuses(project) == [("launched", 2), *[("launched", 1)] * 3]


def test_run_resumes_a_batch_by_its_stamp_or_day(project: Project) -> None:
    batch = interrupted(project)
    ran = project("run", "bench.toml", "--resume", batch.name[:8])
    assert ran.code == 0
    assert [status for status, _ in statuses(project)] == ["launched"] * 4
    assert len(list(batch.parent.iterdir())) == 1
    unknown = project("run", "bench.toml", "--resume", "20200101")
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert batch.name in unknown.err


@pytest.mark.parametrize(
    "options",
    [["--resume", "20200101", "--only", "x"], ["--resume", "x", "--backend", "local"], ["--retry-failed"], ["--force"]],
)
def test_options_that_do_not_go_together_are_refused(project: Project, options: list[str]) -> None:
    ran = project("run", "bench.toml", *options)
    assert ran.code == 2
    assert not (project.folder / "data").exists()


def test_what_is_no_part_of_a_run_may_change(project: Project) -> None:
    interrupted(project)
    project.config(f"parallel = 2\nretries = 7\nmin_free_disk_mb = 1\n{CONFIG}")
    assert project("resume", "bench").code == 0
    assert project.manifest()["resumed"][0]["changed"] is False


def test_a_changed_benchmark_is_refused_with_the_difference(project: Project) -> None:
    batch = interrupted(project)
    project.config(CONFIG.replace("part", "another part"))
    (project.folder / "tasks/other/repo/hello.txt").write_text("changed\n")
    (project.folder / "tasks/other/repo/new.txt").write_text("new\n")
    (project.folder / "tasks/other/repo/tool.sh").unlink()
    before = contents(project.folder)
    ran = project("resume", "bench")
    assert ran.code == 2
    lines = ran.err.splitlines()
    assert lines[0].startswith(f"data/rollouts/bench/{batch.name}: the benchmark changed since this batch was made: ")
    assert lines[0].endswith(": 4 runs not what they were")
    assert '-command = "echo part >>hello.txt"' in lines
    assert '+command = "echo another part >>hello.txt"' in lines
    told = [line for line in lines if "tasks/other/" in line]
    assert told == [
        "changed: tasks/other/repo/hello.txt",
        "new: tasks/other/repo/new.txt",
        "gone: tasks/other/repo/tool.sh",
    ]
    assert "--force" in lines[-1]
    after = contents(project.folder)
    derived = {name for name in {*before, *after} if name.endswith("manifest.json") or "/task_results/" in name}
    assert {name: after.get(name) for name in {*before, *after} - derived} == {
        name: before.get(name) for name in {*before, *after} - derived
    }


def test_a_forced_resume_does_what_is_missing_as_it_is_now(project: Project) -> None:
    interrupted(project)
    project.config(CONFIG.replace("part", "another"))
    ran = project("resume", "bench", "--force")
    assert ran.code == 0
    assert "warning: 4 runs not what they were when the batch was made" in ran.err
    results = project.manifest()["results"]
    assert [b"+another" in project.patch(result) for result in results] == [False, False, True, True]
    assert project.manifest()["resumed"][0]["changed"] is True
    assert project("resume", "bench").code == 2, "the first two are still what they were then"


def test_a_batch_neither_grows_nor_loses_runs(project: Project) -> None:
    batch = interrupted(project)
    project.config(CONFIG.replace("rollouts = 2", "rollouts = 3", 1).replace("rollouts = 2", "rollouts = 1"))
    refused = project("resume", "bench")
    assert (refused.code, "1 run gone, 1 run new" in refused.err) == (2, True)
    ran = project("resume", "bench", "--force")
    assert ran.code == 3
    assert [status for status, _ in statuses(project)] == ["launched"] * 3 + ["pending"]
    assert "1 run not in the benchmark any more, 1 of them unfinished" in ran.err
    assert len((batch / "runs.txt").read_text().splitlines()) == 4


def test_changed_overrides_are_named(project: Project) -> None:
    (project.folder / "mine.json").write_text('{"lm_instructions": "Be quick."}')
    project.config(
        CONFIG.replace('prepared_dir = "tasks/greet"', 'prepared_dir = "tasks/greet"\noverrides = "mine.json"')
    )
    interrupted(project)
    (project.folder / "mine.json").write_text('{"lm_instructions": "Be slow."}')
    ran = project("resume", "bench")
    assert ran.code == 2
    assert "changed: tasks/greet/(mine.json)" in ran.err


def test_a_batch_of_some_tasks_stays_one_of_those(project: Project) -> None:
    interrupted(project, 1, "--only", "greet")
    assert project("resume", "bench").code == 0
    assert [result["task_id"] for result in project.manifest()["results"]] == ["greet", "greet"]


def test_without_its_file_a_batch_goes_on_with_its_own_copy(project: Project) -> None:
    interrupted(project)
    (project.folder / "bench.toml").unlink()
    assert project("resume", "bench").code == 0


def test_from_another_folder_it_is_told_where_the_batch_was_begun(project: Project, tmp_path: Path) -> None:
    kept = tmp_path / "deep/kept"
    assert project("run", "bench.toml", "--data-dir", kept).code == 0
    ran = Project(kept)("resume", "bench", "--data-dir", kept)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert f"was begun in {project.folder}" in ran.err


def test_a_torn_last_line_of_the_journal_is_as_if_it_was_never_written(project: Project) -> None:
    batch = interrupted(project)
    with (batch / "events.jsonl").open("ab") as journal:
        journal.write(b'{"event": "ended", "at": "2026')
    assert project("resume", "bench").code == 0
    assert [event["event"] for event in events(batch)][-1] == "finished"


def test_a_damaged_journal_is_told_and_left_alone(project: Project) -> None:
    batch = interrupted(project)
    text = (batch / "events.jsonl").read_bytes() + b"nonsense\n"
    (batch / "events.jsonl").write_bytes(text)
    ran = project("resume", "bench")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "events.jsonl" in ran.err
    assert (batch / "events.jsonl").read_bytes() == text


def test_a_resumed_batch_can_be_scored_as_its_runs_end(project: Project) -> None:
    for name in ("greet", "other"):
        (project.folder / f"tasks/{name}/tests").mkdir()
        (project.folder / f"tasks/{name}/tests/test_it.py").write_text("def test_it(): assert open('hello.txt')\n")
    batch = interrupted(project)
    ran = project("resume", "bench", "--eval")
    assert (ran.code, "2 tasks kept, 2 to do, 2 to score" in ran.out) == (0, True), ran.err
    evaluated = json.loads((batch / "eval_manifest.json").read_text())["results"]
    assert [line["outcome"] for line in evaluated] == ["resolved"] * 4
    (project.folder / f"data/runs/{batch.name}-3/evaluation_results.json").unlink()
    ran = project("resume", "bench", "--eval")
    assert (ran.code, "4 tasks kept, 0 to do, 1 to score" in ran.out) == (0, True), ran.err
    assert (project.folder / f"data/runs/{batch.name}-3/evaluation_results.json").exists()
    assert "Nothing to resume: 4 tasks kept" in project("resume", "bench", "--eval").out


def test_a_verdict_on_an_earlier_attempt_does_not_count_for_the_next(project: Project) -> None:
    (project.folder / "tasks/greet/tests").mkdir()
    (project.folder / "tasks/greet/tests/test_it.py").write_text("def test_it(): assert open('hello.txt')\n")
    project.config(
        CONFIG.replace("echo part >>hello.txt", "echo part >>hello.txt; exit 1").partition(
            '\n\n[[tasks]]\nprepared_dir = "tasks/other"'
        )[0]
    )
    assert project("run", "bench.toml").code == 1
    assert project("eval", "bench").code == 0
    assert project("resume", "bench", "--retry-failed").code == 1
    evaluated = json.loads((batch_of(project) / "eval_manifest.json").read_text())
    assert [line["outcome"] for line in evaluated["results"]] == [None, None]
    run = project.folder / project.manifest()["results"][0]["run_dir"]
    assert (run / "attempts/1/evaluation_results.json").exists()


def test_below_the_floor_of_free_disk_nothing_new_starts(project: Project) -> None:
    project.config(f"min_free_disk_mb = 1000000000\n{CONFIG}")
    ran = project("run", "bench.toml")
    assert ran.code == 1
    assert ran.err.count("MB are free, less than min_free_disk_mb = 1000000000; free some space") == 1
    assert statuses(project) == [("pending", 0)] * 4
    project.config(f"min_free_disk_mb = 0\n{CONFIG}")
    assert project("resume", "bench").code == 0


def test_an_unknown_batch_is_told(project: Project) -> None:
    interrupted(project)
    for arguments in (["resume", "bensh"], ["resume", "bench", "--rollout", "20200101"], ["resume", "../x"]):
        ran = project(*arguments)
        assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err


def test_the_manifest_is_printed_on_request(project: Project) -> None:
    interrupted(project)
    ran = project("resume", "bench", "--json")
    assert ran.json() == project.manifest()
