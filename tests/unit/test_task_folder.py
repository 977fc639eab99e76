"""Task folders: what they may hold, what overrides change, and that nothing leaves the folder or changes it."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rollouts.config import Benchmark
from rollouts.errors import ConfigError
from rollouts.task_folder import find_tasks, load_task
from rollouts.tasks import Task
from tests.samples import make_benchmark, make_task, read_tree, write_files, write_task

META: dict[str, Any] = {
    "metadata": {"title": "A title", "tags": ["python", "easy"]},
    "repo": {
        "git_url": "https://example.com/x.git",
        "branch": "main",
        "start_commit_sha": "abc1234",
        "end_commit_sha": "def5678",
        "subdir": "pkg",
        "sparse_checkout": ["pkg/", "!docs"],
    },
    "lm": {"instructions": "From the meta."},
    "evaluation": {
        "rubrics": [{"id": "r1", "criterion": "works", "weight": 2}, {"id": "r2"}],
        "test_scripts": [{"path": "tests/test_x.py", "rubric_id": "r1", "content": "def test(): ..."}],
        "setup": "make",
        "command": "pytest",
        "fail_to_pass": ["a"],
        "pass_to_pass": ["b"],
        "protected_paths": ["conftest.py"],
        "timeout_s": 30,
        "metrics": "make metrics",
    },
    "environment": {"image": "debian", "user": "1000:1000", "workdir": "/app/repo"},
}


def load_tasks(benchmark: Benchmark, config: Path) -> list[list[Task]]:
    """Raises what `find_tasks` only notes."""
    found: list[str] = []
    tasks = find_tasks(benchmark, config, found)
    if found:
        raise ConfigError(*found)
    return tasks


def mistakes_of(folder: Path, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_task(folder, **options)
    return [line.replace(str(folder), "TASK") for line in caught.value.mistakes]


def test_every_key_of_the_description_is_read(tmp_path: Path) -> None:
    task = make_task(tmp_path / "t", meta=META, instructions=None)
    assert (task.task_id, task.title, task.tags) == ("t", "A title", ("python", "easy"))
    assert task.instructions == "From the meta."
    assert task.repo.model_dump() == {**META["repo"], "sparse_checkout": ("pkg/", "!docs")}
    assert [(rubric.id, rubric.weight) for rubric in task.evaluation.rubrics] == [("r1", 2.0), ("r2", 1.0)]
    assert task.evaluation.test_scripts[0].path == "tests/test_x.py"
    assert (task.evaluation.setup, task.evaluation.command, task.evaluation.timeout_s) == ("make", "pytest", 30.0)
    assert (task.evaluation.fail_to_pass, task.evaluation.pass_to_pass) == (("a",), ("b",))
    assert task.evaluation.protected_paths == ("conftest.py",)
    assert task.evaluation.metrics == "make metrics"
    assert (task.environment.image, task.environment.user, task.environment.workdir) == (
        "debian", "1000:1000", "/app/repo",
    )  # fmt: skip


def test_a_small_task_has_defaults(tmp_path: Path) -> None:
    task = make_task(tmp_path / "t")
    assert (task.title, task.tags, task.overrides, task.solution, task.dockerfile) == ("t", (), None, None, None)
    assert task.evaluation.timeout_s == 600.0


def test_the_instructions_file_beats_the_description(tmp_path: Path) -> None:
    task = make_task(tmp_path / "t", meta={"lm": {"instructions": "meta"}}, instructions="file\n")
    assert task.instructions == "file\n"


def test_parts_beside_the_description_are_found(tmp_path: Path) -> None:
    files = {"solution.patch": "", "Dockerfile": "FROM x", "docker/Other": "FROM y"}
    assert make_task(tmp_path / "t", files=files).dockerfile == tmp_path / "t/Dockerfile"
    other = make_task(tmp_path / "u", files=files, meta={"environment": {"dockerfile": "docker/Other"}})
    assert other.dockerfile == tmp_path / "u/docker/Other"
    assert other.solution == tmp_path / "u/solution.patch"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON: Expecting value (at line 1, column 1)"),
        (
            '{"task_id": "t"\n x}',
            "not valid JSON: Expecting ',' delimiter (at line 2, column 2)",
        ),
        ("[]", "expected a JSON object"),
        ("{}", "task_id: missing; expected a name of 1 to 64 characters"),
        ('{"task_id": "../x"}', "task_id: expected a name of 1 to 64 characters"),
        ('{"task_id": 5}', "task_id: expected a name of 1 to 64 characters"),
        ("[" * 100_000, "nested more than 32 deep"),
        ('{"task_id": "t", "x": ' + "[" * 40 + "]" * 40 + "}", "nested more than 32 deep"),
    ],
)
def test_a_broken_description_is_told(text: str, said: str, tmp_path: Path) -> None:
    write_task(tmp_path / "t")
    (tmp_path / "t/tb_meta.json").write_text(text)
    found = mistakes_of(tmp_path / "t")
    assert len(found) == 1
    assert found[0].startswith(f"TASK/tb_meta.json: {said}")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("metadata", [], "metadata: expected a table, got []"),
        ("metadata", {"tags": "x"}, 'metadata.tags: expected a list of texts, got "x"'),
        ("repo", {"git_url": ""}, "repo.git_url: expected an address or path of a git repository"),
        ("repo", {"git_url": "--upload-pack=x"}, "repo.git_url: expected an address or path of a git repository"),
        ("repo", {"git_url": "ext::sh -c x"}, "repo.git_url: expected an address or path of a git repository"),
        ("repo", {"start_commit_sha": "--all"}, "repo.start_commit_sha: expected a commit, branch or tag"),
        ("repo", {"branch": "a..b"}, "repo.branch: expected a commit, branch or tag"),
        ("repo", {"subdir": "../x"}, "repo.subdir: expected a path inside the repository"),
        ("repo", {"subdir": "/x"}, "repo.subdir: expected a path inside the repository"),
        ("repo", {"sparse_checkout": ["../x"]}, "repo.sparse_checkout[0]: expected a p"),
        ("lm", {"instructions": " "}, "lm.instructions: expected a text that is not empty"),
        ("evaluation", {"rubrics": [{"weight": 1}]}, "evaluation.rubrics[0].id: missing; expected a name"),
        ("evaluation", {"rubrics": [{"id": "a", "weight": 0}]}, "evaluation.rubrics[0].weight: expected a number"),
        ("evaluation", {"rubrics": [{"id": "a"}, {"id": "a"}]}, "evaluation.rubrics: id a stands twice"),
        ("evaluation", {"test_scripts": [{"path": "../x", "rubric_id": "r", "content": ""}]},
         "evaluation.test_scripts[0].path: expected a path inside the repository"),
        ("evaluation",
         {"rubrics": [{"id": "speed"}], "test_scripts": [{"path": "x", "rubric_id": "sped", "content": ""}]},
         "evaluation.test_scripts[0].rubric_id: no such rubric, got sped; did you mean speed?"),
        ("evaluation", {"timeout_s": 0}, "evaluation.timeout_s: expected a number of seconds above 0, got 0"),
        ("evaluation", {"fail_to_pass": [1]}, "evaluation.fail_to_pass[0]: expected a list of test ids, got 1"),
        ("environment", {"workdir": "relative"}, "environment.workdir: expected an absolute path"),
        ("environment", {"workdir": "/"}, "environment.workdir: expected an absolute path"),
        ("environment", {"workdir": "/rollouts/x"}, "environment.workdir: expected an absolute path"),
        ("environment", {"workdir": "/a/../b"}, "environment.workdir: expected an absolute path"),
        ("environment", {"user": "a b"}, "environment.user: expected a user as name, uid or uid:gid"),
        ("environment", {"dockerfile": "nope"}, "environment.dockerfile: no such file, got nope"),
        ("environment", {"dockerfile": "../Dockerfile"}, "environment.dockerfile: expected a path inside"),
    ],
)  # fmt: skip
def test_a_bad_value_in_the_description_is_told(key: str, value: object, said: str, tmp_path: Path) -> None:
    write_task(tmp_path / "t", meta={key: value}, repo={})
    found = mistakes_of(tmp_path / "t")
    assert len(found) == 1
    assert found[0].startswith(f"TASK/tb_meta.json: {said}")


def test_all_mistakes_of_a_description_are_told_at_once(tmp_path: Path) -> None:
    write_task(tmp_path / "t", meta={"lm": {"instruction": "x"}, "repo": {"subdir": "/"}, "environment": {"user": ""}})
    assert len(mistakes_of(tmp_path / "t")) == 3


def test_foreign_keys_are_let_through(tmp_path: Path) -> None:
    meta = {"harness": {"x": 1}, "metadata": {"difficulty": "easy"}, "repo": {"stars": 5}}
    assert make_task(tmp_path / "t", meta=meta, repo={}).task_id == "t"


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"enviroment": {}}, "enviroment: unknown key; did you mean environment?"),
        ({"repo": {"start_comit_sha": "x"}}, "repo.start_comit_sha: unknown key; did you mean repo.start_commit_sha?"),
        (
            {"evaluation": {"fail_to_past": []}},
            "evaluation.fail_to_past: unknown key; did you mean evaluation.fail_to_",
        ),
    ],
)
def test_misspelt_keys_are_refused(meta: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_task(tmp_path / "t", meta=meta, repo={})
    assert mistakes_of(tmp_path / "t")[0].startswith(f"TASK/tb_meta.json: {said}")


def test_a_task_without_source_instructions_or_folder_is_told(tmp_path: Path) -> None:
    write_task(tmp_path / "t", meta={"repo": {}})
    assert mistakes_of(tmp_path / "t") == [
        "TASK/tb_meta.json: repo.git_url: missing; expected it, or a folder repo/ beside tb_meta.json"
    ]
    write_task(tmp_path / "u", instructions=" \n")
    assert mistakes_of(tmp_path / "u") == [
        "TASK: no instructions; expected LM_INSTRUCTIONS.md, or lm.instructions in tb_meta.json"
    ]
    (tmp_path / "empty").mkdir()
    assert mistakes_of(tmp_path / "empty") == ["TASK/tb_meta.json: no such file"]
    with pytest.raises(ConfigError, match=r"/emty: no such task folder; did you mean .*/empty\?$"):
        load_task(tmp_path / "emty")
    (tmp_path / "file").touch()
    assert mistakes_of(tmp_path / "file") == ["TASK: is not a folder"]


def test_the_mistakes_of_both_files_are_told_together(tmp_path: Path) -> None:
    write_task(
        tmp_path / "t",
        meta={"task_id": "../x", "enviroment": {}, "repo": {"subdir": "/", "brnch": "x"}},
        overrides={"lm_instruction": "x", "repo": {"branch": "a..b"}, "evaluation": {"timeout_s": 0, "setpu": "x"}},
    )
    found = mistakes_of(tmp_path / "t")
    assert [line.split(": ")[:2] for line in found] == [
        ["TASK/tb_meta.json", "enviroment"],
        ["TASK/tb_meta.json", "repo.brnch"],
        ["TASK/tb_meta.json", "task_id"],
        ["TASK/tb_meta.json", "repo.subdir"],
        ["TASK/overrides.json", "lm_instruction"],
        ["TASK/overrides.json", "evaluation.setpu"],
        ["TASK/overrides.json", "repo.branch"],
        ["TASK/overrides.json", "evaluation.timeout_s"],
    ]


def test_a_description_that_is_no_json_does_not_hide_what_is_wrong_with_the_overrides(tmp_path: Path) -> None:
    write_task(tmp_path / "t", overrides={"remove_repo_paths": "x"})
    (tmp_path / "t/tb_meta.json").write_text("{")
    first, second = mistakes_of(tmp_path / "t")
    assert first.startswith("TASK/tb_meta.json: not valid JSON: ")
    assert second.startswith("TASK/overrides.json: remove_repo_paths: expected a list of paths")


@pytest.mark.parametrize("name", ["tb_meta.json", "overrides.json", "LM_INSTRUCTIONS.md"])
@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_should_be_a_file_and_is_none_is_told(kind: str, name: str, tmp_path: Path) -> None:
    path = write_task(tmp_path / "t", overrides={}) / name
    path.unlink()
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    assert mistakes_of(tmp_path / "t") == [f"TASK/{name}: is not a file"]


@pytest.mark.parametrize("name", ["tb_meta.json", "overrides.json", "LM_INSTRUCTIONS.md", "repo/main.py"])
def test_a_file_that_may_not_be_read_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path / "t", overrides={})
    refused, read_bytes = tmp_path / "t" / name, Path.read_bytes

    def read(path: Path) -> bytes:
        if path == refused:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    assert mistakes_of(tmp_path / "t") == [f"TASK/{name}: cannot be read: Permission denied"]


@pytest.mark.parametrize("name", ["tb_meta.json", "overrides.json"])
@pytest.mark.parametrize("text", [r'{"x": "\ud800"}', r'{"\udc00": 1}', r'{"x": [{"y": "a\udfffb"}]}'])
def test_half_a_character_is_told(text: str, name: str, tmp_path: Path) -> None:
    write_task(tmp_path / "t", overrides={})
    (tmp_path / "t" / name).write_text(text)
    assert mistakes_of(tmp_path / "t") == [f"TASK/{name}: holds half a character (a lone surrogate), which is no text"]


def test_a_whole_character_of_two_halves_is_text(tmp_path: Path) -> None:
    write_task(tmp_path / "t")
    (tmp_path / "t/overrides.json").write_text(r'{"lm_instructions": "\ud83d\ude00"}')
    assert load_task(tmp_path / "t").instructions == "😀"


def test_byte_order_marks_are_no_mistakes(tmp_path: Path) -> None:
    write_task(tmp_path / "t", overrides={"environment_variables": {"X": "1"}}, instructions="Mend it.\n")
    for name in ("tb_meta.json", "overrides.json", "LM_INSTRUCTIONS.md"):
        path = tmp_path / "t" / name
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    task = load_task(tmp_path / "t")
    assert (task.task_id, task.instructions, task.environment_variables) == ("t", "Mend it.\n", {"X": "1"})


# --- overrides ----------------------------------------------------------------------------------------------------

OVERRIDES: dict[str, Any] = {
    "remove_repo_paths": ["old/", "*.tmp"],
    "inject_files": [{"path": "new.txt", "content": "new"}],
    "repo": {"branch": "other", "subdir": "sub"},
    "lm_instructions": "Do something else.",
    "environment_variables": {"X": "1"},
    "evaluation": {"timeout_s": 5, "rubrics": [{"id": "only"}]},
}


def test_overrides_change_all_that_they_name_and_nothing_else(tmp_path: Path) -> None:
    meta = {"repo": META["repo"], "evaluation": {"setup": "make", "timeout_s": 30}}
    task = make_task(tmp_path / "t", meta=meta, overrides=OVERRIDES)
    assert task.remove_repo_paths == ("old/", "*.tmp")
    assert [(file.path, file.content) for file in task.inject_files] == [("new.txt", "new")]
    assert (task.repo.branch, task.repo.subdir, task.repo.start_commit_sha) == ("other", "sub", "abc1234")
    assert task.instructions == "Do something else."
    assert task.environment_variables == {"X": "1"}
    assert (task.evaluation.timeout_s, task.evaluation.setup) == (5.0, "make")
    assert [rubric.id for rubric in task.evaluation.rubrics] == ["only"]
    assert task.overrides == tmp_path / "t/overrides.json"


def test_overrides_replace_keys_of_repo_and_evaluation_one_by_one(tmp_path: Path) -> None:
    meta = {"repo": META["repo"], "evaluation": META["evaluation"]}
    overrides = {
        "repo": {"subdir": None, "sparse_checkout": [], "stars": 5},
        "evaluation": {"fail_to_pass": ["c"], "metrics": None, "timeout_s": 600},
    }
    plain = make_task(tmp_path / "1/t", meta=meta)
    task = make_task(tmp_path / "2/t", meta=meta, overrides=overrides)
    assert task.repo.model_dump() == {**plain.repo.model_dump(), "subdir": None, "sparse_checkout": ()}
    changed = {"fail_to_pass": ("c",), "metrics": None, "timeout_s": 600.0}
    assert task.evaluation.model_dump() == {**plain.evaluation.model_dump(), **changed}
    assert (plain.repo.subdir, plain.evaluation.timeout_s) == ("pkg", 30.0)


@pytest.mark.parametrize("overrides", [{}, {"repo": {}, "evaluation": {}}, {"repo": {"foreign": 1}}])
def test_overrides_that_name_no_key_change_nothing(overrides: dict[str, Any], tmp_path: Path) -> None:
    meta = {"repo": META["repo"], "evaluation": META["evaluation"]}
    task, plain = make_task(tmp_path / "1/t", meta=meta, overrides=overrides), make_task(tmp_path / "2/t", meta=meta)
    assert (task.repo, task.evaluation) == (plain.repo, plain.evaluation)


def test_a_rubric_that_overrides_take_away_is_missed(tmp_path: Path) -> None:
    write_task(tmp_path / "t", meta=META, overrides={"evaluation": {"rubrics": [{"id": "r2"}]}})
    assert mistakes_of(tmp_path / "t") == [
        "TASK/tb_meta.json: evaluation.test_scripts[0].rubric_id: no such rubric, got r1"
    ]


def test_reading_a_task_leaves_its_folder_byte_for_byte(tmp_path: Path) -> None:
    write_task(tmp_path / "t", overrides=OVERRIDES, repo={"old/x": "x"})
    before = read_tree(tmp_path / "t")
    load_task(tmp_path / "t")
    assert read_tree(tmp_path / "t") == before


def test_overrides_are_left_alone_when_not_wanted(tmp_path: Path) -> None:
    write_task(tmp_path / "t", overrides={"lm_instructions": "other"})
    task = load_task(tmp_path / "t", apply_overrides=False)
    assert (task.instructions, task.overrides) == ("Make it work.\n", None)


def test_overrides_given_by_name_beat_the_tasks_own(tmp_path: Path) -> None:
    write_task(tmp_path / "t", overrides={"lm_instructions": "own", "environment_variables": {"OWN": "1"}})
    (tmp_path / "mine.json").write_text('{"lm_instructions": "mine"}')
    task = load_task(tmp_path / "t", overrides=tmp_path / "mine.json")
    assert (task.instructions, task.environment_variables) == ("mine", {})
    assert task.overrides == tmp_path / "mine.json"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"remove_repo_paths": ["../x"]}, "remove_repo_paths[0]: expected a p"),
        ({"remove_repo_paths": ["a/../../x"]}, "remove_repo_paths[0]: expected a p"),
        ({"remove_repo_paths": "x"}, "remove_repo_paths: expected a list of paths"),
        ({"inject_files": [{"path": "../x", "content": ""}]}, "inject_files[0].path: expected a path inside the repo"),
        ({"inject_files": [{"path": "/etc/x", "content": ""}]}, "inject_files[0].path: expected a path inside"),
        ({"inject_files": [{"path": ".git/hooks/x", "content": ""}]}, "inject_files[0].path: expected a path inside"),
        ({"inject_files": [{"path": "a/.GIT/x", "content": ""}]}, "inject_files[0].path: expected a path inside"),
        ({"inject_files": [{"path": "x"}]}, "inject_files[0].content: missing; expected the file's text"),
        ({"repo": {"subdir": ".."}}, "repo.subdir: expected a path inside the repository"),
        ({"repo": {"brnch": "x"}}, "repo.brnch: unknown key; did you mean repo.branch?"),
        ({"repo": None}, "repo: expected a table, got null"),
        ({"evaluation": []}, "evaluation: expected a table, got []"),
        ({"evaluation": {"timeout_s": "x"}}, 'evaluation.timeout_s: expected a number of seconds above 0, got "x"'),
        ({"environment_variables": {"X": 1}}, "environment_variables.X: expected a table of variable names"),
        ({"environment_variables": {"TIMEOUT_SEC": "x"}}, "environment_variables: expected TIMEOUT_SEC to be a string"),
        ({"lm_instruction": "x"}, "lm_instruction: unknown key; did you mean lm_instructions?"),
    ],
)  # fmt: skip
def test_bad_overrides_are_told(overrides: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_task(tmp_path / "t", overrides=overrides)
    found = mistakes_of(tmp_path / "t")
    assert len(found) == 1
    assert found[0].startswith(f"TASK/overrides.json: {said}")


def test_named_overrides_that_are_missing_are_told(tmp_path: Path) -> None:
    write_task(tmp_path / "t")
    assert mistakes_of(tmp_path / "t", overrides=tmp_path / "t/nope.json") == ["TASK/nope.json: no such file"]


@pytest.mark.parametrize("name", ["LM_INSTRUCTIONS.md", "overlay_files", "tests", "solution.patch", "Dockerfile"])
def test_parts_that_are_links_out_of_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    outside = write_files(tmp_path / "outside", {"secret": "s"})
    write_task(tmp_path / "t", meta={"lm": {"instructions": "x"}}, instructions=None, repo={})
    (tmp_path / "t" / name).symlink_to(outside if name in ("overlay_files", "tests") else outside / "secret")
    assert mistakes_of(tmp_path / "t")[0].startswith(f"TASK/{name}: is a link that leaves the task folder")


def test_links_within_the_source_are_its_own_business(tmp_path: Path) -> None:
    write_task(tmp_path / "t")
    (tmp_path / "t/repo/link").symlink_to("/etc/passwd")
    assert load_task(tmp_path / "t").task_id == "t"


def test_the_digest_names_folder_and_overrides(tmp_path: Path) -> None:
    base = make_task(tmp_path / "1/t").digest
    assert make_task(tmp_path / "2/t").digest == base
    assert make_task(tmp_path / "3/t", instructions="other").digest != base
    assert make_task(tmp_path / "4/t", files={"tests/x": "x"}).digest != base
    (tmp_path / "mine.json").write_text('{"lm_instructions": "mine"}')
    one = load_task(tmp_path / "1/t", overrides=tmp_path / "mine.json").digest
    (tmp_path / "mine.json").write_text('{"lm_instructions": "yours"}')
    assert len({base, one, load_task(tmp_path / "1/t", overrides=tmp_path / "mine.json").digest}) == 3


# --- a benchmark's tasks ------------------------------------------------------------------------------------------


def test_two_entries_of_one_task_do_not_affect_each_other(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t", overrides={"lm_instructions": "own"})
    (tmp_path / "mine.json").write_text('{"lm_instructions": "mine", "environment_variables": {"X": "1"}}')
    entries = [
        {"prepared_dir": str(folder), "agent": "nop"},
        {"prepared_dir": str(folder), "agent": "nop", "overrides": str(tmp_path / "mine.json")},
        {"prepared_dir": str(folder), "agent": "nop", "apply_overrides": False},
        {"prepared_dir": str(folder), "agent": "nop", "apply_overrides": False, "overrides": "nowhere"},
    ]
    loaded = load_tasks(make_benchmark(tasks=entries), tmp_path / "b.toml")
    assert [tasks[0].instructions for tasks in loaded] == ["own", "mine", "Make it work.\n", "Make it work.\n"]
    assert [tasks[0].environment_variables for tasks in loaded] == [{}, {"X": "1"}, {}, {}]


def test_a_glob_names_every_folder_that_looks_like_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a", "deep/c"):
        write_task(tmp_path / "tasks" / name, meta={"task_id": name[-1]})
    (tmp_path / "tasks/not_a_task").mkdir()
    monkeypatch.chdir(tmp_path)
    entries = [{"prepared_dir": text, "agent": "nop"} for text in ("tasks/*", "tasks/**", f"{tmp_path}/tasks/[ab]")]
    loaded = load_tasks(make_benchmark(tasks=entries), Path("b.toml"))
    assert [[task.task_id for task in tasks] for tasks in loaded] == [["a", "b"], ["a", "b", "c"], ["a", "b"]]


def test_paths_may_be_relative_to_the_benchmark_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path / "configs/t")
    monkeypatch.chdir(tmp_path)
    entries = [{"prepared_dir": text, "agent": "nop"} for text in ("t", "*")]
    loaded = load_tasks(make_benchmark(tasks=entries), Path("configs/b.toml"))
    assert [tasks[0].folder for tasks in loaded] == [Path("configs/t"), Path("configs/t")]


def test_the_mistakes_of_all_tasks_are_told_at_once(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_task(tmp_path / "tasks" / name, instructions=None if name != "b" else "fine")
    entries = [{"prepared_dir": str(tmp_path / text), "agent": "nop"} for text in ("tasks/*", "nowhere/*", "missing")]
    with pytest.raises(ConfigError) as caught:
        load_tasks(make_benchmark(tasks=entries), Path("b.toml"))
    nothing_told = "no instructions; expected LM_INSTRUCTIONS.md, or lm.instructions in tb_meta.json"
    said = [line.replace(str(tmp_path), "TMP") for line in caught.value.mistakes]
    assert said == [
        f"b.toml: tasks[0]: TMP/tasks/a: {nothing_told}",
        f"b.toml: tasks[0]: TMP/tasks/c: {nothing_told}",
        "b.toml: tasks[1]: TMP/nowhere/*: the glob matches no folder with a tb_meta.json",
        "b.toml: tasks[2]: TMP/missing: no such task folder",
    ]


def test_two_folders_must_not_share_an_id(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        write_task(tmp_path / "tasks" / name, meta={"task_id": "same" if name != "c" else "c"})
    entries = [{"prepared_dir": str(tmp_path / text), "agent": "nop"} for text in ("tasks/a", "tasks/*", "missing")]
    with pytest.raises(ConfigError) as caught:
        load_tasks(make_benchmark(tasks=entries), Path("b.toml"))
    assert [line.replace(str(tmp_path), "TMP") for line in caught.value.mistakes] == [
        "b.toml: tasks[2]: TMP/missing: no such task folder",
        "b.toml: TMP/tasks/b/tb_meta.json: task_id: same is also that of TMP/tasks/a",
        "b.toml: TMP/tasks/d/tb_meta.json: task_id: same is also that of TMP/tasks/a",
    ]


def test_one_folder_by_two_names_shares_its_id_with_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path / "t")
    (tmp_path / "link").symlink_to("t")
    monkeypatch.chdir(tmp_path)
    entries = [{"prepared_dir": text, "agent": "nop"} for text in ("t", f"{tmp_path}/t", "link", "./t")]
    loaded = load_tasks(make_benchmark(tasks=entries), Path("b.toml"))
    assert [task.task_id for tasks in loaded for task in tasks] == ["t"] * 4


def test_a_task_is_read_once_however_many_entries_name_it(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    entries = [{"prepared_dir": str(folder), "agent": "nop", "rollouts": n} for n in (1, 2)]
    loaded = load_tasks(make_benchmark(tasks=entries), tmp_path / "b.toml")
    assert loaded[0][0] is loaded[1][0]


def test_a_description_of_17_mb_is_not_read(tmp_path: Path) -> None:
    write_task(tmp_path / "t")
    (tmp_path / "t/tb_meta.json").write_text(json.dumps({"task_id": "t", "x": "y" * 17_000_000}))
    assert "may have at most" in mistakes_of(tmp_path / "t")[0]
