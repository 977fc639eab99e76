"""Bad input: one line that says file, key, value and what to do; the right exit code; nothing half-made on disk."""

import json
import os
import shutil
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.command_line import Project

NOP = 'agent = "nop"\nbackend = "local"\n'
ONE = '[[tasks]]\nprepared_dir = "tasks/greet"\n'


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.task()
    return project


def refused(project: Project, config: str, *options: str, code: int = 2, env: dict[str, str] | None = None) -> str:
    """The one line that `run` says about this file."""
    ran = project("run", project.config(config), *options, env=env)
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    assert not (project.folder / "data/rollouts").exists()
    assert not (project.folder / "data/runs").exists()
    lines = [line for line in ran.err.splitlines() if not line.startswith("[rollouts] ")]  # progress
    assert len(lines) == 1, ran.err
    return lines[0]


def test_a_missing_config_is_named_with_the_likely_one(project: Project) -> None:
    project.config(NOP + ONE, "bench.toml")
    ran = project("run", "bensh.toml")
    assert (ran.code, ran.err) == (2, "bensh.toml: no such file; did you mean bench.toml?\n")


def test_a_syntax_error_is_told_with_line_and_column(project: Project) -> None:
    line = refused(project, 'name = "x"\nparallel = = 3\n')
    assert line == "bench.toml: not valid TOML: Invalid value (at line 2, column 12)"


def test_an_unknown_key_is_told_with_the_likely_one(project: Project) -> None:
    line = refused(project, NOP + ONE + "rollout = 3\n")
    assert line == "bench.toml: tasks[0].rollout: unknown key; did you mean tasks[0].rollouts?"


def test_a_wrong_type_is_told_with_what_was_expected(project: Project) -> None:
    line = refused(project, NOP + ONE + 'rollouts = "three"\n')
    assert line == 'bench.toml: tasks[0].rollouts: expected an integer of at least 1, got "three"'


def test_all_mistakes_of_a_file_are_told_at_once(project: Project) -> None:
    ran = project("run", project.config('agent = "nop"\nparallel = 0\n[limits]\ncpus = "x"\n' + ONE + "rollouts = 0\n"))
    assert (ran.code, len(ran.err.splitlines())) == (2, 3)


def test_a_missing_task_folder_is_named_with_the_likely_one(project: Project) -> None:
    line = refused(project, NOP + '[[tasks]]\nprepared_dir = "tasks/great"\n')
    assert line == "bench.toml: tasks[0]: tasks/great: no such task folder; did you mean tasks/greet?"


def test_a_glob_that_matches_nothing_is_told(project: Project) -> None:
    line = refused(project, NOP + '[[tasks]]\nprepared_dir = "tasks/x*"\n')
    assert line == "bench.toml: tasks[0]: tasks/x*: the glob matches no folder with a tb_meta.json"


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ("{", "not valid JSON: Expecting property name enclosed in double quotes (at line 1, column 2)"),
        ("[]", "expected a JSON object"),
        ("{}", "task_id: missing; expected a name of 1 to 64 characters"),
        ('{"task_id": "x", "enviroment": {}}', "enviroment: unknown key; did you mean environment?"),
    ],
)
def test_a_broken_description_of_a_task_is_told(project: Project, meta: str, said: str) -> None:
    project.task("greet", **{"tb_meta.json": meta})
    assert refused(project, NOP + ONE).startswith(f"bench.toml: tasks[0]: tasks/greet/tb_meta.json: {said}")


@pytest.mark.parametrize("name", ["a/b", "../x", ".hidden", "-x", "temp", "", "x" * 65, "a b"])
def test_a_bad_name_is_refused(project: Project, name: str) -> None:
    line = refused(project, f"name = {json.dumps(name)}\n" + NOP + ONE)
    assert line.startswith("bench.toml: name: expected a name of 1 to 64 characters")


@pytest.mark.parametrize(
    "overrides",
    [
        {"inject_files": [{"path": "../outside", "content": ""}]},
        {"inject_files": [{"path": "/etc/outside", "content": ""}]},
        {"inject_files": [{"path": ".git/hooks/pre-commit", "content": ""}]},
        {"remove_repo_paths": ["../outside"]},
        {"remove_repo_paths": ["/etc"]},
        {"repo": {"subdir": "../.."}},
        {"evaluation": {"protected_paths": ["../x"]}},
    ],
)
def test_overrides_that_leave_the_repository_are_refused(project: Project, overrides: dict[str, object]) -> None:
    project.task("greet", **{"overrides.json": json.dumps(overrides)})
    assert "tasks/greet/overrides.json: " in refused(project, NOP + ONE)


def test_an_override_through_a_link_is_refused(project: Project) -> None:
    task = project.task("greet", **{"overrides.json": '{"inject_files": [{"path": "out/x", "content": "y"}]}'})
    (task / "repo/out").symlink_to("/tmp")
    assert refused(project, NOP + ONE, code=4).endswith("out/x: goes through a link")


def test_an_unknown_backend_is_refused_wherever_it_is_named(project: Project) -> None:
    said = 'expected one of docker, modal, local, got "dokcer"'
    line = refused(project, 'agent = "nop"\nbackend = "dokcer"\n' + ONE)
    assert line == f"bench.toml: backend: {said}; did you mean docker?"
    assert refused(project, NOP + ONE, "--backend", "dokcer") == f"--backend: {said}; did you mean docker?"
    line = refused(project, NOP + ONE, env={"SANDBOX_BACKEND": "dokcer"})
    assert line == f"$SANDBOX_BACKEND: {said}; did you mean docker?"


def test_an_unknown_agent_is_told_with_those_there_are(project: Project) -> None:
    line = refused(project, 'agent = "nopp"\n' + ONE)
    assert line == 'bench.toml: agent: no such agent, got "nopp"; did you mean nop?'


def test_a_key_that_is_missing_is_named_before_anything_starts(project: Project) -> None:
    config = 'agent = "own"\nbackend = "local"\n[agents.own]\ncommand = "true"\nenv = ["NO_SUCH_KEY"]\n' + ONE
    line = refused(project, config)
    assert line == "bench.toml: agents.own.env: the environment variable NO_SUCH_KEY is not set"


def test_an_oracle_without_a_solution_is_told(project: Project) -> None:
    line = refused(project, 'agent = "oracle"\nbackend = "local"\n' + ONE)
    assert line == "bench.toml: tasks[0]: tasks/greet: no solution.patch; the agent oracle applies it"


def test_what_agents_lack_is_told_together_with_missing_tasks(project: Project) -> None:
    config = 'agent = "oracle"\nbackend = "local"\n' + ONE + '[[tasks]]\nprepared_dir = "tasks/none"\n'
    ran = project("validate", project.config(config))
    assert ran.code == 2
    assert ran.err.splitlines() == [
        "bench.toml: tasks[1]: tasks/none: no such task folder",
        "bench.toml: tasks[0]: tasks/greet: no solution.patch; the agent oracle applies it",
    ]


def test_no_engine_is_exit_code_4_with_advice(project: Project) -> None:
    line = refused(project, NOP + ONE, "--backend", "docker", code=4, env={"DOCKER_HOST": "unix:///nonexistent.sock"})
    assert line.startswith("docker: cannot reach the engine at unix:///nonexistent.sock: no engine is running there;")


class TroubledEngine(BaseHTTPRequestHandler):
    """Answers whoever asks whether it is there, and then fails."""

    def do_GET(self) -> None:
        fine = self.path.endswith(("/_ping", "/version"))
        body = b'{"ApiVersion": "1.41", "Version": "20.10"}' if fine else b'{"message": "the disk is gone"}'
        self.send_response(200 if fine else 500)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Nothing."""


def test_an_engine_in_trouble_is_exit_code_4_with_its_own_words(project: Project) -> None:
    with HTTPServer(("127.0.0.1", 0), TroubledEngine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"tcp://127.0.0.1:{server.server_port}"
        line = refused(project, NOP + ONE, "--backend", "docker", code=4, env={"DOCKER_HOST": host})
        server.shutdown()
    assert line.startswith(f"docker: cannot reach the engine at {host}: ")
    assert "the disk is gone" in line


def test_an_engine_that_refuses_access_is_exit_code_4_with_advice(project: Project) -> None:
    path = project.folder / "engine.sock"
    as_anyone = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.getuid() == 0 else ()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0)
        ran = project(
            "run",
            project.config(NOP + ONE),
            "--backend",
            "docker",
            env={"DOCKER_HOST": f"unix://{path}"},
            prefix=as_anyone,
        )
    assert ran.code == 4
    assert ran.err.startswith(f"docker: cannot reach the engine at unix://{path}: permission denied; add your user to")
    assert len(ran.err.splitlines()) == 1


@pytest.mark.docker
def test_an_image_that_does_not_build_is_exit_code_4(project: Project) -> None:
    project.task("greet", Dockerfile="ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo no luck; exit 9\n")
    line = refused(project, NOP + ONE, "--backend", "docker", code=4)
    assert line.startswith("tasks/greet/Dockerfile: the image does not build: ")
    assert "; it said: no luck; all of it in data/cache/builds/" in line


@pytest.mark.docker
def test_a_base_image_that_is_missing_is_exit_code_4(project: Project) -> None:
    line = refused(project, NOP + '[docker]\nbase_image = "localhost:1/none"\n' + ONE, "--backend", "docker", code=4)
    assert line.startswith("base image localhost:1/none is not on this engine and cannot be pulled")
    assert "$ROLLOUTS_BASE_IMAGE" in line


@pytest.mark.docker
def test_one_bad_image_among_good_ones_is_a_result_not_an_end(project: Project) -> None:
    project.task("broken", Dockerfile="ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN exit 9\n")
    config = project.config(NOP + ONE + '[[tasks]]\nprepared_dir = "tasks/broken"\n')
    assert project("run", config, "--backend", "docker").code == 3
    good, bad = project.manifest()["results"]
    assert (good["status"], bad["status"], bad["error"]["stage"]) == ("launched", "sandbox_failed", "image")


def test_a_repository_that_cannot_be_fetched_is_told(project: Project) -> None:
    meta = {"task_id": "far", "lm": {"instructions": "x"}, "repo": {"git_url": "/nonexistent/repo.git"}}
    (project.folder / "tasks/far").mkdir(parents=True)
    (project.folder / "tasks/far/tb_meta.json").write_text(json.dumps(meta))
    line = refused(project, NOP + '[[tasks]]\nprepared_dir = "tasks/far"\n', code=4)
    assert line.startswith("tasks/far/tb_meta.json: repo.git_url: cannot fetch /nonexistent/repo.git: ")


def test_a_data_directory_that_cannot_be_written_is_told(project: Project) -> None:
    (project.folder / "data").write_text("a file, not a folder")
    ran = project("run", project.config(NOP + ONE))
    assert ran.code == 1
    assert len(ran.err.splitlines()) == 1
    assert "Traceback" not in ran.err


def test_unknown_batches_are_told_with_those_there_are(project: Project) -> None:
    assert project("summarize", "bench").code == 2
    assert project("run", project.config(NOP + ONE)).code == 0
    stamp = project.manifest()["created_at"]
    assert project("summarize", "nope").err == "data/rollouts: no batch of a benchmark nope; there are bench\n"
    ran = project("summarize", "bench", "--rollout", "20200101")
    assert (ran.code, ran.err) == (2, f"data/rollouts/bench: no batch 20200101; the newest are {stamp}\n")
    assert project("summarize", "../bench").code == 2


def test_validate_accepts_what_run_accepts_and_refuses_the_rest(project: Project) -> None:
    ran = project("validate", project.config(NOP + ONE))
    assert (ran.code, ran.out) == (0, "bench.toml: fine; tasks: 1, runs: 1\n")
    assert project("validate", project.config(NOP + ONE + "x = 1\n")).code == 2
    assert not (project.folder / "data").exists()


@pytest.mark.parametrize("command", ["summarize", "eval", "resume"])
def test_names_on_the_command_line_lead_nowhere(project: Project, command: str) -> None:
    assert project("run", project.config(NOP + ONE)).code == 0
    batch = max((project.folder / "data/rollouts/bench").iterdir())
    shutil.copytree(batch, project.folder / "elsewhere" / batch.name)
    before = {path for path in project.folder.rglob("*") if "cache" not in path.parts}
    climbing = f"../../../elsewhere/{batch.name}"
    for words in ((f"../../{'elsewhere'}",), ("bench", "--rollout", climbing), ("a/b",), ("bench\u202e",), ("-bench",)):
        ran = project(command, *words)
        assert ran.code == 2, ran.err
        assert "Traceback" not in ran.err
    assert {path for path in project.folder.rglob("*") if "cache" not in path.parts} == before
