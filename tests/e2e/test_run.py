"""`run` and what it leaves behind, as a user and other people's scripts see it; on the local sandbox and on Docker."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import docker
import pytest

from tests.command_line import SAMPLES, Project

COMMAND = "echo {model} >>hello.txt && echo some words"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def two_models(project: Project) -> Path:
    project.task()
    return project.config(
        'agent = "command"\nparallel = 2\n'
        f"command = '{COMMAND}'\n"
        '[[tasks]]\nprepared_dir = "tasks/greet"\nmodels = ["a", "b"]\nrollouts = 2\n'
    )


def test_quiet_mode_prints_the_promised_lines(project: Project, backend: str) -> None:
    ran = project("run", two_models(project), "--backend", backend)
    assert ran.code == 0, ran.err
    lines = [re.sub(r"\d{8}__\d\d-\d\d-\d\d", "STAMP", line) for line in ran.out.splitlines()]
    assert lines[:4] == [
        "[rollouts] config=bench.toml name=bench tasks=1 parallel=2",
        "[rollouts] output=data/rollouts/bench/STAMP",
        "[rollouts] Running in quiet mode - use -vv for full output",
        "[rollouts] Starting 4 tasks with parallel=2",
    ]
    assert sorted(lines[4:8]) == [f"✓ Task STAMP-{index} completed (launched)" for index in range(4)]
    assert lines[8:] == ["✓ All 4 tasks completed!"]


def test_every_run_leaves_its_patch_and_its_record(project: Project, backend: str) -> None:
    assert project("run", two_models(project), "--backend", backend).code == 0
    manifest = project.manifest()
    batch = project.folder / "data/rollouts/bench" / manifest["created_at"]
    assert manifest["schema"] == 1
    assert manifest["config"] == "bench.toml"
    assert manifest["backend"] == backend
    assert manifest["finished_at"] is not None
    assert [result["model"] for result in manifest["results"]] == ["a", "a", "b", "b"]
    for index, result in enumerate(manifest["results"]):
        run_dir = project.folder / result["run_dir"]
        assert result["run_id"] == f"{manifest['created_at']}-{index}"
        assert result["task_dir"] == "tasks/greet"
        assert (result["status"], result["launch_rc"], result["error"]) == ("launched", 0, None)
        assert result["changes"] == {"files": 1, "lines_added": 1, "lines_removed": 0}
        assert f"+{result['model']}\n".encode() in project.patch(result)
        assert (run_dir / "artifacts/notes.md").read_text() == "some words\n"
        assert (run_dir / "logs/agent.log").read_text() == "some words\n"
        assert json.loads((run_dir / "artifacts/repo_info.json").read_text())["origin"] == "tasks/greet/repo"
        assert json.loads((run_dir / "result.json").read_text()) == result
        assert json.loads((batch / "task_results" / f"{result['run_id']}.json").read_text()) == result
    assert (batch / "runs.txt").read_text().splitlines() == [result["run_dir"] for result in manifest["results"]]
    assert (batch / "config.toml").read_bytes() == (project.folder / "bench.toml").read_bytes()
    temp = json.loads((project.folder / f"data/rollouts/temp/rollout_bench__{manifest['created_at']}.json").read_text())
    assert temp["rollout_dir"] == f"data/rollouts/bench/{manifest['created_at']}"
    assert (len(temp["runs"]), temp["tasks"]) == (4, ["tasks/greet"])


def test_statuses_are_kept_apart_and_the_exit_code_agrees(project: Project, backend: str) -> None:
    project.task()
    config = project.config(
        'agent = "command"\nparallel = 3\nbackend = "local"\n'
        + "".join(
            f"[[tasks]]\nprepared_dir = 'tasks/greet'\ncommand = '{command}'\ntimeout_s = {limit}\n"
            for command, limit in (
                ("echo fine", 60),
                ("echo part >>hello.txt; exit 7", 60),
                ("echo part >>hello.txt; sleep 60", 1),
            )
        )
    )
    ran = project("run", config, "--backend", backend)
    assert ran.code == 3
    launched, failed, timeout = project.manifest()["results"]
    assert (launched["status"], launched["launch_rc"]) == ("launched", 0)
    assert (failed["status"], failed["launch_rc"]) == ("agent_failed", 7)
    assert (timeout["status"], timeout["launch_rc"]) == ("timeout", None)
    assert b"+part" in project.patch(failed)
    assert b"+part" in project.patch(timeout)
    assert f"✗ Task {failed['run_id']} completed (agent_failed): the agent exited with 7" in ran.out
    assert "✗ All 3 tasks completed, 1 launched, 2 not" in ran.out


def test_no_run_launched_is_exit_code_1(project: Project) -> None:
    project.task()
    config = project.config('agent = "command"\ncommand = "exit 1"\n[[tasks]]\nprepared_dir = "tasks/greet"\n')
    assert project("run", config, "--backend", "local").code == 1


def test_v_prints_progress_without_icons(project: Project) -> None:
    ran = project("run", two_models(project), "--backend", "local", "-v")
    assert ran.code == 0
    assert not re.search("[✓✗⠋]", ran.out)
    assert "quiet mode" not in ran.out
    assert re.search(r"^Task \S+-0 started \(greet, a\)$", ran.out, re.M)
    assert re.search(r"^Task \S+-0 completed \(launched\) \[\d/4", ran.out, re.M)
    assert ran.out.endswith("All 4 tasks completed!\n")


def test_vv_shows_what_sandboxes_print_behind_their_run_ids(project: Project, backend: str) -> None:
    ran = project("run", two_models(project), "--backend", backend, "-vv")
    assert ran.code == 0
    for result in project.manifest()["results"]:
        assert f"{result['run_id']} | some words\n" in ran.err


def test_hostile_output_cannot_drive_the_terminal(project: Project) -> None:
    project.task()
    command = r"printf '\''\033[2J\033]0;owned\007 [bold]x[/bold] \342\200\256\n'\''; exit 3"
    config = project.config(
        'agent = "command"\n[[tasks]]\nprepared_dir = "tasks/greet"\ncommand = """'
        + command.replace("\\", "\\\\").replace("'\\\\''", "'")
        + '"""\n'
    )
    ran = project("run", config, "--backend", "local", "-vv")
    assert "\x1b" not in ran.out + ran.err
    assert "\u202e" not in ran.err
    assert "\\x1b[2J" in ran.err
    assert "[bold]x[/bold]" in ran.err


def test_json_is_one_document_on_stdout(project: Project) -> None:
    ran = project("run", two_models(project), "--backend", "local", "--json")
    assert ran.json() == project.manifest()
    assert "[rollouts] Starting 4 tasks" in ran.err


def test_only_and_parallel_are_for_this_invocation(project: Project) -> None:
    ran = project("run", two_models(project), "--backend", "local", "--only", "b", "--parallel", "7")
    assert ran.code == 0
    manifest = project.manifest()
    assert [result["model"] for result in manifest["results"]] == ["b", "b"]
    assert manifest["parallel"] == 7


def test_the_environment_chooses_the_backend_and_the_option_wins(project: Project) -> None:
    config = two_models(project)
    ran = project("run", config, "--dry-run", "--json", env={"SANDBOX_BACKEND": "local"})
    assert ran.json()["backend"] == "local"
    ran = project("run", config, "--dry-run", "--json", "--backend", "local", env={"SANDBOX_BACKEND": "docker"})
    assert ran.json()["backend"] == "local"


def test_a_dry_run_creates_nothing(project: Project) -> None:
    ran = project("run", two_models(project), "--backend", "local", "--dry-run")
    assert ran.code == 0
    assert "4 runs on local, parallel=2; images to build: 0" in ran.out
    assert not (project.folder / "data").exists()


def test_two_starts_in_one_second_never_share_a_stamp(project: Project) -> None:
    project.task()
    configs = [
        project.config('agent = "nop"\n[[tasks]]\nprepared_dir = "tasks/greet"\n', f"{name}.toml")
        for name in ("one", "two")
    ]
    commands = [
        [sys.executable, str(SAMPLES.parents[2] / "scripts/eval_rollouts.py"), "run", str(config)]
        for config in configs * 3
    ]
    processes = [
        subprocess.Popen([*command, "--backend", "local"], cwd=project.folder, stdout=subprocess.DEVNULL)
        for command in commands
    ]
    assert [process.wait(120) for process in processes] == [0] * 6
    stamps = [batch.name for name in ("one", "two") for batch in (project.folder / "data/rollouts" / name).iterdir()]
    assert len(set(stamps)) == 6
    assert len(list((project.folder / "data/runs").iterdir())) == 6


def test_another_data_directory_is_named_by_option_or_variable(project: Project, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    config = two_models(project)
    assert project("run", config, "--backend", "local", "--data-dir", elsewhere).code == 0
    assert project("summarize", "bench", env={"ROLLOUTS_DATA": str(elsewhere)}).code == 0
    assert not (project.folder / "data").exists()


def test_the_custom_analysis_snippet_of_the_guide_runs_unchanged(project: Project) -> None:
    assert project("run", two_models(project), "--backend", "local").code == 0
    stamp = project.manifest()["created_at"]
    for result in project.manifest()["results"][:1]:
        (project.folder / result["run_dir"] / "evaluation_results.json").write_text('{"total_score": 0.5}')
    snippet = f"""
import json
from pathlib import Path

# Load benchmark results
rollout_dir = Path("data/rollouts/bench/{stamp}")
manifest = json.loads((rollout_dir / "manifest.json").read_text())

# Analyze results
for result in manifest["results"]:
    run_dir = Path(result["run_dir"])
    if (run_dir / "evaluation_results.json").exists():
        eval_data = json.loads((run_dir / "evaluation_results.json").read_text())
        print(f"Task: {{result['task_dir']}}")
        print(f"Score: {{eval_data.get('total_score', 'N/A')}}")
        print("---")
"""
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=project.folder, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Task: tasks/greet\nScore: 0.5\n---\n"


def test_summarize_and_list_show_what_was_run(project: Project) -> None:
    assert project("run", two_models(project), "--backend", "local").code == 0
    stamp = project.manifest()["created_at"]
    for options in ((), ("--latest",), ("--rollout", stamp), ("--rollout", stamp[:8])):
        ran = project("summarize", "bench", *options)
        assert ran.code == 0
        assert re.search(r"^greet +a +command +2 +2 +- +- +- +- +\d+\.\d s +1 +\+2 +-0", ran.out, re.M), ran.out
    rows = project("summarize", "bench", "--json").json()["rows"]
    assert [(row["model"], row["runs"], row["status"]) for row in rows] == [
        ("a", 2, {"launched": 2}),
        ("b", 2, {"launched": 2}),
    ]
    assert re.search(rf"^bench +{stamp} +finished +local +4 +4 ", project("list").out, re.M)
    assert project("list", "--json").json()["batches"][0]["rollout_dir"] == f"data/rollouts/bench/{stamp}"


def test_a_recorded_run_can_be_replayed(project: Project, backend: str) -> None:
    assert project("run", two_models(project), "--backend", "local").code == 0
    recorded = project.manifest()["results"][2]
    config = project.config(
        f'agent = "replay"\n[[tasks]]\nprepared_dir = "tasks/greet"\nreplay = "{recorded["run_dir"]}"\n', "again.toml"
    )
    assert project("run", config, "--backend", backend).code == 0
    assert project.patch(project.manifest("again")["results"][0]) == project.patch(recorded)


@pytest.mark.docker
def test_twenty_runs_at_once_on_docker_leave_right_patches_and_nothing_else(project: Project, tmp_path: Path) -> None:
    tasks = sorted(path for path in SAMPLES.iterdir() if path.is_dir())[:5]
    entries = "".join(f'[[tasks]]\nprepared_dir = "{task}"\nrollouts = 4\n' for task in tasks)
    config = project.config(f'agent = "oracle"\nparallel = 8\n{entries}')
    assert project("run", config, limit_s=280).code == 0
    results = project.manifest()["results"]
    assert [result["status"] for result in results] == ["launched"] * 20
    for task in tasks:
        patches = {project.patch(result) for result in results if result["task_id"] == task.name}
        assert len(patches) == 1
        (tmp_path / "made.patch").write_bytes(patches.pop())
        assert solved(task, tmp_path / "made.patch", tmp_path / "a") == solved(
            task, task / "solution.patch", tmp_path / "b"
        )
    assert containers_of(f"bench/{project.manifest()['created_at']}") == []
    again = project("run", config)
    assert again.code == 0
    assert "building" not in again.err


def solved(task: Path, patch: Path, folder: Path) -> dict[str, bytes]:
    """The task's source with a patch applied, as file contents."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(task / "repo", folder)
    if (task / "overlay_repo_files").exists():
        shutil.copytree(task / "overlay_repo_files", folder, dirs_exist_ok=True)
    for injected in (
        json.loads((task / "overrides.json").read_text())["inject_files"] if (task / "overrides.json").exists() else ()
    ):
        (folder / injected["path"]).parent.mkdir(parents=True, exist_ok=True)
        (folder / injected["path"]).write_text(injected["content"])
    subprocess.run(["git", "apply", "--binary", str(patch)], cwd=folder, check=True)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def containers_of(batch: str) -> list[str]:
    """Ids alone: asking about each would trip over one that goes away meanwhile."""
    with contextlib.closing(docker.from_env()) as client:
        return [found["Id"] for found in client.api.containers(all=True, filters={"label": f"rollouts.batch={batch}"})]


def test_the_script_can_be_executed_directly(project: Project) -> None:
    script = SAMPLES.parents[2] / "scripts/eval_rollouts.py"
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([script, "--version"], env=environ, cwd=project.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rollouts ")


def test_a_recording_is_found_beside_the_file_that_names_it(project: Project) -> None:
    assert project("run", two_models(project), "--backend", "local").code == 0
    recorded = project.manifest()["results"][0]
    (project.folder / "elsewhere").mkdir()
    (project.folder / "elsewhere/greet.patch").write_bytes(project.patch(recorded))
    entry = '[[tasks]]\nprepared_dir = "tasks/greet"\nreplay = "{task_id}.patch"\n'
    config = project.config(f'agent = "replay"\nname = "again"\n{entry}', "elsewhere/again.toml")
    assert project("run", config, "--backend", "local").code == 0
    assert project.patch(project.manifest("again")["results"][0]) == project.patch(recorded)
