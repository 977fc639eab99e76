"""Agents: data and pure functions. What they would run is run here in a plain shell, without a box."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollouts.agents import AGENTS, agent_mistakes, open_agent
from rollouts.agents.base import AgentCommand
from rollouts.backends.base import BoxPaths
from rollouts.config import MODELLESS_AGENTS, AgentTable
from rollouts.errors import ConfigError
from tests.samples import GIT_ENV, make_benchmark, make_spec, make_task, read_tree, write_files

PATHS = BoxPaths(repo="/app/repo", cwd="/app/repo/sub dir", tools="/rollouts", home="/home/agent")
PATCH = "--- a/main.py\n+++ b/main.py\n@@ -1 +1 @@\n-print('hello')\n+print('bye')\n"


def command_of(name: str, folder: Path, benchmark: dict[str, Any] | None = None, **spec: Any) -> AgentCommand:
    task = make_task(folder / "t", files=spec.pop("files", {}))
    return open_agent(name, make_benchmark(**(benchmark or {}))).command(make_spec(task, **spec), PATHS)


def test_every_agent_of_the_table_can_be_opened() -> None:
    assert set(AGENTS) == set(MODELLESS_AGENTS)
    for name in AGENTS:
        assert open_agent(name, make_benchmark()).install is None


def test_nop_does_nothing(tmp_path: Path) -> None:
    assert command_of("nop", tmp_path) == AgentCommand(("true",), {}, {})


def test_command_runs_a_line_in_a_shell(tmp_path: Path) -> None:
    assert command_of("command", tmp_path, command="make fix && echo done").argv == (
        "sh",
        "-c",
        "make fix && echo done",
    )


@pytest.mark.parametrize("model", ["gpt-4", 'it\'s; $(touch x) `x` "q" & | é', "{instructions}"])
def test_values_are_one_word_of_the_shell_each(model: str, tmp_path: Path) -> None:
    line = "printf '%s\\n' {model} --dir={workdir} {instructions} $HOME {other}"
    argv = command_of("command", tmp_path, command=line, model=model).argv
    done = subprocess.run(argv, env={"HOME": "/h"}, capture_output=True, text=True, check=True, cwd=tmp_path)
    expected = [model, "--dir=/app/repo/sub dir", "/rollouts/instructions.md", "/h", "{other}"]
    assert done.stdout.splitlines() == expected
    assert not (tmp_path / "x").exists()


def test_an_agent_of_the_users_own_brings_command_install_and_names(tmp_path: Path) -> None:
    table = AgentTable(command="mine {model}", env=("KEY",), install="pip install mine")
    benchmark = make_benchmark(agents={"mine": table.model_dump()})
    agent = open_agent("mine", benchmark)
    assert (agent.install, agent.env_names) == ("pip install mine", ("KEY",))
    assert agent.command(make_spec(make_task(tmp_path / "t"), model="m"), PATHS).argv == ("sh", "-c", "mine m")


def test_an_agent_of_the_users_own_wins_over_a_built_in(tmp_path: Path) -> None:
    found = command_of("oracle", tmp_path, {"agents": {"oracle": {"command": "my own"}}})
    assert found.argv == ("sh", "-c", "my own")


def test_oracle_brings_the_solution(tmp_path: Path) -> None:
    found = command_of("oracle", tmp_path, files={"solution.patch": PATCH})
    assert found.files == {"recorded.patch": PATCH.encode()}
    assert "/rollouts/in/recorded.patch" in found.argv[2]


def test_oracle_without_a_solution_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/t: no solution\.patch; the agent oracle applies it$"):
        command_of("oracle", tmp_path)


def test_replay_takes_a_patch_or_a_runs_folder(tmp_path: Path) -> None:
    write_files(tmp_path, {"t-1.patch": PATCH, "run/artifacts/diff.patch": "recorded"})
    named = command_of("replay", tmp_path, replay=str(tmp_path / "{task_id}-{rollout}.patch"), rollout=1)
    assert named.files == {"recorded.patch": PATCH.encode()}
    assert command_of("replay", tmp_path, replay=str(tmp_path / "run")).files == {"recorded.patch": b"recorded"}


@pytest.mark.parametrize("name", ["nowhere.patch", "empty"])
def test_replay_without_a_recording_is_told(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=f"{name}: no such recording; expected a patch file, or the folder of a run"):
        command_of("replay", tmp_path, replay=str(tmp_path / name))


@pytest.mark.parametrize(("patch", "after"), [(PATCH, b"print('bye')\n"), ("", b"print('hello')\n")])
def test_applying_a_patch_works_and_an_empty_one_is_fine(patch: str, after: bytes, tmp_path: Path) -> None:
    repo = write_files(tmp_path / "a repo", {"main.py": "print('hello')\n"})
    paths = BoxPaths(str(repo), str(repo), str(tmp_path / "tools"), "/")
    task = make_task(tmp_path / "t", files={"solution.patch": patch})
    found = open_agent("oracle", make_benchmark()).command(make_spec(task), paths)
    write_files(tmp_path / "tools/in", found.files)
    done = subprocess.run(found.argv, env=GIT_ENV, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_tree(repo) == {b"main.py": ("file", after)}


def test_a_patch_that_does_not_apply_fails(tmp_path: Path) -> None:
    repo = write_files(tmp_path / "repo", {"main.py": "something else\n"})
    paths = BoxPaths(str(repo), str(repo), str(tmp_path / "tools"), "/")
    task = make_task(tmp_path / "t", files={"solution.patch": PATCH})
    found = open_agent("oracle", make_benchmark()).command(make_spec(task), paths)
    write_files(tmp_path / "tools/in", found.files)
    assert subprocess.run(found.argv, env=GIT_ENV, capture_output=True, cwd=tmp_path).returncode != 0


def test_without_git_a_patch_is_applied_by_patch(tmp_path: Path) -> None:
    found = command_of("oracle", tmp_path, files={"solution.patch": PATCH})
    assert f"patch -p1 <{shlex.quote('/rollouts/in/recorded.patch')}" in found.argv[2]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"model": "gpt-4", "agent": "orcale"}, 'tasks[0].agent: no such agent, got "orcale"; did you mean oracle?'),
        ({"agent": "zzz"}, 'tasks[0].agent: no such agent, got "zzz"; there are command, mine, nop, oracle, replay'),
        ({"agent": "mine"}, "tasks[0].model: missing; expected a model's name for the agent mine"),
        ({"agent": "command"}, 'tasks[0].command: missing; expected the shell command that the agent "command" runs'),
        ({"agent": "replay"},
         'tasks[0].replay: missing; expected the recorded patch, or the run, that the agent "replay" applies'),
        ({"agent": "nop", "command": "true"}, 'tasks[0].command: goes with agent = "command" only'),
        ({"agent": "nop", "replay": "x"}, 'tasks[0].replay: goes with agent = "replay" only'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_entrys_agent_is_told(entry: dict[str, Any], said: str) -> None:
    benchmark = make_benchmark(tasks=[{"prepared_dir": "t", **entry}], agents={"mine": {"command": "x {model}"}})
    assert agent_mistakes(benchmark) == [said]


@pytest.mark.parametrize(
    "entry",
    [
        {"agent": "nop"},
        {"model": "oracle"},
        {"agent": "command", "command": "x"},
        {"agent": "replay", "replay": "x"},
        {"agent": "mine", "model": "m"},
        {"models": ["nop", "oracle"]},
    ],
)
def test_entries_that_are_fine_have_no_mistakes(entry: dict[str, Any]) -> None:
    benchmark = make_benchmark(tasks=[{"prepared_dir": "t", **entry}], agents={"mine": {"command": "x {model}"}})
    assert agent_mistakes(benchmark) == []


def test_the_mistakes_of_all_entries_are_told_once_each() -> None:
    entries = [{"prepared_dir": "t", "model": "gpt-4"}, {"prepared_dir": "t", "models": ["gpt-5", "o3"]}]
    found = agent_mistakes(make_benchmark(tasks=entries, agent="zzz"))
    assert found == ['agent: no such agent, got "zzz"; there are command, nop, oracle, replay']


def test_a_model_whose_agent_is_not_there_is_told() -> None:
    found = agent_mistakes(make_benchmark(tasks=[{"prepared_dir": "t", "model": "gpt-4"}]))
    assert len(found) == 1
    assert 'for the model "gpt-4" it would be codex' in found[0]
